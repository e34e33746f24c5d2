//! File descriptors that libraries hand out.

use std::ffi::c_int;

/// Makes reads of a descriptor return at once; an errno value if that fails.
pub(crate) fn set_nonblocking(fd: c_int) -> Result<(), c_int> {
    // SAFETY: flags of an open descriptor.
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
    };
    if done { Ok(()) } else { Err(rdma_sys::errno()) }
}
