//! What both sides do when they have put a cell into a ring, and how long a message's pieces are.

use crate::objects::peer::Peer;
use crate::shm::cell::INLINE_MAX;
use crate::shm::futex::ring_bell;
use crate::shm::ring::{FRAGMENT_MAX, Pushed, SendRing};

/// Longer messages go in pieces of so many bytes: the two sides' copies overlap.
pub const PIECE: u32 = 16 << 10;
/// What of a ring's bulk comes to be used by requests for memory and their short answers: one side reads as the other one writes, and what it has
/// not read stays in the caches.
pub const AHEAD: u32 = 64 << 10;

/// The same by the answer to a READ of `len` bytes. With more of it the two sides keep each other waiting less. Several of 64 KiB at a time, in both
/// directions, take longer then, and so does what goes through all caches.
#[inline]
pub fn ahead_of_answer(len: u32) -> u32 {
    if (128 << 10..=2 << 20).contains(&len) { 256 << 10 } else { AHEAD }
}

/// A message up to here goes in one piece: all of it fits its reader's first cache.
pub const WHOLE: u32 = 24 << 10;

/// The same to a process that reads messages where they lie (`place_messages`): one copy less is worth more than copies that overlap.
pub const WHOLE_PLACED: u32 = 65 << 10;

/// Up to how many bytes a message into this ring goes in one piece.
#[inline]
pub fn whole(ring: &SendRing) -> u32 {
    if ring.is_read_in_place() { WHOLE_PLACED } else { WHOLE }
}

/// How long a message's next piece is when `sent` of `len` bytes have gone; up to `whole` bytes go in one.
#[inline]
pub fn next_piece(len: u32, sent: u32, whole: u32) -> u32 {
    if sent == 0 && len <= whole { len } else { (len - sent).min(PIECE) }
}

/// A WRITE that is given goes in one piece.
#[inline]
pub fn is_whole(len: u32) -> bool {
    len <= PIECE
}

/// Wakes the peer's device thread if the push asked for it.
#[inline]
pub fn rung(pushed: Pushed, peer: &Peer, bells: &mut u64) {
    if pushed == Pushed::RingBell {
        *bells += 1;
        ring_bell(&peer.map);
    }
}

const _: () = assert!(
    PIECE <= WHOLE && WHOLE <= WHOLE_PLACED && WHOLE_PLACED as usize <= FRAGMENT_MAX && INLINE_MAX >= 24
);
