//! The connection manager by its C calls: ports, limits, refusals, and peers that end or stop.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "a C program in Rust: live objects of the device throughout"
)]

mod common;
#[path = "common/connections.rs"]
mod connections;

use common::{Child, last_errno, listen, role, say};
use connections::{Channel, bind, cm, destroy, resolve};
use rdma_cm_sys::*;
use std::ptr::{null, null_mut};

fn param(private: &[u8]) -> rdma_conn_param {
    let private_data = if private.is_empty() { null() } else { private.as_ptr().cast() };
    rdma_conn_param { private_data, private_data_len: private.len() as u8, qp_num: 77, ..Default::default() }
}

fn connect(id: *mut rdma_cm_id, private: &[u8]) -> i32 {
    unsafe { (cm().connect)(id, &mut param(private)) }
}

fn accept(id: *mut rdma_cm_id, private: &[u8]) -> i32 {
    unsafe { (cm().accept)(id, &mut param(private)) }
}

#[test]
fn an_address_is_bound_once_and_wildcards_cover_it() {
    let channel = Channel::open();
    let (listener, port) = channel.listener(RDMA_PS_TCP);
    let (other, datagrams) = (channel.id(RDMA_PS_TCP), channel.id(RDMA_PS_UDP));
    for taken in ["127.0.0.1", "0.0.0.0", "[::]"] {
        assert_eq!(
            (bind(other, &format!("{taken}:{port}")), last_errno()),
            (-1, libc::EADDRINUSE),
            "{taken}"
        );
    }
    assert_eq!(bind(other, &format!("127.0.0.2:{port}")), 0, "another address");
    assert_eq!(bind(datagrams, &format!("127.0.0.1:{port}")), 0, "another port space");
    destroy(listener);
    let again = channel.id(RDMA_PS_TCP);
    assert_eq!(bind(again, &format!("127.0.0.1:{port}")), 0, "free again");
    assert_eq!((bind(again, "127.0.0.1:0"), last_errno()), (-1, libc::EINVAL), "bound once");
    [other, datagrams, again].into_iter().for_each(destroy);
    let foreign = channel.id(RDMA_PS_TCP);
    assert_eq!((bind(foreign, "192.0.2.1:0"), last_errno()), (-1, libc::EADDRNOTAVAIL));
    destroy(foreign);
}

/// As rping ends: one thread reads events, another takes the channel away and ends the process. An error would be taken for one.
#[test]
fn a_thread_that_reads_a_destroyed_channel_waits_as_if_nothing_came() {
    let channel = std::mem::ManuallyDrop::new(Channel::open());
    unsafe { (cm().destroy_event_channel)(channel.0) };
    let (raw, (told, hear)) = (channel.0 as usize, std::sync::mpsc::channel());
    std::thread::spawn(move || {
        told.send(None).unwrap();
        told.send(Some(unsafe { (cm().get_cm_event)(raw as *mut _, &mut null_mut()) })).unwrap();
    });
    assert_eq!(hear.recv().unwrap(), None);
    let answer = hear.recv_timeout(std::time::Duration::from_millis(200));
    assert!(answer.is_err(), "it got {answer:?}");
}

#[test]
fn addresses_that_allow_reuse_share_until_one_listens() {
    let channel = Channel::open();
    let ids = [channel.id(RDMA_PS_TCP), channel.id(RDMA_PS_TCP)];
    let holder = channel.id(RDMA_PS_TCP);
    assert_eq!(bind(holder, "127.0.0.1:0"), 0);
    let port = u16::from_be(unsafe { (cm().get_src_port)(holder) });
    destroy(holder);
    for id in ids {
        let (mut yes, level) = (1_i32, RDMA_OPTION_ID as i32);
        let option = RDMA_OPTION_ID_REUSEADDR as i32;
        assert_eq!(unsafe { (cm().set_option)(id, level, option, (&raw mut yes).cast(), 4) }, 0);
        assert_eq!(bind(id, &format!("127.0.0.1:{port}")), 0);
    }
    assert_eq!((unsafe { (cm().listen)(ids[0], 1) }, last_errno()), (-1, libc::EADDRINUSE));
    destroy(ids[1]);
    assert_eq!(unsafe { (cm().listen)(ids[0], 1) }, 0);
    destroy(ids[0]);
}

#[test]
fn private_data_are_limited_and_arrive_as_long_as_their_field() {
    let channel = Channel::open();
    let (listener, port) = channel.listener(RDMA_PS_TCP);
    let id = channel.resolved(RDMA_PS_TCP, port);
    assert_eq!((connect(id, &[1; 57]), last_errno()), (-1, libc::EINVAL));
    assert_eq!(connect(id, &[1; 56]), 0);
    let request = channel.next();
    assert_eq!((request.kind, &request.private[..]), (RDMA_CM_EVENT_CONNECT_REQUEST, &[1; 56][..]));
    assert_eq!(accept(request.id, &[2; 10]), 0);
    let response = channel.next();
    assert_eq!((response.kind, response.private.len()), (RDMA_CM_EVENT_CONNECT_RESPONSE, 196));
    assert!(response.private[..10] == [2; 10] && response.private[10..].iter().all(|b| *b == 0));
    assert_eq!(unsafe { (cm().establish)(id) }, 0);
    assert_eq!(channel.next().kind, RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(unsafe { (cm().disconnect)(id) }, 0);
    assert_eq!(channel.next().kind, RDMA_CM_EVENT_DISCONNECTED);
    assert_eq!(unsafe { (cm().disconnect)(request.id) }, 0);
    let kinds = [channel.next().kind, channel.next().kind, channel.next().kind];
    let times = |kind: u32| kinds.iter().filter(|k| **k == kind).count();
    assert_eq!((times(RDMA_CM_EVENT_DISCONNECTED), times(RDMA_CM_EVENT_TIMEWAIT_EXIT)), (1, 2), "{kinds:?}");
    [id, request.id, listener].into_iter().for_each(destroy);
}

/// A program that waits for edges (mio does) looks until there is nothing more, and is not told again of what is left then.
#[test]
fn an_event_behind_more_than_64_descriptors_without_one_is_found_at_once() {
    let (ours, theirs) = (Channel::open(), Channel::open());
    let (listener, port) = ours.listener(RDMA_PS_TCP);
    let mut ids = Vec::new();
    for _ in 0..70 {
        let id = theirs.resolved(RDMA_PS_TCP, port);
        assert_eq!(connect(id, &[]), 0);
        let request = ours.next();
        assert_eq!(unsafe { (cm().reject)(request.id, null(), 0) }, 0);
        ids.extend([id, request.id]);
    }
    assert_eq!(ours.at_once().err(), Some(libc::EAGAIN));
    for _ in 0..70 {
        assert_eq!(theirs.next().kind, RDMA_CM_EVENT_REJECTED);
    }
    let id = theirs.resolved(RDMA_PS_TCP, port);
    assert_eq!(connect(id, &[]), 0);
    let request = ours.at_once().expect("a request");
    assert_eq!(request.kind, RDMA_CM_EVENT_CONNECT_REQUEST);
    ids.into_iter().chain([id, request.id, listener]).for_each(destroy);
}

/// QEMU takes a readable channel for an event, and its main loop stood still in a blocking rdma_get_cm_event.
#[test]
fn a_channel_is_not_readable_for_the_end_of_a_peer_whose_disconnect_has_been_told() {
    let (ours, theirs) = (Channel::open(), Channel::open());
    let (listener, port) = ours.listener(RDMA_PS_TCP);
    let id = theirs.resolved(RDMA_PS_TCP, port);
    assert_eq!(connect(id, &[]), 0);
    let request = ours.next();
    assert_eq!((request.kind, accept(request.id, &[])), (RDMA_CM_EVENT_CONNECT_REQUEST, 0));
    assert_eq!(theirs.next().kind, RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(unsafe { (cm().establish)(id) }, 0);
    assert_eq!(ours.next().kind, RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(unsafe { (cm().disconnect)(id) }, 0);
    assert_eq!(ours.next().kind, RDMA_CM_EVENT_DISCONNECTED);
    destroy(id);
    let readable = || unsafe {
        let mut poll = libc::pollfd { fd: (*ours.0).fd, events: libc::POLLIN, revents: 0 };
        libc::poll(&mut poll, 1, 100)
    };
    assert_eq!(readable(), 0, "nothing is to come");
    unsafe { (cm().disconnect)(request.id) };
    assert_eq!(ours.next().kind, RDMA_CM_EVENT_TIMEWAIT_EXIT);
    [request.id, listener].into_iter().for_each(destroy);
}

/// A program that closes a listener and opens the next one is found by who asks in between, as on a fabric, where asking takes its time.
#[test]
fn a_request_finds_a_listener_that_comes_up_just_after_it() {
    let channel = Channel::open();
    for _ in 0..20 {
        let (listener, port) = channel.listener(RDMA_PS_TCP);
        let id = channel.resolved(RDMA_PS_TCP, port);
        let next = channel.id(RDMA_PS_TCP);
        destroy(listener);
        assert_eq!(bind(next, &format!("127.0.0.1:{port}")), 0);
        assert_eq!(connect(id, &[]), 0);
        assert_eq!(unsafe { (cm().listen)(next, 1) }, 0);
        let event = channel.next();
        // 20 ms may have passed in between on a machine that is busy enough; then it has been refused.
        if event.kind == RDMA_CM_EVENT_REJECTED {
            [id, next].into_iter().for_each(destroy);
            continue;
        }
        assert_eq!(event.kind, RDMA_CM_EVENT_CONNECT_REQUEST);
        return [id, event.id, next].into_iter().for_each(destroy);
    }
    panic!("all of 20 requests were refused");
}

#[test]
fn refusals_say_why() {
    let channel = Channel::open();
    let (listener, port) = channel.listener(RDMA_PS_TCP);
    let id = channel.resolved(RDMA_PS_TCP, port);
    assert_eq!(connect(id, &[]), 0);
    let request = channel.next();
    assert_eq!(unsafe { (cm().reject)(request.id, [9_u8; 5].as_ptr().cast(), 5) }, 0);
    let event = channel.next();
    assert_eq!((event.kind, event.status, event.private.len()), (RDMA_CM_EVENT_REJECTED, 28, 148));
    assert_eq!(event.private[..5], [9; 5]);
    [id, request.id, listener].into_iter().for_each(destroy);
    let late = channel.resolved(RDMA_PS_TCP, port);
    assert_eq!(connect(late, &[]), 0);
    let event = channel.next();
    assert_eq!((event.kind, event.status), (RDMA_CM_EVENT_REJECTED, 8), "no listener");
    destroy(late);
}

#[test]
fn an_address_of_another_host_is_no_address() {
    let channel = Channel::open();
    let id = channel.id(RDMA_PS_TCP);
    assert_eq!(resolve(id, "192.0.2.1:7"), 0);
    let event = channel.next();
    assert_eq!((event.kind, event.status), (RDMA_CM_EVENT_ADDR_ERROR, -libc::EHOSTUNREACH));
    destroy(id);
}

#[test]
fn a_requester_that_lets_go_is_told_of_as_a_refusal() {
    let channel = Channel::open();
    let (listener, port) = channel.listener(RDMA_PS_TCP);
    let id = channel.resolved(RDMA_PS_TCP, port);
    assert_eq!(connect(id, &[]), 0);
    let request = channel.next();
    destroy(id);
    let event = channel.next();
    assert_eq!((event.kind, event.id), (RDMA_CM_EVENT_REJECTED, request.id));
    assert_eq!(accept(request.id, &[]), -1);
    [request.id, listener].into_iter().for_each(destroy);
}

#[test]
fn a_non_blocking_channel_says_that_there_is_nothing() {
    let channel = Channel::open();
    unsafe { libc::fcntl((*channel.0).fd, libc::F_SETFL, libc::O_NONBLOCK) };
    let mut event = null_mut();
    assert_eq!(unsafe { (cm().get_cm_event)(channel.0, &mut event) }, -1);
    assert_eq!(last_errno(), libc::EAGAIN);
}

#[test]
fn attributes_are_those_of_the_negotiation() {
    let channel = Channel::open();
    let (listener, port) = channel.listener(RDMA_PS_TCP);
    let id = channel.resolved(RDMA_PS_TCP, port);
    let mut wishes = param(&[]);
    (wishes.responder_resources, wishes.initiator_depth, wishes.rnr_retry_count) = (3, 5, 7);
    assert_eq!(unsafe { (cm().connect)(id, &mut wishes) }, 0);
    let request = channel.next();
    let attributes = |id, state: u32| {
        let mut attr = rdma_sys::ibv_qp_attr { qp_state: state, ..Default::default() };
        let mut mask = 0;
        let code = unsafe { (cm().init_qp_attr)(id, &mut attr, &mut mask) };
        (code, attr, mask as u32)
    };
    let (code, receive, mask) = attributes(request.id, rdma_sys::IBV_QPS_RTR);
    assert_eq!((code, receive.dest_qp_num, receive.min_rnr_timer), (0, 77, 0));
    assert_eq!(receive.max_dest_rd_atomic, 5, "what the peer has outstanding");
    assert_ne!(mask & rdma_sys::IBV_QP_RQ_PSN, 0);
    let (code, send, _) = attributes(request.id, rdma_sys::IBV_QPS_RTS);
    assert_eq!((code, send.max_rd_atomic, send.rnr_retry), (0, 3, 7));
    let (code, ..) = attributes(id, rdma_sys::IBV_QPS_RTR);
    assert_eq!(code, -1, "the peer's side is not known yet");
    assert_eq!(accept(request.id, &[]), 0);
    assert_eq!(channel.next().kind, RDMA_CM_EVENT_CONNECT_RESPONSE);
    let (_, theirs, _) = attributes(id, rdma_sys::IBV_QPS_RTR);
    assert_eq!(theirs.rq_psn, send.sq_psn, "one PSN a side");
    [id, request.id, listener].into_iter().for_each(destroy);
}

#[test]
fn datagram_ids_look_each_other_up() {
    let channel = Channel::open();
    let (listener, port) = channel.listener(RDMA_PS_UDP);
    let id = channel.resolved(RDMA_PS_UDP, port);
    assert_eq!(connect(id, &[4; 180]), 0);
    let request = channel.next();
    assert_eq!((request.kind, request.private.len()), (RDMA_CM_EVENT_CONNECT_REQUEST, 180));
    assert_eq!(accept(request.id, &[]), 0);
    assert_eq!(channel.next().kind, RDMA_CM_EVENT_ESTABLISHED);
    [id, request.id, listener].into_iter().for_each(destroy);
}

/// Roles of the other process: it listens, tells its port, and answers as it is told.
#[test]
fn child_main() {
    let Some(role) = role() else { return };
    let channel = Channel::open();
    let (_listener, port) = channel.listener(RDMA_PS_TCP);
    say(&[port.into()]);
    if role == "accepts" {
        let request = channel.next();
        assert_eq!(accept(request.id, &[]), 0);
        assert_eq!(channel.next().kind, RDMA_CM_EVENT_ESTABLISHED);
        say(&[1]);
    }
    let _ = listen();
}

#[test]
fn a_peer_that_is_killed_is_disconnected_at_once_and_its_socket_swept() {
    let mut child = Child::start("accepts");
    let port = child.hear()[0] as u16;
    let channel = Channel::open();
    let id = channel.resolved(RDMA_PS_TCP, port);
    assert_eq!(connect(id, &[]), 0);
    assert_eq!(channel.next().kind, RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(unsafe { (cm().establish)(id) }, 0);
    child.hear();
    child.kill();
    assert_eq!(channel.next().kind, RDMA_CM_EVENT_DISCONNECTED);
    destroy(id);
    // Its port is free, and its socket, which it could not remove, hinders no later listener.
    let next = channel.id(RDMA_PS_TCP);
    assert_eq!(bind(next, &format!("127.0.0.1:{port}")), 0);
    assert_eq!(unsafe { (cm().listen)(next, 1) }, 0);
    destroy(next);
}

#[test]
fn a_peer_that_is_killed_before_it_answers_is_unreachable_at_once() {
    let mut child = Child::start("is silent");
    let port = child.hear()[0] as u16;
    let channel = Channel::open();
    let id = channel.resolved(RDMA_PS_TCP, port);
    assert_eq!(connect(id, &[]), 0);
    child.kill();
    let event = channel.next();
    assert_eq!((event.kind, event.status), (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT));
    destroy(id);
}
