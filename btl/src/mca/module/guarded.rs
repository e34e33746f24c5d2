//! The state behind the module's lock.
//!
//! The lock is taken only while Open MPI uses threads. A panic may leave half a change behind: what
//! it leaves is given up, not used, with or without threads. So the lock's own poison says nothing
//! that the state does not.

use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What can be given up after a panic.
pub trait GiveUp {
    /// The state may be inconsistent: from now on it is as if it were gone.
    fn give_up(&mut self);
}

/// A value, and the lock that threads take.
#[allow(missing_debug_implementations, reason = "the value is reached under the lock only")]
pub struct Guarded<T> {
    lock: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by `enter` only, whose callers hold the lock or are the only thread.
unsafe impl<T: Send> Sync for Guarded<T> {}

/// Gives the value up when it is dropped, which is when its user has panicked.
struct Unfinished<T: GiveUp>(*mut T);

impl<T: GiveUp> Drop for Unfinished<T> {
    fn drop(&mut self) {
        // SAFETY: made by `enter`, whose exclusive borrow has ended by the panic; the lock is still
        // held, if there is one.
        unsafe { (*self.0).give_up() };
    }
}

impl<T: GiveUp> Guarded<T> {
    /// The value, with its lock free.
    pub fn new(value: T) -> Self {
        Guarded { lock: Mutex::new(()), value: UnsafeCell::new(value) }
    }

    /// Takes the lock.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` on the value.
    ///
    /// # Safety
    /// The caller holds the lock, or no other thread calls; and `f` does not come back here.
    #[inline]
    pub unsafe fn enter<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let unfinished = Unfinished(self.value.get());
        // SAFETY: the caller has seen to it that this is the only borrow.
        let result = f(unsafe { &mut *unfinished.0 });
        std::mem::forget(unfinished);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mca::guard::guard;

    struct Counts(Option<(u32, u32)>);

    impl GiveUp for Counts {
        fn give_up(&mut self) {
            self.0 = None;
        }
    }

    /// Both numbers are always equal, but for a moment.
    fn step(counts: &mut Counts, panics: bool) -> Option<(u32, u32)> {
        let numbers = counts.0.as_mut()?;
        numbers.0 += 1;
        assert!(!panics, "on purpose");
        numbers.1 += 1;
        Some(*numbers)
    }

    #[test]
    fn what_a_panic_has_left_half_changed_is_used_no_more_with_and_without_the_lock() {
        for locks in [false, true] {
            let state = Guarded::new(Counts(Some((0, 0))));
            let enter = |panics| {
                guard("btl_test", None, || {
                    let _lock = locks.then(|| state.lock());
                    // SAFETY: one thread.
                    unsafe { state.enter(|counts| step(counts, panics)) }
                })
            };
            assert_eq!(enter(false), Some((1, 1)));
            assert_eq!(enter(true), None);
            assert_eq!(enter(false), None, "the state of before the panic is used again");
        }
    }
}
