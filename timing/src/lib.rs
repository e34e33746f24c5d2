//! Time, random numbers, and the work that is done beside the application's thread: of the machine, or of a simulation.
//!
//! ```text
//!                 usually                              while a Simulation lives
//!   now()         the machine's monotonic clock        stands still until the test moves it
//!   workers       have threads of their own            have none: each gets a turn when the test gives it one
//!   random()      another number on every run       the same ones in every simulation
//!   relax()       lets other threads run               gives the workers a turn, and moves time if none has work
//! ```
//!
//! The connection managers' helper and the software device's thread ask [`is_simulated`] before they start a thread, and become a
//! [`Worker`] if it says so. A process whose workers have no threads, whose time is moved by its one thread and whose random numbers
//! come from seeds does the same on every run.
//!
//! A simulation is the whole process': tests that use one are a binary of their own, or take turns ([`Simulation::begin`] waits).
#![forbid(unsafe_code)]

mod simulation;

pub use simulation::{Employed, Simulation, Worker, employ};

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nanoseconds of virtual time since [`origin`]; 0: time is real.
static VIRTUAL: AtomicU64 = AtomicU64::new(0);

/// Where virtual time is counted from.
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

/// The time.
#[inline]
pub fn now() -> Instant {
    match VIRTUAL.load(Ordering::Relaxed) {
        0 => Instant::now(),
        nanoseconds => virtual_now(nanoseconds),
    }
}

#[cold]
fn virtual_now(nanoseconds: u64) -> Instant {
    origin() + Duration::from_nanos(nanoseconds)
}

/// Whether time is virtual, and workers have no threads.
pub fn is_simulated() -> bool {
    VIRTUAL.load(Ordering::Relaxed) != 0
}

/// A number to choose names and places with, so that those of different processes differ. It keeps no secret.
pub fn random() -> u64 {
    // The standard library's hash keys are random, and another one each time.
    if is_simulated() { simulation::random() } else { RandomState::new().hash_one(0) }
}

/// For a loop that waits for other threads: lets them run.
pub fn relax() {
    if is_simulated() { simulation::relax() } else { std::thread::yield_now() }
}
