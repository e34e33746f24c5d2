//! Shared queues with fewer buffers than sends in flight: messages find no receive, and are
//! repeated until they do. A binary of its own, for the device counts over the whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::World;

#[test]
fn messages_that_find_no_receive_arrive_once_and_in_order() {
    for buffers in [4, 5, 8] {
        for kind in ["S", "X"] {
            let layout = format!("{kind},128,{buffers},2,32:{kind},8192,{buffers},1,32");
            crowd(&layout);
        }
    }
}

fn crowd(layout: &str) {
    let before = softib::stats().rnr;
    let mut world = World::new("rnr", layout, 3);
    for i in 0..400 {
        for (from, to) in [(0, 1), (1, 2), (2, 0), (2, 1)] {
            world.send(from, to, [100, 8000][i % 2]);
        }
        if i % 50 == 0 {
            world.poll(i / 50 % 3);
        }
    }
    world.drain();
    assert!(softib::stats().rnr > before, "no message was refused for want of a receive");
    world.close();
}
