//! Asynchronous events: the software device raises each, the helper thread reads it, and the
//! transport does what `transport::port::events::TABLE` says. One world at a time: events are
//! raised in all of the process, about the n-th object.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::World;
use btl_testing::watchdog::Watchdog;
use mca_btl_oxib::transport::Transport;
use mca_btl_oxib::transport::device::{Choice, Filter, PortConfig, find};
use mca_btl_oxib::transport::port::events::{Action, TABLE};
use softib::faults::{EventFault, raise, set_port};
use std::sync::{Mutex, MutexGuard, PoisonError};
use verbs::{Driver, EventKind};

/// Two shared queues that start with 8 receives and may grow to 64; the limit is not reached by
/// what these tests send.
const SHARED: &str = "S,128,64,48,32,8,2:S,2048,64,48,32,8,2";
const OVER_XRC: &str = "X,128,64,48,32,8,2:X,2048,64,48,32,8,2";

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static SAID: Mutex<Vec<(log::Level, String)>> = Mutex::new(Vec::new());

struct Listener;

impl log::Log for Listener {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        let line = (record.level(), record.args().to_string());
        if std::env::var_os("OXIB_LOG").is_some() {
            eprintln!("{} {}", line.0, line.1);
        }
        SAID.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }
    fn flush(&self) {}
}

/// No other test of this file runs meanwhile, and what is logged is kept.
fn alone() -> MutexGuard<'static, ()> {
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = log::set_logger(&Listener);
    log::set_max_level(log::LevelFilter::Debug);
    SAID.lock().unwrap_or_else(PoisonError::into_inner).clear();
    guard
}

/// How often something was said at this level.
fn said(level: log::Level, text: &str) -> usize {
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    said.iter().filter(|(of, line)| *of == level && line.contains(text)).count()
}

/// Sides that have exchanged messages, so that all connections are up and idle.
fn connected(layout: &str, count: usize) -> World {
    let mut world = World::new("events", layout, count);
    exchange(&mut world);
    world
}

fn exchange(world: &mut World) {
    for from in 0..world.sides.len() {
        for to in (0..world.sides.len()).filter(|to| *to != from) {
            [8, 1000].into_iter().for_each(|len| world.send(from, to, len));
        }
    }
    world.drain();
}

/// Raises an event about the n-th object, or all; how many were struck.
fn event(name: &str, number: u64) -> u64 {
    raise(EventFault::named(name, number).unwrap()).unwrap()
}

/// How often an event of this name has been looked at, by all sides.
fn noted(name: &str) -> usize {
    let code = EventFault::named(name, 0).unwrap().code;
    said(log::Level::Debug, &format!("softib0: {} of", EventKind::from_code(code).name()))
}

/// Raises an event about everything, and waits until the sides have looked at it. RDMA-CM has the
/// device open, too, and looks at none.
fn all_hear(world: &mut World, name: &str) {
    let before = noted(name);
    let sides = world.sides.len();
    assert!(event(name, 0) as usize >= sides, "{name}");
    world.until(name, |_| noted(name) >= before + sides);
}

fn failures(world: &World) -> Vec<usize> {
    world.sides.iter().map(|side| side.failed.len()).collect()
}

#[test]
fn a_queue_pair_that_is_broken_fails_its_endpoint_and_no_other() {
    let _alone = alone();
    for name in ["qp-fatal", "qp-req-err", "qp-access-err"] {
        let constant = format!("IBV_EVENT_{}", name.to_uppercase().replace('-', "_"));
        let mut world = connected(SHARED, 3);
        assert_eq!(event(name, 1), 1);
        // The side that owns it, and the peer at its other end, which is refused.
        world.until(name, |w| failures(w).iter().sum::<usize>() == 2);
        let reasons: Vec<&String> =
            world.sides.iter().flat_map(|side| side.failed.iter().map(|(_, reason)| reason)).collect();
        let by_event =
            |reason: &&&String| reason.contains("the device reports") && reason.contains(&constant);
        assert_eq!(reasons.iter().filter(by_event).count(), 1, "{reasons:?}");
        assert_eq!(failures(&world).iter().max(), Some(&1), "the third side has lost nothing");
        world.close();
    }
}

#[test]
fn a_broken_device_fails_every_endpoint_and_takes_no_more_sends_and_peers() {
    let _alone = alone();
    let mut world = connected(SHARED, 3);
    assert_eq!(event("device-fatal", 1), 1);
    world.until("the first side's endpoints fail", |w| failures(w)[0] == 2);
    let reasons = &world.sides[0].failed;
    assert!(reasons.iter().all(|(_, reason)| reason.contains("the device is broken")), "{reasons:?}");
    [(1, 2), (2, 1)].into_iter().for_each(|(from, to)| world.send(from, to, 8));
    world.until_of(&[1, 2], "the others go on", |w| w.model.is_empty());
    let (id, tag) = (world.id(0, 1), 1);
    assert!(!world.sides[0].transport.sendi(id, tag, [b"14 bytes here.", b""]));
    let (name, adverts) = (world.sides[1].name, world.sides[1].adverts.clone());
    let error = world.sides[0].transport.add(name, &adverts).unwrap_err();
    assert!(error.to_string().contains("the device is broken"), "{error}");
    world.close();
}

#[test]
fn a_broken_completion_queue_of_messages_fails_every_endpoint_and_one_of_a_manager_none() {
    let _alone = alone();
    let mut world = connected(SHARED, 2);
    // Of the first side: receives, sends, then the connection managers'.
    assert_eq!(event("cq-err", 3), 1);
    let text = "a completion queue of a connection manager overran";
    world.until("it is heard", |_| said(log::Level::Warn, text) == 1);
    exchange(&mut world);
    assert_eq!(event("cq-err", 1), 1);
    world.until("the first side's endpoint fails", |w| failures(w)[0] == 1);
    assert!(world.sides[0].failed[0].1.contains("a completion queue overran"));
    world.close();
}

#[test]
fn a_broken_shared_receive_queue_fails_the_endpoints_of_its_port_only() {
    let _alone = alone();
    let mut world = connected(SHARED, 2);
    assert_eq!(event("srq-err", 2), 1);
    world.until("the first side's endpoint fails", |w| failures(w)[0] == 1);
    assert!(world.sides[0].failed[0].1.contains("a shared receive queue is broken"));
    world.close();
}

#[test]
fn a_shared_receive_queue_that_runs_low_grows_and_no_other_does() {
    let _alone = alone();
    for layout in [SHARED, OVER_XRC] {
        let mut world = connected(layout, 2);
        let posted = |w: &World| -> Vec<usize> {
            let of_side = |side: &btl_testing::Side| side.transport.audit().queues;
            w.sides.iter().flat_map(of_side).map(|queue| queue.recv_slots.0).collect()
        };
        world.until("the queues are full", |w| posted(w).iter().all(|posted| *posted <= 8));
        let before = posted(&world);
        assert_eq!(event("srq-limit-reached", 2), 1);
        world.until("it grows", |w| posted(w)[1] == 16);
        let after = posted(&world);
        assert_eq!((after[0], &after[2..]), (before[0], &before[2..]), "{layout}");
        exchange(&mut world);
        world.close();
    }
}

#[test]
fn a_port_that_goes_down_and_comes_up_is_told_of_and_nothing_fails() {
    let _alone = alone();
    let mut world = connected(SHARED, 2);
    set_port(false).unwrap();
    world.until("both hear", |w| w.sides.iter().all(|side| side.transport.stats.port_errors == 1));
    assert_eq!(said(log::Level::Warn, "port 1 of softib0 is down"), 2, "one line for each side");
    [(0, 1), (1, 0)].into_iter().for_each(|(from, to)| world.send(from, to, 100));
    world.step();
    assert!(!world.model.is_empty(), "nothing goes through a port that is down");
    set_port(true).unwrap();
    world.drain();
    world.until("both hear", |_| said(log::Level::Info, "port 1 of softib0 is up") == 2);
    exchange(&mut world);
    world.close();
}

#[test]
fn what_is_published_of_a_port_and_has_changed_is_told_and_nothing_fails() {
    let _alone = alone();
    let mut world = connected(SHARED, 2);
    for (name, what) in [("lid-change", "LID"), ("pkey-change", "P_Key table"), ("gid-change", "GID table")] {
        all_hear(&mut world, name);
        assert_eq!(said(log::Level::Info, &format!("the {what} of port 1 of softib0 has changed")), 2);
    }
    exchange(&mut world);
    world.close();
}

#[test]
fn events_that_ask_for_nothing_are_counted_and_change_nothing() {
    let _alone = alone();
    let mut world = connected(SHARED, 2);
    let names = [
        "comm-est",
        "sq-drained",
        "path-mig",
        "path-mig-err",
        "qp-last-wqe-reached",
        "sm-change",
        "client-reregister",
        "wq-fatal",
    ];
    names.iter().for_each(|name| all_hear(&mut world, name));
    let noted = TABLE.iter().filter(|row| row.action == Action::Note);
    assert_eq!(noted.count(), names.len(), "each has been raised");
    exchange(&mut world);
    world.close();
}

#[test]
fn an_event_of_unknown_type_is_told_once() {
    let _alone = alone();
    let mut world = connected(SHARED, 2);
    all_hear(&mut world, "unknown");
    all_hear(&mut world, "unknown");
    assert_eq!(said(log::Level::Info, "event of unknown type 99"), 2, "once for each side");
    exchange(&mut world);
    world.close();
}

#[test]
fn an_event_of_a_receive_queue_pair_of_a_domain_is_told_by_the_process_that_made_it() {
    let _alone = alone();
    let mut world = connected(OVER_XRC, 4);
    let broken = event("xrc-fatal", 0) as usize;
    assert!(broken > 0);
    let text = "IBV_EVENT_QP_FATAL for XRC receive queue pair";
    world.until("all are told", |_| said(log::Level::Info, text) >= broken);
    (0..1000).for_each(|_| world.step());
    assert_eq!(said(log::Level::Info, text), broken);
    assert_eq!(failures(&world), [0, 0, 0, 0]);
    world.close();
}

/// The ports of one device, each with a transport; they know each other.
fn two_ports() -> [Transport<u64>; 2] {
    let settings = softib::port::Settings { ports: 2, ..softib::port::Settings::default() };
    softib::port::configure(settings).unwrap();
    let soft = || Ok(Driver::with_connections(softib::driver_table(), softib::cm_table()));
    let wanted = PortConfig { gid_index: None, pkey: 0, mtu: 0 };
    let ports = find(&Choice::Soft, &Filter::default(), wanted, soft).unwrap();
    assert_eq!(ports.len(), 2);
    let job = btl_testing::job();
    let open = |n: usize| Transport::open(&ports[n], btl_testing::config(SHARED), job + n as u64).unwrap();
    let mut both: [Transport<u64>; 2] = [open(0), open(1)];
    let adverts = both.each_ref().map(|transport| transport.adverts().to_vec());
    both[0].add(job + 1, &adverts[1]).unwrap();
    both[1].add(job, &adverts[0]).unwrap();
    both
}

#[test]
fn two_ports_of_a_device_hear_of_their_own_queues_and_of_themselves() {
    let _alone = alone();
    let _watchdog = Watchdog::new("two ports", btl_testing::PATIENCE);
    for round in 0..10 {
        let mut both = two_ports();
        // The third is the second port's first.
        assert_eq!(event("srq-limit-reached", 3), 1, "round {round}");
        assert!(event("port-err", 2) >= 2, "round {round}");
        let posted = |transport: &Transport<u64>| transport.audit().queues[0].recv_slots.0;
        while both.each_ref().map(|transport| transport.stats.device_events) != [1, 2] {
            both.iter_mut()
                .for_each(|transport| while transport.poll() && transport.take_upcall().is_some() {});
        }
        assert_eq!(both.each_ref().map(posted), [8, 16], "round {round}");
        assert_eq!(both.each_ref().map(|transport| transport.stats.port_errors), [0, 1], "round {round}");
        both.into_iter().for_each(Transport::close);
    }
    softib::port::configure(softib::port::Settings::default()).unwrap();
}
