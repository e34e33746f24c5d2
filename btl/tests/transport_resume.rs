//! Connections that break while both processes are there: another one takes their place, and nothing is lost, doubled or out of order.
//! A binary of its own with one test, for a plan of faults is the whole process'.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::memory::Memory;
use btl_testing::{World, config};
use mca_btl_oxib::protocol::layout::DEFAULT;
use softib::faults;
use verbs::RdmaOp;

const LAYOUTS: [&str; 5] = [
    DEFAULT,
    "P,128,64,48,32,4:P,8192,16,8,4",
    "P,128,4,2,1,2:P,8192,2,1,1,2",
    "S,128,128,64,32,64:S,8192,64,32,16,32",
    "S,128,64,32,32,32:P,1024,16,12,8,4:S,8192,64,32,16,32",
];

/// Requests that fail on our side, and requests that the peer's side does not answer.
const PLANS: [&str; 3] = ["error=every:61", "cut=every:97", "error=every:203,cut=every:151,drop=5%"];

fn world(test: &str, layout: &str, sides: usize) -> World {
    let mut config = config(layout);
    config.reconnects = 8;
    World::with(test, config, sides)
}

fn counted(world: &World, count: impl Fn(&mca_btl_oxib::transport::stats::Stats) -> u64) -> u64 {
    world.sides.iter().map(|side| count(&side.transport.stats)).sum()
}

fn nothing_failed(world: &World) {
    for (rank, side) in world.sides.iter().enumerate() {
        assert!(side.failed.is_empty(), "side {rank}: {:?}; {}", side.failed, world.books());
        assert_eq!((side.transport.stats.refused, side.transport.stats.failed), (0, 0), "{}", world.books());
    }
}

fn all_arrives(world: &mut World) {
    world.until("every message arrives", |w| w.nothing_waits() && w.model.is_empty());
    world.balance();
    nothing_failed(world);
}

fn messages_go_on(layout: &str, plan: &str) {
    faults::set("".parse().unwrap());
    let mut world = world("resume", layout, 3);
    world.talk(50);
    all_arrives(&mut world);
    faults::set(plan.parse().unwrap());
    for _ in 0..4 {
        world.talk(300);
        all_arrives(&mut world);
    }
    let (broken, again) =
        (counted(&world, |stats| stats.reconnects), counted(&world, |stats| stats.replayed));
    println!("{layout} {plan}: {broken} connections broke, {again} messages went again");
    assert!(broken > 4 && again > 0, "{}", world.books());
    leave(world);
}

/// All say that they leave, and hear that the others have heard; connections break meanwhile, too.
fn leave(mut world: World) {
    world.all_part();
    nothing_failed(&world);
    faults::set("".parse().unwrap());
    world.close();
}

/// Writes and reads are carried out again, each is called back once, and flushes wait for that.
fn operations_go_on(layout: &str) {
    faults::set("".parse().unwrap());
    let mut world = world("resumed puts", layout, 2);
    world.send(0, 1, 8);
    world.send(1, 0, 8);
    world.drain();
    let near = Memory::new(&world.sides[0].transport, (0..=255).collect());
    let far = Memory::new(&world.sides[1].transport, vec![0; 256]);
    faults::set("error=every:29,cut=every:67".parse().unwrap());
    let id = world.id(0, 1);
    for put in 0..256 {
        let (local, remote) = (near.local(put, 1), far.remote(put));
        assert!(world.sides[0].transport.rdma(id, RdmaOp::Write, local, remote, put as u64).is_ok());
        world.send(0, 1, put % 200);
    }
    let mut mark = world.sides[0].transport.begin_flush(Some(id)).pop().unwrap();
    world.until("the flush is over", |w| !w.sides[0].transport.is_ahead(&mut mark, &[]));
    all_arrives(&mut world);
    world.until("all has been written", |w| w.sides[0].rdma.len() == 256);
    let mut done = std::mem::take(&mut world.sides[0].rdma);
    done.sort_unstable();
    assert_eq!(done, (0..256).map(|put| (put, true)).collect::<Vec<_>>());
    let back = Memory::new(&world.sides[0].transport, vec![0; 256]);
    for get in 0..256 {
        let (local, remote) = (back.local(get, 1), far.remote(get));
        assert!(world.sides[0].transport.rdma(id, RdmaOp::Read, local, remote, get as u64).is_ok());
    }
    world.until("all has been read", |w| w.sides[0].rdma.len() == 256);
    assert!(world.sides[0].rdma.iter().all(|(_, ok)| *ok), "{}", world.books());
    assert!(counted(&world, |stats| stats.reconnects) > 4, "{}", world.books());
    assert_eq!(back.bytes, near.bytes, "what was written is what was read");
    leave(world);
}

/// A connection over which nothing passes is given up in the end, with the reason.
fn nothing_passes(layout: &str) {
    faults::set("".parse().unwrap());
    let mut world = world("given up", layout, 2);
    world.send(0, 1, 8);
    world.send(1, 0, 8);
    world.drain();
    faults::set("error=every:1".parse().unwrap());
    world.send(0, 1, 8);
    world.until("it is given up", |w| w.sides.iter().all(|side| !side.failed.is_empty()));
    // Each side gives up after 8 breaks of its own; those of its peer's, 8 at most, are the peer's to count.
    for side in &world.sides {
        assert!((4..=16).contains(&side.transport.stats.reconnects), "{}", world.books());
    }
    faults::set("".parse().unwrap());
    for (from, to) in [(0, 1), (1, 0)] {
        assert_eq!(world.sides[from].failed.len(), 1, "said once");
        world.remove(from, to);
    }
    world.close();
}

#[test]
fn another_connection_takes_the_place_of_one_that_breaks() {
    for layout in LAYOUTS {
        for plan in PLANS {
            messages_go_on(layout, plan);
        }
        operations_go_on(layout);
    }
    nothing_passes(LAYOUTS[0]);
    nothing_passes(LAYOUTS[3]);
}
