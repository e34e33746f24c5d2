//! rdmacm machines against each other in virtual time, over a connection manager that is slow,
//! loses and refuses as a seed says. The world is `sim`'s.
//!
//! The manager keeps what the real one keeps: messages of one connection in order, an end told when
//! the other goes. It may be late with everything, give up requests (UNREACHABLE), and lose
//! confirmations (RTU), which data then stand in for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod sim;

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::time::{Duration, Instant};

use cpc::rdmacm::machine::{Call, First, Local, Machine, StateKind};
use cpc::wire::Layout;
use cpc::wire::ip::Address;
use cpc::{EndpointCommand, EndpointKey, ProcessName};
use sim::pairs::Pair;
use sim::protocol::{Identity, Protocol, Spawned};
use sim::rdmacm::{News, event, private_data};
use sim::{NetOf, Packet};
use verbs::cm::Token;
use verbs::{Psn, Qpn};

/// The manager is late by no more than so many microseconds.
const SLOWEST: u64 = 3000;

/// An end of a connection: which process, which id.
type End = (usize, Token);
type World = sim::World<Slow>;

struct Slow;

#[derive(Clone, Copy, Default)]
struct Params {
    /// Of 1000 steps of the manager, so many fail; and so many confirmations are lost.
    faults: u64,
    /// Each queue pair has an id of its own.
    iwarp: bool,
}

#[derive(Default)]
struct Manager {
    /// The other end of each end.
    peers: HashMap<End, End>,
    /// When the last message of an end arrives: later ones come later.
    last: HashMap<End, Instant>,
    /// iWARP: which of a process and a peer of it was told to send first.
    order: HashMap<(usize, usize), First>,
    /// iWARP: the id whose connection, or try, a queue pair is or was part of.
    taken: HashMap<(usize, Qpn), Token>,
    /// iWARP: queue pairs of further connections, ours and theirs, that were asked for.
    joined: HashMap<(usize, usize), BTreeSet<(Qpn, Qpn)>>,
}

/// What comes some time after it was sent.
#[derive(Clone)]
enum Message {
    News(End, News<End>),
    /// To the first, from the second.
    FirstData(usize, usize),
}

impl Protocol for Slow {
    type Machine = Machine;
    type Params = Params;
    type Address = Address;
    type Datagram = Infallible;
    type Message = Message;
    type End = Pair;
    type Shared = Manager;
    const NAME: &'static str = "rdmacm";
    const SHIFT: u32 = 33;

    fn spawn(id: &Identity, params: &Params, net: &mut NetOf<Slow>) -> Spawned<Slow> {
        let (name, address, id_per_qp) = (id.name, address(id.index), params.iwarp);
        let layout = Layout::new([false, !id_per_qp, !id_per_qp]).unwrap();
        let local = Local { name, address, layout, id_per_qp };
        let params = cpc::rdmacm::Params { max_retries: 30, ..cpc::rdmacm::Params::default() };
        (Machine::new(local, params, net.first_seed ^ id.index as u64), Slow, address)
    }

    fn reach(address: &Address) -> Qpn {
        Qpn(address.incarnation)
    }

    fn add(machine: &mut Machine, key: EndpointKey, name: ProcessName, at: Address, now: Instant) {
        machine.add_endpoint(key, name, at, now);
    }

    fn datagram(_: &mut World, _: usize, _: Qpn, never: &Infallible) {
        match *never {}
    }

    fn message(world: &mut World, message: Message) {
        let now = world.now;
        let (Message::News((me, _), _) | Message::FirstData(me, _)) = message;
        let process = &mut world.processes[me];
        match message {
            Message::News(_, News::Request(from, data)) => {
                let id = process.machine.draw_id();
                if world.shared.peers.contains_key(&from) {
                    world.shared.peers.extend([((me, id), from), (from, (me, id))]);
                    process.machine.request(id, &data, now);
                }
            }
            Message::News((_, id), news) => process.machine.event(id, event(&news), now),
            Message::FirstData(_, peer) => {
                process.machine.command(process.current[&peer], EndpointCommand::FirstData, now);
            }
        }
        world.drain(me);
    }

    fn call(world: &mut World, me: usize, call: Call) {
        match call {
            Call::Resolve { id, .. } => world.manager_step((me, id), News::AddrResolved),
            Call::Route { id } => world.manager_step((me, id), News::RouteResolved),
            Call::CreateQps { key } => world.create_qps(me, key),
            Call::Connect { id, hello } => {
                world.use_qp(me, hello.qpns.first(), id);
                let to = world.target(hello.qpns.first());
                world.request((me, id), to, private_data(&hello));
            }
            Call::Join { id, join } => {
                world.use_qp(me, join.from[1], id);
                let to = world.target(join.from[0]);
                let joined = world.shared.joined.entry((me, to)).or_default();
                joined.insert((join.from[1], join.to[1]));
                world.request((me, id), to, join.emit().to_vec());
            }
            Call::AcceptJoin { id, qpn } => {
                world.use_qp(me, qpn, id);
                world.notify_peer((me, id), News::Response(Vec::new()));
                world.notify((me, id), News::Established);
            }
            Call::Order { key, first } => {
                let peer = world.processes[me].ends[&key].peer;
                world.shared.order.insert((me, peer), first);
            }
            Call::BringUp { key, remote, .. } => world.bring_up(me, key, (remote, Psn(0)), Psn(0)),
            Call::Accept { id, hello } => {
                world.use_qp(me, hello.qpns.first(), id);
                world.notify_peer((me, id), News::Response(private_data(&hello)));
                if world.params.iwarp {
                    world.notify((me, id), News::Established);
                }
            }
            Call::Establish { id } => {
                if !world.fails() {
                    world.notify_peer((me, id), News::Established);
                }
            }
            Call::Refuse { id, why } => world.close_end((me, id), News::Refused(why.emit().to_vec())),
            Call::Close { id } => world.close_end((me, id), News::Refused(Vec::new())),
            Call::Disconnect { id } => world.notify_peer((me, id), News::Disconnected),
            Call::Notify { .. } => {}
        }
    }

    /// The clear-to-send is on its way, unless the peer has to send first.
    fn connected(world: &mut World, me: usize, key: EndpointKey) {
        let peer = world.note_connected(me, key).peer;
        if world.shared.order.get(&(me, peer)) != Some(&First::Peer) {
            let at = world.later();
            world.schedule_at(at, Packet::Message(Message::FirstData(peer, me)));
        }
    }

    /// Tests add endpoints.
    fn has_endpoint_for(_: &World, _: usize, _: usize) -> bool {
        true
    }
}

impl World {
    /// What has been disconnected stays so, and is checked.
    fn of(count: usize, seed: u64, params: &Params) -> World {
        let mut world = World::new(count, seed, params);
        world.processes.iter_mut().for_each(|process| process.persistent = false);
        world
    }

    fn ib(count: usize, seed: u64, faults: u64) -> World {
        World::of(count, seed, &Params { faults, iwarp: false })
    }

    fn iwarp(count: usize, seed: u64, faults: u64) -> World {
        World::of(count, seed, &Params { faults, iwarp: true })
    }

    fn micros(&mut self, below: u64) -> Duration {
        Duration::from_micros((self.advance() >> 33) % below)
    }

    fn fails(&mut self) -> bool {
        (self.advance() >> 33) % 1000 < self.params.faults
    }

    /// When something gets there that the manager sends now.
    fn later(&mut self) -> Instant {
        self.now + Duration::from_micros(1) + self.micros(SLOWEST)
    }

    fn post(&mut self, at: Instant, to: End, news: News<End>) {
        self.schedule_at(at, Packet::Message(Message::News(to, news)));
    }

    /// News for an end, in order, some time from now.
    fn notify(&mut self, to: End, news: News<End>) {
        let at = self.later();
        let at = self.shared.last.get(&to).map_or(at, |&last| at.max(last));
        self.shared.last.insert(to, at);
        self.post(at, to, news);
    }

    fn notify_peer(&mut self, from: End, news: News<End>) {
        let to = self.shared.peers.get(&from).copied();
        if let Some(to) = to.filter(|to| self.shared.peers.contains_key(to)) {
            self.notify(to, news);
        }
    }

    /// The id goes, and its peer hears of it.
    fn close_end(&mut self, from: End, news: News<End>) {
        self.notify_peer(from, news);
        self.shared.peers.remove(&from);
    }

    fn manager_step(&mut self, me: End, news: News<End>) {
        let news = if self.fails() { News::Unreachable } else { news };
        // Which process an address leads to is found when it is asked; the id has no other end yet.
        self.shared.peers.entry(me).or_insert((usize::MAX, me.1));
        self.notify(me, news);
    }

    fn request(&mut self, me: End, to: usize, data: Vec<u8>) {
        if self.fails() {
            return self.notify(me, News::Unreachable);
        }
        let at = self.later();
        self.post(at, (to, Token(0)), News::Request(me, data));
    }

    /// The peer of the endpoint with this first queue pair.
    fn target(&mut self, first: Qpn) -> usize {
        self.end_of_qp(first).unwrap().peer
    }

    /// iWARP: a queue pair is part of one connection, or of one try, and of no other ever.
    fn use_qp(&mut self, me: usize, qpn: Qpn, id: Token) {
        if self.params.iwarp {
            let other = self.shared.taken.insert((me, qpn), id);
            assert_eq!(other, None, "{qpn} of {me} has been used before");
        }
    }

    /// Two that know each other begin, at different times.
    fn start_both(&mut self) {
        self.meet(0, 1);
        let offset = self.micros(12_000);
        self.begin_all([(Duration::ZERO, 0, 1), (offset, 1, 0)].into());
        self.run_until_quiet();
    }

    /// All begin with all, at different times.
    fn start_all(&mut self) {
        let count = self.processes.len();
        self.meet_all();
        let pairs = (0..count).flat_map(|a| (0..count).filter(move |&b| b != a).map(move |b| (a, b)));
        let begins = pairs.map(|(a, b)| (self.micros(5000), a, b)).collect();
        self.begin_all(begins);
        self.run_until_quiet();
        (0..count).for_each(|a| (0..a).for_each(|b| self.check(a, b)));
    }

    /// Both ends of a pair are up, over each other's queue pairs.
    fn check(&self, a: usize, b: usize) {
        let states = [self.state(a, b), self.state(b, a)];
        let failures = [a, b].map(|me| &self.processes[me].failures);
        assert!(self.is_connected(a, b), "{a} and {b}: {states:?}, {failures:?}");
        if self.params.iwarp {
            self.check_streams(a, b);
        }
    }

    /// Every further queue pair was joined to the peer's of the same queue, by the side that sends
    /// first.
    fn check_streams(&self, a: usize, b: usize) {
        let first = |me: usize, peer: usize| self.shared.order[&(me, peer)];
        let (asks, answers) = if first(a, b) == First::Us { (a, b) } else { (b, a) };
        assert_eq!((first(asks, answers), first(answers, asks)), (First::Us, First::Peer));
        let qpns = |me: usize, peer: usize| self.end(me, peer).unwrap().qpns.unwrap();
        let (from, to) = (qpns(asks, answers), qpns(answers, asks));
        let pairs: BTreeSet<_> =
            from.as_slice().iter().copied().zip(to.as_slice().iter().copied()).skip(1).collect();
        assert_eq!(self.shared.joined[&(asks, answers)], pairs);
        assert!(!self.shared.joined.contains_key(&(answers, asks)));
    }

    /// Both ends are up as they should be, or one of them has said why not.
    fn check_or_reported(&self, a: usize, b: usize) {
        let states = [self.state(a, b), self.state(b, a)];
        if states == [Some(StateKind::Connected); 2] {
            return self.check(a, b);
        }
        let over = |state| matches!(state, Some(StateKind::Failed | StateKind::Disconnected));
        assert!(states.into_iter().any(over), "{states:?}");
        assert!(states.into_iter().all(|state| over(state) || state == Some(StateKind::Idle)), "{states:?}");
    }
}

fn address(rank: usize) -> Address {
    // Ranks and addresses in different orders.
    Address { socket: ([10, 0, (rank % 7) as u8, (rank / 7) as u8], 7).into(), incarnation: rank as u32 }
}

#[test]
fn two_that_begin_at_any_time_get_one_connection() {
    for seed in 0..4000 {
        let mut world = World::ib(2, seed, 0);
        world.start_both();
        world.check(0, 1);
        assert!(world.is_unharmed(), "seed {seed}");
        let retried: u64 = world.processes.iter().map(|process| process.machine.stats().retried).sum();
        assert_eq!(retried, 0, "seed {seed}: nothing is tried again where nothing fails");
    }
}

/// One side begins; the other hears of it before it knows who that is.
fn is_served_later(world: impl Fn(u64) -> World) {
    for mut world in (0..300).map(world) {
        world.add(0, 1);
        world.connect(0, 1);
        while world.processes[1].machine.stats().parked == 0 {
            assert!(world.step(), "the request came to nothing");
        }
        world.add(1, 0);
        world.run_until_quiet();
        world.check(0, 1);
    }
}

#[test]
fn one_that_begins_while_the_other_does_not_know_it_yet_is_served_later() {
    is_served_later(|seed| World::ib(2, seed, 0));
}

#[test]
fn pairs_come_up_whatever_the_manager_gives_up_or_loses() {
    for seed in 0..400 {
        let mut world = World::ib(2, seed, 250);
        world.start_both();
        world.check(0, 1);
    }
}

#[test]
fn all_to_all_comes_up_with_and_without_faults() {
    for (seed, faults) in [(1, 0), (2, 0), (3, 50), (4, 100), (5, 100)] {
        let mut world = World::ib(24, seed, faults);
        world.start_all();
        assert!(!world.has_failures(), "seed {seed}");
    }
}

#[test]
fn a_storm_of_a_thousand_peers_at_one_ends_without_a_failure() {
    let count = 1001;
    let mut world = World::ib(count, 7, 0);
    for peer in 1..count {
        world.meet(0, peer);
        world.connect(peer, 0);
    }
    world.run_until_quiet();
    (1..count).for_each(|peer| world.check(peer, 0));
    assert_eq!(world.processes[0].machine.stats().requests, 1000);
}

#[test]
fn on_iwarp_two_that_begin_at_any_time_get_one_connection_for_each_queue_pair() {
    for seed in 0..3000 {
        let mut world = World::iwarp(2, seed, 0);
        world.start_both();
        world.check(0, 1);
        assert!(world.is_unharmed(), "seed {seed}");
    }
}

#[test]
fn on_iwarp_one_that_the_other_does_not_know_yet_is_served_later() {
    is_served_later(|seed| World::iwarp(2, seed, 0));
}

#[test]
fn on_iwarp_pairs_come_up_whole_or_say_why_not() {
    let mut up = 0;
    for seed in 0..1000 {
        let mut world = World::iwarp(2, seed, 60);
        world.start_both();
        world.check_or_reported(0, 1);
        up += u32::from(world.state(0, 1) == Some(StateKind::Connected));
    }
    assert!((300..1000).contains(&up), "both outcomes are met with: {up} came up");
}

#[test]
fn on_iwarp_all_to_all_comes_up() {
    World::iwarp(16, 3, 0).start_all();
}
