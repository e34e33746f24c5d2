//! Sides that leave: nothing is lost, both know, and nobody else is disturbed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{World, config, leaving};
use mca_btl_oxib::protocol::layout::DEFAULT;

const LAYOUTS: [&str; 6] = [
    DEFAULT,
    "P,65536,64,48,16",
    "P,128,256,192,128:P,65536,64,48,16",
    "P,64,1,0,1,2:P,4096,1,0,1,2:P,65536,2,1,1,2",
    "S,128,64,48,16:S,65536,64,48,16",
    XRC,
];
const XRC: &str = "X,128,64,48,16:X,65536,64,48,16";

#[test]
fn a_side_that_leaves_waits_until_its_peer_has_taken_what_it_was_sent() {
    for layout in LAYOUTS {
        leaving::waits_until_all_is_taken("leave", config(layout));
    }
}

#[test]
fn two_that_leave_at_the_same_time_lose_nothing_and_say_little() {
    for layout in LAYOUTS {
        leaving::both_leave("both leave", config(layout));
    }
}

#[test]
fn two_that_leave_at_the_same_time_amid_puts_and_gets_carry_all_of_them_out() {
    for layout in LAYOUTS {
        leaving::both_leave_amid_transfers("both leave amid transfers", config(layout));
    }
}

/// Nothing has been said, and no end of it is told. Without a clear-to-send the peer may have connected: the connection manager says whether it has.
#[test]
fn a_side_without_a_connection_leaves_at_once() {
    for layout in LAYOUTS {
        let mut world = World::new("strangers leave", layout, 2);
        let id = world.id(0, 1);
        if !layout.contains('P') {
            world.until_of(&[0], "the connection manager answers", |w| !w.sides[0].transport.drain(id));
        }
        assert!(!world.sides[0].transport.drain(id), "{layout}");
        assert_eq!(world.sides[0].transport.stats.ends, 0);
        world.close();
    }
}

/// Only one of them has sent anything. Over X queues the other one has to connect for its acknowledgement.
#[test]
fn a_side_that_has_only_received_acknowledges_too() {
    for layout in LAYOUTS {
        let mut world = World::new("receiver", layout, 2);
        world.send(0, 1, 100);
        world.drain();
        let id = world.id(0, 1);
        world.until("side 0 has nothing to wait for", |w| !w.sides[0].transport.drain(id));
        world.until("side 1 knows", |w| w.sides[1].transport.stats.ends == 1);
        world.no_failures();
        world.close();
    }
}

/// The sender does not leave, and may send more: it has to know.
#[test]
fn a_side_that_has_only_received_leaves_with_a_word() {
    for layout in LAYOUTS {
        let mut world = World::new("receiver leaves", layout, 3);
        for to in [1, 2, 1] {
            world.send(0, to, 100);
        }
        world.drain();
        let id = world.id(1, 0);
        assert!(world.sides[1].transport.drain(id), "{layout}");
        world.until("side 1 has nothing to wait for", |w| !w.sides[1].transport.drain(id));
        world.remove(1, 0);
        let ours = world.id(0, 1);
        let buf = world.sides[0].transport.take(ours, 8, true).expect("a buffer");
        assert!(!world.sides[0].transport.send(ours, 1, buf, 8), "{layout}: the peer has left");
        world.send(0, 2, 100);
        world.until("the other one gets its message", |w| w.model.missing(0, 2) == 0);
        assert_eq!(world.sides[0].transport.stats.rerouted, 0, "{layout}: {}", world.books());
        world.no_failures();
        world.close();
    }
}

/// All processes of the world are on one node, to which one send queue pair leads.
#[test]
fn processes_that_leave_a_node_do_not_break_the_send_queue_pair_to_it() {
    for seed in 0..10 {
        let mut world = World::new("leave the node", XRC, 5);
        for round in 0..4 {
            (1..5).for_each(|to| (0..=round).for_each(|_| world.send(0, to, 8 + seed)));
            world.step();
        }
        world.drain();
        for left in 2..5 {
            (0..20).for_each(|_| world.send(0, 1, 1000));
            world.send(0, left, 8);
            let (ours, theirs) = (world.id(0, left), world.id(left, 0));
            world.until("one has left", |w| {
                w.send(0, 1, 8);
                let away = [w.sides[left].transport.drain(theirs), w.sides[0].transport.drain(ours)];
                away == [false; 2] && w.model.missing(0, left) == 0
            });
            world.remove(left, 0);
            world.remove(0, left);
        }
        world.drain();
        assert_eq!(world.sides[0].transport.stats.rerouted, 0, "{}", world.books());
        world.close();
    }
}
