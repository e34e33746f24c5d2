//! Which file the memory of another process is a mapping of.
//!
//! Memory that a program maps as shared (`MAP_SHARED`: shm_open(3), memfd_create(2), a file, huge pages) can be mapped by its peers, too. Which file it is,
//! and which part, the kernel says in /proc/PID/maps. The file is opened by its path; if that leads to another one by now, or to none, by the
//! mapping itself (/proc/PID/map_files, with CAP_CHECKPOINT_RESTORE), or by a descriptor of it that the process has (/proc/PID/fd). Anonymous
//! shared memory, and a file that has been removed and closed, can be had by the mapping only. proc_pid_maps(5), proc_pid_fd(5), proc_pid_map_files(5).
//!
//! A file counts if device and inode are those of the mapping. Device files are left alone: to open one may have effects.

use super::vma::{Vma, in_proc};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The part of a file that some memory is a mapping of, in whole pages of that file.
#[derive(Debug)]
pub struct Backing {
    /// The file, open for what was asked for.
    pub file: File,
    /// Where the pages begin in the file, and their bytes.
    pub start: usize,
    pub len: usize,
    /// Where in them the memory begins.
    pub within: usize,
}

impl Backing {
    /// What the memory of process `pid` at `memory` is a mapping of, to be written to or not. None: it is not shared, is of several mappings, the process may
    /// not use it so itself, or the file can't be opened.
    pub fn find(pid: i32, memory: &Range<u64>, is_writable: bool) -> Option<Backing> {
        let mapping = Vma::around(pid, memory)?;
        if !mapping.is_shared || !mapping.is_readable || is_writable && !mapping.is_writable {
            return None;
        }
        let file = mapping.open(pid, is_writable)?;
        let metadata = file.metadata().ok()?;
        let page = metadata.blksize().max(4096);
        let first = mapping.offset.checked_add(memory.start - mapping.range.start)?;
        let start = first - first % page;
        let end = first.checked_add(memory.end - memory.start)?.checked_next_multiple_of(page)?;
        // What is behind the end of the file is no memory.
        if end > metadata.size().checked_next_multiple_of(page)? {
            return None;
        }
        let [start, len, within] = [start, end - start, first - start].map(usize::try_from);
        Some(Backing { file, start: start.ok()?, len: len.ok()?, within: within.ok()? })
    }
}

/// Whether process `pid` holds the lock of this file by one of its descriptors, as the owner of a segment does: it is the owner, though process ids may be
/// those of another namespace.
pub fn has_locked(pid: i32, file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let holds = |fd: &OsString| {
        let info = std::fs::read_to_string(in_proc(pid, "fdinfo").join(fd));
        info.is_ok_and(|info| info.contains("OFDLCK"))
    };
    descriptors(pid, (metadata.dev(), metadata.ino())).any(|fd| holds(&fd))
}

/// The numbers of a process' descriptors of a file, which is known by device and inode.
fn descriptors(pid: i32, id: (u64, u64)) -> impl Iterator<Item = OsString> {
    let entries = std::fs::read_dir(in_proc(pid, "fd")).into_iter().flatten().flatten();
    let is_it = move |path: &Path| {
        std::fs::metadata(path).is_ok_and(|data| data.is_file() && (data.dev(), data.ino()) == id)
    };
    entries.filter(move |entry| is_it(&entry.path())).map(|entry| entry.file_name())
}

impl Vma {
    /// Its file.
    fn open(&self, pid: i32, is_writable: bool) -> Option<File> {
        let Range { start, end } = self.range;
        let by_path = std::iter::once(PathBuf::from(&self.path));
        let by_mapping = std::iter::once(in_proc(pid, "map_files").join(format!("{start:x}-{end:x}")));
        let folder = in_proc(pid, "fd");
        let by_descriptor = descriptors(pid, self.id).map(|fd| folder.join(fd));
        let mut paths = by_path.chain(by_mapping).chain(by_descriptor);
        paths.find_map(|path| self.open_by(&path, is_writable))
    }

    fn open_by(&self, path: &Path, is_writable: bool) -> Option<File> {
        let is_ours = |data: &std::fs::Metadata| data.is_file() && (data.dev(), data.ino()) == self.id;
        // It is looked at before it is opened.
        if path.as_os_str() == OsStr::new("") || !is_ours(&std::fs::metadata(path).ok()?) {
            return None;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(is_writable).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(path).ok()?;
        is_ours(&file.metadata().ok()?).then_some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::map::Map;
    use std::os::fd::AsRawFd;

    fn me() -> i32 {
        std::process::id().cast_signed()
    }

    fn temporary(name: &str) -> (PathBuf, File) {
        let path = std::env::temp_dir().join(format!("softib-backing-{name}-{}", me()));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.expect("a new file in the folder of temporary files");
        file.set_len(5 * 4096).expect("a sparse file");
        (path, file)
    }

    #[test]
    fn memory_leads_to_its_file_by_path_or_by_descriptor_as_far_as_it_is_one() {
        let (path, file) = temporary("found");
        let map = Map::of_program(&file, 4096, 4 * 4096, true).expect("a mapping");
        let at = map.bytes(0, 1) as u64;
        let find = |from: u64, to: u64| Backing::find(me(), &(at + from..at + to), true);
        for _ in 0..2 {
            let found = find(5000, 9000).expect("its file");
            assert_eq!((found.start, found.len, found.within), (2 * 4096, 2 * 4096, 904));
            let again = Map::of_program(&found.file, found.start, found.len, true).expect("a mapping");
            again.write(found.within, b"here");
            assert_eq!(&map.read::<4>(5000), b"here");
            assert!(find(5000, 5 * 4096).is_none(), "behind its end");
            // The second time by the descriptor.
            let _ = std::fs::remove_file(&path);
        }
        file.set_len(4 * 4096).expect("the test's file");
        assert!(find(0, 3 * 4096).is_some() && find(0, 3 * 4096 + 1).is_none(), "behind the end of the file");
        let private = [0u8; 100];
        let private = private.as_ptr() as u64;
        assert!(Backing::find(me(), &(private..private + 100), true).is_none());
        assert!(Backing::find(me(), &(8..16), true).is_none());
    }

    #[test]
    fn what_may_only_be_read_is_not_opened_to_be_written() {
        let (path, file) = temporary("read");
        let map = Map::of_program(&file, 0, 4096, false).expect("a mapping");
        let at = map.bytes(0, 1) as u64;
        assert!(Backing::find(me(), &(at..at + 1), true).is_none());
        assert!(Backing::find(me(), &(at..at + 1), false).is_some());
        std::fs::remove_file(&path).expect("the test's file");
    }

    #[test]
    fn who_holds_a_lock_is_known_by_it() {
        let (path, file) = temporary("locked");
        assert!(!has_locked(me(), &file));
        let mut whole: libc::flock = libc::flock { l_type: libc::F_WRLCK as _, ..zeroed() };
        // SAFETY: a struct of the test, which outlives the call.
        let locked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &mut whole) };
        assert_eq!(locked, 0);
        assert!(has_locked(me(), &file) && !has_locked(1, &file));
        std::fs::remove_file(&path).expect("the test's file");
    }

    fn zeroed() -> libc::flock {
        // SAFETY: plain data, of which zeroes are valid.
        unsafe { std::mem::zeroed() }
    }
}
