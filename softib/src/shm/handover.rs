//! Who looks at a ring: the protocol, apart from the memory it lives in.
//!
//! ```text
//!   sender                               receiver, stops watching          device thread, goes to sleep
//!   tag = n         (release)            watched = 0                       bell = 1
//!   fence                                fence                             fence
//!   watched? ── yes ──> done             look at the ring once more        look at the bitmap once more
//!   bitmap |= ring                                                         sleep while bell == 1
//!   fence
//!   bell? ── swap to 0 ──> wake
//! ```
//!
//! Two store-fence-load pairs: of the tag with `watched`, and of the bitmap with `bell`. In each, one side sees the other, so no
//! message waits unseen. Generic over the words, so that `tests/handover.rs` runs these very functions in loom.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What the protocol asks of a word.
pub trait Word<T> {
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    fn swap(&self, value: T, order: Ordering) -> T;
    fn fetch_or(&self, value: T, order: Ordering) -> T;
}

macro_rules! word {
    ($atomic:ty, $value:ty) => {
        impl Word<$value> for $atomic {
            #[inline]
            fn load(&self, order: Ordering) -> $value {
                <$atomic>::load(self, order)
            }
            #[inline]
            fn store(&self, value: $value, order: Ordering) {
                <$atomic>::store(self, value, order)
            }
            #[inline]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                <$atomic>::swap(self, value, order)
            }
            #[inline]
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                <$atomic>::fetch_or(self, value, order)
            }
        }
    };
}

word!(AtomicU32, u32);
word!(AtomicU64, u64);

/// Sender, after it has stored the tag: whether the receiver looks by itself.
#[inline]
pub fn is_watched(watched: &impl Word<u32>, fence: impl FnOnce()) -> bool {
    fence();
    watched.load(Ordering::Relaxed) != 0
}

/// Sender, if the ring is not watched: marks it. True: the receiver's device thread is to be woken.
pub fn announce(bits: &impl Word<u64>, ring: u64, bell: &impl Word<u32>, fence: impl FnOnce()) -> bool {
    bits.fetch_or(ring, Ordering::AcqRel);
    fence();
    bell.load(Ordering::Relaxed) != 0 && bell.swap(0, Ordering::AcqRel) != 0
}

/// Receiver: stops watching. It must look at the ring once more afterwards.
pub fn unwatch(watched: &impl Word<u32>, fence: impl FnOnce()) {
    watched.store(0, Ordering::Relaxed);
    fence();
}

/// Device thread: wants to be woken. It must look at the bitmap once more before it sleeps.
pub fn ask_for_bell(bell: &impl Word<u32>, fence: impl FnOnce()) {
    bell.store(1, Ordering::Relaxed);
    fence();
}

/// Receiver: takes the marks; it must look at each of these rings.
pub fn take(bits: &impl Word<u64>) -> u64 {
    bits.swap(0, Ordering::AcqRel)
}
