//! Sleeping on words that processes share, and waking who sleeps there.

use super::layout::BELL;
use super::map::Map;
use std::sync::atomic::AtomicU32;

/// Wakes the device thread that sleeps on a segment's bell.
#[cold]
pub fn ring_bell(map: &Map) {
    futex_wake(map.u32(BELL));
}

/// Wakes one sleeper on a futex that may be shared between processes.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word is a live, aligned atomic; FUTEX_WAKE does not touch its value.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

/// Sleeps while `word` is `value`, at most for `timeout`.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout: Option<std::time::Duration>) {
    let limit =
        timeout.map(|t| libc::timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word is a live, aligned atomic, and the timespec outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, limit) };
}
