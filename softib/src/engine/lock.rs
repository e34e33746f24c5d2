//! The lock of the data path.

use crate::engine::barrier::Barrier;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Guards the engine's state.
#[derive(Debug)]
pub struct Lock<T> {
    inner: Mutex<T>,
}

pub type Guard<'a, T> = MutexGuard<'a, T>;

impl<T> Lock<T> {
    pub fn new(value: T, _barrier: Barrier) -> Lock<T> {
        Lock { inner: Mutex::new(value) }
    }

    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        match self.inner.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
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
