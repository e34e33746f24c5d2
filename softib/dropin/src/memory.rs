//! Fork.

use rdma_sys::*;

/// `ibv_is_fork_initialized`: registered memory is not pinned, so fork needs no preparation.
///
/// # Safety
/// None needed; the C ABI asks for the keyword.
pub unsafe extern "C" fn is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}
