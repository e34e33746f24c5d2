//! What a function leads to that this device does not offer: one for each way in which libibverbs functions report.
//!
//! They take no arguments, whatever their callers pass: in the C calling conventions of our targets arguments are the caller's to
//! clean up, so a function that looks at none can stand for any.

use softib::errno::Errno;
use std::ffi::c_int;

/// For functions that return an errno value.
pub unsafe extern "C" fn int() -> c_int {
    libc::EOPNOTSUPP
}

/// For functions that return -1 and set errno.
pub unsafe extern "C" fn minus() -> c_int {
    Errno::OPNOTSUPP.set();
    -1
}

/// For functions that return a pointer, or null and set errno.
pub unsafe extern "C" fn null() -> *mut u8 {
    Errno::OPNOTSUPP.set();
    std::ptr::null_mut()
}

/// For functions that return nothing, or 0 whatever happens.
pub unsafe extern "C" fn zero() -> u64 {
    0
}
