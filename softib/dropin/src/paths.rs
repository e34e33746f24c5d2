//! Paths that programs look for without asking libibverbs: /dev/infiniband/softib0 and those of further devices.
//!
//! UCX takes a device only when a file of its name is there, readable and writable. No library can offer one, and making it
//! takes root; so `cargo xtask verbs` preloads `libsoftib-paths.so`, which holds nothing but a `stat` and an `access` that
//! answer for these paths as for /dev/null, and for all others as the kernel does.

use std::ffi::{CStr, c_char, c_int};

/// A number follows.
const DEVICE_FILE: &CStr = c"/dev/infiniband/softib";

/// C name, and the symbol of its stand-in in the static library.
pub const FUNCTIONS: &[(&str, &str)] = &[("stat", "oxib_verbs_stat"), ("access", "oxib_verbs_access")];

/// The path to ask the kernel about.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn stand_in(path: *const c_char) -> *const c_char {
    // SAFETY: `path` is not null when `is_device` sees it, so the caller promises a C string. Null
    // goes to the kernel, which answers EFAULT.
    let ours = unsafe { !path.is_null() && is_device(path) };
    if ours { c"/dev/null".as_ptr() } else { path }
}

/// Whether it is the file of a device: one digit, for there are no more than eight.
///
/// # Safety
/// `path` is a C string.
unsafe fn is_device(path: *const c_char) -> bool {
    let stem = DEVICE_FILE.count_bytes();
    // SAFETY: the caller promises a C string. Behind an equal stem it has at least the NUL, and
    // behind a digit another byte.
    unsafe {
        libc::strncmp(path, DEVICE_FILE.as_ptr(), stem) == 0
            && (*path.add(stem)).cast_unsigned().is_ascii_digit()
            && *path.add(stem + 1) == 0
    }
}

/// `stat`
///
/// # Safety
/// As for stat(2).
#[unsafe(export_name = "oxib_verbs_stat")]
pub unsafe extern "C" fn stat(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the program promises a path and room for the answer as stat(2) asks for; `stand_in`
    // returns that path or a literal.
    unsafe { libc::fstatat(libc::AT_FDCWD, stand_in(path), to, 0) }
}

/// `access`
///
/// # Safety
/// As for access(2).
#[unsafe(export_name = "oxib_verbs_access")]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the program promises a path as access(2) asks for; `stand_in` returns that path or a
    // literal.
    unsafe { libc::faccessat(libc::AT_FDCWD, stand_in(path), mode, 0) }
}
