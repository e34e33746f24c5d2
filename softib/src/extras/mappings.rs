//! Whether registered memory is still mapped as it was when it was registered (`SOFTIB_CHECK_MEMORY=1`, for tests).
//!
//! An adapter holds on to the pages that it was given: memory that is unmapped and mapped again is other memory to the program, and the
//! old one to the adapter. softib goes by addresses and would not see the difference. With the check on, a registration marks the
//! mappings of its memory (MADV_DONTDUMP, which is the flag `dd` in /proc/PID/smaps and changes nothing but core dumps); a mapping that is
//! made later does not have the mark. RDMA between registrations asks for the mark at both ends. A new registration of memory that has
//! lost its mark invalidates the older ones of it first, or the new mark would make them good again.
//!
//! The kernel is asked for a list of all mappings each time, which takes a millisecond: no mode to measure in. Contents that are dropped under a
//! mapping that stays (MADV_DONTNEED) are not seen, nor is what is sent and received, which is about pools of buffers.

use crate::fabric::check_memory;
use crate::shm::mrtable::Region;
use rdma_sys::IBV_ACCESS_ON_DEMAND;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::sync::OnceLock;

/// The mark as /proc/PID/smaps says it.
const MARK: &str = "dd";

/// Whether memory is checked at all.
pub fn are_checked() -> bool {
    static CHECKED: OnceLock<bool> = OnceLock::new();
    // What cannot be understood keeps the device from being opened.
    *CHECKED.get_or_init(|| check_memory().unwrap_or(false))
}

/// Marks the mappings of registered memory.
pub fn mark(addr: u64, len: u64) {
    if !are_checked() {
        return;
    }
    let range = pages(addr, len);
    // SAFETY: what core dumps contain changes no memory; where nothing is mapped the kernel refuses, and the check will, too.
    unsafe { libc::madvise(range.start as *mut _, (range.end - range.start) as usize, libc::MADV_DONTDUMP) };
}

/// Whether memory of a process is mapped as it was when it was registered; true if that is not checked. What is registered on demand
/// follows the mappings, on an adapter, too.
pub fn are_as_registered(pid: i32, region: &Region, addr: u64, len: u64) -> bool {
    let follows = region.access & IBV_ACCESS_ON_DEMAND != 0;
    !are_checked() || follows || len == 0 || are_marked(pid, pages(addr, len)).unwrap_or(false)
}

/// The same of this process' own memory. Which process that is costs a system call, and only the check needs it.
pub fn ours_are_as_registered(region: &Region, addr: u64, len: u64) -> bool {
    !are_checked() || are_as_registered(std::process::id().cast_signed(), region, addr, len)
}

/// Whether all of the range is mapped and marked.
fn are_marked(pid: i32, range: Range<u64>) -> std::io::Result<bool> {
    let list = BufReader::new(std::fs::File::open(format!("/proc/{pid}/smaps"))?);
    let (mut marked_to, mut mapping) = (range.start, 0..0);
    for line in list.lines() {
        let line = line?;
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if mapping.contains(&marked_to) && flags.split_whitespace().any(|flag| flag == MARK) {
                marked_to = mapping.end;
            }
        } else if let Some(addresses) = header(&line) {
            mapping = addresses;
        }
    }
    Ok(marked_to >= range.end)
}

/// The addresses that a mapping's first line begins with: "7f00-7f10 rw-p ...".
fn header(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

fn pages(addr: u64, len: u64) -> Range<u64> {
    const PAGE: u64 = 4096;
    addr & !(PAGE - 1)..addr.saturating_add(len).div_ceil(PAGE).saturating_mul(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(at: usize, len: usize) -> u64 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | if at != 0 { libc::MAP_FIXED } else { 0 };
        // SAFETY: a fresh mapping, or one in the place of one that this test has made.
        let place =
            unsafe { libc::mmap(at as *mut _, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(place, libc::MAP_FAILED);
        place as u64
    }

    #[test]
    fn a_mapping_that_was_made_again_in_any_part_has_lost_its_mark() {
        let pid = std::process::id() as i32;
        let at = map(0, 8 * 4096);
        let range = || pages(at + 100, 6 * 4096);
        assert!(!are_marked(pid, range()).expect("a list"), "marked from the start");
        // SAFETY: as `mark`, which does nothing unless the environment asks for it.
        unsafe { libc::madvise(at as *mut _, 8 * 4096, libc::MADV_DONTDUMP) };
        assert!(are_marked(pid, range()).expect("a list"));
        map(at as usize + 3 * 4096, 4096);
        assert!(!are_marked(pid, range()).expect("a list"));
        assert!(are_marked(pid, pages(at, 3 * 4096)).expect("a list"), "the part before it");
        // SAFETY: the test's own mapping.
        unsafe { libc::munmap(at as *mut _, 8 * 4096) };
        assert!(!are_marked(pid, pages(at, 4096)).expect("a list"), "nothing is there");
    }
}
