//! The command descriptor of a context: a file in memory that says which process and context it belongs to, so a duplicate of it
//! names them, too.

use crate::errno::{Errno, check};
use crate::shm::shortage;
use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

const MAGIC: u64 = u64::from_le_bytes(*b"softibfd");

/// A command descriptor that names no process and context yet.
pub fn command_file() -> Result<File, Errno> {
    // SAFETY: a name that is a C string.
    let fd = check(unsafe { libc::memfd_create(c"softib-command".as_ptr(), libc::MFD_CLOEXEC) })
        .map_err(shortage::descriptors)?;
    // SAFETY: memfd_create made the descriptor just now, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Writes into a command descriptor whose it is: the process's incarnation, and the index of the context.
pub fn sign(file: &File, incarnation: u64, context: usize) -> Result<(), Errno> {
    let words = [MAGIC, incarnation, context as u64];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    file.write_all_at(&bytes, 0).map_err(Errno::from)
}

/// Incarnation and context that a descriptor names.
pub fn signature(file: &File) -> Option<(u64, usize)> {
    let mut bytes = [0u8; 24];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
    let (magic, incarnation, context) = (words.next()?, words.next()?, words.next()?);
    (magic == MAGIC).then_some((incarnation, context as usize))
}
