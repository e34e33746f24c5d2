//! What waits for a connection: it comes back when the connection is there, when it is given up,
//! and never before.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{World, config};
use mca_btl_oxib::protocol::layout::DEFAULT;
use mca_btl_oxib::transport::config::Config;
use mca_btl_oxib::transport::{Settled, Upcall};
use std::time::Duration;

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

/// Each direction of an X connection comes up when something is sent in it: a message can arrive
/// before the way back is begun. What answers it is complete at once: osc/pt2pt sends answers under
/// a lock that it wants again for the next message it looks at.
#[test]
fn an_answer_over_x_queues_waits_for_no_connection_to_be_complete() {
    for layout in ["X,128,64,48,8:X,65536,16", "S,128,64,48,8:S,65536,16", DEFAULT] {
        let mut world = World::new("answer", layout, 2);
        let (ours, theirs) = (world.id(0, 1), world.id(1, 0));
        world.send(0, 1, 100);
        assert!(
            world.sides[0].transport.completes_when_connected(ours),
            "{layout}: not an answer to anything"
        );
        let settled = world.sides[0].transport.settle(ours, Duration::ZERO);
        assert_eq!(settled, Settled::Unconnected, "{layout}: the sender is told later");
        world.until("the message arrives", |w| w.model.missing(0, 1) == 0);
        let unconnected = world.sides[1].transport.is_unconnected(theirs);
        assert!(unconnected || !layout.starts_with('X'), "{layout}: nothing asked for a way back");
        assert!(
            !world.sides[1].transport.completes_when_connected(theirs),
            "{layout}: the peer has been heard"
        );
        world.send(1, 0, 100);
        let settled = world.sides[1].transport.settle(theirs, Duration::ZERO);
        assert_ne!(settled, Settled::Unconnected, "{layout}: the answer's sender was told to wait");
        world.drain();
        world.close();
    }
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

/// The peer has ended before it was asked: nothing that waits can leave.
#[test]
fn what_waits_for_a_connection_that_fails_comes_back_as_failed_once_and_after_the_reason() {
    for layout in [DEFAULT, "S,128,64,48,8:S,65536,16", "X,128,64:X,65536,16"] {
        let mut config: Config = config(layout);
        (config.cpc.ibcm.timeout, config.cpc.ibcm.max_retries) = (Duration::from_millis(20), 2);
        (config.cpc.xrc.timeout, config.cpc.xrc.max_retries) = (Duration::from_millis(20), 2);
        let mut world = World::with("awaiting-failed", config, 2);
        let id = world.id(0, 1);
        world.sides.remove(1).transport.close();
        let transport = &mut world.sides[0].transport;
        let mut buf = transport.take(id, 100, true).unwrap();
        buf.payload()[..100].fill(1);
        assert!(transport.send(id, 1, buf, 100));
        (7..9).for_each(|cookie| transport.when_connected(id, cookie));
        let mut upcalls = Vec::new();
        while upcalls.len() < 3 {
            transport.poll();
            upcalls.extend(std::iter::from_fn(|| transport.take_upcall()));
            std::thread::yield_now();
        }
        assert!(
            matches!(&upcalls[0], Upcall::Failed { endpoint, .. } if *endpoint == id),
            "{layout}: {upcalls:?}"
        );
        let over = |upcall: &Upcall<u64>| match upcall {
            Upcall::Completed { cookie, ok } => (*cookie, *ok),
            other => panic!("{layout}: {other:?}"),
        };
        assert_eq!(upcalls[1..].iter().map(over).collect::<Vec<_>>(), [(7, false), (8, false)], "{layout}");
        // What comes too late for the connection has lost it as well.
        transport.when_connected(id, 9);
        transport.poll();
        let late: Vec<_> = std::iter::from_fn(|| transport.take_upcall()).collect();
        assert_eq!(late.iter().map(over).collect::<Vec<_>>(), [(9, false)], "{layout}");
        world.close();
    }
}
