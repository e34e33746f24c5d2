//! Memory barriers on other processes, by membarrier(2).
//!
//! A sender stores a tag and then loads `watched`; it may leave out the fence between them if the receiver, after
//! it has stored `watched = 0`, makes every registered process execute one. The same trick, inside the process, makes the
//! engine's lock free for the thread that uses it most ([`sync::Lock`]).
//!
//! To register, the kernel waits until every processor has been elsewhere, tens of milliseconds in a process of several threads. So the device thread does it, as the first
//! thing, while the program goes on; who attaches a peer waits for that.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

/// From linux/membarrier.h.
const QUERY: libc::c_int = 0;
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn membarrier(command: libc::c_int) -> libc::c_long {
    // SAFETY: a system call without pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

/// What this process can do, and is registered for.
#[derive(Debug)]
pub struct Barrier {
    /// MEMBARRIER_CMD_GLOBAL_EXPEDITED, which reaches registered processes, is there.
    pub is_offered: bool,
    registered: OnceLock<bool>,
}

impl Barrier {
    /// Asks what the kernel offers.
    pub fn query() -> Barrier {
        let (commands, both) = (membarrier(QUERY), GLOBAL_EXPEDITED | REGISTER_GLOBAL_EXPEDITED);
        let is_offered = commands > 0 && commands & libc::c_long::from(both) == both.into();
        Barrier { is_offered, registered: OnceLock::new() }
    }

    /// Registers the process with the kernel, or waits until another thread has. True: other processes' barriers reach it.
    pub fn register(&self) -> bool {
        *self.registered.get_or_init(|| self.is_offered && membarrier(REGISTER_GLOBAL_EXPEDITED) == 0)
    }

    /// A full fence here, and on every running thread of processes that send without one.
    pub fn all_senders(&self) {
        fence(Ordering::SeqCst);
        if self.is_offered && membarrier(GLOBAL_EXPEDITED) != 0 {
            log::error!("membarrier stopped working: messages may be noticed late");
        }
    }
}
