//! What the protocols between threads and processes ask of a word: an atomic of a mapping or, in `tests/handover.rs` and its like, one of
//! loom's, which runs the same functions in all interleavings.
//!
//! Every structure that two threads share without a lock, and its model:
//!
//! | structure                                               | functions                  | model (`softib/tests`)    |
//! |---------------------------------------------------------|----------------------------|---------------------------|
//! | who looks at a ring; its cells and how far it is read    | [`super::handover`]        | `handover.rs`             |
//! | receive queues that many senders claim from              | [`super::claims`]          | `claims.rs`               |
//! | queue pairs as peers see them, those of XRC domains too  | [`super::seqlock`]         | `tables.rs`               |
//! | memory regions as peers see them, and who works on them  | [`super::keyed`]           | `tables.rs`               |
//! | the engine's lock, biased to one thread                  | [`crate::bias`]            | `lock.rs`                 |
//! | mappings that the handler of SIGBUS knows                | [`super::fault::Place`]    | `fault.rs`                |
//!
//! A word that is published once, or that stands for itself (flags, counters, a slot's owner taken by one compare-and-swap), has none.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// A word that several threads use at once.
pub trait Word<T> {
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    fn swap(&self, value: T, order: Ordering) -> T;
    /// Whether the word was `from`, and now is `to`; `order` is that of a success, a failure orders nothing.
    fn replace(&self, from: T, to: T, order: Ordering) -> bool;
    /// A fence between accesses of such words.
    fn fence(order: Ordering);
}

/// A word of bits.
pub trait Bits<T>: Word<T> {
    fn fetch_or(&self, value: T, order: Ordering) -> T;
}

macro_rules! word {
    ($($atomic:ty, $value:ty;)*) => {$(
        impl Word<$value> for $atomic {
            #[inline(always)]
            fn load(&self, order: Ordering) -> $value {
                <$atomic>::load(self, order)
            }
            #[inline(always)]
            fn store(&self, value: $value, order: Ordering) {
                <$atomic>::store(self, value, order)
            }
            #[inline(always)]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                <$atomic>::swap(self, value, order)
            }
            #[inline(always)]
            fn replace(&self, from: $value, to: $value, order: Ordering) -> bool {
                self.compare_exchange(from, to, order, Ordering::Relaxed).is_ok()
            }
            #[inline(always)]
            fn fence(order: Ordering) {
                fence(order)
            }
        }

        impl Bits<$value> for $atomic {
            #[inline]
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                <$atomic>::fetch_or(self, value, order)
            }
        }
    )*};
}

word! { AtomicU32, u32; AtomicU64, u64; AtomicUsize, usize; AtomicBool, bool; }
