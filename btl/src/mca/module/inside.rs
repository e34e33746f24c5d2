//! Receive callbacks that are running: "inside a callback" is a fact of a thread, whatever the
//! port.
//!
//! A job without threads counts in a plain variable: a thread's own would cost it a call for each
//! message. A callback that runs while Open MPI begins to use threads stays counted there until it
//! returns.

use super::Module;
use super::turns::Ticket;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Callbacks of a job without threads.
static ALONE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static THREAD: Thread = const { Thread { depth: Cell::new(0), turn: Cell::new(None) } };
}

/// What a thread is in.
struct Thread {
    depth: Cell<u32>,
    /// The turn of its innermost callback, until that enters a module.
    turn: Cell<Option<(&'static Module, Ticket)>>,
}

/// Runs a receive callback of a job without threads, or several one after the other.
#[inline]
pub fn alone<R>(callback: impl FnOnce() -> R) -> R {
    let _one = One::begin();
    callback()
}

/// One more of [`ALONE`].
struct One;

impl One {
    #[inline(always)] // with every message
    fn begin() -> One {
        // One thread counts: a load and a store do.
        ALONE.store(ALONE.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        One
    }
}

impl Drop for One {
    #[inline(always)] // with every message
    fn drop(&mut self) {
        ALONE.store(ALONE.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
}

/// Runs a receive callback on its turn.
pub fn in_turn<R>(module: &'static Module, ticket: Ticket, callback: impl FnOnce() -> R) -> R {
    THREAD.with(|thread| {
        thread.depth.set(thread.depth.get() + 1);
        thread.turn.set(Some((module, ticket)));
        let result = callback();
        thread.turn.set(None);
        thread.depth.set(thread.depth.get() - 1);
        result
    })
}

/// The turn that this thread's callback has had until now: it enters a module again.
pub fn take_turn() -> Option<(&'static Module, Ticket)> {
    THREAD.with(|thread| thread.turn.take())
}

/// This thread runs a receive callback.
pub fn is_inside(threads: bool) -> bool {
    ALONE.load(Ordering::Relaxed) != 0 || threads && THREAD.with(|thread| thread.depth.get() != 0)
}
