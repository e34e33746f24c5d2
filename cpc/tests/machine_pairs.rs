//! Two ibcm machines: what is ibcm's own. What every connection manager has to stand is in `simulator`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod sim;

use std::time::Duration;

use cpc::ConnectCause;
use cpc::ibcm::Params;
use cpc::ibcm::machine::StateKind;
use cpc::wire::Layout;
use proptest::prelude::*;
use sim::ibcm::Ibcm;
use sim::{Fault, HOP, Odds};

type World = sim::World<Ibcm>;

/// Steps that no pair of nodes needs: the livelock detector.
const PAIR_STEPS: u64 = 2_000;

fn pair(seed: u64) -> World {
    World::pair(seed)
}

#[test]
fn the_active_side_is_connected_after_one_round_trip_and_has_data_after_two() {
    let mut world = pair(1);
    world.connect(0, 1);
    world.run(PAIR_STEPS);
    assert!(world.is_connected(0, 1));
    assert_eq!(world.end(0, 1).unwrap().connected_at, Some(HOP * 2));
    assert_eq!(world.end(1, 0).unwrap().connected_at, Some(HOP * 3));
    assert_eq!(world.end(0, 1).unwrap().data_at, Some(HOP * 4), "the peer's CTS");
    assert_eq!(world.sent, 3, "REQ, REP, RTU");
}

#[test]
fn crossing_requests_become_one_connection_without_another_round_trip() {
    for seed in 0..20 {
        let mut world = pair(seed);
        world.connect(0, 1);
        world.connect(1, 0);
        world.run(PAIR_STEPS);
        assert!(world.is_connected(0, 1));
        let slowest = [(0, 1), (1, 0)].map(|(a, b)| world.end(a, b).unwrap().connected_at).into_iter().max();
        assert_eq!(slowest, Some(Some(HOP * 3)));
        assert_eq!(world.sent, 4, "two REQs, REP, RTU");
        let raced: u64 = world.processes.iter().map(|process| process.machine.stats().raced).sum();
        assert_eq!(raced, 2);
    }
}

#[test]
fn a_lost_rtu_is_covered_by_data() {
    let mut world = pair(2);
    world.plan.faults.insert(2, Fault::Drop);
    world.connect(0, 1);
    world.run(PAIR_STEPS);
    assert!(world.is_connected(0, 1));
    assert_eq!(world.processes[1].machine.stats().first_data, 1);
    assert_eq!(world.sent, 3, "nothing had to be repeated");
}

#[test]
fn a_peer_that_never_answers_is_reported_within_the_bound() {
    let mut world = pair(3);
    world.go_away(1);
    world.connect(0, 1);
    world.run(PAIR_STEPS);
    let failure = &world.processes[0].failures[..];
    assert!(matches!(failure[..], [ref f] if matches!(f.cause, ConnectCause::Timeout { tries: 13, .. })));
    assert!(world.elapsed() < Duration::from_secs(30), "{:?}", world.elapsed());
    assert!(failure[0].to_string().contains("[5,1]"), "{}", failure[0]);
}

#[test]
fn repetitions_back_off() {
    let mut world = pair(4);
    world.go_away(1);
    world.connect(0, 1);
    world.run_until(Duration::from_secs(1));
    assert!(world.sent <= 5, "{} datagrams in the first second", world.sent);
}

#[test]
fn a_request_of_an_unknown_process_waits_for_its_endpoint() {
    let mut world = World::new(2, 5, &Params::default());
    world.processes[1].welcoming = false;
    world.add(0, 1);
    world.connect(0, 1);
    world.run_until(Duration::from_secs(20));
    assert_eq!(world.processes[1].unknown.len(), 1, "said once");
    assert!(world.sent < 60, "an MRA slows repetitions down: {} datagrams", world.sent);
    world.add(1, 0);
    world.run(PAIR_STEPS);
    assert!(world.is_connected(0, 1));
    assert!(world.processes[0].failures.is_empty());
}

#[test]
fn a_request_that_nobody_ever_welcomes_is_refused_in_the_end() {
    let mut world = World::new(2, 6, &Params::default());
    world.processes[1].welcoming = false;
    world.add(0, 1);
    world.connect(0, 1);
    world.run(PAIR_STEPS);
    let failure = &world.processes[0].failures[0];
    assert!(failure.to_string().contains("has not been told of this process"), "{failure}");
    assert!(world.elapsed() < Duration::from_secs(100), "{:?}", world.elapsed());
}

#[test]
fn unlike_layouts_refuse_each_other_and_both_sides_name_both() {
    for (active, other) in [(0, 1), (1, 0)] {
        let mut world = World::new(2, 7, &Params::default());
        world.respawn(1, Layout::new([false, false, true]).unwrap());
        world.add(0, 1);
        world.add(1, 0);
        world.connect(active, other);
        world.run(PAIR_STEPS);
        assert!(world.elapsed() < Duration::from_millis(1), "nobody waits: {:?}", world.elapsed());
        for (side, peer) in [(active, other), (other, active)] {
            let [failure] = &world.processes[side].failures[..] else {
                panic!("{:?}", world.processes[side].failures)
            };
            let text = failure.to_string();
            assert!(text.contains("PSS") && text.contains("PPS"), "{text}");
            assert_eq!(world.state(side, peer), Some(StateKind::Failed));
        }
    }
}

#[test]
fn a_removed_endpoint_takes_its_peer_along_and_both_are_gone_soon() {
    let mut world = pair(8);
    world.processes[1].persistent = false;
    world.connect(0, 1);
    world.run(PAIR_STEPS);
    world.remove(0, 1);
    world.run(PAIR_STEPS);
    assert_eq!(world.processes[1].disconnects, 1);
    assert_eq!(world.state(1, 0), Some(StateKind::Disconnected));
    assert_eq!(world.processes[0].machine.leaving(), 0);
    assert!(!world.processes[0].machine.is_busy());
}

#[test]
fn both_sides_may_leave_at_once() {
    let mut world = pair(9);
    world.connect(0, 1);
    world.run(PAIR_STEPS);
    world.remove(0, 1);
    world.remove(1, 0);
    world.run_until(world.elapsed() + HOP);
    assert_eq!([0, 1].map(|me| world.processes[me].machine.leaving()), [0, 0], "one hop is enough");
    world.run(PAIR_STEPS);
    assert_eq!(world.processes[0].disconnects + world.processes[1].disconnects, 0);
}

#[test]
fn a_dead_peer_does_not_keep_a_leaving_endpoint_for_ever() {
    let mut world = pair(10);
    world.connect(0, 1);
    world.run(PAIR_STEPS);
    world.go_away(1);
    world.remove(0, 1);
    assert_eq!(world.processes[0].machine.leaving(), 1);
    world.run(PAIR_STEPS);
    assert_eq!(world.processes[0].machine.leaving(), 0);
}

/// The datagrams of a former incarnation (same name, same QPs even) say nothing to its successor.
#[test]
fn a_restarted_process_is_connected_anew() {
    for hops in 0..8 {
        let mut world = pair(11);
        world.connect(0, 1);
        world.run_until(HOP * hops);
        world.restart(1);
        world.connect(1, 0);
        world.run(PAIR_STEPS);
        assert!(world.is_connected(0, 1), "restart after {hops} hops");
    }
}

/// Open MPI 5.0 may hand out the address of a life that a process has ended: its requests, whether or not they cross one to that
/// address, say where it is now.
#[test]
fn a_process_that_began_anew_is_reached_where_its_request_comes_from_whatever_the_modex_says() {
    for (hops, other_asks) in (0..8).flat_map(|hops| [(hops, false), (hops, true)]) {
        let mut world = pair(13);
        if other_asks {
            world.connect(0, 1);
        }
        world.run_until(HOP * hops);
        world.restart_unheard(1);
        world.connect(1, 0);
        world.run(PAIR_STEPS);
        assert!(world.is_connected(0, 1), "restart after {hops} hops, the other asks: {other_asks}");
        assert!(world.processes[0].machine.stats().relearned > 0);
        assert!(world.elapsed() < Duration::from_secs(10), "{:?}", world.elapsed());
    }
}

#[test]
fn an_endpoint_that_one_side_replaces_is_connected_anew() {
    for (side, other) in [(0, 1), (1, 0)] {
        for hops in 0..8 {
            let mut world = pair(12);
            world.connect(0, 1);
            world.run_until(HOP * hops);
            world.replace(side, other);
            world.run(PAIR_STEPS);
            assert!(world.is_connected(0, 1), "side {side} replaced after {hops} hops");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// With moderate loss nothing is reported that time would have healed.
    #[test]
    fn moderate_loss_never_fails_a_connection(seed in any::<u64>(), drop in 0..20_u64, both in any::<bool>()) {
        let mut world = pair(seed);
        world.odds = Odds { drop, duplicate: 10, delay: 10, corrupt: 0 };
        world.connect(0, 1);
        if both {
            world.connect(1, 0);
        }
        world.run(PAIR_STEPS);
        prop_assert!(world.is_connected(0, 1));
    }
}
