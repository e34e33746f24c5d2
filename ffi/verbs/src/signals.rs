//! Helper threads take no signals: they belong to the application's threads.
//!
//! A thread inherits the mask of its creator, so the mask is set around the creation.

use std::mem::MaybeUninit;

/// Runs `f` with every signal blocked in the calling thread, and puts the old mask back.
pub fn with_all_blocked<T>(f: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises the set that it is given, and `pthread_sigmask` writes the old mask to `old`;
    // both point to memory of the right type.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) == 0
    };
    let result = f();
    if blocked {
        // SAFETY: the first call succeeded, so it has written `old`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    }
    result
}
