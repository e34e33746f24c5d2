//! One side takes its endpoint away and makes it again; the other side's upper layer keeps its own,
//! and knows nothing of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{ECHO, World};
use mca_btl_oxib::protocol::layout::DEFAULT;

const LAYOUTS: [&str; 3] = [DEFAULT, "P,128,4:P,2048,4:P,65536,4", "S,128,64,48,8:S,65536,16"];

/// Side 0 forgets side 1 and adds it again: at once as long as it has not said that it is ready, else as MPI does, as over shared queues
/// alone, where nothing has to be said. What was under way from it may yet arrive, for side 1
/// keeps its endpoint and what has come to it; what was under way to it is lost.
fn add_again(world: &mut World) {
    let says_nothing = world.layout.smallest_p().is_none();
    let timelines = world.sides[0].transport.timelines();
    if says_nothing || timelines.last().is_some_and(|last| last.state.has_posted()) {
        world.leave(0, 1)
    } else {
        world.remove(0, 1)
    }
    world.model.may_lose(0, 1);
    world.model.forget(1, 0);
    world.add(0, 1);
}

/// Side 0 asks, side 1 answers from within its receive callback, over whatever endpoint it has by
/// then.
fn ask(world: &mut World, what: &str) {
    let message = world.model.message(100, ECHO);
    world.send_message(0, 1, message);
    world.until(what, |w| w.nothing_waits() && w.model.is_empty());
}

/// The request of the new endpoint finds one that its owner has kept, closed: only the transport
/// can put that right.
#[test]
fn a_peer_that_is_added_again_reaches_an_endpoint_that_was_kept() {
    for layout in LAYOUTS {
        let mut world = World::new("again", layout, 2);
        let kept = world.id(1, 0);
        for round in 0..8 {
            ask(&mut world, "the question and its answer arrive");
            add_again(&mut world);
            for _ in 0..round {
                world.step();
            }
        }
        ask(&mut world, "the last question and its answer arrive");
        assert_eq!(world.id(1, 0), kept, "{layout}: the upper layer's name has changed");
        assert!(world.sides.iter().all(|s| s.failed.is_empty()), "{layout}: {}", world.books());
        let renewed = world.sides[1].transport.stats.renewed;
        assert!(renewed >= 8, "{layout}: {renewed} of 8 connections were begun anew");
        world.balance();
        world.close();
    }
}

/// At any moment of its coming up: the old request may be answered before the new one comes, or
/// after, or never.
#[test]
fn a_peer_that_is_added_again_while_its_connection_comes_up_reaches_an_endpoint_that_was_kept() {
    for layout in LAYOUTS {
        let mut world = World::new("again young", layout, 2);
        for round in 0..60 {
            let message = world.model.message(100, 0);
            world.send_message(0, 1, message);
            for _ in 0..round {
                world.step();
            }
            add_again(&mut world);
            if round % 2 == 0 {
                ask(&mut world, "the question and its answer arrive");
                add_again(&mut world);
            }
        }
        ask(&mut world, "the last question and its answer arrive");
        assert!(world.sides.iter().all(|s| s.failed.is_empty()), "{layout}: {}", world.books());
        world.balance();
        world.close();
    }
}

/// What it has to say before the connection is up is not lost with a connection that never came up.
/// Side 0 does not look around before it takes its endpoint away, so it never says that it is
/// ready.
#[test]
fn an_endpoint_that_was_kept_says_over_the_next_connection_what_the_last_one_never_carried() {
    for layout in [DEFAULT, "P,128,4:P,2048,4:P,65536,4"] {
        let mut world = World::new("again both", layout, 2);
        let kept = world.id(1, 0);
        for round in 0..40 {
            world.send(0, 1, 100);
            world.until_of(&[1], "the old connection is gone", |w| w.sides[1].transport.is_unconnected(kept));
            for _ in 0..round {
                world.step_of(&[1]);
            }
            world.send(1, 0, 300);
            world.remove(0, 1);
            world.model.may_lose(0, 1);
            world.add(0, 1);
            world.until("what waited arrives", |w| w.nothing_waits() && w.model.is_empty());
            ask(&mut world, "the question and its answer arrive");
            world.leave(0, 1);
            world.add(0, 1);
        }
        assert!(world.sides.iter().all(|s| s.failed.is_empty()), "{layout}: {}", world.books());
        world.close();
    }
}

/// What the peer has said before it left arrives: over shared queues it needs no word of the receiver to be sent.
#[test]
fn what_a_peer_said_before_it_left_and_came_back_is_not_lost_with_the_old_connection() {
    for layout in ["S,128,64,48,8:S,65536,16", "S,65536,16"] {
        for count in [1, 3] {
            let mut world = World::new("again last words", layout, 2);
            ask(&mut world, "the first question and its answer arrive");
            for _ in 0..6 {
                for _ in 0..count {
                    world.send(0, 1, 100);
                }
                world.leave(0, 1);
                world.add(0, 1);
                let message = world.model.message(100, ECHO);
                world.send_message(0, 1, message);
                world.until("the last words, the question and its answer arrive", |w| {
                    w.nothing_waits() && w.model.is_empty()
                });
            }
            assert!(world.sides.iter().all(|s| s.failed.is_empty()), "{layout}: {}", world.books());
            world.close();
        }
    }
}

/// It has left for good: that is no failure, and nothing waits for it.
#[test]
fn a_peer_that_leaves_while_its_connection_comes_up_holds_up_nobody() {
    for steps in [0, 1, 3, 8, 20] {
        let mut world = World::new("again never", DEFAULT, 2);
        let id = world.id(1, 0);
        world.send(0, 1, 100);
        world.until_of(&[1], "the request is answered", |w| w.sides[1].transport.is_coming_up(id));
        for _ in 0..steps {
            world.step_of(&[1]);
        }
        world.send(1, 0, 100);
        let gone = world.sides.remove(0);
        gone.transport.close();
        let left = &mut world.sides[0].transport;
        let mut told = 0;
        while left.stats.renewed == 0 {
            left.poll();
            told += std::iter::from_fn(|| left.take_upcall()).count();
        }
        assert!(left.busy(id) && !left.drain(id), "after {steps} steps");
        told += std::iter::from_fn(|| left.take_upcall()).count();
        assert_eq!((told, left.stats.failed), (0, 0), "after {steps} steps");
        world.close();
    }
}
