//! Progress for messages whose sender has left MPI.
//!
//! A message that waits for a credit, an entry or the way back to a peer that has been heard is complete for its sender: the data is
//! ours. The sender may go on to wait, outside of MPI, for what the receiver does with it. So from then on a thread of ours looks around, too,
//! until nothing waits any more:
//!
//! ```text
//!   the application's thread      send: waits ─ share ─ returns          send: lock     ...            look: no lock
//!   oxib-progress                                 └─> look ─ look ── look ─────── look: nothing waits, unshare
//! ```
//! While it does, the application's only thread takes the module's lock as well. It hands nothing up: what it finds waits for the application.

use super::{Module, State};
use crate::mca::guard::guard_thread;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The first pause between two looks; twice as long each time that nothing has gone.
const SHORTEST: Duration = Duration::from_micros(100);

/// The longest.
const LONGEST: Duration = Duration::from_millis(10);

static THREAD: Mutex<Thread> = Mutex::new(Thread { handle: None, ends: false, asked: false });
static CHANGED: Condvar = Condvar::new();
/// It has been said that there is no thread.
static COMPLAINED: AtomicBool = AtomicBool::new(false);

/// The thread, once there is one, and what it is told.
struct Thread {
    handle: Option<JoinHandle<()>>,
    ends: bool,
    /// A module has messages for it that it may not know of.
    asked: bool,
}

fn thread() -> MutexGuard<'static, Thread> {
    THREAD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has what waits in this module served until it is out, whether or not the application is in MPI.
pub(super) fn serve(module: &'static Module) {
    if !module.state.share() {
        return;
    }
    let mut thread = thread();
    thread.asked = true;
    CHANGED.notify_all();
    if thread.handle.is_none() {
        let builder = std::thread::Builder::new().name("oxib-progress".to_owned()).stack_size(256 << 10);
        match verbs::signals::with_all_blocked(|| builder.spawn(run)) {
            Ok(handle) => thread.handle = Some(handle),
            Err(error) => complain(&error),
        }
    }
}

fn complain(error: &std::io::Error) {
    if !COMPLAINED.swap(true, Ordering::Relaxed) {
        log::warn!(
            "no thread for messages that wait for their receivers ({error}): they leave only while their senders are in MPI"
        );
    }
}

/// Ends the thread; no module has anything for it any more.
pub fn end() {
    let handle = {
        let mut thread = thread();
        thread.ends = true;
        CHANGED.notify_all();
        thread.handle.take()
    };
    if handle.is_some_and(|handle| handle.join().is_err()) {
        log::error!("the progress thread has panicked");
    }
    thread().ends = false;
}

/// What one look came to.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    /// Messages wait, or may.
    waits: bool,
    /// Some have gone.
    moves: bool,
}

/// Looks around in all modules that share their state, and sleeps while none does.
fn run() {
    let (mut pause, mut last) = (SHORTEST, Look::default());
    let mut thread = thread();
    while !thread.ends {
        if std::mem::take(&mut thread.asked) {
            pause = SHORTEST;
        } else if !last.waits {
            thread = CHANGED.wait(thread).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        drop(thread);
        std::thread::sleep(pause);
        last = serve_all();
        pause = if last.moves { SHORTEST } else { (pause * 2).min(LONGEST) };
        thread = self::thread();
    }
}

fn serve_all() -> Look {
    Module::all().fold(Look::default(), |all, module| {
        let look = guard_thread("oxib-progress", || module.serve_shared());
        if look.is_none() && module.abi.uses_threads() {
            // Any thread may call Open MPI then. If it has only one, that finds what is broken itself.
            Module::tell_broken();
        }
        let look = look.unwrap_or_default();
        Look { waits: all.waits || look.waits, moves: all.moves || look.moves }
    })
}

impl Module {
    /// One look, if this module is shared and no other thread is in it. What a panic of ours leaves goes on being shared: the
    /// application's thread finds it.
    fn serve_shared(&'static self) -> Look {
        if !self.state.is_shared() {
            return Look::default();
        }
        let Some(lock) = self.state.try_lock() else { return Look { waits: true, moves: false } };
        if !self.state.is_shared() {
            return Look::default();
        }
        let serve = |state: &mut State| state.transport.as_mut().map_or((0, 0), |t| t.serve_in_background());
        // SAFETY: the lock is held, and every thread takes it while the state is shared; the transport does not call out.
        let (before, after) = unsafe { self.state.enter(serve) };
        if after == 0 {
            self.state.unshare(&lock);
        }
        Look { waits: after != 0, moves: after < before }
    }
}
