//! What both sides do when they have put a cell into a ring, and how long a message's pieces are.

use crate::objects::peer::Peer;
use crate::shm::cell::INLINE_MAX;
use crate::shm::futex::ring_bell;
use crate::shm::ring::{FRAGMENT_MAX, Pushed};

/// Messages up to two of these go in one piece or two; pieces overlap the two sides' copies.
pub const PIECE: u32 = 16 << 10;

/// Wakes the peer's device thread if the push asked for it.
#[inline]
pub fn rung(pushed: Pushed, peer: &Peer, bells: &mut u64) {
    if pushed == Pushed::RingBell {
        *bells += 1;
        ring_bell(&peer.map);
    }
}

const _: () = assert!(PIECE as usize <= FRAGMENT_MAX && INLINE_MAX >= 24);
