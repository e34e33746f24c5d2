//! The device thread: progress for programs that do not poll, and the owner of the `life` word.
//!
//! While it has control it sleeps on the segment's bell. While the application has control it naps, and each time it
//! wakes it compares the poll counter with what it was: a program that has stopped polling loses control.

use crate::engine::Engine;
use crate::engine::progress::Owner;
use crate::errno::Errno;
use crate::shm::futex::{futex_wait, futex_wake};
use crate::shm::handover;
use crate::shm::layout::BELL;
use crate::shm::liveness;
use crate::shm::map::Map;
use crate::shm::shortage;
use crate::xrc::events;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// How long a program may not poll before the thread takes over.
const NAP: Duration = Duration::from_millis(4);
/// How often the thread looks whether senders have died.
pub const ROUNDS: Duration = Duration::from_millis(500);
/// How often it looks around where no sender is known: one may have been killed before its first wake-up.
const ALONE: Duration = Duration::from_secs(5);

/// What the device thread and the application share outside of the lock.
#[derive(Debug)]
pub struct Shared {
    map: Arc<Map>,
    stop: AtomicBool,
    /// The application has control.
    application: AtomicBool,
    polls: AtomicU64,
    nap: AtomicU32,
    /// The next rounds are due now.
    early: AtomicBool,
    /// XRC domains that are open: their events are looked for.
    domains: AtomicU32,
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

/// The running thread.
#[derive(Debug)]
pub struct DeviceThread {
    handle: std::thread::JoinHandle<()>,
}

impl DeviceThread {
    /// Starts the thread. The engine must outlive it: `stop` joins it.
    pub fn spawn(engine: &'static Engine) -> Result<DeviceThread, Errno> {
        let old = block_signals();
        let builder = std::thread::Builder::new().name("softib".into()).stack_size(256 << 10);
        let handle = builder.spawn(move || run(engine));
        restore_signals(&old);
        let handle = handle.map_err(|error| shortage::thread(error.into()))?;
        Ok(DeviceThread { handle })
    }

    /// Stops the thread at exit; waits a moment only, it may be kept from ending by what called exit.
    pub fn abandon(self, shared: &Shared) {
        shared.stop.store(true, Ordering::SeqCst);
        shared.wake();
        let end = Instant::now() + Duration::from_millis(100);
        while !self.handle.is_finished() && Instant::now() < end {
            std::thread::yield_now();
        }
    }

    /// Ends the thread and waits for it.
    pub fn stop(self, shared: &Shared) {
        shared.stop.store(true, Ordering::SeqCst);
        shared.wake();
        if self.handle.join().is_err() {
            log::error!("the device thread had panicked");
        }
    }
}

/// The new thread inherits a full mask: signals go to threads of the program. SIGBUS is for the thread that touches what is not
/// there (`shm::fault`), and kills if it is blocked.
fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are ours; sigfillset initialises the first and pthread_sigmask the second.
    unsafe {
        let (mut all, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::sigdelset(&mut all, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        old
    }
}

fn restore_signals(old: &libc::sigset_t) {
    // SAFETY: a set that pthread_sigmask has filled.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old, std::ptr::null_mut()) };
}

fn run(engine: &Engine) {
    let shared = &engine.shared;
    let _list = liveness::tie_life_to_this_thread(&shared.map);
    let mut rounds = Instant::now() + ROUNDS;
    while !shared.stop.load(Ordering::SeqCst) {
        if shared.early.swap(false, Ordering::Relaxed) || Instant::now() >= rounds {
            rounds = engine.enter().rounds();
        }
        if shared.domains.load(Ordering::Relaxed) != 0 {
            events::collect(&mut engine.enter().w);
        }
        if shared.thread_in_charge() {
            work(engine, rounds);
        } else {
            nap(engine);
        }
    }
}

/// One turn with control: do what there is, then sleep on the bell.
///
/// The bell is set before the look around, so that a thread or peer that finds it unset knows that
/// the look is still to come.
fn work(engine: &Engine, rounds: Instant) {
    let shared = &engine.shared;
    let bell = shared.map.u32(BELL);
    handover::ask_for_bell(bell, || fence(Ordering::SeqCst));
    let (again, alone) = {
        let mut state = engine.enter();
        (state.progress(), state.is_alone())
    };
    if shared.thread_in_charge() && !shared.stop.load(Ordering::SeqCst) {
        let now = Instant::now();
        let latest = if alone { now + ALONE } else { rounds };
        let until = again.map_or(latest, |again| again.min(latest));
        futex_wait(bell, 1, Some(until.saturating_duration_since(now)));
    }
    bell.store(0, Ordering::SeqCst);
}

/// One turn without control: see whether the application still polls.
fn nap(engine: &Engine) {
    let shared = &engine.shared;
    let before = shared.polls.load(Ordering::Relaxed);
    shared.nap.store(0, Ordering::SeqCst);
    if !shared.stop.load(Ordering::SeqCst) && !shared.thread_in_charge() {
        futex_wait(&shared.nap, 0, Some(NAP));
    }
    if shared.polls.load(Ordering::Relaxed) != before || shared.thread_in_charge() {
        return;
    }
    let mut state = engine.enter();
    if shared.polls.load(Ordering::Relaxed) == before && state.inbound.owner != Owner::Thread {
        state.w.stats.takeovers += 1;
        state.give_back();
        shared.application.store(false, Ordering::SeqCst);
    }
}
