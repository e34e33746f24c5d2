//! Entries that one process changes and others copy, in all interleavings: queue pairs (seqlock), memory regions (keys and hazards).
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p softib --test tables`

#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use softib::shm::{keyed, seqlock};

#[derive(Clone)]
struct Entry {
    /// A sequence number, or a key.
    first: Arc<AtomicU32>,
    words: Arc<[AtomicU32; 2]>,
}

impl Entry {
    fn new(first: u32) -> Entry {
        Entry {
            first: Arc::new(AtomicU32::new(first)),
            words: Arc::new([AtomicU32::new(0), AtomicU32::new(0)]),
        }
    }

    fn store(&self, value: u32) {
        self.words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
    }

    fn load(&self) -> [u32; 2] {
        [0, 1].map(|at| self.words[at].load(Ordering::Relaxed))
    }
}

#[test]
fn a_copy_of_a_queue_pair_belongs_together_and_its_number_tells_which_change_it_is_of() {
    loom::model(|| {
        let entry = Entry::new(0);
        let writer = {
            let entry = entry.clone();
            loom::thread::spawn(move || {
                for value in 1..=2 {
                    seqlock::change(&*entry.first, || entry.store(value));
                }
            })
        };
        if let Some((seq, [a, b])) = seqlock::copy(&*entry.first, || entry.load()) {
            assert_eq!((a, b), (seq / 2, seq / 2), "a torn copy");
        }
        writer.join().unwrap();
        assert_eq!(seqlock::copy(&*entry.first, || entry.load()), Some((4, [2, 2])));
    });
}

/// The initiator compares the number that it has, and sends by its copy: what it sees of a change it sees all of.
#[test]
fn a_change_that_its_writer_has_died_in_is_not_copied_until_the_next_one() {
    loom::model(|| {
        let entry = Entry::new(1);
        entry.store(7);
        let mender = {
            let entry = entry.clone();
            loom::thread::spawn(move || seqlock::change(&*entry.first, || entry.store(8)))
        };
        match seqlock::copy(&*entry.first, || entry.load()) {
            None => {}
            Some(copy) => assert_eq!(copy, (2, [8, 8])),
        }
        mender.join().unwrap();
    });
}

/// The row is used again, for another key.
#[test]
fn a_copy_of_a_region_is_of_its_key_or_none() {
    loom::model(|| {
        let entry = Entry::new(0);
        keyed::show(&*entry.first, 1, || entry.store(1));
        let owner = {
            let entry = entry.clone();
            loom::thread::spawn(move || {
                keyed::hide(&*entry.first);
                keyed::show(&*entry.first, 2, || entry.store(2));
            })
        };
        for key in [1, 2] {
            let copy = keyed::copy(&*entry.first, key, || entry.load());
            assert!(copy.is_none_or(|words| words == [key; 2]), "{key}: {copy:?}");
        }
        owner.join().unwrap();
        assert_eq!(keyed::copy(&*entry.first, 2, || entry.load()), Some([2; 2]));
    });
}

/// What the key names is deregistered and given back, here: written to.
#[test]
fn an_owner_gives_memory_back_only_when_no_initiator_works_on_it() {
    loom::model(|| {
        let entry = Entry::new(0);
        keyed::show(&*entry.first, 1, || entry.store(1));
        let (hazard, memory) = (Arc::new(AtomicU32::new(0)), Arc::new(loom::cell::UnsafeCell::new(5)));
        let initiator = {
            let (entry, hazard, memory) = (entry.clone(), hazard.clone(), memory.clone());
            loom::thread::spawn(move || {
                keyed::begin(&*hazard, 1);
                if keyed::copy(&*entry.first, 1, || entry.load()).is_some() {
                    // SAFETY: loom reports a write of the owner at the same time.
                    assert_eq!(memory.with(|at| unsafe { *at }), 5, "it was given back");
                }
                keyed::end(&*hazard);
            })
        };
        keyed::hide(&*entry.first);
        while keyed::is_used(&*hazard, 1) {
            loom::thread::yield_now();
        }
        // SAFETY: loom reports a read of the initiator at the same time.
        memory.with_mut(|at| unsafe { *at = 6 });
        initiator.join().unwrap();
    });
}

/// A queue pair takes no more messages, and its program has the buffers of its receives again (`objects::fillers`).
#[test]
fn a_queue_pair_that_has_closed_gives_its_receives_back_only_when_nobody_fills_them() {
    loom::model(|| {
        let row = Entry::new(0);
        let (fills, buffer) = (Arc::new(AtomicU32::new(0)), Arc::new(loom::cell::UnsafeCell::new(5)));
        let initiator = {
            let (row, fills, buffer) = (row.clone(), fills.clone(), buffer.clone());
            loom::thread::spawn(move || {
                keyed::begin(&*fills, 7);
                if row.first.load(Ordering::Acquire) == 0 {
                    // SAFETY: loom reports an access of the target at the same time.
                    buffer.with_mut(|at| unsafe { *at = 6 });
                }
                keyed::end(&*fills);
            })
        };
        seqlock::change(&*row.first, || row.store(1));
        fence(Ordering::SeqCst);
        while keyed::is_used(&*fills, 7) {
            loom::thread::yield_now();
        }
        // SAFETY: loom reports an access of the initiator at the same time.
        buffer.with_mut(|at| unsafe { *at = 8 });
        initiator.join().unwrap();
        // SAFETY: the other thread has ended.
        assert_eq!(buffer.with(|at| unsafe { *at }), 8);
    });
}

/// The one who has asked goes on when the other is not at it: what was named may be changed then.
#[test]
fn nobody_works_on_what_was_taken_back() {
    loom::model(|| {
        let (withdrawn, hazard) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let named = Arc::new(AtomicU32::new(1));
        let answers = {
            let (withdrawn, hazard, named) = (withdrawn.clone(), hazard.clone(), named.clone());
            loom::thread::spawn(move || {
                let seen = keyed::while_asked(&*withdrawn, &*hazard, 1, || named.load(Ordering::Relaxed));
                assert_ne!(seen, Some(2), "it was gone");
            })
        };
        if keyed::take_back(&*withdrawn, &*hazard, 1) {
            named.store(2, Ordering::Relaxed);
        }
        answers.join().unwrap();
        let later = keyed::while_asked(&*withdrawn, &*hazard, 2, || ());
        assert_eq!((keyed::while_asked(&*withdrawn, &*hazard, 1, || ()), later), (None, Some(())));
    });
}

/// What must not be done twice is done by one of the two, and the one who has asked knows by whom.
#[test]
fn what_was_taken_back_too_late_has_been_done() {
    loom::model(|| {
        let [withdrawn, hazard, done, times] = [0; 4].map(|word| Arc::new(AtomicU32::new(word)));
        let other = {
            let (withdrawn, hazard) = (withdrawn.clone(), hazard.clone());
            let (done, times) = (done.clone(), times.clone());
            loom::thread::spawn(move || {
                let once = || times.fetch_add(1, Ordering::Relaxed);
                keyed::while_given(&*withdrawn, (&*hazard, &*done), 1, once)
            })
        };
        let is_ours = keyed::take_back(&*withdrawn, &*hazard, 1) && keyed::last_done(&*done, 1).is_ne();
        if is_ours {
            times.fetch_add(1, Ordering::Relaxed);
        }
        let was_theirs = other.join().unwrap().is_some();
        assert_eq!(times.load(Ordering::Relaxed), u32::from(was_theirs) + u32::from(is_ours));
        assert!(!(was_theirs && is_ours), "it was done twice");
    });
}

/// Of two that are done in order, the second not without the first, the one who has taken both back knows which have been.
#[test]
fn of_two_that_were_taken_back_it_is_known_which_have_been_done() {
    loom::model(|| {
        let [withdrawn, hazard, done] = [0; 3].map(|word| Arc::new(AtomicU32::new(word)));
        let other = {
            let (withdrawn, hazard, done) = (withdrawn.clone(), hazard.clone(), done.clone());
            loom::thread::spawn(move || {
                let give =
                    |number| keyed::while_given(&*withdrawn, (&*hazard, &*done), number, || ()).is_some();
                u32::from(give(1)) + u32::from(give(2))
            })
        };
        let known = keyed::take_back(&*withdrawn, &*hazard, 2).then(|| keyed::last_done(&*done, 1));
        let times = other.join().unwrap();
        let all = [std::cmp::Ordering::Less, std::cmp::Ordering::Equal, std::cmp::Ordering::Greater];
        assert!(known.is_none_or(|known| known == all[times as usize]), "{known:?} of {times}");
    });
}
