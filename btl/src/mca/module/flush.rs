//! `btl_flush`, and the callbacks that it waits for.

use super::{Module, from_raw};
use crate::transport::flush::Mark;
use crate::transport::{EpId, Transport};
use opal_sys::mca_btl_base_endpoint_t;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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

/// Looks of a flush before it notes what it has to wait for: in most cases all is over by then.
const LOOKS: u32 = 16;

/// Looks in a row that find nothing before it gives the processor away, if that is for nothing: a peer's READ waits during the system call.
const PATIENCE: u32 = 64;

/// Another thread has run if giving the processor away takes longer.
const SWITCH: Duration = Duration::from_micros(2);

/// Another thread has run when the processor was given away last.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// Gives the processor away between looks that find nothing: behind each, if other threads want it, else now and then.
#[derive(Default)]
struct Patience(u32);

impl Patience {
    fn look_was_vain(&mut self) {
        self.0 += 1;
        if self.0 < PATIENCE && !IS_WANTED.load(Ordering::Relaxed) {
            return;
        }
        let begin = Instant::now();
        std::thread::yield_now();
        IS_WANTED.store(begin.elapsed() > SWITCH, Ordering::Relaxed);
        self.0 = 0;
    }
}

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
            if !self.transport(false, Transport::awaits_flushed) {
                break;
            }
            self.progress();
        }
        let mut marks = self.transport(Vec::new(), |t| t.begin_flush(of));
        let mut patience = Patience::default();
        while !marks.is_empty() {
            let is_ahead = |mark: &mut Mark| {
                let ours = self.running(mark.endpoint());
                self.transport(false, |t| t.is_ahead(mark, &ours))
            };
            marks.retain_mut(is_ahead);
            if !marks.is_empty() && self.progress() == 0 {
                patience.look_was_vain();
            }
        }
    }

    /// Tickets of the endpoint's callbacks that this thread is in.
    fn running(&self, endpoint: EpId) -> Vec<u64> {
        let ours = |called: &&Called| called.module == self.index() && called.endpoint == endpoint;
        RUNNING.with_borrow(|running| running.iter().filter(ours).map(|called| called.ticket).collect())
    }
}
