//! xrc's machines when a peer is not the one any more that they knew: a later life of its process,
//! and a later endpoint of one whose farewell was not heard. The world is `sim/xrc`'s.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod sim;

use std::time::Duration;

use cpc::wire::Incarnation;
use sim::xrc::{BOUND, Heard, World};
use sim::{HOP, Odds, seed};

/// A DREQ without an answer is repeated for some 19 s.
const FAREWELL: Duration = Duration::from_secs(25);

/// All know of each other what the modex told; then one begins anew, somewhere else, and the others
/// learn of it by its requests only.
#[test]
fn a_process_that_begins_anew_is_found_by_its_request_by_those_who_were_told_of_its_former_life() {
    let mut world = World::grid(2, 2, seed(11));
    world.restart_unheard(2);
    world.connect(2, 0);
    world.connect(2, 1);
    world.run_until_quiet();
    // Both ways: who was asked now asks where the request came from.
    world.connect(0, 2);
    world.connect(1, 2);
    world.run_until_quiet();
    world.check();
    assert!((0..2).all(|peer| world.processes[peer].machine.stats().relearned == 1));
    world.close();
}

/// Of others of its node, too: the endpoint that asked for all of them has gone elsewhere.
#[test]
fn a_request_to_a_former_life_is_sent_again_to_the_later_one_when_that_asks() {
    for after in 0..6 {
        let mut world = World::grid(2, 3, seed(12) + u64::from(after));
        world.restart_unheard(3);
        (3..6).for_each(|peer| world.connect(0, peer));
        world.run_for(HOP * after);
        world.connect(3, 0);
        world.run_for(Duration::from_secs(1));
        assert!((3..6).all(|peer| world.is_usable(0, peer)), "after {after} hops");
        assert!(world.is_usable(3, 0));
        world.run_until_quiet();
        assert!(world.processes[0].failures.is_empty());
        world.say_all();
        world.close();
    }
}

/// What was up is reported as gone, the new request waits for a new endpoint, and nothing waits for
/// an answer of the dead.
#[test]
fn a_later_life_ends_what_was_with_the_former_one_at_once() {
    for (there, back) in [(true, false), (false, true), (true, true)] {
        let mut world = World::grid(2, 1, seed(13));
        let both = |world: &mut World| {
            if there {
                world.connect(0, 1);
            }
            if back {
                world.connect(1, 0);
            }
        };
        both(&mut world);
        world.run_until_quiet();
        world.say_all();
        world.restart_unheard(1);
        world.connect(1, 0);
        world.run_for(HOP * 20);
        assert!(world.is_usable(1, 0), "{there} {back}");
        assert!(!there || world.is_usable(0, 1), "{there} {back}");
        assert_eq!(world.processes[0].machine.leaving(), 0, "nobody is left who could agree");
        world.run_until_quiet();
        world.check();
        world.close();
    }
}

/// Its endpoint had been removed here, its agreement is awaited, and it has died meanwhile.
#[test]
fn a_new_endpoint_of_a_later_life_does_not_wait_for_the_agreement_of_the_former_one() {
    let mut world = World::grid(2, 1, seed(14));
    world.connect(0, 1);
    world.run_until_quiet();
    world.go_away(1);
    world.remove(0, 1);
    world.run_for(HOP * 5);
    assert_eq!(world.processes[0].machine.leaving(), 1);
    world.restart(1);
    world.add(0, 1);
    world.run_for(HOP * 5);
    assert!(world.is_usable(0, 1));
    world.run_until_quiet();
    world.check();
    world.close();
}

/// The modex may tell of a former life after a request has told of a later one.
#[test]
fn of_two_addresses_of_a_process_the_later_one_counts_whoever_tells_it() {
    let mut world = World::grid(2, 1, seed(15));
    world.restart_unheard(1);
    world.connect(1, 0);
    world.run_until_quiet();
    // From now on it asks no process.
    world.processes[1].wants.clear();
    world.replace(0, 1);
    world.connect(0, 1);
    world.run_for(Duration::from_secs(1));
    assert!(world.is_usable(0, 1));
    world.run_until_quiet();
    world.check();
    world.close();
}

/// Three lives of a process, whose requests overtake each other on the network.
#[test]
fn what_a_former_life_has_sent_undoes_nothing_of_a_later_one() {
    let first = seed(16);
    for seed in first..first + 200 {
        let mut world = World::grid(2, 2, seed);
        world.odds = Odds { drop: 5, duplicate: 20, delay: 40, corrupt: 0 };
        world.connect_all();
        for _ in 0..3 {
            for _ in 0..world.below(40) {
                world.step();
            }
            let who = 2 + world.below(2);
            world.restart_unheard(who);
        }
        for _ in 0..3 {
            world.run_until_quiet();
            world.use_all();
        }
        world.run_until_quiet();
        assert!(world.elapsed() < BOUND * 4);
        world.check_told();
    }
}

/// Incarnations are serial numbers: the clock's 32 bits come round every 49 days.
#[test]
fn later_lives_are_known_as_such_when_the_clock_comes_round() {
    assert!(
        Incarnation(3).is_newer_than(Incarnation(u32::MAX - 3))
            && !Incarnation(u32::MAX - 3).is_newer_than(Incarnation(3))
    );
    // The seed is where the count of incarnations begins, three behind: the third is the first one
    // after it has come round.
    let mut world = World::grid(2, 1, 0);
    let old = world.processes[1].address.listener.incarnation;
    world.restart_unheard(1);
    let new = world.processes[1].address.listener.incarnation;
    assert!(new.0 < old.0, "{new:?} {old:?}");
    world.connect(1, 0);
    world.run_until_quiet();
    world.check();
    world.close();
}

/// 0 removes its endpoint of 1 while 1 is away, and says goodbye until it gives up. Then 1 is there again, with all that it knew, and 0 has a
/// new endpoint, whose messages are numbered from the beginning.
#[test]
fn a_new_endpoint_is_not_taken_for_the_one_whose_farewell_was_never_heard() {
    for (there, back) in [(true, false), (false, true), (true, true)] {
        for said in [0, 1, 5] {
            let mut world = World::grid(2, 2, seed(17));
            if there {
                world.connect(0, 2);
            }
            if back {
                world.connect(2, 0);
            }
            world.run_until_quiet();
            (0..said).for_each(|_| world.say_all());
            world.go_away(2);
            world.remove(0, 2);
            world.run_for(FAREWELL);
            assert_eq!(world.processes[0].machine.leaving(), 0, "it has given up");
            world.wake(2);
            world.add(0, 2);
            world.connect(0, 2);
            world.run_until_quiet();
            world.check();
            assert_eq!(world.say(0, 2), Heard::Next, "{there} {back} {said}");
            if back {
                assert_eq!(world.say(2, 0), Heard::Next, "{there} {back} {said}");
            }
            world.close();
        }
    }
}

/// The same at random, of all, on a bad network.
#[test]
fn nothing_is_taken_for_a_repetition_whoever_was_away_when_endpoints_were_made_anew() {
    let first = seed(18);
    // The last one: a late REJ to a request was taken for the agreement to the end of its exchange.
    for seed in (first..first + 60).chain([15_048]) {
        let mut world = World::grid(2, 2, seed);
        world.odds = Odds { drop: seed % 3 * 10, duplicate: 10, delay: 10, corrupt: 0 };
        world.connect_all();
        for _ in 0..4 {
            for _ in 0..world.below(60) {
                world.step();
            }
            world.say_all();
            let (away, me) = (world.below(4), world.below(4));
            world.go_away(away);
            if me != away {
                world.replace(me, away);
            }
            world.run_for(FAREWELL);
            world.wake(away);
            world.say_all();
        }
        world.run_until_quiet();
        world.check_told_somewhere();
    }
}
