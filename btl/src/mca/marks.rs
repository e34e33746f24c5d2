//! Ranges of memory that have been given back to the system, from any thread to the registration
//! caches.
//!
//! ```text
//!   mark(): number = head++        slot[number % N]: stamp = writing, range, stamp = written
//!   since(from): numbers from..head, each with its stamp;  one that is overwritten,
//!                not there yet or lost: Lost, which means "any memory may have been released"
//! ```
//!
//! `mark` runs inside of munmap(2) and the like, on any thread, under an allocator's locks, in a
//! signal handler: it allocates nothing, takes no lock and waits for nothing. A slot belongs to the
//! writer that has stamped it; another one that comes round to it meanwhile leaves it alone, and
//! readers do not find its mark, so they take everything for released.
//!
//! A mark whose range is still being written is one of another thread: that thread has not given
//! its memory back yet, or has told no other thread so. What a reader has to see, releases of
//! before its own call, is written completely.
#![forbid(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sync::word::{Count, Word};

/// Some marks are not to be had: any memory may have been released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

#[derive(Debug)]
struct Slot<S, A> {
    /// Twice the number plus 1 while it is written, plus 2 when it is there.
    stamp: S,
    start: A,
    end: A,
}

impl Slot<AtomicU64, AtomicUsize> {
    const fn new() -> Self {
        Slot { stamp: AtomicU64::new(0), start: AtomicUsize::new(0), end: AtomicUsize::new(0) }
    }
}

impl<S: Word<u64>, A: Word<usize>> Slot<S, A> {
    /// Takes the slot for the mark of this number; `false`: it is being written, or was taken by a
    /// later one.
    fn take(&self, number: u64) -> bool {
        let (before, writing) = (self.stamp.load(Ordering::Relaxed), 2 * number + 1);
        let free = before.is_multiple_of(2) && before < writing;
        free && self.stamp.replace(before, writing, Ordering::Acquire)
    }

    /// The range of the mark of this number, if it is there.
    fn read(&self, number: u64) -> Option<Range<usize>> {
        let written = 2 * number + 2;
        if self.stamp.load(Ordering::Acquire) != written {
            return None;
        }
        let range = self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed);
        // The range was read before the stamp is read again.
        S::fence(Ordering::Acquire);
        (self.stamp.load(Ordering::Relaxed) == written).then_some(range)
    }
}

/// The last `N` ranges. `N` is a power of two.
#[derive(Debug)]
pub struct Marks<const N: usize, S = AtomicU64, A = AtomicUsize> {
    /// Number of the next mark.
    head: S,
    slots: [Slot<S, A>; N],
}

impl<const N: usize> Marks<N> {
    /// No marks.
    pub const fn new() -> Self {
        const { assert!(N.is_power_of_two()) };
        Marks { head: AtomicU64::new(0), slots: [const { Slot::new() }; N] }
    }
}

#[allow(private_bounds, reason = "there are no other words than those of std, and a model's")]
impl<const N: usize, S: Count<u64>, A: Word<usize>> Marks<N, S, A> {
    /// Notes that `range` has been released.
    pub fn mark(&self, range: Range<usize>) {
        let number = self.head.fetch_add(1, Ordering::AcqRel);
        let slot = &self.slots[number as usize % N];
        if !slot.take(number) {
            return;
        }
        // Readers that see the range, or a part of it, see the slot taken.
        S::fence(Ordering::Release);
        slot.start.store(range.start, Ordering::Relaxed);
        slot.end.store(range.end, Ordering::Relaxed);
        slot.stamp.store(2 * number + 2, Ordering::Release);
    }

    /// The number that the next mark gets.
    #[inline]
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Shows `each` the ranges from number `from` on; returns where the next call goes on.
    ///
    /// # Errors
    /// [`Lost`]; `each` may have seen some of them.
    pub fn since(&self, from: u64, mut each: impl FnMut(Range<usize>)) -> (u64, Result<(), Lost>) {
        let head = self.head();
        if head - from > N as u64 {
            return (head, Err(Lost));
        }
        for number in from..head {
            match self.slots[number as usize % N].read(number) {
                Some(range) => each(range),
                None => return (head, Err(Lost)),
            }
        }
        (head, Ok(()))
    }

    /// Whether a mark from number `from` on may overlap `range`.
    pub fn touches(&self, from: u64, range: &Range<usize>) -> bool {
        let mut touched = false;
        let (_, all) = self.since(from, |mark| touched |= mark.start < range.end && range.start < mark.end);
        touched || all.is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn all<const N: usize>(marks: &Marks<N>, from: u64) -> Result<Vec<Range<usize>>, Lost> {
        let mut seen = Vec::new();
        let (_, whole) = marks.since(from, |range| seen.push(range));
        whole.map(|()| seen)
    }

    #[test]
    fn each_reader_sees_every_range_once_and_in_order() {
        let marks = Marks::<4>::new();
        let mut from = 0;
        for round in 0..10_usize {
            let ranges = [round * 10..round * 10 + 3, round * 10 + 5..round * 10 + 6];
            ranges.clone().into_iter().for_each(|range| marks.mark(range));
            assert_eq!(all(&marks, from), Ok(ranges.to_vec()));
            from = marks.head();
            assert_eq!(all(&marks, from), Ok(Vec::new()));
        }
    }

    #[test]
    fn a_reader_that_is_a_lap_behind_is_told_so() {
        let marks = Marks::<4>::new();
        (0..4).for_each(|at| marks.mark(at..at + 1));
        assert!(all(&marks, 0).is_ok() && !marks.touches(0, &(4..5)) && marks.touches(0, &(3..5)));
        marks.mark(4..5);
        assert_eq!(all(&marks, 0), Err(Lost));
        assert!(marks.touches(0, &(100..101)), "what is lost may have been any range");
        assert_eq!(all(&marks, 1).map(|seen| seen.len()), Ok(4));
    }

    #[test]
    fn a_mark_that_is_being_written_counts_as_any_range_and_harms_no_later_one() {
        let marks = Marks::<4>::new();
        // A writer is stopped between taking its slot and writing to it.
        assert_eq!(marks.head.fetch_add(1, Ordering::AcqRel), 0);
        assert!(marks.slots[0].take(0));
        (1..3).for_each(|at| marks.mark(at..at + 1));
        assert_eq!(all(&marks, 0), Err(Lost));
        assert_eq!(all(&marks, 1), Ok(vec![1..2, 2..3]));
        (3..5).for_each(|at| marks.mark(at..at + 1));
        assert_eq!(all(&marks, 4), Err(Lost), "the mark that came round to the slot is lost");
        marks.slots[0].stamp.store(2, Ordering::Release);
        assert_eq!(all(&marks, 4), Err(Lost), "the late range is taken for that of another number");
        (5..9).for_each(|at| marks.mark(at..at + 1));
        assert_eq!(all(&marks, 5), Ok(vec![5..6, 6..7, 7..8, 8..9]));
    }

    #[test]
    fn concurrent_marks_are_whole_and_none_is_missed() {
        const WRITERS: usize = 4;
        const EACH: usize = 20_000;
        let (marks, done) = (Marks::<64>::new(), AtomicBool::new(false));
        let (mut seen, mut lost) = ([0_usize; WRITERS], 0);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let marks = &marks;
                    // The end belongs to the start, so that a torn range is known.
                    scope.spawn(move || {
                        (0..EACH).for_each(|at| {
                            let start = writer * EACH + at;
                            marks.mark(start..!start);
                        });
                    })
                })
                .collect();
            scope.spawn(|| {
                writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
                done.store(true, Ordering::Release);
            });
            let mut from = 0;
            while !done.load(Ordering::Acquire) || from < marks.head() {
                let (next, whole) = marks.since(from, |range| {
                    assert_eq!(range.end, !range.start, "a torn range");
                    let (writer, at) = (range.start / EACH, range.start % EACH);
                    assert!(at >= seen[writer], "the order of a thread is kept");
                    seen[writer] = at + 1;
                });
                lost += usize::from(whole.is_err());
                from = next;
            }
        });
        assert_eq!(marks.head(), (WRITERS * EACH) as u64);
        assert!(lost > 0 || seen == [EACH; WRITERS], "missed without being told: {seen:?}");
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test --release -p btl --lib marks::model`
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64 as W64, AtomicUsize as Wsize};

    type Model = Marks<2, W64, Wsize>;

    fn marks() -> Arc<Model> {
        let slot = || Slot { stamp: W64::new(0), start: Wsize::new(0), end: Wsize::new(0) };
        Arc::new(Marks { head: W64::new(0), slots: [slot(), slot()] })
    }

    /// The end belongs to the start, so that a torn range is known.
    fn mark(marks: &Model, at: usize) {
        marks.mark(at..at + 1000);
    }

    fn whole(range: &Range<usize>) -> bool {
        range.end == range.start + 1000
    }

    /// Three marks for two slots: the last one comes round to the first, which may still be being written.
    #[test]
    fn ranges_are_seen_whole_or_reported_as_lost() {
        loom::model(|| {
            let marks = marks();
            let writers = [[1, 2], [3, 4]].map(|ranges| {
                let marks = marks.clone();
                loom::thread::spawn(move || ranges.iter().for_each(|at| mark(&marks, *at)))
            });
            let (_, _) = marks.since(0, |range| assert!(whole(&range), "a torn range"));
            for writer in writers {
                writer.join().expect("a writer");
            }
            let mut seen = 0;
            let (next, all) = marks.since(2, |range| {
                assert!(whole(&range), "a torn range");
                seen += 1;
            });
            assert!(next == 4 && (all.is_err() || seen == 2));
        });
    }

    /// A release of before the reader's own call, of which it knows by whatever way, is found, or said to be lost.
    #[test]
    fn a_mark_of_before_the_look_is_not_missed() {
        loom::model(|| {
            let (marks, told) = (marks(), Arc::new(W64::new(0)));
            let other = {
                let marks = marks.clone();
                loom::thread::spawn(move || mark(&marks, 1))
            };
            let writer = {
                let (marks, told) = (marks.clone(), told.clone());
                loom::thread::spawn(move || {
                    mark(&marks, 7);
                    told.store(1, Ordering::Release);
                })
            };
            if told.load(Ordering::Acquire) == 1 {
                assert!(marks.touches(0, &(7..8)), "memory that was given back is taken for what it was");
            }
            writer.join().expect("a writer");
            other.join().expect("a writer");
        });
    }
}
