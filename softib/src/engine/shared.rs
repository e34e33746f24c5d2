//! What the device thread and the application share outside of the lock.

use crate::shm::futex::futex_wake;
use crate::shm::layout::BELL;
use crate::shm::map::Map;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the thread looks whether senders have died.
pub const ROUNDS: Duration = Duration::from_millis(500);

/// What the device thread and the application share outside of the lock.
#[derive(Debug)]
pub struct Shared {
    pub(super) map: Arc<Map>,
    pub(super) stop: AtomicBool,
    /// The application has control.
    pub(super) application: AtomicBool,
    pub(super) polls: AtomicU64,
    pub(super) nap: AtomicU32,
    /// The next rounds are due now.
    pub(super) early: AtomicBool,
    /// XRC domains that are open: their events are looked for.
    pub(super) domains: AtomicU32,
    pid: u32,
}

impl Shared {
    /// What the thread and the others share, for the segment behind `map`.
    pub fn new(map: Arc<Map>) -> Shared {
        Shared {
            map,
            stop: AtomicBool::new(false),
            application: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            nap: AtomicU32::new(0),
            early: AtomicBool::new(false),
            domains: AtomicU32::new(0),
            pid: std::process::id(),
        }
    }

    /// Counts an open XRC domain in or out.
    pub fn domains(&self, delta: i32) {
        self.domains.fetch_add(delta as u32, Ordering::SeqCst);
    }

    /// Whether this is the process that made it, not a fork child of it.
    pub fn is_owner_process(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Counts a poll, and says the how many-th it is; called under the engine's lock, so a plain addition does.
    #[inline(always)]
    pub fn polled(&self) -> u64 {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls
    }

    /// The application has taken control, or given it back.
    #[cold]
    pub fn control_changed(&self, application: bool) {
        self.application.store(application, Ordering::SeqCst);
        self.wake();
    }

    /// The application has control back from a thread that stood in for it, and looks with its next nap whether that is over.
    #[cold]
    pub fn control_is_back(&self) {
        self.application.store(true, Ordering::SeqCst);
    }

    /// Makes the thread look around: a send is waiting, or control has changed.
    ///
    /// A bell that is not set does not mean that the thread is awake: a peer may have been killed between unsetting it and the wake-up.
    #[cold]
    pub fn wake(&self) {
        self.nap.store(1, Ordering::SeqCst);
        futex_wake(&self.nap);
        let bell = self.map.u32(BELL);
        bell.store(0, Ordering::SeqCst);
        futex_wake(bell);
    }

    /// Makes the thread do its rounds now: a plan of faults has changed.
    pub fn wake_for_rounds(&self) {
        self.early.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// The thread has control, so that what must happen later is its business.
    #[inline]
    pub fn thread_in_charge(&self) -> bool {
        !self.application.load(Ordering::Relaxed)
    }
}

/// What does the device thread's work.
#[derive(Debug)]
pub enum DeviceThread {
    /// A thread, which ends when [`Shared`] says so.
    Running(std::thread::JoinHandle<()>),
    /// A simulation, which gives it turns.
    Simulated(timing::Employed),
}

impl DeviceThread {
    /// Stops the thread at exit; waits a moment only, it may be kept from ending by what called exit.
    pub fn abandon(self, shared: &Shared) {
        shared.stop.store(true, Ordering::SeqCst);
        shared.wake();
        let DeviceThread::Running(handle) = self else { return };
        let end = Instant::now() + Duration::from_millis(100);
        while !handle.is_finished() && Instant::now() < end {
            std::thread::yield_now();
        }
    }

    /// Ends the thread and waits for it.
    pub fn stop(self, shared: &Shared) {
        shared.stop.store(true, Ordering::SeqCst);
        shared.wake();
        match self {
            DeviceThread::Simulated(place) => drop(place),
            DeviceThread::Running(handle) => {
                if handle.join().is_err() {
                    log::error!("the device thread had panicked");
                }
            }
        }
    }
}
