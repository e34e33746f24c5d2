//! The message that the program reads where it lies in a ring, if it reads one.
//!
//! ```text
//!   poll              a message, no other is being read: its place is set, its ring is lent (`ring::RecvRing::lend`)
//!   program           reads it, releases it
//!   poll, or thread   the place is free: the ring's sender is told how far the ring has been read (`engine::lent`)
//! ```
//!
//! Meanwhile the ring is read on, and its sender goes on as far as there is room; what has been read stays as it is.

use rdma_sys::Placed;

static WORD: Placed = Placed::new();

/// Where it lies: one of a process.
#[inline(always)]
pub fn word() -> &'static Placed {
    &WORD
}
