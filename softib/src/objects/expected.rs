//! An answer that is on its way: the polls that wait for it do without all else, for a while.

use std::time::{Duration, Instant};

/// Polls in which an answer of one piece comes, where its sender looks at its rings.
const POLLS: u32 = 24;

/// In the first of them the clock is read only where that delays nothing: as soon as the program is back from what else it does.
const WITHOUT_CLOCK: u32 = 4;

/// So long an answer is expected.
const AT_MOST: Duration = Duration::from_micros(5);

/// How long an answer is expected.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expected {
    /// In so many more polls.
    pub polls: u32,
    /// Since when, if that is known.
    since: Option<Instant>,
}

impl Expected {
    /// The next polls expect an answer to what has been asked at this time, if that is known.
    #[inline]
    pub fn since(since: Option<Instant>) -> Expected {
        Expected { polls: POLLS, since }
    }

    /// A program that looks around now and then only has been elsewhere until the first of its polls, and has waited long enough.
    #[inline(always)]
    pub fn is_overdue_at_first(&mut self) -> bool {
        self.polls == POLLS - 1 && self.since.is_some() && self.look_at_clock()
    }

    /// A look at a ring has found nothing; whether the answer has been waited for long enough.
    #[inline(always)]
    pub fn is_overdue(&mut self) -> bool {
        self.polls < POLLS - WITHOUT_CLOCK && self.look_at_clock()
    }

    fn look_at_clock(&mut self) -> bool {
        let now = timing::now();
        let is_over = now - *self.since.get_or_insert(now) >= AT_MOST;
        if is_over {
            self.polls = 0;
        }
        is_over
    }
}
