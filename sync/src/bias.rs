//! How the owner of a biased lock and its visitors keep out of each other's way ([`Lock`](crate::Lock)): the protocol, generic over the words and the
//! fences, so that `tests/lock.rs` runs these very functions in loom.
#![forbid(unsafe_code)]

use crate::word::Word;
use std::sync::atomic::Ordering;

/// Owner: whether it is in. Its bias was `bias` when it came, and may be gone.
#[inline(always)]
pub fn enter<B: PartialEq>(
    inside: &impl Word<bool>,
    bias: &impl Word<B>,
    mine: B,
    fence: impl FnOnce(),
) -> bool {
    inside.store(true, Ordering::Relaxed);
    fence();
    // Acquire: what a visitor did before it gave the bias back.
    let is_mine = bias.load(Ordering::Acquire) == mine;
    if !is_mine {
        inside.store(false, Ordering::Release);
    }
    is_mine
}

/// Visitor, which holds the mutex: takes the bias away, which is `unowned` from then on, and waits until its owner is out.
pub fn evict<B>(
    bias: &impl Word<B>,
    unowned: B,
    inside: &impl Word<bool>,
    fence: impl FnOnce(),
    mut pause: impl FnMut(),
) {
    bias.store(unowned, Ordering::SeqCst);
    fence();
    while inside.load(Ordering::Acquire) {
        pause();
    }
}
