//! What goes wrong, goes wrong by the book: statuses, flushes, states, limits. One process, loopback.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::ptr::null_mut;

fn quick() -> Path {
    // 4.096 us << 8 is about 1 ms.
    Path { timeout: 8, retry_cnt: 1, ..Path::default() }
}

#[test]
fn a_message_longer_than_the_receive_ends_both_queue_pairs() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &quick());
    let buf = dev.buf(4096);
    assert_eq!(b.recv(1, &[buf.sge(0, 10)]), 0);
    assert_eq!(b.recv(2, &[buf.sge(0, 10)]), 0);
    assert_eq!(a.send(3, &[buf.sge(100, 11)]), 0);
    assert_eq!((a.wait().status, a.state()), (IBV_WC_REM_INV_REQ_ERR, IBV_QPS_ERR));
    assert_eq!((b.wait().status, b.state()), (IBV_WC_LOC_LEN_ERR, IBV_QPS_ERR));
    let flushed = b.wait();
    assert_eq!((flushed.wr_id, flushed.status), (2, IBV_WC_WR_FLUSH_ERR));
}

#[test]
fn a_receive_in_foreign_memory_fails_on_both_sides() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &quick());
    let buf = dev.buf(64);
    let wrong = ibv_sge { lkey: buf.key() ^ 1, ..buf.sge(0, 64) };
    assert_eq!(b.recv(1, &[wrong]), 0);
    assert_eq!(a.send(2, &[buf.sge(0, 8)]), 0);
    assert_eq!(a.wait().status, IBV_WC_REM_OP_ERR);
    assert_eq!(b.wait().status, IBV_WC_LOC_PROT_ERR);
}

/// One call posts them; that a receive of no bytes names a key says nothing of the next one's.
#[test]
fn of_a_list_of_receives_the_one_in_foreign_memory_fails() {
    let dev = Dev::open();
    let other = unsafe { (table().alloc_pd)(dev.ctx) };
    let (buf, foreign) = (dev.buf(64), Dev { ctx: dev.ctx, pd: other }.buf(64));
    let (a, b) = loopback(&dev, &quick());
    // Room for several is made with the first one.
    assert_eq!(b.recv(0, &[buf.sge(0, 64)]), 0);
    assert_eq!(a.send(9, &[buf.sge(0, 8)]), 0);
    assert_eq!((a.wait().status, b.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    let sges = [buf.sge(0, 64), foreign.sge(0, 0), foreign.sge(0, 64)];
    let mut wrs: Vec<_> = (0..3).map(|at| recv_wr(at as u64, &sges[at..=at])).collect();
    for at in 0..2 {
        wrs[at].next = &raw mut wrs[at + 1];
    }
    let mut bad = null_mut();
    assert_eq!(unsafe { ibv_post_recv(b.qp, wrs.as_mut_ptr(), &mut bad) }, 0);
    for (len, here, there) in [
        (8, IBV_WC_SUCCESS, IBV_WC_SUCCESS),
        (0, IBV_WC_SUCCESS, IBV_WC_SUCCESS),
        (8, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR),
    ] {
        assert_eq!(a.send(9, &[buf.sge(0, len)]), 0);
        assert_eq!((a.wait().status, b.wait().status), (here, there), "{len} bytes");
    }
}

#[test]
fn sends_from_foreign_memory_fail_locally() {
    let dev = Dev::open();
    let buf = dev.buf(64);
    let sges = [
        ibv_sge { lkey: buf.key() ^ 1, ..buf.sge(0, 8) },
        buf.sge(60, 8),
        ibv_sge { addr: u64::MAX - 3, ..buf.sge(0, 8) },
    ];
    for sge in sges {
        let (a, b) = loopback(&dev, &quick());
        assert_eq!(b.recv(1, &[buf.sge(0, 64)]), 0);
        assert_eq!(a.send(2, &[sge]), 0);
        assert_eq!((a.wait().status, a.state()), (IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR));
    }
}

#[test]
fn a_buffer_of_another_protection_domain_is_refused() {
    let dev = Dev::open();
    let other = unsafe { (table().alloc_pd)(dev.ctx) };
    let foreign = Dev { ctx: dev.ctx, pd: other }.buf(64);
    let (a, _b) = loopback(&dev, &quick());
    assert_eq!(a.send(2, &[foreign.sge(0, 8)]), 0);
    assert_eq!(a.wait().status, IBV_WC_LOC_PROT_ERR);
}

#[test]
fn rdma_needs_key_bounds_rights_and_domain() {
    let dev = Dev::open();
    let (buf, plain) = (dev.buf(64), Buf::new(&dev, 64, IBV_ACCESS_LOCAL_WRITE));
    let foreign = Dev { ctx: dev.ctx, pd: unsafe { (table().alloc_pd)(dev.ctx) } }.buf(64);
    let all = quick();
    let read_only = Path { access: IBV_ACCESS_REMOTE_READ, ..quick() };
    let cases = [
        (buf.addr(), buf.key() ^ 1, all, IBV_WC_REM_ACCESS_ERR),
        (buf.addr() + 60, buf.key(), all, IBV_WC_REM_ACCESS_ERR),
        (buf.addr() - 1, buf.key(), all, IBV_WC_REM_ACCESS_ERR),
        (u64::MAX - 3, buf.key(), all, IBV_WC_REM_ACCESS_ERR),
        (plain.addr(), plain.key(), all, IBV_WC_REM_ACCESS_ERR),
        (foreign.addr(), foreign.key(), all, IBV_WC_REM_ACCESS_ERR),
        (buf.addr(), buf.key(), read_only, IBV_WC_REM_INV_REQ_ERR),
        (buf.addr(), buf.key(), all, IBV_WC_SUCCESS),
    ];
    for (at, (addr, key, path, expected)) in cases.into_iter().enumerate() {
        let (a, _b) = loopback(&dev, &path);
        assert_eq!(a.rdma(1, IBV_WR_RDMA_WRITE, buf.sge(0, 8), addr, key), 0);
        assert_eq!(a.wait().status, expected, "case {at}");
    }
}

#[test]
fn a_deregistered_key_is_refused() {
    let dev = Dev::open();
    let (buf, mut gone) = (dev.buf(64), dev.buf(64));
    let (addr, key) = (gone.addr(), gone.key());
    gone.dereg();
    let (a, _b) = loopback(&dev, &quick());
    assert_eq!(a.rdma(1, IBV_WR_RDMA_READ, buf.sge(0, 8), addr, key), 0);
    assert_eq!(a.wait().status, IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn a_send_without_a_receive_waits_and_then_goes_on() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path { min_rnr_timer: 10, ..Path::default() });
    let mut buf = dev.buf(128);
    let before = softib::stats().rnr;
    buf.data[..5].copy_from_slice(b"hello");
    assert_eq!(a.send(1, &[buf.sge(0, 5)]), 0);
    assert!(poll(a.cq).is_none());
    assert!(softib::stats().rnr > before);
    assert_eq!(b.recv(2, &[buf.sge(64, 64)]), 0);
    assert_eq!((a.wait().status, b.wait().byte_len), (IBV_WC_SUCCESS, 5));
    assert_eq!(&buf.data[64..69], b"hello");
}

#[test]
fn rnr_retries_end_when_they_are_counted() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path { rnr_retry: 2, min_rnr_timer: 5, ..Path::default() });
    let buf = dev.buf(64);
    assert_eq!(a.send(1, &[buf.sge(0, 5)]), 0);
    assert_eq!(a.send(2, &[buf.sge(0, 5)]), 0);
    assert_eq!((a.wait().status, a.state()), (IBV_WC_RNR_RETRY_EXC_ERR, IBV_QPS_ERR));
    let second = a.wait();
    assert_eq!((second.wr_id, second.status), (2, IBV_WC_WR_FLUSH_ERR));
    assert_eq!(b.state(), IBV_QPS_RTS);
}

#[test]
fn a_stuck_queue_pair_does_not_stop_another_of_the_same_pair() {
    let dev = Dev::open();
    let path = Path { min_rnr_timer: 31, ..Path::default() };
    let (stuck, _silent) = loopback(&dev, &path);
    let (a, b) = loopback(&dev, &path);
    let buf = dev.buf(64);
    assert_eq!(stuck.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(b.recv(2, &[buf.sge(0, 64)]), 0);
    assert_eq!(a.send(3, &[buf.sge(0, 8)]), 0);
    assert_eq!((a.wait().status, b.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    assert!(poll(stuck.cq).is_none());
}

#[test]
fn a_peer_that_is_not_connected_back_is_given_up_after_the_timeout() {
    let dev = Dev::open();
    let (a, b) = (dev.qp(IBV_QPT_RC, dev.cq(16)), dev.qp(IBV_QPT_RC, dev.cq(16)));
    let buf = dev.buf(64);
    a.connect(b.num(), &quick());
    assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(a.wait().status, IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn a_lid_that_is_not_ours_is_silence() {
    let dev = Dev::open();
    let (a, b) = (dev.qp(IBV_QPT_RC, dev.cq(16)), dev.qp(IBV_QPT_RC, dev.cq(16)));
    let buf = dev.buf(64);
    b.connect(a.num(), &quick());
    a.init(ALL_ACCESS);
    let mut attr = ibv_qp_attr {
        qp_state: IBV_QPS_RTR,
        path_mtu: IBV_MTU_4096,
        dest_qp_num: b.num(),
        ..Default::default()
    };
    (attr.ah_attr.dlid, attr.ah_attr.port_num) = (9, 1);
    let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    assert_eq!(a.modify(&attr, IBV_QP_STATE | path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
    a.rts(&quick());
    assert_eq!(b.recv(2, &[buf.sge(0, 64)]), 0);
    assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(a.wait().status, IBV_WC_RETRY_EXC_ERR);
    assert!(poll(b.cq).is_none());
}

#[test]
fn the_error_state_flushes_every_request_once_and_in_order() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path { min_rnr_timer: 31, ..Path::default() });
    let buf = dev.buf(64);
    for wr_id in 0..10 {
        assert_eq!(a.recv(wr_id, &[buf.sge(0, 64)]), 0);
        // Unsignalled requests are flushed with a completion, too.
        let posted = a.post(100 + wr_id, IBV_WR_SEND, &[buf.sge(0, 8)], |wr| wr.send_flags = 0);
        assert_eq!(posted, 0);
    }
    assert_eq!(a.to_state(IBV_QPS_ERR), 0);
    let all: Vec<ibv_wc> = (0..20).map(|_| a.wait()).collect();
    assert!(all.iter().all(|wc| wc.status == IBV_WC_WR_FLUSH_ERR));
    let sends: Vec<u64> = all.iter().map(|wc| wc.wr_id).filter(|id| *id >= 100).collect();
    let receives: Vec<u64> = all.iter().map(|wc| wc.wr_id).filter(|id| *id < 100).collect();
    assert_eq!((sends, receives), ((100..110).collect(), (0..10).collect()));
    assert_eq!(a.send(7, &[buf.sge(0, 8)]), 0);
    assert_eq!(a.wait().status, IBV_WC_WR_FLUSH_ERR);
    assert_eq!(a.recv(8, &[buf.sge(0, 8)]), 0);
    assert_eq!(a.wait().status, IBV_WC_WR_FLUSH_ERR);
    assert!(poll(a.cq).is_none());
    assert_eq!(b.state(), IBV_QPS_RTS);
}

#[test]
fn reset_drops_everything_and_the_pair_can_be_connected_again() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path { min_rnr_timer: 31, ..Path::default() });
    let mut buf = dev.buf(128);
    assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(b.recv(2, &[]), 0);
    for qp in [a, b] {
        assert_eq!(qp.to_state(IBV_QPS_RESET), 0);
        assert!(poll(qp.cq).is_none());
    }
    assert_eq!(a.send(1, &[buf.sge(0, 8)]), libc::EINVAL);
    assert_eq!(b.recv(1, &[]), libc::EINVAL);
    a.connect(b.num(), &Path::default());
    b.connect(a.num(), &Path::default());
    buf.data[..3].copy_from_slice(b"new");
    assert_eq!(b.recv(3, &[buf.sge(64, 64)]), 0);
    assert_eq!(a.send(4, &[buf.sge(0, 3)]), 0);
    assert_eq!((a.wait().wr_id, b.wait().wr_id), (4, 3));
    assert_eq!(&buf.data[64..67], b"new");
}

#[test]
fn queues_are_as_deep_as_granted() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path { min_rnr_timer: 31, ..Path::default() });
    let buf = dev.buf(64);
    for wr_id in 0..128 {
        assert_eq!(a.send(wr_id, &[buf.sge(0, 8)]), 0);
        assert_eq!(b.recv(wr_id, &[buf.sge(0, 8)]), 0);
    }
    assert_eq!(b.recv(128, &[buf.sge(0, 8)]), libc::ENOMEM);
    assert_eq!(a.send(128, &[buf.sge(0, 8)]), libc::ENOMEM);
    for wr_id in 0..128 {
        assert_eq!((a.wait().wr_id, b.wait().wr_id), (wr_id, wr_id));
    }
    // A polled completion makes room again.
    assert_eq!(b.recv(128, &[buf.sge(0, 8)]), 0);
    assert_eq!(a.send(128, &[buf.sge(0, 8)]), 0);
}

#[test]
fn only_signalled_sends_complete_and_they_free_those_before() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path::default());
    let buf = dev.buf(64);
    for round in 0..10 {
        for wr_id in 0..100 {
            assert_eq!(b.recv(wr_id, &[buf.sge(0, 8)]), 0);
            let flags = if wr_id == 99 { IBV_SEND_SIGNALED } else { 0 };
            assert_eq!(
                a.post(wr_id, IBV_WR_SEND, &[buf.sge(0, 8)], |wr| wr.send_flags = flags),
                0,
                "{round}"
            );
        }
        assert_eq!(a.wait().wr_id, 99);
        for wr_id in 0..100 {
            assert_eq!(b.wait().wr_id, wr_id);
        }
    }
}

#[test]
fn inline_data_may_change_at_once_even_when_the_send_waits() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path { min_rnr_timer: 1, ..Path::default() });
    let buf = dev.buf(512);
    let mut text = *b"first";
    let sge = ibv_sge { addr: text.as_ptr() as u64, length: 5, lkey: 0 };
    let inline = |wr: &mut ibv_send_wr| wr.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
    assert_eq!(a.post(1, IBV_WR_SEND, &[sge], inline), 0);
    text.copy_from_slice(b"other");
    std::hint::black_box(&text);
    assert_eq!(b.recv(2, &[buf.sge(0, 64)]), 0);
    assert_eq!((a.wait().status, b.wait().byte_len), (IBV_WC_SUCCESS, 5));
    assert_eq!(&buf.data[..5], b"first");
    let long = ibv_sge { length: a.max_inline() as u32 + 1, ..buf.sge(0, 1) };
    assert_eq!(a.post(3, IBV_WR_SEND, &[long], inline), libc::EINVAL);
}

#[test]
fn scatter_and_gather_keep_the_bytes_in_order() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path::default());
    let mut buf = dev.buf(200_000);
    let text = pattern(3, 60_000);
    buf.data[..60_000].copy_from_slice(&text);
    let into = [buf.sge(100_000, 7), buf.sge(100_100, 0), buf.sge(100_200, 40_000), buf.sge(150_000, 30_000)];
    assert_eq!(b.recv(1, &into), 0);
    assert_eq!(a.send(2, &[buf.sge(0, 1), buf.sge(1, 20_000), buf.sge(20_001, 39_999)]), 0);
    assert_eq!((a.wait().status, b.wait().byte_len), (IBV_WC_SUCCESS, 60_000));
    assert!(buf.data[100_000..100_007] == text[..7]);
    assert!(buf.data[100_200..140_200] == text[7..40_007]);
    assert!(buf.data[150_000..169_993] == text[40_007..]);
}

#[test]
fn a_full_completion_queue_is_an_error_of_the_device() {
    let dev = Dev::open();
    let (a, b) = (dev.qp(IBV_QPT_RC, dev.cq(4)), dev.qp(IBV_QPT_RC, dev.cq(64)));
    a.connect(b.num(), &Path::default());
    b.connect(a.num(), &Path::default());
    let buf = dev.buf(64);
    for wr_id in 0..5 {
        assert_eq!(b.recv(wr_id, &[buf.sge(0, 8)]), 0);
        assert_eq!(a.send(wr_id, &[buf.sge(0, 8)]), 0);
    }
    let event = next_event_of(&dev, IBV_EVENT_CQ_ERR);
    assert_eq!(unsafe { event.element.cq }, a.cq);
}

/// Fetches and acknowledges events up to one of a kind.
fn next_event_of(dev: &Dev, kind: u32) -> ibv_async_event {
    loop {
        let mut event = ibv_async_event::default();
        assert_eq!(unsafe { (table().get_async_event)(dev.ctx, &mut event) }, 0);
        unsafe { (table().ack_async_event)(&mut event) };
        if event.event_type == kind {
            return event;
        }
    }
}

#[test]
fn an_srq_tells_once_when_it_runs_low_and_its_qp_when_the_last_is_gone() {
    let dev = Dev::open();
    let srq = dev.srq(16);
    let buf = dev.buf(64);
    let a = dev.qp(IBV_QPT_RC, dev.cq(64));
    let b = dev.qp_with(IBV_QPT_RC, dev.cq(64), srq, |_| ());
    a.connect(b.num(), &Path::default());
    b.connect(a.num(), &Path::default());
    for wr_id in 0..16 {
        assert_eq!(srq_recv(srq, wr_id, buf.sge(0, 8)), 0);
    }
    assert_eq!(srq_recv(srq, 16, buf.sge(0, 8)), libc::ENOMEM);
    let mut limit = ibv_srq_attr { srq_limit: 12, ..Default::default() };
    assert_eq!(unsafe { (table().modify_srq)(srq, &mut limit, IBV_SRQ_LIMIT as i32) }, 0);
    for wr_id in 0..8 {
        assert_eq!(a.send(wr_id, &[buf.sge(0, 8)]), 0);
        assert_eq!((a.wait().wr_id, b.wait().wr_id), (wr_id, wr_id));
    }
    let event = next_event_of(&dev, IBV_EVENT_SRQ_LIMIT_REACHED);
    assert_eq!(unsafe { event.element.srq }, srq);
    assert_eq!(unsafe { (table().query_srq)(srq, &mut limit) }, 0);
    assert_eq!((limit.srq_limit, limit.max_wr), (0, 16));
    assert_eq!(b.to_state(IBV_QPS_ERR), 0);
    let event = next_event_of(&dev, IBV_EVENT_QP_LAST_WQE_REACHED);
    assert_eq!(unsafe { event.element.qp }, b.qp);
    assert_eq!(unsafe { (table().destroy_srq)(srq) }, libc::EBUSY);
    b.destroy();
    assert_eq!(unsafe { (table().destroy_srq)(srq) }, 0);
}

/// Senders have claimed what has not been taken yet: there are fewer left than the program has posted and not got back.
#[test]
fn an_srq_runs_low_for_its_senders_before_its_program_has_taken_what_has_come() {
    let dev = Dev::open();
    let srq = dev.srq(32);
    let buf = dev.buf(64);
    let a = dev.qp(IBV_QPT_RC, dev.cq(64));
    let b = dev.qp_with(IBV_QPT_RC, dev.cq(64), srq, |_| ());
    a.connect(b.num(), &Path::default());
    b.connect(a.num(), &Path::default());
    let post = || assert_eq!(srq_recv(srq, 0, buf.sge(0, 8)), 0);
    let limit = || {
        let mut is = ibv_srq_attr::default();
        assert_eq!(unsafe { (table().query_srq)(srq, &mut is) }, 0);
        is.srq_limit
    };
    let mut armed = ibv_srq_attr { srq_limit: 12, ..Default::default() };
    assert_eq!(unsafe { (table().modify_srq)(srq, &mut armed, IBV_SRQ_LIMIT as i32) }, 0);
    (0..16).for_each(|_| post());
    assert_eq!(limit(), 12, "what has never been claimed does not fall below it");
    for wr_id in 0..8 {
        assert_eq!(a.send(wr_id, &[buf.sge(0, 8)]), 0);
    }
    (0..8).for_each(|_| post());
    assert_eq!(limit(), 0, "8 were left when more were posted");
    let event = next_event_of(&dev, IBV_EVENT_SRQ_LIMIT_REACHED);
    assert_eq!(unsafe { event.element.srq }, srq);
    for wr_id in 0..8 {
        assert_eq!((a.wait().wr_id, b.wait().wr_id), (wr_id, 0));
    }
}

#[test]
fn a_resized_srq_keeps_its_receives_and_takes_more() {
    let dev = Dev::open();
    let srq = dev.srq(4);
    let mut buf = dev.buf(64);
    let a = dev.qp(IBV_QPT_RC, dev.cq(64));
    let b = dev.qp_with(IBV_QPT_RC, dev.cq(64), srq, |_| ());
    a.connect(b.num(), &Path::default());
    b.connect(a.num(), &Path::default());
    for wr_id in 0..4 {
        assert_eq!(srq_recv(srq, wr_id, buf.sge(32, 8)), 0);
    }
    assert_eq!(a.send(0, &[buf.sge(0, 8)]), 0);
    let mut attr = ibv_srq_attr { max_wr: 100, ..Default::default() };
    assert_eq!(unsafe { (table().modify_srq)(srq, &mut attr, IBV_SRQ_MAX_WR as i32) }, 0);
    for wr_id in 4..60 {
        assert_eq!(srq_recv(srq, wr_id, buf.sge(32, 8)), 0);
    }
    for wr_id in 0..60 {
        buf.data[0] = wr_id as u8;
        if wr_id > 0 {
            assert_eq!(a.send(wr_id, &[buf.sge(0, 8)]), 0);
        }
        assert_eq!((a.wait().wr_id, b.wait().wr_id), (wr_id, wr_id));
        assert!(wr_id == 0 || buf.data[32] == wr_id as u8);
    }
    let mut small = ibv_srq_attr { max_wr: 2, ..Default::default() };
    assert_eq!(unsafe { (table().modify_srq)(srq, &mut small, IBV_SRQ_MAX_WR as i32) }, 0);
    assert_eq!(srq_recv(srq, 1, buf.sge(0, 8)), 0);
    assert_eq!(srq_recv(srq, 2, buf.sge(0, 8)), 0);
    assert_eq!(srq_recv(srq, 3, buf.sge(0, 8)), libc::ENOMEM);
}

#[test]
fn datagrams_nobody_wants_are_dropped() {
    let dev = Dev::open();
    let (a, b) = (dev.qp(IBV_QPT_UD, dev.cq(64)), dev.qp(IBV_QPT_UD, dev.cq(64)));
    let (buf, ah) = (dev.buf(8192), dev.ah());
    a.ready_ud(5);
    b.ready_ud(5);
    let send = |len, qpn, qkey| {
        assert_eq!(a.datagram(1, &[buf.sge(0, len)], ah, (qpn, qkey)), 0);
        assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    };
    let before = softib::stats().ud_dropped;
    send(8, b.num(), 5);
    assert_eq!(b.recv(7, &[buf.sge(4096, 48)]), 0);
    send(8, b.num(), 6);
    send(8, b.num() ^ 0xfff, 5);
    send(9, b.num(), 5);
    assert!(poll(b.cq).is_none());
    assert!(softib::stats().ud_dropped >= before + 4);
    send(8, b.num(), 5);
    let wc = b.wait();
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (7, IBV_WC_SUCCESS, 48));
    assert_eq!(a.datagram(1, &[buf.sge(0, 4097)], ah, (b.num(), 5)), libc::EINVAL);
}

#[test]
fn a_datagram_with_a_global_route_carries_its_header() {
    let dev = Dev::open();
    let (a, b) = (dev.qp(IBV_QPT_UD, dev.cq(64)), dev.qp(IBV_QPT_UD, dev.cq(64)));
    let buf = dev.buf(1024);
    a.ready_ud(5);
    b.ready_ud(5);
    let mut gid = ibv_gid::default();
    assert_eq!(unsafe { (table().query_gid)(dev.ctx, 1, 0, &mut gid) }, 0);
    let mut attr = ibv_ah_attr { dlid: 1, is_global: 1, port_num: 1, ..Default::default() };
    attr.grh.dgid = gid;
    let ah = unsafe { (table().create_ah)(dev.pd, &mut attr) };
    assert_eq!(b.recv(7, &[buf.sge(512, 512)]), 0);
    assert_eq!(a.datagram(1, &[buf.sge(0, 8)], ah, (b.num(), 5)), 0);
    assert_eq!(b.wait().wc_flags, IBV_WC_GRH);
    assert!(buf.data[512 + 8..512 + 24] == unsafe { gid.raw });
}

#[test]
fn objects_in_use_cannot_be_destroyed() {
    let dev = Dev::open();
    let channel = unsafe { (table().create_comp_channel)(dev.ctx) };
    let cq = dev.cq_on(4, channel);
    let qp = dev.qp(IBV_QPT_RC, cq);
    unsafe {
        assert_eq!((table().destroy_cq)(cq), libc::EBUSY);
        assert_eq!((table().destroy_comp_channel)(channel), libc::EBUSY);
        assert_eq!((table().dealloc_pd)(dev.pd), libc::EBUSY);
        assert_eq!((table().close_device)(dev.ctx), -1);
        qp.destroy();
        assert_eq!((table().destroy_cq)(cq), 0);
        assert_eq!((table().destroy_comp_channel)(channel), 0);
        assert_eq!((table().dealloc_pd)(dev.pd), 0);
        assert_eq!((table().close_device)(dev.ctx), 0);
    }
}

#[test]
fn only_solicited_messages_fire_a_queue_armed_for_them() {
    let dev = Dev::open();
    let channel = unsafe { (table().create_comp_channel)(dev.ctx) };
    let cq = dev.cq_on(64, channel);
    let (a, b) = (dev.qp(IBV_QPT_RC, dev.cq(64)), dev.qp(IBV_QPT_RC, cq));
    a.connect(b.num(), &Path::default());
    b.connect(a.num(), &Path::default());
    let buf = dev.buf(64);
    unsafe { libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(unsafe { ibv_req_notify_cq(cq, 1) }, 0);
    let fires = |flags: u32| {
        assert_eq!(b.recv(1, &[buf.sge(0, 8)]), 0);
        assert_eq!(a.post(2, IBV_WR_SEND, &[buf.sge(0, 8)], |wr| wr.send_flags |= flags), 0);
        assert_eq!((a.wait().wr_id, b.wait().wr_id), (2, 1));
        let (mut fired, mut context) = (null_mut(), null_mut());
        let got = unsafe { (table().get_cq_event)(channel, &mut fired, &mut context) };
        got == 0 || last_errno() != libc::EAGAIN
    };
    assert!(!fires(0));
    assert!(fires(IBV_SEND_SOLICITED));
    assert!(!fires(IBV_SEND_SOLICITED));
    unsafe { (table().ack_cq_events)(cq, 1) };
}

#[test]
fn a_message_in_flight_when_the_target_goes_to_error_leaves_no_second_completion() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path::default());
    let buf = dev.buf(64);
    for wr_id in 0..4 {
        assert_eq!(b.recv(wr_id, &[buf.sge(0, 8)]), 0);
    }
    assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(b.to_state(IBV_QPS_ERR), 0);
    let mut seen: Vec<u64> = (0..4).map(|_| b.wait().wr_id).collect();
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3]);
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    assert!(poll(b.cq).is_none());
}

#[test]
fn uc_loses_what_finds_no_receive_and_goes_on() {
    let dev = Dev::open();
    let (a, b) = (dev.qp(IBV_QPT_UC, dev.cq(64)), dev.qp(IBV_QPT_UC, dev.cq(64)));
    a.connect(b.num(), &Path::default());
    b.connect(a.num(), &Path::default());
    let buf = dev.buf(64);
    assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    assert!(poll(b.cq).is_none());
    assert_eq!(b.recv(2, &[buf.sge(0, 8)]), 0);
    assert_eq!(a.send(3, &[buf.sge(0, 8)]), 0);
    assert_eq!((a.wait().wr_id, b.wait().wr_id), (3, 2));
}
