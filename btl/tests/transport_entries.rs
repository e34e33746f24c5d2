//! What the completion queues hold for a peer: the receive of its CTS when it is added, everything
//! else when it is connected.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{World, config, job};
use mca_btl_oxib::protocol::layout::DEFAULT;
use mca_btl_oxib::transport::audit::CompletionAudit;
use mca_btl_oxib::transport::config::Config;
use mca_btl_oxib::transport::port::entries::Count;

/// The default of `cq_size`, and of `rdma_depth`.
fn by_default(layout: &str) -> Config {
    Config { cq_size: 8192, rdma_depth: 256, ..config(layout) }
}

fn books(world: &World, side: usize) -> CompletionAudit {
    world.sides[side].transport.audit_completions()
}

fn plus(count: Count, recv: u32, send: u32) -> Count {
    Count { recv: count.recv + recv, send: count.send + send }
}

/// Adds so many peers that will not connect to this side.
fn add_silent(world: &mut World, side: usize, count: u64) {
    let adverts = world.sides[side].adverts.clone();
    let first = job();
    for name in first..first + count {
        world.sides[side].transport.add(name, &adverts).unwrap();
    }
}

/// As a process does that knows all ranks of a large job, and talks to a few.
#[test]
fn five_hundred_peers_that_are_added_take_one_entry_each_until_they_are_connected() {
    let others = 16;
    let mut world = World::with("many", by_default(DEFAULT), 1 + others);
    let start = world.sides[0].transport.audit_completions();
    add_silent(&mut world, 0, 500);
    let added = books(&world, 0);
    assert_eq!(added.reserved, plus(start.reserved, 500, 0));
    assert_eq!(added.depth, Count { recv: 8192, send: 8192 }, "both queues have their first length");
    assert_eq!(world.sides[0].transport.counted().cq_grown, 0);
    for to in 1..=others {
        world.send(0, to, 100);
        world.drain();
        // rd_num and rd_rsv; rd_num, credit messages and CTS, sd_max of each S queue, rdma_depth.
        let of_each = Count { recv: 260, send: 627 };
        let (recv, send) = (of_each.recv * to as u32, of_each.send * to as u32);
        assert_eq!(books(&world, 0).reserved, plus(added.reserved, recv, send), "{to} connected");
    }
    let connected = books(&world, 0);
    assert_eq!(connected.depth, Count { recv: 8192, send: 16384 }, "{connected:?}");
    assert_eq!(world.sides[0].transport.counted().cq_grown, 1);
    for to in 1..=others {
        world.remove(0, to);
    }
    assert_eq!(plus(books(&world, 0).reserved, others as u32, 0), added.reserved);
    world.close();
}

/// No CTS: nothing for a peer that is added. Over X queues the sends of messages are everyone's, and
/// each direction comes up for itself.
#[test]
fn without_a_per_peer_queue_an_added_peer_takes_no_entry() {
    let cases =
        [("S,128,64,48,8:S,65536,16,12,4", 8 + 4 + 256, 268), ("X,128,64,48,8:X,65536,16,12,4", 256 + 2, 0)];
    for (layout, ours, theirs) in cases {
        let mut world = World::with("shared", by_default(layout), 2);
        let shared = books(&world, 0).reserved;
        add_silent(&mut world, 0, 100);
        assert_eq!(books(&world, 0).reserved, shared, "{layout}");
        world.send(0, 1, 100);
        world.drain();
        assert_eq!(books(&world, 0).reserved, plus(shared, 0, ours), "{layout}");
        assert_eq!(books(&world, 1).reserved, plus(shared, 0, theirs), "{layout}");
        world.remove(0, 1);
        assert_eq!(books(&world, 0).reserved, shared, "{layout}");
        world.close();
    }
}
