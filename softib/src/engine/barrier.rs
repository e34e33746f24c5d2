//! Memory barriers on other threads and processes, by membarrier(2).
//!
//! A sender stores a tag and then loads `watched`; it may leave out the fence between them if the receiver, after
//! it has stored `watched = 0`, makes every registered process execute one. The same trick, inside the process, makes the
//! engine's lock free for the thread that uses it most.

use std::sync::atomic::{Ordering, fence};

/// From linux/membarrier.h.
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a system call without pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// What this process is registered for.
#[derive(Debug, Clone, Copy)]
pub struct Barrier {
    /// MEMBARRIER_CMD_GLOBAL_EXPEDITED: other processes' barriers reach it.
    pub global: bool,
    /// MEMBARRIER_CMD_PRIVATE_EXPEDITED: its own barriers do.
    pub private: bool,
}

impl Barrier {
    /// Registers the process with the kernel, as far as that offers it.
    pub fn register() -> Barrier {
        Barrier {
            global: membarrier(REGISTER_GLOBAL_EXPEDITED),
            private: membarrier(REGISTER_PRIVATE_EXPEDITED),
        }
    }

    /// A full fence here, and on every running thread of processes that send without one.
    pub fn all_senders(&self) {
        fence(Ordering::SeqCst);
        if self.global && !membarrier(GLOBAL_EXPEDITED) {
            log::error!("membarrier stopped working: messages may be noticed late");
        }
    }

    /// A full fence on every running thread of this process.
    pub fn own_threads(&self) -> bool {
        fence(Ordering::SeqCst);
        self.private && membarrier(PRIVATE_EXPEDITED)
    }
}
