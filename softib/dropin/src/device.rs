//! Closing a device as libibverbs does: it succeeds whatever the program has left behind.

use rdma_sys::ibv_context;
use softib::errno::Errno;
use std::ffi::c_int;

/// `ibv_close_device`. The device refuses to close while objects live (EBUSY); libibverbs does not (ibv_open_device(3): the
/// program should release them before), and perftest leaves a CQ behind. Such a context stays until the process ends.
///
/// # Safety
/// `context` is open, and not used afterwards.
pub unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the program promises an open `context` that it does not use afterwards; softib's
    // function catches panics.
    let result = unsafe { (softib::driver_table().close_device)(context) };
    if result != 0 && Errno::last() == Errno::BUSY { 0 } else { result }
}
