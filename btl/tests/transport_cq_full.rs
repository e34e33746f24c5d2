//! A completion queue that cannot grow when a connection comes up costs that connection, and no
//! other. A binary of its own with one test, for a plan of faults is the whole process'.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{World, config};
use mca_btl_oxib::transport::config::Config;
use softib::faults;

/// The completion queues of side 0 have room for one connection, which side 1 gets.
fn crowded(layout: &str) -> World {
    let (small, large) =
        (Config { cq_size: 40, ..config(layout) }, Config { cq_size: 8192, ..config(layout) });
    let mut world = World::strangers("crowded", vec![small, large.clone(), large.clone(), large]);
    for (from, to) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
        world.add(from, to);
    }
    world.send(0, 1, 100);
    world.drain();
    world
}

#[test]
fn a_connection_that_finds_no_room_for_its_completions_fails_alone_and_says_why() {
    let both = "P,128,32,16,8:S,8192,32,16,32";
    for (layout, call) in [(both, 1), (both, 2), ("S,128,64,48,8:S,8192,16", 1)] {
        one_fails(layout, call, 0);
        one_fails(layout, call, 2);
    }
    // X queues are connected by their senders, and what they receive has its place from the start.
    one_fails("X,128,64,48,8:X,8192,16", 1, 0);
}

/// Side `asks` begins the connection of sides 0 and 2, whose completions find no room at side 0.
fn one_fails(layout: &str, call: u32, asks: usize) {
    let what = format!("{layout}, call {call}, asked by side {asks}");
    let mut world = crowded(layout);
    let before = world.sides[0].transport.audit_completions().reserved;
    faults::set(format!("fail=resize_cq:{call}:ENOMEM").parse().unwrap());
    world.send(asks, 2 - asks, 100);
    let id = world.id(asks, 2 - asks);
    world.sides[asks].transport.when_connected(id, 7);
    world.until("the connection fails", |w| !w.sides[0].failed.is_empty());
    faults::set("".parse().unwrap());
    let (rank, reason) = &world.sides[0].failed[0];
    assert_eq!(*rank, 2, "{what}");
    let words = ["a completion queue needs", "cannot grow", "ibv_resize_cq", "btl_oxib_cq_size"];
    assert!(words.iter().all(|word| reason.contains(word)), "{what}: {reason}");
    let books = world.sides[0].transport.audit_completions();
    assert_eq!((books.reserved, books.due), (before, before), "{what}");
    world.until("what waited is over", |w| !w.sides[asks].rdma.is_empty());
    // Without a CTS the connection may have been up at the side that asked.
    let lost = asks == 0 || layout.starts_with('P');
    assert!(!lost || world.sides[asks].rdma == [(7, false)], "{what}: {:?}", world.sides[asks].rdma);
    // A peer that has not asked may know of nothing but a request that was withdrawn: its own is refused.
    world.send(2, 0, 100);
    world.until("the peer hears of it", |w| !w.sides[2].failed.is_empty());
    world.model.forget(asks, 2 - asks);
    world.model.forget(2, 0);
    world.send(0, 1, 100);
    world.send(1, 0, 5000);
    world.until("others talk on", |w| w.nothing_waits() && w.model.is_empty());
    world.balance();
    assert_eq!((world.sides[0].failed.len(), world.sides[1].failed.len()), (1, 0), "{what}");
    another(&mut world);
    world.close();
}

/// When the queue can grow again, the next peer is connected.
fn another(world: &mut World) {
    world.add(0, 3);
    world.add(3, 0);
    world.send(0, 3, 100);
    world.send(3, 0, 100);
    world.until("they talk", |w| w.nothing_waits() && w.model.is_empty());
    world.balance();
}
