//! A mapped part of a segment: bounds-checked access to memory that another process may change at any time.
//!
//! Words are reached as atomics, bytes by copies; there is never a reference to plain data here. A
//! bound that does not hold is a bug of ours (offsets from peers are checked where they are
//! parsed), so it panics, and the guard of the C boundary turns that into an error.

use super::fault::{self, ALONE, Place};
use super::shortage;
use crate::errno::Errno;
use std::fs::File;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A shared, writable mapping of a part of a segment, or of a file of a program; unmapped on drop, absent in fork children.
#[derive(Debug)]
pub struct Map {
    base: NonNull<u8>,
    len: usize,
    /// What the handler of SIGBUS knows of it.
    place: &'static Place,
    /// The mapping of the segment's tables, if this is another part: it goes last ([`fault`]).
    tables: Option<Arc<Map>>,
}

// SAFETY: the mapping is plain memory owned by this value; every access goes through atomics or raw copies.
unsafe impl Send for Map {}
// SAFETY: a shared reference gives out atomics and addresses for raw copies only, which other threads and processes may race with.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `len` bytes of `file`.
    pub fn new(file: &File, len: usize) -> Result<Map, Errno> {
        let base = map(file, 0, len, true).map_err(|error| shortage::mapping(error, len))?;
        Map::guarded(base, len, None)
    }

    /// Maps `len` bytes of a file of a program from `start` on, both in whole pages of that file, to be written to or not: copies are all that it is
    /// for. None: it can't be mapped.
    pub fn of_program(file: &File, start: usize, len: usize, is_writable: bool) -> Option<Map> {
        let base = map(file, start, len, is_writable).ok()?;
        let Some(place) = fault::guard(base.as_ptr() as usize, len, ALONE) else {
            unmap(base, len);
            return None;
        };
        Some(Map { base, len, place, tables: None })
    }

    /// What was mapped here is gone (a file of a program that has been cut short).
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.place.is_lost()
    }

    /// The same, asked behind a copy: false if what was copied is surely of what was mapped here.
    #[inline]
    pub fn is_lost_behind_copy(&self) -> bool {
        // The handler may have run in the middle of the copy, or in another thread: nothing of the copy comes after this.
        fence(Ordering::SeqCst);
        self.is_lost()
    }

    /// Maps another part of the segment whose tables this mapping holds: `len` bytes of its `file` from `start`, which is a whole
    /// number of pages, on. Offsets in the part count from its start.
    pub fn part(self: &Arc<Map>, file: &File, start: usize, len: usize) -> Result<Map, Errno> {
        let base = map(file, start, len, true).map_err(|error| shortage::mapping(error, len))?;
        Map::guarded(base, len, Some(self.clone()))
    }

    fn guarded(base: NonNull<u8>, len: usize, tables: Option<Arc<Map>>) -> Result<Map, Errno> {
        let start = tables.as_ref().map_or(base, |tables| tables.base);
        match fault::guard(base.as_ptr() as usize, len, start.as_ptr() as usize) {
            Some(place) => Ok(Map { base, len, place, tables }),
            None => {
                unmap(base, len);
                Err(shortage::mapping(Errno::NOMEM, len))
            }
        }
    }

    /// The 32-bit word at `offset`, which must be aligned and inside.
    #[inline]
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset & 3 == 0 && offset < self.len);
        // SAFETY: aligned, and so all of it in bounds, as the length is a whole number of pages (checked above); lives as long as self; atomics tolerate other processes.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU32>() }
    }

    /// The 64-bit word at `offset`, which must be aligned and inside.
    #[inline]
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset & 7 == 0 && offset < self.len);
        // SAFETY: aligned, and so all of it in bounds, as the length is a whole number of pages (checked above); lives as long as self; atomics tolerate other processes.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// The address of `offset..offset + len`, for copies; valid while this mapping lives.
    #[inline]
    pub fn bytes(&self, offset: usize, len: usize) -> *mut u8 {
        // Both are far below the largest usize, so the sum does not wrap.
        assert!(offset | len < isize::MAX as usize && offset + len <= self.len);
        // SAFETY: in bounds (checked above).
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The same as a pointer that is known not to be null.
    pub fn place(&self, offset: usize, len: usize) -> NonNull<u8> {
        self.bytes(offset, len);
        // SAFETY: in bounds (checked above).
        unsafe { self.base.add(offset) }
    }

    /// Maps the pages of `offset..offset + len` for writing, if the kernel can (Linux 5.14); they have space. One by one, as they are written to first, each
    /// takes longer than a message.
    pub fn populate(&self, offset: usize, len: usize) {
        let page = offset & !4095;
        let at = self.bytes(page, offset - page + len);
        // SAFETY: the range is inside the mapping; mapping pages changes nothing in them.
        unsafe { libc::madvise(at.cast(), offset - page + len, libc::MADV_POPULATE_WRITE) };
    }

    /// The word at `offset`, for those who look at it often: it is checked once.
    pub fn word(self: &Arc<Map>, offset: usize) -> Word {
        Word { at: NonNull::from(self.u32(offset)), _map: self.clone() }
    }

    /// As many 64-bit words from `offset` on, for those who look at them often: they are checked once.
    pub fn words<const N: usize>(self: &Arc<Map>, offset: usize) -> Words<N> {
        self.bytes(offset, 8 * N);
        Words { at: NonNull::from(self.u64(offset)).cast(), _map: self.clone() }
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, data: &[u8]) {
        let to = self.bytes(offset, data.len());
        // SAFETY: bytes() checked the bounds; a slice of ours cannot overlap the mapping.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) }
    }

    /// Copies bytes out.
    pub fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut data = [0; N];
        // SAFETY: bytes() checked the bounds; the array is ours.
        unsafe { std::ptr::copy_nonoverlapping(self.bytes(offset, N), data.as_mut_ptr(), N) };
        data
    }
}

/// Words of a mapping that are looked at often, together.
#[derive(Debug)]
pub struct Words<const N: usize> {
    at: NonNull<[AtomicU64; N]>,
    _map: Arc<Map>,
}

// SAFETY: atomics of a mapping that may be used from any thread.
unsafe impl<const N: usize> Send for Words<N> {}

impl<const N: usize> Deref for Words<N> {
    type Target = [AtomicU64; N];

    #[inline]
    fn deref(&self) -> &[AtomicU64; N] {
        // SAFETY: made of words inside the mapping, which lives as long as self.
        unsafe { self.at.as_ref() }
    }
}

/// A word of a mapping, which it keeps alive.
#[derive(Debug)]
pub struct Word {
    at: NonNull<AtomicU32>,
    _map: Arc<Map>,
}

// SAFETY: an atomic of a mapping that may be used from any thread.
unsafe impl Send for Word {}

impl Deref for Word {
    type Target = AtomicU32;

    #[inline]
    fn deref(&self) -> &AtomicU32 {
        // SAFETY: made from a reference into the mapping, which lives as long as self.
        unsafe { self.at.as_ref() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // It is the one that was filled in for this mapping.
        let _ = self.place.give_back(self.base.as_ptr() as usize);
        unmap(self.base, self.len);
        // The tables, if these were not they, go after it.
        self.tables = None;
    }
}

/// Takes a mapping of ours away, of which nothing is used any more.
fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the caller made the mapping, and nothing borrowed from it is left.
    unsafe { libc::munmap(base.as_ptr().cast(), len) };
}

/// Maps `len` bytes of a file from `start` on.
fn map(file: &File, start: usize, len: usize, is_writable: bool) -> Result<NonNull<u8>, Errno> {
    let prot = if is_writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let flags = libc::MAP_SHARED;
    let (fd, start) = (file.as_raw_fd(), start as libc::off_t);
    // SAFETY: a fresh mapping at an address the kernel chooses; no existing memory is affected.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, start) };
    if base == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    // SAFETY: base..base+len was mapped just now. Both calls are hints: failure changes nothing we rely on.
    unsafe {
        libc::madvise(base, len, libc::MADV_DONTFORK);
        libc::madvise(base, len, libc::MADV_DONTDUMP);
    }
    NonNull::new(base.cast()).ok_or(Errno::NOMEM)
}
