//! Locks on ranges of a file that belong to an open file description: the kernel drops them with its last descriptor, however the
//! process ends.
//!
//! A segment of a process has one lock, on the whole file (`liveness`). A segment of a domain has
//! two ranges: the first byte is read-locked by every process that has the domain open, so that a
//! lock on the whole file is to be had only when no process has; the second byte is the mutex of
//! those who change something.

use crate::errno::{Errno, check};
use std::fs::File;
use std::os::fd::AsRawFd;

/// What a lock covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Range {
    Whole,
    Byte(i64),
}

/// Who else may have one at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Shared,
    Exclusive,
}

/// `fcntl`'s description of a lock; `kind` is F_RDLCK, F_WRLCK or F_UNLCK.
pub fn describe(kind: libc::c_int, range: Range) -> libc::flock {
    // SAFETY: flock is plain old data; zero is a valid value of every field (and l_pid must be 0).
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    if let Range::Byte(at) = range {
        (lock.l_start, lock.l_len) = (at, 1);
    }
    lock
}

fn set(file: &File, command: libc::c_int, lock: &libc::flock) -> Result<(), Errno> {
    // SAFETY: the descriptor is open and the struct outlives the call.
    check(unsafe { libc::fcntl(file.as_raw_fd(), command, lock) }).map(drop)
}

fn code(kind: Kind) -> libc::c_int {
    if kind == Kind::Shared { libc::F_RDLCK } else { libc::F_WRLCK }
}

/// Takes a lock, or changes the kind of one. False: a lock of another descriptor is in the way, and
/// all is as before.
pub fn try_take(file: &File, kind: Kind, range: Range) -> Result<bool, Errno> {
    match set(file, libc::F_OFD_SETLK, &describe(code(kind), range)) {
        Ok(()) => Ok(true),
        Err(Errno(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes a lock when its turn has come.
pub fn take(file: &File, kind: Kind, range: Range) -> Result<(), Errno> {
    loop {
        match set(file, libc::F_OFD_SETLKW, &describe(code(kind), range)) {
            Err(Errno(libc::EINTR)) => {}
            other => return other,
        }
    }
}

/// Gives a lock back. It can't fail on an open descriptor, and a closed one has none.
pub fn release(file: &File, range: Range) {
    let _ = set(file, libc::F_OFD_SETLK, &describe(libc::F_UNLCK, range));
}
