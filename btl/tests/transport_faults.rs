//! Transports over a fabric where things go wrong: what the device is asked to do to datagrams,
//! sends and receives is mended below the messages. A binary of its own with one test, for a plan
//! of faults is the whole process'.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::World;
use softib::faults;

const PER_PEER: &str = "P,128,32,16,8:P,8192,16,8,4";
const SHARED: &str = "S,128,32,16,32:S,8192,32,16,32";

/// RNR storms are for shared queues only: a message to a per-peer queue goes out when there is a
/// receive for it, so there an RNR NAK is an error, and is not retried.
const OVER_XRC: &str = "X,128,32,16,32:X,8192,32,16,32";

const FABRICS: [(&str, &str); 5] = [
    (PER_PEER, "seed=11,drop=30%,duplicate=20%,reorder=20%"),
    (PER_PEER, "seed=12,drop=10%,delay=300us"),
    (SHARED, "seed=13,drop=20%,reorder=20%,rnr=every:7:1ms"),
    (SHARED, "seed=14,drop=20%,duplicate=20%,rnr=every:50:5ms,delay=100us"),
    (OVER_XRC, "seed=15,drop=20%,duplicate=20%,reorder=20%,rnr=every:50:1ms"),
];

#[test]
fn messages_are_complete_and_in_order_whatever_the_fabric_does() {
    for (layout, plan) in FABRICS {
        faults::set(plan.parse().unwrap());
        let mut world = World::new("faults", layout, 4);
        for round in 0..60 {
            for from in 0..4 {
                let to = (from + 1 + round % 3) % 4;
                world.send(from, to, [8, 100, 1000, 8000][(round + from) % 4]);
            }
            world.step();
        }
        world.drain();
        let counts = faults::counts();
        assert!(counts.dropped > 0, "{plan}: {counts:?}");
        assert_eq!(plan.contains("rnr="), counts.rnr_storms > 0, "{plan}: {counts:?}");
        assert_eq!(plan.contains("delay="), counts.delayed > 0, "{plan}: {counts:?}");
        faults::set("".parse().unwrap());
        world.close();
    }
}
