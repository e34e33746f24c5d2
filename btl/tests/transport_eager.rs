//! Eager RDMA: short messages that are written into their receiver's ring come in order with those that are not, whatever is full; rings come and
//! go.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use btl_testing::{World, config};
use mca_btl_oxib::protocol::eager::{LONGEST, LONGEST_CHECKED};
use mca_btl_oxib::transport::Glance;
use mca_btl_oxib::transport::config::{Config, Eager};
use mca_btl_oxib::transport::stats::Stats;
use std::sync::{Mutex, MutexGuard, PoisonError};

const LAYOUT: &str = "P,160,64,48,16,8:P,4096,16,12,4,4:S,65536,64,48,16";

/// Rings of so many slots for peers that have sent so many messages, so many of them at most.
fn rings(slots: u16, threshold: u32, most: u16) -> Eager {
    Eager { slots, threshold, most, cooling: 256, checks: false }
}

/// The same, once without and once with checksums.
fn with_checksums_and_without(rings: Eager) -> [Eager; 2] {
    [false, true].map(|checks| Eager { checks, ..rings })
}

/// The tests of this file take turns: they count looks, and the software device has one ring for what a process sends to itself, in which a long message of
/// another test's, whose thread does not run, is in the way for 64 looks.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn world(test: &str, eager: Eager, sides: usize) -> World {
    World::with(test, Config { eager: Some(eager), ..config(LAYOUT) }, sides)
}

/// Sends messages of `len` bytes each way, and looks around until they have arrived.
fn exchange(world: &mut World, (a, b): (usize, usize), count: usize, len: usize) {
    for _ in 0..count {
        world.send(a, b, len);
        world.send(b, a, len);
        look(world, 20);
    }
    world.until("they arrive", |w| w.nothing_waits() && w.model.is_empty());
}

/// All sides look around so many times.
fn look(world: &mut World, times: usize) {
    let sides = world.sides.len();
    (0..times).flat_map(|_| 0..sides).for_each(|side| world.poll(side));
}

/// Both sides have rings, and use them.
fn open_rings(world: &mut World, (a, b): (usize, usize)) {
    let eager = |world: &World| [a, b].map(|side| stats(world, side).sent_eager);
    let before = eager(world);
    for _ in 0..10_000 {
        exchange(world, (a, b), 4, 30);
        if eager(world).into_iter().zip(before).all(|(now, before)| now > before) {
            return;
        }
    }
    panic!("sides {a} and {b} write into no rings: {}", stats(world, a));
}

fn stats(world: &World, side: usize) -> Stats {
    world.sides[side].transport.stats
}

#[test]
fn short_messages_to_a_peer_that_sends_some_go_into_its_ring() {
    let _turn = turn();
    let mut world = world("rings", rings(256, 4, 2), 2);
    open_rings(&mut world, (0, 1));
    for side in [0, 1] {
        assert_eq!((stats(&world, side).rings, stats(&world, side).rings_closed), (1, 0));
    }
    let before = stats(&world, 0);
    let lens = (0..700).chain((700..LONGEST).step_by(61)).chain(LONGEST - 70..=LONGEST);
    let mut sent = 0;
    for len in lens.chain(LONGEST + 1..LONGEST + 40) {
        exchange(&mut world, (0, 1), 2, len);
        sent += if len <= LONGEST { 2 } else { 0 };
    }
    let after = stats(&world, 0);
    assert_eq!(after.sent_eager - before.sent_eager, sent, "{after}");
    world.drain();
    world.close();
}

/// The device's own way writes no checksums: messages with them are posted as WRITEs, inline.
#[test]
fn messages_with_checksums_have_one_slot_and_longer_ones_go_by_send() {
    let _turn = turn();
    for checks in [[true, true], [true, false], [false, true]] {
        let of = |checks| Config { eager: Some(Eager { checks, ..rings(256, 4, 2) }), ..config(LAYOUT) };
        let mut world = World::strangers("checksums", checks.map(of).to_vec());
        world.add(0, 1);
        world.add(1, 0);
        open_rings(&mut world, (0, 1));
        let lens = LONGEST_CHECKED - 40..LONGEST_CHECKED + 40;
        let before = [0, 1].map(|side| stats(&world, side).sent_eager);
        lens.clone().for_each(|len| exchange(&mut world, (0, 1), 4, len));
        for (side, peer_checks) in [(0, checks[1]), (1, checks[0])] {
            let sent = stats(&world, side).sent_eager - before[side];
            assert!(sent == 4 * 41 || sent > 4 * 41 && !peer_checks, "{checks:?}, side {side}: {sent}");
        }
        world.drain();
        world.close();
    }
}

/// Side 0 looks around until glances follow.
fn until_glances(world: &mut World) {
    for _ in 0..1000 {
        look(world, 1);
        if world.sides[0].glance() == Glance::Nothing {
            return;
        }
    }
    panic!("no glance follows a look that has found nothing: {}", world.books());
}

#[test]
fn a_glance_finds_what_lands_and_leaves_all_else_to_a_look() {
    let _turn = turn();
    let mut world = world("glances", rings(256, 4, 2), 2);
    open_rings(&mut world, (0, 1));
    for (len, found) in [
        (0, Glance::Landed),
        (30, Glance::Landed),
        (110, Glance::Landed),
        (120, Glance::Landed),
        (30_000, Glance::Unclear),
    ] {
        exchange(&mut world, (1, 0), 8, len.min(120));
        until_glances(&mut world);
        world.send(1, 0, len);
        let glances = (0..8).map(|_| world.sides[0].glance()).find(|glance| *glance != Glance::Nothing);
        assert_eq!(glances, Some(found), "{len} bytes: {}", world.books());
        world.drain();
    }
    // One in four where the last message was longer than what is waited for with each look.
    exchange(&mut world, (1, 0), 8, 1000);
    until_glances(&mut world);
    world.send(1, 0, 1000);
    assert!((0..4).any(|_| world.sides[0].glance() == Glance::Landed), "{}", world.books());
    world.drain();
    // Our own signalled request: its completion is a look's.
    until_glances(&mut world);
    world.send(0, 1, 30_000);
    world.complete();
    assert_eq!(world.sides[0].glance(), Glance::Unclear);
    world.drain();
    world.close();
}

/// A program that answers each message looks around behind each send.
#[test]
fn behind_a_call_a_glance_does_where_nothing_is_due() {
    let _turn = turn();
    let mut world = world("glances anew", rings(256, 4, 2), 2);
    assert_eq!(world.sides[0].glance_anew(), Glance::Unclear, "there are no rings");
    open_rings(&mut world, (0, 1));
    exchange(&mut world, (0, 1), 8, 30);
    for _ in 0..300 {
        world.send(0, 1, 30);
        if world.sides[0].glance_anew() == Glance::Nothing && world.sides[0].may_glance() {
            world.send(1, 0, 30);
            assert_eq!(world.sides[0].glance(), Glance::Landed, "{}", world.books());
        }
        world.drain();
        world.send(1, 0, 30);
        world.send(0, 1, 30);
        assert_ne!(world.sides[0].glance_anew(), Glance::Nothing, "it has landed: {}", world.books());
        world.drain();
    }
    // Each counts as a look, and one look of 256 has more to do.
    let anew = (0..300).take_while(|_| world.sides[0].glance_anew() == Glance::Nothing);
    assert!((1..256).contains(&anew.count()), "{}", world.books());
    world.drain();
    world.send(0, 1, 30_000);
    world.complete();
    assert_eq!(world.sides[0].glance_anew(), Glance::Unclear, "a completion is awaited");
    world.drain();
    world.close();
}

#[test]
fn glances_look_at_every_hot_ring() {
    let _turn = turn();
    let mut world = world("glances at several", rings(256, 4, 2), 3);
    open_rings(&mut world, (0, 1));
    open_rings(&mut world, (0, 2));
    let mut found = [0; 3];
    for from in [1, 2, 2, 1, 1, 2] {
        until_glances(&mut world);
        world.send(from, 0, 30);
        match world.sides[0].glance() {
            Glance::Landed => found[from] += 1,
            // A look is due now and then.
            Glance::Unclear => {}
            Glance::Nothing => panic!("from {from}: {}", world.books()),
        }
        world.drain();
        exchange(&mut world, (0, 1), 2, 8);
        exchange(&mut world, (0, 2), 2, 8);
    }
    assert!(found[1] > 0 && found[2] > 0, "{found:?}: {}", world.books());
    world.close();
}

#[test]
fn glances_end_when_something_is_due() {
    let _turn = turn();
    let mut world = world("glances end", rings(256, 4, 2), 2);
    open_rings(&mut world, (0, 1));
    until_glances(&mut world);
    let glances = (0..1000).take_while(|_| world.sides[0].glance() == Glance::Nothing).count();
    assert!((1..256).contains(&glances), "{glances} glances in a row");
    world.drain();
    world.close();
}

#[test]
fn before_the_threshold_and_where_they_are_off_there_are_no_rings() {
    let _turn = turn();
    for eager in [None, Some(rings(16, 1000, 2)), Some(rings(16, 1, 0))] {
        let mut world = World::with("no_rings", Config { eager, ..config(LAYOUT) }, 2);
        exchange(&mut world, (0, 1), 40, 30);
        assert_eq!((stats(&world, 0).rings, stats(&world, 1).sent_eager), (0, 0));
        world.drain();
        world.close();
    }
    // Over shared queues and X queues there are none, nor where connections are replaced.
    for (layout, reconnects) in [("S,65536,64,48,16", 0), ("X,65536,64,48,16", 0), (LAYOUT, 8)] {
        let eager = Some(rings(16, 1, 4));
        let mut world = World::with("no_rings", Config { eager, reconnects, ..config(layout) }, 2);
        exchange(&mut world, (0, 1), 40, 30);
        assert_eq!(stats(&world, 0).rings, 0, "{layout}");
        world.drain();
        world.close();
    }
}

/// The receiver looks at nothing while more come than its ring holds, and its receives: what finds the ring full goes the other way, what finds that
/// full waits, and all come in order.
#[test]
fn messages_that_find_the_ring_full_come_in_their_order() {
    let _turn = turn();
    for rings in with_checksums_and_without(rings(4, 4, 2)) {
        let mut world = world("full", rings, 2);
        find_the_ring_full(&mut world);
        world.close();
    }
}

fn find_the_ring_full(world: &mut World) {
    open_rings(world, (0, 1));
    for round in 0..30 {
        let before = stats(world, 0);
        for message in 0..10 + round {
            world.send(0, 1, [8, 120, 121, 3000, 0][message % 5]);
        }
        (0..50).for_each(|_| world.poll(0));
        let sent = stats(world, 0).sent_eager - before.sent_eager;
        assert!(sent <= 4, "{sent} in a ring of 4 that nobody looks at");
        world.until("they arrive", |w| w.nothing_waits() && w.model.is_empty());
    }
    assert!(stats(world, 0).sent_eager > 60, "{}", stats(world, 0));
    world.drain();
}

#[test]
fn what_has_landed_when_its_sender_leaves_is_delivered() {
    let _turn = turn();
    for rings in with_checksums_and_without(rings(16, 4, 2)) {
        let mut world = world("leaves", rings, 2);
        open_rings(&mut world, (0, 1));
        let before = stats(&world, 0).sent_eager;
        (0..10).for_each(|_| world.send(0, 1, 8));
        assert_eq!(stats(&world, 0).sent_eager - before, 10);
        world.drain();
        world.close();
    }
}

/// There is one place for rings; the pairs that talk change.
#[test]
fn a_peer_that_sends_much_gets_the_place_of_one_that_does_not() {
    let _turn = turn();
    let mut world = world("places", rings(8, 4, 1), 3);
    let mut closed = 0;
    for round in 0..6 {
        let other = 1 + round % 2;
        open_rings(&mut world, (0, other));
        let now = stats(&world, 0).rings_closed + stats(&world, 3 - other).rings_closed;
        assert!(round == 0 || now > closed, "round {round}");
        closed = now;
    }
    world.drain();
    world.close();
}

/// There is one place for rings on each side, and who talks to whom changes; messages are on their way meanwhile, also between others.
#[test]
fn rings_come_and_go_while_messages_are_on_their_way() {
    let _turn = turn();
    for rings in with_checksums_and_without(rings(4, 1, 1)) {
        come_and_go(world("turns", rings, 4));
    }
}

fn come_and_go(mut world: World) {
    for pair in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
        exchange(&mut world, pair, 1, 8);
    }
    for round in 0..8000usize {
        let pairs = [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
            [(round / 700 + usize::from(round % 50 == 0)) % 3];
        for (from, to) in pairs.into_iter().flat_map(|(a, b)| [(a, b), (b, a)]) {
            world.send(from, to, 8 + (round + from) % 130);
        }
        look(&mut world, 3);
    }
    world.until("they arrive", |w| w.nothing_waits() && w.model.is_empty());
    let closed: Vec<u64> = (0..4).map(|side| stats(&world, side).rings_closed).collect();
    assert!(closed.iter().sum::<u64>() > 0, "{closed:?}");
    world.drain();
    world.close();
}

/// Messages may come as fast as they are taken: a look ends all the same.
#[test]
fn a_look_takes_so_many_out_of_rings_at_most() {
    let _turn = turn();
    let eager = Some(rings(256, 4, 2));
    let mut world = World::with("bounded", Config { eager, ..config("P,65536,1024,1000,512") }, 2);
    open_rings(&mut world, (0, 1));
    let sent = stats(&world, 0).sent_eager;
    (0..120).for_each(|_| world.send(0, 1, 8));
    assert_eq!(stats(&world, 0).sent_eager - sent, 120, "{}", stats(&world, 0));
    let mut left = 120;
    for _ in 0..20 {
        world.poll(1);
        let now = world.model.missing(0, 1);
        assert!(left - now <= 64, "{} messages with one look", left - now);
        left = now;
    }
    assert_eq!(left, 0);
    world.drain();
    world.close();
}

/// A process to which only completions come looks at its rings with one look of four: a message that lands is found by the fourth at the latest, and
/// before what has been sent behind it.
#[test]
fn a_ring_that_rests_is_looked_at_soon_and_before_what_comes_behind() {
    let _turn = turn();
    let eager = Some(rings(64, 4, 2));
    let mut world = World::with("resting", Config { eager, ..config("P,65536,256,250,128") }, 2);
    open_rings(&mut world, (0, 1));
    for behind in [false, true] {
        exchange(&mut world, (0, 1), 40, LONGEST + 100);
        let before = stats(&world, 0).sent_eager;
        world.send(0, 1, 8);
        assert_eq!(stats(&world, 0).sent_eager, before + 1, "{}", stats(&world, 0));
        if behind {
            world.send(0, 1, LONGEST + 100);
        }
        (0..4).for_each(|_| world.poll(1));
        assert_eq!(world.model.missing(0, 1), 0);
    }
    world.drain();
    world.close();
}

/// Messages of one slot and of several, in any order: where one has lain, no bytes of it are taken for the next one's end.
#[test]
fn bytes_of_a_long_message_are_no_message_of_the_next_lap() {
    let _turn = turn();
    let mut world = world("several", rings(256, 4, 2), 2);
    open_rings(&mut world, (0, 1));
    let before = stats(&world, 0).sent_eager;
    for round in 0..6000 {
        exchange(&mut world, (0, 1), 1, round * 7919 % (LONGEST + 1));
    }
    assert_eq!(stats(&world, 0).sent_eager - before, 6000, "{}", stats(&world, 0));
    world.drain();
    world.close();
}

/// The ring is filled again as soon as its receiver has told that all of it is free, before that has had time for anything.
#[test]
fn what_a_long_message_leaves_is_gone_before_its_peer_is_told() {
    let _turn = turn();
    let mut world = world("cleared", rings(64, 4, 2), 2);
    open_rings(&mut world, (0, 1));
    let before = stats(&world, 0).sent_eager;
    for round in 0..3000 {
        for burst in 0..2 {
            (0..10).for_each(|message| world.send(0, 1, (20 * round + 10 * burst + message) * 7919 % 1500));
            world.poll(1);
        }
        world.until("they arrive", |w| w.nothing_waits() && w.model.is_empty());
    }
    assert!(stats(&world, 0).sent_eager - before > 20_000, "{}", stats(&world, 0));
    world.drain();
    world.close();
}

/// Messages of several slots are of a shared queue until there are rings.
#[test]
fn a_peer_that_sends_many_over_a_shared_queue_gets_a_ring_if_they_fit() {
    let _turn = turn();
    let eager = Some(rings(512, 8, 2));
    for (len, has_rings) in [(LONGEST, true), (LONGEST + 1, false)] {
        let layout = "P,128,64,48,16,8:S,65536,64,48,16";
        let mut world = World::with("shared", Config { eager, ..config(layout) }, 2);
        // Those of the first exchange may all have waited for the connection.
        (0..2).for_each(|_| exchange(&mut world, (0, 1), 40, len));
        let now = stats(&world, 0);
        assert_eq!((now.rings == 1, now.sent_eager > 10), (has_rings, has_rings), "{len} bytes: {now}");
        world.drain();
        world.close();
    }
}
