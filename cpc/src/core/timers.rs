//! One table of everything that waits for a time.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::ProcessName;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The link in this slot: a repetition, or the end of its TimeWait.
    Link(usize),
    /// The parked request of this process.
    Parked(ProcessName),
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: BTreeSet<(Instant, Timer)>,
}

impl Timers {
    /// Moves `timer` from its old time to a new one; either may be none.
    pub(crate) fn move_to(&mut self, timer: Timer, old: Option<Instant>, new: Option<Instant>) {
        if let Some(at) = old {
            self.due.remove(&(at, timer));
        }
        if let Some(at) = new {
            self.due.insert((at, timer));
        }
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.first().map(|&(at, _)| at)
    }

    /// Takes one timer that is due at `now`.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Timer> {
        let &(at, timer) = self.due.first()?;
        if at > now {
            return None;
        }
        self.due.remove(&(at, timer));
        Some(timer)
    }
}
