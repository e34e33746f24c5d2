//! Moments between what a connection helper has done and what the main thread has looked at, set up step by step in virtual time. Seeds of
//! the simulation have found them; each test is one cause (docs/bugs/README.md).
//!
//! `helpers` gives the helpers turns while no main thread looks around, `poll` lets one main thread look around while no time passes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod common;

use common::watchdog::Watchdog;
use common::{World, config};
use mca_btl_oxib::transport::config::Config;
use std::time::Duration;

const P: &str = "P,128,64,48,32,4:P,8192,16,8,4";

/// Two processes that know each other, and are not connected.
fn world(layout: &str) -> (World, Watchdog) {
    let watchdog = Watchdog::new("a moment", Duration::from_secs(60));
    let mut world = World::simulated(1, vec![Config { reconnects: 8, ..config(layout) }; 2]);
    world.add(0, 1);
    world.add(1, 0);
    (world, watchdog)
}

/// The helpers do all that they can do by themselves.
fn helpers(world: &mut World) {
    (0..20).for_each(|_| world.step_of(&[]));
}

/// Every message, buffer and credit comes to where it belongs, and no endpoint fails.
fn all_arrives(world: &mut World) {
    world.until("every message arrives", |w| w.nothing_waits() && w.model.is_empty());
    world.balance();
    assert!(world.sides.iter().all(|side| side.failed.is_empty()), "{}", world.books());
}

/// A peer that removes its endpoint before it has heard of the connection gets the CTS, which is the first that it hears.
#[test]
fn the_receive_of_a_cts_that_comes_after_its_endpoint_was_removed_comes_back() {
    let (mut world, _watchdog) = world(P);
    world.send(0, 1, 8);
    helpers(&mut world);
    world.remove(1, 0);
    world.poll(0);
    world.poll(1);
    assert_eq!(world.sides[1].transport.stats.stale, 1, "the CTS is of a connection that is gone");
    world.add(1, 0);
    all_arrives(&mut world);
    let (made, home) = world.sides[1].transport.audit().cts_buffers;
    assert_eq!(made as usize, home, "a receive of a CTS stays with the device: {}", world.books());
    world.close();
}
