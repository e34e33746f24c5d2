//! The state behind the module's lock.
//!
//! The lock is taken only while Open MPI uses threads, or a thread of ours [shares](Guarded::share) the state with its one. It costs the
//! thread that takes it most next to nothing ([`sync::Lock`]). A thread that has something to do waits for it; one
//! that only looks around does not, and leaves it to the others: it comes again at once, and
//! would have the lock most of the time. A panic may leave half a change behind: what
//! it leaves is given up, not used, with or without threads. So the lock's own poison says nothing
//! that the state does not.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use sync::{Guard, Lock};

/// No glances are allowed.
const NONE: i32 = -1;

/// The same, and nothing has entered since the value was marked.
const MARKED: i32 = -2;

/// What can be given up after a panic.
pub trait GiveUp {
    /// The state may be inconsistent: from now on it is as if it were gone.
    fn give_up(&mut self);
}

/// A value, the lock that threads take, and how often it may be [glanced at](Guarded::glance) with no lock and no question before something changes.
#[allow(missing_debug_implementations, reason = "the value is reached under the lock only")]
#[repr(C)] // in this order: what each message reads is in one cache line, and the value is behind it
pub struct Guarded<T> {
    /// A thread of ours may enter, holding the lock, so that every other one has to take it, too.
    shared: AtomicBool,
    /// So many glances may follow; [`NONE`] if something has entered since they were allowed; [`MARKED`].
    glances: AtomicI32,
    /// Threads that wait for the lock.
    waiting: AtomicU32,
    /// More than one thread may call.
    threads: &'static AtomicBool,
    value: UnsafeCell<T>,
    lock: Lock<()>,
}

// SAFETY: the value is reached by `enter`, `enter_again` and `glance` only: callers of the first hold the lock or are the only thread, those of the
// others are the only thread, and no thread of ours may enter then.
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
    /// The value, with its lock free; `threads` is true while more than one thread may call.
    pub fn new(value: T, threads: &'static AtomicBool) -> Self {
        Guarded {
            shared: AtomicBool::new(false),
            glances: AtomicI32::new(NONE),
            waiting: AtomicU32::new(0),
            threads,
            value: UnsafeCell::new(value),
            lock: Lock::new(()),
        }
    }

    /// More than one thread may call. It can become true at any time: it is read on every entry.
    #[inline(always)] // with every call
    pub fn uses_threads(&self) -> bool {
        self.threads.load(Ordering::Relaxed)
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
        self.glances.store(NONE, Ordering::Relaxed);
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
        self.glances.store(NONE, Ordering::Relaxed);
        // SAFETY: as the caller has promised.
        unsafe { self.run(f) }
    }

    /// # Safety
    /// As [`Self::enter`].
    #[inline(always)] // with every look and every message
    unsafe fn run<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let unfinished = Unfinished(self.value.get());
        // SAFETY: the caller has seen to it that this is the only borrow.
        let result = f(unsafe { &mut *unfinished.0 });
        std::mem::forget(unfinished);
        result
    }

    /// From now on [`Self::is_untouched`], until anything enters or may.
    #[inline(always)] // with every message that comes alone
    pub fn mark(&self) {
        self.glances.store(MARKED, Ordering::Relaxed);
    }

    /// Nothing has entered since the value was marked, and it is not shared.
    #[inline(always)] // with every message
    pub fn is_untouched(&self) -> bool {
        self.glances.load(Ordering::Relaxed) == MARKED
    }

    /// Runs `f` on the value, which stays marked.
    ///
    /// # Safety
    /// The value is untouched, no other thread calls, and `f` does not come back here.
    #[inline(always)] // with every message
    pub unsafe fn enter_again<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the value is untouched, so it is not shared; the rest the caller has promised.
        unsafe { self.run(f) }
    }

    /// So many glances may follow, until anything else enters. Of the only thread that there is, if the value is not shared.
    #[inline]
    pub fn allow_glances(&self, glances: u32) {
        self.glances.store(i32::try_from(glances).unwrap_or(i32::MAX), Ordering::Relaxed);
    }

    /// All glances have been made, and nothing has entered since they were allowed.
    #[inline]
    pub fn glances_are_over(&self) -> bool {
        self.glances.load(Ordering::Relaxed) == 0
    }

    /// Runs `f` on the value, if glances are allowed: nothing has entered since then, and the value is not shared. `f` gets how many are left.
    ///
    /// # Safety
    /// No other thread of Open MPI calls; and `f` neither comes back here nor panics.
    #[inline(always)] // all that most calls of Open MPI's progress function do
    pub unsafe fn glance<R>(&self, f: impl FnOnce(&mut T, u32) -> R) -> Option<R> {
        let left = self.glances.load(Ordering::Relaxed) - 1;
        if left < 0 {
            return None;
        }
        self.glances.store(left, Ordering::Relaxed);
        // SAFETY: the caller is the only thread of Open MPI, and none of ours enters: `share` would have ended the glances.
        Some(f(unsafe { &mut *self.value.get() }, left as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mca::guard::guard;

    static THREADS: AtomicBool = AtomicBool::new(false);

    struct Counts(Option<(u32, u32)>);

    impl GiveUp for Counts {
        fn give_up(&mut self) {
            self.0 = None;
        }
    }

    #[test]
    fn a_thread_that_looks_around_leaves_the_lock_to_one_that_waits_for_it() {
        let (state, had) = (Guarded::new(Counts(None), &THREADS), AtomicU32::new(0));
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
        let (state, over) = (Guarded::new(Counts(Some((0, 0))), &THREADS), AtomicBool::new(false));
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

    #[test]
    fn glances_are_as_many_as_allowed_and_end_when_anything_enters_or_may() {
        let state = Guarded::new(Counts(Some((0, 0))), &THREADS);
        // SAFETY: one thread.
        let glance = || unsafe { state.glance(|_, left| left) };
        // SAFETY: one thread.
        let enter = || unsafe { state.enter(|counts| step(counts, false)) };
        assert_eq!((glance(), state.glances_are_over()), (None, false), "none has been allowed");
        state.allow_glances(2);
        assert_eq!((glance(), glance()), (Some(1), Some(0)));
        assert_eq!((state.glances_are_over(), glance()), (true, None), "no more than that");
        state.allow_glances(2);
        enter();
        assert_eq!((glance(), state.glances_are_over()), (None, false), "something has entered");
        state.allow_glances(2);
        state.share();
        assert_eq!(glance(), None, "our thread may enter");
        state.allow_glances(u32::MAX);
        assert_eq!(glance(), Some(i32::MAX as u32 - 1));
    }

    #[test]
    fn a_value_is_untouched_until_anything_enters_or_may() {
        let state = Guarded::new(Counts(Some((0, 0))), &THREADS);
        // SAFETY: one thread.
        let enter = || unsafe { state.enter(|counts| step(counts, false)) };
        assert!(!state.is_untouched(), "it has not been marked");
        state.mark();
        // SAFETY: one thread; the value is untouched.
        assert_eq!(unsafe { state.enter_again(|counts| step(counts, false)) }, Some((1, 1)));
        // SAFETY: one thread.
        assert_eq!(unsafe { state.glance(|_, left| left) }, None, "no glance has been allowed");
        assert!(state.is_untouched() && !state.glances_are_over());
        assert_eq!((enter(), state.is_untouched()), (Some((2, 2)), false));
        state.mark();
        state.share();
        assert!(!state.is_untouched(), "our thread may enter");
        state.mark();
        state.allow_glances(0);
        assert!(!state.is_untouched(), "a look has come in between");
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
            let state = Guarded::new(Counts(Some((0, 0))), &THREADS);
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
