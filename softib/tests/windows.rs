//! Memory windows: bounds, rights and keys of both types, invalidation from either side, refusals; and atomic WRITE.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::ptr::null_mut;

#[test]
fn child_main() {
    match role().as_deref() {
        Some("initiator") => initiates(),
        Some("writer") => writes_on_and_on(),
        other => assert_eq!(other, None, "no such role"),
    }
}

const BINDABLE: u32 = ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

fn path() -> Path {
    Path { access: ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC, timeout: 20, ..Path::default() }
}

/// What the other process is asked for: an opcode, and where. It answers with the status of the completion.
#[derive(Clone, Copy)]
struct Ask {
    opcode: u32,
    addr: u64,
    rkey: u32,
}

/// The other process: a new connection for each first line; then requests of 8 bytes until a line with one number.
fn initiates() {
    let dev = Dev::open();
    let mut buf = dev.buf(64);
    buf.data[..8].copy_from_slice(&0x0807_0605_0403_0201u64.to_le_bytes());
    while let Some(first) = listen() {
        let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
        say(&[qp.num().into()]);
        qp.connect(first[0] as u32, &path());
        while let Some(line) = listen().filter(|line| line.len() > 1) {
            let (opcode, remote_addr, rkey) = (line[0] as u32, line[1], line[2] as u32);
            let offset = if opcode == IBV_WR_RDMA_READ { 8 } else { 0 };
            let posted = qp.post(1, opcode, &[buf.sge(offset, 8)], |wr| match opcode {
                IBV_WR_SEND_WITH_INV => wr.imm.invalidate_rkey = rkey,
                _ => wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey },
            });
            assert_eq!(posted, 0);
            say(&[qp.wait().status.into()]);
        }
        qp.destroy();
    }
}

/// A connection to the other process, over which it is asked.
struct Asked<'a> {
    child: &'a mut Child,
    qp: Qp,
}

impl Asked<'_> {
    fn new<'a>(child: &'a mut Child, dev: &Dev) -> Asked<'a> {
        let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
        child.tell(&[qp.num().into()]);
        let peer = child.hear()[0] as u32;
        qp.connect(peer, &path());
        Asked { child, qp }
    }

    fn ask(&mut self, opcode: u32, addr: u64, rkey: u32) -> u32 {
        self.child.tell(&[opcode.into(), addr, rkey.into()]);
        self.child.hear()[0] as u32
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.child.tell(&[0]);
            self.qp.destroy();
        }
    }
}

/// The status of one request on a connection of its own, because a refusal ends it.
fn once(child: &mut Child, dev: &Dev, ask: Ask) -> u32 {
    Asked::new(child, dev).ask(ask.opcode, ask.addr, ask.rkey)
}

fn write(addr: u64, rkey: u32) -> Ask {
    Ask { opcode: IBV_WR_RDMA_WRITE, addr, rkey }
}

fn window(dev: &Dev, kind: u32) -> *mut ibv_mw {
    let mw = unsafe { ibv_alloc_mw(dev.pd, kind) };
    assert!(!mw.is_null(), "alloc_mw: {}", last_errno());
    mw
}

fn free(mw: *mut ibv_mw) {
    assert_eq!(unsafe { ibv_dealloc_mw(mw) }, 0);
}

fn key(mw: *mut ibv_mw) -> u32 {
    unsafe { (*mw).rkey }
}

fn part(buf: &Buf, offset: u64, length: u64, access: u32) -> ibv_mw_bind_info {
    ibv_mw_bind_info { mr: buf.mr, addr: buf.addr() + offset, length, mw_access_flags: access }
}

/// Binds a type 1 window; the status of the completion.
fn bind_one(qp: &Qp, mw: *mut ibv_mw, bind_info: ibv_mw_bind_info) -> u32 {
    let mut bind = ibv_mw_bind { wr_id: 77, send_flags: IBV_SEND_SIGNALED, bind_info };
    assert_eq!(unsafe { ibv_bind_mw(qp.qp, mw, &mut bind) }, 0);
    let wc = qp.wait();
    assert_eq!((wc.wr_id, wc.opcode), (77, IBV_WC_BIND_MW));
    wc.status
}

/// Binds a type 2 window to `rkey`; the status of the completion.
fn bind_two(qp: &Qp, mw: *mut ibv_mw, rkey: u32, bind_info: ibv_mw_bind_info) -> u32 {
    let bind = ibv_send_wr_bind_mw { mw, rkey, bind_info };
    assert_eq!(qp.post(78, IBV_WR_BIND_MW, &[], |wr| wr.rare.bind_mw = bind), 0);
    let wc = qp.wait();
    assert_eq!((wc.wr_id, wc.opcode), (78, IBV_WC_BIND_MW));
    wc.status
}

fn invalidate(qp: &Qp, rkey: u32) -> u32 {
    assert_eq!(qp.post(79, IBV_WR_LOCAL_INV, &[], |wr| wr.imm.invalidate_rkey = rkey), 0);
    let wc = qp.wait();
    assert_eq!((wc.wr_id, wc.opcode), (79, IBV_WC_LOCAL_INV));
    wc.status
}

/// Runs a test against another process that moves data itself, and against one that asks for it through the rings.
fn both_ways(test: impl Fn(&Dev, &mut Child)) {
    let dev = Dev::open();
    for way in ["1", "0"] {
        let mut child = Child::start_with("initiator", &[("SOFTIB_CMA", way)]);
        test(&dev, &mut child);
        child.finish();
    }
}

#[test]
fn the_device_says_that_it_has_windows() {
    let dev = Dev::open();
    let mut attr = ibv_device_attr::default();
    assert_eq!(unsafe { (table().query_device)(dev.ctx, &mut attr) }, 0);
    assert!(attr.max_mw > 0);
    let flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    assert_eq!(attr.device_cap_flags & flags, flags);
    assert!(unsafe { ibv_alloc_mw(dev.pd, 3) }.is_null());
    assert_eq!(last_errno(), libc::EINVAL);
}

#[test]
fn a_type_1_window_opens_its_part_with_its_rights_until_it_is_bound_anew() {
    both_ways(|dev, child| {
        let buf = Buf::new(dev, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
        let (own, _peer) = loopback(dev, &path());
        let mw = window(dev, IBV_MW_TYPE_1);
        let never_bound = key(mw);
        assert_eq!(once(child, dev, write(buf.addr(), never_bound)), IBV_WC_REM_ACCESS_ERR);
        assert_eq!(bind_one(&own, mw, part(&buf, 100, 50, IBV_ACCESS_REMOTE_WRITE)), IBV_WC_SUCCESS);
        let (first, at) = (key(mw), buf.addr() + 100);
        assert_ne!(first, never_bound);
        let mut peer = Asked::new(child, dev);
        assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, at, first), IBV_WC_SUCCESS);
        assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, at + 42, first), IBV_WC_SUCCESS);
        drop(peer);
        assert_eq!(
            (&buf.data[100..108], &buf.data[142..150]),
            (&[1, 2, 3, 4, 5, 6, 7, 8][..], &[1, 2, 3, 4, 5, 6, 7, 8][..])
        );
        for wrong in [write(at + 43, first), write(at - 1, first), write(at, buf.key()), write(at, first ^ 1)]
        {
            assert_eq!(once(child, dev, wrong), IBV_WC_REM_ACCESS_ERR);
        }
        assert_eq!(
            once(child, dev, Ask { opcode: IBV_WR_RDMA_READ, ..write(at, first) }),
            IBV_WC_REM_ACCESS_ERR
        );
        assert_eq!(bind_one(&own, mw, part(&buf, 0, 8, IBV_ACCESS_REMOTE_READ)), IBV_WC_SUCCESS);
        assert_eq!(once(child, dev, write(at, first)), IBV_WC_REM_ACCESS_ERR);
        let read = Ask { opcode: IBV_WR_RDMA_READ, addr: buf.addr(), rkey: key(mw) };
        assert_eq!(once(child, dev, read), IBV_WC_SUCCESS);
        assert_eq!(bind_one(&own, mw, part(&buf, 0, 0, 0)), IBV_WC_SUCCESS);
        assert_eq!(once(child, dev, read), IBV_WC_REM_ACCESS_ERR);
        free(mw);
    });
}

#[test]
fn a_type_2_window_is_for_one_queue_pair_and_ends_with_its_invalidation() {
    both_ways(|dev, child| {
        let buf = Buf::new(dev, 4096, BINDABLE);
        let mw = window(dev, IBV_MW_TYPE_2);
        let rkey = key(mw) & !0xff | 0x5a;
        let all = part(&buf, 0, 4096, IBV_ACCESS_REMOTE_WRITE);
        let mut peer = Asked::new(child, dev);
        assert_eq!(bind_two(&peer.qp, mw, rkey, all), IBV_WC_SUCCESS);
        assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, buf.addr() + 8, rkey), IBV_WC_SUCCESS);
        assert_eq!(invalidate(&peer.qp, rkey), IBV_WC_SUCCESS);
        // Free again, it can be bound, here to the same key.
        assert_eq!(bind_two(&peer.qp, mw, rkey, all), IBV_WC_SUCCESS);
        assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, buf.addr() + 8, rkey), IBV_WC_SUCCESS);
        assert_eq!(invalidate(&peer.qp, rkey), IBV_WC_SUCCESS);
        assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, buf.addr(), rkey), IBV_WC_REM_ACCESS_ERR);
        drop(peer);
        // Bound by one queue pair, of no use through another of the same domain.
        let (own, _peer) = loopback(dev, &path());
        assert_eq!(bind_two(&own, mw, rkey, all), IBV_WC_SUCCESS);
        assert_eq!(once(child, dev, write(buf.addr(), rkey)), IBV_WC_REM_ACCESS_ERR);
        assert_eq!((buf.data[0], buf.data[8]), (0, 1));
        free(mw);
    });
}

#[test]
fn a_window_that_is_freed_while_bound_is_closed() {
    both_ways(|dev, child| {
        let buf = Buf::new(dev, 64, BINDABLE);
        let mut peer = Asked::new(child, dev);
        let mw = window(dev, IBV_MW_TYPE_2);
        let rkey = key(mw);
        assert_eq!(bind_two(&peer.qp, mw, rkey, part(&buf, 0, 64, IBV_ACCESS_REMOTE_WRITE)), IBV_WC_SUCCESS);
        assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, buf.addr(), rkey), IBV_WC_SUCCESS);
        free(mw);
        assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, buf.addr(), rkey), IBV_WC_REM_ACCESS_ERR);
    });
}

#[test]
fn a_send_can_invalidate_the_window_of_its_receiver() {
    both_ways(|dev, child| {
        let (buf, inbox) = (Buf::new(dev, 64, BINDABLE), dev.buf(64));
        let mw = window(dev, IBV_MW_TYPE_2);
        let rkey = key(mw);
        let mut peer = Asked::new(child, dev);
        let all = part(&buf, 0, 64, IBV_ACCESS_REMOTE_WRITE);
        assert_eq!(bind_two(&peer.qp, mw, rkey, all), IBV_WC_SUCCESS);
        assert_eq!(peer.qp.recv(5, &[inbox.sge(0, 64)]), 0);
        assert_eq!(peer.ask(IBV_WR_SEND_WITH_INV, 0, rkey), IBV_WC_SUCCESS);
        let wc = peer.qp.wait();
        assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (5, IBV_WC_SUCCESS, IBV_WC_RECV, 8));
        assert_eq!((wc.wc_flags, unsafe { wc.imm.invalidated_rkey }), (IBV_WC_WITH_INV, rkey));
        // It is free for this side, too.
        assert_eq!(bind_two(&peer.qp, mw, rkey ^ 1, all), IBV_WC_SUCCESS);
        assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, buf.addr(), rkey ^ 1), IBV_WC_SUCCESS);
        assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, buf.addr(), rkey), IBV_WC_REM_ACCESS_ERR);
        drop(peer);
        // What is no window of this queue pair can't be invalidated.
        for wrong in [rkey, buf.key(), 0, u32::MAX] {
            let ask = Ask { opcode: IBV_WR_SEND_WITH_INV, addr: 0, rkey: wrong };
            assert_eq!(once(child, dev, ask), IBV_WC_REM_ACCESS_ERR);
        }
        free(mw);
    });
}

#[test]
fn a_zero_based_window_counts_from_its_own_start() {
    both_ways(|dev, child| {
        let buf = Buf::new(dev, 4096, BINDABLE);
        let mw = window(dev, IBV_MW_TYPE_2);
        let mut peer = Asked::new(child, dev);
        let access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED;
        assert_eq!(bind_two(&peer.qp, mw, key(mw), part(&buf, 1000, 16, access)), IBV_WC_SUCCESS);
        assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, 8, key(mw)), IBV_WC_SUCCESS);
        assert_eq!(buf.data[1008..1016], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, 9, key(mw)), IBV_WC_REM_ACCESS_ERR);
        drop(peer);
        free(mw);
    });
}

#[test]
fn an_atomic_write_stores_an_aligned_word_and_asks_for_the_right_to_write() {
    both_ways(|dev, child| {
        let buf = Buf::new(dev, 64, ALL_ACCESS);
        let readable = Buf::new(dev, 64, IBV_ACCESS_REMOTE_READ);
        let ask = |addr, rkey| Ask { opcode: IBV_WR_ATOMIC_WRITE, addr, rkey };
        assert_eq!(once(child, dev, ask(buf.addr() + 16, buf.key())), IBV_WC_SUCCESS);
        assert_eq!(buf.data[15..25], [0, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
        assert_eq!(once(child, dev, ask(buf.addr() + 4, buf.key())), IBV_WC_REM_INV_REQ_ERR);
        assert_eq!(once(child, dev, ask(readable.addr(), readable.key())), IBV_WC_REM_ACCESS_ERR);
    });
}

#[test]
fn an_atomic_write_has_eight_bytes_and_completes_as_such() {
    let dev = Dev::open();
    let (a, _b) = loopback(&dev, &path());
    let (from, to) = (dev.buf(16), dev.buf(16));
    for len in [0, 7, 9] {
        assert_eq!(a.rdma(1, IBV_WR_ATOMIC_WRITE, from.sge(0, len), to.addr(), to.key()), libc::EINVAL);
    }
    assert_eq!(a.rdma(1, IBV_WR_ATOMIC_WRITE, from.sge(0, 8), to.addr(), to.key()), 0);
    let wc = a.wait();
    assert_eq!((wc.status, wc.opcode), (IBV_WC_SUCCESS, IBV_WC_ATOMIC_WRITE));
}

#[test]
fn binds_that_the_specification_forbids_fail_and_end_the_queue_pair() {
    let dev = Dev::open();
    let buf = Buf::new(&dev, 64, BINDABLE);
    let unbindable = Buf::new(&dev, 64, ALL_ACCESS);
    let readable = Buf::new(&dev, 64, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND);
    let write = IBV_ACCESS_REMOTE_WRITE;
    let cases = [
        part(&buf, 0, 65, write),
        part(&buf, 1, 64, write),
        part(&buf, u64::MAX - buf.addr(), 2, write),
        part(&unbindable, 0, 8, write),
        part(&readable, 0, 8, write),
        part(&readable, 0, 8, IBV_ACCESS_REMOTE_ATOMIC),
    ];
    for (at, info) in cases.into_iter().enumerate() {
        for kind in [IBV_MW_TYPE_1, IBV_MW_TYPE_2] {
            let (a, _b) = loopback(&dev, &path());
            let mw = window(&dev, kind);
            let status = match kind {
                IBV_MW_TYPE_1 => bind_one(&a, mw, info),
                _ => bind_two(&a, mw, key(mw), info),
            };
            assert_eq!((status, a.state()), (IBV_WC_MW_BIND_ERR, IBV_QPS_ERR), "case {at}");
            free(mw);
        }
    }
    let (a, _b) = loopback(&dev, &path());
    let mw = window(&dev, IBV_MW_TYPE_2);
    assert_eq!(bind_two(&a, mw, key(mw), part(&buf, 0, 8, write)), IBV_WC_SUCCESS);
    assert_eq!(bind_two(&a, mw, key(mw), part(&buf, 0, 8, write)), IBV_WC_MW_BIND_ERR, "bound already");
    free(mw);
    let (a, _b) = loopback(&dev, &path());
    for key in [buf.key(), 0, u32::MAX] {
        let (a, _b) = loopback(&dev, &path());
        assert_eq!(invalidate(&a, key), IBV_WC_MW_BIND_ERR);
    }
    assert_eq!(a.state(), IBV_QPS_RTS);
}

#[test]
fn binds_that_make_no_sense_are_not_posted() {
    let dev = Dev::open();
    let other = Dev { ctx: dev.ctx, pd: unsafe { (table().alloc_pd)(dev.ctx) } };
    let (buf, foreign) = (Buf::new(&dev, 64, BINDABLE), Buf::new(&other, 64, BINDABLE));
    let (a, _b) = loopback(&dev, &path());
    let (one, two) = (window(&dev, IBV_MW_TYPE_1), window(&dev, IBV_MW_TYPE_2));
    let before = key(one);
    let bind = |mw, bind_info| {
        let mut bind = ibv_mw_bind { wr_id: 1, send_flags: IBV_SEND_SIGNALED, bind_info };
        unsafe { ibv_bind_mw(a.qp, mw, &mut bind) }
    };
    let write = IBV_ACCESS_REMOTE_WRITE;
    assert_eq!(bind(two, part(&buf, 0, 8, write)), libc::EINVAL);
    assert_eq!(bind(one, part(&foreign, 0, 8, write)), libc::EPERM);
    assert_eq!(bind(one, part(&buf, 0, 8, write | IBV_ACCESS_ZERO_BASED)), libc::EINVAL);
    assert_eq!(bind(one, ibv_mw_bind_info { mr: null_mut(), ..part(&buf, 0, 8, write) }), libc::EINVAL);
    let post = |mw, rkey, bind_info| {
        a.post(1, IBV_WR_BIND_MW, &[], |wr| wr.rare.bind_mw = ibv_send_wr_bind_mw { mw, rkey, bind_info })
    };
    assert_eq!(post(one, key(one), part(&buf, 0, 8, write)), libc::EINVAL);
    assert_eq!(post(two, key(two) + 0x100, part(&buf, 0, 8, write)), libc::EINVAL);
    assert_eq!(post(two, key(two), part(&buf, 0, 8, 1 << 9)), libc::EINVAL);
    let ud = dev.qp(IBV_QPT_UD, dev.cq(4));
    ud.ready_ud(7);
    let inv = ud.post(1, IBV_WR_LOCAL_INV, &[], |wr| wr.imm.invalidate_rkey = key(two));
    assert_eq!(inv, libc::EINVAL);
    let uc = dev.qp(IBV_QPT_UC, dev.cq(4));
    uc.connect(uc.num(), &path());
    for opcode in [IBV_WR_SEND_WITH_INV, IBV_WR_ATOMIC_WRITE] {
        let posted = uc.post(1, opcode, &[buf.sge(0, 8)], |wr| wr.imm.invalidate_rkey = key(two));
        assert_eq!(posted, libc::EINVAL);
    }
    assert_eq!((key(one), poll(a.cq).is_none(), a.state()), (before, true, IBV_QPS_RTS));
    [one, two].into_iter().for_each(free);
}

#[test]
fn a_region_stays_while_a_window_is_bound_to_it_and_a_key_of_a_window_is_no_lkey() {
    let dev = Dev::open();
    let (buf, inbox) = (Buf::new(&dev, 64, BINDABLE), dev.buf(64));
    let (a, b) = loopback(&dev, &path());
    let mw = window(&dev, IBV_MW_TYPE_1);
    assert_eq!(bind_one(&a, mw, part(&buf, 0, 64, IBV_ACCESS_REMOTE_WRITE)), IBV_WC_SUCCESS);
    assert_eq!(unsafe { (table().dereg_mr)(buf.mr) }, libc::EBUSY);
    let access = IBV_ACCESS_LOCAL_WRITE as i32;
    let changed = unsafe {
        softib::rereg_mr(buf.mr, IBV_REREG_MR_CHANGE_ACCESS as i32, null_mut(), null_mut(), 0, access)
    };
    assert_eq!((changed, last_errno()), (IBV_REREG_MR_ERR_CMD, libc::EBUSY));
    assert_eq!(unsafe { (table().dealloc_pd)(dev.pd) }, libc::EBUSY);
    assert_eq!(b.recv(1, &[inbox.sge(0, 64)]), 0);
    let sge = ibv_sge { lkey: key(mw), ..buf.sge(0, 8) };
    assert_eq!(a.send(2, &[sge]), 0);
    assert_eq!(a.wait().status, IBV_WC_LOC_PROT_ERR);
    free(mw);
}

#[test]
fn requests_behind_a_bind_find_it_done() {
    let dev = Dev::open();
    let (buf, from) = (Buf::new(&dev, 64, BINDABLE), dev.buf(64));
    let (a, b) = loopback(&dev, &path());
    let mw = window(&dev, IBV_MW_TYPE_2);
    let inbox = dev.buf(64);
    // The first send waits for a receive, and the bind behind it for its turn.
    assert_eq!(b.send(1, &[from.sge(0, 8)]), 0);
    let bind =
        ibv_send_wr_bind_mw { mw, rkey: key(mw), bind_info: part(&buf, 0, 64, IBV_ACCESS_REMOTE_WRITE) };
    assert_eq!(b.post(2, IBV_WR_BIND_MW, &[], |wr| wr.rare.bind_mw = bind), 0);
    assert_eq!(b.post(3, IBV_WR_LOCAL_INV, &[], |wr| wr.imm.invalidate_rkey = key(mw)), 0);
    assert!(poll(b.cq).is_none());
    assert_eq!(a.recv(9, &[inbox.sge(0, 8)]), 0);
    for expected in 1..=3 {
        let wc = b.wait();
        assert_eq!((wc.wr_id, wc.status), (expected, IBV_WC_SUCCESS));
    }
    free(mw);
}

/// Long enough that an invalidation meets a write in its middle.
const LONG: usize = 16 << 20;

/// The other process: connects, then fills a window with one of two values after the other until it is refused.
fn writes_on_and_on() {
    let dev = Dev::open();
    let mut bufs = [dev.buf(LONG), dev.buf(LONG)];
    bufs[1].data.fill(1);
    while let Some(first) = listen() {
        let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
        say(&[qp.num().into()]);
        qp.connect(first[0] as u32, &path());
        let target = listen().unwrap();
        let write = |buf: &Buf| {
            assert_eq!(qp.rdma(1, IBV_WR_RDMA_WRITE, buf.sge(0, LONG), target[0], target[1] as u32), 0);
            qp.wait().status
        };
        assert_eq!(write(&bufs[0]), IBV_WC_SUCCESS);
        say(&[0]);
        let last = bufs.iter().rev().cycle().map(write).find(|status| *status != IBV_WC_SUCCESS);
        say(&[last.unwrap_or_default().into()]);
        qp.destroy();
    }
}

#[test]
fn nothing_comes_through_a_window_after_its_invalidation_has_completed() {
    let dev = Dev::open();
    for way in ["1", "0"] {
        let mut child = Child::start_with("writer", &[("SOFTIB_CMA", way)]);
        let buf = Buf::new(&dev, LONG, BINDABLE);
        for _ in 0..8 {
            let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
            child.tell(&[qp.num().into()]);
            qp.connect(child.hear()[0] as u32, &path());
            let mw = window(&dev, IBV_MW_TYPE_2);
            let all = part(&buf, 0, LONG as u64, IBV_ACCESS_REMOTE_WRITE);
            assert_eq!(bind_two(&qp, mw, key(mw), all), IBV_WC_SUCCESS);
            child.tell(&[buf.addr(), key(mw).into()]);
            // The first write is over, the next ones follow without a pause.
            assert_eq!(child.hear(), [0]);
            // While it waits for the write to end, the next one may come, and be refused: that ends the queue pair.
            let status = invalidate(&qp, key(mw));
            assert!(matches!(status, IBV_WC_SUCCESS | IBV_WC_WR_FLUSH_ERR), "{status}");
            let then = seen(&buf);
            assert_eq!(child.hear(), [u64::from(IBV_WC_REM_ACCESS_ERR)]);
            assert!(then == seen(&buf), "the memory has changed since");
            qp.destroy();
            free(mw);
        }
        child.finish();
    }
}

/// A copy of memory that another process may be writing to; from the end, where a write comes last.
fn seen(buf: &Buf) -> Vec<u8> {
    let at = buf.data.as_ptr();
    (0..buf.data.len()).rev().step_by(4096).map(|i| unsafe { at.add(i).read_volatile() }).collect()
}
