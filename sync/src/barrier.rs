//! A fence on other threads, by membarrier(2): one side of a protocol pays for both, so that the side that comes often has none.

use std::sync::atomic::{Ordering, fence};

/// From linux/membarrier.h.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a system call without pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether this process is registered for MEMBARRIER_CMD_PRIVATE_EXPEDITED.
#[derive(Debug, Clone, Copy)]
pub struct Barrier {
    pub works: bool,
}

impl Barrier {
    /// Registers the process with the kernel, if that offers it (Linux 4.14).
    pub fn register() -> Barrier {
        Barrier { works: membarrier(REGISTER_PRIVATE_EXPEDITED) }
    }

    /// A full fence here and, if `true`, on every running thread of this process.
    pub fn own_threads(&self) -> bool {
        fence(Ordering::SeqCst);
        self.works && membarrier(PRIVATE_EXPEDITED)
    }
}
