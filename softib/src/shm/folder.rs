//! The folder of a user's files.
//!
//! In a folder that others may write to as well (/dev/shm) each of our names could be taken by a file
//! of theirs. There everything of ours is in a folder of mode 0700, `softib-<uid>`, so that what is
//! found in it is ours. Its own name is the only one that others can take first: then it is
//! `softib-<uid>.1`, and so on; one that is ours already counts before a name that is free.
//!
//! The folder is there as long as something is in it: who makes a file makes the folder, who takes
//! the last file away takes the folder away.

use crate::errno::Errno;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Attempts to make a file against processes that leave and take the empty folder away.
const ATTEMPTS: u32 = 1000;
/// Who may write, besides the owner.
const OTHERS_WRITE: u32 = 0o022;

/// What SOFTIB_DIR names, default /dev/shm.
pub fn configured() -> PathBuf {
    std::env::var_os("SOFTIB_DIR").map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from)
}

/// The user whose segments these are.
pub fn uid() -> u32 {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() }
}

/// Where this user's files are; it need not be there yet.
pub fn of_user() -> PathBuf {
    let base = configured();
    if is_shared(&base) { private(&base) } else { base }
}

fn is_shared(base: &Path) -> bool {
    let others = |data: std::fs::Metadata| data.uid() != uid() || data.mode() & OTHERS_WRITE != 0;
    // One that cannot be looked at shows so when it is used.
    std::fs::metadata(base).is_ok_and(others)
}

fn name(number: usize) -> String {
    match number {
        0 => format!("softib-{}", uid()),
        _ => format!("softib-{}.{number}", uid()),
    }
}

fn number_of(name: &str) -> Option<usize> {
    let number = match name.strip_prefix(&format!("softib-{}", uid()))? {
        "" => 0,
        rest => rest.strip_prefix('.')?.parse().ok()?,
    };
    (self::name(number) == name).then_some(number)
}

fn private(base: &Path) -> PathBuf {
    let at = |number: &usize| base.join(name(*number));
    if is_ours(&at(&0)) {
        return at(&0);
    }
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    let mut used: Vec<usize> = entries.filter_map(|entry| number_of(entry.file_name().to_str()?)).collect();
    used.sort_unstable();
    match used.iter().map(at).find(|path| is_ours(path)) {
        Some(ours) => ours,
        None => at(&(0..).find(|number| used.binary_search(number).is_err()).unwrap_or_default()),
    }
}

fn is_ours(path: &Path) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|data| data.is_dir() && data.uid() == uid() && data.mode() & OTHERS_WRITE == 0)
}

/// Whether this is a folder that comes and goes with what is in it.
fn is_private(dir: &Path) -> bool {
    dir.file_name().and_then(|name| name.to_str()).is_some_and(|name| number_of(name).is_some())
}

/// Does what makes a file in `dir`, and makes `dir` before if it is to be made.
pub fn fill<T>(dir: &Path, mut act: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..ATTEMPTS {
        match act() {
            Err(Errno(libc::ENOENT)) if is_private(dir) => make(dir)?,
            done => return done,
        }
    }
    Err(Errno::BUSY)
}

fn make(dir: &Path) -> Result<(), Errno> {
    match DirBuilder::new().mode(0o700).create(dir).map_err(Errno::from) {
        Err(Errno(libc::EEXIST)) => Ok(()),
        made => made,
    }
}

/// Something has been taken away from `dir`: it goes too, if it was the last.
pub fn leave(dir: &Path) {
    if is_private(dir) {
        // A failure says that there is more in it.
        let _ = std::fs::remove_dir(dir);
    }
}
