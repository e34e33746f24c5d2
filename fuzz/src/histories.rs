//! What befalls a few processes and the network between them, in the simulated world of cpc's tests: the machines of the
//! connection managers have to come through any history.
//!
//! ```text
//!   0 seed | 1 how many processes | 2 lost, 3 doubled, 4 late: chances | 5 a multiple of 8: bits flip, that often in 32nds
//!   then records of three bytes: a deed, who, and to whom or how long ([`Deed`])
//! ```
//! What must hold is what the simulator's own tests ask for: the world comes to rest, and then each pair is connected or one of the two
//! has been told. Where bits flip (ibcm, rdmacm), that it comes to rest.

use crate::sim::faults::{Fault, Odds};
use crate::sim::ibcm::Ibcm;
use crate::sim::pairs::Pairwise;
use crate::sim::process::Presence;
use crate::sim::protocol::Protocol;
use crate::sim::rdmacm::RdmaCm;
use crate::sim::xrc::World as XrcWorld;
use crate::sim::{HOP, World};

/// Bytes in front of the deeds, and of each.
const HEAD: usize = 6;
const RECORD: usize = 3;
/// Deeds of one history.
const MOST: usize = 32;
/// Steps that no history needs.
const STEPS: u64 = 100_000;

pub(crate) fn ibcm(data: &[u8]) {
    pairwise::<Ibcm>(data);
}

pub(crate) fn rdmacm(data: &[u8]) {
    pairwise::<RdmaCm>(data);
}

/// Something that is done to the world, or by one of its processes.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Connect,
    Replace,
    Remove,
    Restart,
    /// Time passes: some hops, or many.
    Wait(u32),
    /// A fault of one of the next datagrams.
    Fault(u64, Fault),
    /// The process starts anew after one of the next datagrams.
    RestartAfter(u64),
    /// It is stopped, or goes on.
    Toggle,
    /// All who are connected send something.
    UseAll,
    /// It starts anew, and its peers are not told where.
    Unheard,
    /// What it sends to the peer through breaks.
    Break,
}

impl Deed {
    fn of([deed, who, what]: [u8; RECORD]) -> Deed {
        let (next, number) = (u64::from(who >> 4), u32::from(what));
        match deed % 16 {
            0..=2 => Deed::Connect,
            3 => Deed::Replace,
            4 => Deed::Remove,
            5 => Deed::Restart,
            6 | 7 => Deed::Wait(number % 16),
            8 => Deed::Wait(u32::from(who) << 8 | number),
            9 | 10 => Deed::Fault(next, Deed::fault(what)),
            11 => Deed::RestartAfter(next),
            12 => Deed::Toggle,
            13 => Deed::UseAll,
            14 => Deed::Unheard,
            _ => Deed::Break,
        }
    }

    fn fault(what: u8) -> Fault {
        match what % 4 {
            0 => Fault::Drop,
            1 => Fault::Duplicate,
            2 => Fault::Swap,
            _ => Fault::Delay(u32::from(what) * 200),
        }
    }
}

fn odds(head: [u8; HEAD]) -> Odds {
    let percent = |byte: u8, below: u64| u64::from(byte) % below;
    let corrupt = if head[5].is_multiple_of(8) { u64::from(head[5]) / 8 } else { 0 };
    Odds { drop: percent(head[2], 40), duplicate: percent(head[3], 30), delay: percent(head[4], 30), corrupt }
}

/// The deeds of an input, each with the two processes that it is about.
fn deeds(records: &[u8], count: usize) -> impl Iterator<Item = (Deed, usize, usize)> {
    records.chunks_exact(RECORD).take(MOST).map(move |record| {
        let (me, by) = (usize::from(record[1]) % count, usize::from(record[2]) % (count - 1));
        (Deed::of([record[0], record[1], record[2]]), me, (me + 1 + by) % count)
    })
}

/// What any world does in the same way; `false`: it is no such deed.
fn befall<P: Protocol>(world: &mut World<P>, deed: Deed, me: usize, peer: usize) -> bool {
    let sent = world.sent;
    match deed {
        Deed::Connect => world.connect(me, peer),
        Deed::Replace => world.replace(me, peer),
        Deed::Remove => world.remove(me, peer),
        Deed::Restart => world.restart(me),
        Deed::Wait(hops) => world.run_for(HOP * hops),
        Deed::Fault(next, fault) => drop(world.plan.faults.insert(sent + next, fault)),
        Deed::RestartAfter(next) => drop(world.plan.restarts.insert(sent + next, me)),
        Deed::Toggle if world.processes[me].presence == Presence::Stopped => world.wake(me),
        Deed::Toggle => world.stop(me),
        Deed::UseAll | Deed::Unheard | Deed::Break => return false,
    }
    true
}

/// A process that is stopped does nothing of its own.
fn can_act<P: Protocol>(world: &World<P>, deed: Deed, me: usize) -> bool {
    let its_own = matches!(deed, Deed::Connect | Deed::Replace | Deed::Remove | Deed::Break);
    !its_own || world.processes[me].is_here()
}

/// Nothing goes wrong from now on, and every process goes on and knows the others.
fn calm<P: Protocol>(world: &mut World<P>) {
    world.odds = Odds::default();
    (world.plan.faults, world.plan.restarts) = Default::default();
    for me in 0..world.processes.len() {
        if world.processes[me].presence == Presence::Stopped {
            world.wake(me);
        }
    }
    for (me, peer) in pairs(world.processes.len()) {
        if !world.processes[me].current.contains_key(&peer) {
            world.add(me, peer);
        }
    }
}

/// Each process and each other one.
fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count * count).map(move |n| (n / count, n % count)).filter(|(me, peer)| me != peer)
}

fn pairwise<P: Pairwise>(data: &[u8]) {
    let Some((head, records)) = data.split_first_chunk::<HEAD>() else { return };
    let count = 2 + usize::from(head[1]) % 2;
    let mut world = World::<P>::new(count, u64::from(head[0]), &P::Params::default());
    world.meet_all();
    world.odds = odds(*head);
    let flips = world.odds.corrupt != 0;
    for (deed, me, peer) in deeds(records, count).filter(|(deed, ..)| !matches!(deed, Deed::Unheard)) {
        if can_act(&world, deed, me) && !befall(&mut world, deed, me, peer) {
            world.use_all();
        }
    }
    if flips {
        world.processes.iter_mut().for_each(|process| process.presence = Presence::Here);
        return world.run(STEPS);
    }
    calm(&mut world);
    pairs(count).for_each(|(me, peer)| world.connect(me, peer));
    world.run(STEPS);
    world.use_all();
    world.run(STEPS * 2);
    pairs(count).filter(|(a, b)| a < b).for_each(|(a, b)| world.check_pair(a, b));
}

pub(crate) fn xrc(data: &[u8]) {
    let Some((head, records)) = data.split_first_chunk::<HEAD>() else { return };
    let nodes: &[usize] = [&[0, 1][..], &[0, 1, 1], &[0, 0, 1, 1], &[0, 1, 1, 2]][usize::from(head[1]) % 4];
    let mut world = XrcWorld::on_nodes(nodes, u64::from(head[0]));
    world.meet_all();
    // This world checks at once what a process is told, and bits that flip would tell it anything.
    world.odds = Odds { corrupt: 0, ..odds(*head) };
    for (deed, me, peer) in deeds(records, nodes.len()) {
        if !can_act(&world, deed, me) || befall(&mut world, deed, me, peer) {
            continue;
        }
        match deed {
            Deed::Unheard => world.restart_unheard(me),
            Deed::Break => break_path(&mut world, me, peer),
            _ => world.use_all(),
        }
    }
    calm(&mut world);
    for _ in 0..3 {
        world.run_until_quiet();
        world.use_all();
    }
    world.run_until_quiet();
    world.check_told_somewhere();
}

/// The send queue pair that leads to the peer breaks, if there is one.
fn break_path(world: &mut XrcWorld, me: usize, peer: usize) {
    let Some(route) = world.end(me, peer).and_then(|end| end.route) else { return };
    let key = world.processes[me].current[&peer];
    world.breaks(me, route.path, key);
    world.add(me, peer);
}
