//! Puts and gets that are over within the call, and their callbacks.

use super::{Module, Operation};
use std::cell::Cell;

thread_local! {
    /// The callback of such an operation is running in this thread: what it begins is posted, or each would be within the one before, without end.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Whether an operation may be over within the call.
#[inline]
pub(super) fn may_be() -> bool {
    !RUNNING.get()
}

impl Module {
    /// Calls back for an operation that is over before it was begun.
    #[inline]
    pub(super) fn is_over_at_once(&'static self, operation: Operation) {
        RUNNING.set(true);
        self.rdma_done(operation, true);
        RUNNING.set(false);
    }
}
