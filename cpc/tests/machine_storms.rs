//! Many ibcm machines at once, in virtual time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod sim;

use std::time::Duration;

use cpc::ibcm::Params;
use sim::Odds;
use sim::ibcm::Ibcm;

type World = sim::World<Ibcm>;

/// `nodes` that all know each other, and all want to talk to all.
fn all_to_all(nodes: usize, seed: u64, odds: Odds) -> World {
    let mut world = World::new(nodes, seed, &Params::default());
    world.odds = odds;
    for_pairs(nodes, |a, b| world.meet(a, b));
    for_pairs(nodes, |a, b| {
        world.connect(a, b);
        world.connect(b, a);
    });
    world
}

fn for_pairs(nodes: usize, mut f: impl FnMut(usize, usize)) {
    (0..nodes).for_each(|b| (0..b).for_each(|a| f(a, b)));
}

#[test]
fn a_storm_of_all_to_all_takes_four_datagrams_a_pair() {
    let mut world = all_to_all(32, 1, Odds::default());
    world.run(100_000);
    for_pairs(32, |a, b| assert!(world.is_connected(a, b)));
    assert_eq!(world.sent, 4 * 32 * 31 / 2);
}

#[test]
fn a_storm_on_a_bad_network_connects_every_pair_or_says_why_not() {
    for seed in 0..4 {
        let mut world = all_to_all(24, seed, Odds { drop: 15, duplicate: 10, delay: 10, corrupt: 0 });
        world.run(200_000);
        for_pairs(24, |a, b| world.check_pair(a, b));
        let failures: usize = world.processes.iter().map(|process| process.failures.len()).sum();
        assert_eq!(failures, 0, "time heals a loss of 15 %");
    }
}

/// A thousand peers ask one process at once. Its queue holds 512 datagrams, and each takes it a millisecond.
#[test]
fn a_thousand_peers_at_one_target_all_get_their_connection() {
    const PEERS: usize = 1_000;
    let mut world = World::new(PEERS + 1, 3, &Params::default());
    world.processes[0].service = Duration::from_millis(1);
    (1..=PEERS).for_each(|peer| world.meet(0, peer));
    (1..=PEERS).for_each(|peer| world.connect(peer, 0));
    world.run(100_000);
    assert!((1..=PEERS).all(|peer| world.is_connected(peer, 0)));
    assert!(!world.has_failures());
    assert!(world.processes[0].overrun > 0, "the queue was not even full");
    assert!(world.elapsed() < Duration::from_secs(15), "{:?}", world.elapsed());
}

#[test]
fn requests_go_out_a_windowful_at_a_time() {
    let params = Params { window: 4, ..Params::default() };
    let mut world = World::new(21, 4, &params);
    (1..=20).for_each(|peer| world.meet(0, peer));
    (1..=20).for_each(|peer| world.connect(0, peer));
    assert_eq!(world.sent, 4);
    world.run(10_000);
    assert!((1..=20).all(|peer| world.is_connected(0, peer)));
}

#[test]
fn stopped_peers_hold_up_nobody_for_longer_than_one_timeout() {
    let params = Params { window: 4, ..Params::default() };
    let mut world = World::new(21, 5, &params);
    (1..=20).for_each(|peer| world.meet(0, peer));
    (1..=8).for_each(|peer| world.go_away(peer));
    (1..=20).for_each(|peer| world.connect(0, peer));
    world.run_until(params.timeout * 3);
    assert!((9..=20).all(|peer| world.is_connected(0, peer)));
    world.run(10_000);
    assert_eq!(world.processes[0].failures.len(), 8);
}

/// A connect that waits for its place, and then is no longer wanted, gives no place away.
#[test]
fn removed_endpoints_leave_the_queue() {
    let params = Params { window: 2, ..Params::default() };
    let mut world = World::new(12, 6, &params);
    (1..12).for_each(|peer| world.meet(0, peer));
    (1..12).for_each(|peer| world.connect(0, peer));
    (1..6).for_each(|peer| world.remove(0, peer));
    world.run(10_000);
    assert!((6..12).all(|peer| world.is_connected(0, peer)));
    assert!(!world.processes[0].machine.is_busy());
}
