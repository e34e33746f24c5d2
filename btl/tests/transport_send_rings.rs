//! Messages too long to go inline are copied into registered memory of their queue pair, when some have gone from buffers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{World, config};
use mca_btl_oxib::transport::config::{Config, Signalling};
use mca_btl_oxib::transport::stats::Stats;

const P: &str = "P,128,256,192,128:P,8192,64,48,32,64";
const S: &str = "P,128,256,192,128:S,8192,256,192,128,128";

/// None goes by eager RDMA.
fn world(test: &str, layout: &str, sides: usize, send_rings: (u32, u16)) -> World {
    let mut world = World::with(test, Config { eager: None, send_rings, ..config(layout) }, sides);
    for to in 1..sides {
        exchange(&mut world, to, 1, 8);
    }
    world
}

fn stats(world: &World, side: usize) -> Stats {
    world.sides[side].transport.stats
}

/// Buffers that side 0 has made, of all queues.
fn made(world: &World) -> u32 {
    world.sides[0].transport.audit().queues.iter().map(|queue| queue.send_buffers.0).sum()
}

fn exchange(world: &mut World, to: usize, count: usize, len: usize) {
    for _ in 0..count {
        world.send(0, to, len);
        world.send(to, 0, len);
        world.step();
    }
    world.drain();
}

#[test]
fn a_queue_pair_has_memory_of_its_own_when_sixteen_messages_have_gone_from_buffers() {
    for layout in [P, S] {
        let mut world = world("sixteen", layout, 2, (1 << 16, 64));
        exchange(&mut world, 1, 15, 1000);
        assert_eq!((stats(&world, 0).send_rings, stats(&world, 0).sent_buffered), (0, 15), "{layout}");
        exchange(&mut world, 1, 1, 1000);
        assert_eq!(stats(&world, 0).send_rings, 1, "{layout}");
        let before = made(&world);
        exchange(&mut world, 1, 2000, 1000);
        assert_eq!((stats(&world, 0).send_rings, stats(&world, 1).send_rings), (1, 1), "{layout}");
        assert_eq!(stats(&world, 0).sent_buffered, 2016, "{layout}: {}", world.books());
        assert_eq!(made(&world), before, "{layout}: buffers are made for what goes from none");
        world.close();
    }
}

#[test]
fn messages_of_all_lengths_arrive_from_memory_that_is_full_at_times() {
    for (layout, size) in
        [(P, 1 << 16), (P, 8192), (P, 4000), (S, 1 << 16), (S, 16_384), ("P,8192,64,48,32,64", 1 << 15)]
    {
        for signalling in [(16, 4096), (64, 1 << 20), (0, 0)] {
            let mut settings = Config { eager: None, send_rings: (size, 64), ..config(layout) };
            settings.signalling = Signalling { most: signalling.0, most_bytes: signalling.1 };
            settings.reconnects = if size == 8192 { 8 } else { 0 };
            let mut world = World::with("lengths", settings, 3);
            for _ in 0..6 {
                world.talk(300);
                world.drain();
            }
            let rings: u64 = (0..3).map(|side| stats(&world, side).send_rings).sum();
            assert!(rings >= 2, "{layout}, {size} bytes: {rings}, {}", world.books());
            world.close();
        }
    }
}

#[test]
fn there_are_no_more_of_them_than_allowed() {
    for (allowed, expected) in [((1 << 16, 2), 2), ((1 << 16, 0), 0), ((0, 64), 0)] {
        let mut world = world("allowed", S, 5, allowed);
        for round in 0..200 {
            world.send(0, 1 + round % 4, 2000);
            world.step();
        }
        world.drain();
        assert_eq!(stats(&world, 0).send_rings, expected, "{allowed:?}");
        world.close();
    }
}

/// A place is free again when the connection is gone.
#[test]
fn connections_that_end_leave_their_places_to_others() {
    let mut world = world("places", P, 3, (1 << 16, 1));
    for (to, count) in [(1, 1), (2, 2), (1, 3), (2, 4)] {
        exchange(&mut world, to, 40, 500);
        exchange(&mut world, 3 - to, 40, 500);
        assert_eq!(stats(&world, 0).send_rings, count, "to {to}");
        world.leave(0, to);
        world.leave(to, 0);
        world.add(0, to);
        world.add(to, 0);
    }
    world.close();
}

/// Over X queues one process of a node may die, and what others have in flight is sent again from its buffers.
#[test]
fn x_queues_do_without() {
    let mut world = world("x", "X,128,256,192,128:X,8192,256,192,128", 2, (1 << 16, 64));
    exchange(&mut world, 1, 100, 1000);
    assert_eq!((stats(&world, 0).send_rings, stats(&world, 0).sent_buffered), (0, 101));
    world.close();
}
