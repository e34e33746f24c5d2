//! Atomics: each changes its word once, whoever else changes it, over every kind of queue and to
//! oneself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::memory::Memory;
use btl_testing::{World, config};
use mca_btl_oxib::protocol::atomic::{Atomic, Change};
use mca_btl_oxib::protocol::layout::DEFAULT;
use mca_btl_oxib::transport::EpId;
use verbs::{RKey, RdmaOp};

const LAYOUTS: [&str; 4] = [DEFAULT, "P,4096,4", "S,4096,16", "X,4096,16"];

fn begin(world: &mut World, from: usize, id: EpId, atomic: Atomic, remote: (u64, RKey), cookie: u64) {
    world.sides[from].transport.atomic(id, atomic, remote, cookie).expect("a live endpoint");
}

fn word(memory: &Memory, index: usize) -> u64 {
    u64::from_ne_bytes(memory.bytes[8 * index..8 * index + 8].try_into().unwrap())
}

/// Two sides and, with an endpoint to itself, the owner of the word change it by turns.
#[test]
fn every_change_of_a_word_counts_once() {
    for layout in LAYOUTS {
        let mut world = World::new("atomics", layout, 3);
        let memory = Memory::new(&world.sides[0].transport, vec![0; 64]);
        let name = world.sides[0].name;
        let itself = world.sides[0].transport.add_itself(name).unwrap();
        for round in 0..60 {
            for from in 0..3 {
                let id = if from == 0 { itself } else { world.id(from, 0) };
                let bit = 1 << (3 * (round % 20) + from as u64);
                let sum = Atomic::new(Change::Add, 1 + from as u64);
                begin(&mut world, from, id, sum, memory.remote(0), 3 * round);
                begin(&mut world, from, id, Atomic::new(Change::Xor, bit), memory.remote(8), 3 * round + 1);
                let swap = Atomic::new(Change::Swap, 1000 * from as u64 + round + 1);
                begin(&mut world, from, id, swap, memory.remote(16), 3 * round + 2);
            }
        }
        world.until("all are over", |w| w.sides.iter().all(|side| side.fetched.len() == 180));
        assert_eq!(word(&memory, 0), 60 * (1 + 2 + 3), "{layout}");
        assert_eq!(word(&memory, 1), (1 << 60) - 1, "{layout}: each bit was changed three times");
        let mut seen: Vec<u64> = world
            .sides
            .iter()
            .flat_map(|side| side.fetched.iter().filter(|(cookie, _)| cookie % 3 == 2).map(|(_, was)| *was))
            .chain([word(&memory, 2)])
            .collect();
        let mut wrote: Vec<u64> = (0..3).flat_map(|from| (1..=60).map(move |n| 1000 * from + n)).collect();
        wrote.push(0);
        seen.sort_unstable();
        wrote.sort_unstable();
        assert_eq!(seen, wrote, "{layout}: what one has put there, one other has found");
        world.sides[0].transport.remove(&[itself]);
        world.drain();
        world.close();
    }
}

#[test]
fn a_compare_and_swap_tells_what_it_found_and_changes_only_what_it_expected() {
    for layout in LAYOUTS {
        let mut world = World::new("compare", layout, 2);
        let memory = Memory::new(&world.sides[1].transport, vec![0; 64]);
        let id = world.id(0, 1);
        let steps = [(5, 9, 0), (0, 7, 0), (0, 8, 7), (7, u64::MAX, 7)];
        for (cookie, (compare, swap, _)) in steps.into_iter().enumerate() {
            let atomic = Atomic::new(Change::CompareSwap(compare), swap);
            begin(&mut world, 0, id, atomic, memory.remote(8), cookie as u64);
        }
        world.until("all are over", |w| w.sides[0].fetched.len() == 4);
        let found: Vec<u64> = world.sides[0].fetched.iter().map(|(_, was)| *was).collect();
        assert_eq!(found, steps.map(|(_, _, found)| found), "{layout}");
        assert_eq!((word(&memory, 0), word(&memory, 1), word(&memory, 2)), (0, u64::MAX, 0), "{layout}");
        world.drain();
        world.close();
    }
}

/// A queue pair takes one read at a time here: more would keep what is posted behind them.
#[test]
fn messages_pass_reads_and_atomics_that_wait_for_their_turn() {
    for layout in LAYOUTS {
        let mut settings = config(layout);
        settings.rd_atomic = 1;
        let mut world = World::with("tokens", settings, 2);
        world.send(0, 1, 64);
        world.drain();
        let near = Memory::new(&world.sides[0].transport, vec![0; 1 << 16]);
        let far = Memory::new(&world.sides[1].transport, vec![1; 1 << 16]);
        let id = world.id(0, 1);
        for cookie in 0..40 {
            let at = 1024 * cookie as usize;
            let transport = &mut world.sides[0].transport;
            transport.rdma(id, RdmaOp::Read, near.local(at, 1024), far.remote(at), cookie).unwrap();
            begin(&mut world, 0, id, Atomic::new(Change::Add, 1), far.remote(1024 * 60), cookie);
        }
        assert_eq!(world.sides[0].transport.stats.rdma, 1, "{layout}: one is out, the others wait");
        world.until("all are over", |w| (w.sides[0].rdma.len(), w.sides[0].fetched.len()) == (40, 40));
        assert!(near.bytes[..40 * 1024].iter().all(|byte| *byte == 1), "{layout}");
        world.drain();
        world.close();
    }
}

#[test]
fn an_atomic_on_memory_that_was_not_offered_is_the_trouble_of_its_endpoint() {
    for layout in LAYOUTS {
        let mut world = World::new("refused", layout, 3);
        world.send(0, 1, 64);
        world.send(0, 2, 64);
        world.drain();
        let memory = Memory::new(&world.sides[1].transport, vec![0; 64]);
        let (addr, RKey(key)) = memory.remote(0);
        let id = world.id(0, 1);
        begin(&mut world, 0, id, Atomic::new(Change::Add, 1), (addr, RKey(key ^ 0x55_5500)), 7);
        world.until("it is refused", |w| !w.sides[0].failed.is_empty());
        assert_eq!((&world.sides[0].rdma[..], &world.sides[0].fetched[..]), (&[(7, false)][..], &[][..]));
        assert_eq!(word(&memory, 0), 0, "{layout}");
        world.send(0, 2, 64);
        world.until("the other endpoint goes on", |w| w.sides[2].received == 2);
    }
}

/// Messages to oneself are another transport's.
#[test]
fn the_endpoint_to_oneself_takes_one_sided_operations_only() {
    let mut world = World::new("itself", DEFAULT, 1);
    let (name, transport) = (world.sides[0].name, &mut world.sides[0].transport);
    let itself = transport.add_itself(name).unwrap();
    assert_eq!(transport.add_itself(name).unwrap(), itself, "there is one");
    assert!(transport.timelines().is_empty(), "nothing has needed a connection");
    let memory = Memory::new(transport, (0..=255).cycle().take(4096).collect());
    let buf = transport.take(itself, 64, true).unwrap();
    assert!(!transport.send(itself, 1, buf, 64));
    transport.rdma(itself, RdmaOp::Write, memory.local(0, 1024), memory.remote(2048), 1).unwrap();
    transport.rdma(itself, RdmaOp::Read, memory.local(1024, 512), memory.remote(512), 2).unwrap();
    world.until("both are over", |w| w.sides[0].rdma.len() == 2);
    let records = world.sides[0].transport.timelines();
    assert!(records.iter().map(|record| (record.peer, record.component.as_str())).eq([(name, "itself")]));
    assert!(
        memory.bytes[2048..3072] == memory.bytes[..1024]
            && memory.bytes[1024..1536] == memory.bytes[512..1024]
    );
    world.sides[0].transport.remove(&[itself]);
    world.balance();
    world.close();
}

/// Over X queues what was flushed with another process' failure is posted again. An atomic may have been carried out,
/// and would change its word twice.
#[test]
fn an_atomic_whose_fate_is_unknown_is_reported_and_not_repeated() {
    let mut world = World::new("unknown", "X,4096,16", 3);
    world.send(0, 1, 64);
    world.send(0, 2, 64);
    world.drain();
    let near = Memory::new(&world.sides[0].transport, vec![7; 64]);
    let (lost, kept) = (
        Memory::new(&world.sides[1].transport, vec![0; 64]),
        Memory::new(&world.sides[2].transport, vec![0; 64]),
    );
    let ((addr, RKey(key)), id) = (lost.remote(0), world.id(0, 2));
    let first = world.id(0, 1);
    begin(&mut world, 0, first, Atomic::new(Change::Add, 1), (addr, RKey(key ^ 0x55_5500)), 1);
    begin(&mut world, 0, id, Atomic::new(Change::Add, 1), kept.remote(0), 2);
    world.sides[0].transport.rdma(id, RdmaOp::Write, near.local(0, 8), kept.remote(8), 3).unwrap();
    world.until("all are over", |w| w.sides[0].rdma.len() == 3);
    world.sides[0].rdma.sort_unstable();
    assert_eq!(
        world.sides[0].rdma,
        [(1, false), (2, false), (3, true)],
        "the write has the same outcome twice"
    );
    assert_eq!(word(&kept, 1), u64::from_ne_bytes([7; 8]));
    let before = word(&kept, 0);
    assert!(before <= 1, "{before}");
    begin(&mut world, 0, id, Atomic::new(Change::Add, 10), kept.remote(0), 4);
    world.until("another is done", |w| w.sides[0].fetched == [(4, before)]);
    assert_eq!(word(&kept, 0), before + 10);
}
