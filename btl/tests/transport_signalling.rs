//! Which sends are signalled, and that everything comes back whatever they are (seed 001:
//! max_unsig_wrs, max_unsig_bytes, completion high-water mark).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{World, config};
use mca_btl_oxib::transport::config::{Config, Signalling};
use mca_btl_oxib::transport::stats::Stats;

const LAYOUTS: [&str; 4] = [
    "P,128,256,192,128,4:S,2048,1024,1008,64,256,48:S,65536,512,496,32,128,24",
    "P,65536,256,192,128",
    "S,65536,256,192,128",
    "X,128,256,192,128:X,65536,256,192,128",
];

fn world(test: &str, layout: &str, sides: usize, most: u16, most_bytes: u32) -> World {
    // What is counted are messages that go by SEND.
    let mut config = Config { eager: None, ..config(layout) };
    config.signalling = Signalling { most, most_bytes };
    World::with(test, config, sides)
}

/// `count` messages of `len` bytes from side 0 to side 1, and what side 0 counts when they have arrived and their requests
/// have completed.
fn stream(world: &mut World, count: usize, len: usize) -> Stats {
    world.send(0, 1, len);
    world.drain();
    let before = world.sides[0].transport.stats.completions;
    for _ in 0..count {
        world.send(0, 1, len);
        world.step();
    }
    world.drain();
    let mut stats = world.sides[0].transport.stats;
    stats.completions -= before;
    stats
}

#[test]
fn a_stream_of_small_messages_takes_a_completion_for_every_twelfth_at_most() {
    for layout in LAYOUTS {
        let mut world = world("stream", layout, 2, 16, 4096);
        let stats = stream(&mut world, 4000, 8);
        assert!(stats.sent_inline > 3900 || layout.starts_with('X'), "{layout}: {stats:?}");
        assert!(stats.completions * 12 <= 4000, "{layout}: {stats:?}");
        assert_eq!(stats.unsignalled_high, 16, "{layout}: {stats:?}");
        world.close();
    }
}

#[test]
fn without_unsignalled_sends_each_message_has_its_completion() {
    for layout in LAYOUTS {
        let mut world = world("each", layout, 2, 0, 4096);
        let stats = stream(&mut world, 500, 8);
        assert!(stats.completions >= 500, "{layout}: {stats:?}");
        assert_eq!(stats.unsignalled_high, 0, "{layout}: {stats:?}");
        world.close();
    }
}

#[test]
fn buffers_stay_out_up_to_the_bytes_that_may_be_unsignalled() {
    for (most_bytes, at_least, at_most) in [(0, 600, 700), (2 * 5100, 200, 320), (1 << 20, 30, 120)] {
        let mut world = world("bytes", LAYOUTS[1], 2, 16, most_bytes);
        let stats = stream(&mut world, 600, 5000);
        let range = at_least..=at_most;
        assert!(range.contains(&stats.completions), "{most_bytes} bytes: {stats:?}");
        world.close();
    }
}

/// Every peer's last sends are unsignalled and keep what the queue has for all of them.
#[test]
fn idle_peers_do_not_keep_a_shared_queue_from_others() {
    let mut world = world("shares", "S,128,64,48,8:S,20000,64,48,4", 6, 64, 1 << 20);
    for round in 0..200 {
        for to in 1..6 {
            world.send(0, to, [8, 12_000, 90][(round + to) % 3]);
        }
        world.until("it arrives", |w| w.nothing_waits() && (1..6).all(|to| w.model.missing(0, to) == 0));
    }
    world.drain();
    world.close();
}

/// A buffer that an unsignalled send has keeps no caller that can wait for one.
#[test]
fn idle_peers_do_not_keep_the_pool_from_others() {
    let mut config = config("P,20000,64,48,8");
    config.signalling = Signalling { most: 64, most_bytes: 1 << 30 };
    (config.pool_limit, config.pool_grow) = (16, 4);
    let mut world = World::with("pool", config, 6);
    for _ in 0..100 {
        for to in 1..6 {
            world.send(0, to, 5000);
        }
        world.until("it arrives", |w| w.nothing_waits() && (1..6).all(|to| w.model.missing(0, to) == 0));
    }
    world.drain();
    world.close();
}

/// The last sends are unsignalled and nothing follows them.
#[test]
fn a_flush_ends_behind_sends_that_are_not_signalled() {
    for layout in LAYOUTS {
        let mut world = world("flush", layout, 2, 64, 1 << 20);
        for len in [8, 100, 1000, 8, 8] {
            world.send(0, 1, len);
        }
        world.until("they arrive", |w| w.nothing_waits() && w.model.missing(0, 1) == 0);
        for _ in 0..100 {
            world.step();
        }
        let audit = world.sides[0].transport.audit();
        assert!(audit.outstanding != 0 && !audit.all_done, "{layout}: {}", world.books());
        let id = world.id(0, 1);
        let mut mark = world.sides[0].transport.begin_flush(Some(id)).pop().expect("sends are ahead");
        world.until("the flush ends", |w| !w.sides[0].transport.is_ahead(&mut mark, &[]));
        let audit = world.sides[0].transport.audit();
        assert!(audit.outstanding == 0 && audit.all_done, "{layout}: {}", world.books());
        assert!(world.sides[0].transport.begin_flush(None).is_empty(), "{layout}");
        world.drain();
        world.close();
    }
}

/// Sends that succeeded unsignalled before the queue pair broke have no completion, not even a flushed one.
#[test]
fn buffers_of_unsignalled_sends_come_back_when_the_endpoint_is_removed_or_fails() {
    for layout in LAYOUTS {
        for both in [false, true] {
            let mut world = world("gone", layout, 3, 64, 1 << 20);
            for len in [8, 1000, 30_000, 8] {
                world.send(0, 1, len);
            }
            world.until("they arrive", |w| w.nothing_waits() && w.model.missing(0, 1) == 0);
            let begin = std::time::Instant::now();
            world.remove(if both { 1 } else { 0 }, if both { 0 } else { 1 });
            assert!(
                begin.elapsed() < std::time::Duration::from_millis(150),
                "it waited for what never comes"
            );
            if both {
                world.remove(0, 1);
            }
            let audit = world.sides[0].transport.audit();
            assert_eq!((audit.outstanding, audit.inflight), (0, 0), "{layout}: {audit:?}");
            for queue in &audit.queues {
                assert_eq!(queue.send_buffers.0 as usize, queue.send_buffers.1, "{layout}: {audit:?}");
            }
            world.close();
        }
    }
}

/// The peer has taken its end down before we ask whether our last sends are over: they are, and nothing has failed.
#[test]
fn a_peer_that_leaves_before_our_last_sends_are_asked_for_is_no_failure() {
    for layout in LAYOUTS {
        for _ in 0..10 {
            let mut world = world("leaves", layout, 2, 64, 1 << 20);
            for len in [8, 1000, 8] {
                world.send(0, 1, len);
            }
            world.until("they arrive", |w| w.nothing_waits() && w.model.missing(0, 1) == 0);
            world.remove(1, 0);
            let id = world.id(0, 1);
            world.until_of(&[0], "side 0 has nothing to wait for", |w| !w.sides[0].transport.drain(id));
            assert!(world.sides[0].failed.is_empty(), "{layout}: {:?}", world.sides[0].failed);
            world.close();
        }
    }
}

/// The end of stream goes to a process that has left without a word: who else is on its node loses nothing, and our
/// messages to it had arrived.
#[test]
fn a_process_that_has_left_its_node_takes_no_messages_of_others_along() {
    for _ in 0..10 {
        let mut world = world("left", LAYOUTS[3], 3, 64, 1 << 20);
        for to in [1, 2, 1, 2] {
            world.send(0, to, 8);
        }
        world.until("they arrive", |w| {
            w.nothing_waits() && w.model.missing(0, 1) + w.model.missing(0, 2) == 0
        });
        world.sides.pop().expect("three sides").transport.close();
        let (one, left) = (world.id(0, 1), world.id(0, 2));
        assert!(world.sides[0].transport.drain(left), "the last message to it is not signalled");
        for _ in 0..3 {
            world.send(0, 1, 1000);
        }
        world.until("side 0 has nothing to wait for", |w| {
            let transport = &mut w.sides[0].transport;
            let busy = [transport.busy(one), transport.drain(left)];
            busy == [false; 2] && w.model.missing(0, 1) == 0
        });
        assert!(world.sides[0].failed.iter().all(|(rank, _)| *rank == 2), "{:?}", world.sides[0].failed);
        assert!(world.sides[0].transport.stats.rerouted != 0, "the end has not failed: {}", world.books());
        world.close();
    }
}
