//! Which way the data of READs and WRITEs goes where the peer could be asked to move it (`datapath::initiator::rdma`): through the rings, or by our own
//! hand, with a system call. Which of the two takes less time depends on the processors, on how near they are to each other, on the kernel, and
//! on the length; so both are timed, for each kind of transfer.
//!
//! A READ that crosses one of the peer's is another matter: who fetches while the other one asks gains at its cost, so the time from the
//! question to the answer says nothing. What is compared is the work: the two copies by the rings, of which each side makes one for itself and one for the
//! other, and the one copy by the system call. Both sides have the same to do, and come to the same.

use crate::shm::choice::{Choice, Trials};
use std::time::{Duration, Instant};

/// Shorter ones go through the rings: a system call takes as long as they do.
const LEAST: u32 = 1 << 10;

/// Transfers of fewer bytes than this power of two are of the first step; each further step is up to four times as long.
const FIRST_STEP: u32 = 11;
/// From 128 KiB on all are of the last one.
const LENGTHS: usize = 5;

/// From this step on each transfer is timed.
const LONG: u8 = 3;

/// From this step on those of a burst are of the same kind as others. Shorter ones go through the rings: the peer copies one as we copy another one.
const IN_BURSTS: u8 = 3;

/// Of shorter ones, one of so many. An odd number, for programs make as many at a time as a power of two.
const TIMED_OF: u8 = 7;

/// What a transfer through the rings costs behind its answer: the program has yet to find its completion.
const BESIDES: Duration = Duration::from_nanos(150);

/// What READs that cross cost beside the copies, the questions and looks that find nothing, is this part of them.
const BESIDES_COPIES: u32 = 8;

/// The first system call in a while takes several times as long as the next ones, and so does the first one with each page: a trial is to go round in
/// the memory that a program uses.
const TRIALS: Trials = Trials { soon: 512, seldom: 16384, burst: 128, leaves: false };

/// The same of long transfers, which have more pages.
const TRIALS_OF_LONG: Trials = Trials { soon: 128, seldom: 4096, burst: 32, leaves: false };

/// A kind of transfer; READs and WRITEs by the step of their length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Read(u8),
    Write(u8),
    /// A READ that crosses one of the peer's.
    Crossing,
}

impl Kind {
    /// By their [index](Self::index).
    const ALL: [Kind; 1 + 2 * LENGTHS] = {
        let mut all = [Kind::Crossing; 1 + 2 * LENGTHS];
        let mut step = 0;
        while step < LENGTHS {
            all[1 + step] = Kind::Read(step as u8);
            all[1 + LENGTHS + step] = Kind::Write(step as u8);
            step += 1;
        }
        all
    };

    /// The kind of a READ, or WRITE, of so many bytes, which may be one of a burst. None: it goes through the rings in any case, as short ones in a
    /// burst do: the peer copies one as we copy another one.
    #[inline]
    pub fn of(reads: bool, len: u32, in_burst: bool) -> Option<Kind> {
        let bits = (len | 1).ilog2();
        let step = ((bits + 2).saturating_sub(FIRST_STEP) / 2).min(LENGTHS as u32 - 1) as u8;
        let kind = if reads { Kind::Read(step) } else { Kind::Write(step) };
        (len >= LEAST && (!in_burst || step >= IN_BURSTS)).then_some(kind)
    }

    #[inline]
    fn index(self) -> usize {
        match self {
            Kind::Crossing => 0,
            Kind::Read(step) => 1 + usize::from(step),
            Kind::Write(step) => 1 + LENGTHS + usize::from(step),
        }
    }

    fn is_long(self) -> bool {
        matches!(self, Kind::Crossing | Kind::Read(LONG..) | Kind::Write(LONG..))
    }
}

/// The ways to one peer.
#[derive(Debug)]
pub struct Moves {
    /// Through the rings is the usual way, by our own hand the other one.
    choices: [Choice; Kind::ALL.len()],
    /// Transfers since one was timed.
    untimed: u8,
    /// What [`Copied`] takes for a piece.
    copies: [Duration; 2],
    /// All go through the rings.
    by_rings: bool,
}

/// One of the two copies of a piece by the rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// Into a ring of the peer's.
    In,
    /// Out of ours.
    Out,
}

impl Moves {
    /// Nothing is known yet, or, `by_rings`, nothing is to be found out.
    pub fn new(by_rings: bool) -> Moves {
        let of_kind = |kind: Kind| Choice::new(if kind.is_long() { TRIALS_OF_LONG } else { TRIALS });
        let choices = Kind::ALL.map(of_kind);
        Moves { choices, untimed: 0, copies: [Duration::ZERO; 2], by_rings }
    }

    /// Whether the next transfer of this kind goes by our own hand.
    #[inline]
    pub fn is_by_hand(&self, kind: Option<Kind>) -> bool {
        kind.is_some_and(|kind| !self.by_rings && self.choices[kind.index()].is_other_next())
    }

    /// Whether the next transfer of this kind is to be timed.
    #[inline]
    pub fn is_timed(&self, kind: Option<Kind>) -> bool {
        let is_due = |kind: Kind| {
            kind.is_long() || self.choices[kind.index()].is_trial_next() || self.untimed + 1 >= TIMED_OF
        };
        !self.by_rings && kind.is_some_and(is_due)
    }

    /// A transfer of this kind goes that way. Its kind, if it is to be timed.
    #[inline]
    pub fn go(&mut self, kind: Option<Kind>) -> Option<Kind> {
        let is_timed = self.is_timed(kind);
        let kind = kind.filter(|_| !self.by_rings)?;
        self.untimed += 1;
        self.choices[kind.index()].go();
        if is_timed {
            self.untimed = 0;
        }
        is_timed.then_some(kind)
    }

    /// A transfer of `len` bytes has taken so long by our own hand.
    pub fn note_by_hand(&mut self, kind: Kind, len: u32, time: Duration) {
        self.choices[kind.index()].note(true, len, time);
    }

    /// The same through the rings, from the question to the answer.
    pub fn note_answer(&mut self, kind: Kind, len: u32, time: Duration) {
        self.choices[kind.index()].note(false, len, time + BESIDES);
    }

    /// A copy of a piece has been made by the rings, since then.
    pub fn note_copy(&mut self, copied: Copied, since: Instant) {
        self.copies[copied as usize] = timing::now() - since;
    }

    /// A READ that has crossed one of the peer's has come through the rings, in pieces of `piece` bytes.
    pub fn note_crossing(&mut self, piece: u32) {
        let [copied_in, copied_out] = self.copies;
        if !copied_in.is_zero() && !copied_out.is_zero() {
            let both = copied_in + copied_out;
            self.choices[Kind::Crossing.index()].note(false, piece, both + both / BESIDES_COPIES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    /// How many of so many READs of `len` bytes are fetched, where those through the rings and by hand take so many microseconds.
    fn fetched(moves: &mut Moves, len: u32, costs: [u32; 2], reads: usize) -> usize {
        let kind = Kind::of(true, len, false);
        let read = |moves: &mut Moves| {
            let by_hand = moves.is_by_hand(kind);
            if let Some(kind) = moves.go(kind) {
                match by_hand {
                    true => moves.note_by_hand(kind, len, MICROSECOND * costs[1]),
                    false => moves.note_answer(kind, len, MICROSECOND * costs[0]),
                }
            }
            by_hand
        };
        (0..reads).filter(|_| read(moves)).count()
    }

    #[test]
    fn each_kind_goes_the_way_in_which_it_takes_less_time() {
        let mut moves = Moves::new(false);
        assert!(fetched(&mut moves, 64 << 10, [10, 7], 1000) > 800);
        assert!(fetched(&mut moves, 16 << 10, [4, 3], 10_000) > 9000);
        assert_eq!(fetched(&mut moves, 4 << 10, [10, 14], 800), 128, "a trial");
        assert!(fetched(&mut moves, 4 << 10, [10, 14], 100_000) < 13 * 128, "seldom");
        assert!(fetched(&mut moves, 1 << 20, [70, 90], 1000) < 5 * 32);
        assert!(!moves.is_by_hand(Kind::of(false, 64 << 10, false)), "WRITEs are a kind of their own");
    }

    #[test]
    fn short_ones_in_a_burst_go_through_the_rings() {
        let is_any = |len, in_burst| Kind::of(true, len, in_burst).is_some();
        assert_eq!(
            [is_any(1 << 10, false), is_any(16 << 10, true), is_any(64 << 10, true)],
            [true, false, true]
        );
    }

    #[test]
    fn those_of_one_kind_differ_in_length_by_up_to_four_times() {
        let lengths = [1024, 2047, 2048, 8191, 8192, 32_767, 32_768, 131_071, 131_072, u32::MAX];
        let steps = lengths.map(|len| Kind::of(true, len, false));
        assert_eq!(steps, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4].map(|step| Some(Kind::Read(step))));
        assert_eq!(Kind::of(true, 1023, false), None, "through the rings");
    }

    #[test]
    fn kinds_have_places_of_their_own() {
        assert!(Kind::ALL.into_iter().enumerate().all(|(index, kind)| kind.index() == index));
    }

    #[test]
    fn nothing_is_tried_where_only_what_is_late_goes_by_hand() {
        let mut moves = Moves::new(true);
        assert_eq!(fetched(&mut moves, 16 << 10, [10, 1], 1000), 0);
        assert!(!moves.is_by_hand(Some(Kind::Crossing)));
    }

    #[test]
    fn of_what_crosses_the_copies_are_compared() {
        let mut moves = Moves::new(false);
        let now = timing::now();
        for (by_rings, by_hand) in [(100, true), (1, false)] {
            moves.copies = [MICROSECOND * by_rings, MICROSECOND];
            for _ in 0..6000 {
                match moves.is_by_hand(Some(Kind::Crossing)) {
                    true => moves.note_by_hand(Kind::Crossing, 16 << 10, MICROSECOND * 10),
                    false => moves.note_crossing(16 << 10),
                }
                assert_eq!(moves.go(Some(Kind::Crossing)), Some(Kind::Crossing), "each one is timed");
            }
            assert_eq!(moves.choices[0].is_other(), by_hand);
        }
        moves.note_copy(Copied::In, now);
        assert!(moves.copies[0] != MICROSECOND);
    }
}
