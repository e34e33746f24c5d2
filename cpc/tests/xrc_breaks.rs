//! xrc's machines when send queue pairs break, processes die and endpoints are made anew.
//! (`xrc_simulator` tries every order and fault of a start.) What must hold is in
//! `sim/xrc/checks.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod sim;

use std::time::Duration;

use sim::Odds;
use sim::xrc::World;

fn odds(seed: u64) -> Odds {
    Odds { drop: seed % 3 * 10, duplicate: 10, delay: 10, corrupt: 0 }
}

fn meeting(nodes: &[usize], seed: u64) -> World {
    let mut world = World::on_nodes(nodes, seed);
    world.meet_all();
    world
}

/// Also those who have made the receive queue pairs of the others.
#[test]
fn the_living_stay_connected_when_processes_of_their_nodes_die() {
    for seed in 0..60 {
        let mut world = meeting(&[0, 0, 1, 1, 1, 2], seed);
        world.odds = odds(seed);
        world.connect_all();
        for victim in [2, 0] {
            for _ in 0..world.below(80) {
                world.step();
            }
            world.kill(victim);
        }
        world.run_until_quiet();
        world.check();
        world.close();
    }
}

#[test]
fn endpoints_that_are_removed_and_made_again_at_any_moment_connect_again() {
    for seed in 0..120 {
        let mut world = meeting(&[0, 0, 1, 1], seed);
        world.odds = odds(seed);
        world.connect_all();
        for _ in 0..12 {
            for _ in 0..world.below(30) {
                world.step();
            }
            let me = world.below(4);
            let peer = (me + 1 + world.below(3)) % 4;
            world.replace(me, peer);
            world.say_all();
        }
        world.run_until_quiet();
        world.check();
        world.close();
    }
}

#[test]
fn a_send_queue_pair_that_breaks_is_replaced_for_all_who_used_it() {
    for seed in 0..60 {
        let mut world = meeting(&[0, 1, 1, 1], seed);
        world.odds = odds(seed);
        (1..4).for_each(|peer| world.connect(0, peer));
        world.run_until_quiet();
        world.say_all();
        // The culprit is alive all the same: it is removed and made again.
        let key = world.processes[0].current[&1];
        let path = world.processes[0].ends[&key].route.unwrap().path;
        world.breaks(0, path, key);
        world.add(0, 1);
        world.run_until_quiet();
        world.check();
        world.close();
    }
}

/// Its endpoint is lost after all repetitions; the other one of its node is asked after the first.
#[test]
fn a_process_that_does_not_answer_does_not_hold_up_the_others_of_its_node() {
    let mut world = meeting(&[0, 1, 1], 7);
    world.kill(1);
    world.connect(0, 1);
    world.connect(0, 2);
    world.run_for(Duration::from_millis(200));
    assert!(world.is_usable(0, 2));
    world.run_until_quiet();
    assert!(world.processes[0].failures.len() == 1 && world.has_report_of(0, 1));
    world.check();
    world.close();
}

#[test]
fn an_endpoint_that_has_failed_fails_at_its_peer_too_and_is_no_longer_asked() {
    let mut world = meeting(&[0, 1, 1], 3);
    (1..3).for_each(|peer| world.connect(0, peer));
    world.connect(1, 0);
    world.run_until_quiet();
    world.abandon(0, 1);
    world.run_until_quiet();
    let failures = &world.processes[1].failures;
    assert!(failures.len() == 1 && world.has_report_of(1, 0), "{failures:?}");
    assert!(failures[0].to_string().contains("has failed"), "{failures:?}");
    // A new endpoint there is refused as long as the failed one is here, and welcome afterwards.
    world.add(1, 0);
    world.run_until_quiet();
    assert_eq!(world.processes[1].failures.len(), 2);
    world.processes[1].failures.clear();
    world.replace(0, 1);
    world.add(1, 0);
    world.run_until_quiet();
    world.check();
    world.close();
}
