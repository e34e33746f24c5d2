//! What cannot be had, in words: the folder or the limit, what there is, what is needed, what helps
//! (`crate::reason`).

use super::folder;
use super::space::{allocate, free_space};
use crate::errno::Errno;
use crate::reason::{Cause, because};
use std::fmt;
use std::fs::File;
use std::path::Path;

/// A number of bytes for people.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["bytes", "KiB", "MiB", "GiB"];
        let unit = (1..UNITS.len()).rev().find(|&unit| self.0 >> (10 * unit) >= 4).unwrap_or(0);
        write!(f, "{} {}", self.0 >> (10 * unit), UNITS[unit])
    }
}

/// The soft limit of a resource; None: there is none.
pub fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a struct of ours, which outlives the call.
    let known = unsafe { libc::getrlimit(resource, &mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The folder of the segments cannot be used: an error of opening it, or of making a file in it.
pub fn unusable(dir: &Path, error: Errno) -> Errno {
    let dir = dir.display();
    let remedy = match error.0 {
        libc::EMFILE | libc::ENFILE => return descriptors(error),
        libc::ENOSPC | libc::EDQUOT => {
            return because(
                error,
                Cause::Space,
                format_args!(
                    "the segment folder {dir} has no room for another file ({error}): make room in it, or set SOFTIB_DIR to another folder"
                ),
            );
        }
        libc::ENOENT | libc::ENOTDIR => "SOFTIB_DIR has to name a folder that exists; unset, it is /dev/shm",
        libc::EACCES | libc::EPERM | libc::EROFS => {
            "SOFTIB_DIR has to name a folder that this user may write to"
        }
        libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL => {
            "SOFTIB_DIR has to name a folder of a local file system with O_TMPFILE and fallocate, such as a tmpfs"
        }
        _ => "set SOFTIB_DIR to a folder of a tmpfs",
    };
    because(error, Cause::Folder, format_args!("the segment folder {dir} cannot be used: {error}; {remedy}"))
}

/// A file that the processes of a user share cannot be used.
pub fn file(path: &Path, error: Errno) -> Errno {
    if matches!(error.0, libc::ENOENT | libc::EMFILE | libc::ENFILE | libc::ENOSPC | libc::EROFS) {
        return unusable(path.parent().unwrap_or(path), error);
    }
    let path = path.display();
    because(
        error,
        Cause::Folder,
        format_args!(
            "{path} cannot be used: {error}; if it is another user's, or no file, remove it, or set SOFTIB_DIR to a folder of \
             your own"
        ),
    )
}

/// `needed` bytes of a segment for `purpose` could not be taken. A full folder becomes ENOMEM, as the verbs have it.
pub fn space(file: &File, error: Errno, needed: usize, purpose: &str) -> Errno {
    let dir = folder::of_user();
    match error.0 {
        libc::ENOSPC | libc::EDQUOT => because(
            Errno::NOMEM,
            Cause::Space,
            format_args!(
                "the segment folder {} has no space for {purpose}: {} are free, {} are needed; make room in it, or set SOFTIB_DIR \
                 to a folder of a larger tmpfs",
                dir.display(),
                Bytes(free_space(file)),
                Bytes(needed as u64),
            ),
        ),
        libc::EFBIG => file_size(needed as u64, purpose),
        _ => unusable(&dir, error),
    }
}

/// Takes (allocates and zeroes) space of a sparse segment, so that touching it can't fail later. `purpose` is for the message where
/// there is none.
pub fn take_space(file: &File, offset: usize, len: usize, purpose: &str) -> Result<(), Errno> {
    allocate(file, offset, len).map_err(|error| space(file, error, len, purpose))
}

/// Makes a file `len` bytes long. EFBIG, and not SIGXFSZ: the process may not write such a file.
pub fn set_len(file: &File, len: usize, purpose: &str) -> Result<(), Errno> {
    if limit(libc::RLIMIT_FSIZE).is_some_and(|limit| limit < len as u64) {
        return Err(file_size(len as u64, purpose));
    }
    file.set_len(len as u64).map_err(|error| space(file, error.into(), len, purpose))
}

fn file_size(len: u64, purpose: &str) -> Errno {
    let limit = limit(libc::RLIMIT_FSIZE).unwrap_or(u64::MAX);
    because(
        Errno(libc::EFBIG),
        Cause::FileSize,
        format_args!(
            "the file size limit (ulimit -f, RLIMIT_FSIZE) of {} is too low for {purpose}: a sparse file of {}; raise it with \
             `ulimit -f unlimited`",
            Bytes(limit),
            Bytes(len),
        ),
    )
}

/// The address space that this process uses by now; 0 if the kernel does not say.
fn mapped() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').next().and_then(|pages| pages.parse().ok()).map_or(0, |pages: u64| pages * 4096)
}

/// Whether `needed` bytes of segments can still be mapped, and `besides` bytes of other things.
pub fn check_address_space(needed: usize, besides: usize) -> Result<(), Errno> {
    let Some(limit) = limit(libc::RLIMIT_AS) else { return Ok(()) };
    let left = limit.saturating_sub(mapped());
    if left >= (needed + besides) as u64 {
        return Ok(());
    }
    Err(because(
        Errno::NOMEM,
        Cause::AddressSpace,
        format_args!(
            "{} of address space are needed for the segments of the peers and for buffers, {} are left: the address space limit (ulimit -v, \
             RLIMIT_AS) is {}; raise it with `ulimit -v unlimited`",
            Bytes((needed + besides) as u64),
            Bytes(left),
            Bytes(limit)
        ),
    ))
}

/// `len` bytes of a segment could not be mapped.
pub fn mapping(error: Errno, len: usize) -> Errno {
    let remedy = match limit(libc::RLIMIT_AS) {
        Some(limit) => format!(
            "the address space limit (ulimit -v, RLIMIT_AS) is {}; raise it with `ulimit -v unlimited`",
            Bytes(limit)
        ),
        None => {
            "the process has too many mappings (sysctl vm.max_map_count), or the machine is out of memory"
                .into()
        }
    };
    because(
        error,
        Cause::AddressSpace,
        format_args!("{} of a segment cannot be mapped: {error}; {remedy}", Bytes(len as u64)),
    )
}

/// A system call that makes a descriptor has failed. Errors that are no shortage stay without a reason.
pub fn descriptors(error: Errno) -> Errno {
    match error.0 {
        libc::EMFILE => because(
            error,
            Cause::Descriptors,
            format_args!(
                "the process has no file descriptor left: the limit of open files (ulimit -n, RLIMIT_NOFILE) is {}; raise it, each process \
                 that is connected to takes one",
                limit(libc::RLIMIT_NOFILE).unwrap_or(0)
            ),
        ),
        libc::ENFILE => because(
            error,
            Cause::Descriptors,
            "the machine has no file descriptor left; raise sysctl fs.file-max",
        ),
        _ => error,
    }
}

/// Every one of `what`, of which there is a fixed number, is taken.
pub fn full(what: fmt::Arguments<'_>) -> Errno {
    because(Errno(libc::EUSERS), Cause::Full, format_args!("{what} are taken (docs/softib.md, section 5)"))
}

/// The device thread could not be started.
pub fn thread(error: Errno) -> Errno {
    let limits = [(libc::RLIMIT_NPROC, "ulimit -u, RLIMIT_NPROC"), (libc::RLIMIT_AS, "ulimit -v, RLIMIT_AS")];
    let set = limits.into_iter().filter_map(|(resource, name)| Some(format!("{name}: {}", limit(resource)?)));
    let set = set.collect::<Vec<_>>().join("; ");
    because(
        error,
        Cause::Threads,
        format_args!(
            "the device thread cannot be started: {error}; raise the limits of processes and address space that are set ({set}), or the \
             pids limit of the control group"
        ),
    )
}

/// Errors that tell of something that this process or the folder has run out of, and nothing of a peer.
pub fn is_shortage(error: Errno) -> bool {
    matches!(error.0, libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::EUSERS | libc::EFBIG | libc::ENOSPC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_as_people_write_them() {
        let text = |n| Bytes(n).to_string();
        assert_eq!(
            [text(0), text(4095), text(4096), text(1000 << 10)],
            ["0 bytes", "4095 bytes", "4 KiB", "1000 KiB"]
        );
        assert_eq!([text(616 << 20), text(9 << 30)], ["616 MiB", "9 GiB"]);
    }
}
