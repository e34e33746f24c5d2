//! Regions that are registered on demand: memory is there when it is used, not before.
//!
//! Nothing here pins memory, so every region is paged by nature. What on-demand regions add is that a part of them may not be
//! mapped at all, up to a region that is the whole address space. A peer that names such a place gets a remote access
//! error: process_vm_* says so by itself, and before this process touches the place on the peer's behalf it asks the
//! kernel to fault the pages in, which fails instead of raising a signal (MADV_POPULATE_*, Linux 5.14).
//!
//! Buffers of this program's own work requests are not asked about: it would have faulted on them itself.

use crate::errno::{Errno, check};
use crate::fabric::MAX_MESSAGE;
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

/// Memory behind null regions: as long as the longest message, and next to none of it real.
#[derive(Debug, Clone, Copy)]
pub struct Nothing {
    /// Reads as zeroes: never written to, so all of it is the kernel's one page of them.
    pub zeroes: u64,
    /// Takes what is written: a piece of memory, over and over again.
    pub sink: u64,
    /// Bytes of either.
    pub len: u64,
}

/// Length of the piece.
const SINK: usize = 4 << 20;

/// That memory; made once, on first use.
pub fn nothing() -> Result<Nothing, Errno> {
    static MADE: OnceLock<Result<Nothing, Errno>> = OnceLock::new();
    *MADE.get_or_init(|| {
        let len = MAX_MESSAGE as usize;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let zeroes = map(0, len, libc::PROT_READ, private, -1)?;
        let sink = map(0, len, libc::PROT_NONE, private, -1)?;
        // SAFETY: a name without NUL inside, and a length for a file of our own.
        let file = check(unsafe { libc::memfd_create(c"softib-sink".as_ptr(), libc::MFD_CLOEXEC) })?;
        // SAFETY: a system call on the descriptor made above, without pointers.
        let mut result = check(unsafe { libc::ftruncate(file, SINK as libc::off_t) }).map(|_| ());
        for piece in (0..len).step_by(SINK) {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            let at = sink as usize + piece;
            result = result
                .and_then(|()| map(at, SINK, libc::PROT_READ | libc::PROT_WRITE, flags, file).map(|_| ()));
        }
        // SAFETY: opened above; the mappings stay.
        unsafe { libc::close(file) };
        result.map(|()| Nothing { zeroes, sink, len: len as u64 })
    })
}

/// mmap. With MAP_FIXED, `at` lies in a mapping of ours.
fn map(at: usize, len: usize, protection: i32, flags: i32, file: i32) -> Result<u64, Errno> {
    // SAFETY: without MAP_FIXED no existing mapping is touched; with it only one of ours, which is
    // not in use yet.
    let place = unsafe { libc::mmap(at as *mut _, len, protection, flags, file, 0) };
    if place == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(place as u64) }
}
