//! The biased lock's owner and visitors, in all interleavings; with a fence of the owner in the place of the visitor's membarrier(2), which
//! loom does not know.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p sync --test lock`

#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use loom::sync::{Arc, Mutex};
use sync::bias::{enter, evict};

const OWNER: usize = 1;

/// A full fence, in the place of the membarrier(2) of a visitor.
fn full() {
    fence(Ordering::SeqCst);
}

struct Lock {
    bias: AtomicUsize,
    inside: AtomicBool,
    mutex: Mutex<()>,
    value: UnsafeCell<u32>,
}

impl Lock {
    fn new() -> Arc<Lock> {
        let (bias, inside) = (AtomicUsize::new(OWNER), AtomicBool::new(false));
        Arc::new(Lock { bias, inside, mutex: Mutex::new(()), value: UnsafeCell::new(0) })
    }

    fn count(&self) {
        // SAFETY: loom reports an access of another thread at the same time.
        self.value.with_mut(|at| unsafe { *at += 1 });
    }

    /// As [`sync::Lock`] for the thread that has the bias.
    fn as_owner(&self) {
        let bias = self.bias.load(Ordering::Relaxed);
        if bias == OWNER && enter(&self.inside, &self.bias, bias, full) {
            self.count();
            return self.inside.store(false, Ordering::Release);
        }
        self.as_visitor(true);
    }

    /// As it for any other; `owns`: the bias found is its own.
    fn as_visitor(&self, owns: bool) {
        let _mutex = self.mutex.lock().unwrap();
        let bias = self.bias.load(Ordering::Relaxed);
        if bias == OWNER && !owns {
            evict(&self.bias, 0, &self.inside, full, loom::thread::yield_now);
        }
        self.count();
        self.bias.store(bias, Ordering::Release);
    }
}

#[test]
fn an_owner_and_a_visitor_are_never_inside_together() {
    loom::model(|| {
        let lock = Lock::new();
        let owner = {
            let lock = lock.clone();
            loom::thread::spawn(move || (0..2).for_each(|_| lock.as_owner()))
        };
        lock.as_visitor(false);
        owner.join().unwrap();
        lock.as_visitor(false);
        // SAFETY: the other thread has ended.
        assert_eq!(lock.value.with(|at| unsafe { *at }), 4);
    });
}

#[test]
fn two_visitors_and_an_owner_are_never_inside_together() {
    loom::model(|| {
        let lock = Lock::new();
        let visitors = [0, 1].map(|_| {
            let lock = lock.clone();
            loom::thread::spawn(move || lock.as_visitor(false))
        });
        lock.as_owner();
        visitors.into_iter().for_each(|visitor| visitor.join().unwrap());
        // SAFETY: the other threads have ended.
        assert_eq!(lock.value.with(|at| unsafe { *at }), 3);
    });
}
