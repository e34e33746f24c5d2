//! The device thread: progress for programs that do not poll, and the owner of the `life` word.
//!
//! While it has control it sleeps on the segment's bell. While the application has control it naps, and each time it
//! wakes it compares the poll counter with what it was: a program that has stopped polling loses control. For some time the thread
//! only stands in for it then: it sleeps on the bell no longer than for a nap, and looks at the rings that are still watched.
//!
//! In a simulation (`timing`) there is no thread: `Turns` does the same, a turn at a time.

use super::Engine;
use super::shared::{DeviceThread, ROUNDS};
use crate::datapath::responder::events;
use crate::errno::Errno;
use crate::shm::futex::futex_wait;
use crate::shm::handover::{ASKED, ASKED_IF_URGENT};
use crate::shm::layout::BELL;
use crate::shm::{handover, liveness, shortage};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// How long a program may not poll before the thread takes over.
const NAP: Duration = Duration::from_millis(4);
/// How often it looks around where no sender is known: one may have been killed before its first wake-up.
const ALONE: Duration = Duration::from_secs(5);

/// Starts the thread. The engine must outlive it: `stop` joins it.
pub fn spawn(engine: &'static Engine) -> Result<DeviceThread, Errno> {
    if timing::is_simulated() {
        return Ok(DeviceThread::Simulated(timing::employ(Box::new(Turns::new(engine)))));
    }
    let old = block_signals();
    let builder = std::thread::Builder::new().name("softib".into()).stack_size(256 << 10);
    let handle = builder.spawn(move || run(engine));
    restore_signals(&old);
    let handle = handle.map_err(|error| shortage::thread(error.into()))?;
    Ok(DeviceThread::Running(handle))
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
    let _life = liveness::tie_life_to_this_thread(&shared.map);
    register(engine);
    let mut rounds = Instant::now() + ROUNDS;
    while !shared.stop.load(Ordering::SeqCst) {
        rounds = look_around(engine, rounds);
        if shared.thread_in_charge() {
            work(engine, rounds);
        } else {
            nap(engine);
        }
    }
}

/// Registers the process for the fences of other processes, and of other threads, which takes long.
fn register(engine: &Engine) {
    let barrier = engine.enter().inbound.barrier.clone();
    barrier.register();
    engine.lock.register();
}

/// What is done with and without control: the rounds, if they are due, and events of XRC domains. When the next rounds are due.
fn look_around(engine: &Engine, rounds: Instant) -> Instant {
    let shared = &engine.shared;
    let due = shared.early.swap(false, Ordering::Relaxed) || timing::now() >= rounds;
    let next = if due { engine.enter().rounds() } else { rounds };
    if shared.domains.load(Ordering::Relaxed) != 0 {
        events::collect(&mut engine.enter().w);
    }
    next
}

/// One turn with control: do what there is, then sleep on the bell.
///
/// The bell is set before the look around, so that a thread or peer that finds it unset knows that
/// the look is still to come.
fn work(engine: &Engine, rounds: Instant) {
    let shared = &engine.shared;
    let bell = shared.map.u32(BELL);
    handover::ask_for_bell(bell, || fence(Ordering::SeqCst));
    let (again, alone, naps) = {
        let mut state = engine.enter();
        (state.thread_turn(), state.is_alone(), state.is_deputy())
    };
    let sleeps = shared.thread_in_charge() && !shared.stop.load(Ordering::SeqCst);
    if sleeps && (!naps || handover::ask_if_urgent(bell)) {
        let now = Instant::now();
        let (asked, latest) = match (naps, alone) {
            (true, _) => (ASKED_IF_URGENT, now + NAP),
            (false, true) => (ASKED, now + ALONE),
            (false, false) => (ASKED, rounds),
        };
        let until = again.map_or(latest, |again| again.min(latest));
        futex_wait(bell, asked, Some(until.saturating_duration_since(now)));
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
    // A nap that was cut short tells nothing of the program.
    if shared.nap.load(Ordering::SeqCst) == 0 {
        take_over_from(engine, before);
    }
}

/// A program that has not polled since it had polled `before` times has no control any more.
fn take_over_from(engine: &Engine, before: u64) {
    let shared = &engine.shared;
    if shared.polls.load(Ordering::Relaxed) != before || shared.thread_in_charge() {
        return;
    }
    let mut state = engine.enter();
    if shared.polls.load(Ordering::Relaxed) == before && state.inbound.owner.is_application() {
        state.w.stats.takeovers += 1;
        state.step_aside();
        shared.application.store(false, Ordering::SeqCst);
    }
}

/// The thread's work in a simulation.
struct Turns {
    engine: &'static Engine,
    rounds: Instant,
    /// How often the application had polled when the nap began, and when that ends.
    nap: (u64, Instant),
}

impl Turns {
    fn new(engine: &'static Engine) -> Turns {
        let now = timing::now();
        Turns { engine, rounds: now + ROUNDS, nap: (0, now) }
    }

    /// When something may have to be done. Where no send waits, that is not before the next rounds, though a nap ends sooner.
    fn nap(&mut self) -> Instant {
        let (shared, now) = (&self.engine.shared, timing::now());
        if now >= self.nap.1 {
            take_over_from(self.engine, self.nap.0);
            self.nap = (shared.polls.load(Ordering::Relaxed), now + NAP);
        }
        if self.engine.enter().has_waiting() { self.nap.1 } else { self.rounds }
    }
}

impl timing::Worker for Turns {
    fn turn(&mut self) -> Option<Instant> {
        self.rounds = look_around(self.engine, self.rounds);
        let again = if self.engine.shared.thread_in_charge() {
            let mut state = self.engine.enter();
            let again = state.thread_turn();
            let soon = state.is_deputy().then(|| timing::now() + NAP);
            again.into_iter().chain(soon).min()
        } else {
            Some(self.nap())
        };
        Some(again.map_or(self.rounds, |again| again.min(self.rounds)))
    }
}
