//! Many processes, any connection manager, random faults, in virtual time. See `simulator` for two.
//!
//! `OXIB_SIM_SEED` sets the seed, `OXIB_SIM_ROUNDS` how many seeds from there on are tried
//! (default: 2).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

#[macro_use]
mod sim;

use std::collections::BTreeSet;
use std::time::Duration;

use sim::faults::Odds;
use sim::pairs::Pairwise;
use sim::{HOP, World, seed, seeds};

/// Steps per pair that no world needs: the livelock detector.
const STEPS_PER_PAIR: u64 = 400;

for_each_manager! {
    sixty_four_processes_connect_all_to_all_whatever_the_network_does
    a_thousand_processes_connect_whatever_the_network_does
    processes_that_start_anew_in_the_storm_leave_no_pair_without_a_connection_or_a_report
    a_thousand_peers_at_one_busy_process_all_get_their_connection
    a_thousand_peers_at_one_busy_process_on_a_bad_network_all_get_their_connection
}

const BAD: Odds = Odds { drop: 5, duplicate: 5, delay: 5, corrupt: 0 };

/// Pairs, the lower number first.
type Pairs = BTreeSet<(usize, usize)>;

fn all_to_all(nodes: usize) -> Pairs {
    (0..nodes).flat_map(|b| (0..b).map(move |a| (a, b))).collect()
}

/// Each process picks so many peers.
fn at_random<P: Pairwise>(world: &mut World<P>, picks: usize) -> Pairs {
    let nodes = world.processes.len();
    let mut pairs = Pairs::new();
    for a in 0..nodes {
        for _ in 0..picks {
            let b = world.below(nodes);
            if a != b {
                pairs.insert((a.min(b), a.max(b)));
            }
        }
    }
    pairs
}

/// All know each other; then one side or both begin, at random times within a millisecond.
fn begin<P: Pairwise>(world: &mut World<P>, pairs: &Pairs) {
    for &(a, b) in pairs {
        world.meet(a, b);
    }
    let mut begins = Vec::new();
    for &(a, b) in pairs {
        let who = world.below(3);
        let asks = [(a, b), (b, a)].into_iter().enumerate().filter(|&(side, _)| who != side);
        begins.extend(asks.map(|(_, ask)| ask));
    }
    let begins = begins.into_iter().map(|(me, peer)| (HOP * world.below(100) as u32, me, peer)).collect();
    world.begin_all(begins);
}

fn finish<P: Pairwise>(world: &mut World<P>, pairs: &Pairs) {
    world.run(STEPS_PER_PAIR * pairs.len() as u64);
    assert!(world.elapsed() < P::BOUND, "{:?}", world.elapsed());
}

fn survive<P: Pairwise>(nodes: usize, picks: Option<usize>) {
    for seed in seeds(1, 2) {
        let mut world = World::<P>::new(nodes, seed, &P::Params::default());
        world.odds = BAD;
        let pairs = match picks {
            None => all_to_all(nodes),
            Some(picks) => at_random(&mut world, picks),
        };
        begin(&mut world, &pairs);
        finish(&mut world, &pairs);
        pairs.iter().for_each(|&(a, b)| assert!(world.is_connected(a, b), "pair {a}-{b}"));
        assert!(world.is_unharmed(), "such a network is no reason to give up");
    }
}

fn sixty_four_processes_connect_all_to_all_whatever_the_network_does<P: Pairwise>() {
    survive::<P>(64, None);
}

fn a_thousand_processes_connect_whatever_the_network_does<P: Pairwise>() {
    survive::<P>(1_000, Some(8));
}

fn processes_that_start_anew_in_the_storm_leave_no_pair_without_a_connection_or_a_report<P: Pairwise>() {
    for seed in seeds(1, 2) {
        let mut world = World::<P>::new(64, seed, &P::Params::default());
        world.odds = BAD;
        for _ in 0..16 {
            let (after, node) = (world.below(6_000) as u64, world.below(64));
            world.plan.restarts.insert(after, node);
        }
        let pairs = all_to_all(64);
        begin(&mut world, &pairs);
        world.run(STEPS_PER_PAIR * pairs.len() as u64);
        world.use_all();
        world.run(STEPS_PER_PAIR * pairs.len() as u64 * 2);
        pairs.iter().for_each(|&(a, b)| world.check_pair(a, b));
        let connected = pairs.iter().filter(|&&(a, b)| world.is_connected(a, b)).count();
        println!("seed {seed}: {connected} of {} pairs connected", pairs.len());
        // No more pairs suffer than have one of the sixteen in them.
        assert!(connected >= pairs.len() - 16 * 63, "{connected}");
    }
}

/// All peers ask one process at the same moment. Its queue holds 512 datagrams, and each takes it
/// `service`.
fn storm<P: Pairwise>(params: &P::Params, odds: Odds, service: Duration) -> World<P> {
    const PEERS: usize = 1_000;
    let mut world = World::<P>::new(PEERS + 1, seed(3), params);
    world.odds = odds;
    world.processes[0].service = service;
    assert_eq!(P::room(params), 512);
    (1..=PEERS).for_each(|peer| world.meet(0, peer));
    (1..=PEERS).for_each(|peer| world.connect(peer, 0));
    world.run(STEPS_PER_PAIR * PEERS as u64);
    assert!(world.processes[0].overrun > 0, "the queue was not even full");
    println!(
        "{} datagrams, {} lost for want of a receive, {:?}",
        world.sent,
        world.processes[0].overrun,
        world.elapsed()
    );
    assert!((1..=PEERS).all(|peer| world.is_connected(peer, 0)));
    assert!(world.is_unharmed());
    world
}

fn a_thousand_peers_at_one_busy_process_all_get_their_connection<P: Pairwise>() {
    for params in P::defaults() {
        for micros in [50, 200, 1_000, 2_000] {
            let world = storm::<P>(&params, Odds::default(), Duration::from_micros(micros));
            // Two datagrams of each have to be served; repetitions cost some time on top.
            let least = Duration::from_micros(micros) * 2_000;
            assert!(world.elapsed() < least * 2 + Duration::from_secs(15), "{micros}: {:?}", world.elapsed());
        }
    }
}

fn a_thousand_peers_at_one_busy_process_on_a_bad_network_all_get_their_connection<P: Pairwise>() {
    let odds = Odds { drop: 10, duplicate: 10, delay: 10, corrupt: 0 };
    for params in P::defaults() {
        storm::<P>(&params, odds, Duration::from_millis(1));
    }
}
