//! What messages wait for is counted: a connection, a credit, an entry, a share; and how near to that they came, and their bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::memory::Memory;
use btl_testing::{World, config};
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
    assert_eq!(stats.credits_low, 0, "{stats}");
}

#[test]
fn the_fewest_credits_that_were_left_stay_known_when_they_are_back_and_when_the_peer_has_gone() {
    let mut world = World::new("low", "P,256,32,24,16,4,32", 2);
    world.send(0, 1, 8);
    world.drain();
    let low = |w: &World| w.sides[0].transport.counted().credits_low;
    assert_eq!(low(&world), 31, "one message was sent, of 32 credits");
    (0..20).for_each(|_| world.send(0, 1, 8));
    assert_eq!(low(&world), 11, "no credit has come back yet");
    world.drain();
    world.send(0, 1, 8);
    world.drain();
    let back = world.sides[0].transport.audit().lanes[0].have.data;
    assert!(back > 11 && low(&world) == 11, "{back} credits are back");
    world.remove(1, 0);
    world.remove(0, 1);
    let stats = world.sides[0].transport.counted();
    assert_eq!((stats.credits_low, stats.stalled_credits), (11, 0), "{stats}");
    world.close();
}

#[test]
fn without_a_queue_of_credits_there_is_no_lowest() {
    assert_eq!(burst("S,256,64,48,32", 2, 10, 8).credits_low, u64::MAX);
}

#[test]
fn bytes_are_counted_by_peer_and_those_of_a_peer_that_has_gone_stay() {
    for layout in ["P,128,64,48,16:S,20000,64,48,32", "X,128,64,48,32:X,20000,64,48,32"] {
        let mut world = World::new("bytes", layout, 3);
        for (to, len, count) in [(1, 8, 10), (1, 5000, 3), (2, 100, 4)] {
            (0..count).for_each(|_| world.send(0, to, len));
        }
        world.send(1, 0, 30);
        world.drain();
        let of = |side: &btl_testing::Side, peer: u64| {
            side.transport.traffic().remove(&peer).map(|t| (t.sent, t.received))
        };
        let names: Vec<u64> = world.sides.iter().map(|side| side.name).collect();
        let (first, second) = (15_080, 400);
        for gone in [false, true] {
            if gone {
                world.remove(1, 0);
                world.remove(0, 1);
            }
            let [ours, theirs] = [0, 1].map(|side| world.sides[side].transport.counted());
            assert_eq!(of(&world.sides[0], names[1]), Some((first, 30)), "{layout}: {ours}");
            assert_eq!(of(&world.sides[0], names[2]), Some((second, 0)), "{layout}: {ours}");
            assert_eq!(of(&world.sides[1], names[0]), Some((30, first)), "{layout}: {theirs}");
            let bytes =
                (ours.bytes_sent, ours.bytes_received, ours.peer_bytes_sent, ours.peer_bytes_received);
            assert_eq!(bytes, (first + second, 30, first, 30), "{layout}: {ours}");
        }
        world.close();
    }
}

#[test]
fn receives_that_go_to_the_device_in_lists_are_counted() {
    let mut world = World::new("lists", "P,128,64,48,16,4,64:S,8192,64,48,32", 2);
    let none = world.sides[1].transport.counted();
    assert_eq!(none.recv_chained, 16, "what the shared queue holds from the start: {none}");
    world.send(0, 1, 8);
    world.drain();
    let first = world.sides[1].transport.counted();
    assert!(first.recv_chained >= 16 + 64 + 4 && first.recv_chained <= 16 * first.recv_chains, "{first}");
    (0..500).for_each(|_| world.send(0, 1, 8));
    world.drain();
    let later = world.sides[1].transport.counted();
    assert!(later.recv_chained >= first.recv_chained + 400, "{first}, then {later}");
    world.close();
}

/// What has waited for the connection goes in lists, and so does what has waited for credits.
#[test]
fn messages_that_may_go_at_the_same_time_go_to_the_device_in_lists() {
    for layout in
        ["P,128,64,48,16:S,8192,64,48,32", "S,128,64,48,32:S,8192,64,48,32", "X,128,64,48,32:X,8192,64,48,32"]
    {
        for len in [8, 100, 4000] {
            let mut world = World::new("sends", layout, 2);
            (0..40).for_each(|_| world.send(0, 1, len));
            world.drain();
            let first = world.sides[0].transport.counted();
            // What comes back together goes together.
            assert!(first.send_chains * 3 <= first.send_chained, "{layout}, {len}: {first}");
            assert!(first.send_chained >= 16, "{layout}, {len}: {first}");
            world.send(0, 1, len);
            world.drain();
            let later = world.sides[0].transport.counted();
            assert_eq!(later.send_chained, first.send_chained, "one that does not wait goes alone: {later}");
            world.close();
        }
    }
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
    assert_eq!(receiver.cq_grown, sender.cq_grown);
    assert!(sender.cq_grown > 0, "64 entries are too few for a peer: {sender}");
    world.close();
}

#[test]
fn the_most_bytes_that_were_registered_stay_known() {
    let world = World::new("registered", "P,4000,8,6,2,3", 2);
    let high = || world.sides[0].transport.counted().registered_high;
    let before = high();
    let memory = Memory::new(&world.sides[0].transport, vec![0; 1 << 20]);
    let with = high();
    drop(memory);
    drop(Memory::new(&world.sides[0].transport, vec![0; 1000]));
    assert!(before > 0 && with == before + (1 << 20) && high() == with, "{before}, {with}, {}", high());
    world.close();
}
