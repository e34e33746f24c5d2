//! The code of the start, unmapped when it has run.
//!
//! Most of the code that runs before the end of MPI_Init runs once. Its pages stay mapped, and count as the resident memory of each process. So
//! when the first peers have been added, the pages of the plugin's file are unmapped (madvise(2), MADV_DONTNEED). They stay in the file cache;
//! what runs again is mapped again, 64 KiB at a time, without a look at the file.
//!
//! ```text
//!   PT_LOAD  r--   names, constants, unwinding     unmapped
//!            r-x   code                            unmapped
//!            rw-   what has been relocated, data   this process' own
//! ```
//! A page of code that is no longer the file's has a breakpoint in it, of a debugger or of a probe of the kernel, which would be lost: then
//! the pages stay.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Once;

/// The start is over.
pub fn is_over() {
    static ONCE: Once = Once::new();
    ONCE.call_once(unmap_all);
}

/// What runs from here on stands together (xtask/src/order.rs).
#[inline(never)]
fn unmap_all() {
    own_segments().into_iter().for_each(unmap_if_files);
}

fn unmap_if_files(pages: Range<usize>) {
    match unmap(pages) {
        Ok(true) => {}
        Ok(false) => log::debug!("the code of the start stays mapped: some of it has been written to"),
        Err(error) => log::debug!("the code of the start stays mapped: {error}"),
    }
}

/// The pages of this code's file that are not written to, by its program headers.
fn own_segments() -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    // SAFETY: `visit` is called before this returns, with the pointer to `found`, which lives longer.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    found
}

/// Writes down the segments of the object that holds this function, and ends the search there.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr(3) hands over an object's description, which it may not change or unload meanwhile.
    let (base, headers) = unsafe {
        let info = &*info;
        (info.dlpi_addr as usize, std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()))
    };
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let segments = loaded.map(|header| (pages_of(base, header), header.p_flags & libc::PF_W == 0));
    let segments: Vec<(Range<usize>, bool)> = segments.collect();
    if !segments.iter().any(|(pages, _)| pages.contains(&(visit as *const c_void as usize))) {
        return 0;
    }
    // SAFETY: `own_segments` has given this pointer, to a vector that only this call uses now.
    let found = unsafe { &mut *found.cast::<Vec<Range<usize>>>() };
    found.extend(segments.into_iter().filter_map(|(pages, is_constant)| is_constant.then_some(pages)));
    1
}

/// Whole pages: the first one may begin with the end of the segment before, of the same file.
fn pages_of(base: usize, header: &libc::Elf64_Phdr) -> Range<usize> {
    let (begin, size) = (base + header.p_vaddr as usize, page_size());
    begin & !(size - 1)..(begin + header.p_memsz as usize).next_multiple_of(size)
}

fn page_size() -> usize {
    // SAFETY: takes a number, returns one.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Unmaps a file's pages until they are used again; not if one of them is a copy of this process' own: `false`.
fn unmap(pages: Range<usize>) -> io::Result<bool> {
    if !are_files(&entries(&pages)?) {
        return Ok(false);
    }
    // SAFETY: the pages are those of a mapping of a file, and equal to the file's, so what is read there later is the same.
    match unsafe { libc::madvise(pages.start as *mut c_void, pages.len(), libc::MADV_DONTNEED) } {
        0 => Ok(true),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What the kernel says of each page (/proc/self/pagemap, Documentation/admin-guide/mm/pagemap.rst).
fn entries(pages: &Range<usize>) -> io::Result<Vec<u64>> {
    const ENTRY: usize = size_of::<u64>();
    let mut bytes = vec![0; pages.len() / page_size() * ENTRY];
    File::open("/proc/self/pagemap")?
        .read_exact_at(&mut bytes, (pages.start / page_size() * ENTRY) as u64)?;
    Ok(bytes
        .chunks_exact(ENTRY)
        .map(|entry| entry.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)))
        .collect())
}

/// None is in memory, or swapped out, but as a page of a file.
fn are_files(entries: &[u64]) -> bool {
    const OF_A_FILE: u64 = 1 << 61;
    entries.iter().all(|entry| entry & (PRESENT | SWAPPED) == 0 || entry & OF_A_FILE != 0)
}

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    const PAGES: usize = 40;

    /// A private mapping of a file of [`PAGES`] pages, each of which has been read.
    fn mapping(name: &str) -> Range<usize> {
        let path = std::env::temp_dir().join(format!("oxib-startup-{}-{name}", std::process::id()));
        std::fs::write(&path, vec![7; PAGES * page_size()]).expect("a file");
        let file = File::open(&path).expect("the file");
        std::fs::remove_file(&path).expect("its name");
        let (len, access) = (PAGES * page_size(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let pages = at as usize..at as usize + len;
        assert_eq!(read(&pages), 7 * PAGES);
        pages
    }

    fn read(pages: &Range<usize>) -> usize {
        // SAFETY: the first byte of a page of the mapping.
        let byte = |at: usize| unsafe { std::ptr::read_volatile(at as *const u8) };
        pages.clone().step_by(page_size()).map(|at| usize::from(byte(at))).sum()
    }

    fn present(pages: &Range<usize>) -> usize {
        entries(pages).expect("pagemap").iter().filter(|entry| *entry & PRESENT != 0).count()
    }

    #[test]
    fn pages_of_a_file_are_unmapped_and_are_there_again_when_they_are_used() {
        let pages = mapping("read");
        assert_eq!(present(&pages), PAGES);
        assert!(unmap(pages.clone()).expect("madvise"));
        assert_eq!(present(&pages), 0);
        assert_eq!(read(&pages), 7 * PAGES);
    }

    #[test]
    fn with_a_page_that_was_written_to_all_stay() {
        let pages = mapping("written");
        // SAFETY: a byte of the mapping, which may be written.
        unsafe { std::ptr::write_volatile((pages.start + 3 * page_size()) as *mut u8, 9) };
        assert!(!unmap(pages.clone()).expect("a look"));
        assert_eq!((present(&pages), read(&pages)), (PAGES, 7 * PAGES + 2));
    }

    #[test]
    fn the_own_code_is_in_a_segment_that_is_found_and_goes_on_when_it_is_unmapped() {
        let segments = own_segments();
        let here = is_over as *const c_void as usize;
        assert!(segments.iter().any(|pages| pages.contains(&here)), "{segments:x?}");
        is_over();
        assert_eq!(own_segments(), segments);
    }
}
