//! What the protocols between threads and processes ask of a word: an atomic of a mapping or, in the tests of a build with `--cfg loom`,
//! one of loom's, which runs the same functions in all interleavings.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// A word that several threads use at once.
pub trait Word<T> {
    /// Its value.
    fn load(&self, order: Ordering) -> T;
    /// Gives it another one.
    fn store(&self, value: T, order: Ordering);
    /// The same; the value before.
    fn swap(&self, value: T, order: Ordering) -> T;
    /// Whether the word was `from`, and now is `to`; `order` is that of a success, a failure orders nothing.
    fn replace(&self, from: T, to: T, order: Ordering) -> bool;
    /// A fence between accesses of such words.
    fn fence(order: Ordering);
}

/// A word of bits.
pub trait Bits<T>: Word<T> {
    /// Sets the bits of `value`; the value before.
    fn fetch_or(&self, value: T, order: Ordering) -> T;
}

/// A word that counts.
pub trait Count<T>: Word<T> {
    /// Adds to it; the value before.
    fn fetch_add(&self, value: T, order: Ordering) -> T;
}

macro_rules! word {
    ($fence:path: $($atomic:ty, $value:ty $(, $of:ident)?;)*) => {$(
        impl$(<$of>)? Word<$value> for $atomic {
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
                $fence(order)
            }
        }
    )*};
}

macro_rules! number {
    ($($atomic:ty, $value:ty;)*) => {$(
        impl Bits<$value> for $atomic {
            #[inline]
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                <$atomic>::fetch_or(self, value, order)
            }
        }

        impl Count<$value> for $atomic {
            #[inline]
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                <$atomic>::fetch_add(self, value, order)
            }
        }
    )*};
}

word! { fence: AtomicU32, u32; AtomicU64, u64; AtomicUsize, usize; AtomicBool, bool; AtomicPtr<T>, *mut T, T; }
number! { AtomicU32, u32; AtomicU64, u64; AtomicUsize, usize; }

/// The same of loom's atomics.
#[cfg(loom)]
mod of_loom {
    use super::{Bits, Count, Word};
    use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

    word! { fence: AtomicU32, u32; AtomicU64, u64; AtomicUsize, usize; AtomicBool, bool; }
    number! { AtomicU32, u32; AtomicU64, u64; AtomicUsize, usize; }
}
