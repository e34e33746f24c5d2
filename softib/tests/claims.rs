//! Receive queues that many senders claim from, in all interleavings: each receive goes to one sender, with its own length.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p softib --test claims`

#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use softib::shm::claims::{self, Claim, Queue};

const SIZE: usize = 2;

struct Words {
    head: AtomicU32,
    slots: [AtomicU64; SIZE],
    lengths: [AtomicU32; SIZE],
}

impl Queue for Words {
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    fn head(&self) -> &AtomicU32 {
        &self.head
    }

    fn slot(&self, pos: u32) -> &AtomicU64 {
        &self.slots[pos as usize % SIZE]
    }

    fn length(&self, pos: u32) -> &AtomicU32 {
        &self.lengths[pos as usize % SIZE]
    }
}

fn queue(posted: u32) -> Arc<Words> {
    let slots = [AtomicU64::new(0), AtomicU64::new(0)];
    let queue = Words { head: AtomicU32::new(0), slots, lengths: [AtomicU32::new(0), AtomicU32::new(0)] };
    (0..posted).for_each(|pos| claims::post(&queue, pos, length(pos)));
    Arc::new(queue)
}

fn length(pos: u32) -> u32 {
    100 + pos
}

/// A sender claims once; the position.
fn sender(queue: &Arc<Words>, owner: usize) -> loom::thread::JoinHandle<Option<u32>> {
    let queue = queue.clone();
    loom::thread::spawn(move || got(claims::claim(&*queue, owner)))
}

fn got(claim: Claim) -> Option<u32> {
    match claim {
        Claim::Got { pos, len } => {
            assert_eq!(len, length(pos), "the length of another receive");
            Some(pos)
        }
        Claim::Empty => None,
    }
}

#[test]
fn two_senders_and_two_receives_each_has_one() {
    loom::model(|| {
        let queue = queue(2);
        let senders = [3, 4].map(|owner| sender(&queue, owner));
        let mut got = senders.map(|sender| sender.join().unwrap().unwrap());
        got.sort_unstable();
        assert_eq!(got, [0, 1]);
        assert_eq!(claims::claim(&*queue, 5), Claim::Empty);
        assert!((0..2).all(|pos| claims::claimant(&*queue, pos).is_some()));
    });
}

#[test]
fn a_receive_that_is_posted_meanwhile_is_found_or_left() {
    loom::model(|| {
        let queue = queue(1);
        let senders = [3, 4].map(|owner| sender(&queue, owner));
        claims::post(&*queue, 1, length(1));
        let mut got: Vec<u32> = senders.into_iter().filter_map(|sender| sender.join().unwrap()).collect();
        got.extend(self::got(claims::claim(&*queue, 5)));
        got.sort_unstable();
        assert_eq!(got, [0, 1], "a receive is claimed twice, or not at all");
    });
}

#[test]
fn a_receive_that_can_be_had_at_once_goes_to_one_sender() {
    loom::model(|| {
        let queue = queue(2);
        let quick = {
            let queue = queue.clone();
            loom::thread::spawn(move || claims::claim_fitting(&*queue, 3, length(1)))
        };
        // It fits the second receive only; what it cannot have at once the other sender finds.
        let mut all = vec![got(claims::claim(&*queue, 4)).unwrap()];
        all.extend(quick.join().unwrap());
        all.extend(got(claims::claim(&*queue, 5)));
        all.sort_unstable();
        assert_eq!(all, [0, 1]);
    });
}

/// A position is used again a lap later, while a sender that was slow still looks at its first use.
#[test]
fn a_receive_of_the_next_lap_is_not_taken_for_one_of_this() {
    loom::model(|| {
        let queue = queue(2);
        let slow = sender(&queue, 3);
        let first = got(claims::claim(&*queue, 4)).unwrap();
        if first == 0 {
            claims::post(&*queue, 2, length(2));
        }
        let mut all = vec![first, slow.join().unwrap().unwrap()];
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 2, "one receive, two senders");
    });
}

#[test]
fn a_receive_is_taken_back_or_claimed_and_not_both() {
    loom::model(|| {
        let queue = queue(1);
        let sender = sender(&queue, 3);
        let back = claims::withdraw(&*queue, 0);
        let got = sender.join().unwrap();
        assert_eq!(back, got.is_none());
        assert_eq!(claims::claimant(&*queue, 0), got.map(|_| 3));
        // What is posted next is found, though the head may not have been moved past what was taken back.
        claims::post(&*queue, 1, length(1));
        assert_eq!(self::got(claims::claim(&*queue, 4)), Some(1));
    });
}

/// A sender died between its claim and the head: the target posts over it a lap later, and another sender comes along.
#[test]
fn a_claim_of_a_dead_sender_is_displaced_and_stops_no_other() {
    loom::model(|| {
        let queue = queue(2);
        // As `claim` does, up to the point of its death.
        let claimed = claims::claim(&*queue, 9);
        assert_eq!(claimed, Claim::Got { pos: 0, len: length(0) });
        queue.head.store(0, loom::sync::atomic::Ordering::Relaxed);
        let other = sender(&queue, 3);
        assert_eq!(claims::displace(&*queue, 0), Some(9));
        claims::post(&*queue, 2, length(2));
        assert_eq!(other.join().unwrap(), Some(1));
        assert_eq!(got(claims::claim(&*queue, 4)), Some(2));
    });
}
