//! Entries of several words that one writer changes and many copy: a sequence number, odd while an entry changes.
//!
//! A writer that dies within a change leaves the number odd, and no copy is had of the entry until the next change. Generic over the
//! words, so that `tests/tables.rs` runs these very functions in loom.

use super::word::Word;
use std::sync::atomic::Ordering;

/// Changes an entry: `body` stores its words. One writer at a time.
pub fn change<W: Word<u32>>(seq: &W, body: impl FnOnce()) {
    let odd = seq.load(Ordering::Relaxed) | 1;
    seq.store(odd, Ordering::Relaxed);
    // Who sees a word of this change sees the odd number, or a later one.
    W::fence(Ordering::Release);
    body();
    seq.store(odd.wrapping_add(1), Ordering::Release);
}

/// What `body` has loaded, if it belongs together, and the sequence number that it belongs to.
pub fn copy<T, W: Word<u32>>(seq: &W, body: impl FnOnce() -> T) -> Option<(u32, T)> {
    let before = seq.load(Ordering::Acquire);
    let copy = body();
    W::fence(Ordering::Acquire);
    (before & 1 == 0 && seq.load(Ordering::Relaxed) == before).then_some((before, copy))
}
