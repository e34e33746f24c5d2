//! Transports whose connections come up by RDMA-CM: the software device's own connection manager,
//! the real helper threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{World, config, leaving};
use mca_btl_oxib::protocol::layout::DEFAULT;
use mca_btl_oxib::transport::config::Config;

/// Layouts with a clear-to-send, and one without.
const LAYOUTS: [&str; 3] = [DEFAULT, "P,128,64,48,16:P,4096,16,12,4", "S,2048,128,64,32:S,16384,64,32,16"];

fn by_rdmacm(layout: &str) -> Config {
    let mut config = config(layout);
    config.cpc.include = vec!["rdmacm".to_owned()];
    config.cpc.rdmacm.address = Some("127.0.0.1".parse().unwrap());
    config
}

/// What the sides' rdmacm counted, all together.
fn counted(world: &World, name: &str) -> u64 {
    let of = |counters: Vec<(&'static str, u64)>| counters.iter().find(|(n, _)| *n == name).unwrap().1;
    world.sides.iter().map(|side| of(side.transport.connection_counters())).sum()
}

#[test]
fn everybody_reaches_everybody_over_every_kind_of_layout() {
    for layout in LAYOUTS {
        let mut world = World::with("rdmacm all to all", by_rdmacm(layout), 4);
        let max = world.layout.largest_payload();
        for from in 0..4 {
            for to in (0..4).filter(|to| *to != from) {
                [0, 8, 200, max].into_iter().for_each(|len| world.send(from, to, len));
            }
        }
        world.drain();
        world.no_failures();
        let up = |w: &World| w.sides.iter().map(|s| s.transport.stats.connected).sum::<u64>();
        assert_eq!(up(&world), 12, "{layout}: each end of each pair once");
        world.close();
    }
}

#[test]
fn two_that_send_to_each_other_at_once_share_one_connection() {
    for _ in 0..10 {
        let mut world = World::with("rdmacm crossing", by_rdmacm(DEFAULT), 2);
        (0..20).for_each(|i| world.send(i % 2, 1 - i % 2, 64 * i));
        world.drain();
        world.no_failures();
        // Data may be there before the connection manager's last word is.
        world.until("both have heard of it", |w| counted(w, "rdmacm_connected") >= 2);
        assert_eq!(counted(&world, "rdmacm_connected"), 2);
        world.close();
    }
}

#[test]
fn a_peer_that_is_removed_may_come_again() {
    let mut world = World::with("rdmacm again", by_rdmacm(DEFAULT), 2);
    for _ in 0..5 {
        world.send(0, 1, 100);
        world.send(1, 0, 5000);
        world.drain();
        world.remove(0, 1);
        world.remove(1, 0);
        world.add(0, 1);
        world.add(1, 0);
    }
    world.send(0, 1, 8);
    world.drain();
    assert_eq!(counted(&world, "rdmacm_failed"), 0);
    world.close();
}

#[test]
fn two_that_leave_at_the_same_time_lose_nothing() {
    for layout in LAYOUTS {
        leaving::both_leave("rdmacm both leave", by_rdmacm(layout));
        leaving::both_leave_amid_transfers("rdmacm both leave amid transfers", by_rdmacm(layout));
    }
}
