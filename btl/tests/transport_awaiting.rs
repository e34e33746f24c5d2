//! What waits for a connection: it comes back when the connection is there, when it is given up, and never before.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod common;

use common::World;
use mca_btl_oxib::protocol::layout::DEFAULT;

#[test]
fn what_waits_for_a_connection_comes_back_once_it_is_there_and_in_order() {
    let mut world = World::new("awaiting", DEFAULT, 2);
    let id = world.id(0, 1);
    assert!(world.sides[0].transport.is_unconnected(id));
    world.send(0, 1, 100);
    for cookie in 1..=3 {
        world.sides[0].transport.when_connected(id, cookie);
    }
    // The peer does not look around, so that nothing can come up.
    for _ in 0..100 {
        world.step_of(&[0]);
    }
    assert!(world.sides[0].transport.is_unconnected(id));
    assert_eq!(world.sides[0].rdma, [], "told before there is a connection");
    world.until("the message arrives", |w| w.model.missing(0, 1) == 0 && !w.sides[0].rdma.is_empty());
    assert_eq!(world.sides[0].rdma, [(1, true), (2, true), (3, true)]);
    assert!(!world.sides[0].transport.is_unconnected(id));
    world.sides[0].transport.when_connected(id, 4);
    world.step_of(&[0]);
    assert_eq!(world.sides[0].rdma.last(), Some(&(4, true)), "nothing to wait for any more");
}

#[test]
fn what_waits_for_a_connection_comes_back_when_the_endpoint_is_removed() {
    let mut world = World::new("awaiting-removed", DEFAULT, 2);
    let id = world.id(0, 1);
    world.send(0, 1, 100);
    world.sides[0].transport.when_connected(id, 7);
    world.remove(0, 1);
    world.model.forget(0, 1);
    world.step_of(&[0]);
    assert_eq!(world.sides[0].rdma, [(7, true)]);
    assert!(!world.sides[0].transport.is_unconnected(id), "an endpoint that is gone awaits nothing");
}
