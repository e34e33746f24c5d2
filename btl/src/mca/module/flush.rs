//! `btl_flush`, and the callbacks that it waits for.

use super::{Module, from_raw};
use crate::transport::EpId;
use crate::transport::flush::Mark;
use opal_sys::mca_btl_base_endpoint_t;
use std::cell::RefCell;

/// A callback that has been called and has not returned: whose it is, and its ticket there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Called {
    module: usize,
    endpoint: EpId,
    ticket: u64,
}

thread_local! {
    /// Those that this thread is in, the innermost last: a flush from within one cannot wait for
    /// it.
    static RUNNING: RefCell<Vec<Called>> = const { RefCell::new(Vec::new()) };
}

/// Looks of a flush before it notes what it has to wait for, and gives the processor away between two: in most cases all is over by then.
const LOOKS: u32 = 16;

impl Module {
    /// Makes a callback that is owed, and notes that it has returned.
    pub(super) fn call_back(
        &self,
        endpoint: *mut mca_btl_base_endpoint_t,
        ticket: u64,
        callback: impl FnOnce(),
    ) {
        self.within(endpoint, ticket, callback);
        self.transport((), |t| t.called_back(from_raw(endpoint), ticket));
    }

    /// Makes a callback that is owed.
    #[inline]
    pub(super) fn within(
        &self,
        endpoint: *mut mca_btl_base_endpoint_t,
        ticket: u64,
        callback: impl FnOnce(),
    ) {
        let called = Called { module: self.index(), endpoint: from_raw(endpoint), ticket };
        RUNNING.with_borrow_mut(|running| running.push(called));
        callback();
        RUNNING.with_borrow_mut(Vec::pop);
    }

    /// `btl_flush`: everything that was handed to us before this call for this endpoint (all: NULL)
    /// is done at the peer, and its callbacks have returned; but for those that this call comes
    /// from.
    pub fn flush(&'static self, endpoint: *mut mca_btl_base_endpoint_t) {
        let of = (!endpoint.is_null()).then(|| from_raw(endpoint));
        for _ in 0..LOOKS {
            if !self.transport(false, |t| t.awaits_completions()) {
                break;
            }
            self.progress();
        }
        let mut marks = self.transport(Vec::new(), |t| t.begin_flush(of));
        while !marks.is_empty() {
            let is_ahead = |mark: &mut Mark| {
                let ours = self.running(mark.endpoint());
                self.transport(false, |t| t.is_ahead(mark, &ours))
            };
            marks.retain_mut(is_ahead);
            if !marks.is_empty() && self.progress() == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Tickets of the endpoint's callbacks that this thread is in.
    fn running(&self, endpoint: EpId) -> Vec<u64> {
        let ours = |called: &&Called| called.module == self.index() && called.endpoint == endpoint;
        RUNNING.with_borrow(|running| running.iter().filter(ours).map(|called| called.ticket).collect())
    }
}
