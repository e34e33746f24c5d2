//! Receive queues with many senders, which claim positions: the protocol, apart from the memory it lives in (`rq`).
//!
//! ```text
//!   slot    position:32 owner:16 state:16         0 --post--> POSTED --claim--> CLAIMED --post, a lap later--> POSTED ...
//!                                                              `--withdraw--> DONE --post, a lap later--> POSTED ...
//!   head    next position to claim; a sender that finds it claimed helps it forward
//! ```
//! That a claimed receive has been delivered is known to the target alone, which writes a slot once a lap: the line stays with the sender
//! while it claims what is in it.
//!
//! Generic over the words, so that `tests/claims.rs` runs these very functions in loom.

use super::word::Word;
use std::sync::atomic::Ordering;

const POSTED: u64 = 1;
const CLAIMED: u64 = 2;
/// Taken back by the target.
const DONE: u64 = 3;

/// More than there are receives in the largest queue.
const CLAIM_TRIES: u32 = 1 << 20;

/// Where the words of such a queue are.
pub trait Queue {
    type Word32: Word<u32>;
    type Word64: Word<u64>;
    fn head(&self) -> &Self::Word32;
    /// Of position `pos`; those of other laps have the same.
    fn slot(&self, pos: u32) -> &Self::Word64;
    fn length(&self, pos: u32) -> &Self::Word32;
}

/// What an initiator found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// A receive is ours: its position and length word.
    Got { pos: u32, len: u32 },
    /// No receive is posted.
    Empty,
}

fn word(pos: u32, owner: usize, state: u64) -> u64 {
    u64::from(pos) << 32 | (owner as u64 & 0xffff) << 16 | state
}

fn position(slot: u64) -> u32 {
    (slot >> 32) as u32
}

/// The owner of the claim that a slot tells of, if it tells of one.
fn owner(slot: u64) -> Option<usize> {
    (slot & 0xffff == CLAIMED).then_some((slot >> 16 & 0xffff) as usize)
}

/// Target: posts position `pos`. What had its place a lap ago has been delivered, taken back or displaced.
#[inline(always)]
pub fn post(queue: &impl Queue, pos: u32, len: u32) {
    queue.length(pos).store(len, Ordering::Relaxed);
    queue.slot(pos).store(word(pos, 0, POSTED), Ordering::Release);
}

/// Target: the place of `pos` is to be used again, though what was claimed of it has not been delivered yet. The owner of that claim.
pub fn displace(queue: &impl Queue, pos: u32) -> Option<usize> {
    let owner = claimant(queue, pos);
    if owner.is_some() {
        // Its claimer may have died before it moved the head, and then no sender could pass any
        // more.
        queue.head().replace(pos, pos.wrapping_add(1), Ordering::AcqRel);
    }
    owner
}

/// Target: the owner of the claim on `pos`, if it is claimed and its place has not been used again.
pub fn claimant(queue: &impl Queue, pos: u32) -> Option<usize> {
    let slot = queue.slot(pos).load(Ordering::Acquire);
    owner(slot).filter(|_| position(slot) == pos)
}

/// Target: takes position `pos` back, so that no initiator can claim it. False: it is claimed.
pub fn withdraw(queue: &impl Queue, pos: u32) -> bool {
    queue.slot(pos).replace(word(pos, 0, POSTED), word(pos, 0, DONE), Ordering::AcqRel)
}

/// Initiator: claims the next receive for ring `owner`, if it can be had at once and holds `len` bytes. `None`: nothing has happened, and
/// [`claim`] finds out why.
#[inline(always)]
pub fn claim_fitting<Q: Queue>(queue: &Q, owner: usize, len: u32) -> Option<u32> {
    let head = queue.head();
    let pos = head.load(Ordering::Acquire);
    let (slot, posted) = (queue.slot(pos), word(pos, 0, POSTED));
    if slot.load(Ordering::Acquire) != posted {
        return None;
    }
    // A bad one's length is past all others; as a signed number it is below zero.
    let fits = queue.length(pos).load(Ordering::Relaxed) as i32 >= len as i32;
    if !fits || !slot.replace(posted, word(pos, owner, CLAIMED), Ordering::AcqRel) {
        return None;
    }
    head.replace(pos, pos.wrapping_add(1), Ordering::AcqRel);
    Some(pos)
}

/// Initiator: claims the next receive for ring `owner`.
pub fn claim<Q: Queue>(queue: &Q, owner: usize) -> Claim {
    let head = queue.head();
    // Others who win make progress, so this ends long before, unless the queue is corrupt.
    for _ in 0..CLAIM_TRIES {
        let pos = head.load(Ordering::Acquire);
        let slot = queue.slot(pos);
        let value = slot.load(Ordering::Acquire);
        if position(value) != pos || value & 0xffff == 0 {
            // An older lap: nothing posted here, unless another sender moved the head
            // meanwhile.
            Q::Word32::fence(Ordering::SeqCst);
            if head.load(Ordering::Acquire) == pos {
                return Claim::Empty;
            }
            continue;
        }
        let len = queue.length(pos).load(Ordering::Relaxed);
        let won =
            value & 0xffff == POSTED && slot.replace(value, word(pos, owner, CLAIMED), Ordering::AcqRel);
        // Whichever sender won, position `pos` is gone: help the head past it.
        head.replace(pos, pos.wrapping_add(1), Ordering::AcqRel);
        if won {
            return Claim::Got { pos, len };
        }
    }
    Claim::Empty
}
