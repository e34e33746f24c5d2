//! Which file the memory of another process is a mapping of.
//!
//! Memory that a program maps as shared (`MAP_SHARED`: shm_open(3), memfd_create(2), a file, huge pages) can be mapped by its peers, too. Which file it is,
//! and which part, the kernel says in /proc/PID/maps. The file is opened by its path; if that leads to another one by now, or to none, by the
//! mapping itself (/proc/PID/map_files, with CAP_CHECKPOINT_RESTORE), or by a descriptor of it that the process has (/proc/PID/fd). Anonymous
//! shared memory, and a file that has been removed and closed, can be had by the mapping only. proc_pid_maps(5), proc_pid_fd(5), proc_pid_map_files(5).
//!
//! A file counts if device and inode are those of the mapping. Device files are left alone: to open one may have effects.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
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
        let mapping = Mapping::around(pid, memory)?;
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
        let info = std::fs::read_to_string(folder_of(pid, "fdinfo").join(fd));
        info.is_ok_and(|info| info.contains("OFDLCK"))
    };
    descriptors(pid, (metadata.dev(), metadata.ino())).any(|fd| holds(&fd))
}

/// The numbers of a process' descriptors of a file, which is known by device and inode.
fn descriptors(pid: i32, id: (u64, u64)) -> impl Iterator<Item = OsString> {
    let entries = std::fs::read_dir(folder_of(pid, "fd")).into_iter().flatten().flatten();
    let is_it = move |path: &Path| {
        std::fs::metadata(path).is_ok_and(|data| data.is_file() && (data.dev(), data.ino()) == id)
    };
    entries.filter(move |entry| is_it(&entry.path())).map(|entry| entry.file_name())
}

fn folder_of(pid: i32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

/// A line of /proc/PID/maps.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mapping {
    range: Range<u64>,
    is_readable: bool,
    is_writable: bool,
    is_shared: bool,
    /// Where in the file it begins.
    offset: u64,
    /// Device and inode of the file; 0: there is none.
    id: (u64, u64),
    path: OsString,
}

impl Mapping {
    /// The one that all of `memory` lies in.
    fn around(pid: i32, memory: &Range<u64>) -> Option<Mapping> {
        let list = BufReader::new(File::open(folder_of(pid, "maps")).ok()?);
        let lines = list.split(b'\n').map_while(Result::ok);
        let found =
            lines.filter_map(|line| Mapping::parse(&line)).find(|one| one.range.end > memory.start)?;
        (found.range.start <= memory.start && memory.end <= found.range.end).then_some(found)
    }

    /// "7f10-7f20 rw-s 00001000 00:1b 363916    /dev/shm/name".
    fn parse(line: &[u8]) -> Option<Mapping> {
        let mut rest = line;
        let mut word = || {
            let begin = rest.iter().position(|byte| *byte != b' ')?;
            let end =
                rest[begin..].iter().position(|byte| *byte == b' ').map_or(rest.len(), |len| begin + len);
            let word = std::str::from_utf8(&rest[begin..end]).ok();
            rest = &rest[end..];
            word
        };
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (range, rights, offset, device, inode) = (word()?, word()?, word()?, word()?, word()?);
        let (start, end) = range.split_once('-')?;
        let (major, minor) = device.split_once(':')?;
        let [major, minor] = [major, minor].map(|text| u32::from_str_radix(text, 16));
        let path = rest.trim_ascii_start();
        Some(Mapping {
            range: hex(start)?..hex(end)?,
            is_readable: rights.starts_with('r'),
            is_writable: rights.get(1..2)? == "w",
            is_shared: rights.get(3..4)? == "s",
            offset: hex(offset)?,
            id: (libc::makedev(major.ok()?, minor.ok()?), inode.parse().ok()?),
            path: OsString::from_vec(path.to_vec()),
        })
    }

    /// Its file.
    fn open(&self, pid: i32, is_writable: bool) -> Option<File> {
        let Range { start, end } = self.range;
        let by_path = std::iter::once(PathBuf::from(&self.path));
        let by_mapping = std::iter::once(folder_of(pid, "map_files").join(format!("{start:x}-{end:x}")));
        let folder = folder_of(pid, "fd");
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
    fn lines_are_read_or_are_none() {
        let line =
            b"7f1f93efb000-7f1f93efc000 rw-s 00003000 00:1b 363916                     /dev/shm/a name";
        let mapping = Mapping::parse(line).expect("a line");
        assert_eq!((mapping.range, mapping.offset), (0x7f1f_93ef_b000..0x7f1f_93ef_c000, 0x3000));
        assert_eq!((mapping.id, mapping.path), ((libc::makedev(0, 0x1b), 363_916), "/dev/shm/a name".into()));
        assert!(mapping.is_readable && mapping.is_writable && mapping.is_shared);
        let private = Mapping::parse(b"55d0-55d1 r--p 00000000 00:00 0 ").expect("a line");
        assert!(private.is_readable && !private.is_writable && !private.is_shared && private.path.is_empty());
        for end in 0..44 {
            assert_eq!(Mapping::parse(&line[..end]), None, "{end} bytes");
        }
        for bad in
            [&b"x-y rw-s 0 0:0 0"[..], b"1-2 \xff\xff\xff\xff 0 0:0 0", b"1-2 rw-s 0 00 0", b"1-2 rw 0 0:0 0"]
        {
            assert_eq!(Mapping::parse(bad), None);
        }
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
