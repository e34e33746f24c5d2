//! Two ways to do the same: the one that takes less time is in use, and the other one is tried now and then, for what they take changes: a virtual
//! machine's processors move.

use std::time::Duration;

/// Bytes to which times refer.
const UNIT: u64 = 16 << 10;

/// A new time changes what is known by one part of so many, in use and in a trial.
const STEPS: u32 = 16;
const TRIAL_STEPS: u32 = 8;

/// When the way that is not in use is tried.
#[derive(Debug, Clone, Copy)]
pub struct Trials {
    /// Transfers up to the first trial.
    pub soon: u16,
    /// Most transfers from one trial to the next: each may take several times as long.
    pub seldom: u16,
    /// Transfers of a trial, of which the last ones count most: what has not been done for a while takes longer at first.
    pub burst: u16,
    /// The way in use is left as soon as it takes longer than the other one did when that was tried last, and not only at the end of a trial. Times that
    /// differ from one moment to the next are only compared with those of the same moment.
    pub leaves: bool,
}

/// The way in use, and how long transfers take in each.
#[derive(Debug)]
pub struct Choice {
    is_other: bool,
    trials: Trials,
    /// Nanoseconds for [`UNIT`] bytes, by the usual way and by the other one; 0: not known.
    took: [u32; 2],
    /// Transfers up to the end of the next trial of the way that is not in use, and from there to the end of the one behind it.
    left: u16,
    next: u16,
    /// Nothing of the last trial has been noted.
    is_fresh: bool,
}

impl Choice {
    /// The usual way is in use, and nothing known.
    pub fn new(trials: Trials) -> Choice {
        Choice { is_other: false, trials, took: [0; 2], left: trials.soon, next: trials.soon, is_fresh: true }
    }

    /// Whether the other way is in use, but for trials.
    #[inline]
    pub fn is_other(&self) -> bool {
        self.is_other
    }

    /// Whether the next transfer is a trial of the way that is not in use.
    #[inline]
    pub fn is_trial_next(&self) -> bool {
        self.left <= self.trials.burst
    }

    /// Whether the next transfer is to go the other way.
    #[inline]
    pub fn is_other_next(&self) -> bool {
        self.is_trial_next() != self.is_other
    }

    /// A transfer goes as [`Self::is_other_next`] says, which this returns.
    #[inline]
    pub fn go(&mut self) -> bool {
        let is_other = self.is_other_next();
        self.is_fresh |= self.left == self.trials.burst;
        self.left -= 1;
        if self.left == 0 {
            self.end_trial();
        }
        is_other
    }

    fn end_trial(&mut self) {
        self.left = self.next;
        self.next = self.after_next();
        if !self.is_fresh {
            self.decide();
        }
    }

    fn after_next(&self) -> u16 {
        (2 * self.next).min(self.trials.seldom)
    }

    /// So many bytes have gone the one way or the other in so much time.
    pub fn note(&mut self, other: bool, len: u32, time: Duration) {
        let unit = u128::from(UNIT) * time.as_nanos() / u128::from(len.max(1));
        let unit = u32::try_from(unit).unwrap_or(u32::MAX / 8).clamp(1, u32::MAX / 8);
        let is_trial = other != self.is_other;
        let is_first = is_trial && std::mem::take(&mut self.is_fresh);
        let known = &mut self.took[usize::from(other)];
        *known = if *known == 0 || is_first { unit } else { nearer(*known, unit, is_trial) };
        if self.trials.leaves {
            self.decide();
        }
    }

    /// Changes to the way that is not in use if that takes less time by an eighth. Each change doubles the time to the next trial, as each trial
    /// does: where the way that the peer has chosen says which one is better for us, both would go to and fro.
    fn decide(&mut self) {
        let (now, unused) = (self.took[usize::from(self.is_other)], self.took[usize::from(!self.is_other)]);
        if unused != 0 && unused + unused / 8 < now {
            (self.is_other, self.left) = (!self.is_other, self.next);
            self.next = self.after_next();
        }
    }
}

/// What is known moves towards a new time by a step of its own size, so that it comes to be the median of them: those that were interrupted, or met
/// memory that had not been used before, weigh no more than others. A trial has fewer, so its steps are longer.
fn nearer(known: u32, time: u32, is_trial: bool) -> u32 {
    let step = 1 + known / if is_trial { TRIAL_STEPS } else { STEPS };
    time.clamp(known.saturating_sub(step), known.saturating_add(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIALS: Trials = Trials { soon: 8, seldom: 256, burst: 1, leaves: true };

    /// How many of so many transfers go the other way, where both take so many nanoseconds.
    fn gone(choice: &mut Choice, costs: [u64; 2], transfers: usize) -> usize {
        let go = |choice: &mut Choice| {
            let other = choice.go();
            choice.note(other, 16 << 10, Duration::from_nanos(costs[usize::from(other)]));
            other
        };
        (0..transfers).filter(|_| go(choice)).count()
    }

    #[test]
    fn the_way_that_takes_less_time_is_taken_and_the_other_one_tried_now_and_then() {
        let mut choice = Choice::new(TRIALS);
        assert_eq!(gone(&mut choice, [100, 200], 7), 0);
        assert_eq!(
            gone(&mut choice, [100, 200], 993),
            8,
            "the 8th, 16th, 32nd, ... 256th, and each 256 more"
        );
        assert!(gone(&mut choice, [200, 100], 512) >= 256, "the next trial has shown that it takes less");
        assert!((1..5).contains(&(1000 - gone(&mut choice, [200, 100], 1000))));
    }

    #[test]
    fn a_small_difference_changes_nothing() {
        let mut choice = Choice::new(TRIALS);
        assert_eq!(gone(&mut choice, [100, 90], 1000), 8);
        assert!(!choice.is_other());
    }

    #[test]
    fn what_a_trial_meets_at_first_counts_less_than_what_follows() {
        let mut choice = Choice::new(Trials { soon: 64, seldom: 256, burst: 48, leaves: false });
        assert_eq!(gone(&mut choice, [100, 3000], 16 + 10), 10, "a trial has begun");
        assert!(
            gone(&mut choice, [100, 80], 300) > 200,
            "from its end on the other way is in use, but for trials"
        );
    }

    #[test]
    fn what_is_interrupted_now_and_then_is_known_by_the_rest() {
        let mut choice = Choice::new(Trials { soon: u16::MAX, ..TRIALS });
        for number in 0..1000 {
            choice.note(false, 16 << 10, Duration::from_nanos(if number % 3 == 0 { 5000 } else { 100 }));
        }
        assert!((100..115).contains(&choice.took[0]), "{:?}", choice.took);
    }

    /// As with transfers that cross the peer's: the other way takes less as long as the peer does not take it.
    #[test]
    fn a_way_that_is_better_only_while_it_is_not_in_use_is_taken_seldom() {
        let mut choice = Choice::new(TRIALS);
        let (mut other, mut changes) = (0, 0);
        for _ in 0..20_000 {
            let was = choice.is_other();
            let takes = choice.go();
            let time = if takes && was {
                130
            } else if takes {
                80
            } else {
                100
            };
            choice.note(takes, 16 << 10, Duration::from_nanos(time));
            other += usize::from(takes);
            changes += usize::from(was != choice.is_other());
        }
        assert!(other < 1000 && changes < 200, "{other} transfers, {changes} changes");
    }
}
