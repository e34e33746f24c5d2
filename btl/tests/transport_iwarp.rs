//! Transports on an iWARP device: a connection for each queue pair, and the software device ends
//! one whose responder sends first.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{World, config, leaving};
use mca_btl_oxib::protocol::layout::{DEFAULT, IWARP};
use mca_btl_oxib::transport::Transport;
use mca_btl_oxib::transport::config::{Config, Signalling};
use mca_btl_oxib::transport::device::{Choice, Filter, PortConfig, find};
use softib::port::{LinkLayer, Settings, configure};
use std::sync::Once;
use verbs::Driver;

/// One queue, the default ones, the smallest windows; the CTS goes over the first or over another.
const LAYOUTS: [&str; 4] = [
    "P,65536,64,48,16",
    IWARP,
    "P,64,1,0,1,2:P,4096,1,0,1,2:P,65536,2,1,1,2",
    "P,4096,16,12,4:P,8192,16,12,4",
];

fn on_iwarp(layout: &str) -> Config {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        configure(Settings { link_layers: vec![LinkLayer::Iwarp], ..Settings::default() }).unwrap()
    });
    let mut config = config(layout);
    config.cpc.rdmacm.address = Some("127.0.0.1".parse().unwrap());
    config
}

#[test]
fn everybody_reaches_everybody_over_every_layout_of_per_peer_queues() {
    for layout in LAYOUTS {
        let mut world = World::with("iwarp all to all", on_iwarp(layout), 4);
        let max = world.layout.largest_payload();
        for from in 0..4 {
            for to in (0..4).filter(|to| *to != from) {
                [0, 8, 200, max].into_iter().for_each(|len| world.send(from, to, len));
            }
        }
        world.drain();
        let up: u64 = world.sides.iter().map(|s| s.transport.stats.connected).sum();
        assert_eq!(up, 12, "{layout}: each end of each pair once");
        world.close();
    }
}

/// The side that was asked has the most to say, on queues that the other side has nothing to say
/// on.
#[test]
fn the_side_that_was_asked_waits_for_the_first_message_on_each_queue() {
    for layout in LAYOUTS {
        let mut world = World::with("iwarp order", on_iwarp(layout), 2);
        let max = world.layout.largest_payload();
        for _ in 0..50 {
            [max, 0, max / 2, 100].into_iter().for_each(|len| world.send(1, 0, len));
        }
        world.send(0, 1, 0);
        world.drain();
        world.close();
    }
}

#[test]
fn two_that_send_to_each_other_at_once_share_one_connection() {
    for _ in 0..10 {
        let mut world = World::with("iwarp crossing", on_iwarp(IWARP), 2);
        (0..20).for_each(|i| world.send(i % 2, 1 - i % 2, 64 * i));
        world.drain();
        let up: u64 = world.sides.iter().map(|s| s.transport.stats.connected).sum();
        assert_eq!(up, 2);
        world.close();
    }
}

#[test]
fn a_peer_that_is_removed_may_come_again() {
    let mut world = World::with("iwarp again", on_iwarp(IWARP), 2);
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
    world.close();
}

#[test]
fn shared_queues_are_refused_and_the_message_names_a_layout_that_does() {
    let soft = || Ok(Driver::with_connections(softib::driver_table(), softib::cm_table()));
    let config = on_iwarp(DEFAULT);
    let ports =
        find(&Choice::Soft, &Filter::default(), PortConfig { gid_index: None, pkey: 0, mtu: 0 }, soft)
            .unwrap();
    let Err(error) = Transport::<u64>::open(&ports[0], config, 1) else { panic!("it opened") };
    assert!(error.to_string().contains("configs/iwarp.conf"), "{error}");
}

/// It takes our queue pairs along; we have sent, unsignalled, and ask whether that is over.
#[test]
fn a_peer_that_leaves_before_our_last_sends_are_asked_for_is_no_failure() {
    for _ in 0..20 {
        let mut world = World::with("iwarp leaves", on_iwarp(IWARP), 2);
        for len in [8, 200, 8] {
            world.send(0, 1, len);
        }
        world.until("they arrive", |w| w.nothing_waits() && w.model.missing(0, 1) == 0);
        world.remove(1, 0);
        let id = world.id(0, 1);
        world.until_of(&[0], "side 0 has nothing to wait for", |w| !w.sides[0].transport.drain(id));
        assert!(world.sides[0].failed.is_empty(), "{:?}", world.sides[0].failed);
        world.close();
    }
}

/// A completion says that our TCP has the message.
#[test]
fn a_side_that_leaves_waits_until_its_peer_has_taken_what_it_was_sent() {
    for layout in LAYOUTS {
        leaving::waits_until_all_is_taken("iwarp leave", on_iwarp(layout));
        leaving::both_leave("iwarp both leave", on_iwarp(layout));
        leaving::both_leave_amid_transfers("iwarp both leave amid transfers", on_iwarp(layout));
    }
}

/// Linux's siw sends the pages of an unsignalled message of a page or more without a copy, and TCP may read them long after
/// a later completion.
#[test]
fn a_message_of_a_page_or_more_has_a_completion_of_its_own() {
    for (len, least, most) in [(5000, 200, 250), (1000, 4, 60)] {
        let mut config = on_iwarp("P,65536,256,192,128");
        config.signalling = Signalling { most: 64, most_bytes: 1 << 20 };
        let mut world = World::with("iwarp pages", config, 2);
        world.send(0, 1, len);
        world.drain();
        let before = world.sides[0].transport.stats.completions;
        (0..200).for_each(|_| world.send(0, 1, len));
        world.drain();
        let completions = world.sides[0].transport.stats.completions - before;
        assert!((least..=most).contains(&completions), "{completions} for 200 messages of {len} bytes");
        world.close();
    }
}
