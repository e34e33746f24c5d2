//! The mapping of a process that some memory lies in (virtual memory area, in the kernel's words).
//!
//! Linux 6.11 tells of one that is asked for, by an ioctl(2) on /proc/PID/maps (PROCMAP_QUERY, `linux/fs.h`). What that file says as text is of all mappings, hundreds in
//! an MPI program, and to read it takes a hundred times as long: it is for older kernels. proc_pid_maps(5).

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::OnceLock;

/// A mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vma {
    /// Its addresses.
    pub range: Range<u64>,
    /// The process may read it.
    pub is_readable: bool,
    /// The process may write to it.
    pub is_writable: bool,
    /// What is written to it is the file's, or of all processes that have the mapping.
    pub is_shared: bool,
    /// Where in the file it begins.
    pub offset: u64,
    /// Device and inode of the file; 0: there is none.
    pub id: (u64, u64),
    /// The file's path, or what else the kernel calls it.
    pub path: OsString,
}

/// A file or folder of a process in /proc.
pub fn in_proc(pid: i32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

/// The kernel tells of one mapping.
pub fn can_be_asked() -> bool {
    static CAN_BE: OnceLock<bool> = OnceLock::new();
    let here = 0u8;
    let own = || Some(Question::at(&File::open("/proc/self/maps").ok()?, std::ptr::from_ref(&here) as u64));
    *CAN_BE.get_or_init(|| matches!(own(), Some(Ok(_))))
}

impl Vma {
    /// The one that all of `memory` of a process lies in.
    pub fn around(pid: i32, memory: &Range<u64>) -> Option<Vma> {
        let maps = File::open(in_proc(pid, "maps")).ok()?;
        let found =
            if can_be_asked() { Vma::asked(&maps, memory.start) } else { Vma::listed(maps, memory.start) };
        found.filter(|vma| vma.range.start <= memory.start && memory.end <= vma.range.end)
    }

    /// The one of an address, as the kernel answers.
    fn asked(maps: &File, addr: u64) -> Option<Vma> {
        let (vma, path) = Question::at(maps, addr).ok()?;
        let Question { start, end, rights, offset, inode, major, minor, .. } = vma;
        Some(Vma {
            range: start..end,
            is_readable: rights & Question::READABLE != 0,
            is_writable: rights & Question::WRITABLE != 0,
            is_shared: rights & Question::SHARED != 0,
            offset,
            id: (libc::makedev(major, minor), inode),
            path,
        })
    }

    /// The first one that ends behind an address, of the list.
    fn listed(maps: File, addr: u64) -> Option<Vma> {
        let lines = BufReader::new(maps).split(b'\n').map_while(Result::ok);
        lines.filter_map(|line| Vma::parse(&line)).find(|vma| vma.range.end > addr)
    }

    /// "7f10-7f20 rw-s 00001000 00:1b 363916    /dev/shm/name".
    fn parse(line: &[u8]) -> Option<Vma> {
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
        Some(Vma {
            range: hex(start)?..hex(end)?,
            is_readable: rights.starts_with('r'),
            is_writable: rights.get(1..2)? == "w",
            is_shared: rights.get(3..4)? == "s",
            offset: hex(offset)?,
            id: (libc::makedev(major.ok()?, minor.ok()?), inode.parse().ok()?),
            path: OsString::from_vec(path.to_vec()),
        })
    }
}

/// `struct procmap_query`.
#[derive(Debug, Default)]
#[repr(C)]
struct Question {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<Question>() == 104, "Linux 6.11's");

impl Question {
    const READABLE: u64 = 1;
    const WRITABLE: u64 = 2;
    const SHARED: u64 = 8;

    /// PROCMAP_QUERY.
    const ASK: libc::Ioctl = libc::_IOWR::<Question>(b'f' as u32, 17);

    /// The mapping of an address, answered, and its path.
    ///
    /// # Errors
    /// There is none there, or the kernel can't be asked.
    fn at(maps: &File, addr: u64) -> std::io::Result<(Question, OsString)> {
        let mut name = [0u8; libc::PATH_MAX as usize];
        let size = size_of::<Question>() as u64;
        let mut question = Question {
            size,
            addr,
            name_size: name.len() as u32,
            name: name.as_mut_ptr() as u64,
            ..Question::default()
        };
        // SAFETY: the struct that this call reads and fills, with the address and length of a buffer that outlives the call.
        if unsafe { libc::ioctl(maps.as_raw_fd(), Question::ASK, &mut question) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // The kernel ends it with a 0, and leaves the buffer alone where there is none.
        let path = CStr::from_bytes_until_nul(&name)
            .map_or(OsStr::new(""), |path| OsStr::from_bytes(path.to_bytes()));
        Ok((question, path.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_or_are_none() {
        let line =
            b"7f1f93efb000-7f1f93efc000 rw-s 00003000 00:1b 363916                     /dev/shm/a name";
        let vma = Vma::parse(line).expect("a line");
        assert_eq!((vma.range, vma.offset), (0x7f1f_93ef_b000..0x7f1f_93ef_c000, 0x3000));
        assert_eq!((vma.id, vma.path), ((libc::makedev(0, 0x1b), 363_916), "/dev/shm/a name".into()));
        assert!(vma.is_readable && vma.is_writable && vma.is_shared);
        let private = Vma::parse(b"55d0-55d1 r--p 00000000 00:00 0 ").expect("a line");
        assert!(private.is_readable && !private.is_writable && !private.is_shared && private.path.is_empty());
        for end in 0..44 {
            assert_eq!(Vma::parse(&line[..end]), None, "{end} bytes");
        }
        for bad in
            [&b"x-y rw-s 0 0:0 0"[..], b"1-2 \xff\xff\xff\xff 0 0:0 0", b"1-2 rw-s 0 00 0", b"1-2 rw 0 0:0 0"]
        {
            assert_eq!(Vma::parse(bad), None);
        }
    }

    #[test]
    fn the_kernel_answers_what_it_lists() {
        let maps = || File::open("/proc/self/maps").expect("our own mappings");
        let (stack, heap, code) = (0u8, Box::new(0u8), can_be_asked as fn() -> bool);
        let addrs = [&raw const stack as u64, &raw const *heap as u64, code as usize as u64, 8];
        for addr in addrs.into_iter().filter(|_| can_be_asked()) {
            let listed = Vma::listed(maps(), addr).filter(|vma| vma.range.contains(&addr));
            let asked = Vma::asked(&maps(), addr);
            assert_eq!(asked.is_some(), addr != 8);
            // The heap may grow in between.
            let but_end = |vma: Option<Vma>| vma.map(|vma| Vma { range: vma.range.start..addr, ..vma });
            assert_eq!(but_end(asked), but_end(listed), "{addr:#x}");
        }
    }
}
