//! Devices with two ports: when one of them goes down, connections go on over the other, and nothing is lost, doubled or out of order.
//! A binary of its own with one test, for the ports are the whole process'.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::memory::Memory;
use btl_testing::{World, config};
use mca_btl_oxib::protocol::layout::DEFAULT;
use mca_btl_oxib::transport::stats::Stats;
use softib::faults;
use softib::port::{Settings, configure};
use verbs::RdmaOp;

const LAYOUTS: [&str; 4] = [
    DEFAULT,
    "P,128,64,48,32,4:P,8192,16,8,4",
    "P,128,4,2,1,2:P,8192,2,1,1,2",
    "S,128,128,64,32,64:S,8192,64,32,16,32",
];

/// Sides that bring connections up by this manager; where it has no address at the alternate port, as softib's rdmacm, by ibcm there.
fn world(layout: &str, manager: &str, sides: usize) -> World {
    let mut config = config(layout);
    (config.reconnects, config.cpc.rdmacm.priority) = (8, if manager == "rdmacm" { 100 } else { 0 });
    World::with("two ports", config, sides)
}

fn counted(world: &World, count: impl Fn(&Stats) -> u64) -> u64 {
    world.sides.iter().map(|side| count(&side.transport.stats)).sum()
}

fn all_arrives(world: &mut World) {
    world.until("every message arrives", |w| w.nothing_waits() && w.model.is_empty());
    world.balance();
    for (rank, side) in world.sides.iter().enumerate() {
        assert!(side.failed.is_empty(), "side {rank}: {:?}; {}", side.failed, world.books());
    }
}

fn leave(mut world: World) {
    world.all_part();
    world.close();
}

/// The first port goes down for good, in the middle of traffic; later the second does, and the first is back.
fn messages_go_on(layout: &str, manager: &str) {
    let mut world = world(layout, manager, 3);
    world.talk(100);
    let mut changes = 0;
    for down in [1, 2, 1] {
        faults::set_ports(Some(3 - down), true).unwrap();
        faults::set_ports(Some(down), false).unwrap();
        world.talk(300);
        all_arrives(&mut world);
        let now = counted(&world, |stats| stats.port_changes);
        assert!(
            now >= changes + 3,
            "{layout}, {manager}: {changes} and then {now} changes; {}",
            world.books()
        );
        changes = now;
    }
    leave(world);
}

/// A port that is down when the first message goes, which no connection has tried.
fn connections_come_up(layout: &str) {
    let mut config = config(layout);
    (config.reconnects, config.cpc.include) = (8, vec!["ibcm".to_owned()]);
    (config.cpc.ibcm.timeout, config.cpc.ibcm.max_retries) = (std::time::Duration::from_millis(20), 3);
    let mut world = World::with("two ports, none tried", config, 2);
    faults::set_ports(Some(1), false).unwrap();
    world.talk(30);
    all_arrives(&mut world);
    assert!(counted(&world, |stats| stats.port_changes) > 0, "{}", world.books());
    leave(world);
}

/// Puts and gets that were under way are carried out over the other port: both have one protection domain, and keys hold.
fn operations_go_on(layout: &str) {
    let mut world = world(layout, "ibcm", 2);
    world.send(0, 1, 8);
    world.send(1, 0, 8);
    world.drain();
    let near = Memory::new(&world.sides[0].transport, (0..=255).collect());
    let far = Memory::new(&world.sides[1].transport, vec![0; 256]);
    let id = world.id(0, 1);
    for put in 0..256 {
        if put == 100 {
            faults::set_ports(Some(1), false).unwrap();
        }
        let (local, remote) = (near.local(put, 1), far.remote(put));
        assert!(world.sides[0].transport.rdma(id, RdmaOp::Write, local, remote, put as u64).is_ok());
    }
    world.until("all has been written", |w| w.sides[0].rdma.len() == 256);
    assert!(world.sides[0].rdma.iter().all(|(_, ok)| *ok), "{}", world.books());
    assert_eq!(far.bytes, near.bytes);
    leave(world);
}

#[test]
fn when_a_port_goes_down_connections_go_on_over_the_other() {
    configure(Settings { ports: 2, ..Settings::default() }).unwrap();
    LAYOUTS.iter().for_each(|layout| messages_go_on(layout, "ibcm"));
    messages_go_on(DEFAULT, "rdmacm");
    connections_come_up(DEFAULT);
    operations_go_on(DEFAULT);
}
