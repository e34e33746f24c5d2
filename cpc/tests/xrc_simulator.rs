//! xrc machines on several nodes in virtual time: every order and fault of a start, storms, and
//! processes that begin anew. (`xrc_breaks` does the rest.) What must hold is in
//! `sim/xrc/checks.rs`.
//!
//! The faults are those of `simulator`; `OXIB_SIM_SEED` and `OXIB_SIM_ROUNDS` as there and in
//! `simulator_storms`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod sim;

use std::time::Duration;

use cpc::ibcm::Params;
use sim::faults::{Mishap, Odds, Plan, plans, restarts};
use sim::xrc::{BOUND, World};
use sim::{HOP, seed, seeds};

/// When each side begins, in hops.
const STARTS: [[Option<u32>; 2]; 7] = [
    [Some(0), None],
    [None, Some(0)],
    [Some(0), Some(0)],
    [Some(0), Some(1)],
    [Some(1), Some(0)],
    [Some(0), Some(2)],
    [Some(3), Some(0)],
];

#[test]
fn up_to_three_mishaps_with_the_first_eight_datagrams_never_leave_a_pair_without_a_connection_or_a_report() {
    let first = seed(1);
    let mut runs = 0;
    for start in STARTS {
        plans(3, &mut |mishaps| {
            runs += 1;
            let mut world = World::grid(2, 1, first.wrapping_add(runs));
            world.plan = Plan::of(mishaps);
            world.begin(start, 4);
            world.run_until_quiet();
            assert!(world.elapsed() < BOUND, "{start:?} {mishaps:?}");
            if restarts(mishaps) {
                // A planned restart may come only now, and each calls for another look.
                for _ in mishaps {
                    world.use_all();
                    world.run_until_quiet();
                }
            } else {
                assert!(
                    !world.has_failures(),
                    "{start:?} {mishaps:?}: such a network is no reason to give up"
                );
            }
            world.check_told();
            if let [Mishap::Restart(_, node)] = *mishaps
                && start[node].is_some()
            {
                assert!(
                    world.is_usable(node, 1 - node),
                    "{start:?} {mishaps:?}: it asked anew and was not heard"
                );
            }
        });
    }
    println!("{runs} histories");
    assert_eq!(runs, 7 * (1 + 48 + 1072 + 14_784));
}

fn all_to_all(nodes: usize, per_node: usize, seed: u64, odds: Odds) -> World {
    let mut world = World::grid(nodes, per_node, seed);
    world.odds = odds;
    world.connect_all();
    world
}

#[test]
fn without_faults_one_send_queue_pair_a_node_serves_all_its_processes() {
    let mut world = all_to_all(4, 4, seed(2), Odds::default());
    world.run_until_quiet();
    world.check();
    for process in &world.processes {
        assert_eq!(process.machine.stats().senders, 4, "one for each node, its own included");
    }
    assert_eq!(world.shared.len(), 16 * 4);
    assert_eq!(world.sent, 16 * 15 * 2, "one request and one answer for each direction");
    world.close();
}

/// Those of a node that are asked first are stopped: the others wait one time-out for each doubling
/// of their number, and a peer that is asked later waits for no more than one. At the end there is
/// one send queue pair.
#[test]
fn however_many_processes_of_a_node_are_stopped_the_others_wait_for_a_few_time_outs_only() {
    let first = Params::default().timeout * 5 / 4;
    for (stopped, rounds) in [(1, 1), (2, 2), (4, 3), (8, 4), (16, 5), (30, 5)] {
        let mut world = World::grid(2, 32, seed(5));
        (32..32 + stopped).for_each(|peer| world.stop(peer));
        (32..63).for_each(|peer| world.connect(0, peer));
        world.run_for(first * rounds + HOP * 10);
        (32 + stopped..63).for_each(|peer| assert!(world.is_usable(0, peer), "{peer} of {stopped}"));
        assert!((32..32 + stopped).all(|peer| !world.is_usable(0, peer)));
        world.connect(0, 63);
        world.run_for(HOP * 10);
        assert!(world.is_usable(0, 63), "the node is connected");
        world.run_for(Duration::from_secs(10));
        (32..32 + stopped).for_each(|peer| world.wake(peer));
        world.run_until_quiet();
        world.check();
        world.close();
    }
}

/// The others come when all processes that were asked are known to be slow: none is in their way.
#[test]
fn one_who_comes_to_a_node_of_which_all_so_far_are_stopped_is_asked_at_once() {
    let mut world = World::grid(2, 4, seed(6));
    for stopped in [4, 5] {
        world.stop(stopped);
        world.connect(0, stopped);
    }
    world.run_for(Duration::from_secs(3));
    world.connect(0, 6);
    world.run_for(HOP * 4);
    assert!(world.is_usable(0, 6), "two stopped processes hold it up");
    world.run_for(Duration::from_secs(5));
    (4..6).for_each(|stopped| world.wake(stopped));
    world.run_until_quiet();
    world.check();
    world.close();
}

/// A process that is alive, and has not been told of us yet: it says that it takes longer, and may
/// do so for a minute.
#[test]
fn one_who_asks_for_more_time_does_not_hold_up_the_others_of_its_node() {
    let mut world = World::on_nodes(&[0, 1, 1], seed(7));
    (1..3).for_each(|peer| world.add(0, peer));
    world.add(2, 0);
    world.processes[1].welcoming = false;
    (1..3).for_each(|peer| world.connect(0, peer));
    world.run_for(Params::default().timeout * 5 / 4);
    assert!(world.is_usable(0, 2) && !world.is_usable(0, 1));
    assert_eq!(world.processes[0].machine.stats().repeated, 0, "it was asked not to repeat");
    world.add(1, 0);
    world.run_until_quiet();
    world.check();
    world.close();
}

#[test]
fn all_to_all_on_a_bad_network_comes_up_whatever_is_lost() {
    for seed in seeds(3, 4) {
        let mut world = all_to_all(4, 4, seed, Odds { drop: 10, duplicate: 10, delay: 10, corrupt: 0 });
        world.run_until_quiet();
        assert!(world.elapsed() < BOUND);
        world.check();
        world.close();
    }
}

#[test]
fn processes_that_start_anew_leave_nobody_without_a_connection_or_a_report() {
    for seed in seeds(4, 4) {
        let mut world = all_to_all(4, 4, seed, Odds { drop: 5, duplicate: 5, delay: 5, corrupt: 0 });
        for _ in 0..4 {
            let (after, process) = (world.below(600) as u64, world.below(16));
            world.plan.restarts.insert(after, process);
        }
        for _ in 0..3 {
            world.run_until_quiet();
            world.use_all();
        }
        world.run_until_quiet();
        world.check_told();
    }
}
