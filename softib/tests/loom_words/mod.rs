//! loom's words, for the protocols of `softib::shm`.
#![allow(dead_code, unused_macros, reason = "each test binary uses a part")]

use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use softib::shm::word::{Bits, Word};

/// A word of loom's.
pub struct W<A>(pub A);

macro_rules! word {
    ($($name:ident, $atomic:ty, $value:ty;)*) => {$(
        pub type $name = W<$atomic>;

        impl W<$atomic> {
            pub fn new(value: $value) -> Self {
                W(<$atomic>::new(value))
            }
        }

        impl Word<$value> for W<$atomic> {
            fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }
            fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, order)
            }
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, order)
            }
            fn replace(&self, from: $value, to: $value, order: Ordering) -> bool {
                self.0.compare_exchange(from, to, order, Ordering::Relaxed).is_ok()
            }
            fn fence(order: Ordering) {
                fence(order)
            }
        }
    )*};
}

word! { W32, AtomicU32, u32; W64, AtomicU64, u64; Wsize, AtomicUsize, usize; Wbool, AtomicBool, bool; }

impl Bits<u64> for W64 {
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_or(value, order)
    }
}

/// A full fence, where the device may have a membarrier(2) of the other side instead: loom has no such thing.
pub fn full() {
    fence(Ordering::SeqCst);
}
