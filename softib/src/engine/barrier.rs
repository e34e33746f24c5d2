//! Memory barriers on other processes, by membarrier(2).
//!
//! A sender stores a tag and then loads `watched`; it may leave out the fence between them if the receiver, after
//! it has stored `watched = 0`, makes every registered process execute one. The same trick, inside the process, makes the
//! engine's lock free for the thread that uses it most ([`sync::Lock`]).

use std::sync::atomic::{Ordering, fence};

/// From linux/membarrier.h.
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a system call without pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// What this process is registered for.
#[derive(Debug, Clone, Copy)]
pub struct Barrier {
    /// MEMBARRIER_CMD_GLOBAL_EXPEDITED: other processes' barriers reach it.
    pub global: bool,
}

impl Barrier {
    /// Registers the process with the kernel, if that offers it.
    pub fn register() -> Barrier {
        Barrier { global: membarrier(REGISTER_GLOBAL_EXPEDITED) }
    }

    /// A full fence here, and on every running thread of processes that send without one.
    pub fn all_senders(&self) {
        fence(Ordering::SeqCst);
        if self.global && !membarrier(GLOBAL_EXPEDITED) {
            log::error!("membarrier stopped working: messages may be noticed late");
        }
    }
}
