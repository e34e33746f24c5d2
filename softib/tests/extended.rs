//! The extended context: device query, completions field by field, requests call by call.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::ptr::null_mut;
use std::time::Instant;

#[test]
fn child_main() {
    match role().as_deref() {
        Some("answers") => answers(),
        Some("without_process_vm") => {
            every_operation();
            assert_eq!(softib::stats().rdma_direct, 0);
        }
        other => assert_eq!(other, None, "no such role"),
    }
}

const ATOMIC: u32 = ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC;

fn path() -> Path {
    Path { access: ATOMIC, timeout: 20, ..Path::default() }
}

unsafe fn extension(ctx: *mut ibv_context) -> &'static verbs_context {
    unsafe { &*verbs_get_ctx(ctx) }
}

#[test]
fn the_extended_query_says_what_the_plain_one_says() {
    let dev = Dev::open();
    let (mut plain, mut full) = (ibv_device_attr::default(), ibv_device_attr_ex::default());
    full.tso_caps.max_tso = 77;
    let query = unsafe { extension(dev.ctx) }.query_device_ex.unwrap();
    unsafe {
        assert_eq!((table().query_device)(dev.ctx, &mut plain), 0);
        assert_eq!(query(dev.ctx, std::ptr::null(), &mut full, size_of::<ibv_device_attr_ex>()), 0);
    }
    assert_eq!((full.orig_attr.max_qp, full.orig_attr.max_cqe), (plain.max_qp, plain.max_cqe));
    assert_ne!(plain.vendor_id, 0);
    assert_eq!((full.phys_port_cnt_ex, full.tso_caps.max_tso), (1, 0));
}

/// Programs duplicate it, or set FD_CLOEXEC on it.
#[test]
fn the_command_descriptor_is_a_descriptor_of_its_own() {
    let dev = Dev::open();
    let (command, events) = unsafe { ((*dev.ctx).cmd_fd, (*dev.ctx).async_fd) };
    assert_ne!(command, events);
    let copy = unsafe { libc::dup(command) };
    assert!(copy >= 0);
    assert_eq!(unsafe { libc::close(copy) }, 0);
}

#[test]
fn an_older_program_gets_the_part_of_the_query_that_it_knows() {
    let dev = Dev::open();
    let query = unsafe { extension(dev.ctx) }.query_device_ex.unwrap();
    let mut attr = ibv_device_attr_ex { phys_port_cnt_ex: 99, ..Default::default() };
    let known = std::mem::offset_of!(ibv_device_attr_ex, phys_port_cnt_ex);
    assert_eq!(unsafe { query(dev.ctx, std::ptr::null(), &mut attr, known) }, 0);
    assert_eq!((attr.orig_attr.phys_port_cnt, attr.phys_port_cnt_ex), (1, 99));
    assert_eq!(unsafe { query(dev.ctx, std::ptr::null(), &mut attr, 8) }, libc::EINVAL);
    let input = ibv_query_device_ex_input { comp_mask: 1 };
    let size = size_of::<ibv_device_attr_ex>();
    assert_eq!(unsafe { query(dev.ctx, &input, &mut attr, size) }, libc::EINVAL);
}

fn cq_init(depth: u32) -> ibv_cq_init_attr_ex {
    ibv_cq_init_attr_ex { cqe: depth, wc_flags: IBV_WC_STANDARD_FLAGS.into(), ..Default::default() }
}

fn cq_ex(dev: &Dev, mut init: ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    unsafe { extension(dev.ctx).create_cq_ex.unwrap()(dev.ctx, &mut init) }
}

/// The next completion of an extended CQ, read with its functions.
struct Read {
    wr_id: u64,
    status: u32,
    opcode: u32,
    byte_len: u32,
    imm: u32,
    flags: u32,
    qp_num: u32,
    src_qp: u32,
}

fn start(cq: *mut ibv_cq_ex) -> i32 {
    let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
    unsafe { (*cq).start_poll.unwrap()(cq, &mut attr) }
}

fn end(cq: *mut ibv_cq_ex) {
    unsafe { (*cq).end_poll.unwrap()(cq) };
}

fn read(cq: *mut ibv_cq_ex) -> Read {
    unsafe {
        let c = &*cq;
        Read {
            wr_id: c.wr_id,
            status: c.status,
            opcode: c.read_opcode.unwrap()(cq),
            byte_len: c.read_byte_len.unwrap()(cq),
            imm: c.read_imm_data.unwrap()(cq),
            flags: c.read_wc_flags.unwrap()(cq),
            qp_num: c.read_qp_num.unwrap()(cq),
            src_qp: c.read_src_qp.unwrap()(cq),
        }
    }
}

#[test]
fn completions_are_read_field_by_field() {
    let dev = Dev::open();
    let cq = cq_ex(&dev, cq_init(16));
    assert!(!cq.is_null());
    let (a, b) = (dev.qp(IBV_QPT_RC, dev.cq(16)), dev.qp(IBV_QPT_RC, cq.cast()));
    a.connect(b.num(), &path());
    b.connect(a.num(), &path());
    let buf = dev.buf(256);
    assert_eq!(start(cq), libc::ENOENT);
    for wr_id in 0..3 {
        assert_eq!(b.recv(wr_id, &[buf.sge(64, 64)]), 0);
    }
    for len in [8, 16] {
        assert_eq!(a.post(1, IBV_WR_SEND_WITH_IMM, &[buf.sge(0, len)], |wr| wr.imm.imm_data = len as u32), 0);
    }
    assert_eq!((a.wait().status, a.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    while start(cq) == libc::ENOENT {}
    for (wr_id, len) in [(0, 8), (1, 16)] {
        let wc = read(cq);
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr_id, IBV_WC_SUCCESS, IBV_WC_RECV));
        assert_eq!((wc.byte_len, wc.imm, wc.flags), (len, len, IBV_WC_WITH_IMM));
        assert_eq!((wc.qp_num, wc.src_qp), (b.num(), a.num()));
        assert_eq!(unsafe { (*cq).next_poll.unwrap()(cq) }, if wr_id == 0 { 0 } else { libc::ENOENT });
    }
    end(cq);
    // Programs end a poll that never started; the next one must work all the same.
    end(cq);
    assert_eq!(b.to_state(IBV_QPS_ERR), 0);
    assert_eq!(start(cq), 0);
    assert_eq!((read(cq).wr_id, read(cq).status), (2, IBV_WC_WR_FLUSH_ERR));
    end(cq);
    b.destroy();
    assert_eq!(unsafe { (table().destroy_cq)(cq.cast()) }, 0);
}

#[test]
fn an_extended_queue_refuses_what_it_does_not_have() {
    let dev = Dev::open();
    let refused = |change: &dyn Fn(&mut ibv_cq_init_attr_ex)| {
        let mut init = cq_init(8);
        change(&mut init);
        assert!(cq_ex(&dev, init).is_null());
        last_errno()
    };
    assert_eq!(refused(&|init| init.cqe = 0), libc::EINVAL);
    assert_eq!(refused(&|init| init.cqe = u32::MAX), libc::EINVAL);
    assert_eq!(refused(&|init| init.comp_vector = 1), libc::EINVAL);
    let tags = u64::from(IBV_WC_EX_WITH_TM_INFO);
    assert_eq!(refused(&|init| init.wc_flags = tags), libc::EOPNOTSUPP);
    // No parent domain.
    assert_eq!(refused(&|init| init.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD), libc::EINVAL);
    let overrun = |init: &mut ibv_cq_init_attr_ex| {
        (init.comp_mask, init.flags) = (IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
    };
    assert_eq!(refused(&overrun), libc::EOPNOTSUPP);
    let mut single = cq_init(8);
    (single.comp_mask, single.flags) = (IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
    let cq = cq_ex(&dev, single);
    assert_eq!((start(cq), start(cq)), (libc::ENOENT, libc::ENOENT));
    let mut attr = ibv_poll_cq_attr { comp_mask: 1 };
    assert_eq!(unsafe { (*cq).start_poll.unwrap()(cq, &mut attr) }, libc::EINVAL);
}

fn raw_clock(dev: &Dev) -> u64 {
    let mut values = ibv_values_ex { comp_mask: IBV_VALUES_MASK_RAW_CLOCK, ..Default::default() };
    assert_eq!(unsafe { extension(dev.ctx).query_rt_values.unwrap()(dev.ctx, &mut values) }, 0);
    values.raw_clock.tv_nsec as u64
}

#[test]
fn completions_say_when_they_happened_not_when_they_are_read() {
    let dev = Dev::open();
    let mut attr = ibv_device_attr_ex::default();
    assert_eq!(unsafe { ibv_query_device_ex(table(), dev.ctx, &mut attr) }, 0);
    assert_eq!((attr.completion_timestamp_mask, attr.hca_core_clock), (u64::MAX, 1_000_000));
    let stamps = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    let cq = cq_ex(&dev, ibv_cq_init_attr_ex { wc_flags: stamps.into(), ..cq_init(4) });
    let (a, b) = (dev.qp(IBV_QPT_RC, cq.cast()), dev.qp(IBV_QPT_RC, dev.cq(16)));
    a.connect(b.num(), &path());
    b.connect(a.num(), &path());
    let (from, to) = (dev.buf(8), dev.buf(8));
    let mut clocks = vec![raw_clock(&dev)];
    let wall =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let begun = wall();
    for wr_id in 0..3 {
        assert_eq!(a.rdma(wr_id, IBV_WR_RDMA_WRITE, from.sge(0, 8), to.addr(), to.key()), 0);
        clocks.push(raw_clock(&dev));
    }
    let (ended, read) = (wall(), unsafe { (*cq).read_completion_ts.unwrap() });
    // The times stay with their completions when the queue changes.
    assert_eq!(unsafe { (table().resize_cq)(cq.cast(), 64) }, 0);
    for at in 0..3 {
        assert_eq!(if at == 0 { start(cq) } else { unsafe { (*cq).next_poll.unwrap()(cq) } }, 0);
        let ticks = unsafe { read(cq) };
        assert!(clocks[at] <= ticks && ticks <= clocks[at + 1], "{ticks} is not in {clocks:?} at {at}");
        let wall = unsafe { (*cq).read_completion_wallclock_ns.unwrap()(cq) };
        // A clock that is set meanwhile may step; it does so by less than a minute.
        let minute = 60_000_000_000;
        assert!(begun - minute <= wall && wall <= ended + minute);
    }
    end(cq);
    let plain = cq_ex(&dev, cq_init(4));
    assert!(unsafe {
        (*plain).read_completion_ts.is_none() && (*plain).read_completion_wallclock_ns.is_none()
    });
}

#[test]
fn a_queue_with_times_still_fires_its_channel_when_armed() {
    let dev = Dev::open();
    let channel = unsafe { (table().create_comp_channel)(dev.ctx) };
    let wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.into();
    let cq = cq_ex(&dev, ibv_cq_init_attr_ex { wc_flags, channel, ..cq_init(8) });
    let (a, b) = (dev.qp(IBV_QPT_RC, cq.cast()), dev.qp(IBV_QPT_RC, dev.cq(16)));
    a.connect(b.num(), &path());
    b.connect(a.num(), &path());
    let (from, to) = (dev.buf(8), dev.buf(8));
    let write = || assert_eq!(a.rdma(1, IBV_WR_RDMA_WRITE, from.sge(0, 8), to.addr(), to.key()), 0);
    let pending = || {
        let mut poll = libc::pollfd { fd: unsafe { (*channel).fd }, events: libc::POLLIN, revents: 0 };
        unsafe { libc::poll(&mut poll, 1, 0) }
    };
    write();
    assert_eq!(pending(), 0);
    assert_eq!(unsafe { ibv_req_notify_cq(cq.cast(), 0) }, 0);
    write();
    write();
    assert_eq!(pending(), 1);
    let (mut fired, mut context) = (null_mut(), null_mut());
    assert_eq!(unsafe { (table().get_cq_event)(channel, &mut fired, &mut context) }, 0);
    assert_eq!((fired, pending()), (cq.cast(), 0));
    unsafe { (table().ack_cq_events)(fired, 1) };
}

/// Threads that read one queue each get whole completions, every one once.
#[test]
fn threads_share_an_extended_queue() {
    const MESSAGES: u64 = 2000;
    let dev = Dev::open();
    let cq = cq_ex(&dev, cq_init(256));
    let (a, b) = (dev.qp(IBV_QPT_RC, dev.cq(256)), dev.qp(IBV_QPT_RC, cq.cast()));
    a.connect(b.num(), &path());
    b.connect(a.num(), &path());
    let (buf, shared) = (dev.buf(256), cq as usize);
    let (seen, deadline) = (std::sync::atomic::AtomicU64::new(0), Instant::now() + PATIENCE);
    let sum = std::thread::scope(|scope| {
        let reader = || {
            let cq = shared as *mut ibv_cq_ex;
            let mut sum = 0;
            while seen.load(std::sync::atomic::Ordering::Relaxed) < MESSAGES {
                assert!(Instant::now() < deadline, "completions stopped coming");
                match start(cq) {
                    0 => {}
                    error => {
                        assert_eq!(error, libc::ENOENT);
                        continue;
                    }
                }
                let wc = read(cq);
                assert_eq!((wc.status, wc.wr_id), (IBV_WC_SUCCESS, wc.imm.into()));
                sum += wc.wr_id;
                seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                end(cq);
            }
            sum
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        for wr_id in 0..MESSAGES {
            // No more under way than the queue has room for.
            while wr_id - seen.load(std::sync::atomic::Ordering::Relaxed) >= 100 {
                assert!(Instant::now() < deadline, "completions stopped coming");
                std::thread::yield_now();
            }
            assert_eq!(b.recv(wr_id, &[buf.sge(0, 64)]), 0);
            let posted =
                a.post(0, IBV_WR_SEND_WITH_IMM, &[buf.sge(64, 8)], |wr| wr.imm.imm_data = wr_id as u32);
            assert_eq!(posted, 0);
            assert_eq!(a.wait().status, IBV_WC_SUCCESS);
        }
        readers.map(|reader| reader.join().unwrap()).iter().sum::<u64>()
    });
    assert_eq!(sum, MESSAGES * (MESSAGES - 1) / 2);
}

/// A QP with the given send operations; what create_qp_ex says if it fails.
fn qp_ex(dev: &Dev, kind: u32, operations: u64) -> Result<Qp, i32> {
    let cq = dev.cq(256);
    let mut init = ibv_qp_init_attr_ex { send_cq: cq, recv_cq: cq, qp_type: kind, ..Default::default() };
    init.cap =
        ibv_qp_cap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };
    (init.pd, init.send_ops_flags) = (dev.pd, operations);
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let qp = unsafe { extension(dev.ctx).create_qp_ex.unwrap()(dev.ctx, &mut init) };
    if qp.is_null() { Err(last_errno()) } else { Ok(Qp { qp, cq }) }
}

const ALL_OPERATIONS: u64 = IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

/// Puts requests together in `build` and posts them.
fn build(qp: &Qp, build: impl FnOnce(*mut ibv_qp_ex, &mut ibv_qp_ex)) -> i32 {
    let ex = unsafe { softib::qp_to_qp_ex(qp.qp) };
    assert!(!ex.is_null());
    unsafe {
        (*ex).wr_start.unwrap()(ex);
        build(ex, &mut *ex);
        (*ex).wr_complete.unwrap()(ex)
    }
}

/// Waits for requests and for what comes of them in the memory of another process.
fn answers() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let mut buf = Buf::new(&dev, 4096, ATOMIC);
    say(&[qp.num().into(), buf.addr(), buf.key().into()]);
    let hello = listen().unwrap();
    qp.init(ATOMIC);
    for wr_id in 0..4 {
        assert_eq!(qp.recv(wr_id, &[buf.sge(1024 * wr_id as usize, 256)]), 0);
    }
    qp.rtr(hello[0] as u32, &path());
    qp.rts(&path());
    buf.data[3000..3008].copy_from_slice(&7u64.to_ne_bytes());
    say(&[0]);
    for _ in 0..4 {
        let wc = qp.wait();
        let at = 1024 * wc.wr_id as usize;
        let imm = if wc.wc_flags & IBV_WC_WITH_IMM != 0 { unsafe { wc.imm.imm_data } } else { 0 };
        let sum: u64 = buf.data[at..at + 16].iter().map(|&byte| u64::from(byte)).sum();
        say(&[wc.status.into(), wc.opcode.into(), wc.byte_len.into(), imm.into(), sum]);
    }
    listen();
}

fn every_operation() {
    let dev = Dev::open();
    let qp = qp_ex(&dev, IBV_QPT_RC, ALL_OPERATIONS).unwrap();
    let mut buf = Buf::new(&dev, 4096, ATOMIC);
    buf.data[..16].copy_from_slice(&[1; 16]);
    let mut child = Child::start("answers");
    let theirs = child.hear();
    child.tell(&[qp.num().into()]);
    child.hear();
    qp.connect(theirs[0] as u32, &path());
    let (addr, rkey, lkey, at) = (theirs[1], theirs[2] as u32, buf.key(), buf.addr());
    let mut inline = [2u8; 16];
    let posted = build(&qp, |ex, c| unsafe {
        (c.wr_id, c.wr_flags) = (1, IBV_SEND_SIGNALED);
        c.wr_send.unwrap()(ex);
        c.wr_set_sge.unwrap()(ex, lkey, at, 16);
        c.wr_id = 2;
        c.wr_send_imm.unwrap()(ex, 5);
        c.wr_set_inline_data.unwrap()(ex, inline.as_mut_ptr().cast(), 16);
        // The program may use its buffer again before wr_complete.
        inline.fill(9);
        c.wr_id = 3;
        c.wr_rdma_write.unwrap()(ex, rkey, addr + 2048);
        let pieces = [buf.sge(0, 8), buf.sge(8, 8)];
        c.wr_set_sge_list.unwrap()(ex, 2, pieces.as_ptr());
        c.wr_id = 4;
        c.wr_rdma_write_imm.unwrap()(ex, rkey, addr + 2064, 6);
        c.wr_id = 5;
        c.wr_rdma_read.unwrap()(ex, rkey, addr + 2048);
        c.wr_set_sge.unwrap()(ex, lkey, at + 512, 16);
        c.wr_id = 6;
        c.wr_atomic_fetch_add.unwrap()(ex, rkey, addr + 3000, 3);
        c.wr_set_sge.unwrap()(ex, lkey, at + 1024, 8);
        c.wr_id = 7;
        c.wr_atomic_cmp_swp.unwrap()(ex, rkey, addr + 3000, 10, 11);
        c.wr_set_sge.unwrap()(ex, lkey, at + 1032, 8);
        (c.wr_id, c.wr_flags) = (8, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
        c.wr_send.unwrap()(ex);
        let piece = |from: usize| ibv_data_buf { addr: buf.data.as_ptr().add(from) as *mut _, length: 8 };
        let list = [piece(0), piece(8)];
        c.wr_set_inline_data_list.unwrap()(ex, 2, list.as_ptr());
    });
    assert_eq!(posted, 0);
    let send = [IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ];
    for (wr_id, opcode) in
        (1..).zip(send.into_iter().chain([IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP, IBV_WC_SEND]))
    {
        let wc = qp.wait();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr_id, IBV_WC_SUCCESS, opcode));
    }
    let recv = |opcode: u32, len: u64, imm: u64, sum: u64| vec![0, opcode.into(), len, imm, sum];
    assert_eq!(child.hear(), recv(IBV_WC_RECV, 16, 0, 16));
    assert_eq!(child.hear(), recv(IBV_WC_RECV, 16, 5, 32));
    assert_eq!(child.hear(), recv(IBV_WC_RECV_RDMA_WITH_IMM, 0, 6, 16));
    assert_eq!(child.hear(), recv(IBV_WC_RECV, 16, 0, 16));
    assert_eq!(buf.data[512..528], [1; 16]);
    let word = |at: usize| u64::from_ne_bytes(buf.data[at..at + 8].try_into().unwrap());
    assert_eq!((word(1024), word(1032)), (7, 10));
    child.finish();
}

#[test]
fn requests_put_together_call_by_call_do_what_they_say() {
    every_operation();
}

#[test]
fn requests_put_together_call_by_call_work_without_process_vm() {
    Child::start_with("without_process_vm", &[("SOFTIB_CMA", "0")]).finish();
}

#[test]
fn a_datagram_is_put_together_with_its_address() {
    let dev = Dev::open();
    let (a, b) = (qp_ex(&dev, IBV_QPT_UD, IBV_QP_EX_WITH_SEND).unwrap(), dev.qp(IBV_QPT_UD, dev.cq(8)));
    let (buf, ah) = (dev.buf(256), dev.ah());
    a.ready_ud(3);
    b.ready_ud(3);
    assert_eq!(b.recv(7, &[buf.sge(64, 64)]), 0);
    let send = |addressed: bool| {
        build(&a, |ex, c| unsafe {
            c.wr_flags = IBV_SEND_SIGNALED;
            c.wr_send.unwrap()(ex);
            if addressed {
                c.wr_set_ud_addr.unwrap()(ex, ah, b.num(), 3);
            }
            c.wr_set_sge.unwrap()(ex, buf.key(), buf.addr(), 8);
        })
    };
    assert_eq!(send(false), libc::EINVAL);
    assert_eq!(send(true), 0);
    assert_eq!((a.wait().status, b.wait().wr_id), (IBV_WC_SUCCESS, 7));
}

#[test]
fn either_all_requests_are_posted_or_none() {
    let dev = Dev::open();
    let (a, b) = (qp_ex(&dev, IBV_QPT_RC, ALL_OPERATIONS).unwrap(), dev.qp(IBV_QPT_RC, dev.cq(64)));
    let buf = dev.buf(256);
    let sends = |count: usize, length: u32| {
        build(&a, |ex, c| unsafe {
            c.wr_flags = IBV_SEND_SIGNALED;
            for _ in 0..count {
                c.wr_send.unwrap()(ex);
                c.wr_set_sge.unwrap()(ex, buf.key(), buf.addr(), length);
            }
        })
    };
    // Before the QP may send.
    assert_eq!(sends(1, 8), libc::EINVAL);
    a.connect(b.num(), &path());
    b.connect(a.num(), &path());
    // More than fits, too long, a setter without a request, too much inline.
    assert_eq!(sends(9, 8), libc::ENOMEM);
    assert_eq!(sends(2, u32::MAX), libc::EINVAL);
    assert_eq!(build(&a, |ex, c| unsafe { c.wr_set_sge.unwrap()(ex, 0, 0, 0) }), libc::EINVAL);
    let long = vec![0u8; a.max_inline() + 1];
    let long = build(&a, |ex, c| unsafe {
        c.wr_send.unwrap()(ex);
        c.wr_set_inline_data.unwrap()(ex, long.as_ptr() as *mut _, long.len());
    });
    assert_eq!(long, libc::EINVAL);
    let ex = unsafe { softib::qp_to_qp_ex(a.qp) };
    unsafe {
        (*ex).wr_start.unwrap()(ex);
        (*ex).wr_send.unwrap()(ex);
        (*ex).wr_abort.unwrap()(ex);
    }
    // None of that was posted: there is room for eight, and they are the first to arrive.
    for wr_id in 0..8 {
        assert_eq!(b.recv(wr_id, &[buf.sge(64, 64)]), 0);
    }
    assert_eq!(sends(8, 8), 0);
    for wr_id in 0..8 {
        assert_eq!(a.wait().status, IBV_WC_SUCCESS);
        let wc = b.wait();
        assert_eq!((wc.wr_id, wc.byte_len), (wr_id, 8));
    }
    assert!(poll(b.cq).is_none());
}

/// Bind, use, invalidate from the other side, bind again, use, invalidate from this side: all in calls.
#[test]
fn memory_windows_and_atomic_writes_can_be_put_together_call_by_call() {
    let dev = Dev::open();
    let operations = IBV_QP_EX_WITH_BIND_MW
        | IBV_QP_EX_WITH_LOCAL_INV
        | IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_ATOMIC_WRITE;
    let [a, b] = [(); 2].map(|()| qp_ex(&dev, IBV_QPT_RC, operations).unwrap());
    a.connect(b.num(), &path());
    b.connect(a.num(), &path());
    let buf = Buf::new(&dev, 64, ATOMIC | IBV_ACCESS_MW_BIND);
    let mw = unsafe { ibv_alloc_mw(dev.pd, IBV_MW_TYPE_2) };
    let rkey = unsafe { (*mw).rkey };
    let (mr, addr, access) = (buf.mr, buf.addr(), IBV_ACCESS_REMOTE_WRITE);
    let info = ibv_mw_bind_info { mr, addr, length: 64, mw_access_flags: access };
    let word = 0x1122_3344_5566_7788u64;
    let done = |qp: &Qp, opcode| {
        let wc = qp.wait();
        assert_eq!((wc.status, wc.opcode), (IBV_WC_SUCCESS, opcode));
        wc
    };
    let bind_and_write = |offset: u64| unsafe {
        let bind = |ex: *mut ibv_qp_ex, qp: &mut ibv_qp_ex| {
            qp.wr_flags = IBV_SEND_SIGNALED;
            qp.wr_bind_mw.unwrap()(ex, mw, rkey, &info);
        };
        assert_eq!(build(&b, bind), 0);
        done(&b, IBV_WC_BIND_MW);
        let write = |ex: *mut ibv_qp_ex, qp: &mut ibv_qp_ex| {
            qp.wr_flags = IBV_SEND_SIGNALED;
            qp.wr_atomic_write.unwrap()(ex, rkey, addr + offset, (&raw const word).cast());
        };
        assert_eq!(build(&a, write), 0);
        done(&a, IBV_WC_ATOMIC_WRITE);
    };
    bind_and_write(8);
    assert_eq!(b.recv(1, &[buf.sge(32, 8)]), 0);
    let send = |ex, qp: &mut ibv_qp_ex| unsafe {
        qp.wr_flags = IBV_SEND_SIGNALED;
        qp.wr_send_inv.unwrap()(ex, rkey);
        qp.wr_set_inline_data.unwrap()(ex, c"invalid".as_ptr().cast_mut().cast(), 8);
    };
    assert_eq!(build(&a, send), 0);
    done(&a, IBV_WC_SEND);
    assert_eq!(done(&b, IBV_WC_RECV).wc_flags, IBV_WC_WITH_INV);
    bind_and_write(16);
    let forget = |ex, qp: &mut ibv_qp_ex| unsafe {
        qp.wr_flags = IBV_SEND_SIGNALED;
        qp.wr_local_inv.unwrap()(ex, rkey);
    };
    assert_eq!(build(&b, forget), 0);
    done(&b, IBV_WC_LOCAL_INV);
    let words: Vec<u64> =
        buf.data[..40].chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words, [0, word, word, 0, u64::from_ne_bytes(*b"invalid\0")]);
    // A bind that could not be posted is refused with all that was put together.
    let stranger = ibv_mw_bind_info { mw_access_flags: 1 << 9, ..info };
    let wrong = |ex, qp: &mut ibv_qp_ex| unsafe { qp.wr_bind_mw.unwrap()(ex, mw, rkey, &stranger) };
    assert_eq!(build(&b, wrong), libc::EINVAL);
    assert_eq!(unsafe { ibv_dealloc_mw(mw) }, 0);
}

#[test]
fn only_the_operations_asked_for_are_there() {
    let dev = Dev::open();
    let plain = dev.qp(IBV_QPT_RC, dev.cq(8));
    assert!(unsafe { softib::qp_to_qp_ex(plain.qp) }.is_null());
    let sender = qp_ex(&dev, IBV_QPT_UC, IBV_QP_EX_WITH_SEND).unwrap();
    let ex = unsafe { &*softib::qp_to_qp_ex(sender.qp) };
    assert!(ex.wr_send.is_some() && ex.wr_rdma_write.is_none() && ex.wr_set_ud_addr.is_none());
    assert_eq!(qp_ex(&dev, IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE).err(), Some(libc::EOPNOTSUPP));
    assert_eq!(qp_ex(&dev, IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ).err(), Some(libc::EOPNOTSUPP));
    assert_eq!(qp_ex(&dev, IBV_QPT_RC, IBV_QP_EX_WITH_TSO).err(), Some(libc::EOPNOTSUPP));
    let nowhere = Dev { ctx: dev.ctx, pd: null_mut() };
    assert_eq!(qp_ex(&nowhere, IBV_QPT_RC, 0).err(), Some(libc::EINVAL));
}
