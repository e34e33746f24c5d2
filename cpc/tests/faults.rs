//! Connections over a fabric that loses, doubles, reorders and delays: real services on the software device, which does it on demand.
//! A binary with one test, for a plan of faults is the whole process'.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod side;

use std::time::Duration;

use cpc::{Config, EndpointKey};
use side::{Side, context, until};
use softib::faults::{self, Counts};

const SIDES: usize = 6;

/// What a fabric may do, and whether it did.
type Struck = fn(&Counts) -> bool;

/// The plan, whether the receives are shared ones, and a proof.
const FABRICS: [(&str, bool, Struck); 4] = [
    ("seed=1,drop=20%", false, |counts| counts.dropped > 0),
    ("seed=2,drop=20%,duplicate=20%,reorder=20%", true, |counts| {
        counts.duplicated > 0 && counts.reordered > 0
    }),
    ("seed=3,rnr=every:2:3ms,delay=1ms", true, |counts| counts.rnr_storms > 0 && counts.delayed > 0),
    ("seed=4,drop=20%,duplicate=10%,reorder=30%,rnr=every:3:2ms,delay=500us", false, |counts| {
        counts.dropped > 0 && counts.reordered > 0 && counts.rnr_storms > 0
    }),
];

/// Every side connects to every other; the one with the lower number begins, or both at once where
/// their sum is even.
fn storm(shared: bool) -> (Vec<Side>, Vec<(usize, usize, EndpointKey)>) {
    let (ctx, config) = (context(), Config::default());
    let mut sides: Vec<Side> =
        (0..SIDES).map(|rank| Side::open(&ctx, rank as u64, shared, &config)).collect();
    let adverts: Vec<_> = sides.iter().map(|side| side.service.adverts().to_vec()).collect();
    let names: Vec<_> = sides.iter().map(|side| side.name).collect();
    sides.iter().for_each(|side| side.service.start().unwrap());
    let mut ends = Vec::new();
    for (me, side) in sides.iter_mut().enumerate() {
        for peer in (0..SIDES).filter(|&peer| peer != me) {
            ends.push((me, peer, side.add(names[peer], &adverts[peer], !shared)));
        }
    }
    for &(me, _, key) in ends.iter().filter(|(me, peer, _)| me < peer || (me + peer) % 2 == 0) {
        sides[me].service.connect(key);
    }
    (sides, ends)
}

#[test]
fn all_connections_come_up_and_carry_their_message_whatever_the_fabric_does() {
    for (plan, shared, struck) in FABRICS {
        faults::set(plan.parse().unwrap());
        let (mut sides, ends) = storm(shared);
        until(&mut sides, plan, |sides| ends.iter().all(|(me, _, key)| sides[*me].is_done(*key)));
        for (me, peer, key) in &ends {
            let received = sides[*me].ends[key].received.as_deref().unwrap();
            // Shared receives are not kept by connection: only their length is known there.
            let expected = sides[*peer].name.0.to_be_bytes();
            assert_eq!(received.len(), expected.len());
            assert!(shared || received == expected, "{plan}: {me} has another's message");
        }
        assert!(sides.iter().all(|side| side.failures.is_empty()), "{plan}");
        let counts = faults::counts();
        assert!(struck(&counts), "{plan}: {counts:?}");
        faults::set("".parse().unwrap());
        sides.iter().for_each(|side| side.service.close(Duration::from_secs(2)));
    }
}
