//! Registered memory that is unmapped and mapped again, with SOFTIB_CHECK_MEMORY=1: no RDMA through the old key, at either end.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::ptr::null_mut;

const LEN: usize = 8 * 4096;
const OPCODES: [u32; 2] = [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ];

#[test]
fn child_main() {
    match role().as_deref() {
        Some("remaps") => remaps(),
        Some("owner") => owner(),
        Some("visits") => visits(),
        other => assert_eq!(other, None, "no such role"),
    }
}

fn map(at: *mut u8, len: usize) -> *mut u8 {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    let place = unsafe { libc::mmap(at.cast(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(place, libc::MAP_FAILED);
    place.cast()
}

/// Maps one page in the middle anew.
fn remap(at: *mut u8) {
    unsafe { assert_eq!(libc::munmap(at.wrapping_add(4096).cast(), 4096), 0) };
    map(at.wrapping_add(4096), 4096);
}

fn register(dev: &Dev, at: *mut u8) -> *mut ibv_mr {
    let mr = unsafe { (table().reg_mr)(dev.pd, at.cast(), LEN, ALL_ACCESS as i32) };
    assert!(!mr.is_null());
    mr
}

fn key(mr: *mut ibv_mr) -> u32 {
    unsafe { (*mr).rkey }
}

/// One operation over fresh queue pairs: an error ends them.
fn status(dev: &Dev, opcode: u32, local: (*mut u8, u32), remote: (*mut u8, u32)) -> u32 {
    let (qp, other) = loopback(dev, &Path { access: ALL_ACCESS, ..Path::default() });
    let sge = ibv_sge { addr: local.0 as u64, length: LEN as u32, lkey: local.1 };
    assert_eq!(qp.rdma(1, opcode, sge, remote.0 as u64, remote.1), 0);
    let status = qp.wait().status;
    qp.destroy();
    other.destroy();
    status
}

/// Both ends in one process.
fn remaps() {
    let dev = Dev::open();
    let (near, far) = (map(null_mut(), LEN), map(null_mut(), LEN));
    let (near_mr, far_mr) = (register(&dev, near), register(&dev, far));
    let all = |wanted: u32, near_key: u32, far_key: u32| {
        for opcode in OPCODES {
            assert_eq!(status(&dev, opcode, (near, near_key), (far, far_key)), wanted, "{opcode}");
        }
    };
    all(IBV_WC_SUCCESS, key(near_mr), key(far_mr));
    remap(far);
    all(IBV_WC_REM_ACCESS_ERR, key(near_mr), key(far_mr));
    let far_again = register(&dev, far);
    all(IBV_WC_SUCCESS, key(near_mr), key(far_again));
    all(IBV_WC_REM_ACCESS_ERR, key(near_mr), key(far_mr));
    remap(near);
    all(IBV_WC_LOC_PROT_ERR, key(near_mr), key(far_again));
    for mr in [near_mr, far_mr, far_again] {
        assert_eq!(
            unsafe { (table().dereg_mr)(mr) },
            0,
            "a region whose memory is gone is deregistered as any"
        );
    }
}

#[test]
fn rdma_fails_at_either_end_and_a_new_registration_does_not_mend_the_old_one() {
    Child::start_with("remaps", &[("SOFTIB_CHECK_MEMORY", "1")]).finish();
}

/// Registers memory, lets its peer at it, and maps it anew in between.
fn owner() {
    let dev = Dev::open();
    let at = map(null_mut(), LEN);
    let mr = register(&dev, at);
    say(&[at as u64, key(mr).into()]);
    for turn in 0..2 {
        let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
        say(&[qp.num().into()]);
        qp.connect(listen().unwrap()[0] as u32, &Path { access: ALL_ACCESS, ..Path::default() });
        say(&[turn]);
        listen().unwrap();
        remap(at);
    }
    say(&[0]);
}

/// The owner's peer, in the same environment.
fn visits() {
    let mut child = Child::start("owner");
    let dev = Dev::open();
    let buf = Buf::new(&dev, LEN, ALL_ACCESS);
    let [at, rkey] = child.hear()[..] else { panic!("an address and a key") };
    for wanted in [IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR] {
        let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
        let theirs = child.hear()[0] as u32;
        qp.connect(theirs, &Path { access: ALL_ACCESS, ..Path::default() });
        child.tell(&[qp.num().into()]);
        child.hear();
        assert_eq!(qp.rdma(1, IBV_WR_RDMA_WRITE, buf.sge(0, LEN), at, rkey as u32), 0);
        assert_eq!(qp.wait().status, wanted);
        child.tell(&[0]);
    }
    child.hear();
    child.finish();
}

#[test]
fn a_peer_is_refused_whether_it_moves_the_data_itself_or_the_owner_does() {
    for copies in ["1", "0"] {
        Child::start_with("visits", &[("SOFTIB_CHECK_MEMORY", "1"), ("SOFTIB_CMA", copies)]).finish();
    }
}
