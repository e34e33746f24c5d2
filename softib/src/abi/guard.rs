//! What keeps a panic from unwinding into C, and turns an error into what the C caller expects.

use crate::errno::Errno;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body` for a function that returns 0 or an errno value.
#[inline]
pub fn guard(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(Errno(code))) => code,
        Err(_) => libc::EIO,
    }
}

/// Runs `body` for a function that returns a pointer, or null and sets errno.
pub fn guard_ptr<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(pointer)) => pointer,
        Ok(Err(error)) => {
            error.set();
            std::ptr::null_mut()
        }
        Err(_) => {
            Errno(libc::EIO).set();
            std::ptr::null_mut()
        }
    }
}

/// Runs `body` for a function that returns 0, or -1 and sets errno.
pub fn guard_minus(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guard(body) {
        0 => 0,
        code => {
            Errno(code).set();
            -1
        }
    }
}
