//! The one error type inside softib: an errno value, because that is all the verbs ABI can carry.
//!
//! Control functions return it (or set it and return NULL); the safe layer above turns it into a
//! sentence that names the object and the remedy.

use std::fmt;

/// An errno value, never 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// A wrong argument.
    pub const INVAL: Errno = Errno(libc::EINVAL);
    /// No room, or no more objects of the kind.
    pub const NOMEM: Errno = Errno(libc::ENOMEM);
    /// Still in use.
    pub const BUSY: Errno = Errno(libc::EBUSY);
    /// No device, or it is not open in this process.
    pub const NODEV: Errno = Errno(libc::ENODEV);
    /// Something that this device does not offer.
    pub const OPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
    /// A segment that is not what it should be.
    pub const PROTO: Errno = Errno(libc::EPROTO);

    /// The calling thread's errno, as left by the system call that has just failed.
    pub fn last() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// Makes this the calling thread's errno, for functions that report by NULL or -1.
    pub fn set(self) {
        // SAFETY: __errno_location returns the address of the calling thread's own errno.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Turns a system call's -1 into the errno it left.
pub fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    if result < 0 { Err(Errno::last()) } else { Ok(result) }
}
