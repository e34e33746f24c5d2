//! The hand-over of rings between sender, polling application and device thread, in all interleavings.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p softib --test handover`

#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use softib::shm::handover;

/// A full fence, where the device may have a membarrier(2) of the other side instead: loom has no such thing.
fn full() {
    fence(Ordering::SeqCst);
}

struct Shared {
    tag: AtomicU32,
    /// The sequence number of the receiver's queue pair; it was open at 0.
    sequence: AtomicU32,
    watched: AtomicU32,
    bits: AtomicU64,
    marked: AtomicU32,
    bell: AtomicU32,
}

fn shared(watched: u32) -> Arc<Shared> {
    let (tag, watched, sequence) = (AtomicU32::new(0), AtomicU32::new(watched), AtomicU32::new(0));
    let (bits, marked, bell) = (AtomicU64::new(0), AtomicU32::new(0), AtomicU32::new(0));
    Arc::new(Shared { tag, sequence, watched, bits, marked, bell })
}

/// Sends one message; true if it woke the device thread.
fn send(shared: &Shared) -> bool {
    handover::mark(&shared.tag, 0);
    !handover::is_watched(&shared.watched, full)
        && handover::announce((&shared.bits, 1), &shared.marked, &shared.bell, true, full)
}

/// Takes the marks, as a poll and the device thread do.
fn take(bits: &AtomicU64, marked: &AtomicU32) -> u64 {
    if handover::take_marked(marked) { handover::take(bits) } else { 0 }
}

fn arrived(shared: &Shared) -> bool {
    handover::is_filled(&shared.tag, 0)
}

#[test]
fn a_message_sent_while_control_is_given_back_is_seen_or_rings_the_bell() {
    loom::model(|| {
        let shared = shared(1);
        let sender = {
            let shared = shared.clone();
            loom::thread::spawn(move || send(&shared))
        };
        handover::unwatch(&shared.watched, full);
        let mut seen = arrived(&shared);
        handover::ask_for_bell(&shared.bell, full);
        if take(&shared.bits, &shared.marked) != 0 {
            assert!(arrived(&shared));
            seen = true;
        }
        let rung = sender.join().unwrap();
        assert!(seen || rung, "the thread sleeps on a message");
    });
}

/// `engine::ending`: the sender goes by a success, the receiver flushes what it does not find.
#[test]
fn a_message_sent_while_its_receiver_closes_is_taken_in_or_not_acknowledged() {
    loom::model(|| {
        let shared = shared(1);
        let sender = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                if shared.sequence.load(Ordering::Acquire) != 0 {
                    return false;
                }
                handover::mark(&shared.tag, 0);
                handover::is_watched(&shared.watched, full);
                shared.sequence.load(Ordering::Acquire) == 0
            })
        };
        shared.sequence.store(1, Ordering::Release);
        full();
        let taken_in = arrived(&shared);
        let acknowledged = sender.join().unwrap();
        assert!(taken_in || !acknowledged, "an acknowledged message is flushed");
    });
}

#[test]
fn a_message_sent_while_the_application_takes_over_is_seen_by_its_polls() {
    loom::model(|| {
        let shared = shared(0);
        let sender = {
            let shared = shared.clone();
            loom::thread::spawn(move || send(&shared))
        };
        shared.watched.store(1, Ordering::Relaxed);
        sender.join().unwrap();
        // From now on the application looks at the ring itself, whatever the sender saw.
        assert!(arrived(&shared));
    });
}

#[test]
fn two_senders_wake_a_sleeper_once_and_both_are_found() {
    loom::model(|| {
        let shared = shared(0);
        let senders = [1u64, 2].map(|ring| {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                handover::announce((&shared.bits, ring), &shared.marked, &shared.bell, ring == 2, full)
            })
        });
        handover::ask_for_bell(&shared.bell, full);
        let seen = take(&shared.bits, &shared.marked);
        let rung = senders.map(|sender| sender.join().unwrap());
        assert!(rung.iter().filter(|rung| **rung).count() <= 1);
        let left = take(&shared.bits, &shared.marked);
        assert_eq!(seen | left, 3);
        assert!(left == 0 || rung.contains(&true), "a mark was set and no thread was woken");
    });
}

/// What is urgent rings the bell of a thread that stands in for a program, or is found by its look.
#[test]
fn what_is_urgent_is_found_by_a_thread_that_stands_in_or_wakes_it() {
    loom::model(|| {
        let shared = shared(0);
        let sender = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                handover::announce((&shared.bits, 1), &shared.marked, &shared.bell, true, full)
            })
        };
        handover::ask_for_bell(&shared.bell, full);
        let found = take(&shared.bits, &shared.marked) != 0;
        let sleeps = handover::ask_if_urgent(&shared.bell);
        let rung = sender.join().unwrap();
        assert!(found || rung || !sleeps, "the thread sleeps on something urgent");
        assert!(sleeps || rung, "it does not sleep, and nobody has woken it");
    });
}

/// A ring of two cells, three messages, and payloads beside the tags: each is read whole, once, before its cell is used again.
#[test]
fn a_cell_is_not_written_again_before_it_has_been_read() {
    struct Ring {
        tags: [AtomicU32; 2],
        payloads: [loom::cell::UnsafeCell<u32>; 2],
        consumed: AtomicU64,
    }
    loom::model(|| {
        let tags = [AtomicU32::new(0), AtomicU32::new(0)];
        let payloads = [0, 0].map(loom::cell::UnsafeCell::new);
        let ring = Arc::new(Ring { tags, payloads, consumed: AtomicU64::new(0) });
        let sender = {
            let ring = ring.clone();
            loom::thread::spawn(move || {
                for seq in 0..3_u32 {
                    while u64::from(seq) - handover::consumed(&ring.consumed) >= 2 {
                        loom::thread::yield_now();
                    }
                    let cell = seq as usize % 2;
                    // SAFETY: loom reports an access of the other thread at the same time.
                    ring.payloads[cell].with_mut(|at| unsafe { *at = 100 + seq });
                    handover::mark(&ring.tags[cell], seq);
                }
            })
        };
        for seq in 0..3_u32 {
            let cell = seq as usize % 2;
            while !handover::is_filled(&ring.tags[cell], seq) {
                loom::thread::yield_now();
            }
            // SAFETY: loom reports an access of the other thread at the same time.
            let payload = ring.payloads[cell].with(|at| unsafe { *at });
            assert_eq!(payload, 100 + seq);
            handover::consume(&ring.consumed, u64::from(seq) + 1);
        }
        sender.join().unwrap();
    });
}
