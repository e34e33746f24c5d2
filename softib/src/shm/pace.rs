//! How a peer is to write long data into our ring: through its caches, or past them into memory.
//!
//! Where both processors share a cache, data that was written through it is read from there. Where they do not, every line of the ring has to be
//! taken from the reader's cache before it is written, and from the writer's before it is read: 16 KiB take three times as long as where they do,
//! and half of that if they go through memory (`copy::stream`). Nothing says which of the two it is, and a virtual machine's processors move; so the
//! reader times what comes, and now and then has some come the other way. It says which in each READ, and of messages in a word of the ring. Who
//! gives a WRITE to its target times its own copies of the pieces: those are as slow, and how long the target takes says little, for it may be writing, too.

use super::choice::{Choice, Trials};
use super::copy::STREAMS;
use std::time::Duration;

/// The way in use, which is past the caches if it is the other one, and how long transfers take in each.
#[derive(Debug)]
pub struct Pace(Choice);

/// A trial of the worse way takes up to three times as long.
const TRIALS: Trials = Trials { soon: 8, seldom: 256, burst: 1, leaves: true };

impl Default for Pace {
    fn default() -> Pace {
        Pace(Choice::new(TRIALS))
    }
}

impl Pace {
    /// Whether transfers come past the caches, but for trials.
    pub fn streams(&self) -> bool {
        self.0.is_other()
    }

    /// Whether the next transfer is to come past the caches.
    pub fn next_streams(&mut self) -> bool {
        self.0.go()
    }

    /// We have written so many bytes for a peer to read, past the caches or not, in so much time. What has gone past them it gets from memory,
    /// which takes as long again; otherwise its copy is going on meanwhile.
    pub fn note_written(&mut self, streamed: bool, len: u32, time: Duration) {
        self.note(streamed, len, time * (1 + u32::from(streamed)));
    }

    /// So many bytes have come through the caches by a ring that is small, as those are whose messages go past the caches. By a larger one, which it becomes
    /// if that is the way from now on, they take 0.63 of the time between near processors: without that, who has been far would not see that it is near.
    pub fn note_through_small(&mut self, len: u32, time: Duration) {
        self.note(false, len, time * 3 / 4);
    }

    /// So many bytes have come, past the peer's caches or not, in so much time from when it began to write to when they had been read.
    pub fn note(&mut self, streamed: bool, len: u32, time: Duration) {
        self.0.note(streamed, len, time);
    }
}

/// One of so many long messages, and of a writer's long writes, is timed: that costs a look at the clock.
pub const TIMED_OF: u8 = 8;

/// The way of one who writes and is not told how long its reader takes.
#[derive(Debug, Default)]
pub struct WriterPace {
    pace: Pace,
    /// Writes since one was timed.
    untimed: u8,
}

impl WriterPace {
    /// Has `len` bytes written by `write`, which is told whether past the caches.
    #[inline]
    pub fn write(&mut self, len: u32, write: impl FnOnce(bool)) {
        let (past, is_timed) = self.next();
        let begin = is_timed.then(timing::now);
        write(past);
        if let Some(begin) = begin {
            self.pace.note_written(past, len, timing::now() - begin);
        }
    }

    /// Whether the next write is to go past the caches, and is timed.
    fn next(&mut self) -> (bool, bool) {
        self.untimed = (self.untimed + 1) % TIMED_OF;
        let is_timed = self.untimed == 0;
        let past = if is_timed { self.pace.next_streams() } else { self.pace.streams() };
        (STREAMS && past, is_timed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nanoseconds for 16 KiB through the caches and past them.
    const NEAR: [u64; 2] = [1400, 2000];
    const FAR: [u64; 2] = [4500, 2300];

    /// How many of so many READs come past the caches.
    fn streamed(pace: &mut Pace, costs: [u64; 2], reads: usize) -> usize {
        let read = |pace: &mut Pace| {
            let streams = pace.next_streams();
            pace.note(streams, 64 << 10, Duration::from_nanos(4 * costs[usize::from(streams)]));
            streams
        };
        (0..reads).filter(|_| read(pace)).count()
    }

    #[test]
    fn the_way_that_takes_less_time_is_taken_and_the_other_one_tried_now_and_then() {
        let mut pace = Pace::default();
        assert_eq!(streamed(&mut pace, NEAR, 1000), 8, "the 8th, 16th, 32nd, ... 256th, and each 256 more");
        let far = streamed(&mut pace, FAR, 1000);
        assert!((950..1000).contains(&far), "{far} of 1000 from when they are far on");
        assert!(streamed(&mut pace, NEAR, 300) < 260, "near again, which only a trial shows");
        assert!(streamed(&mut pace, NEAR, 1000) < 10);
    }

    /// Nanoseconds that the writer of 16 KiB takes, through the caches and past them; near, its reader may have the lines or not.
    #[test]
    fn what_its_writer_times_goes_past_the_caches_only_where_processors_are_far() {
        let times = [([820, 4000], false), ([1800, 1700], false), ([6200, 1900], true), ([4900, 1800], true)];
        for (costs, streams) in times {
            let mut pace = Pace::default();
            for _ in 0..1000 {
                let past = pace.next_streams();
                pace.note_written(past, 16 << 10, Duration::from_nanos(costs[usize::from(past)]));
            }
            assert_eq!(pace.streams(), streams, "{costs:?}");
        }
    }

    /// How many of so many writes go past the caches.
    fn streamed_writes(pace: &mut WriterPace, costs: [u64; 2], writes: usize) -> usize {
        let write = |pace: &mut WriterPace| {
            let (past, is_timed) = pace.next();
            if is_timed {
                pace.pace.note_written(past, 8 << 10, Duration::from_nanos(costs[usize::from(past)]));
            }
            past
        };
        (0..writes).filter(|_| write(pace)).count()
    }

    /// What the small ring of messages past the caches shows of the other way: near and far.
    #[test]
    fn who_has_been_far_comes_back_from_past_the_caches_when_it_is_near() {
        let mut pace = Pace::default();
        streamed(&mut pace, FAR, 1000);
        let read = |pace: &mut Pace, [through, past]: [u64; 2]| match pace.next_streams() {
            true => pace.note(true, 16 << 10, Duration::from_nanos(past)),
            false => pace.note_through_small(16 << 10, Duration::from_nanos(through)),
        };
        (0..1000).for_each(|_| read(&mut pace, [5700, 2900]));
        assert!(pace.streams(), "far");
        (0..1000).for_each(|_| read(&mut pace, [2420, 2400]));
        assert!(!pace.streams(), "near");
    }

    #[test]
    fn one_of_eight_writes_is_timed() {
        let mut pace = WriterPace::default();
        assert_eq!(streamed_writes(&mut pace, [260, 300], 63), 0);
        assert_eq!(streamed_writes(&mut pace, [260, 300], 1), 1, "the eighth of those that are timed");
        assert_eq!(
            streamed_writes(&mut pace, [260, 300], 8000),
            7,
            "each 16th, 32nd, ... 256th, and each 256 more"
        );
        let far = streamed_writes(&mut pace, [2000, 400], 8000);
        assert!(far > 5000, "{far} of 8000 from when they are far on");
    }

    #[test]
    fn one_that_was_interrupted_changes_nothing_and_neither_does_a_small_difference() {
        let mut pace = Pace::default();
        streamed(&mut pace, NEAR, 300);
        pace.note(false, 64 << 10, Duration::from_secs(100));
        assert!(!pace.streams());
        assert!(streamed(&mut pace, [1500, 1400], 1000) < 20);
    }
}
