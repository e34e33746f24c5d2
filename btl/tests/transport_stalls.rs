//! What messages wait for is counted: a connection, a credit, an entry, a share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod common;

use common::{World, config};
use mca_btl_oxib::transport::config::Signalling;
use mca_btl_oxib::transport::stats::Stats;

/// What side 0 counts while it sends `count` messages of `len` bytes to each of `to` without a look around.
fn burst(layout: &str, sides: usize, count: usize, len: usize) -> Stats {
    let mut world = World::new("stalls", layout, sides);
    (1..sides).for_each(|to| world.send(0, to, len));
    world.drain();
    let before = world.sides[0].transport.counted();
    assert!(before.stalled_connecting >= 1 && before.stalled_credits == 0, "{layout}: {before}");
    for _ in 0..count {
        (1..sides).for_each(|to| world.send(0, to, len));
    }
    world.drain();
    let after = world.sides[0].transport.counted();
    assert_eq!(after.stalled_connecting, before.stalled_connecting, "{layout}: they are connected");
    world.close();
    after
}

#[test]
fn a_message_without_a_credit_is_counted() {
    let stats = burst("P,256,4,2,2,2", 2, 100, 8);
    assert!(stats.stalled_credits > 0 && stats.stalled_shared == 0, "{stats}");
}

#[test]
fn a_message_that_finds_a_shared_queue_full_is_counted() {
    let stats = burst("S,256,64,48,4", 4, 100, 8);
    assert!(stats.stalled_shared + stats.stalled_entries > 0 && stats.stalled_credits == 0, "{stats}");
}

#[test]
fn a_caller_that_gets_no_buffer_is_counted() {
    let mut config = config("P,20000,64,48,8");
    config.signalling = Signalling { most: 64, most_bytes: 1 << 30 };
    (config.pool_limit, config.pool_grow) = (16, 4);
    let mut world = World::with("stalls", config, 3);
    (1..3).for_each(|to| world.send(0, to, 5000));
    world.drain();
    (0..40).for_each(|_| world.send(0, 1, 5000));
    world.drain();
    let stats = world.sides[0].transport.counted();
    assert!(stats.stalled_buffers > 0, "{stats}");
    world.close();
}

#[test]
fn markers_and_growth_of_shared_queues_are_counted() {
    let mut world = World::new("stalls", "P,128,64,48,16:S,8192,64,48,32,16,8", 2);
    (0..200).for_each(|_| world.send(0, 1, 4000));
    world.until("the queue has grown", |w| w.sides[1].transport.counted().srq_grown > 0);
    world.drain();
    let (sender, receiver) = (world.sides[0].transport.counted(), world.sides[1].transport.counted());
    assert!(sender.markers > 0, "{sender}");
    assert!(receiver.srq_grown > 0, "{receiver}");
    world.close();
}
