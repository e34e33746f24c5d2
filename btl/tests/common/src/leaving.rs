//! How sides leave, on every kind of device (protocol.md 4.5).

use super::World;
use super::memory::Memory;
use mca_btl_oxib::transport::config::Config;
use verbs::RdmaOp;

/// A world of two who have talked.
fn acquainted(test: &str, config: Config) -> World {
    let mut world = World::with(test, config, 2);
    world.send(0, 1, 8);
    world.send(1, 0, 8);
    world.drain();
    world
}

/// Messages on the smallest and the largest queue, and one between.
fn send_some(world: &mut World, from: usize, to: usize) {
    let max = world.layout.largest_payload();
    [8, max, 100].into_iter().for_each(|len| world.send(from, to, len));
}

/// While side 1 does not look, side 0 does not leave; and it sends more from time to time.
pub fn waits_until_all_is_taken(test: &str, config: Config) {
    let mut world = acquainted(test, config);
    let id = world.id(0, 1);
    for _ in 0..3 {
        send_some(&mut world, 0, 1);
        let before = world.model.missing(0, 1);
        for _ in 0..200 {
            assert!(world.sides[0].transport.drain(id), "it has not been taken yet: {}", world.books());
            world.step_of(&[0]);
        }
        assert!(world.model.missing(0, 1) == before && before != 0, "side 1 does not look");
        world.until("it has been taken", |w| !w.sides[0].transport.drain(id));
        assert_eq!(world.model.missing(0, 1), 0, "{}", world.books());
    }
    refuses_what_comes_too_late(&mut world);
    world.drain();
    world.close();
}

/// Side 1 has been told that side 0 leaves.
fn refuses_what_comes_too_late(world: &mut World) {
    let id = world.id(1, 0);
    let transport = &mut world.sides[1].transport;
    assert!(!transport.sendi(id, 1, [&[1; 8], &[]]));
    let buf = transport.take(id, 8, true).expect("a buffer");
    assert!(!transport.send(id, 1, buf, 8), "the peer is leaving");
    world.until_of(&[1], "side 1 has nothing to wait for", |w| !w.sides[1].transport.drain(id));
    assert_eq!(world.sides[1].transport.stats.ends, 3, "an acknowledgement for each end, and no end");
}

/// Both leave at the same time with messages on their way: nothing is lost, and each says two things at most.
pub fn both_leave(test: &str, config: Config) {
    let mut world = acquainted(test, config);
    for _ in 0..20 {
        send_some(&mut world, 0, 1);
        send_some(&mut world, 1, 0);
    }
    let ids = [world.id(0, 1), world.id(1, 0)];
    world.until("both have heard", |w| {
        let waits = [0, 1].map(|side| w.sides[side].transport.drain(ids[side]));
        waits == [false; 2] && w.nothing_waits()
    });
    assert_eq!((world.model.missing(0, 1), world.model.missing(1, 0)), (0, 0), "{}", world.books());
    let said = [0, 1].map(|side| world.sides[side].transport.stats.ends);
    assert!(said.iter().all(|said| (1..=2).contains(said)), "{said:?}");
    world.remove(0, 1);
    world.step_of(&[1]);
    world.remove(1, 0);
    world.no_failures();
    world.close();
}

/// Parts of a side's memory: what is put to the peer and got by it; where the peer puts; where it puts what it gets itself.
const PART: usize = 1 << 16;
/// Of each kind and side: more than the device takes at a time.
const TRANSFERS: u64 = 24;

/// Both leave at the same time with puts, gets and messages of both on their way, some of them not posted yet: each is carried out.
pub fn both_leave_amid_transfers(test: &str, config: Config) {
    let mut world = acquainted(test, config);
    let memory = [0, 1].map(|side| Memory::new(&world.sides[side].transport, vec![side as u8 + 1; 3 * PART]));
    let ids = [world.id(0, 1), world.id(1, 0)];
    for number in 0..TRANSFERS {
        let len = PART / TRANSFERS as usize;
        let at = number as usize * len;
        for (from, to) in [(0, 1), (1, 0)] {
            send_some(&mut world, from, to);
            let (near, far) = (&memory[from], &memory[to]);
            let transport = &mut world.sides[from].transport;
            let operations = [
                (RdmaOp::Write, near.local(at, len), far.remote(PART + at)),
                (RdmaOp::Read, near.local(2 * PART + at, len), far.remote(at)),
            ];
            for (op, local, remote) in operations {
                transport.rdma(ids[from], op, local, remote, number).expect("the peer is there");
            }
        }
    }
    for (side, id) in ids.into_iter().enumerate() {
        assert!(world.sides[side].transport.drain(id), "nothing is on its way: {}", world.books());
    }
    world.until("both have heard", |w| {
        let waits = [0, 1].map(|side| w.sides[side].transport.drain(ids[side]));
        waits == [false; 2] && w.nothing_waits()
    });
    assert_eq!((world.model.missing(0, 1), world.model.missing(1, 0)), (0, 0), "{}", world.books());
    world.remove(0, 1);
    world.step_of(&[1]);
    world.remove(1, 0);
    world.no_failures();
    let carried = PART / TRANSFERS as usize * TRANSFERS as usize;
    for (side, (own, peer)) in [(1, 2), (2, 1)].into_iter().enumerate() {
        let results = &world.sides[side].rdma;
        assert!(results.len() as u64 == 2 * TRANSFERS && results.iter().all(|(_, ok)| *ok), "{results:?}");
        let parts = [(0, own), (PART, peer), (2 * PART, peer)];
        assert!(
            parts.iter().all(|(at, byte)| memory[side].bytes[*at..at + carried].iter().all(|b| b == byte))
        );
    }
    drop(memory);
    world.close();
}
