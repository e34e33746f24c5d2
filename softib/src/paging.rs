//! Regions that are registered on demand: memory is there when it is used, not before.
//!
//! Nothing here pins memory, so every region is paged by nature. What on-demand regions add is that a part of them may not be
//! mapped at all, up to a region that is the whole address space. A peer that names such a place gets a remote access
//! error: process_vm_* says so by itself, and before this process touches the place on the peer's behalf it asks the
//! kernel to fault the pages in, which fails instead of raising a signal (MADV_POPULATE_*, Linux 5.14).
//!
//! Buffers of this program's own work requests are not asked about: it would have faulted on them itself.

use crate::errno::{Errno, check};
use std::sync::OnceLock;

/// Faults `len` bytes at `addr` in, for writing or for reading. EFAULT or ENOMEM: they can't be used so.
pub fn populate(addr: u64, len: u64, write: bool) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    let page = page_size();
    let start = addr & !(page - 1);
    let end = addr
        .checked_add(len)
        .and_then(|end| end.checked_next_multiple_of(page))
        .ok_or(Errno(libc::EFAULT))?;
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: faulting pages in changes no content, and the kernel checks the range.
    check(unsafe { libc::madvise(start as *mut _, (end - start) as usize, advice) }).map(|_| ())
}

fn page_size() -> u64 {
    static SIZE: OnceLock<u64> = OnceLock::new();
    // SAFETY: a query without pointers.
    *SIZE.get_or_init(|| u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

/// Whether this kernel can do it; without it the device offers no on-demand regions.
pub fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    let here = 0u8;
    *AVAILABLE.get_or_init(|| populate(std::ptr::from_ref(&here) as u64, 1, false).is_ok())
}
