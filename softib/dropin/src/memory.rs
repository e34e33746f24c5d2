//! Registration variants and fork.

use rdma_sys::*;
use softib::errno::Errno;
use std::ffi::{c_int, c_uint, c_void};

/// `ibv_reg_mr_iova2`, and `ibv_reg_mr_iova`, whose last argument is an int: the device knows memory by its own address only.
///
/// # Safety
/// As for `ibv_reg_mr`.
pub unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    if iova != addr as u64 {
        Errno::OPNOTSUPP.set();
        return std::ptr::null_mut();
    }
    // SAFETY: passed on from our caller; the function guards itself.
    unsafe { (softib::driver_table().reg_mr)(pd, addr, length, access as c_int) }
}

/// `ibv_is_fork_initialized`: registered memory is not pinned, so fork needs no preparation.
///
/// # Safety
/// None needed; the C ABI asks for the keyword.
pub unsafe extern "C" fn is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}
