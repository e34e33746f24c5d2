//! Messages to shared queues that the device refuses to post: their endpoint fails, and other
//! endpoints get the send slots that they had taken. Time is virtual. A plan of faults is the whole
//! process', so the tests run one after the other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::watchdog::Watchdog;
use btl_testing::{World, config};
use mca_btl_oxib::transport::config::Config;
use softib::faults::{self, EventFault};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One send slot for each of the queues; four, of which a peer may have two.
const S_1: &str = "S,128,16,12,1:S,20000,16,12,1";
const S_4: &str = "S,128,16,12,4:S,20000,16,12,4";
const X_1: &str = "X,128,16,12,1:X,20000,16,12,1";
const X_4: &str = "X,128,16,12,4:X,20000,16,12,4";

/// Devices that are opened under it have a `post_send` that can be refused.
const NONE_YET: &str = "fail=post_send:1000000:ENOMEM";
const THE_NEXT: &str = "fail=post_send:1:ENOMEM";

struct Trial {
    world: World,
    _watchdog: Watchdog,
    _turn: MutexGuard<'static, ()>,
}

fn plan(plan: &str) {
    faults::set(plan.parse().unwrap());
}

/// Three processes that know each other, and are not connected.
fn trial(layout: &str, gathers: bool) -> Trial {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    plan(NONE_YET);
    let mut settings = Config { gathers, reconnects: 8, ..config(layout) };
    settings.cpc.exclude = vec!["rdmacm".to_owned()];
    let mut world = World::simulated(1, vec![settings; 3]);
    for (from, to) in (0..3).flat_map(|from| (0..3).map(move |to| (from, to))) {
        if from != to {
            world.add(from, to);
        }
    }
    Trial { world, _watchdog: Watchdog::new("refused sends", Duration::from_secs(60)), _turn: turn }
}

/// Side 0 is connected to both others.
fn connected(layout: &str, gathers: bool) -> Trial {
    let mut trial = trial(layout, gathers);
    for to in [1, 2] {
        trial.world.send(0, to, 8);
        trial.world.drain();
    }
    trial
}

/// The device refuses the first request that `what` posts.
fn refusing(world: &mut World, what: impl FnOnce(&mut World)) {
    plan(THE_NEXT);
    what(world);
    plan(NONE_YET);
}

/// The `number`-th connected queue pair goes to the error state.
fn break_queue_pair(number: u64) {
    faults::raise(EventFault::named("qp-fatal", number).unwrap()).unwrap();
}

/// The others look around, and side 0 does until its device has refused a request, and that has failed an endpoint.
fn refuse_what_it_posts_next(world: &mut World) {
    for _ in 0..1000 {
        world.step_of(&[1, 2]);
        refusing(world, |world| world.poll(0));
        if !world.sides[0].failed.is_empty() {
            return;
        }
    }
    panic!("no send was refused; {}", world.books());
}

/// The endpoint for side 2 has failed; every send slot is there for messages to side 1.
fn all_slots_come_back(trial: Trial) {
    let Trial { mut world, _watchdog, _turn } = trial;
    world.until("the endpoint fails", |w| !w.sides[0].failed.is_empty());
    let (peer, why) = &world.sides[0].failed[0];
    assert!(*peer == 2 && why.contains("post of"), "{peer}: {why}");
    for len in [8, 5000, 8, 5000] {
        world.send(0, 1, len);
    }
    world.until("the messages to the other peer arrive", |w| w.model.missing(0, 1) == 0);
    world.until("every send slot is there again", |w| {
        w.complete();
        let queues = w.sides[0].transport.audit().queues;
        let slots = |queue: usize| w.layout.queues()[queue].srq().map(|srq| u32::from(srq.sd_max));
        queues.iter().enumerate().all(|(queue, books)| books.send_slots == slots(queue))
    });
    world.close();
}

#[test]
fn the_send_slot_of_a_message_that_is_refused_comes_back() {
    // Of S queues: inline; from the caller's pieces, with `gathers`; from a buffer.
    for (layout, len) in
        [X_1, S_1, S_4].into_iter().flat_map(|layout| [8, 200, 5000].map(|len| (layout, len)))
    {
        for gathers in [false, true] {
            println!("{layout}, {len} bytes, gathers {gathers}");
            let mut trial = connected(layout, gathers);
            refusing(&mut trial.world, |world| world.send(0, 2, len));
            all_slots_come_back(trial);
        }
    }
}

/// What waited for the connection goes with one call of the device, which refuses it.
#[test]
fn the_send_slots_of_messages_that_are_refused_together_come_back() {
    for layout in [X_1, X_4, S_1, S_4] {
        println!("{layout}");
        let mut trial = trial(layout, false);
        (0..4).for_each(|_| trial.world.send(0, 2, 5000));
        refuse_what_it_posts_next(&mut trial.world);
        all_slots_come_back(trial);
    }
}

/// Over X queues: `count` messages to side 2, which has no receive for them, have a send slot each
/// when the send queue pair breaks. They keep those until another route has come, over which the
/// first of them is refused.
fn refused_over_another_route(layout: &str, count: usize, waits: bool) {
    let mut trial = connected(layout, false);
    let world = &mut trial.world;
    let before = softib::stats().rnr;
    (0..=count).for_each(|_| world.send(0, 2, 5000));
    world.until_of(&[0, 1], "side 2 has no receive for it", |w| {
        let audit = w.sides[0].transport.audit();
        softib::stats().rnr != before && (audit.inflight, audit.pending) == (count, 0)
    });
    if waits {
        world.send(0, 1, 5000);
    }
    break_queue_pair(1);
    refuse_what_it_posts_next(world);
    world.until("the message that waited arrives", |w| w.model.missing(0, 1) == 0);
    world.until("the peer's endpoint fails", |w| !w.sides[2].failed.is_empty());
    assert_eq!(world.model.missing(0, 2), count, "{}", world.books());
    let why = &world.sides[2].failed[0].1;
    assert!(why.contains("its endpoint has failed"), "{why}");
    all_slots_come_back(trial);
}

/// Nothing else happens to side 0 that would serve the message that waits for the slot.
#[test]
fn the_send_slot_of_a_message_that_is_refused_over_another_route_goes_to_an_endpoint_that_waits_for_it() {
    refused_over_another_route("X,128,16,12,8:X,20000,1,0,1,1,1", 1, true);
}

/// The peer would find a message missing, and fail with that reason.
#[test]
fn nothing_is_sent_over_another_route_behind_a_message_that_is_refused() {
    refused_over_another_route("X,128,16,12,8:X,20000,1,0,4,1,1", 2, false);
}

/// It is the first message of the next connection: the messages that have come over the last one.
#[test]
fn the_send_slot_of_a_message_of_our_own_that_is_refused_comes_back() {
    for layout in [S_1, S_4] {
        let mut trial = connected(layout, false);
        // The queue pairs of the connection to side 1 are the first four.
        break_queue_pair(5);
        refuse_what_it_posts_next(&mut trial.world);
        let why = &trial.world.sides[0].failed[0].1;
        assert!(why.contains("post of what has come so far failed"), "{why}");
        all_slots_come_back(trial);
    }
}
