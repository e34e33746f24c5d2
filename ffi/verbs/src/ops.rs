//! The functions of the data path, each looked up once for its object: a driver sets them before it hands the object out, and
//! they never change.

use rdma_sys as sys;
use std::ffi::c_int;

/// Takes completions: [`sys::ibv_poll_cq`].
pub type PollCq = unsafe extern "C" fn(*mut sys::ibv_cq, c_int, *mut sys::ibv_wc) -> c_int;

/// Posts sends: [`sys::ibv_post_send`].
pub type PostSend =
    unsafe extern "C" fn(*mut sys::ibv_qp, *mut sys::ibv_send_wr, *mut *mut sys::ibv_send_wr) -> c_int;

/// Writes a message of pieces: `write_short` of [`sys::Table`].
pub type WriteShort = unsafe extern "C" fn(*mut sys::ibv_qp, *const sys::ShortWrite, u64, u64, u32) -> c_int;

/// Asks whether a send would wait: `sends_at_once` of [`sys::Table`].
pub type SendsAtOnce = unsafe extern "C" fn(*mut sys::ibv_qp, u32) -> c_int;

/// Carries out a READ or WRITE within the call: `rdma_at_once` of [`sys::Table`].
pub type RdmaAtOnce =
    unsafe extern "C" fn(*mut sys::ibv_qp, u32, *const sys::ibv_sge, u64, u32, c_int) -> c_int;

unsafe extern "C" fn no_poll(_: *mut sys::ibv_cq, _: c_int, _: *mut sys::ibv_wc) -> c_int {
    -libc::EOPNOTSUPP
}

unsafe extern "C" fn no_send(
    _: *mut sys::ibv_qp,
    _: *mut sys::ibv_send_wr,
    _: *mut *mut sys::ibv_send_wr,
) -> c_int {
    libc::EOPNOTSUPP
}

/// The function for a completion queue; one that says so where a broken library has none.
///
/// # Safety
/// The queue is alive.
pub unsafe fn poll_cq(cq: *mut sys::ibv_cq) -> PollCq {
    // SAFETY: the queue is alive, so its context is.
    unsafe { (*(*cq).context).ops.poll_cq }.unwrap_or(no_poll)
}

/// The function for a queue pair, as [`poll_cq`].
///
/// # Safety
/// The queue pair is alive.
pub unsafe fn post_send(qp: *mut sys::ibv_qp) -> PostSend {
    // SAFETY: the queue pair is alive, so its context is.
    unsafe { (*(*qp).context).ops.post_send }.unwrap_or(no_send)
}
