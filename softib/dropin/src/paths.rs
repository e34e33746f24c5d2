//! A path that programs look for without asking libibverbs: /dev/infiniband/softib0.
//!
//! UCX takes a device only when a file of its name is there, readable and writable. No library can offer one, and making it
//! takes root; so `cargo xtask verbs` preloads `libsoftib-paths.so`, which holds nothing but a `stat` and an `access` that
//! answer for this one path as for /dev/null, and for all others as the kernel does.

use std::ffi::{CStr, c_char, c_int};

const DEVICE_FILE: &CStr = c"/dev/infiniband/softib0";

/// C name, and the symbol of its stand-in in the static library.
pub const FUNCTIONS: &[(&str, &str)] = &[("stat", "oxib_verbs_stat"), ("access", "oxib_verbs_access")];

/// The path to ask the kernel about.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn stand_in(path: *const c_char) -> *const c_char {
    // SAFETY: by contract; null is passed on for the kernel's EFAULT.
    let ours = unsafe { !path.is_null() && libc::strcmp(path, DEVICE_FILE.as_ptr()) == 0 };
    if ours { c"/dev/null".as_ptr() } else { path }
}

/// `stat`
///
/// # Safety
/// As for stat(2).
#[unsafe(export_name = "oxib_verbs_stat")]
pub unsafe extern "C" fn stat(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: passed on from our caller.
    unsafe { libc::fstatat(libc::AT_FDCWD, stand_in(path), to, 0) }
}

/// `access`
///
/// # Safety
/// As for access(2).
#[unsafe(export_name = "oxib_verbs_access")]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: passed on from our caller.
    unsafe { libc::faccessat(libc::AT_FDCWD, stand_in(path), mode, 0) }
}
