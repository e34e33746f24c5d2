//! One deadline for all peers that are taken away together, though Open MPI takes them away one by
//! one.
//!
//! A peer that takes nothing holds up its removal for the whole drain time. While that passes the
//! others are served, too, so what those that follow have not taken by then they are not given the
//! time for again. A removal belongs to the same series when it comes soon and nothing has been
//! sent in between.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// A removal that begins no later than this after the last one belongs to its series.
const GAP: Duration = Duration::from_secs(1);

/// The series of removals that is under way, if one of its peers has used up the time of all.
#[derive(Debug)]
pub struct Parting {
    exhausted: Option<Series>,
}

#[derive(Debug)]
struct Series {
    deadline: Instant,
    last: Instant,
    /// What each port has been given to send so far, of those that have had a removal in it.
    sent: Vec<(usize, u64)>,
}

impl Parting {
    /// No peer has been waited for.
    pub const fn new() -> Self {
        Parting { exhausted: None }
    }

    /// Until when a removal on `port` that begins now may wait; the port has been given `sent`
    /// messages until now.
    pub fn deadline(&mut self, now: Instant, drain: Duration, (port, sent): (usize, u64)) -> Instant {
        let quiet = |s: &Series| s.sent.iter().all(|known| known.0 != port || known.1 == sent);
        self.exhausted = self.exhausted.take().filter(|s| quiet(s) && now <= s.last + GAP);
        self.exhausted.as_ref().map_or(now + drain, |series| series.deadline)
    }

    /// A removal with this deadline is over; `in_vain`: its peers have not taken everything.
    pub fn over(&mut self, now: Instant, deadline: Instant, (port, sent): (usize, u64), in_vain: bool) {
        if in_vain && self.exhausted.is_none() {
            self.exhausted = Some(Series { deadline, last: now, sent: Vec::new() });
        }
        if let Some(series) = &mut self.exhausted {
            series.last = now;
            series.sent.retain(|known| known.0 != port);
            series.sent.push((port, sent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAIN: Duration = Duration::from_secs(10);

    fn at(start: Instant) -> impl Fn(u64) -> Instant {
        move |ms| start + Duration::from_millis(ms)
    }

    #[test]
    fn stopped_peers_that_are_taken_away_one_by_one_share_a_deadline() {
        let (mut parting, at) = (Parting::new(), at(Instant::now()));
        let deadline = parting.deadline(at(0), DRAIN, (0, 7));
        assert_eq!(deadline, at(10_000));
        parting.over(at(10_000), deadline, (0, 7), true);
        for (begin, port) in [(10_001, 1), (10_900, 0), (11_800, 1)] {
            assert_eq!(parting.deadline(at(begin), DRAIN, (port, 7)), at(10_000), "at {begin} ms");
            parting.over(at(begin + 1), at(10_000), (port, 7), begin != 10_900);
        }
    }

    #[test]
    fn peers_that_take_everything_use_up_nothing() {
        let (mut parting, at) = (Parting::new(), at(Instant::now()));
        for begin in (0..100).map(|n| n * 500) {
            let deadline = parting.deadline(at(begin), DRAIN, (0, 7));
            assert_eq!(deadline, at(begin + 10_000));
            parting.over(at(begin + 400), deadline, (0, 7), false);
        }
    }

    #[test]
    fn a_removal_that_comes_later_or_after_a_send_has_its_own_time() {
        let (mut parting, at) = (Parting::new(), at(Instant::now()));
        parting.over(at(10_000), at(10_000), (0, 7), true);
        assert_eq!(parting.deadline(at(10_500), DRAIN, (0, 8)), at(20_500));
        parting.over(at(20_500), at(20_500), (0, 8), true);
        assert_eq!(parting.deadline(at(21_501), DRAIN, (0, 8)), at(31_501));
    }
}
