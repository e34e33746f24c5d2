//! The end of the last transport of a process is the end of its device. One test, so that no other
//! has the device open meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::World;
use mca_btl_oxib::protocol::layout::DEFAULT;

/// Segments of the device that are mapped: none without an open context of the device.
fn segments() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/softib-")).count()
}

#[test]
fn receives_that_stay_in_shared_queues_do_not_keep_the_device_open() {
    for layout in ["P,4096,8", DEFAULT, "S,128,64,48,8:S,65536,16", "X,128,64,48,8:X,65536,16"] {
        let mut world = World::new("released", layout, 2);
        for len in [0, 100, 2000] {
            world.send(0, 1, len);
            world.send(1, 0, len);
        }
        world.drain();
        assert_ne!(segments(), 0, "{layout}: the device is open");
        world.close();
        assert_eq!(segments(), 0, "{layout}: the device is still open");
    }
}
