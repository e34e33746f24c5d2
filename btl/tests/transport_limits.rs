//! What devices cannot do: nothing inline, few reads in flight, short queues. Each is met by
//! another way or by a clear message.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::World;
use mca_btl_oxib::transport::Transport;
use mca_btl_oxib::transport::config::Config;
use mca_btl_oxib::transport::device::{Choice, Filter, PortConfig, find};
use verbs::Driver;

const P_AND_S: &str = "P,128,8,6,4,2:S,2048,64,48,32,16,8";

#[test]
fn a_device_that_takes_nothing_inline_connects_carries_messages_and_returns_credits() {
    let config = Config { max_inline: 0, ..btl_testing::config(P_AND_S) };
    let mut world = World::with("nothing inline", config, 2);
    // One way only: the window is a few messages, so credits come back in messages of their own.
    for len in (0..500).map(|n| [0, 8, 100, 128, 2000][n % 5]) {
        world.send(0, 1, len);
    }
    world.drain();
    for side in &world.sides {
        assert_eq!(side.transport.stats.sent_inline, 0);
    }
    world.no_failures();
    assert!(world.sides[1].transport.stats.credit_messages > 0);
    world.close();
}

#[test]
fn more_reads_in_flight_than_the_device_answers_are_cut_to_its_limit() {
    let config = Config { rd_atomic: 128, ..btl_testing::config(P_AND_S) };
    let mut world = World::with("reads in flight", config, 2);
    world.send(0, 1, 8);
    world.drain();
    world.no_failures();
    world.close();
}

#[test]
fn a_layout_beyond_the_devices_queues_is_refused_with_queue_numbers_and_remedy() {
    let soft = || Ok(Driver::from_table(softib::driver_table()));
    let config = PortConfig { gid_index: None, pkey: 0, mtu: 0 };
    let ports = find(&Choice::Soft, &Filter::default(), config, soft).unwrap();
    for (layout, what) in [
        (
            "P,128,32767:S,2048,64,48,32,16",
            "queue 1 of btl_oxib_receive_queues (sends, from rd_num or sd_max, and btl_oxib_rdma_depth) needs",
        ),
        (
            "P,128,8:S,2048,64,48,32767,16",
            "queue 2 of btl_oxib_receive_queues (sends, from rd_num or sd_max, and btl_oxib_rdma_depth) needs 32783",
        ),
    ] {
        let error =
            Transport::<u64>::open(&ports[0], btl_testing::config(layout), 1).expect_err(layout).to_string();
        assert!(error.contains(what) && error.contains("btl_oxib_receive_queues"), "{error}");
        assert!(error.contains("has no more than 32768"), "{error}");
    }
}

#[test]
fn a_first_completion_queue_beyond_the_devices_largest_is_cut_to_it() {
    let config = Config { cq_size: u32::MAX, ..btl_testing::config(P_AND_S) };
    btl_testing::open(config, btl_testing::job()).close();
}
