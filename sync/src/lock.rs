//! A lock for data paths: biased to the thread that uses it most.
//!
//! ```text
//!   owner:    inside = 1; (compiler fence); bias still mine? ── yes ──> in;    out: inside = 0
//!                                                            └─ no ──> inside = 0, take the mutex
//!   visitor:  take the mutex; bias = 0; membarrier; wait for inside == 0 ──> in;    out: bias back, drop the mutex
//! ```
//!
//! The owner pays a few plain loads and stores, no atomic read-modify-write and no fence: the visitor's membarrier(2) is a
//! fence on every running thread of the process, so either the visitor sees `inside`, or the owner sees the bias gone.
//! A thread becomes the owner after some acquisitions in a row. If visitors come often, the bias is dropped and the mutex is
//! the lock, until one thread has it to itself again and, where biases have not lasted, some time has passed. Without membarrier it
//! always is.
//!
//! Each thread that ever owns the bias has a cell of its own for `inside`, so that a late owner can't undo the mark of
//! another.

use crate::barrier::Barrier;
use crate::bias::{enter, evict};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Threads that can ever be owners; later ones use the mutex.
const CELLS: usize = 15;
/// Acquisitions in a row that make an owner.
const STREAK: u32 = 256;
/// A bias that lasts for so long is worth its visits, which cost some microseconds each.
const LASTING: Duration = Duration::from_micros(200);
/// How long there is no owner after the first one whose bias did not last; twice as long after each further one.
const SHORTEST_REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_millis(64);
/// So many visits within the window, and the bias is dropped.
const VISITS: u32 = 64;
const WINDOW: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell {
    thread: AtomicUsize,
    inside: AtomicBool,
}

/// Who has been here, under the mutex.
#[derive(Debug)]
struct History {
    last: usize,
    streak: u32,
    visits: u32,
    since: Instant,
    /// When the last owner became one.
    granted: Instant,
    /// How long there is none after the last one, and until when.
    rest: Duration,
    rested: Instant,
}

/// The owner's cell while there is no owner: every thread needs the mutex.
static UNOWNED: Cell = Cell { thread: AtomicUsize::new(0), inside: AtomicBool::new(false) };

fn unowned() -> *mut Cell {
    std::ptr::from_ref(&UNOWNED).cast_mut()
}

/// Guards a value.
#[repr(C)] // in this order: the owner reads its cell's address, then the value
pub struct Lock<T> {
    /// The owner's cell, one of the following, or [`UNOWNED`].
    bias: AtomicPtr<Cell>,
    cells: Box<[Cell; CELLS]>,
    value: UnsafeCell<T>,
    mutex: Mutex<History>,
    barrier: Barrier,
}

impl<T> std::fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lock(bias {:?})", self.bias())
    }
}

// SAFETY: the protocol above gives one thread at a time access to the value, which may be sent between threads.
unsafe impl<T: Send> Sync for Lock<T> {}

enum Held<'a> {
    Bias(&'a Cell),
    /// The mutex, and the bias to restore.
    Mutex(#[allow(dead_code)] MutexGuard<'a, History>, *mut Cell),
}

/// The right to the value, for as long as it lives.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    held: Held<'a>,
}

impl<T> std::fmt::Debug for Guard<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Guard")
    }
}

/// The owner's right to the value: what [`Lock::lock`] gives it, without the other way in to tell apart.
#[repr(C)] // two registers, also of a C function
pub struct Owned<'a, T> {
    value: &'a UnsafeCell<T>,
    cell: &'a Cell,
}

impl<T> std::fmt::Debug for Owned<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Owned")
    }
}

impl<T> Lock<T> {
    /// A lock that has no owner yet.
    pub fn new(value: T) -> Lock<T> {
        Lock::over(value, Barrier::default())
    }

    fn over(value: T, barrier: Barrier) -> Lock<T> {
        let history = History::begin_at(Instant::now());
        Lock {
            bias: AtomicPtr::new(unowned()),
            cells: Default::default(),
            mutex: Mutex::new(history),
            barrier,
            value: UnsafeCell::new(value),
        }
    }

    /// Does ahead what the first thread to become the owner would wait for, tens of milliseconds: there is none before it is done.
    pub fn register(&self) {
        self.barrier.register();
    }

    /// Waits until this thread is alone inside.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        match self.enter_biased(thread_id()) {
            Some(cell) => Guard { lock: self, held: Held::Bias(cell) },
            None => self.lock_mutex(),
        }
    }

    /// The lock for its owner, at once; None for every other thread.
    #[inline(always)]
    pub fn lock_as_owner(&self) -> Option<Owned<'_, T>> {
        let cell = self.enter_biased(thread_id())?;
        Some(Owned { value: &self.value, cell })
    }

    #[inline(always)]
    fn enter_biased(&self, me: usize) -> Option<&Cell> {
        let cell = self.bias();
        if cell.thread.load(Ordering::Relaxed) != me {
            return None;
        }
        let mine = std::ptr::from_ref(cell).cast_mut();
        // The visitor's membarrier is the fence.
        enter(&cell.inside, &self.bias, mine, || compiler_fence(Ordering::SeqCst)).then_some(cell)
    }

    /// The owner's cell.
    #[inline(always)]
    fn bias(&self) -> &Cell {
        // SAFETY: `bias` is that of a static cell or of one of `cells`, which live as long as the lock and are used through shared references.
        unsafe { &*self.bias.load(Ordering::Relaxed) }
    }

    #[cold]
    fn lock_mutex(&self) -> Guard<'_, T> {
        self.visit(self.mutex.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lock, unless another thread holds the mutex; it may wait for the owner to leave.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        if let Some(cell) = self.enter_biased(thread_id()) {
            return Some(Guard { lock: self, held: Held::Bias(cell) });
        }
        match self.mutex.try_lock() {
            Ok(history) => Some(self.visit(history)),
            Err(TryLockError::Poisoned(error)) => Some(self.visit(error.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn visit<'a>(&'a self, mut history: MutexGuard<'a, History>) -> Guard<'a, T> {
        let me = thread_id();
        let owner = self.bias();
        let bias = std::ptr::from_ref(owner).cast_mut();
        let keep = if bias == unowned() {
            self.new_bias(&mut history, me)
        } else if owner.thread.load(Ordering::Relaxed) == me {
            bias
        } else {
            self.evict(owner);
            if history.too_many_visits(Instant::now) { unowned() } else { bias }
        };
        Guard { lock: self, held: Held::Mutex(history, keep) }
    }

    /// The bias to set when this thread, which found none, leaves.
    fn new_bias(&self, history: &mut History, me: usize) -> *mut Cell {
        if history.last != me {
            (history.last, history.streak) = (me, 0);
        }
        history.streak += 1;
        if history.streak < STREAK || !self.barrier.works() || !history.grant(Instant::now()) {
            return unowned();
        }
        let own = self.cells.iter().find(|cell| [me, 0].contains(&cell.thread.load(Ordering::Relaxed)));
        let Some(own) = own else { return unowned() };
        own.thread.store(me, Ordering::Relaxed);
        std::ptr::from_ref(own).cast_mut()
    }

    /// Takes the bias away and waits until its owner is out.
    fn evict(&self, owner: &Cell) {
        let fence = || {
            if !self.barrier.own_threads() {
                log::error!("membarrier stopped working: two threads may be where one should be");
            }
        };
        let mut looks = 0;
        evict(&self.bias, unowned(), &owner.inside, fence, || {
            looks += 1;
            if looks < 100 { std::hint::spin_loop() } else { std::thread::yield_now() }
        });
    }
}

impl History {
    fn begin_at(now: Instant) -> History {
        let rest = Duration::ZERO;
        History { last: 0, streak: 0, visits: 0, since: now, granted: now, rest, rested: now }
    }

    /// Another visit: whether the bias is dropped.
    fn too_many_visits(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.visits += 1;
        if self.visits < VISITS {
            return false;
        }
        let now = now();
        let often = now - self.since < WINDOW;
        (self.visits, self.since, self.streak) = (0, now, 0);
        if often {
            let lasted = now - self.granted >= LASTING;
            self.rest =
                if lasted { Duration::ZERO } else { (self.rest * 2).clamp(SHORTEST_REST, LONGEST_REST) };
            self.rested = now + self.rest;
        }
        often
    }

    /// A thread has had the lock for long enough: whether it becomes the owner.
    fn grant(&mut self, now: Instant) -> bool {
        let granted = now >= self.rested;
        self.streak = 0;
        if granted {
            (self.granted, self.since, self.visits) = (now, now, 0);
        }
        granted
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only while its thread is the only one inside.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: a guard exists only while its thread is the only one inside, and `self` is
        // borrowed exclusively: no other reference to the value exists.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        match &self.held {
            Held::Bias(cell) => cell.inside.store(false, Ordering::Release),
            // Before the mutex is dropped, which happens after this.
            Held::Mutex(_, bias) => self.lock.bias.store(*bias, Ordering::Release),
        }
    }
}

impl<T> Deref for Owned<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: an `Owned` exists only while its thread is the only one inside.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for Owned<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: an `Owned` exists only while its thread is the only one inside, and `self` is
        // borrowed exclusively: no other reference to the value exists.
        unsafe { &mut *self.value.get() }
    }
}

impl<T> Drop for Owned<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.cell.inside.store(false, Ordering::Release);
    }
}

/// Identity of the calling thread: its thread pointer, which costs one instruction.
#[inline]
pub fn thread_id() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let id: usize;
        // SAFETY: on x86-64 Linux the word at fs:0 is the thread pointer itself, in every thread (psABI TLS).
        unsafe { std::arch::asm!("mov {}, fs:0", out(reg) id, options(nostack, preserves_flags, readonly)) };
        id
    }
    #[cfg(target_arch = "aarch64")]
    {
        let id: usize;
        // SAFETY: reads the thread pointer register, which has no side effect.
        unsafe {
            std::arch::asm!("mrs {}, tpidr_el0", out(reg) id, options(nomem, nostack, preserves_flags))
        };
        id
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        thread_local!(static SELF: u8 = const { 0 });
        SELF.with(|own| std::ptr::from_ref(own) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads that take turns at being the owner never are inside together, and lose no increment.
    #[test]
    fn nobody_is_inside_with_somebody_else() {
        const EACH: u64 = 200_000;
        let lock = Lock::new((0u64, 0u64));
        let work = |rest: u64| {
            for i in 0..EACH {
                let mut pair = lock.lock();
                pair.0 += 1;
                pair.1 += 1;
                assert_eq!(pair.0, pair.1);
                drop(pair);
                if rest > 0 && i % rest == 0 {
                    std::thread::yield_now();
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| work(0));
            scope.spawn(|| work(1000));
            scope.spawn(|| work(1));
        });
        assert_eq!(lock.lock().0, 3 * EACH);
    }

    #[test]
    fn one_thread_alone_becomes_the_owner() {
        let lock = Lock::over(0, Barrier::assumed(true));
        for _ in 0..STREAK {
            *lock.lock() += 1;
        }
        assert!(matches!(lock.lock().held, Held::Bias(_)));
    }

    #[test]
    fn without_membarrier_it_is_a_mutex() {
        let lock = Lock::over(0, Barrier::assumed(false));
        for _ in 0..2 * STREAK {
            *lock.lock() += 1;
        }
        assert!(matches!(lock.lock().held, Held::Mutex(..)));
    }
    /// Visits until the bias is dropped, all of them at this time; 0: it is not.
    fn visits(history: &mut History, now: Instant) -> u32 {
        (1..=VISITS).find(|_| history.too_many_visits(|| now)).unwrap_or(0)
    }

    #[test]
    fn owners_that_do_not_last_are_followed_by_longer_and_longer_rests() {
        let start = Instant::now();
        let at = |micros| start + Duration::from_micros(micros);
        let mut history = History::begin_at(start);
        assert!(history.grant(at(0)));
        assert_eq!(visits(&mut history, at(100)), VISITS);
        assert!(!history.grant(at(1000)) && history.grant(at(1100)));
        assert_eq!(visits(&mut history, at(1200)), VISITS);
        assert!(!history.grant(at(3100)) && history.grant(at(3200)));
        assert_eq!(visits(&mut history, at(3400)), VISITS, "it has lasted");
        assert!(history.grant(at(3400)));
        assert_eq!(visits(&mut history, at(200_000)), 0, "that is not often");
    }
}
