//! On-demand regions, up to the whole address space: what is there is reached, what is not is an error for the peer.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::ptr::null_mut;

#[test]
fn child_main() {
    match role().as_deref() {
        Some("open_house") => open_house(),
        Some("without_process_vm") => visits(),
        other => assert_eq!(other, None, "no such role"),
    }
}

const ALL: u32 = ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC;
const PAGE: usize = 4096;

fn whole_memory(dev: &Dev, access: u32) -> *mut ibv_mr {
    unsafe { (table().reg_mr)(dev.pd, null_mut(), usize::MAX, access as i32) }
}

/// Whether this kernel lets the device offer on-demand regions at all.
fn offered(dev: &Dev) -> bool {
    let mut attr = ibv_device_attr_ex::default();
    assert_eq!(unsafe { ibv_query_device_ex(table(), dev.ctx, &mut attr) }, 0);
    let offered = attr.odp_caps.general_caps != 0;
    assert_eq!(whole_memory(dev, ALL | IBV_ACCESS_ON_DEMAND).is_null(), !offered);
    offered
}

/// Two pages of fresh memory: the first may be written, the second not even read.
fn half_there() -> *mut u8 {
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = libc::mmap(null_mut(), 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_eq!(libc::mprotect(at.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
        at.cast()
    }
}

/// Lets its peers into all of its memory; says where it has half a buffer, and in the end what is there.
fn open_house() {
    let dev = Dev::open();
    let (qp, at) = (dev.qp(IBV_QPT_RC, dev.cq(16)), half_there());
    let mr = whole_memory(&dev, ALL | IBV_ACCESS_ON_DEMAND);
    say(&[at as u64, unsafe { (*mr).rkey }.into(), qp.num().into()]);
    while let Some(hello) = listen() {
        assert_eq!(qp.to_state(IBV_QPS_RESET), 0);
        qp.connect(hello[0] as u32, &Path { access: ALL, ..Path::default() });
        say(&[u64::from(unsafe { at.read_volatile() })]);
    }
}

/// Goes to places that are there and to places that are not.
fn visits() {
    let dev = Dev::open();
    if !offered(&dev) {
        return;
    }
    let mut child = Child::start("open_house");
    let [at, rkey, theirs] = child.hear()[..] else { panic!("three numbers") };
    let mut buf = Buf::new(&dev, PAGE, ALL);
    let mut seen = 0;
    let mut visit = |opcode: u32, addr: u64, len: usize| {
        buf.data[0] = 5;
        let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
        child.tell(&[qp.num().into()]);
        seen = child.hear()[0];
        qp.connect(theirs as u32, &Path { access: ALL, ..Path::default() });
        let posted = qp.post(1, opcode, &[buf.sge(0, len)], |wr| {
            let (remote_addr, rkey) = (addr, rkey as u32);
            match opcode {
                IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    wr.wr.atomic = ibv_send_wr_atomic { remote_addr, rkey, compare_add: 1, swap: 0 };
                }
                _ => wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey },
            }
        });
        assert_eq!(posted, 0);
        let status = qp.wait().status;
        qp.destroy();
        (status, seen)
    };
    let (hole, page) = (at + PAGE as u64, PAGE as u64);
    for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        assert_eq!(visit(opcode, at, PAGE).0, IBV_WC_SUCCESS);
        assert_eq!(visit(opcode, at + 8, PAGE).0, IBV_WC_REM_ACCESS_ERR);
        assert_eq!(visit(opcode, hole, 1).0, IBV_WC_REM_ACCESS_ERR);
        assert_eq!(visit(opcode, u64::MAX - 2 * page, 64).0, IBV_WC_REM_ACCESS_ERR);
        assert_eq!(visit(opcode, u64::MAX - 7, 8).0, IBV_WC_REM_ACCESS_ERR);
    }
    assert_eq!(visit(IBV_WR_ATOMIC_FETCH_AND_ADD, hole, 8).0, IBV_WC_REM_ACCESS_ERR);
    assert_eq!(visit(IBV_WR_ATOMIC_FETCH_AND_ADD, at, 8).0, IBV_WC_SUCCESS);
    // The next visit finds what the others left: a 5 with 1 added.
    assert_eq!(visit(IBV_WR_RDMA_READ, at, 8), (IBV_WC_SUCCESS, 6));
    child.finish();
}

#[test]
fn a_peer_reaches_what_is_there_and_hears_of_what_is_not() {
    visits();
}

#[test]
fn the_same_holds_without_process_vm() {
    Child::start_with("without_process_vm", &[("SOFTIB_CMA", "0")]).finish();
}

#[test]
fn advice_is_for_on_demand_regions_that_are_there() {
    let dev = Dev::open();
    if !offered(&dev) {
        return;
    }
    let advise = |advice: u32, mr: *mut ibv_mr, addr: u64, length: u32| unsafe {
        let mut sge = ibv_sge { addr, length, lkey: (*mr).lkey };
        let advise = (*verbs_get_ctx(dev.ctx)).advise_mr.unwrap();
        advise(dev.pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, &mut sge, 1)
    };
    let at = half_there() as u64;
    let all = whole_memory(&dev, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
    let read_only = whole_memory(&dev, IBV_ACCESS_ON_DEMAND);
    let plain = dev.buf(64);
    let (read, write) = (IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE);
    assert_eq!((advise(read, all, at, 64), advise(write, all, at, 64)), (0, 0));
    assert_eq!(advise(read, all, at, PAGE as u32 + 1), libc::EFAULT);
    assert_eq!(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, all, at, PAGE as u32 + 1), 0);
    assert_eq!((advise(read, read_only, at, 64), advise(write, read_only, at, 64)), (0, libc::EPERM));
    assert_eq!(advise(read, plain.mr, plain.addr(), 64), libc::EINVAL);
    assert_eq!(advise(99, all, at, 64), libc::EINVAL);
}
