//! Moments between what a connection helper has done and what the main thread has looked at, set up step by step in virtual time. Seeds of
//! the simulation have found them; each test is one cause (docs/bugs/README.md).
//!
//! `helpers` gives the helpers turns while no main thread looks around, `poll` lets one main thread look around while no time passes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::memory::Memory;
use btl_testing::watchdog::Watchdog;
use btl_testing::{World, config, seed_managers};
use mca_btl_oxib::transport::config::{Config, Signalling};
use softib::faults::{self, EventFault};
use std::time::Duration;
use verbs::{RKey, RdmaOp};

const P: &str = "P,128,64,48,32,4:P,8192,16,8,4";
const S: &str = "S,128,16,12,8:S,20000,16,12,8";
const X: &str = "X,128,16,12,8:X,20000,16,12,8";

/// Settings with which every request has a completion of its own.
fn settings(layout: &str) -> Config {
    let signalling = Signalling { most: 0, most_bytes: 0 };
    let mut config = Config { reconnects: 8, signalling, ..config(layout) };
    config.cpc.exclude = vec!["rdmacm".to_owned()];
    config
}

/// Processes that know each other, and are not connected.
fn world_of(layout: &str, count: usize) -> (World, Watchdog) {
    world_with(settings(layout), count)
}

fn world_with(settings: Config, count: usize) -> (World, Watchdog) {
    let watchdog = Watchdog::new("a moment", Duration::from_secs(60));
    let mut world = World::simulated(1, vec![settings; count]);
    for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
        if from != to {
            world.add(from, to);
        }
    }
    (world, watchdog)
}

/// Two of them.
fn world(layout: &str) -> (World, Watchdog) {
    world_of(layout, 2)
}

/// The `number`-th connected queue pair goes to the error state, and the helper of its process has heard of that.
fn break_queue_pair(world: &mut World, number: u64) {
    faults::raise(EventFault::named("qp-fatal", number).unwrap()).unwrap();
    world.step_of(&[]);
}

/// Side 2 is gone without a word. What goes to it, or comes from it, may be lost.
fn kill_side_2(world: &mut World) {
    let mut config = settings(&world.layout.to_string());
    seed_managers(&mut config, 2, 2);
    assert!(world.kill(2, config));
    for other in [0, 1] {
        world.model.unsure.insert((other, 2));
        world.model.may_lose(other, 2);
        world.model.may_lose(2, other);
    }
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

/// The helper that brings a connection up may wait for the processor on which its rank looks around.
#[test]
fn looks_give_way_while_a_connection_comes_up_and_not_for_ever() {
    let (mut world, _watchdog) = world(P);
    let gives_way = |world: &World| world.sides[0].transport.has_begun();
    world.poll(0);
    assert!(!gives_way(&world), "nobody has sent");
    world.send(0, 1, 8);
    for looks in [1, 100, 3000] {
        (0..looks).for_each(|_| world.poll(0));
        assert!(gives_way(&world), "{looks} looks, and the helpers have had no turn");
    }
    (0..4000).for_each(|_| world.poll(0));
    assert!(!gives_way(&world), "the peer may not be there");
    world.drain();
    world.poll(0);
    assert!(!gives_way(&world), "it is up");
}

/// Tests name queue pairs by their place at the device of the process: one that is still open gives them other places.
#[test]
fn a_test_that_fails_leaves_no_device_open_to_the_next_one() {
    for layout in [P, S, X] {
        let failed = std::panic::catch_unwind(|| {
            let (mut world, _watchdog) = world(layout);
            world.send(0, 1, 8);
            world.send(0, 1, 5000);
            helpers(&mut world);
            world.poll(0);
            std::panic::resume_unwind(Box::new("as an assertion does, without its words"));
        });
        assert!(failed.is_err());
        // No other test has a world now.
        let _turn = timing::Simulation::begin();
        let none = faults::raise(EventFault::named("qp-fatal", 0).unwrap());
        assert_eq!(none.map_err(|error| error.0), Err(libc::ENODEV), "{layout}: the device is open");
    }
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

/// Shared queues take messages as soon as the helper has accepted the connection.
#[test]
fn a_side_that_leaves_takes_up_what_a_connection_has_brought_that_it_has_not_heard_of() {
    for (layout, reconnects) in [(S, 8), (X, 0), (X, 8)] {
        let (mut world, _watchdog) = world_with(Config { reconnects, ..settings(layout) }, 2);
        world.send(0, 1, 8);
        world.send(0, 1, 5000);
        helpers(&mut world);
        (0..4).for_each(|_| world.poll(0));
        world.leave(1, 0);
        assert_eq!(world.model.missing(0, 1), 0, "{layout}: {}", world.books());
        world.add(1, 0);
        world.send(1, 0, 8);
        all_arrives(&mut world);
        world.close();
    }
}

/// X queues: the peer has asked for a connection, and the request has come as far as the helpers get in so many turns: with 20 it is answered, and
/// the peer sends when it looks next.
#[test]
fn a_side_that_leaves_ends_a_connection_over_x_queues_that_its_peer_has_asked_for() {
    for turns in [0, 1, 2, 3, 20] {
        let (mut world, _watchdog) = world(X);
        world.send(0, 1, 8);
        world.send(0, 1, 5000);
        (0..turns).for_each(|_| world.step_of(&[]));
        let id = world.id(1, 0);
        world.until_of(&[1], "it may leave", |w| {
            let waits = w.sides[1].transport.drain(id);
            (0..4).for_each(|_| w.poll(0));
            !waits
        });
        (0..4).for_each(|_| world.poll(0));
        world.remove(1, 0);
        helpers(&mut world);
        world.poll(0);
        assert!(world.sides[0].failed.is_empty(), "{turns} turns: {:?}", world.sides[0].failed);
        world.add(1, 0);
        all_arrives(&mut world);
        world.close();
    }
}

/// X queues: nothing but operations has passed, which the other side does not hear of.
#[test]
fn a_side_that_leaves_tells_a_peer_that_has_only_put_something() {
    let (mut world, _watchdog) = world(X);
    let [near, far] = [0, 1].map(|side| Memory::new(&world.sides[side].transport, vec![side as u8; 64]));
    let id = world.id(0, 1);
    world.sides[0].transport.rdma(id, RdmaOp::Write, near.local(0, 64), far.remote(0), 7).unwrap();
    world.until("the operation is over", |w| !w.sides[0].rdma.is_empty());
    world.leave(1, 0);
    let ends = [0, 1].map(|side| world.sides[side].transport.stats.ends);
    assert_eq!(
        (ends, &world.sides[0].rdma[..]),
        ([1, 1], &[(7, true)][..]),
        "an end and its acknowledgement"
    );
    all_arrives(&mut world);
    drop((near, far));
    world.close();
}

/// X queues: the send queue pair to a node breaks with a message to side 2, when all has gone over it to side 1. The next one is on its way, and
/// nothing waits for it at side 1's endpoint.
#[test]
fn a_side_that_looks_for_another_route_leaves_with_a_word() {
    let (mut world, _watchdog) = world_of(X, 3);
    for to in [1, 2] {
        world.send(0, to, 8);
        world.drain();
    }
    faults::raise(EventFault::named("qp-fatal", 1).unwrap()).unwrap();
    world.send(0, 2, 8);
    for _ in 0..8 {
        world.poll(0);
    }
    assert_eq!(world.sides[0].transport.stats.rerouted, 2, "{}", world.books());
    world.leave(0, 1);
    (0..10).for_each(|_| world.step_of(&[1]));
    assert!(world.sides[1].failed.is_empty(), "{:?}", world.sides[1].failed);
    all_arrives(&mut world);
    world.close();
}

/// The peer goes on with its stream over the next connection: a side that is not there then has begun anew in the middle of it.
#[test]
fn a_side_leaves_over_the_connection_that_takes_the_place_of_one_that_broke() {
    for (layout, looks) in [P, S].into_iter().flat_map(|layout| (0..4).map(move |looks| (layout, looks))) {
        let (mut world, _watchdog) = world(layout);
        world.send(0, 1, 8);
        world.drain();
        break_queue_pair(&mut world, 1);
        world.poll(0);
        assert_eq!(world.sides[0].transport.stats.reconnects, 1, "{layout}");
        (0..looks).for_each(|_| world.poll(0));
        world.leave(0, 1);
        world.add(0, 1);
        world.send(1, 0, 8);
        all_arrives(&mut world);
        world.close();
    }
}

/// The peer has heard all that it was sent, and its CTS and messages wait to be looked at.
#[test]
fn a_side_that_has_sent_its_cts_leaves_when_the_peer_has_said_that_all_has_come() {
    let (mut world, _watchdog) = world(P);
    world.send(0, 1, 8);
    helpers(&mut world);
    (0..2).for_each(|_| world.poll(1));
    (0..4).for_each(|_| world.poll(0));
    world.leave(1, 0);
    assert_eq!(world.model.missing(0, 1), 0, "{}", world.books());
    world.add(1, 0);
    world.send(1, 0, 8);
    all_arrives(&mut world);
    world.close();
}

/// The same of a peer that had left and is back, while the CTS, which is not signalled, has no completion. Of a peer that has left before a
/// connection was up there is nothing to wait for; of one that is part of another connection there is.
#[test]
fn a_side_that_has_sent_its_cts_to_a_peer_that_is_back_waits_for_what_that_has_sent() {
    let signalling = Signalling { most: 16, most_bytes: 4096 };
    let (mut world, _watchdog) = world_with(Config { signalling, ..settings(P) }, 2);
    world.send(0, 1, 8);
    helpers(&mut world);
    world.remove(0, 1);
    world.model.forget(0, 1);
    (0..4).for_each(|_| world.step_of(&[1]));
    world.add(0, 1);
    world.send(0, 1, 8);
    helpers(&mut world);
    (0..2).for_each(|_| world.poll(1));
    (0..4).for_each(|_| world.poll(0));
    world.leave(1, 0);
    assert_eq!(world.model.missing(0, 1), 0, "{}", world.books());
    world.close();
}

/// An endpoint that was about to go is used again, by its own side or by its peer, whichever stage its leave has reached.
#[test]
fn an_endpoint_that_was_to_be_taken_down_can_be_used_by_either_side() {
    let moments = [(0, 0), (0, 1), (20, 0), (20, 1)];
    for (layout, (turns, from)) in [S, X].into_iter().flat_map(|layout| moments.map(|at| (layout, at))) {
        let (mut world, _watchdog) = world(layout);
        let id = world.id(1, 0);
        assert!(world.sides[1].transport.drain(id), "the connection manager has not answered");
        (0..turns).for_each(|_| world.step_of(&[]));
        world.poll(1);
        assert_eq!(world.sides[1].transport.drain(id), turns == 0);
        world.send(from, 1 - from, 8);
        all_arrives(&mut world);
        world.leave(1, 0);
        world.close();
    }
}

/// Side 0 has answered a request for a connection over shared queues that side 1 has given up before it was up. Whether side 1 has another endpoint,
/// side 0 does not know: a connection that it asks for now is tentative. Side 2 is connected to side 0.
fn world_whose_side_1_has_left_before_it_was_connected(layout: &str, reconnects: u8) -> (World, Watchdog) {
    let (mut world, watchdog) = world_with(Config { reconnects, ..settings(layout) }, 3);
    world.send(2, 0, 8);
    world.drain();
    world.send(1, 0, 8);
    // Over X queues it leaves when it has the answer; before that its request is gone with the endpoint, and side 0 hears nothing.
    (0..if layout == X { 20 } else { 1 }).for_each(|_| world.step_of(&[]));
    world.remove(1, 0);
    world.model.forget(1, 0);
    (0..10).for_each(|_| world.step_of(&[0]));
    assert_eq!(world.sides[0].transport.stats.renewed, 1, "{}", world.books());
    (world, watchdog)
}

/// Side 1 is back, and looks when the helpers have had so many turns: with 20 the connection is up on both sides, as far as they are concerned.
/// Side 0, which does not look before, leaves with a word; a request that has no answer it withdraws.
#[test]
fn a_side_that_leaves_ends_a_tentative_connection_that_its_peer_has_answered_with_a_word() {
    let moments = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 20), (8, 20)];
    for (layout, (reconnects, turns)) in [S, X].into_iter().flat_map(|layout| moments.map(|at| (layout, at)))
    {
        let (mut world, _watchdog) = world_whose_side_1_has_left_before_it_was_connected(layout, reconnects);
        world.add(1, 0);
        world.send(0, 1, 8);
        world.send(0, 1, 5000);
        (0..turns).for_each(|_| world.step_of(&[]));
        world.poll(1);
        // Over X queues side 1 has nothing of its own to connect.
        let is_up = turns == 20 || world.sides[1].transport.stats.connected == 1;
        world.leave(0, 1);
        (0..10).for_each(|_| world.step_of(&[1]));
        assert!(world.sides[1].failed.is_empty(), "{turns} turns: {:?}", world.sides[1].failed);
        assert!(!is_up || world.model.missing(0, 1) == 0, "{turns} turns: {}", world.books());
        world.model.forget(0, 1);
        world.add(0, 1);
        world.send(1, 0, 8);
        all_arrives(&mut world);
        world.close();
    }
}

/// It waits for nothing but the word of its own helper. Should its endpoint be used again, by either side, it serves, and what has waited arrives.
#[test]
fn a_side_that_leaves_does_not_wait_for_a_tentative_connection_that_its_peer_has_not_answered() {
    let moments = [(0, 0), (0, 1), (20, 0), (20, 1)];
    for (layout, (turns, from)) in [S, X].into_iter().flat_map(|layout| moments.map(|at| (layout, at))) {
        let (mut world, _watchdog) = world_whose_side_1_has_left_before_it_was_connected(layout, 0);
        world.send(0, 1, 8);
        (0..turns).for_each(|_| world.step_of(&[]));
        let (id, begin) = (world.id(0, 1), timing::now());
        assert!(world.sides[0].transport.drain(id), "the connection manager has not answered");
        world.until_of(&[0], "it may leave", |w| !w.sides[0].transport.drain(id));
        assert!(timing::now() - begin < Duration::from_millis(100), "{:?}", timing::now() - begin);
        world.add(1, 0);
        world.send(from, 1 - from, 8);
        all_arrives(&mut world);
        world.leave(0, 1);
        world.close();
    }
}

/// Side 1 is back, and leaves again without having looked, each side after so many turns. Neither waits for the other, whatever has come of the
/// request of side 0 by then; and a side that has left answers no request.
#[test]
fn a_side_that_leaves_does_not_wait_for_a_peer_that_has_asked_and_has_left() {
    let moments = || (0..64).map(|number| [number / 8, number % 8]);
    for (layout, turns) in [S, X].into_iter().flat_map(|layout| moments().map(move |turns| (layout, turns))) {
        let (mut world, _watchdog) = world_whose_side_1_has_left_before_it_was_connected(layout, 0);
        world.send(0, 1, 8);
        world.add(1, 0);
        let (ids, begin) = ([world.id(0, 1), world.id(1, 0)], timing::now());
        let mut staying = vec![0, 1];
        for turn in 0.. {
            for side in staying.clone() {
                if turn >= turns[side] && !world.sides[side].transport.drain(ids[side]) {
                    staying.retain(|other| *other != side);
                    world.remove(side, 1 - side);
                }
            }
            if staying.is_empty() {
                break;
            }
            world.step_of(&staying);
            let time = timing::now() - begin;
            assert!(time < Duration::from_millis(500), "{layout}, {turns:?} turns: {staying:?} stay");
        }
        assert!(world.sides.iter().all(|side| side.failed.is_empty()), "{}", world.books());
        world.close();
    }
}

/// It has nothing to send, and is wanted before the connection manager has said that it knows it no more.
#[test]
fn a_tentative_endpoint_that_is_wanted_while_it_is_being_forgotten_asks_again() {
    for layout in [S, X] {
        let (mut world, _watchdog) = world_whose_side_1_has_left_before_it_was_connected(layout, 0);
        let id = world.id(0, 1);
        assert!(world.sides[0].transport.drain(id), "the connection manager has not answered");
        world.send(0, 1, 8);
        assert!(world.sides[0].transport.drain(id), "the connection manager has not answered");
        world.add(1, 0);
        all_arrives(&mut world);
        world.close();
    }
}

/// A message of another peer waits to be looked at together with the word that it is forgotten, so that its next connection is not begun at once. A
/// request of its peer, which is told with that word, waits for that connection; so does what side 0 sends then.
#[test]
fn a_tentative_endpoint_that_is_forgotten_goes_on_with_its_next_connection_whichever_side_asks_before_that() {
    for (layout, from) in [(S, 0), (S, 1), (X, 0), (X, 1)] {
        let (mut world, _watchdog) = world_whose_side_1_has_left_before_it_was_connected(layout, 0);
        world.send(0, 1, 8);
        helpers(&mut world);
        let id = world.id(0, 1);
        assert!(world.sides[0].transport.drain(id), "the connection manager has not answered");
        helpers(&mut world);
        world.add(1, 0);
        if from == 1 {
            world.send(1, 0, 8);
        }
        world.send(2, 0, 8);
        helpers(&mut world);
        world.poll(0);
        if from == 0 {
            world.send(0, 1, 8);
        }
        helpers(&mut world);
        world.poll(1);
        for _ in 0..2 {
            all_arrives(&mut world);
            world.send(0, 1, 8);
            world.send(1, 0, 8);
        }
        all_arrives(&mut world);
        world.close();
    }
}

/// No message has passed, so nothing is missing of the peer's stream; but the operation is.
#[test]
fn an_operation_is_carried_out_though_its_peers_end_breaks_before_any_message() {
    for layout in [P, S] {
        let (mut world, _watchdog) = world(layout);
        let [near, far] = [0, 1].map(|side| Memory::new(&world.sides[side].transport, vec![side as u8; 64]));
        let id = world.id(0, 1);
        world.sides[0].transport.rdma(id, RdmaOp::Write, near.local(0, 64), far.remote(0), 7).unwrap();
        helpers(&mut world);
        if layout == P {
            world.poll(0);
            world.poll(1);
        }
        // The queue pairs of side 1, which has answered, are the third and the fourth; operations go over the last queue.
        break_queue_pair(&mut world, 4);
        world.poll(0);
        world.poll(1);
        world.until("the operation is over", |w| !w.sides[0].rdma.is_empty());
        assert_eq!(world.sides[0].rdma, [(7, true)], "{layout}");
        assert!(far.bytes.iter().all(|byte| *byte == 0), "{layout}");
        all_arrives(&mut world);
        drop((near, far));
        world.close();
    }
}

/// A side that leaves says so, whatever has passed over its connection: one that is up, and is taken down without a word, has failed.
#[test]
fn a_peer_that_takes_a_connection_down_without_a_word_has_failed() {
    for (layout, by_message) in [(P, true), (P, false), (S, true), (S, false), (X, true)] {
        let (mut world, _watchdog) = world_with(Config { reconnects: 0, ..settings(layout) }, 2);
        if by_message {
            world.send(0, 1, 8);
        } else {
            let [near, far] = [0, 1].map(|side| Memory::new(&world.sides[side].transport, vec![0; 64]));
            let id = world.id(0, 1);
            world.sides[0].transport.rdma(id, RdmaOp::Write, near.local(0, 64), far.remote(0), 7).unwrap();
            world.until("the operation is over", |w| !w.sides[0].rdma.is_empty());
        }
        world.drain();
        world.remove(1, 0);
        world.until_of(&[0], "the failure is told", |w| !w.sides[0].failed.is_empty());
        let (peer, why) = &world.sides[0].failed[0];
        assert!(*peer == 1 && why.contains("has not said that it leaves"), "{layout}, {by_message}: {why}");
        world.close();
    }
}

/// The connection that had the send slot is taken down, and no completion gives it back.
#[test]
fn the_send_slot_of_a_connection_that_is_gone_goes_to_an_endpoint_that_waits_for_it() {
    let (mut world, _watchdog) = world_of("S,128,16,12,1:S,20000,16,12,1", 3);
    for (from, to) in [(0, 1), (0, 2)] {
        world.send(from, to, 8);
        world.drain();
    }
    kill_side_2(&mut world);
    world.send(0, 2, 5000);
    world.send(0, 1, 5000);
    world.until("the message to the living arrives", |w| w.model.missing(0, 1) == 0);
    world.close();
}

/// Side 0 is connected to both others over shared queues. No keepalive completes, and serves what waits.
fn connected_world(reconnects: u8, layout: &str) -> (World, Watchdog) {
    let config = Config { reconnects, keepalive: Duration::ZERO, ..settings(layout) };
    let (mut world, watchdog) = world_with(config, 3);
    for to in [1, 2] {
        world.send(0, to, 8);
        world.drain();
    }
    (world, watchdog)
}

/// The same, with two queues; when the connection to side 2 breaks, which has carried nothing yet, no
/// other one takes its place.
fn last_connection_to_side_2(layout: &str) -> (World, Watchdog) {
    let (mut world, watchdog) = connected_world(1, layout);
    // The queue pairs of the connection to side 1 are the first four.
    break_queue_pair(&mut world, 5);
    world.until("another connection is up", |w| w.sides[0].transport.stats.connected == 3);
    world.balance();
    (world, watchdog)
}

/// After `cause` a message of side 0 to side 2, which has no receive for it, has the only send slot of
/// this queue, and one to side 1 waits for that.
fn side_1_waits_for_side_2(world: &mut World, queue: usize, cause: impl FnOnce(&mut World)) {
    let before = softib::stats().rnr;
    cause(world);
    world.until_of(&[0, 1], "side 2 has no receive for it", |_| softib::stats().rnr != before);
    world.send(0, 1, [8, 5000][queue]);
    let audit = world.sides[0].transport.audit();
    assert_eq!((audit.pending, audit.queues[queue].send_slots), (1, Some(0)), "{}", world.books());
}

/// The first of two messages to side 2 takes its only receive.
fn two_to_side_2(queue: usize) -> impl FnOnce(&mut World) {
    move |world| (0..2).for_each(|_| world.send(0, 2, [8, 5000][queue]))
}

fn side_1_gets_the_send_slot(world: &mut World) {
    world.until_of(&[0, 1], "the message to side 1 arrives", |w| w.model.missing(0, 1) == 0);
}

fn endpoint_for_side_2_fails(world: &mut World, reason: &str) {
    world.until_of(&[0, 1], "the endpoint fails", |w| !w.sides[0].failed.is_empty());
    let (peer, why) = &world.sides[0].failed[0];
    assert!(*peer == 2 && why.contains(reason), "{peer}: {why}");
}

#[test]
fn the_send_slot_of_a_message_that_is_kept_comes_back_when_no_other_connection_is_tried() {
    let layouts = ["S,128,1,0,1,1,1:S,20000,16,12,8", "S,128,16,12,8:S,20000,1,0,1,1,1"];
    for (queue, layout) in layouts.into_iter().enumerate() {
        let (mut world, _watchdog) = last_connection_to_side_2(layout);
        side_1_waits_for_side_2(&mut world, queue, two_to_side_2(queue));
        break_queue_pair(&mut world, 5 + queue as u64);
        endpoint_for_side_2_fails(&mut world, "flushed, its queue pair is in the error state");
        side_1_gets_the_send_slot(&mut world);
        world.close();
    }
}

/// A put that fails for its key, after which no other connection is tried. What was flushed with
/// another queue pair is looked at first.
#[test]
fn the_send_slot_of_a_message_that_is_kept_comes_back_when_another_request_fails_for_good() {
    let (first, second) =
        ("S,128,1,0,1,1,1:S,6000,16,12,8:S,20000,16,12,8", "S,128,16,12,8:S,6000,1,0,1,1,1:S,20000,16,12,8");
    for (queue, layout) in [first, second].into_iter().enumerate() {
        let (mut world, _watchdog) = connected_world(8, layout);
        side_1_waits_for_side_2(&mut world, queue, two_to_side_2(queue));
        let [near, far] = [0, 2].map(|side| Memory::new(&world.sides[side].transport, vec![0; 64]));
        // The queue pairs of the connection to side 1 are the first six. Side 0 does not look around in between.
        faults::raise(EventFault::named("qp-fatal", 7 + queue as u64).unwrap()).unwrap();
        let (id, (addr, key)) = (world.id(0, 2), far.remote(0));
        let wrong = (addr, RKey(key.0 ^ 0x00ff_0000));
        world.sides[0].transport.rdma(id, RdmaOp::Write, near.local(0, 64), wrong, 7).unwrap();
        endpoint_for_side_2_fails(&mut world, "the peer's memory is not registered for this");
        side_1_gets_the_send_slot(&mut world);
        drop((near, far));
        world.close();
    }
}

/// Side 2 leaves, and the acknowledgement of its end is what is kept.
#[test]
fn the_send_slot_of_an_acknowledgement_that_is_kept_comes_back_when_its_peer_has_left() {
    let (mut world, _watchdog) = last_connection_to_side_2("S,128,1,0,1,1,1:S,20000,16,12,8");
    world.send(1, 2, 8);
    world.drain();
    let id = world.id(2, 0);
    assert!(world.sides[2].transport.drain(id), "the end has to be acknowledged");
    side_1_waits_for_side_2(&mut world, 0, |world| world.send(1, 2, 8));
    break_queue_pair(&mut world, 5);
    side_1_gets_the_send_slot(&mut world);
    assert!(world.sides[0].failed.is_empty(), "{}", world.books());
    world.close();
}

/// Over X queues: side 2 is killed while a message to it has the only send slot, and the send queue
/// pair breaks. The message waits for another route and keeps the slot; one to side 1, whose route
/// is there again, waits for the slot.
fn world_whose_send_slot_is_with_a_message_to_side_2() -> (World, Watchdog) {
    let (mut world, watchdog) = world_of("X,128,16,12,8:X,20000,1,0,1,1,1", 3);
    for to in [1, 2] {
        world.send(0, to, 8);
        world.drain();
    }
    let before = softib::stats().rnr;
    (0..2).for_each(|_| world.send(0, 2, 5000));
    world.until_of(&[0, 1], "side 2 has no receive for it", |_| softib::stats().rnr != before);
    kill_side_2(&mut world);
    break_queue_pair(&mut world, 1);
    for len in [5000, 8] {
        world.send(0, 1, len);
    }
    world.until("the route to side 1 is there again", |w| w.model.missing(0, 1) == 1);
    let audit = world.sides[0].transport.audit();
    assert_eq!((audit.pending, audit.queues[1].send_slots), (1, Some(0)), "{}", world.books());
    (world, watchdog)
}

/// Nothing else happens to side 0 that would serve what waits.
#[test]
fn the_send_slot_of_a_message_that_waits_for_another_route_comes_back_when_its_endpoint_is_removed() {
    let (mut world, _watchdog) = world_whose_send_slot_is_with_a_message_to_side_2();
    world.remove(0, 2);
    world.until("the message to the living arrives", |w| w.model.missing(0, 1) == 0);
    world.close();
}

/// No other route is found.
#[test]
fn the_send_slot_of_a_message_that_waits_for_another_route_comes_back_when_its_endpoint_fails() {
    let (mut world, _watchdog) = world_whose_send_slot_is_with_a_message_to_side_2();
    world.until("the endpoint fails", |w| !w.sides[0].failed.is_empty());
    world.until("the message to the living arrives", |w| w.model.missing(0, 1) == 0);
    world.close();
}

/// The failure waits to be handed up, and the endpoint is removed before it is.
#[test]
fn the_failure_of_an_endpoint_is_not_told_when_it_has_been_removed() {
    let (mut world, _watchdog) = world_of(S, 3);
    world.send(0, 2, 8);
    world.drain();
    kill_side_2(&mut world);
    world.send(0, 2, 8);
    while world.sides[0].transport.stats.failed == 0 {
        world.sides[0].transport.poll();
        world.step_of(&[]);
    }
    world.remove(0, 2);
    world.add(0, 2);
    world.poll(0);
    assert!(world.sides[0].failed.is_empty(), "{:?}", world.sides[0].failed);
    world.close();
}

/// The request has been told to the endpoint that its peer had left, which goes before the connection manager knows of its next connection.
#[test]
fn a_request_is_told_again_when_the_endpoint_that_was_to_answer_it_is_removed() {
    let (mut world, _watchdog) = world(P);
    world.send(0, 1, 8);
    world.send(1, 0, 8);
    world.drain();
    world.leave(0, 1);
    helpers(&mut world);
    world.poll(1);
    world.add(0, 1);
    world.send(0, 1, 8);
    helpers(&mut world);
    world.poll(1);
    world.remove(1, 0);
    all_arrives(&mut world);
    world.close();
}

/// The peer takes the end of that connection for the leave, as it would be if nothing more had been sent.
#[test]
fn what_is_sent_after_an_end_that_was_acknowledged_goes_over_the_next_connection() {
    for layout in [P, S] {
        let (mut world, _watchdog) = world(layout);
        world.send(0, 1, 8);
        world.send(1, 0, 8);
        world.drain();
        let id = world.id(0, 1);
        world.until("the peer has acknowledged the end", |w| !w.sides[0].transport.drain(id));
        faults::raise(EventFault::named("qp-fatal", 1).unwrap()).unwrap();
        world.send(0, 1, 8);
        all_arrives(&mut world);
        world.leave(0, 1);
        world.add(0, 1);
        world.send(0, 1, 8);
        all_arrives(&mut world);
        world.close();
    }
}

/// The queue that the message went over is broken, and the one of the end is not: the peer has that end, and waits for the message before it.
#[test]
fn a_peer_that_has_told_another_end_since_the_acknowledged_one_has_not_left() {
    for layout in [P, S] {
        let (mut world, _watchdog) = world(layout);
        world.send(0, 1, 8);
        world.send(1, 0, 8);
        world.drain();
        let id = world.id(0, 1);
        world.until("the peer has acknowledged the end", |w| !w.sides[0].transport.drain(id));
        faults::raise(EventFault::named("qp-fatal", 2).unwrap()).unwrap();
        world.send(0, 1, 5000);
        assert!(world.sides[0].transport.drain(id), "{layout}: another end has to be acknowledged");
        world.poll(1);
        all_arrives(&mut world);
        assert_eq!(world.sides[1].transport.stats.reconnects, 1, "{layout}: {}", world.books());
        world.leave(0, 1);
        world.add(0, 1);
        world.send(0, 1, 8);
        all_arrives(&mut world);
        world.close();
    }
}

/// Its request and the end of its last connection are told together, while a message of another peer waits to be looked at: the request comes
/// to an endpoint whose connection is still there.
#[test]
fn a_peer_that_is_back_is_answered_though_the_end_of_its_last_connection_was_not_looked_at() {
    for layout in [P, S] {
        let (mut world, _watchdog) = world_of(layout, 3);
        for (from, to) in [(0, 1), (1, 0), (2, 1)] {
            world.send(from, to, 8);
        }
        world.drain();
        world.leave(0, 1);
        world.add(0, 1);
        world.send(0, 1, 8);
        world.send(2, 1, 8);
        helpers(&mut world);
        world.poll(1);
        all_arrives(&mut world);
        world.close();
    }
}

/// The acknowledgement of the peer's end was flushed: the peer may go on with its stream, and is told what had come. It has left without it
/// (`finalize_timeout`); it is back, and has sent something, and has not looked at what it was told, when that connection breaks, too. What came
/// counts for its new stream.
#[test]
fn what_a_peer_that_is_back_has_sent_counts_though_the_connection_breaks_before_it_says_that_it_begins_anew()
{
    let (mut world, _watchdog) = world(S);
    world.send(0, 1, 8);
    world.send(1, 0, 8);
    world.drain();
    let id = world.id(0, 1);
    assert!(world.sides[0].transport.drain(id), "the peer has not acknowledged the end");
    world.step_of(&[]);
    // The queue pairs of side 1 are the third and the fourth; ends go over the first queue.
    faults::raise(EventFault::named("qp-fatal", 3).unwrap()).unwrap();
    (0..6).for_each(|_| world.poll(1));
    assert_eq!(world.sides[1].transport.stats.reconnects, 1, "{}", world.books());
    world.remove(0, 1);
    world.add(0, 1);
    world.send(0, 1, 8);
    helpers(&mut world);
    world.poll(0);
    world.poll(1);
    assert_eq!(world.model.missing(0, 1), 0, "{}", world.books());
    // The first of the peer's new ones.
    break_queue_pair(&mut world, 3);
    world.send(0, 1, 8);
    world.send(1, 0, 8);
    all_arrives(&mut world);
    world.close();
}

/// Both leave. One has heard that all of its stream has come, and has the peer's end, which it has not acknowledged, when its connection breaks:
/// the peer, which waits for that, hears that it is over.
#[test]
fn a_side_that_has_heard_all_when_its_connection_breaks_tells_its_peer_that_it_is_over() {
    for layout in [P, S] {
        let (mut world, _watchdog) = world(layout);
        world.send(0, 1, 8);
        world.send(1, 0, 8);
        world.drain();
        let ids = [world.id(0, 1), world.id(1, 0)];
        for side in [1, 0] {
            assert!(world.sides[side].transport.drain(ids[side]), "{layout}: an end has to be acknowledged");
        }
        world.step_of(&[]);
        (0..3).for_each(|_| world.poll(0));
        world.step_of(&[]);
        world.poll(1);
        // The queue pairs of side 1 are the third and the fourth.
        break_queue_pair(&mut world, 3);
        world.poll(1);
        assert_eq!(world.sides[1].transport.stats.reconnects, 0, "{layout}: nothing more is to go");
        world.all_part();
        world.close();
    }
}

/// Both sides remove their endpoints and make them again. The helper of side 0 accepts the request of the endpoint
/// that side 1 has removed meanwhile for the new one: its end is not that of the peer's new one.
#[test]
fn what_waits_for_a_connection_stays_when_the_end_of_the_peers_former_endpoint_comes() {
    let sends = [(true, false), (false, true), (true, true)];
    for (layout, (there, back)) in [P, X].into_iter().flat_map(|layout| sends.map(|sends| (layout, sends))) {
        let (mut world, _watchdog) = world(layout);
        world.send(1, 0, 8);
        world.remove(0, 1);
        world.add(0, 1);
        helpers(&mut world);
        world.remove(1, 0);
        world.model.forget(1, 0);
        world.add(1, 0);
        if there {
            world.send(0, 1, 16);
        }
        if back {
            world.send(1, 0, 24);
        }
        helpers(&mut world);
        world.poll(0);
        world.send(0, 1, 32);
        for side in [1, 0].repeat(8) {
            helpers(&mut world);
            world.poll(side);
        }
        all_arrives(&mut world);
        world.send(1, 0, 40);
        all_arrives(&mut world);
        let renewed = [0, 1].map(|side| world.sides[side].transport.stats.renewed);
        assert_eq!(renewed, [1, 0], "{layout}: the end of the connection that was renewed has ended another");
        world.close();
    }
}
