//! Space of the file system that segments are on: they are sparse files, and take it part by part.

use crate::errno::{Errno, check};
use std::fs::File;
use std::os::fd::AsRawFd;

/// Allocates and zeroes space of a sparse file, so that touching it can't fail later.
pub fn allocate(file: &File, offset: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: a system call on a descriptor we hold.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as libc::off_t, len as libc::off_t) };
    check(result).map(drop)
}

/// Gives space back; it reads as zeroes when it is taken again. False: it has what it had, and is wasted until the segment goes.
pub fn give_space(file: &File, offset: usize, len: usize) -> bool {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a system call on a descriptor we hold.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, len as libc::off_t) == 0 }
}

/// Bytes that are left on the file system of `file`; 0 if it does not say.
pub fn free_space(file: &File) -> u64 {
    // SAFETY: plain C data, zeroes are valid.
    let mut about: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a system call on a descriptor we hold, with a struct of ours.
    let known = unsafe { libc::fstatvfs(file.as_raw_fd(), &mut about) } == 0;
    if known { about.f_bavail.saturating_mul(about.f_frsize) } else { 0 }
}
