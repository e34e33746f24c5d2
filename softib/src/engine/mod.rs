//! The engine: one per process, shared by all open contexts, made by the first and taken down by the last.
//!
//! ```text
//! state       what is under the lock               still       what a poll has found nothing at
//! inbound     the receiving side of all rings      shared      what is outside of the lock
//! initiators  those that work on our memory by their own hand
//!
//! progress    rings and stuck sends, and who works on them
//! shortcut    the short way of a poll              lent        the ring of which the program reads a message
//! ending      queue pairs that go to the error state
//! outage      ports that go down
//! thread      the device thread
//! reap        its rounds: what dead senders still hold
//! life        open, close, exit, fork
//! ```

mod ending;
mod inbound;
/// Waiting for the last user of a key.
pub mod initiators;
mod lent;
/// Open, close, exit, fork.
pub mod life;
mod outage;
mod progress;
mod reap;
mod shared;
mod shortcut;
/// What the lock guards.
pub mod state;
mod still;
mod thread;

use crate::errno::Errno;
use crate::objects::world::Stats;
use crate::reason;
use crate::shm::segment;
use shared::{DeviceThread, Shared};
use state::State;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};
use sync::{Guard, Lock, Owned};

/// The engine of this process; null while no context is open.
static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(std::ptr::null_mut());

/// The device of this process: its state under a lock, and its thread.
#[derive(Debug)]
#[repr(C, align(64))] // in this order
pub struct Engine {
    pub shared: std::sync::Arc<Shared>,
    lock: Lock<State>,
    thread: Mutex<Option<DeviceThread>>,
}

/// The engine, while a context is open.
#[inline]
pub fn current() -> Option<&'static Engine> {
    // SAFETY: set by open() to a leaked box; close() frees it only when the last context is gone, after which no verbs call
    // may be under way (a rule of the verbs ABI).
    unsafe { ENGINE.load(Ordering::Acquire).as_ref() }
}

/// Counters of this process so far; zero while no context is open.
pub fn stats() -> Stats {
    current().map(|engine| engine.enter().w.stats).unwrap_or_default()
}

/// Bytes that this process has registered; zero while no context is open.
pub fn registered_bytes() -> u64 {
    current().map(|engine| engine.enter().w.mrs.bytes()).unwrap_or_default()
}

/// Takes the space that so many processes need to send to this one, where the folder of the segments has not plenty for all of
/// them: what is taken now cannot be missing later. ENODEV: the device is not open; ENOMEM, with a reason: there is too little.
pub fn reserve(peers: usize) -> Result<(), Errno> {
    reason::forget();
    let engine = current().ok_or(Errno::NODEV)?;
    let state = engine.enter();
    state.w.segment.reserve(peers, state.w.heap.end())
}

/// Whether the segments of so many processes can be mapped, and `besides` bytes are left then. ENOMEM, with a reason: the limit of
/// address space is too low.
pub fn check_address_space(peers: usize, besides: usize) -> Result<(), Errno> {
    reason::forget();
    segment::check_address_space(peers, besides)
}

impl Engine {
    /// Takes the engine's lock.
    #[inline]
    pub fn enter(&self) -> Guard<'_, State> {
        let mut state = self.lock.lock();
        state.still.forget();
        state
    }

    /// The same for the thread that the lock is biased to; None for others, who go the general way.
    #[inline(always)]
    pub fn enter_as_owner(&self) -> Option<Owned<'_, State>> {
        let mut state = self.lock.lock_as_owner()?;
        state.still.forget();
        Some(state)
    }

    /// The same for a poll, which asks what is [still](Still) so, and forgets it before it looks further.
    #[inline(always)]
    pub fn enter_to_poll(&self) -> Option<Owned<'_, State>> {
        self.lock.lock_as_owner()
    }
}
