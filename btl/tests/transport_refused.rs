//! Adding a peer that fails for want of a resource leaves nothing behind: the next time it works. A
//! binary of its own with one test, for a plan of faults is the whole process'.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{World, config};
use mca_btl_oxib::transport::config::Config;
use softib::faults;

const LAYOUT: &str = "P,128,32,16,8:S,8192,32,16,32";

/// The completion queues are too small for one connection, so that each add makes them grow: first
/// that of receives, then that of sends. What it reserves is the entry of a CTS.
#[test]
fn a_peer_that_cannot_be_added_leaves_no_completions_reserved() {
    for plan in ["fail=resize_cq:1:ENOMEM", "fail=resize_cq:2:ENOMEM"] {
        let small = Config { cq_size: 40, ..config(LAYOUT) };
        let mut world = World::strangers("refused", vec![small; 2]);
        let before = world.sides[0].transport.audit_completions();
        let (name, adverts) = (world.sides[1].name, world.sides[1].adverts.clone());
        faults::set(plan.parse().unwrap());
        let refused = world.sides[0].transport.add(name, &adverts);
        assert_eq!(faults::counts().calls > 0, refused.is_err(), "{plan}: {refused:?}");
        assert!(refused.is_err(), "{plan}: nothing failed");
        faults::set("".parse().unwrap());
        let after = world.sides[0].transport.audit_completions();
        assert_eq!((after.reserved, after.due), (before.reserved, before.due), "{plan}");
        world.add(0, 1);
        world.add(1, 0);
        let added = world.sides[0].transport.audit_completions().reserved;
        assert_eq!((added.recv, added.send), (before.reserved.recv + 1, before.reserved.send), "{plan}");
        world.send(0, 1, 100);
        world.drain();
        world.close();
    }
}
