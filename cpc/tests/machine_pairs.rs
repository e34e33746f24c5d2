//! Two ibcm machines and everything that a network can do to their datagrams, in virtual time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod sim;

use std::time::Duration;

use cpc::ConnectCause;
use cpc::ibcm::Params;
use cpc::ibcm::machine::StateKind;
use cpc::ibcm::wire::Layout;
use proptest::prelude::*;
use sim::{Fault, HOP, Odds, World};

/// Steps that no pair of nodes needs: the livelock detector.
const PAIR_STEPS: u64 = 2_000;

fn pair(seed: u64) -> World {
    let mut world = World::new(2, seed, &Params::default());
    world.add(0, 1);
    world.add(1, 0);
    world
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
        let raced: u64 = world.nodes.iter().map(|n| n.machine.stats().raced).sum();
        assert_eq!(raced, 2);
    }
}

#[test]
fn a_lost_rtu_is_covered_by_data() {
    let mut world = pair(2);
    world.plan.insert(2, Fault::Drop);
    world.connect(0, 1);
    world.run(PAIR_STEPS);
    assert!(world.is_connected(0, 1));
    assert_eq!(world.nodes[1].machine.stats().first_data, 1);
    assert_eq!(world.sent, 3, "nothing had to be repeated");
}

#[test]
fn a_peer_that_never_answers_is_reported_within_the_bound() {
    let mut world = pair(3);
    world.nodes[1].deaf = true;
    world.connect(0, 1);
    world.run(PAIR_STEPS);
    let failure = &world.nodes[0].failures[..];
    assert!(matches!(failure[..], [ref f] if matches!(f.cause, ConnectCause::Timeout { tries: 13, .. })));
    assert!(world.elapsed() < Duration::from_secs(30), "{:?}", world.elapsed());
    assert!(failure[0].to_string().contains("[5,1]"), "{}", failure[0]);
}

#[test]
fn repetitions_back_off() {
    let mut world = pair(4);
    world.nodes[1].deaf = true;
    world.connect(0, 1);
    world.run_until(Duration::from_secs(1));
    assert!(world.sent <= 5, "{} datagrams in the first second", world.sent);
}

#[test]
fn a_request_of_an_unknown_process_waits_for_its_endpoint() {
    let mut world = World::new(2, 5, &Params::default());
    world.nodes[1].welcoming = false;
    world.add(0, 1);
    world.connect(0, 1);
    world.run_until(Duration::from_secs(20));
    assert_eq!(world.nodes[1].unknown.len(), 1, "said once");
    assert!(world.sent < 60, "an MRA slows repetitions down: {} datagrams", world.sent);
    world.add(1, 0);
    world.run(PAIR_STEPS);
    assert!(world.is_connected(0, 1));
    assert!(world.nodes[0].failures.is_empty());
}

#[test]
fn a_request_that_nobody_ever_welcomes_is_refused_in_the_end() {
    let mut world = World::new(2, 6, &Params::default());
    world.nodes[1].welcoming = false;
    world.add(0, 1);
    world.connect(0, 1);
    world.run(PAIR_STEPS);
    let failure = &world.nodes[0].failures[0];
    assert!(failure.to_string().contains("has not been told of this process"), "{failure}");
    assert!(world.elapsed() < Duration::from_secs(100), "{:?}", world.elapsed());
}

#[test]
fn unlike_layouts_refuse_each_other_and_both_are_named() {
    for (active, other) in [(0, 1), (1, 0)] {
        let mut world = World::new(2, 7, &Params::default());
        world.set_layout(1, Layout::new([false, false, true]).unwrap());
        world.add(0, 1);
        world.add(1, 0);
        world.connect(active, other);
        world.run(PAIR_STEPS);
        let text = world.nodes[active].failures[0].to_string();
        assert!(text.contains("PSS") && text.contains("PPS"), "{text}");
        assert_eq!(world.state(active, other), Some(StateKind::Failed));
        assert_eq!(
            world.state(other, active),
            Some(StateKind::Idle),
            "the side that was asked stays as it was"
        );
    }
}

#[test]
fn a_removed_endpoint_takes_its_peer_along_and_both_are_gone_soon() {
    let mut world = pair(8);
    world.nodes[1].persistent = false;
    world.connect(0, 1);
    world.run(PAIR_STEPS);
    world.remove(0, 1);
    world.run(PAIR_STEPS);
    assert_eq!(world.nodes[1].disconnects, 1);
    assert_eq!(world.state(1, 0), Some(StateKind::Left));
    assert_eq!(world.nodes[0].machine.leaving(), 0);
    assert!(!world.nodes[0].machine.is_busy());
}

#[test]
fn both_sides_may_leave_at_once() {
    let mut world = pair(9);
    world.connect(0, 1);
    world.run(PAIR_STEPS);
    world.remove(0, 1);
    world.remove(1, 0);
    world.run_until(world.elapsed() + HOP);
    assert_eq!([0, 1].map(|n| world.nodes[n].machine.leaving()), [0, 0], "one hop is enough");
    world.run(PAIR_STEPS);
    assert_eq!(world.nodes[0].disconnects + world.nodes[1].disconnects, 0);
}

#[test]
fn a_dead_peer_does_not_keep_a_leaving_endpoint_for_ever() {
    let mut world = pair(10);
    world.connect(0, 1);
    world.run(PAIR_STEPS);
    world.nodes[1].deaf = true;
    world.remove(0, 1);
    assert_eq!(world.nodes[0].machine.leaving(), 1);
    world.run(PAIR_STEPS);
    assert_eq!(world.nodes[0].machine.leaving(), 0);
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

type Plan = Vec<(u64, Fault)>;

/// All ways to put up to `left` faults on datagrams from number `from` on.
fn plans(from: u64, left: u32, plan: &mut Plan, each: &mut dyn FnMut(&Plan)) {
    each(plan);
    if left == 0 {
        return;
    }
    for number in from..8 {
        for fault in [Fault::Drop, Fault::Duplicate, Fault::Delay(3), Fault::Delay(11_000)] {
            plan.push((number, fault));
            plans(number + 1, left - 1, plan, each);
            plan.pop();
        }
    }
}

/// Every start order, every combination of up to three faults on the first eight datagrams: always connected, never
/// an unneeded failure, and quiet at the end.
#[test]
fn up_to_three_faults_on_the_first_eight_datagrams_never_keep_a_pair_apart() {
    let starts: [(Option<u32>, Option<u32>); 6] = [
        (Some(0), None),
        (None, Some(0)),
        (Some(0), Some(0)),
        (Some(0), Some(1)),
        (Some(1), Some(0)),
        (Some(0), Some(2)),
    ];
    let mut runs = 0_u32;
    for start in starts {
        plans(0, 3, &mut Vec::new(), &mut |plan| {
            runs += 1;
            let mut world = pair(u64::from(runs));
            world.plan = plan.iter().copied().collect();
            begin(&mut world, start);
            world.run(PAIR_STEPS);
            assert!(world.is_connected(0, 1), "{start:?} {plan:?}");
            assert!(
                world.nodes.iter().all(|n| n.failures.is_empty() && n.disconnects == 0),
                "{start:?} {plan:?}"
            );
        });
    }
    assert!(runs > 10_000, "{runs}");
}

fn begin(world: &mut World, start: (Option<u32>, Option<u32>)) {
    for hop in 0..3 {
        for (me, peer, at) in [(0, 1, start.0), (1, 0, start.1)] {
            if at == Some(hop) {
                world.connect(me, peer);
            }
        }
        world.run_until(HOP * (hop + 1));
    }
}

/// The same with an endpoint of one side replaced in the middle.
#[test]
fn up_to_two_faults_and_a_replaced_endpoint_never_keep_a_pair_apart() {
    for (side, other) in [(0, 1), (1, 0)] {
        for hops in 1..6 {
            let mut runs = 0;
            plans(0, 2, &mut Vec::new(), &mut |plan| {
                runs += 1;
                let mut world = pair(runs);
                world.plan = plan.iter().copied().collect();
                world.connect(0, 1);
                world.run_until(HOP * hops);
                world.replace(side, other);
                world.run(PAIR_STEPS);
                assert!(world.is_connected(0, 1), "side {side} replaced after {hops}: {plan:?}");
            });
        }
    }
}

#[derive(Clone, Debug)]
enum Deed {
    Connect(usize),
    Replace(usize),
    Restart(usize),
    Wait(u32),
}

fn deeds() -> impl Strategy<Value = Deed> {
    prop_oneof![
        3 => (0..2_usize).prop_map(Deed::Connect),
        1 => (0..2_usize).prop_map(Deed::Replace),
        1 => (0..2_usize).prop_map(Deed::Restart),
        3 => (0..40_000_u32).prop_map(Deed::Wait),
        3 => (0..8_u32).prop_map(Deed::Wait),
    ]
}

fn act(world: &mut World, deed: &Deed) {
    match *deed {
        Deed::Connect(side) => world.connect(side, 1 - side),
        Deed::Replace(side) => world.replace(side, 1 - side),
        Deed::Restart(side) => world.restart(side),
        Deed::Wait(hops) => world.run_until(world.elapsed() + HOP * hops),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Loss, duplication, reordering, replaced endpoints, restarted processes, in any order: in the end there is one usable
    /// connection or a reported failure, and the network is quiet.
    #[test]
    fn any_history_ends_in_one_connection_or_a_reported_failure(
        seed in any::<u64>(),
        drop in 0..40_u64,
        duplicate in 0..30_u64,
        delay in 0..30_u64,
        history in proptest::collection::vec(deeds(), 0..12),
    ) {
        let mut world = pair(seed);
        world.odds = Odds { drop, duplicate, delay, corrupt: 0 };
        for deed in &history {
            act(&mut world, deed);
        }
        world.connect(0, 1);
        world.connect(1, 0);
        world.run(20_000);
        world.check_pair(0, 1);
    }

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

    /// What a flipped bit does can't be foreseen, but it neither panics, nor sets off an endless exchange, nor makes an
    /// endpoint connect twice.
    #[test]
    fn flipped_bits_do_no_worse_than_fail(
        seed in any::<u64>(),
        corrupt in 1..60_u64,
        history in proptest::collection::vec(deeds(), 0..8),
    ) {
        let mut world = pair(seed);
        world.odds = Odds { drop: 10, duplicate: 10, delay: 10, corrupt };
        world.connect(0, 1);
        for deed in &history {
            act(&mut world, deed);
        }
        world.run(20_000);
    }
}
