//! A device that has no memory for as many slots as a ring of eager RDMA should have: it has a quarter of them.
//! A binary of its own with one test, for a plan of faults is the whole process'.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{World, config};
use mca_btl_oxib::transport::config::{Config, Eager};
use softib::faults;

#[test]
fn a_ring_has_a_quarter_of_its_slots_where_there_is_no_memory_for_all() {
    let eager = Eager { slots: 256, threshold: 4, most: 2, cooling: 256, checks: false };
    let layout = "P,160,512,384,256:P,4096,16,12,4,4:S,65536,64,48,16";
    let mut world = World::with("fewer", Config { eager: Some(eager), ..config(layout) }, 2);
    let exchange = |world: &mut World| {
        for _ in 0..20 {
            world.send(0, 1, 30);
            world.send(1, 0, 30);
            world.step();
        }
        world.drain();
    };
    world.send(0, 1, 30);
    world.drain();
    // One of the two asks first, and is refused once.
    faults::set("fail=reg_mr:1:ENOMEM".parse().unwrap());
    exchange(&mut world);
    let rings = |side: usize| world.sides[side].transport.stats.rings;
    assert_eq!([rings(0), rings(1)], [1, 1], "{}", world.books());
    faults::set("".parse().unwrap());
    // Nobody looks until all have been sent: those for which there is no slot go by SEND.
    let mut held = [0, 1].map(|side| {
        exchange(&mut world);
        let before = world.sides[side].transport.stats.sent_eager;
        for _ in 0..300 {
            world.send(side, 1 - side, 30);
        }
        let sent = world.sides[side].transport.stats.sent_eager - before;
        world.drain();
        sent
    });
    held.sort_unstable();
    assert!(held[0] <= 64 && (65..=256).contains(&held[1]), "{held:?} messages find a slot");
    world.close();
}
