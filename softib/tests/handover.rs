//! The hand-over of rings between sender, polling application and device thread, in all interleavings.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p softib --test handover`

#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use softib::shm::handover::{self, Word};

struct W32(AtomicU32);
struct W64(AtomicU64);

macro_rules! word {
    ($ours:ty, $value:ty) => {
        impl Word<$value> for $ours {
            fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }
            fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, order)
            }
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, order)
            }
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_or(value, order)
            }
        }
    };
}

word!(W32, u32);
word!(W64, u64);

struct Shared {
    tag: AtomicU32,
    /// The sequence number of the receiver's queue pair; it was open at 0.
    sequence: AtomicU32,
    watched: W32,
    bits: W64,
    bell: W32,
}

fn shared(watched: u32) -> Arc<Shared> {
    let (tag, watched) = (AtomicU32::new(0), W32(AtomicU32::new(watched)));
    let sequence = AtomicU32::new(0);
    Arc::new(Shared { tag, sequence, watched, bits: W64(AtomicU64::new(0)), bell: W32(AtomicU32::new(0)) })
}

fn full() {
    fence(Ordering::SeqCst);
}

/// Sends one message; true if it woke the device thread.
fn send(shared: &Shared) -> bool {
    shared.tag.store(1, Ordering::Release);
    !handover::is_watched(&shared.watched, full) && handover::announce(&shared.bits, 1, &shared.bell, full)
}

fn arrived(shared: &Shared) -> bool {
    shared.tag.load(Ordering::Acquire) == 1
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
        if handover::take(&shared.bits) != 0 {
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
                shared.tag.store(1, Ordering::Release);
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
        let (bits, bell) = (Arc::new(W64(AtomicU64::new(0))), Arc::new(W32(AtomicU32::new(0))));
        let senders = [1u64, 2].map(|ring| {
            let (bits, bell) = (bits.clone(), bell.clone());
            loom::thread::spawn(move || handover::announce(&*bits, ring, &*bell, full))
        });
        handover::ask_for_bell(&*bell, full);
        let seen = handover::take(&*bits);
        let rung = senders.map(|sender| sender.join().unwrap());
        assert!(rung.iter().filter(|rung| **rung).count() <= 1);
        let left = handover::take(&*bits);
        assert_eq!(seen | left, 3);
        assert!(left == 0 || rung.contains(&true), "a mark was set and no thread was woken");
    });
}
