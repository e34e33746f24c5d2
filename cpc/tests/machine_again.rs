//! Endpoints that are removed at any moment of their coming up, and made again: neither side waits
//! for a deadline meanwhile, whichever REQ, REP, REJ, DREQ or DREP of the old one is still on its
//! way. Two ibcm machines in virtual time; the transport with its queue pairs has the same test in
//! btl/tests/transport_again.rs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod sim;

use std::time::Duration;

use sim::faults::{Plan, plans, restarts};
use sim::ibcm::Ibcm;
use sim::{HOP, seed};

type World = sim::World<Ibcm>;

/// Steps that no pair of nodes needs: the livelock detector.
const STEPS: u64 = 20_000;
/// Who begins.
const BEGINS: [&[usize]; 3] = [&[0], &[1], &[0, 1]];
/// Who removes its endpoint and makes it again, in which order.
const AGAIN: [&[usize]; 4] = [&[0], &[1], &[0, 1], &[1, 0]];

/// The endpoints of `who` are removed after `hops`, and made again after `gap` more, by their owners or for a request of the peer.
fn history(seed: u64, plan: Plan, begins: &[usize], who: &[usize], hops: u32, gap: u32) -> World {
    let mut world = World::pair(seed);
    world.plan = plan;
    begins.iter().for_each(|&me| world.connect(me, 1 - me));
    world.run_until(HOP * hops);
    who.iter().for_each(|&me| world.remove(me, 1 - me));
    world.run_until(HOP * (hops + gap));
    for &me in who {
        if world.state(me, 1 - me).is_none() {
            world.add(me, 1 - me);
        }
        if begins.contains(&me) {
            world.connect(me, 1 - me);
        }
    }
    world
}

fn each(mut run: impl FnMut(&[usize], &[usize], u32, u32)) {
    for begins in BEGINS {
        for who in AGAIN {
            for hops in 0..=8 {
                for gap in [0, 1, 2, 3, 5, 9] {
                    run(begins, who, hops, gap);
                }
            }
        }
    }
}

/// Nothing is lost, so nothing has to be repeated: all is over long before the first repetition would be due.
#[test]
fn an_endpoint_that_is_made_again_is_connected_at_once() {
    let seed = seed(1);
    each(|begins, who, hops, gap| {
        let mut world = history(seed, Plan::default(), begins, who, hops, gap);
        let made = world.elapsed();
        world.run_until(made + HOP * 20);
        let what = format!("{begins:?} begin, {who:?} again after {hops} and {gap} hops");
        let states = [world.state(0, 1), world.state(1, 0)];
        assert!(world.is_connected(0, 1), "{what}: {states:?}");
        assert!(!world.has_failures(), "{what}");
        world.run(STEPS);
        assert!(world.is_connected(0, 1), "{what}: it does not last");
    });
}

/// One of the first datagrams is lost, doubled, overtaken or late: it takes a repetition or two, and not the minute that a request of an
/// unknown process is kept.
#[test]
fn an_endpoint_that_is_made_again_is_connected_soon_whatever_becomes_of_a_datagram() {
    let seed = seed(1);
    let mut runs = 0;
    plans(1, &mut |mishaps| {
        if restarts(mishaps) {
            return;
        }
        each(|begins, who, hops, gap| {
            if gap > 3 {
                return;
            }
            runs += 1;
            let mut world = history(seed + runs, Plan::of(mishaps), begins, who, hops, gap);
            world.run_until(Duration::from_secs(5));
            let states = [world.state(0, 1), world.state(1, 0)];
            assert!(
                world.is_connected(0, 1),
                "{begins:?} begin, {who:?} again after {hops} and {gap} hops, {mishaps:?}: {states:?}"
            );
        });
    });
    assert!(runs > 10_000, "{runs} histories");
}
