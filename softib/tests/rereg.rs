//! Memory regions that change (`ibv_rereg_mr`).

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::ptr::null_mut;

fn path() -> Path {
    Path { access: ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC, timeout: 20, ..Path::default() }
}

fn rereg(buf: &Buf, flags: u32, pd: *mut ibv_pd, range: (u64, usize), access: u32) -> i32 {
    unsafe { softib::rereg_mr(buf.mr, flags as i32, pd, range.0 as *mut _, range.1, access as i32) }
}

#[test]
fn a_region_that_changes_keeps_its_key() {
    let dev = Dev::open();
    let (own, key) = (dev.buf(64), dev.buf(64));
    let (other, rkey) = (dev.buf(256), key.key());
    let write = |addr: u64| {
        let (a, _b) = loopback(&dev, &path());
        assert_eq!(a.rdma(1, IBV_WR_RDMA_WRITE, own.sge(0, 8), addr, rkey), 0);
        a.wait().status
    };
    assert_eq!(write(key.addr()), IBV_WC_SUCCESS);
    assert_eq!(rereg(&key, IBV_REREG_MR_CHANGE_ACCESS, null_mut(), (0, 0), IBV_ACCESS_LOCAL_WRITE), 0);
    assert_eq!(write(key.addr()), IBV_WC_REM_ACCESS_ERR);
    let flags = IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION;
    assert_eq!(rereg(&key, flags, null_mut(), (other.addr(), 256), ALL_ACCESS), 0);
    assert_eq!((write(key.addr()), write(other.addr() + 248)), (IBV_WC_REM_ACCESS_ERR, IBV_WC_SUCCESS));
    let mr = unsafe { &*key.mr };
    assert_eq!((mr.addr as u64, mr.length, mr.rkey), (other.addr(), 256, rkey));
    let pd = unsafe { (table().alloc_pd)(dev.ctx) };
    assert_eq!(rereg(&key, IBV_REREG_MR_CHANGE_PD, pd, (0, 0), 0), 0);
    assert_eq!(write(other.addr()), IBV_WC_REM_ACCESS_ERR);
    assert_eq!(unsafe { (table().dealloc_pd)(pd) }, libc::EBUSY);
    drop(key);
    assert_eq!(unsafe { (table().dealloc_pd)(pd) }, 0);
}

#[test]
fn a_refused_change_leaves_the_region_as_it_was() {
    let dev = Dev::open();
    let buf = dev.buf(64);
    let whole = (buf.addr(), 64);
    let refused = [
        rereg(&buf, 8, null_mut(), (0, 0), 0),
        rereg(&buf, IBV_REREG_MR_CHANGE_TRANSLATION, null_mut(), (buf.addr(), 0), 0),
        rereg(&buf, IBV_REREG_MR_CHANGE_TRANSLATION, null_mut(), (0, 64), 0),
        rereg(&buf, IBV_REREG_MR_CHANGE_PD, null_mut(), (0, 0), 0),
        rereg(&buf, IBV_REREG_MR_CHANGE_ACCESS, null_mut(), (0, 0), IBV_ACCESS_REMOTE_WRITE),
        rereg(&buf, IBV_REREG_MR_CHANGE_TRANSLATION, null_mut(), whole, ALL_ACCESS),
    ];
    assert_eq!((refused, last_errno()), ([IBV_REREG_MR_ERR_INPUT; 6], libc::EINVAL));
    let (a, b) = loopback(&dev, &path());
    assert_eq!(b.recv(1, &[buf.sge(0, 64)]), 0);
    assert_eq!(a.rdma(1, IBV_WR_RDMA_WRITE, buf.sge(0, 8), buf.addr() + 56, buf.key()), 0);
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
}

/// Receives that were fine when they were posted and are not any more fail on both sides, and the other way round.
#[test]
fn posted_receives_follow_their_region() {
    let dev = Dev::open();
    let (buf, own) = (dev.buf(64), dev.buf(64));
    let pd = unsafe { (table().alloc_pd)(dev.ctx) };
    let (srq, wr) = (dev.srq(4), |qp: &Qp| qp.recv(1, &[buf.sge(0, 64)]));
    for shared in [false, true] {
        for (moves, sent, received) in
            [(1, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR), (2, IBV_WC_SUCCESS, IBV_WC_SUCCESS)]
        {
            let a = dev.qp(IBV_QPT_RC, dev.cq(8));
            let b = dev.qp_with(IBV_QPT_RC, dev.cq(8), if shared { srq } else { null_mut() }, |_| ());
            a.connect(b.num(), &path());
            b.connect(a.num(), &path());
            assert_eq!(if shared { srq_recv(srq, 1, buf.sge(0, 64)) } else { wr(&b) }, 0);
            for _ in 0..moves {
                let to = if unsafe { (*buf.mr).pd } == pd { dev.pd } else { pd };
                assert_eq!(rereg(&buf, IBV_REREG_MR_CHANGE_PD, to, (0, 0), 0), 0);
            }
            assert_eq!(a.send(2, &[own.sge(0, 8)]), 0);
            assert_eq!((a.wait().status, b.wait().status), (sent, received));
            assert_eq!(rereg(&buf, IBV_REREG_MR_CHANGE_PD, dev.pd, (0, 0), 0), 0);
        }
    }
}
