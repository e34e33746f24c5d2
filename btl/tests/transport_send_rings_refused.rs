//! A device that registers no memory for the copies of a queue pair: messages go on from buffers, and it is not asked again.
//! A binary of its own with one test, for a plan of faults is the whole process'.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{World, config};
use mca_btl_oxib::transport::config::Config;
use softib::faults;

#[test]
fn messages_go_on_from_buffers_where_the_device_registers_no_more() {
    let mut world =
        World::with("refused", Config { eager: None, ..config("P,128,256,192,128:P,8192,64,48,32,64") }, 2);
    let exchange = |world: &mut World, count| {
        for _ in 0..count {
            world.send(0, 1, 1000);
            world.step();
        }
        world.drain();
    };
    // The pool of buffers has what it needs.
    exchange(&mut world, 8);
    faults::set("fail=reg_mr:1:ENOMEM".parse().unwrap());
    exchange(&mut world, 200);
    let stats = world.sides[0].transport.stats;
    assert_eq!((stats.send_rings, stats.failed, stats.sent_buffered), (0, 0, 208), "{}", world.books());
    // The plan strikes once: the other side gets its memory.
    for _ in 0..40 {
        world.send(1, 0, 1000);
        world.step();
    }
    world.drain();
    assert_eq!(world.sides[1].transport.stats.send_rings, 1);
    faults::set("".parse().unwrap());
    world.close();
}
