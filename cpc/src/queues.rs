//! The two queues between the main thread and the helper thread.
//!
//! Commands go down, with a waker that is used only when the queue was empty. Events come up, with a flag that costs the
//! progress function one relaxed load while there is nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crate::{Choice, EndpointCommand, EndpointKey, EndpointPlan, Event};

/// What the main thread asks for.
#[derive(Debug)]
pub(crate) enum Command {
    AddEndpoint(Choice, EndpointPlan),
    Endpoint(EndpointKey, EndpointCommand),
    Close { until: Instant },
}

/// Events on their way to the main thread.
#[derive(Debug, Default)]
pub struct Outbox {
    events: Mutex<VecDeque<Event>>,
    pending: AtomicBool,
}

impl Outbox {
    /// Says something to the main thread. Never waits for it.
    pub fn push(&self, event: Event) {
        let mut events = lock(&self.events);
        events.push_back(event);
        // The queue's lock orders the event itself; the flag only says "look".
        self.pending.store(true, Ordering::Relaxed);
    }

    /// True if `pop` may have something.
    #[inline]
    pub(crate) fn pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    pub(crate) fn pop(&self) -> Option<Event> {
        let mut events = lock(&self.events);
        let event = events.pop_front();
        if events.is_empty() {
            self.pending.store(false, Ordering::Relaxed);
        }
        event
    }
}

/// Commands on their way to the helper thread.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    commands: Mutex<VecDeque<Command>>,
    waker: OnceLock<mio::Waker>,
}

impl Inbox {
    /// From now on `waker` is rung for new commands.
    pub(crate) fn attach(&self, waker: mio::Waker) {
        // A second start is stopped before it gets here.
        let _ = self.waker.set(waker);
    }

    pub(crate) fn push(&self, command: Command) {
        let mut commands = lock(&self.commands);
        let was_empty = commands.is_empty();
        commands.push_back(command);
        drop(commands);
        if was_empty && let Some(Err(error)) = self.waker.get().map(mio::Waker::wake) {
            log::error!("the connection helper thread can't be woken: {error}");
        }
    }

    pub(crate) fn take(&self) -> VecDeque<Command> {
        std::mem::take(&mut *lock(&self.commands))
    }
}

/// A queue stays good when a thread that held it panicked: its pushes and pops are whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProcessName;

    #[test]
    fn the_flag_follows_the_queue() {
        let outbox = Outbox::default();
        assert!(!outbox.pending());
        for peer in [1, 2] {
            outbox.push(Event::UnknownPeer { peer: ProcessName(peer), alternate: false });
        }
        assert!(outbox.pending());
        assert!(matches!(outbox.pop(), Some(Event::UnknownPeer { peer: ProcessName(1), .. })));
        assert!(outbox.pending(), "one is left");
        assert!(outbox.pop().is_some());
        assert!(!outbox.pending());
        assert!(outbox.pop().is_none());
    }
}
