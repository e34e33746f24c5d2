//! The connection manager while time is virtual: its deadlines come when the test moves time. A binary of its own: virtual time is the whole
//! process'.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "a C program in Rust: live objects of the device throughout"
)]

mod common;
#[path = "common/connections.rs"]
mod connections;

use connections::{Channel, Event, cm, destroy};
use rdma_cm_sys::*;
use softib::faults::{self, Plan};
use std::time::Duration;
use timing::Simulation;

fn connect(id: *mut rdma_cm_id) {
    assert_eq!(unsafe { (cm().connect)(id, &mut rdma_conn_param { qp_num: 77, ..Default::default() }) }, 0);
}

fn is_readable(channel: &Channel) -> bool {
    let mut poll = libc::pollfd { fd: unsafe { (*channel.0).fd }, events: libc::POLLIN, revents: 0 };
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[test]
fn a_request_that_is_not_answered_ends_when_its_time_is_over_and_not_before() {
    let simulation = Simulation::begin();
    let (ours, theirs) = (Channel::open(), Channel::open());
    let (listener, port) = theirs.listener(RDMA_PS_TCP);
    let id = ours.resolved(RDMA_PS_TCP, port);
    connect(id);
    let due = timing::now() + Duration::from_secs(20);
    while timing::now() < due {
        let next = simulation.turn().expect("the deadline");
        assert!(!is_readable(&ours) && next <= due);
        simulation.advance_to(next);
    }
    simulation.turn();
    let event = ours.next();
    assert_eq!((event.kind, event.status), (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT));
    [id, listener].into_iter().for_each(destroy);
}

#[test]
fn a_request_without_a_listener_is_refused_when_it_has_searched() {
    let simulation = Simulation::begin();
    let channel = Channel::open();
    let (listener, port) = channel.listener(RDMA_PS_TCP);
    destroy(listener);
    let (id, begin) = (channel.resolved(RDMA_PS_TCP, port), timing::now());
    connect(id);
    while !is_readable(&channel) {
        simulation.advance_to(simulation.turn().expect("the next look"));
        simulation.turn();
        // Takes in that it has looked in vain.
        if timing::now() - begin < Duration::from_millis(20) {
            assert_eq!(channel.at_once().err(), Some(libc::EAGAIN));
        }
    }
    assert_eq!(
        (channel.next().kind, timing::now() - begin),
        (RDMA_CM_EVENT_REJECTED, Duration::from_millis(20))
    );
    destroy(id);
}

/// What a channel tells while time passes: each event, and when, in milliseconds.
fn events_within(simulation: &Simulation, channel: &Channel, time: Duration) -> Vec<(Event, u128)> {
    let (begin, mut events) = (timing::now(), Vec::new());
    while timing::now() - begin < time {
        simulation.turn();
        while let Ok(event) = channel.at_once() {
            events.push((event, (timing::now() - begin).as_millis()));
        }
        simulation.advance(Duration::from_millis(1));
    }
    events
}

#[test]
fn a_request_is_late_unless_its_sender_has_let_go_of_it_by_then() {
    let simulation = Simulation::begin();
    let (ours, theirs) = (Channel::open(), Channel::open());
    let (listener, port) = theirs.listener(RDMA_PS_TCP);
    let ids = [ours.resolved(RDMA_PS_TCP, port), ours.resolved(RDMA_PS_TCP, port)];
    let cm_late = Some((1_000_000, Duration::from_millis(100)));
    faults::set(Plan { cm_late, ..Plan::default() });
    ids.into_iter().for_each(connect);
    assert_eq!(theirs.at_once().err(), Some(libc::EAGAIN));
    destroy(ids[0]);
    let events = events_within(&simulation, &theirs, Duration::from_secs(1));
    let [(request, 1..=100)] = &events[..] else { panic!("{} events", events.len()) };
    assert_eq!(request.kind, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(faults::counts().late, 2);
    faults::set(Plan::default());
    [ids[1], request.id, listener].into_iter().for_each(destroy);
}
