//! Messages of all sizes over all kinds of layouts: once, in order, intact, both ways, and every
//! buffer comes home.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{World, config, connections};
use cpc::Step;
use mca_btl_oxib::protocol::layout::{DEFAULT, Layout};
use mca_btl_oxib::transport::Settled;
use mca_btl_oxib::transport::state::State;
use proptest::prelude::*;
use std::time::Duration;

/// Sizes around which something changes: nothing, inline, each queue's buffers.
fn edges(layout: &Layout) -> Vec<usize> {
    let sizes = layout.queues().iter().map(|q| q.size as usize);
    let around = sizes.flat_map(|size| [size - 1, size, size + 1]);
    let mut edges: Vec<usize> = [0, 1, 8, 127, 128, 129].into_iter().chain(around).collect();
    edges.retain(|len| *len <= layout.largest_payload());
    edges
}

/// Every side sends to every other, in random order and lengths, polling now and then.
fn all_to_all(world: &mut World, messages: usize) {
    let (edges, max) = (edges(&world.layout), world.layout.largest_payload());
    let count = world.sides.len();
    for _ in 0..messages {
        let from = world.rng.below(count);
        let to = (from + 1 + world.rng.below(count - 1)) % count;
        let len = world.rng.len(max, &edges);
        world.send(from, to, len);
        if world.rng.below(8) == 0 {
            let who = world.rng.below(count);
            world.poll(who);
        }
    }
    world.drain();
}

fn check(test: &str, layout: &str) {
    for (count, gathers) in [(2, false), (3, false), (3, true)] {
        let mut config = config(layout);
        config.gathers = gathers;
        let mut world = World::with(test, config, count);
        all_to_all(&mut world, 600);
        // A second round finds the connections up and everything where it was.
        all_to_all(&mut world, 600);
        assert!(world.sides.iter().all(|s| s.transport.stats.connected as usize == count - 1));
        world.close();
    }
}

/// The sender's and the receiver's record of one connection, from the wish to connect to the first
/// message.
#[test]
fn both_ends_know_when_each_step_of_their_connection_happened() {
    let mut world = World::new("timeline", DEFAULT, 2);
    world.send(0, 1, 8);
    world.drain();
    let steps = |side: usize| -> Vec<Step> {
        let records = world.sides[side].transport.timelines();
        assert_eq!((records.len(), records[0].state, &*records[0].component), (1, State::Connected, "ibcm"));
        records[0].steps.rows().into_iter().map(|(step, _)| step).collect()
    };
    let (sender, receiver) = (steps(0), steps(1));
    let of_both =
        [Step::Created, Step::QpsCreated, Step::QpsUp, Step::Posted, Step::CtsSent, Step::CtsReceived];
    for step in of_both.into_iter().chain([Step::Connected, Step::FirstMessage]) {
        assert!(sender.contains(&step) && receiver.contains(&step), "{step:?}: {sender:?}, {receiver:?}");
    }
    for step in [Step::Wanted, Step::ReqSent, Step::RepReceived, Step::RtuSent] {
        assert!(sender.contains(&step) && !receiver.contains(&step), "{step:?}: {sender:?}, {receiver:?}");
    }
    assert!(receiver.contains(&Step::ReqReceived) && receiver.contains(&Step::RepSent), "{receiver:?}");
    assert_eq!((sender.first(), sender.last()), (Some(&Step::Created), Some(&Step::FirstMessage)));
    world.close();
}

#[test]
fn messages_arrive_over_the_default_layout() {
    check("default", DEFAULT);
}

#[test]
fn gathered_messages_take_no_buffer() {
    let mut config = config(DEFAULT);
    config.gathers = true;
    let mut world = World::with("gathers", config, 2);
    world.send(0, 1, 8);
    world.drain();
    let before = world.sides[0].transport.stats;
    for len in [129, 2000, 4000, 12 << 10] {
        world.send(0, 1, len);
        world.drain();
    }
    let stats = world.sides[0].transport.stats;
    assert_eq!(stats.sent_inline - before.sent_inline, 4);
    assert_eq!(stats.sent_buffered, before.sent_buffered);
    world.close();
}

#[test]
fn messages_arrive_over_per_peer_queues_only() {
    check("p-only", "P,128,64,48,32,8:P,2048,32:P,65536,16");
}

#[test]
fn messages_arrive_over_shared_queues_only() {
    check("s-only", "S,128,256,192,128:S,2048,128,96,32:S,65536,64,48,16");
}

#[test]
fn messages_arrive_over_x_queues() {
    check("x-only", "X,128,256,192,128:X,2048,128,96,32:X,65536,64,48,16");
}

#[test]
fn messages_arrive_over_the_smallest_x_queues_there_are() {
    check("x-one", "X,128,1,0,1,1,0:X,65536,2,1,1,1,1");
}

#[test]
fn messages_arrive_over_shared_and_per_peer_queues_in_any_order() {
    check("mixed", "S,128,256,192,64:P,2048,16:S,12288,64,48,16:P,65536,8");
}

#[test]
fn messages_arrive_through_windows_of_four() {
    check("tiny", "P,128,4:P,2048,4:P,65536,4");
}

#[test]
fn messages_arrive_through_windows_of_one() {
    check("one", "P,128,1,0,1,2:P,2048,1,0,1,2:P,65536,1,0,1,2");
}

#[test]
fn messages_arrive_over_a_single_per_peer_queue() {
    check("single", "P,65536,2,1,1,2");
}

#[test]
fn messages_arrive_over_the_smallest_shared_queues_there_are() {
    check("s-one", "S,128,1,0,1,1,0:S,65536,2,1,1,1,1");
}

#[test]
fn messages_arrive_over_fifteen_queues() {
    let sizes = (0..15).map(|i| 64u32 << (i * 10 / 14));
    let queues = sizes
        .enumerate()
        .map(|(i, size)| if i % 2 == 0 { format!("P,{size},4") } else { format!("S,{size},16,12,4") });
    let mut text: Vec<String> = queues.collect();
    text.dedup_by_key(|q| q.split(',').nth(1).map(str::to_owned));
    check("fifteen", &text.join(":"));
}

/// Both sides have more to send than any window holds, of every size, before either polls.
#[test]
fn saturated_windows_of_one_to_four_never_stand_still() {
    for window in 1..=4u32 {
        for rd_win in 1..=window {
            let queue = |size: u32| format!("P,{size},{window},{},{rd_win},2", window - 1);
            let layout = [queue(128), queue(2048), queue(16384)].join(":");
            let mut world = World::new("saturated", &layout, 2);
            for round in 0..300 {
                for (from, to) in [(0, 1), (1, 0)] {
                    world.send(from, to, [100, 2000, 16000][round % 3]);
                }
            }
            world.drain();
            world.close();
        }
    }
}

#[test]
fn one_way_traffic_lives_on_explicit_credit_messages() {
    let mut world = World::new("one way", "P,128,4,3,2,2:P,4096,3,2,1,2", 2);
    for i in 0..500 {
        world.send(0, 1, [64, 4000][i % 2]);
    }
    world.drain();
    assert!(world.sides[1].transport.stats.credit_messages > 0);
    world.close();
}

#[test]
fn first_messages_that_cross_make_one_connection() {
    for layout in [DEFAULT, "S,4096,64", "P,4096,4", "X,4096,64"] {
        let mut world = World::new("crossing", layout, 2);
        world.send(0, 1, 10);
        world.send(1, 0, 20);
        world.drain();
        world.send(0, 1, 30);
        world.send(1, 0, 40);
        world.drain();
        assert_eq!(connections(&world), [(0, 1), (1, 1)].into());
        world.close();
    }
}

#[test]
fn peers_are_connected_when_a_message_goes_and_not_before() {
    let mut world = World::new("lazy", DEFAULT, 5);
    for _ in 0..200 {
        world.step();
    }
    assert!(connections(&world).values().all(|connected| *connected == 0));
    world.send(0, 3, 100);
    world.drain();
    assert_eq!(connections(&world), [(0, 1), (1, 0), (2, 0), (3, 1), (4, 0)].into());
    world.close();
}

#[test]
fn a_peer_that_was_not_added_is_announced_and_then_served() {
    let config = btl_testing::config(DEFAULT);
    let mut world = World::strangers("stranger", vec![config.clone(), config]);
    world.add(0, 1);
    world.send(0, 1, 5000);
    world.until("the stranger's message arrives", |w| w.model.is_empty());
    world.send(1, 0, 50);
    world.drain();
    world.close();
}

#[test]
fn settle_waits_for_credits_a_look_at_a_time_but_not_for_a_connection_and_keeps_what_arrives() {
    let mut world = World::new("settle", "P,128,4,2,1", 2);
    world.send(0, 1, 64);
    let id = world.id(0, 1);
    let settle = |world: &mut World, ms| world.sides[0].transport.settle(id, Duration::from_millis(ms));
    assert_eq!(settle(&mut world, 0), Settled::Unconnected, "the connection is on its way");
    world.drain();
    (0..8).for_each(|_| world.send(0, 1, 64));
    assert!(world.sides[0].transport.is_held_up(id), "eight messages found four credits");
    for ms in 0..20 {
        assert_eq!(settle(&mut world, ms), Settled::Kept, "the peer has not looked around");
    }
    assert_eq!(settle(&mut world, 20), Settled::Over);
    assert_eq!(settle(&mut world, 0), Settled::Over, "all patience is used up");
    world.drain();
    world.close();
}

fn per_peer(size: u32) -> impl Strategy<Value = String> {
    (1u32..=12, 0u32..12, 0u32..12, 2u32..6)
        .prop_map(move |(num, low, win, rsv)| format!("P,{size},{num},{},{},{rsv}", low % num, win % num + 1))
}

fn shared(size: u32) -> impl Strategy<Value = String> {
    (1u32..=24, 0u32..24, 1u32..=16, 0u32..24).prop_map(move |(num, low, sends, init)| {
        format!("S,{size},{num},{},{sends},{}", low % num, init % num + 1)
    })
}

fn layouts() -> impl Strategy<Value = String> {
    let sizes = prop::collection::btree_set(prop_oneof![32u32..300, 300u32..5000, 5000u32..70000], 1..6);
    let queues = sizes.prop_flat_map(|sizes| {
        sizes.into_iter().map(|size| prop_oneof![per_peer(size), shared(size)].boxed()).collect::<Vec<_>>()
    });
    queues.prop_map(|queues| queues.join(":"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_arrive_over_random_layouts(layout in layouts(), seed: u64) {
        let mut world = World::new("random layout", &layout, 2);
        world.rng = btl_testing::rng::Rng::new(seed);
        all_to_all(&mut world, 200);
        world.close();
    }
}
