//! Two processes, any connection manager, and everything that can go wrong with their first
//! datagrams, in virtual time.
//!
//! Each test is run for every manager that `for_each_manager!` names. What must hold: in the end
//! the two have exactly one connection that both can use, or one of them has been told of a
//! failure, within the manager's bound; and what no process's death has disturbed comes up whatever
//! the network did.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

#[macro_use]
mod sim;

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sim::faults::{Mishap, Odds, Plan, plans, restarts};
use sim::pairs::Pairwise;
use sim::{HOP, World, seed};

/// Steps that no pair of nodes needs: the livelock detector.
const STEPS: u64 = 20_000;

for_each_manager! {
    the_active_side_posts_its_first_fragment_after_at_most_two_round_trips
    up_to_three_mishaps_with_the_first_eight_datagrams_never_leave_a_pair_without_a_connection_or_a_report
    up_to_two_mishaps_and_a_replaced_endpoint_end_in_a_connection_or_a_report
    any_history_ends_in_one_connection_or_a_reported_failure
    flipped_bits_do_no_worse_than_fail
    a_silent_peer_is_reported_within_the_bound
}

/// When each side begins, in hops; every order, and begins that fall into each phase of the other's
/// exchange.
fn starts() -> Vec<[Option<u32>; 2]> {
    let alone = [[Some(0), None], [None, Some(0)]];
    let later = (0..=5).flat_map(|hop| [[Some(0), Some(hop)], [Some(hop), Some(0)]]);
    alone.into_iter().chain(later).collect()
}

fn the_active_side_posts_its_first_fragment_after_at_most_two_round_trips<P: Pairwise>() {
    let seed = seed(1);
    for start in starts() {
        let mut world = World::<P>::pair(seed);
        world.begin(start, 6);
        world.run(STEPS);
        assert!(world.is_connected(0, 1) && world.is_unharmed(), "{start:?}");
        for (me, at) in start.into_iter().enumerate() {
            let Some(at) = at else { continue };
            let end = world.end(me, 1 - me).unwrap();
            let (asked, posted) = (end.asked_at.unwrap(), end.first_fragment_at().unwrap());
            assert_eq!(asked, HOP * at);
            assert!(
                posted - asked.min(posted) <= HOP * 4,
                "{start:?}: side {me} waited {:?}",
                posted - asked
            );
        }
    }
}

/// Every order of start, every combination of up to three mishaps: datagrams lost, doubled,
/// overtaken, late, processes that start anew.
fn up_to_three_mishaps_with_the_first_eight_datagrams_never_leave_a_pair_without_a_connection_or_a_report<
    P: Pairwise,
>() {
    let seed = seed(1);
    let mut runs = 0_u64;
    for start in starts() {
        plans(3, &mut |mishaps| {
            runs += 1;
            suffer::<P>(seed.wrapping_add(runs), start, mishaps);
        });
    }
    println!("{runs} histories");
    assert_eq!(runs, 14 * (1 + 48 + 1072 + 14_784));
}

fn suffer<P: Pairwise>(seed: u64, start: [Option<u32>; 2], mishaps: &[Mishap]) {
    let mut world = World::<P>::pair(seed);
    world.plan = Plan::of(mishaps);
    world.begin(start, 6);
    world.run(STEPS);
    assert!(world.elapsed() < P::BOUND, "{start:?} {mishaps:?}: {:?}", world.elapsed());
    if !restarts(mishaps) {
        assert!(world.is_connected(0, 1), "{start:?} {mishaps:?}: {:?}", world.processes[0].failures);
        return assert!(world.is_unharmed(), "{start:?} {mishaps:?}");
    }
    world.use_all();
    world.run(STEPS);
    check(&world, start, mishaps);
    if let [Mishap::Restart(_, node)] = mishaps
        && start[*node] == Some(0)
    {
        let ends = [world.state(0, 1), world.state(1, 0)];
        assert!(world.is_connected(0, 1), "{start:?}: {node} asked anew and was not heard: {ends:?}");
    }
    // A side that has not been told of a failure can still connect.
    [(0, 1), (1, 0)].into_iter().for_each(|(a, b)| world.connect(a, b));
    world.run(STEPS);
    check(&world, start, mishaps);
}

fn check<P: Pairwise>(world: &World<P>, start: [Option<u32>; 2], mishaps: &[Mishap]) {
    let fine = world.is_connected(0, 1) || world.is_reported(0, 1) || world.is_idle(0, 1);
    let states = [world.state(0, 1), world.state(1, 0)];
    assert!(fine, "{start:?} {mishaps:?}: {states:?}, and nobody was told");
}

/// The same with an endpoint of one side replaced in the middle.
fn up_to_two_mishaps_and_a_replaced_endpoint_end_in_a_connection_or_a_report<P: Pairwise>() {
    let seed = seed(1);
    for (side, other) in [(0, 1), (1, 0)] {
        for hops in 1..6 {
            plans(2, &mut |mishaps| {
                let mut world = World::<P>::pair(seed.wrapping_add(hops));
                world.plan = Plan::of(mishaps);
                world.connect(0, 1);
                world.run_until(HOP * u32::try_from(hops).unwrap());
                world.replace(side, other);
                world.run(STEPS);
                if P::HEALS && !restarts(mishaps) {
                    return assert!(
                        world.is_connected(0, 1),
                        "side {side} replaced after {hops}: {mishaps:?}"
                    );
                }
                world.use_all();
                world.run(STEPS);
                check(&world, [Some(0), None], mishaps);
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

fn act<P: Pairwise>(world: &mut World<P>, deed: &Deed) {
    match *deed {
        Deed::Connect(side) => world.connect(side, 1 - side),
        Deed::Replace(side) => world.replace(side, 1 - side),
        Deed::Restart(side) => world.restart(side),
        Deed::Wait(hops) => world.run_until(world.elapsed() + HOP * hops),
    }
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, source_file: Some(file!()), ..Config::default() })
}

/// Loss, duplication, reordering, replaced endpoints, restarted processes, in any order: in the end
/// there is one usable connection or a reported failure, and the network is quiet.
fn any_history_ends_in_one_connection_or_a_reported_failure<P: Pairwise>() {
    let odds = (0..40_u64, 0..30_u64, 0..30_u64);
    let histories = (any::<u64>(), odds, proptest::collection::vec(deeds(), 0..12));
    let outcome = runner(600).run(&histories, |(seed, (drop, duplicate, delay), history)| {
        let mut world = World::<P>::pair(seed);
        world.odds = Odds { drop, duplicate, delay, corrupt: 0 };
        history.iter().for_each(|deed| act(&mut world, deed));
        [(0, 1), (1, 0)].into_iter().for_each(|(a, b)| world.connect(a, b));
        world.run(STEPS);
        world.check_pair(0, 1);
        Ok(())
    });
    outcome.unwrap();
}

/// What a flipped bit does can't be foreseen, but it neither panics, nor sets off an endless
/// exchange, nor makes an endpoint connect twice.
fn flipped_bits_do_no_worse_than_fail<P: Pairwise>() {
    let histories = (any::<u64>(), 1..60_u64, proptest::collection::vec(deeds(), 0..8));
    let outcome = runner(600).run(&histories, |(seed, corrupt, history)| {
        let mut world = World::<P>::pair(seed);
        world.odds = Odds { drop: 10, duplicate: 10, delay: 10, corrupt };
        world.connect(0, 1);
        history.iter().for_each(|deed| act(&mut world, deed));
        world.run(STEPS);
        Ok(())
    });
    outcome.unwrap();
}

fn a_silent_peer_is_reported_within_the_bound<P: Pairwise>() {
    let mut world = World::<P>::pair(seed(3));
    world.go_away(1);
    world.connect(0, 1);
    world.run(STEPS);
    assert_eq!(world.processes[0].failures.len(), 1);
    assert!(world.elapsed() < P::BOUND && world.elapsed() > Duration::from_secs(1), "{:?}", world.elapsed());
    assert!(
        world.processes[0].failures[0].to_string().contains("[5,1]"),
        "{}",
        world.processes[0].failures[0]
    );
}
