//! The window of a per-peer queue begins small and grows with use.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::World;
use mca_btl_oxib::protocol::layout::DEFAULT;

/// The window that `side` has open to its only peer on its smallest queue, and the receives posted or held for it.
fn window(world: &World, side: usize) -> (u16, usize) {
    let audit = world.sides[side].transport.audit();
    let (posted, held) = audit.queues[0].recv_slots;
    (audit.lanes[0].window, posted + held)
}

fn messages(world: &mut World, count: usize) {
    (0..count).for_each(|_| world.send(0, 1, 64));
    world.drain();
}

#[test]
fn a_peer_with_few_messages_under_way_costs_the_first_window_only() {
    let mut world = World::new("few", DEFAULT, 2);
    for _ in 0..100 {
        messages(&mut world, 16);
    }
    assert_eq!([window(&world, 0), window(&world, 1)], [(32, 36), (32, 36)]);
    world.balance();
    world.close();
}

#[test]
fn a_window_that_is_used_up_grows_to_the_whole_one_and_no_further() {
    let mut world = World::new("many", DEFAULT, 2);
    messages(&mut world, 40);
    assert_eq!(window(&world, 1), (64, 68));
    messages(&mut world, 2000);
    assert_eq!(window(&world, 1), (256, 260));
    assert_eq!(window(&world, 0), (32, 36), "nothing has been sent to it");
    world.balance();
    world.close();
}

#[test]
fn windows_of_one_receive_grow_too() {
    for layout in ["P,256,7,4,3,2,1:P,4096,3,1,1,2,1", "P,256,2,1,1,2,1:S,4096,16"] {
        let mut world = World::new("one", layout, 3);
        for round in 0..200 {
            let (from, to) = (round % 3, (round + 1 + round / 3 % 2) % 3);
            if from != to {
                (0..round % 17).for_each(|_| world.send(from, to, 100 + 20 * (round % 100)));
            }
        }
        world.drain();
        let most = world.layout.queues()[0].rd_num;
        let windows: Vec<u16> =
            world.sides[1].transport.audit().lanes.iter().map(|lane| lane.window).collect();
        assert!(windows.contains(&most), "{layout}: {windows:?}");
        world.balance();
        world.close();
    }
}

#[test]
fn a_receive_is_posted_again_at_the_first_look_that_finds_nothing_and_not_in_the_way_of_an_answer() {
    let mut world = World::new("again", DEFAULT, 2);
    messages(&mut world, 1);
    world.send(0, 1, 64);
    let side = &mut world.sides[1].transport;
    let held = |side: &mca_btl_oxib::transport::Transport<_>| side.audit().queues[0].recv_slots.1;
    assert!(side.poll(), "the message");
    let delivery = side.take_message().unwrap();
    side.delivered(delivery);
    assert_eq!(held(side), 1);
    assert!(!side.poll(), "nothing");
    assert_eq!(held(side), 0);
    world.close();
}

/// What has come over a shared queue is posted again in batches, of a quarter of 32 here: while nothing comes, or when there are two.
#[test]
fn a_shared_queue_is_refilled_while_nothing_comes_or_when_it_presses() {
    let mut world = World::new("refilled", "P,128,64:S,4096,32,8,32,32", 2);
    messages(&mut world, 1);
    let posted = |world: &World| world.sides[1].transport.audit().queues[1].recv_slots.0;
    for (messages, busy, idle) in [(7, 25, 25), (1, 24, 32), (15, 17, 32), (17, 31, 31)] {
        let all = world.sides[1].received + messages;
        (0..messages).for_each(|_| world.send(0, 1, 1000));
        let is_out =
            |world: &mut World| world.nothing_waits() && world.sides[0].transport.audit().pending == 0;
        world.until_of(&[0], "they are out", is_out);
        while world.sides[1].received < all {
            world.poll(1);
        }
        assert_eq!(posted(&world), busy, "{messages} have come");
        world.poll(1);
        assert_eq!(posted(&world), idle, "nothing has come after {messages}");
    }
    world.balance();
    world.close();
}
