//! Files of this user: made without a name, named, opened only if they are the user's, removed when their lock is free.

use super::folder::{self, uid};
use super::{liveness, shortage};
use crate::errno::{Errno, check};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A new file without a name.
pub fn unnamed(dir: &Path) -> Result<File, Errno> {
    let flags = libc::O_TMPFILE | libc::O_CLOEXEC;
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(flags);
    folder::fill(dir, || Ok(options.open(dir)?)).map_err(|error| shortage::unusable(dir, error))
}

/// Gives an unnamed file a name. False: it is taken.
pub fn link_name(file: &File, path: &Path) -> Result<bool, Errno> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| Errno::INVAL)?;
    let to = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    let cwd = libc::AT_FDCWD;
    // SAFETY: both strings are NUL-terminated and outlive the call.
    match check(unsafe { libc::linkat(cwd, from.as_ptr(), cwd, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) }) {
        Ok(_) => Ok(true),
        Err(Errno(libc::EEXIST)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Another open file description of a file that is open, to read and to write.
pub fn open_again(file: &File) -> Result<File, Errno> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_CLOEXEC);
    options.open(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|e| shortage::descriptors(e.into()))
}

/// Opens a file of this user, to read and to write.
pub fn open_path(path: &Path) -> Result<File, Errno> {
    owned(OpenOptions::new().read(true).write(true), path)
}

/// Opens a file that all processes of this user share, or makes it. EPERM: it is another user's.
pub fn open_shared(path: &Path) -> Result<File, Errno> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let dir = path.parent().unwrap_or(path);
    folder::fill(dir, || owned(&mut options, path)).map_err(|error| shortage::file(path, error))
}

/// Opens a file of this user. EPERM: what has this name is another user's, or no file.
fn owned(options: &mut OpenOptions, path: &Path) -> Result<File, Errno> {
    // A FIFO must not keep us waiting.
    let file = options.custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let about = file.metadata()?;
    if about.is_file() && about.uid() == uid() { Ok(file) } else { Err(Errno(libc::EPERM)) }
}

/// Removes one file of ours, unless its lock or a part of it is held.
pub fn sweep_one(path: &Path) {
    let Ok(file) = open_path(path) else { return };
    if liveness::try_lock(&file) == Ok(true) {
        unlink_if_same(path, &file);
    }
}

/// Unlinks `path` if it still is `file`, whose lock the caller holds.
pub fn unlink_if_same(path: &Path, file: &File) {
    if is_same(path, file) {
        // A failure leaves a file that the next sweep finds.
        let _ = std::fs::remove_file(path);
    }
}

/// Whether `path` is the name of `file`.
pub fn is_same(path: &Path, file: &File) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), std::fs::symlink_metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (there.dev(), there.ino())
}
