//! What both sides do when they have put a cell into a ring, and how long a message's pieces are.

use crate::objects::peer::Peer;
use crate::shm::cell::INLINE_MAX;
use crate::shm::futex::ring_bell;
use crate::shm::ring::{FRAGMENT_MAX, Pushed};

/// Longer messages go in pieces of so many bytes: the two sides' copies overlap.
pub const PIECE: u32 = 16 << 10;

/// A message up to here goes in one piece, which may be read where it lies: all of it fits its reader's first cache.
pub const WHOLE: u32 = 24 << 10;

/// How long a message's next piece is when `sent` of `len` bytes have gone.
#[inline]
pub fn next_piece(len: u32, sent: u32) -> u32 {
    if sent == 0 && len <= WHOLE { len } else { (len - sent).min(PIECE) }
}

/// Wakes the peer's device thread if the push asked for it.
#[inline]
pub fn rung(pushed: Pushed, peer: &Peer, bells: &mut u64) {
    if pushed == Pushed::RingBell {
        *bells += 1;
        ring_bell(&peer.map);
    }
}

const _: () = assert!(PIECE <= WHOLE && WHOLE as usize <= FRAGMENT_MAX && INLINE_MAX >= 24);
