//! A fence on other threads, by membarrier(2): one side of a protocol pays for both, so that the side that comes often has none.

use std::sync::atomic::{AtomicU8, Ordering, fence};

/// From linux/membarrier.h.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a system call without pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether this process is registered for MEMBARRIER_CMD_PRIVATE_EXPEDITED.
#[derive(Debug, Default)]
pub struct Barrier(AtomicU8);

/// The kernel has not been asked.
const UNASKED: u8 = 0;
/// A thread is asking it.
const ASKED: u8 = 1;
/// The process is registered.
const WORKS: u8 = 2;
/// The kernel does not offer it.
const FAILED: u8 = 3;

impl Barrier {
    /// It works, or does not, whatever the kernel says.
    #[cfg(test)]
    pub fn assumed(works: bool) -> Barrier {
        Barrier(AtomicU8::new(if works { WORKS } else { FAILED }))
    }

    /// Registers the process with the kernel, if that offers it (Linux 4.14) and no other thread has begun to. In a process of several threads the kernel
    /// waits until every processor has been elsewhere, tens of milliseconds.
    pub fn register(&self) {
        if self.0.compare_exchange(UNASKED, ASKED, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let state = if membarrier(REGISTER_PRIVATE_EXPEDITED) { WORKS } else { FAILED };
            self.0.store(state, Ordering::Release);
        }
    }

    /// [`Self::own_threads`] works. False while another thread registers the process.
    pub fn works(&self) -> bool {
        self.register();
        self.0.load(Ordering::Acquire) == WORKS
    }

    /// A full fence here and, if `true`, on every running thread of this process.
    pub fn own_threads(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Acquire) == WORKS && membarrier(PRIVATE_EXPEDITED)
    }
}
