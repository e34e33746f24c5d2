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

use connections::{Channel, cm, destroy};
use rdma_cm_sys::*;
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
