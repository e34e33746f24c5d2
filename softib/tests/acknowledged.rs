//! A message whose sender has been told that it is delivered is delivered, whatever becomes of its queue pair: it completes with
//! success before anything is flushed.
//!
//! In each test the receiver's program has taken the rings over and then does not poll, so that the message lies in its ring.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/connections.rs"]
mod connections;
#[path = "common/xrc.rs"]
mod xrc;

use common::*;
use connections::{Channel, cm};
use rdma_cm_sys::*;
use rdma_sys::*;
use std::ffi::c_int;
use std::ptr::null_mut;

const HERE: u32 = IBV_WC_SUCCESS;
const FLUSHED: u32 = IBV_WC_WR_FLUSH_ERR;
const LEN: usize = 40_000;

fn quick() -> Path {
    Path { timeout: 8, retry_cnt: 1, ..Path::default() }
}

/// Polls until the rings are this program's: nothing that is sent from now on is delivered unless it polls again, for some
/// milliseconds.
fn take_over(dev: &Dev) {
    let idle = dev.cq(1);
    (0..300).for_each(|_| assert!(poll(idle).is_none()));
    assert_eq!(unsafe { (table().destroy_cq)(idle) }, 0);
}

/// Sends `len` bytes of a pattern from `a`, and waits until it is told that they are there.
fn send(dev: &Dev, a: Qp, len: usize, change: impl FnOnce(&mut ibv_send_wr)) {
    let mut out = dev.buf(LEN);
    out.data[..len].copy_from_slice(&pattern(len as u64, len));
    take_over(dev);
    assert_eq!(a.post(9, IBV_WR_SEND, &[out.sge(0, len)], change), 0);
    assert_eq!(a.wait().status, HERE);
}

fn arrived(buf: &Buf, len: usize) -> bool {
    buf.data[..len] == pattern(len as u64, len)[..]
}

/// The wr_ids and statuses of what is in a queue.
fn all(cq: *mut ibv_cq) -> Vec<(u64, u32)> {
    std::iter::from_fn(|| poll(cq)).map(|wc| (wc.wr_id, wc.status)).collect()
}

type Change = fn(&mut ibv_send_wr);

fn imm(wr: &mut ibv_send_wr) {
    wr.opcode = IBV_WR_SEND_WITH_IMM;
}

#[test]
fn a_move_to_err_flushes_only_what_has_not_been_acknowledged() {
    let dev = Dev::open();
    let kinds: [(usize, Change); 4] = [(8, |_| ()), (500, |_| ()), (LEN, |_| ()), (8, imm)];
    for (len, change) in kinds {
        let (a, b) = loopback(&dev, &quick());
        let buf = dev.buf(LEN);
        (1..4).for_each(|wr_id| assert_eq!(b.recv(wr_id, &[buf.sge(0, LEN)]), 0));
        send(&dev, a, len, change);
        assert_eq!(b.to_state(IBV_QPS_ERR), 0);
        assert_eq!(all(b.cq), [(1, HERE), (2, FLUSHED), (3, FLUSHED)], "{len} bytes");
        assert!(arrived(&buf, len));
    }
}

#[test]
fn a_reset_or_a_destroyed_queue_pair_leaves_the_data_in_the_buffer() {
    let dev = Dev::open();
    for destroy in [false, true] {
        let (a, b) = loopback(&dev, &quick());
        let buf = dev.buf(LEN);
        assert_eq!(b.recv(1, &[buf.sge(0, LEN)]), 0);
        send(&dev, a, 300, |_| ());
        if destroy {
            b.destroy()
        } else {
            assert_eq!(b.to_state(IBV_QPS_RESET), 0)
        }
        assert!(arrived(&buf, 300), "destroyed: {destroy}");
        assert_eq!(all(b.cq), [], "completions go with the queue pair");
    }
}

#[test]
fn a_message_to_a_shared_receive_queue_survives_the_end_of_its_queue_pair() {
    let dev = Dev::open();
    let (srq, cq) = (dev.srq(8), dev.cq(16));
    let a = dev.qp(IBV_QPT_RC, dev.cq(16));
    let b = dev.qp_with(IBV_QPT_RC, cq, srq, |_| ());
    a.connect(b.num(), &quick());
    b.connect(a.num(), &quick());
    let buf = dev.buf(LEN);
    (1..3).for_each(|wr_id| assert_eq!(srq_recv(srq, wr_id, buf.sge(0, LEN)), 0));
    while event(&dev).is_some() {}
    send(&dev, a, 300, |_| ());
    assert_eq!(b.to_state(IBV_QPS_ERR), 0);
    assert_eq!(all(cq), [(1, HERE)]);
    assert!(arrived(&buf, 300));
    let told: Vec<u32> = std::iter::from_fn(|| event(&dev)).collect();
    assert!(told.contains(&IBV_EVENT_QP_LAST_WQE_REACHED), "{told:?}");
}

#[test]
fn a_write_with_immediate_completes_at_a_target_that_goes_to_err() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &quick());
    let buf = dev.buf(LEN);
    (1..3).for_each(|wr_id| assert_eq!(b.recv(wr_id, &[]), 0));
    let rdma = ibv_send_wr_rdma { remote_addr: buf.addr(), rkey: buf.key() };
    send(&dev, a, 300, |wr| (wr.opcode, wr.wr.rdma) = (IBV_WR_RDMA_WRITE_WITH_IMM, rdma));
    assert_eq!(b.to_state(IBV_QPS_ERR), 0);
    assert_eq!(all(b.cq), [(1, HERE), (2, FLUSHED)]);
    assert!(arrived(&buf, 300));
}

/// Nothing is promised for these, but what has arrived has arrived.
#[test]
fn messages_of_unreliable_queue_pairs_that_have_arrived_complete_as_well() {
    let dev = Dev::open();
    let (a, b) = (dev.qp(IBV_QPT_UC, dev.cq(16)), dev.qp(IBV_QPT_UC, dev.cq(16)));
    a.connect(b.num(), &quick());
    b.connect(a.num(), &quick());
    let buf = dev.buf(LEN);
    (1..3).for_each(|wr_id| assert_eq!(b.recv(wr_id, &[buf.sge(0, LEN)]), 0));
    send(&dev, a, 300, |_| ());
    assert_eq!(b.to_state(IBV_QPS_ERR), 0);
    assert_eq!(all(b.cq), [(1, HERE), (2, FLUSHED)], "UC");

    let (a, b, ah) = (dev.qp(IBV_QPT_UD, dev.cq(16)), dev.qp(IBV_QPT_UD, dev.cq(16)), dev.ah());
    [a, b].iter().for_each(|qp| qp.ready_ud(5));
    (1..3).for_each(|wr_id| assert_eq!(b.recv(wr_id, &[buf.sge(0, LEN)]), 0));
    send(&dev, a, 300, |wr| wr.wr.ud = ibv_send_wr_ud { ah, remote_qpn: b.num(), remote_qkey: 5 });
    assert_eq!(b.to_state(IBV_QPS_ERR), 0);
    assert_eq!(all(b.cq), [(1, HERE), (2, FLUSHED)], "UD");
}

/// Their buffers may be unmapped by then, though they are still registered. A busy machine may let the device's thread deliver
/// the message before that, so one round of many has to show it.
#[test]
fn the_reset_of_an_unreliable_queue_pair_leaves_its_buffers_alone() {
    let dev = Dev::open();
    for destroy in [false, true] {
        for kind in [IBV_QPT_UC, IBV_QPT_UD] {
            let left_alone = (0..50).any(|_| leaves_its_buffer_alone(&dev, kind, destroy));
            assert!(left_alone, "type {kind}, destroy {destroy}");
        }
    }
}

/// A message lies in the ring of a queue pair of this type while that is reset or destroyed: whether its buffer is as it was.
fn leaves_its_buffer_alone(dev: &Dev, kind: u32, destroy: bool) -> bool {
    let (a, b, ah) = (dev.qp(kind, dev.cq(16)), dev.qp(kind, dev.cq(16)), dev.ah());
    if kind == IBV_QPT_UD {
        [a, b].iter().for_each(|qp| qp.ready_ud(5));
    } else {
        a.connect(b.num(), &quick());
        b.connect(a.num(), &quick());
    }
    let buf = dev.buf(LEN);
    assert_eq!(b.recv(1, &[buf.sge(0, LEN)]), 0);
    let to = ibv_send_wr_ud { ah, remote_qpn: b.num(), remote_qkey: 5 };
    send(dev, a, 300, |wr| {
        if kind == IBV_QPT_UD {
            wr.wr.ud = to;
        }
    });
    if destroy {
        b.destroy();
    } else {
        assert_eq!(b.to_state(IBV_QPS_RESET), 0);
    }
    buf.data.iter().all(|byte| *byte == buf.data[LEN - 1])
}

/// Both kinds of requests complete to one queue: what was received stands before the error, and the flush after it.
#[test]
fn a_send_that_fails_stands_behind_what_had_been_received() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &quick());
    let buf = dev.buf(LEN);
    (1..3).for_each(|wr_id| assert_eq!(b.recv(wr_id, &[buf.sge(0, LEN)]), 0));
    send(&dev, a, 300, |_| ());
    let wrong = ibv_sge { lkey: buf.key() ^ 1, ..buf.sge(0, 8) };
    let list = [wrong, buf.sge(0, 8)];
    let mut second = ibv_send_wr { wr_id: 6, opcode: IBV_WR_SEND, num_sge: 1, ..Default::default() };
    second.sg_list = list[1..].as_ptr().cast_mut();
    assert_eq!(b.post(5, IBV_WR_SEND, &list[..1], |wr| wr.next = &mut second), 0);
    assert_eq!(all(b.cq), [(1, HERE), (5, IBV_WC_LOC_PROT_ERR), (6, FLUSHED), (2, FLUSHED)]);
    assert!(arrived(&buf, 300));
}

/// The acknowledgement is that of the whole message: both sides say the same. Where this program is not run for some milliseconds, the
/// device's thread brings the rest, so that it takes another round.
#[test]
fn a_message_of_which_only_a_part_has_come_is_flushed_and_its_sender_told() {
    let dev = Dev::open();
    let buf = dev.buf(4 << 20);
    let in_part = |_| {
        let (a, b) = loopback(&dev, &quick());
        assert_eq!(b.recv(1, &[buf.sge(0, 4 << 20)]), 0);
        take_over(&dev);
        assert_eq!(a.send(2, &[buf.sge(0, 4 << 20)]), 0);
        assert_eq!(b.to_state(IBV_QPS_ERR), 0);
        let ends = (b.wait().status, a.wait().status);
        assert!([(FLUSHED, IBV_WC_RETRY_EXC_ERR), (HERE, HERE)].contains(&ends), "{ends:?}");
        ends == (FLUSHED, IBV_WC_RETRY_EXC_ERR)
    };
    assert!((0..50).any(in_part), "no message was cut in fifty rounds");
}

#[test]
fn an_xrc_message_survives_its_receive_queue_pair_and_is_in_its_buffer_when_the_srq_goes() {
    let dev = Dev::open();
    let name = xrc::Name::new();
    let xrcd = xrc::domain(&dev, &name.file);
    let srq = xrc::Srq::new(&dev, xrcd, 8);
    let (from, to) = xrc::pair(&dev, xrcd, &xrc::impatient());
    let buf = dev.buf(LEN);
    let remote = |wr: &mut ibv_send_wr| wr.qp_type.xrc = ibv_send_wr_xrc { remote_srqn: srq.num };
    assert_eq!(srq_recv(srq.srq, 1, buf.sge(0, LEN)), 0);
    send(&dev, from, 300, remote);
    assert_eq!(to.to_state(IBV_QPS_ERR), 0);
    assert_eq!(all(srq.cq), [(1, HERE)]);
    assert!(arrived(&buf, 300));

    let (from, _to) = xrc::pair(&dev, xrcd, &xrc::impatient());
    assert_eq!(srq_recv(srq.srq, 2, buf.sge(0, LEN)), 0);
    send(&dev, from, 500, remote);
    srq.destroy();
    assert!(arrived(&buf, 500));
}

/// Receives that are posted in each round of the race.
const RECEIVES: u64 = 48;

/// Closes its queue pair while the parent sends to it, and says how many messages it has had.
fn closes() {
    let dev = Dev::open();
    let (cq, buf) = (dev.cq(256), dev.buf(64));
    while let Some(words) = listen() {
        let (theirs, after, shared) = (words[0] as u32, words[1], words[2] != 0);
        let srq = if shared { dev.srq(RECEIVES as u32) } else { null_mut() };
        let qp = dev.qp_with(IBV_QPT_RC, cq, srq, |_| ());
        qp.init(ALL_ACCESS);
        for wr_id in 0..RECEIVES {
            let posted =
                if shared { srq_recv(srq, wr_id, buf.sge(0, 64)) } else { qp.recv(wr_id, &[buf.sge(0, 64)]) };
            assert_eq!(posted, 0);
        }
        qp.rtr(theirs, &quick());
        qp.rts(&quick());
        say(&[qp.num().into()]);
        let mut had = 0;
        while had < after {
            had += u64::from(poll(cq).is_some_and(|wc| wc.status == HERE));
        }
        assert_eq!(qp.to_state(IBV_QPS_ERR), 0);
        had += all(cq).iter().filter(|(_, status)| *status == HERE).count() as u64;
        say(&[had]);
        qp.destroy();
        if shared {
            assert_eq!(unsafe { (table().destroy_srq)(srq) }, 0);
        }
    }
}

/// The receiver's queue pair goes to ERR while messages are on their way: their sender gets a success for each that is received, and
/// for no other.
#[test]
fn a_queue_pair_that_is_about_to_close_acknowledges_what_it_receives_and_nothing_else() {
    let (dev, mut random) = (Dev::open(), Random::from_environment());
    let (cq, buf) = (dev.cq(256), dev.buf(64));
    let mut child = Child::start("closes");
    for round in 0..rounds("SOFTIB_CLOSE_ROUNDS", 300) {
        let qp = dev.qp(IBV_QPT_RC, cq);
        child.tell(&[qp.num().into(), random.below(RECEIVES), round % 2]);
        let theirs = child.hear()[0] as u32;
        qp.connect(theirs, &quick());
        let mut acknowledged = 0;
        for wr_id in 0..RECEIVES {
            assert_eq!(qp.send(wr_id, &[buf.sge(0, 8)]), 0);
            let status = wait(cq).status;
            if status != HERE {
                assert_eq!(status, IBV_WC_RETRY_EXC_ERR);
                break;
            }
            acknowledged += 1;
        }
        let had = child.hear()[0];
        assert_eq!(acknowledged, had, "round {round}: acknowledged, and received");
        qp.destroy();
    }
    child.finish();
}

/// A function of librdmacm by its name.
unsafe fn call<F: Copy>(name: &str) -> F {
    let found = softib::CM_CALLS.iter().find(|call| call.name == name).expect(name);
    assert_eq!(size_of::<F>(), size_of::<*const ()>());
    unsafe { std::mem::transmute_copy(&found.target) }
}

/// Gives an id a queue pair that completes to `cq`.
fn give_qp(dev: &Dev, id: *mut rdma_cm_id, cq: *mut ibv_cq) -> Qp {
    type CreateQp = unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
    let mut init = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, qp_type: IBV_QPT_RC, ..Default::default() };
    init.cap =
        ibv_qp_cap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, ..Default::default() };
    unsafe {
        assert_eq!(call::<CreateQp>("rdma_create_qp")(id, dev.pd, &mut init), 0, "errno {}", last_errno());
        Qp { qp: (*id).qp, cq }
    }
}

const PLAIN: rdma_conn_param = rdma_conn_param {
    private_data: std::ptr::null(),
    private_data_len: 0,
    responder_resources: 1,
    initiator_depth: 1,
    flow_control: 0,
    retry_count: 7,
    rnr_retry_count: 7,
    srq: 0,
    qp_num: 0,
};

/// Waits until the channel's descriptor is readable, and looks once, without waiting: the kind of the event, or errno.
fn look(channel: &Channel) -> Result<u32, c_int> {
    let mut event = null_mut();
    unsafe {
        let mut poll = libc::pollfd { fd: (*channel.0).fd, events: libc::POLLIN, revents: 0 };
        assert_eq!(libc::poll(&mut poll, 1, PATIENCE.as_millis() as c_int), 1, "nothing comes");
        let flags = libc::fcntl(poll.fd, libc::F_GETFL);
        assert_eq!(libc::fcntl(poll.fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        let code = (cm().get_cm_event)(channel.0, &mut event);
        assert_eq!(libc::fcntl(poll.fd, libc::F_SETFL, flags), 0);
        if code != 0 {
            return Err(last_errno());
        }
        let kind = (*event).event;
        assert_eq!((cm().ack_cm_event)(event), 0);
        Ok(kind)
    }
}

/// Accepts connections, waits for the end of each, ends its own side in one of three ways, and only then looks what has come.
fn serves() {
    let channel = Channel::open();
    let (_listener, port) = channel.listener(RDMA_PS_TCP);
    say(&[port.into()]);
    while let Some(words) = listen() {
        let request = channel.next();
        let (ctx, id) = (unsafe { (*request.id).verbs }, request.id);
        let dev = Dev { ctx, pd: unsafe { (table().alloc_pd)(ctx) } };
        let qp = give_qp(&dev, id, dev.cq(32));
        let buf = dev.buf(64);
        (1..3).for_each(|wr_id| assert_eq!(qp.recv(wr_id, &[buf.sge(0, 64)]), 0));
        assert_eq!(unsafe { (cm().accept)(id, &mut { PLAIN }) }, 0);
        assert_eq!(channel.next().kind, RDMA_CM_EVENT_ESTABLISHED);
        take_over(&dev);
        say(&[0]);
        if words[0] == 3 {
            assert_eq!(look(&channel), Err(libc::EAGAIN), "before what has come is polled");
        } else {
            assert_eq!(channel.next().kind, RDMA_CM_EVENT_DISCONNECTED);
        }
        match words[0] {
            3 => {}
            0 => assert_eq!(qp.to_state(IBV_QPS_ERR), 0),
            1 => assert_eq!(unsafe { (cm().disconnect)(id) }, 0),
            _ => assert_eq!(qp.to_state(IBV_QPS_RESET), 0),
        }
        let came = all(qp.cq).iter().filter(|(wr_id, status)| (*wr_id, *status) == (1, HERE)).count();
        if words[0] == 3 {
            assert_eq!(channel.next().kind, RDMA_CM_EVENT_DISCONNECTED);
        }
        say(&[came as u64, u64::from(buf.data[..8] == pattern(8, 8)[..])]);
        unsafe { call::<unsafe extern "C" fn(*mut rdma_cm_id)>("rdma_destroy_qp")(id) };
        connections::destroy(id);
    }
}

/// The client sends, is told that the message is there, and disconnects.
fn client_of(child: &mut Child, port: u16, way: u64) -> Vec<u64> {
    let channel = Channel::open();
    let id = channel.resolved(RDMA_PS_TCP, port);
    let ctx = unsafe { (*id).verbs };
    let dev = Dev { ctx, pd: unsafe { (table().alloc_pd)(ctx) } };
    let qp = give_qp(&dev, id, dev.cq(32));
    let mut buf = dev.buf(64);
    buf.data[..8].copy_from_slice(&pattern(8, 8));
    child.tell(&[way]);
    assert_eq!(unsafe { (cm().connect)(id, &mut { PLAIN }) }, 0);
    let event = channel.next();
    assert_eq!((event.kind, event.status), (RDMA_CM_EVENT_ESTABLISHED, 0));
    child.hear();
    assert_eq!(qp.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(qp.wait().status, HERE);
    assert_eq!(unsafe { (cm().disconnect)(id) }, 0);
    let heard = child.hear();
    unsafe { call::<unsafe extern "C" fn(*mut rdma_cm_id)>("rdma_destroy_qp")(id) };
    connections::destroy(id);
    heard
}

#[test]
fn a_message_before_a_disconnect_is_received_by_a_server_that_closes_first_and_polls_then() {
    let mut child = Child::start("serves");
    let port = child.hear()[0] as u16;
    for round in 0..30 {
        let way = round % 3;
        let heard = client_of(&mut child, port, way);
        // A reset takes the completions along.
        let completes = u64::from(way != 2);
        assert_eq!(heard, [completes, 1], "round {round}");
    }
    child.finish();
}

/// libfabric's ofi_rxm polls, looks at its events, and destroys the queue pair at the end of the connection: what came in between was lost.
#[test]
fn a_server_that_looks_at_its_events_before_it_polls_finds_the_message_before_the_disconnect() {
    let mut child = Child::start("serves");
    let port = child.hear()[0] as u16;
    for round in 0..10 {
        assert_eq!(client_of(&mut child, port, 3), [1, 1], "round {round}");
    }
    child.finish();
}

#[test]
fn child_main() {
    match role().as_deref() {
        Some("closes") => closes(),
        Some("serves") => serves(),
        other => assert_eq!(other, None, "no such role"),
    }
}
