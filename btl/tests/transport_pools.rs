//! Back-pressure, bounds and fairness: who may take how much when a peer takes nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{ECHO, World, config};
use mca_btl_oxib::protocol::layout::DEFAULT;

const LIMIT: u32 = 32;

fn limited(test: &str, layout: &str, count: usize) -> World {
    let mut config = config(layout);
    (config.pool_limit, config.pool_grow) = (LIMIT, 8);
    World::with(test, config, count)
}

/// Sends until it is told to come again; how many messages were taken.
fn fill(world: &mut World, from: usize, to: usize, len: usize) -> u32 {
    for taken in 0.. {
        let message = world.model.message(len, 0);
        if !world.try_send(from, to, message, true) {
            return taken;
        }
        assert!(taken < 100_000, "no back-pressure: {}", world.books());
    }
    unreachable!("the loop returns")
}

fn send_buffers(world: &World, side: usize, queue: usize) -> u32 {
    world.sides[side].transport.audit().queues[queue].send_buffers.0
}

#[test]
fn a_sender_outside_of_callbacks_is_told_to_wait_and_one_inside_is_not() {
    for layout in ["P,4096,2,1,1,2", "S,4096,4,3,2,4", "X,4096,4,3,2,4", DEFAULT] {
        let mut world = limited("inside", layout, 2);
        let queue = world.layout.for_payload(4000).unwrap();
        fill(&mut world, 0, 1, 4000);
        let id = world.id(0, 1);
        for extra in 1..=50 {
            assert!(world.sides[0].transport.take(id, 4000, true).is_none(), "{layout}: {extra}");
            let message = world.model.message(4000, 0);
            assert!(world.try_send(0, 1, message, false), "{layout}: refused inside of a callback");
            assert_eq!(world.sides[0].transport.stats.beyond_limit, extra);
        }
        let made = send_buffers(&world, 0, queue);
        assert!(made <= (LIMIT / 2 + 50).next_multiple_of(8), "{layout}: {made} buffers");
        world.drain();
        assert_eq!(send_buffers(&world, 0, queue), made, "{layout}: draining takes no buffers");
        // What was lent beyond the limit is not counted against it for ever.
        assert!(
            world.sides[0]
                .transport
                .take(id, 4000, true)
                .map(|b| world.sides[0].transport.give_back(b))
                .is_some()
        );
        world.close();
    }
}

/// More messages at a time than the pool has made buffers for: each gives its share of the pool back, once.
#[test]
fn a_message_whose_buffer_has_to_be_made_takes_one_share() {
    for layout in ["P,4096,64", "S,4096,256,192,128,64", "X,4096,256,192,128,64"] {
        let mut world = limited("made", layout, 2);
        world.send(0, 1, 4000);
        world.drain();
        for _ in 0..LIMIT / 2 - 1 {
            world.send(0, 1, 4000);
        }
        assert!(send_buffers(&world, 0, 0) > 8, "{layout}: no buffer had to be made");
        world.drain();
        assert_eq!(world.sides[0].transport.audit().queues[0].share_free, LIMIT, "{layout}");
        world.close();
    }
}

#[test]
fn answers_from_callbacks_are_never_refused_while_both_sides_flood() {
    for layout in ["P,128,2,1,1,2:P,4096,2,1,1,2", "S,4096,4,3,2,4", "X,4096,4,3,2,4", DEFAULT] {
        let mut world = limited("echo", layout, 2);
        for _ in 0..400 {
            for (from, to) in [(0, 1), (1, 0)] {
                let len = [60, 4000][world.rng.below(2)];
                let message = world.model.message(len, ECHO);
                world.send_message(from, to, message);
            }
        }
        world.drain();
        assert_eq!(world.model.arrived, 1600);
        for side in &world.sides {
            assert!(side.refused > 0, "back-pressure never set in");
            let (made, beyond) = (side.transport.audit(), side.transport.stats.beyond_limit);
            for queue in made.queues {
                assert!(
                    u64::from(queue.send_buffers.0) <= u64::from(LIMIT) + beyond + 8,
                    "{queue:?}, {beyond}"
                );
            }
        }
        world.close();
    }
}

#[test]
fn a_flood_to_a_peer_that_never_polls_is_bounded() {
    for layout in ["P,4096,8", "S,4096,16", "X,4096,16", DEFAULT] {
        let mut world = limited("bounded", layout, 2);
        let queue = world.layout.for_payload(4000).unwrap();
        world.send(0, 1, 4000);
        world.drain();
        for _ in 0..2000 {
            fill(&mut world, 0, 1, 4000);
            world.poll(0);
        }
        let made = send_buffers(&world, 0, queue);
        assert!(made <= LIMIT + 8, "{layout}: {made} buffers");
        world.drain();
        world.close();
    }
}

/// 0 sends to 1, which does not poll, and to 2, which does. What 1 does not take never stops what 2
/// wants.
fn stalled(layout: &str, len: usize) {
    let mut world = limited("stalled", layout, 3);
    for to in [1, 2] {
        world.send(0, to, 16);
    }
    world.drain();
    let queue = world.layout.for_payload(len).unwrap();
    for _ in 0..300 {
        let message = world.model.message(len, 0);
        world.send_message(0, 1, message);
    }
    for round in 0..300 {
        world.send(0, 2, len);
        world.until_of(&[0, 2], &format!("message {round} to the peer that polls"), |w| {
            w.model.missing(0, 2) == 0 && w.sides[0].waiting[2].is_empty()
        });
        let free = world.sides[0].transport.audit().queues[queue].share_free;
        assert!(
            free + 1 >= LIMIT / 2,
            "{layout}: the stalled peer holds more than its share, {free} are free"
        );
    }
    world.drain();
    world.close();
}

#[test]
fn a_stalled_peer_does_not_stop_messages_to_others_on_per_peer_queues() {
    stalled("P,128,8:P,4096,4", 4000);
    stalled("P,128,8:P,4096,4", 100);
}

#[test]
fn a_stalled_peer_does_not_stop_messages_to_others_on_shared_queues() {
    stalled("S,128,16,12,8:S,4096,8,6,4", 4000);
    stalled("S,128,16,12,8:S,4096,8,6,4", 100);
}

#[test]
fn a_stalled_peer_does_not_stop_messages_to_others_with_the_default_layout() {
    stalled(DEFAULT, 100);
    stalled(DEFAULT, 2000);
    stalled(DEFAULT, 60_000);
}

/// Something has always arrived when side 0 polls; its own sends complete all the same.
#[test]
fn a_steady_stream_of_arrivals_does_not_hold_up_sends() {
    for layout in ["P,128,8", "S,128,64,48,32", "X,128,64,48,32", DEFAULT] {
        let mut world = World::new("stream", layout, 3);
        for to in [1, 2] {
            world.send(0, to, 16);
            world.send(to, 0, 16);
        }
        world.drain();
        let arrived = world.model.arrived;
        for _ in 0..400 {
            world.send(1, 0, 100);
            world.send(0, 2, 100);
            world.step_of(&[1, 0, 2]);
        }
        // Where the device has stood still for a while, for want of a processor, nothing arrives either.
        let late =
            |from: usize, to: usize| world.model.missing(from, to) + world.sides[from].waiting[to].len();
        let (sent, arriving) = (late(0, 2), late(1, 0));
        assert!(sent < 50 + arriving, "{layout}: {sent} of 400 are late; {}", world.books());
        world.drain();
        assert_eq!(world.model.arrived, arrived + 800);
        world.close();
    }
}

/// The device says which queue runs low: the others keep their memory.
#[test]
fn the_limit_event_of_one_shared_queue_grows_that_queue_only() {
    for layout in ["S,128,64,48,32,16,8:S,4096,64,48,32,16,8", "X,128,64,48,32,16,8:X,4096,64,48,32,16,8"] {
        let mut world = World::new("limit", layout, 2);
        for (from, to) in [(0, 1), (1, 0)] {
            world.send(from, to, 100);
            world.send(from, to, 4000);
        }
        world.drain();
        // Few enough that the queue does not run empty, which would make it grow as well.
        (0..11).for_each(|_| world.send(0, 1, 4000));
        // The event comes while messages still do: those that are posted need not be 32 at any time.
        world.until("the queue has grown", |w| {
            let (posted, held) = w.sides[1].transport.audit().queues[1].recv_slots;
            posted + held == 32
        });
        let (posted, held) = world.sides[1].transport.audit().queues[0].recv_slots;
        assert_eq!(posted + held, 16, "{layout}: {}", world.books());
        world.drain();
        world.close();
    }
}
