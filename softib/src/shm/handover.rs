//! Who looks at a ring: the protocol, apart from the memory it lives in.
//!
//! ```text
//!   sender                               receiver, stops watching          device thread, goes to sleep
//!   tag = n         (release)            watched = 0                       bell = 1
//!   fence                                fence                             fence
//!   watched? ── yes ──> done             look at the ring once more        look at `marked` once more
//!   bitmap |= ring                                                         sleep while bell == 1
//!   marked = 1
//!   fence
//!   bell? ── swap to 0 ──> wake
//! ```
//!
//! A thread that stands in for a program sleeps for a nap only, and sets the bell to 2 for that, when it has looked: what waits for the
//! program's next poll does not wake it.
//!
//! Two store-fence-load pairs: of the tag with `watched`, and of `marked` with `bell`. In each, one side sees the other, so no
//! message waits unseen. `marked` says that the bitmap may have a bit: it is set behind the bit, and unset before the bits are taken.
//! Generic over the words, so that `tests/handover.rs` runs these very functions in loom.

use std::sync::atomic::Ordering;

pub use super::word::{Bits, Word};

/// Sender: what it has written into a cell is what comes after `seq` others.
#[inline(always)]
pub fn mark(tag: &impl Word<u32>, seq: u32) {
    tag.store(seq.wrapping_add(1), Ordering::Release);
}

/// Receiver: whether the cell holds what comes after `seq` others.
#[inline(always)]
pub fn is_filled(tag: &impl Word<u32>, seq: u32) -> bool {
    tag.load(Ordering::Acquire) == seq.wrapping_add(1)
}

/// Receiver: has read so far; the sender may use that place again.
pub fn consume(word: &impl Word<u64>, so_far: u64) {
    word.store(so_far, Ordering::Release);
}

/// Sender: how far the receiver has read.
pub fn consumed(word: &impl Word<u64>) -> u64 {
    word.load(Ordering::Acquire)
}

/// Sender, after it has stored the tag: whether the receiver looks by itself.
#[inline]
pub fn is_watched(watched: &impl Word<u32>, fence: impl FnOnce()) -> bool {
    fence();
    watched.load(Ordering::Relaxed) != 0
}

/// The bell: the device thread wants to be woken for anything.
pub const ASKED: u32 = 1;
/// It wants to be woken for what is urgent.
pub const ASKED_IF_URGENT: u32 = 2;

/// Sender, if the ring is not watched: marks it. True: the receiver's device thread is to be woken.
pub fn announce(
    (bits, ring): (&impl Bits<u64>, u64),
    marked: &impl Word<u32>,
    bell: &impl Word<u32>,
    urgent: bool,
    fence: impl FnOnce(),
) -> bool {
    set_mark((bits, ring), marked);
    fence();
    let bell_is = bell.load(Ordering::Relaxed);
    (bell_is == ASKED || urgent && bell_is == ASKED_IF_URGENT) && bell.swap(0, Ordering::AcqRel) != 0
}

/// Marks a ring.
pub fn set_mark((bits, ring): (&impl Bits<u64>, u64), marked: &impl Word<u32>) {
    bits.fetch_or(ring, Ordering::AcqRel);
    marked.store(1, Ordering::Release);
}

/// Receiver: rings have been marked since the last [`take_marked`].
#[inline(always)]
pub fn is_marked(marked: &impl Word<u32>) -> bool {
    marked.load(Ordering::Relaxed) != 0
}

/// Receiver, before it takes the marks: whether there are any.
pub fn take_marked(marked: &impl Word<u32>) -> bool {
    is_marked(marked) && marked.swap(0, Ordering::AcqRel) != 0
}

/// Receiver: stops watching. It must look at the ring once more afterwards.
pub fn unwatch(watched: &impl Word<u32>, fence: impl FnOnce()) {
    watched.store(0, Ordering::Relaxed);
    fence();
}

/// Device thread: wants to be woken. It must look at `marked` once more before it sleeps.
pub fn ask_for_bell(bell: &impl Word<u32>, fence: impl FnOnce()) {
    bell.store(ASKED, Ordering::Relaxed);
    fence();
}

/// Device thread, which has asked for the bell and looked: wants to be woken for what is urgent only. False: it has been woken meanwhile.
pub fn ask_if_urgent(bell: &impl Word<u32>) -> bool {
    bell.replace(ASKED, ASKED_IF_URGENT, Ordering::AcqRel)
}

/// Receiver: takes the marks of a word; it must look at each of these rings.
pub fn take(bits: &impl Word<u64>) -> u64 {
    bits.swap(0, Ordering::AcqRel)
}
