//! Messages are held back while too many answers to their sender wait (seed 003).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{ECHO, ECHO_THIRD, World, config};
use mca_btl_oxib::transport::config::Bound;
use mca_btl_oxib::transport::stats::Stats;

const LAYOUTS: [&str; 4] = [
    "P,128,8,6,2,3:P,20000,4,2,2,2",
    "P,20000,3,2,1,3",
    "S,128,4,2,8:S,20000,4,2,8",
    "X,128,4,2,8:X,20000,4,2,8",
];

/// Sides that flood each other with messages that are answered by `tag`; answers wait within `bound`, but for what was executed when
/// nothing else moved.
fn flood(layout: &str, bound: u32, pairs: &[(usize, usize)], tag: u8) -> Vec<Stats> {
    let mut config = config(layout);
    config.hold = Bound::of_peer(bound);
    let mut world = World::with("hold", config, 3);
    let (mut most, mut most_held) = (vec![0; 3], vec![0; 3]);
    for i in 0..400 {
        for (from, to) in pairs {
            let message = world.model.message([60, 8000][i % 7 / 6], tag);
            world.send_message(*from, *to, message);
        }
        if i % 3 == 0 {
            world.poll(i / 3 % 3);
        }
        note(&world, &mut most, &mut most_held);
    }
    world.until("every message arrives", |w| {
        note(w, &mut most, &mut most_held);
        w.nothing_waits() && w.model.is_empty()
    });
    world.drain();
    let stats: Vec<Stats> = world.sides.iter().map(|side| side.transport.stats).collect();
    for (side, stats) in stats.iter().enumerate() {
        let allowed = u64::from(16 * bound) + 2 + 2 * stats.trickled;
        assert!(u64::from(most[side]) <= allowed, "{layout}: {} answers wait, {stats:?}", most[side]);
        let held = (stats.held_high == 0) == (stats.held == 0) && stats.held_high <= stats.held;
        assert!(
            held && stats.held_high >= most_held[side],
            "{layout}: {} were held, {stats:?}",
            most_held[side]
        );
    }
    world.close();
    stats
}

fn note(world: &World, most: &mut [u32], most_held: &mut [u64]) {
    for (side, (most, held)) in world.sides.iter().zip(most.iter_mut().zip(most_held)) {
        let audit = side.transport.audit();
        *most = audit.answers.max(*most);
        *held = (audit.held as u64).max(*held);
    }
}

#[test]
fn sides_that_flood_each_other_and_answer_twice_get_everything_and_few_answers_wait() {
    for layout in LAYOUTS {
        for bound in [1, 4] {
            let stats = flood(layout, bound, &[(0, 1), (1, 0), (2, 0)], ECHO | ECHO_THIRD);
            assert!(stats.iter().any(|stats| stats.held != 0), "{layout}: nothing was held back: {stats:?}");
        }
    }
}

#[test]
fn nothing_is_held_back_while_answers_leave() {
    for layout in LAYOUTS {
        let stats = flood(layout, 1 << 20, &[(0, 1), (1, 0)], ECHO);
        assert!(stats.iter().all(|stats| stats.held == 0), "{layout}: {stats:?}");
    }
}

/// What is held of a peer that goes comes back.
#[test]
fn an_endpoint_that_holds_messages_is_removed() {
    for layout in LAYOUTS {
        let mut config = config(layout);
        config.hold = Bound::of_peer(1);
        let mut world = World::with("held", config, 3);
        for _ in 0..60 {
            for (from, to) in [(0, 1), (1, 0)] {
                let message = world.model.message(60, ECHO);
                world.send_message(from, to, message);
            }
            world.step();
        }
        world.remove(1, 0);
        world.remove(0, 1);
        for side in [0, 1] {
            let audit = world.sides[side].transport.audit();
            assert_eq!((audit.held, audit.answers, audit.pending), (0, 0, 0), "{layout}: {audit:?}");
        }
        world.close();
    }
}
