//! Put and get: the right bytes to the right place, and a wrong key is the trouble of one endpoint
//! only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::memory::Memory;
use btl_testing::rng::Rng;
use btl_testing::{World, config};
use mca_btl_oxib::protocol::layout::DEFAULT;
use mca_btl_oxib::transport::Upcall;
use verbs::{RKey, RdmaOp};

const LEN: usize = 1 << 20;

fn noise(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..LEN / 8).flat_map(|_| rng.word().to_le_bytes()).collect()
}

fn start(
    world: &mut World,
    (from, to): (usize, usize),
    op: RdmaOp,
    local: verbs::Sge,
    remote: (u64, RKey),
    cookie: u64,
) {
    let id = world.id(from, to);
    world.sides[from].transport.rdma(id, op, local, remote, cookie).expect("a live endpoint");
}

#[test]
fn a_get_needs_no_registration_of_where_its_bytes_go() {
    let mut world = World::new("get anywhere", DEFAULT, 2);
    let far = Memory::new(&world.sides[1].transport, noise(3));
    let lkey = world.sides[0].transport.key_of_all().expect("a key of all memory on the software device");
    let mut near = vec![0; LEN];
    let addr = near.as_mut_ptr() as u64;
    let mut begin = 0;
    let mut gets = 0;
    for len in [1, 8, 100, 1000, 4096, 5000, 16_384, 70_000, 400_000] {
        let sge = verbs::Sge { addr: addr + begin as u64, len: len as u32, lkey };
        start(&mut world, (0, 1), RdmaOp::Read, sge, far.remote(begin), gets);
        gets += 1;
        begin += len;
    }
    world.until("all gets are over", |w| w.sides[0].rdma.len() as u64 == gets);
    assert!(world.sides[0].rdma.iter().all(|(_, ok)| *ok));
    assert!(
        near[..begin] == far.bytes[..begin] && near[begin..].iter().all(|byte| *byte == 0),
        "wrong bytes"
    );
    world.drain();
    world.close();
}

#[test]
fn put_and_get_move_the_right_bytes_and_no_others() {
    for layout in [DEFAULT, "P,4096,4", "S,4096,16", "X,4096,16"] {
        let mut world = World::new("put and get", layout, 2);
        let near = Memory::new(&world.sides[0].transport, noise(1));
        let far = Memory::new(&world.sides[1].transport, noise(2));
        let (mut near_model, mut far_model) = (near.bytes.to_vec(), far.bytes.to_vec());
        let (mut started, mut put, mut got) = (0, 0, 0);
        for round in 0..120 {
            // Disjoint slots: operations of one round may pass each other.
            let slot = LEN / 120 * round;
            let len = 1 + world.rng.below(LEN / 120 - 1);
            let op = if round % 2 == 0 { RdmaOp::Write } else { RdmaOp::Read };
            start(&mut world, (0, 1), op, near.local(slot, len), far.remote(slot), started);
            match op {
                RdmaOp::Write => far_model[slot..slot + len].copy_from_slice(&near_model[slot..slot + len]),
                RdmaOp::Read => near_model[slot..slot + len].copy_from_slice(&far_model[slot..slot + len]),
            }
            *if op == RdmaOp::Write { &mut put } else { &mut got } += len as u64;
            started += 1;
            world.send(0, 1, 64);
        }
        world.until("all operations are over", |w| w.sides[0].rdma.len() as u64 == started);
        let mut done: Vec<u64> = world.sides[0]
            .rdma
            .iter()
            .map(|(cookie, ok)| {
                assert!(ok);
                *cookie
            })
            .collect();
        done.sort_unstable();
        assert_eq!(done, (0..started).collect::<Vec<_>>());
        assert!(near.bytes[..] == near_model[..] && far.bytes[..] == far_model[..], "{layout}: wrong bytes");
        world.drain();
        let bytes = [0, 1].map(|side| world.sides[side].transport.counted());
        let bytes = bytes.map(|stats| (stats.bytes_sent, stats.bytes_received));
        assert_eq!(
            bytes,
            [(put + 120 * 64, got), (0, 120 * 64)],
            "{layout}: each counts its own puts and gets"
        );
        world.close();
    }
}

/// A receive callback begins it (ob1's RGET), and its peer waits for the word that it is over.
#[test]
fn what_is_over_as_soon_as_it_is_begun_is_heard_of_without_another_look() {
    let mut world = World::new("at once", DEFAULT, 2);
    let near = Memory::new(&world.sides[0].transport, noise(1));
    let far = Memory::new(&world.sides[1].transport, noise(2));
    world.send(0, 1, 64);
    world.drain();
    start(&mut world, (0, 1), RdmaOp::Read, near.local(0, 4096), far.remote(0), 7);
    let transport = &mut world.sides[0].transport;
    assert!(!transport.has_upcalls());
    transport.look_for_completions();
    assert!(matches!(transport.take_upcall(), Some(Upcall::Completed { cookie: 7, ok: true })));
    assert!(near.bytes[..4096] == far.bytes[..4096]);
    world.close();
}

#[test]
fn a_message_behind_a_put_finds_the_bytes_there() {
    let mut world = World::new("behind", "P,65536,8", 2);
    let near = Memory::new(&world.sides[0].transport, noise(3));
    let far = Memory::new(&world.sides[1].transport, vec![0; LEN]);
    start(&mut world, (0, 1), RdmaOp::Write, near.local(0, LEN), far.remote(0), 1);
    // As ob1 does: the notice goes when the put is over.
    world.until("the put is over", |w| w.sides[0].rdma == [(1, true)]);
    world.send(0, 1, 8);
    world.until("the notice arrives", |w| w.model.is_empty());
    assert!(near.bytes == far.bytes);
    world.drain();
    world.close();
}

#[test]
fn more_operations_than_entries_wait_their_turn() {
    for layout in [DEFAULT, "X,4096,16"] {
        let mut world = World::new("many", layout, 2);
        let near = Memory::new(&world.sides[0].transport, noise(4));
        let far = Memory::new(&world.sides[1].transport, noise(5));
        for cookie in 0..1000 {
            let at = cookie as usize * 1024;
            start(&mut world, (0, 1), RdmaOp::Read, near.local(at, 1024), far.remote(at), cookie);
        }
        world.until("all operations are over", |w| w.sides[0].rdma.len() == 1000);
        assert!(
            world.sides[0].rdma.iter().all(|(_, ok)| *ok)
                && near.bytes[..1000 * 1024] == far.bytes[..1000 * 1024]
        );
        world.drain();
        world.close();
    }
}

/// Puts complete only when the device is asked, so all that may be in flight are.
#[test]
fn puts_leave_messages_the_entries_that_are_theirs() {
    for layout in [DEFAULT, "P,4096,8,,,,8", "S,4096,16,12,8"] {
        let mut world = World::new("entries", layout, 2);
        let len = world.layout.largest_payload();
        world.send(0, 1, len);
        world.drain();
        let near = Memory::new(&world.sides[0].transport, noise(4));
        let far = Memory::new(&world.sides[1].transport, noise(5));
        for cookie in 0..300 {
            start(&mut world, (0, 1), RdmaOp::Write, near.local(0, 64), far.remote(64), cookie);
        }
        let late = world.sides[0].transport.stats.sent_late;
        assert_eq!(world.sides[0].transport.stats.rdma, 16, "{layout}: more than rdma_depth are in flight");
        for _ in 0..4 {
            world.send(0, 1, len);
        }
        assert_eq!(world.sides[0].transport.stats.sent_late, late, "{layout}: messages wait behind puts");
        world.until("all operations are over", |w| w.sides[0].rdma.len() == 300);
        world.drain();
        world.close();
    }
}

/// One operation at a time over the send queue pair of a node: the first of three endpoints has it,
/// the others wait.
fn three_over_one_path() -> (World, Memory, Memory) {
    let mut settings = config("X,4096,16");
    settings.rdma_depth = 1;
    let mut world = World::with("waiters", settings, 4);
    (1..4).for_each(|to| world.send(0, to, 64));
    world.drain();
    let near = Memory::new(&world.sides[0].transport, noise(6));
    let far = Memory::new(&world.sides[1].transport, noise(7));
    (world, near, far)
}

#[test]
fn an_endpoint_that_was_removed_while_it_waited_leaves_its_turn_on_an_x_path_to_the_next() {
    let (mut world, near, far) = three_over_one_path();
    let others: Vec<_> = (2..4).map(|to| Memory::new(&world.sides[to].transport, noise(8))).collect();
    start(&mut world, (0, 1), RdmaOp::Read, near.local(0, 64), far.remote(0), 1);
    start(&mut world, (0, 2), RdmaOp::Read, near.local(64, 64), others[0].remote(0), 2);
    start(&mut world, (0, 3), RdmaOp::Read, near.local(128, 64), others[1].remote(0), 3);
    assert_eq!(world.sides[0].transport.stats.rdma, 1, "more than rdma_depth are in flight");
    world.remove(0, 2);
    world.until("the third one has its turn", |w| w.sides[0].rdma.contains(&(3, true)));
    world.close();
}

#[test]
fn endpoints_take_turns_with_their_operations_on_an_x_path() {
    let (mut world, near, far) = three_over_one_path();
    let third = Memory::new(&world.sides[3].transport, noise(8));
    for cookie in 0..20 {
        start(&mut world, (0, 1), RdmaOp::Read, near.local(0, 64), far.remote(0), cookie);
    }
    start(&mut world, (0, 3), RdmaOp::Read, near.local(128, 64), third.remote(0), 99);
    world.until("all operations are over", |w| w.sides[0].rdma.len() == 21);
    let turn = world.sides[0].rdma.iter().position(|done| *done == (99, true));
    assert!(turn.is_some_and(|turn| turn <= 2), "behind all that the first one had waiting: {turn:?}");
    world.close();
}

#[test]
fn a_wrong_key_fails_its_endpoint_and_the_others_go_on() {
    for (layout, op) in [
        (DEFAULT, RdmaOp::Write),
        (DEFAULT, RdmaOp::Read),
        ("S,4096,16", RdmaOp::Write),
        ("P,4096,4", RdmaOp::Read),
        ("X,4096,16", RdmaOp::Write),
        ("X,4096,16", RdmaOp::Read),
    ] {
        let mut world = World::new("wrong key", layout, 3);
        for (from, to) in [(0, 1), (0, 2), (1, 2)] {
            world.send(from, to, 64);
        }
        world.drain();
        let near = Memory::new(&world.sides[0].transport, noise(6));
        let far = Memory::new(&world.sides[1].transport, noise(7));
        let (addr, key) = far.remote(0);
        for cookie in 0..40 {
            start(&mut world, (0, 1), op, near.local(0, 100), (addr, RKey(key.0 ^ 0x00ff_0000)), cookie);
        }
        world.until("every operation comes back", |w| {
            w.sides[0].rdma.len() == 40 && !w.sides[0].failed.is_empty()
        });
        assert!(world.sides[0].rdma.iter().all(|(_, ok)| !ok), "{:?}", world.sides[0].rdma);
        assert!(near.bytes[..] == noise(6)[..] && far.bytes[..] == noise(7)[..], "a refused operation wrote");
        let (rank, reason) = &world.sides[0].failed[0];
        assert!(*rank == 1 && world.sides[0].failed.len() == 1, "{:?}", world.sides[0].failed);
        assert!(reason.contains("not registered"), "{reason}");
        let id = world.id(0, 1);
        assert!(!world.sides[0].transport.busy(id));
        assert_eq!(world.sides[0].transport.rdma(id, op, near.local(0, 1), far.remote(0), 99), Err(99));
        // The others, in both directions.
        for _ in 0..100 {
            for (from, to) in [(0, 2), (2, 0), (1, 2), (2, 1)] {
                world.send(from, to, 100);
            }
        }
        world.until("the others go on", |w| w.model.is_empty() && w.nothing_waits());
        world.balance();
        assert!(world.sides[2].failed.is_empty() && world.sides[1].failed.iter().all(|(rank, _)| *rank == 0));
        world.close();
    }
}

#[test]
fn an_address_outside_of_the_registration_is_refused() {
    let mut world = World::new("outside", DEFAULT, 2);
    let near = Memory::new(&world.sides[0].transport, noise(8));
    let far = Memory::new(&world.sides[1].transport, noise(9));
    let (addr, key) = far.remote(LEN - 50);
    start(&mut world, (0, 1), RdmaOp::Write, near.local(0, 100), (addr, key), 1);
    world.until("the operation comes back", |w| {
        w.sides[0].rdma == [(1, false)] && w.sides[0].failed.len() == 1
    });
    assert!(far.bytes[..] == noise(9)[..]);
    world.close();
}

/// A peer's endpoint fails while many sends to it wait for a receive: more than one batch of them
/// comes back flushed.
#[test]
fn sends_that_wait_when_the_peer_fails_come_back_every_one() {
    for layout in ["S,4096,2,1,40", "S,128,2,1,40:S,4096,2,1,40", "X,4096,2,1,40"] {
        let mut world = World::new("flushed", layout, 2);
        for (from, to) in [(0, 1), (1, 0)] {
            world.send(from, to, 64);
        }
        world.drain();
        let near = Memory::new(&world.sides[0].transport, noise(6));
        let far = Memory::new(&world.sides[1].transport, noise(7));
        for i in 0..80 {
            world.send(1, 0, [100, 4000][i % 2]);
        }
        let (addr, key) = far.remote(0);
        start(&mut world, (0, 1), RdmaOp::Write, near.local(0, 9), (addr, RKey(key.0 ^ 0x00ff_0000)), 1);
        world.until("both ends fail", |w| w.sides.iter().all(|s| s.failed.len() == 1));
        world.balance();
        world.close();
    }
}
