//! Fork, and how much is registered.

use crate::guarded;
use rdma_sys::*;

/// `ibv_is_fork_initialized`: registered memory is not pinned, so fork needs no preparation.
///
/// # Safety
/// None needed; the C ABI asks for the keyword.
pub unsafe extern "C" fn is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

/// Bytes that this process has registered, for programs that look for the symbol: how much libraries register does not show elsewhere.
#[unsafe(export_name = "oxib_softib_registered")]
pub extern "C" fn registered() -> u64 {
    guarded(0, softib::registered_bytes)
}
