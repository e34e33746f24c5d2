//! The state behind the module's lock.
//!
//! The lock is taken only while Open MPI uses threads, or a thread of ours [shares](Guarded::share) the state with its one. It costs the
//! thread that takes it most next to nothing ([`sync::Lock`]). A thread that has something to do waits for it; one
//! that only looks around does not, and leaves it to the others: it comes again at once, and
//! would have the lock most of the time. A panic may leave half a change behind: what
//! it leaves is given up, not used, with or without threads. So the lock's own poison says nothing
//! that the state does not.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sync::{Guard, Lock};

/// What can be given up after a panic.
pub trait GiveUp {
    /// The state may be inconsistent: from now on it is as if it were gone.
    fn give_up(&mut self);
}

/// A value, and the lock that threads take.
#[allow(missing_debug_implementations, reason = "the value is reached under the lock only")]
pub struct Guarded<T> {
    lock: Lock<()>,
    /// Threads that wait for the lock.
    waiting: AtomicU32,
    /// A thread of ours may enter, holding the lock, so that every other one has to take it, too.
    shared: AtomicBool,
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
        Guarded {
            lock: Lock::new(()),
            waiting: AtomicU32::new(0),
            shared: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Callers take the lock, even if Open MPI has one thread only.
    #[inline]
    pub fn is_shared(&self) -> bool {
        // What our thread has written before `unshare` is there for one that takes no lock.
        self.shared.load(Ordering::Acquire)
    }

    /// From now on a thread of ours may enter, too; false if it could before. Of Open MPI's thread, if it has one only, which
    /// is not within `enter`.
    pub fn share(&self) -> bool {
        !self.shared.swap(true, Ordering::AcqRel)
    }

    /// Our thread, which holds the lock, does not enter any more.
    pub fn unshare(&self, _lock: &Guard<'_, ()>) {
        self.shared.store(false, Ordering::Release);
    }

    /// Takes the lock, when it is free.
    #[inline]
    pub fn lock(&self) -> Guard<'_, ()> {
        self.lock.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> Guard<'_, ()> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.lock.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Takes the lock if it is free and no thread waits for it.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, ()>> {
        if self.waiting.load(Ordering::Relaxed) != 0 { None } else { self.lock.try_lock() }
    }

    /// Runs `f` on the value.
    ///
    /// # Safety
    /// The caller holds the lock, or no other thread calls and the value is not shared; and `f` does not come back here.
    #[inline(always)] // with every look and every message
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

    #[test]
    fn a_thread_that_looks_around_leaves_the_lock_to_one_that_waits_for_it() {
        let (state, had) = (Guarded::new(Counts(None)), AtomicU32::new(0));
        for turn in 1..=100 {
            std::thread::scope(|scope| {
                let held = state.lock();
                scope.spawn(|| {
                    let _lock = state.lock();
                    had.fetch_add(1, Ordering::Relaxed);
                });
                while state.waiting.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                drop(held);
                while state.try_lock().is_none() {
                    std::thread::yield_now();
                }
                assert_eq!(
                    had.load(Ordering::Relaxed),
                    turn,
                    "the lock was taken before the thread that waited"
                );
            });
        }
        assert!(state.try_lock().is_some() && state.try_lock().is_some(), "no thread waits any more");
    }

    #[test]
    fn one_thread_without_the_lock_and_ours_with_it_are_never_in_at_once() {
        const SHARES: u32 = 2000;
        let (state, over) = (Guarded::new(Counts(Some((0, 0)))), AtomicBool::new(false));
        let ours = || {
            while !over.load(Ordering::Relaxed) {
                let Some(lock) = state.try_lock().filter(|_| state.is_shared()) else {
                    std::thread::yield_now();
                    continue;
                };
                // SAFETY: the lock is held, and the value is shared.
                unsafe { state.enter(|counts| step(counts, false)) };
                state.unshare(&lock);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(ours);
            for _ in 0..SHARES {
                let _first = state.share();
                while state.is_shared() {
                    let _lock = state.lock();
                    // SAFETY: the lock is held.
                    unsafe { state.enter(|counts| step(counts, false)) };
                }
                // SAFETY: not shared, so that this is the only thread.
                unsafe { state.enter(|counts| step(counts, false)) };
            }
            over.store(true, Ordering::Relaxed);
        });
        // SAFETY: the other thread has ended.
        let counts = unsafe { state.enter(|counts| counts.0) };
        assert!(counts.is_some_and(|(one, other)| one == other && one >= 2 * SHARES), "{counts:?}");
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
