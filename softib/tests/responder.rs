//! What becomes of a responder that is asked for what it does not grant, and other duties of the far side (IBTA 9.9.3, 11.6.3.3).
//!
//! Refusals are tested twice: found by the initiator in the responder's tables, and by the responder itself where memory is out
//! of reach (SOFTIB_CMA=0). One process, loopback.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;

const ATOMIC: u32 = ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC;
const REM_ACCESS: (u32, u32) = (IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
const REM_INV_REQ: (u32, u32) = (IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);

#[test]
fn child_main() {
    match role().as_deref() {
        Some("refusals") => refusals(),
        Some("unreliable") => unreliable_refusals(),
        Some("fence") => fence(),
        _ => return,
    }
    say(&[1]);
}

/// Runs a role in a process whose RDMA goes through the rings.
fn through_the_rings(role: &str) {
    let mut child = Child::start_with(role, &[("SOFTIB_CMA", "0")]);
    assert_eq!(child.hear(), [1]);
    child.finish();
}

fn path() -> Path {
    Path { timeout: 14, access: ATOMIC, ..Path::default() }
}

/// One request that is refused, and what both sides get.
struct Case {
    opcode: u32,
    path: Path,
    addr: u64,
    rkey: u32,
    expected: (u32, u32),
}

fn post(qp: &Qp, opcode: u32, sge: ibv_sge, addr: u64, rkey: u32) {
    let posted = if opcode >= IBV_WR_ATOMIC_CMP_AND_SWP {
        let atomic = ibv_send_wr_atomic { remote_addr: addr, compare_add: 1, swap: 1, rkey };
        qp.post(1, opcode, &[sge], |wr| wr.wr.atomic = atomic)
    } else {
        qp.rdma(1, opcode, sge, addr, rkey)
    };
    assert_eq!(posted, 0);
}

impl Case {
    /// The initiator's status, the responder's event, and both queue pairs flushed in the error state.
    fn check(&self, name: &str) {
        let dev = Dev::open();
        let (local, gone) = (Buf::new(&dev, 1 << 20, ATOMIC), Buf::new(&dev, 1 << 20, ATOMIC));
        let remote = Buf::new(&dev, 1 << 20, ATOMIC);
        let (addr, rkey) = (remote.addr() + self.addr, remote.key() ^ self.rkey);
        let (a, b) = loopback(&dev, &self.path);
        assert_eq!(b.recv(7, &[gone.sge(0, 8)]), 0);
        let len = if self.opcode >= IBV_WR_ATOMIC_CMP_AND_SWP { 8 } else { 500_000 };
        post(&a, self.opcode, local.sge(0, len), addr, rkey);
        assert_eq!(a.send(2, &[local.sge(0, 8)]), 0);
        assert_eq!((a.wait().status, a.wait().status), (self.expected.0, IBV_WC_WR_FLUSH_ERR), "{name}");
        let flushed = b.wait();
        assert_eq!((flushed.wr_id, flushed.status), (7, IBV_WC_WR_FLUSH_ERR), "{name}");
        assert_eq!((a.state(), b.state()), (IBV_QPS_ERR, IBV_QPS_ERR), "{name}");
        assert_eq!((event(&dev), event(&dev)), (Some(self.expected.1), None), "{name}");
    }
}

fn refusals() {
    let operations = [
        ("write", IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE),
        ("write with immediate", IBV_WR_RDMA_WRITE_WITH_IMM, IBV_ACCESS_REMOTE_WRITE),
        ("read", IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ),
        ("add", IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC),
        ("swap", IBV_WR_ATOMIC_CMP_AND_SWP, IBV_ACCESS_REMOTE_ATOMIC),
    ];
    for (name, opcode, right) in operations {
        let granted = Case { opcode, path: path(), addr: 0, rkey: 0, expected: REM_ACCESS };
        Case { rkey: 1, ..granted }.check(name);
        Case { addr: 1 << 20, ..granted }.check(name);
        let deaf = Path { access: ATOMIC & !right, ..path() };
        Case { path: deaf, expected: REM_INV_REQ, ..granted }.check(name);
        if opcode >= IBV_WR_RDMA_READ {
            let none = Path { rd_atomic: (1, 0), ..path() };
            Case { path: none, expected: REM_INV_REQ, ..granted }.check(name);
        }
        if opcode >= IBV_WR_ATOMIC_CMP_AND_SWP {
            Case { addr: 4, expected: REM_INV_REQ, ..granted }.check(name);
        }
    }
}

#[test]
fn a_refused_request_ends_both_queue_pairs_with_an_event_for_the_responder() {
    refusals();
}

#[test]
fn a_request_refused_through_the_rings_ends_both_queue_pairs_with_an_event_for_the_responder() {
    through_the_rings("refusals");
}

fn unreliable_refusals() {
    let dev = Dev::open();
    let (local, landing, mut remote) = (dev.buf(1 << 20), dev.buf(64), dev.buf(1 << 20));
    remote.data.fill(9);
    let pair = |access: u32| {
        let (a, b) = (dev.qp(IBV_QPT_UC, dev.cq(64)), dev.qp(IBV_QPT_UC, dev.cq(64)));
        let path = Path { access, ..Path::default() };
        a.connect(b.num(), &path);
        b.connect(a.num(), &path);
        assert_eq!(b.recv(7, &[landing.sge(0, 8)]), 0);
        (a, b)
    };
    for (access, wrong) in [(ALL_ACCESS, 1), (ALL_ACCESS & !IBV_ACCESS_REMOTE_WRITE, 0)] {
        let (a, b) = pair(access);
        for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM] {
            assert_eq!(a.rdma(1, opcode, local.sge(0, 500_000), remote.addr(), remote.key() ^ wrong), 0);
            assert_eq!((a.wait().status, a.state()), (IBV_WC_SUCCESS, IBV_QPS_RTS));
        }
        assert_eq!((b.state(), event(&dev)), (IBV_QPS_RTS, None));
        assert!(poll(b.cq).is_none() && remote.data.iter().all(|byte| *byte == 9));
        // The receive is still there, for a message that may come.
        assert_eq!(a.send(2, &[local.sge(0, 8)]), 0);
        assert_eq!((a.wait().wr_id, b.wait().wr_id), (2, 7));
    }
}

#[test]
fn an_unreliable_responder_drops_what_it_refuses_and_lives_on() {
    unreliable_refusals();
}

#[test]
fn an_unreliable_responder_drops_what_it_refuses_through_the_rings() {
    through_the_rings("unreliable");
}

#[test]
fn an_unreliable_message_that_is_too_long_leaves_the_receive_for_the_next() {
    let dev = Dev::open();
    let srq = dev.srq(4);
    let buf = dev.buf(4096);
    for shared in [false, true] {
        let a = dev.qp(IBV_QPT_UC, dev.cq(64));
        let queue = if shared { srq } else { std::ptr::null_mut() };
        let b = dev.qp_with(IBV_QPT_UC, dev.cq(64), queue, |_| ());
        a.connect(b.num(), &Path::default());
        b.connect(a.num(), &Path::default());
        let posted = if shared { srq_recv(srq, 7, buf.sge(0, 16)) } else { b.recv(7, &[buf.sge(0, 16)]) };
        assert_eq!(posted, 0);
        assert_eq!(a.send(1, &[buf.sge(0, 17)]), 0);
        assert_eq!((a.wait().status, a.state()), (IBV_WC_SUCCESS, IBV_QPS_RTS));
        assert!(poll(b.cq).is_none());
        assert_eq!(a.send(2, &[buf.sge(0, 16)]), 0);
        assert_eq!((a.wait().wr_id, b.wait().wr_id, b.state()), (2, 7, IBV_QPS_RTS));
    }
}

#[test]
fn reads_without_resources_of_the_initiator_fail_locally() {
    let dev = Dev::open();
    let buf = Buf::new(&dev, 64, ATOMIC);
    for opcode in [IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD] {
        let (a, b) = loopback(&dev, &Path { rd_atomic: (0, 1), ..path() });
        post(&a, opcode, buf.sge(0, 8), buf.addr(), buf.key());
        assert_eq!((a.wait().status, a.state()), (IBV_WC_LOC_QP_OP_ERR, IBV_QPS_ERR));
        assert_eq!(b.state(), IBV_QPS_RTS);
    }
}

#[test]
fn a_receive_into_memory_that_was_deregistered_fails_and_touches_nothing() {
    let dev = Dev::open();
    let (mut target, source) = (dev.buf(64), dev.buf(64));
    let (a, b) = loopback(&dev, &path());
    assert_eq!(b.recv(1, &[target.sge(0, 64)]), 0);
    target.dereg();
    target.data.fill(9);
    assert_eq!(a.send(2, &[source.sge(0, 64)]), 0);
    assert_eq!((b.wait().status, b.state()), (IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR));
    assert!(target.data.iter().all(|byte| *byte == 9));
}

/// The send's payload is what the READ before it brings.
fn fence() {
    let dev = Dev::open();
    let (mut far, near, landing) = (dev.buf(1 << 20), dev.buf(1 << 20), dev.buf(1 << 20));
    far.data.copy_from_slice(&pattern(3, 1 << 20));
    let (a, b) = loopback(&dev, &path());
    assert_eq!(b.recv(1, &[landing.sge(0, 1 << 20)]), 0);
    assert_eq!(a.rdma(2, IBV_WR_RDMA_READ, near.sge(0, 1 << 20), far.addr(), far.key()), 0);
    let fenced = |wr: &mut ibv_send_wr| wr.send_flags |= IBV_SEND_FENCE;
    assert_eq!(a.post(3, IBV_WR_SEND, &[near.sge(0, 1 << 20)], fenced), 0);
    assert_eq!((a.wait().wr_id, a.wait().wr_id, b.wait().byte_len), (2, 3, 1 << 20));
    assert!(landing.data[..] == far.data[..]);
}

#[test]
fn a_fenced_send_carries_what_the_read_before_it_brought() {
    fence();
    through_the_rings("fence");
}

#[test]
fn the_first_message_before_rts_is_told_once() {
    let dev = Dev::open();
    let (a, b) = (dev.qp(IBV_QPT_RC, dev.cq(64)), dev.qp(IBV_QPT_RC, dev.cq(64)));
    let buf = dev.buf(64);
    b.init(ALL_ACCESS);
    for wr_id in 0..2 {
        assert_eq!(b.recv(wr_id, &[buf.sge(0, 8)]), 0);
    }
    b.rtr(a.num(), &Path::default());
    a.connect(b.num(), &Path::default());
    for wr_id in 0..2 {
        assert_eq!(a.send(wr_id, &[buf.sge(0, 8)]), 0);
        assert_eq!((a.wait().wr_id, b.wait().wr_id), (wr_id, wr_id));
    }
    assert_eq!((event(&dev), event(&dev)), (Some(IBV_EVENT_COMM_EST), None));
}

/// A send that has begun is finished, one that has not waits for RTS.
#[test]
fn a_draining_send_queue_says_when_it_is_drained_and_goes_on_later() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &path());
    let buf = dev.buf(64);
    assert_eq!(b.recv(7, &[buf.sge(0, 8)]), 0);
    let drain = ibv_qp_attr { qp_state: IBV_QPS_SQD, en_sqd_async_notify: 1, ..Default::default() };
    assert_eq!(a.modify(&drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
    assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!((event(&dev), event(&dev)), (Some(IBV_EVENT_SQ_DRAINED), None));
    assert!(poll(a.cq).is_none() && poll(b.cq).is_none());
    assert_eq!(a.to_state(IBV_QPS_RTS), 0);
    assert_eq!((a.wait().wr_id, b.wait().wr_id), (1, 7));
}

#[test]
fn nothing_completes_after_the_last_wqe_event_and_no_shared_receive_is_lost() {
    let dev = Dev::open();
    let (srq, buf) = (dev.srq(8), dev.buf(64));
    for wr_id in 0..8 {
        assert_eq!(srq_recv(srq, wr_id, buf.sge(0, 8)), 0);
    }
    let pair = || {
        let (a, b) = (dev.qp(IBV_QPT_RC, dev.cq(64)), dev.qp_with(IBV_QPT_RC, dev.cq(64), srq, |_| ()));
        a.connect(b.num(), &path());
        b.connect(a.num(), &path());
        (a, b)
    };
    let (a, b) = pair();
    for wr_id in 0..4 {
        assert_eq!(a.send(wr_id, &[buf.sge(0, 8)]), 0);
    }
    assert_eq!(b.to_state(IBV_QPS_ERR), 0);
    let events: Vec<u32> = std::iter::from_fn(|| event(&dev)).collect();
    assert_eq!(events, [IBV_EVENT_QP_LAST_WQE_REACHED]);
    // The device thread may have delivered some before; none is flushed.
    let done: Vec<u32> = std::iter::from_fn(|| poll(b.cq)).map(|wc| wc.status).collect();
    assert!(done.iter().all(|status| *status == IBV_WC_SUCCESS), "{done:?}");
    let (c, d) = pair();
    for wr_id in 0..8 - done.len() as u64 {
        assert_eq!(c.send(wr_id, &[buf.sge(0, 8)]), 0);
        assert_eq!((c.wait().status, d.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    }
}

#[test]
fn what_others_are_made_from_cannot_be_destroyed() {
    let dev = Dev::open();
    let pd = unsafe { (table().alloc_pd)(dev.ctx) };
    let inner = Dev { ctx: dev.ctx, pd };
    let dealloc = || unsafe { (table().dealloc_pd)(pd) };
    let mut buf = inner.buf(64);
    assert_eq!(dealloc(), libc::EBUSY);
    buf.dereg();
    let ah = inner.ah();
    assert_eq!(dealloc(), libc::EBUSY);
    assert_eq!(unsafe { (table().destroy_ah)(ah) }, 0);
    let (srq, cq) = (inner.srq(4), inner.cq(4));
    assert_eq!(dealloc(), libc::EBUSY);
    let qp = inner.qp_with(IBV_QPT_RC, cq, srq, |_| ());
    assert_eq!(unsafe { (table().destroy_srq)(srq) }, libc::EBUSY);
    assert_eq!(unsafe { (table().destroy_cq)(cq) }, libc::EBUSY);
    qp.destroy();
    assert_eq!(unsafe { (table().destroy_srq)(srq) }, 0);
    assert_eq!(unsafe { (table().destroy_cq)(cq) }, 0);
    assert_eq!(dealloc(), 0);
}

#[test]
fn an_object_is_not_destroyed_before_its_events_are_acknowledged() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path { access: 0, ..path() });
    let buf = dev.buf(64);
    assert_eq!(a.rdma(1, IBV_WR_RDMA_WRITE, buf.sge(0, 8), buf.addr(), buf.key()), 0);
    assert_eq!(a.wait().status, IBV_WC_REM_INV_REQ_ERR);
    // The responder hears of it with its next progress.
    assert_eq!(b.recv(7, &[buf.sge(0, 8)]), 0);
    assert_eq!(b.wait().status, IBV_WC_WR_FLUSH_ERR);
    let mut event = ibv_async_event::default();
    assert_eq!(unsafe { (table().get_async_event)(dev.ctx, &mut event) }, 0);
    assert_eq!((event.event_type, unsafe { event.element.qp }), (IBV_EVENT_QP_REQ_ERR, b.qp));
    let qp = b.qp as usize;
    std::thread::scope(|scope| {
        let destroyer = scope.spawn(|| unsafe { (table().destroy_qp)(qp as *mut ibv_qp) });
        // The other thread has had its turns.
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        assert!(!destroyer.is_finished());
        unsafe { (table().ack_async_event)(&mut event) };
        assert_eq!(destroyer.join().unwrap(), 0);
    });
}
