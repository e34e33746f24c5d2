//! Endpoints that end: removed in mid-traffic, made again, removed before they are up, or refused
//! from the start.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{World, config};
use mca_btl_oxib::protocol::layout::DEFAULT;
use mca_btl_oxib::transport::state::State;

const LAYOUTS: [&str; 5] = [
    DEFAULT,
    "P,128,4:P,2048,4:P,65536,4",
    "S,128,64,48,8:S,65536,16",
    "P,65536,1,0,1,2",
    "X,128,64,48,8:X,65536,16",
];

/// Both ends of a connection are removed and made again; what was under way is lost, and nothing
/// else.
fn renew(world: &mut World, a: usize, b: usize) {
    let old = (world.id(a, b), world.id(b, a));
    for (from, to) in [(a, b), (b, a)] {
        world.remove(from, to);
    }
    for (from, to) in [(a, b), (b, a)] {
        world.model.forget(from, to);
        world.sides[from].failed.retain(|(rank, _)| *rank != to);
    }
    let new = (world.add(a, b), world.add(b, a));
    assert!(old.0 != new.0 && old.1 != new.1, "an endpoint's name was used again");
}

fn exchange(world: &mut World, a: usize, b: usize, count: usize) {
    for i in 0..count {
        for (from, to) in [(a, b), (b, a)] {
            let len = [0, 100, 2000, 60_000][i % 4].min(world.layout.largest_payload());
            world.send(from, to, len);
        }
    }
}

fn buffers(world: &World) -> Vec<(u32, u32)> {
    let audits = world.sides.iter().map(|s| s.transport.audit());
    audits.flat_map(|a| a.queues.into_iter().map(|q| (q.send_buffers.0, q.recv_buffers.0))).collect()
}

/// The connection is up, on both sides.
fn connect(world: &mut World, a: usize, b: usize) {
    exchange(world, a, b, 1);
    world.until("the connection carries messages", |w| w.model.missing(a, b) + w.model.missing(b, a) == 0);
}

/// The model fails the test if a message of an old incarnation is delivered to a new one.
#[test]
fn a_peer_removed_in_mid_traffic_and_added_again_starts_afresh() {
    for layout in LAYOUTS {
        let mut world = World::new("renew", layout, 2);
        let mut made = Vec::new();
        for round in 0..12 {
            connect(&mut world, 0, 1);
            exchange(&mut world, 0, 1, 20);
            let steps = world.rng.below(30);
            for _ in 0..steps {
                world.step();
            }
            renew(&mut world, 0, 1);
            exchange(&mut world, 0, 1, 20);
            world.until("the new connection carries messages", |w| w.nothing_waits() && w.model.is_empty());
            world.balance();
            made.push(buffers(&world));
            assert!(world.sides.iter().all(|s| s.failed.is_empty()), "round {round}: {}", world.books());
        }
        assert!(made[11] == made[5] || layout.contains(['S', 'X']), "{layout}: buffers were lost: {made:?}");
        world.close();
    }
}

/// More sends than one look at the completion queue takes come back flushed, and those to others
/// with them.
#[test]
fn sends_in_flight_to_a_removed_peer_give_everything_back() {
    for layout in ["S,4096,2,1,40", "S,128,2,1,40:S,4096,2,1,40", "P,4096,40:S,65536,4,3,40", "X,4096,2,1,40"]
    {
        let mut world = World::new("flight", layout, 3);
        exchange(&mut world, 0, 1, 3);
        exchange(&mut world, 0, 2, 3);
        world.drain();
        for i in 0..80 {
            world.send(0, 1, [100, 4000][i % 2]);
            if i < 10 {
                world.send(0, 2, 100);
            }
        }
        world.remove(0, 1);
        world.until_of(&[0, 2], "the third one goes on", |w| w.nothing_waits() && w.model.missing(0, 2) == 0);
        let books = |w: &World| w.sides[0].transport.audit();
        world.until_of(&[0, 2], "everything comes back", |w| {
            w.complete();
            books(w).outstanding == 0
        });
        let audit = books(&world);
        assert_eq!(
            (audit.inflight, audit.pending, world.sides[0].transport.stats.stale),
            (0, 0, 0),
            "{audit:?}"
        );
        for (queue, layout) in audit.queues.iter().zip(world.layout.queues()) {
            assert_eq!(queue.send_buffers.0 as usize, queue.send_buffers.1, "{audit:?}");
            assert_eq!(queue.send_slots, layout.srq().map(|srq| srq.sd_max.into()), "{audit:?}");
            assert_eq!(queue.share_free, 1024, "{audit:?}");
        }
        world.close();
    }
}

#[test]
fn others_go_on_while_a_connection_is_renewed() {
    for layout in LAYOUTS {
        let mut world = World::new("renew beside", layout, 3);
        exchange(&mut world, 0, 2, 1);
        exchange(&mut world, 1, 2, 1);
        world.drain();
        for _ in 0..6 {
            connect(&mut world, 0, 1);
            for (a, b) in [(0, 1), (0, 2), (1, 2)] {
                exchange(&mut world, a, b, 12);
            }
            for _ in 0..world.rng.below(20) {
                world.step();
            }
            renew(&mut world, 0, 1);
        }
        world.until("all that was not cut off arrives", |w| w.nothing_waits() && w.model.is_empty());
        world.balance();
        world.close();
    }
}

/// Sends both ways, and all of it arrives.
fn carry(world: &mut World) {
    exchange(world, 0, 1, 4);
    world.until("messages arrive", |w| w.model.is_empty());
}

/// The same over X queues. A direction of theirs that has come up to an endpoint that is gone is
/// not made again by the transport: an end that was left is made again here, and the other one's
/// messages arrive there.
fn carry_over_xrc(world: &mut World) {
    exchange(world, 0, 1, 4);
    let (mut lost, mut renewed) = ([0; 2], 0);
    world.until("messages arrive", |w| {
        for (from, to) in [(0, 1), (1, 0)] {
            let id = w.id(from, to);
            let is_lost = w.model.missing(from, to) != 0 && !w.sides[from].transport.busy(id);
            lost[from] = if is_lost { lost[from] + 1 } else { 0 };
            // Not just under way, for nothing is in flight that long.
            if lost[from] > 2000 {
                w.remove(from, to);
                w.model.may_lose(from, to);
                w.add(from, to);
                w.send(from, to, 100);
                (lost[from], renewed) = (0, renewed + 1);
            }
        }
        assert!(renewed < 10, "no connection comes up: {}", w.books());
        w.model.is_empty()
    });
}

/// Removed at any moment of its coming up. The peer's new endpoint may take the last request of our
/// old one for the first of our new one, and be left again at once: then it is connected anew, and
/// what it has to say goes over the next connection.
#[test]
fn an_endpoint_removed_while_its_connection_comes_up_leaves_nothing() {
    for (layout, carry) in [
        (DEFAULT, carry as fn(&mut World)),
        ("S,65536,16", carry as fn(&mut World)),
        ("X,65536,16", carry_over_xrc as fn(&mut World)),
    ] {
        let mut world = World::new("young", layout, 2);
        for round in 0..60 {
            world.send(0, 1, 100);
            if round % 3 == 1 {
                world.send(1, 0, 100);
            }
            for _ in 0..round {
                world.step();
            }
            renew(&mut world, 0, 1);
            if round % 5 == 0 && !layout.starts_with('X') {
                carry(&mut world);
            }
        }
        carry(&mut world);
        carry(&mut world);
        world.balance();
        let failed = world.sides.iter().any(|s| !s.failed.is_empty());
        assert!(!failed || layout.starts_with('X'), "{}", world.books());
        world.close();
    }
}

#[test]
fn a_message_to_an_endpoint_that_is_gone_is_given_up_and_its_buffer_kept() {
    let mut world = World::new("gone", DEFAULT, 2);
    exchange(&mut world, 0, 1, 4);
    world.drain();
    let (transport, id) = (0, world.id(0, 1));
    let buf = world.sides[transport].transport.take(id, 100, true).unwrap();
    world.remove(0, 1);
    let transport = &mut world.sides[transport].transport;
    assert!(!transport.send(id, 1, buf, 100));
    assert!(!transport.sendi(id, 1, [&[0; 8], &[]]));
    assert!(!transport.busy(id) && transport.ids().is_empty());
    let audit = transport.audit();
    assert!(audit.queues.iter().all(|q| q.send_buffers.0 as usize == q.send_buffers.1), "{audit:?}");
    world.close();
}

fn state(world: &World, side: usize) -> State {
    world.sides[side].transport.timelines()[0].state
}

#[test]
fn an_endpoint_drains_until_all_is_out_and_what_is_sent_meanwhile_arrives() {
    for layout in LAYOUTS {
        let mut world = World::new("drains", layout, 2);
        connect(&mut world, 0, 1);
        connect(&mut world, 0, 1);
        let id = world.id(0, 1);
        for _ in 0..2 {
            world.send(0, 1, 2000.min(world.layout.largest_payload()));
            assert!(world.sides[0].transport.drain(id));
            assert_eq!(state(&world, 0), State::Draining);
            world.until("all is out", |w| !w.sides[0].transport.drain(id));
            assert_eq!(state(&world, 0), State::Drained);
        }
        world.until("all has arrived", |w| w.model.missing(0, 1) == 0);
        world.no_failures();
        world.close();
    }
}

/// Two sides that skipped the comparison in the modex, or whose modex is of a former incarnation of
/// the other: both report, and neither waits. The side that asked has been told the other's queues;
/// the other one as much of them as a request has room for.
fn mismatch(test: &str, ours: &str, theirs: &str) {
    let mut world = World::strangers(test, vec![config(ours), config(theirs), config(ours)]);
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0)] {
        world.add(from, to);
    }
    world.send(0, 1, 30);
    world.send(0, 2, 30);
    world.until("both ends fail", |w| w.sides[..2].iter().all(|side| !side.failed.is_empty()));
    let full = |side: usize| world.sides[side].transport.layout().to_string();
    for (side, peer, of_theirs) in [(0, 1, full(1)), (1, 0, full(0).chars().take(28).collect())] {
        let [(rank, reason)] = &world.sides[side].failed[..] else {
            panic!("{:?}", world.sides[side].failed)
        };
        let says = |what: &str| assert!(reason.contains(what), "{test}: {reason} does not say {what}");
        assert_eq!(*rank, peer);
        says(&format!("its queues are {of_theirs}"));
        says(&format!("ours are {}; receive_queues must be the same", full(side)));
    }
    world.until("the other one goes on", |w| w.model.missing(0, 2) == 0);
    assert_ne!(world.model.missing(0, 1), 0, "a message crossed two layouts");
    world.close();
}

#[test]
fn a_peer_with_another_layout_is_refused_and_both_sides_name_both() {
    mismatch("sizes", "P,128,8:P,4096,8", "P,128,8:P,8192,8");
    mismatch("windows", "P,4096,8", "P,4096,16");
    mismatch("tails", "P,128,8:S,4096,8", "P,128,8:S,4096,16");
}

/// Without a per-peer queue there is no clear-to-send to notice it.
#[test]
fn a_peer_with_other_shared_queues_is_refused_and_both_sides_name_both() {
    mismatch("shared sizes", "S,4096,16", "S,8192,16");
    mismatch("shared depths", "S,128,16:S,4096,16", "S,128,16:S,4096,32");
}

#[test]
fn a_peer_with_more_or_fewer_queues_is_refused() {
    mismatch("more", "P,128,8", "P,128,8:P,4096,8");
    mismatch("fewer", "P,128,8:P,4096,8", "P,128,8");
}

#[test]
fn a_peer_with_another_kind_of_queue_is_refused() {
    mismatch("kinds", "P,4096,8", "S,4096,8");
    mismatch("kinds", "S,4096,8", "P,4096,8");
}

/// Both connections come up, and the first one goes, while the receiver does not look.
#[test]
fn what_the_connection_manager_says_late_of_a_former_endpoint_leaves_the_new_one_its_buffer() {
    for layout in [DEFAULT, "P,128,4:P,2048,4:P,65536,4"] {
        let mut world = World::new("late", layout, 2);
        let queue = world.layout.smallest_p().unwrap();
        let is_up = |w: &World| w.sides[0].transport.audit().queues[queue].recv_slots.0 != 0;
        world.send(0, 1, 100);
        world.until_of(&[0], "the request is answered", |w| is_up(w));
        world.remove(1, 0);
        world.add(1, 0);
        world.until_of(&[0], "another is answered", |w| w.sides[0].transport.stats.renewed == 1 && is_up(w));
        world.until("the message arrives", |w| w.model.is_empty());
        assert!(world.sides.iter().all(|s| s.failed.is_empty()), "{layout}: {}", world.books());
        world.balance();
        world.close();
    }
}

/// Its last messages lie in the completion queue when its queue pair goes: their receives are posted again.
#[test]
fn receives_of_a_shared_queue_come_back_from_an_endpoint_that_is_removed_with_messages_unread() {
    for layout in ["S,4096,16,12,8", "P,128,64,48,16:S,4096,16,12,8", "X,4096,16,12,8"] {
        let mut config = config(layout);
        config.signalling.most = 0;
        let mut world = World::with("unread", config, 2);
        for round in 0..12 {
            connect(&mut world, 0, 1);
            world.until("all is settled", |w| {
                w.sides.iter().all(|side| side.transport.audit().outstanding == 0)
            });
            (0..5).for_each(|_| world.send(1, 0, 1000));
            for _ in 0..20 {
                world.step_of(&[1]);
            }
            assert_eq!(world.model.missing(1, 0), 5, "{layout}, round {round}: they are unread");
            renew(&mut world, 0, 1);
        }
        exchange(&mut world, 0, 1, 40);
        world.until("the queue still has its receives", |w| w.nothing_waits() && w.model.is_empty());
        world.close();
    }
}
