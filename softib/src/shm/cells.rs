//! The cells of one ring, in a mapped segment: their bounds are checked once, when the ring is claimed or adopted.
//!
//! ```text
//!   cell 511 | ... | cell 16 | cell 15 | ... | cell 0 | control block          16 are used at first, then twice as many, again and again
//! ```
//!
//! A cell is eight cache lines, of which a message takes as many as it needs. Both ends know which cell it will be next, so the receiver asks
//! for the second line while it looks for the tag in the first, for those behind it if the message before had them, and the sender writes the
//! first line last: all of them travel at the same time.
//!
//! A line is written fastest by the sender when the receiver's cache is its only owner: for a line
//! that both caches share, all caches have to be asked, and a cell of a lap ago is shared. So a
//! receiver that waits makes the cell its own first ([`Cell::acquire`]): a message between
//! neighbouring cores takes 10 to 20 ns less.

use super::cell::{Begin, CELL_HEAD, Head, VIA_AT, Via};
use super::handover;
use super::layout::{CELL, CELLS, CELLS_FIRST, CELLS_LEN, CONTROL};
use super::map::Map;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The cells of a ring that are in use, by sequence number.
#[derive(Debug)]
pub struct Cells {
    first: NonNull<u8>,
    /// One less than are in use.
    mask: u32,
    /// What is added to a sequence number to make it an index.
    shift: u32,
    _map: Arc<Map>,
}

// SAFETY: the memory belongs to the mapping, which may be used from any thread and lives as long as this value.
unsafe impl Send for Cells {}

/// One cell.
#[derive(Debug, Clone, Copy)]
pub struct Cell<'a> {
    at: NonNull<u8>,
    of: PhantomData<&'a Cells>,
}

impl Cells {
    /// The cells of the ring that is mapped in `ring`, the first [`CELLS_FIRST`] of them in use.
    pub fn new(ring: &Arc<Map>) -> Cells {
        ring.place(CONTROL - CELLS_LEN, CELLS_LEN);
        let first = ring.place(CONTROL - CELL, CELL);
        Cells { first, mask: CELLS_FIRST as u32 - 1, shift: 0, _map: ring.clone() }
    }

    /// How many are in use.
    #[inline]
    pub fn count(&self) -> u32 {
        self.mask + 1
    }

    /// There are some that are not in use.
    pub fn can_double(&self) -> bool {
        self.count() < CELLS as u32
    }

    /// Twice as many are in use from the cell of number `next` on, which is the first of the new half. Not more than there are.
    pub fn double(&mut self, next: u32) {
        if self.can_double() {
            self.shift = self.count().wrapping_sub(next);
            self.mask = 2 * self.mask + 1;
        }
    }

    /// The cell of a sequence number.
    #[inline]
    pub fn at(&self, seq: u32) -> Cell<'_> {
        let index = (seq.wrapping_add(self.shift) & self.mask) as usize;
        // SAFETY: the mask is less than CELLS, and as many cells lie in front of the control block inside the mapping (checked by new).
        Cell { at: unsafe { self.first.sub(index * CELL) }, of: PhantomData }
    }
}

impl<'a> Cell<'a> {
    /// Whether it holds what comes after `seq` others.
    #[inline]
    pub fn is_filled(&self, seq: u32) -> bool {
        handover::is_filled(self.tag(), seq)
    }

    /// Makes what has been written visible as what comes after `seq` others.
    #[inline]
    pub fn mark(&self, seq: u32) {
        handover::mark(self.tag(), seq);
    }

    /// The word that says which message the cell holds.
    #[inline]
    pub fn tag(&self) -> &'a AtomicU32 {
        // SAFETY: a cell starts with its tag and is 128-byte aligned; atomics tolerate other processes.
        unsafe { self.at.cast::<AtomicU32>().as_ref() }
    }

    /// What has been written behind the tag, word by word: it stays in registers.
    #[inline(always)]
    pub fn head(&self) -> Head {
        // SAFETY: inside the cell, 4-aligned; plain data, valid for any bytes. The sender does not touch a published cell; if a
        // broken one does, we have one copy, which the caller checks.
        let word = |i: usize| unsafe { self.at.add(4 + 4 * i).cast::<u32>().read_volatile() };
        Head::from_words([word(0), word(1), word(2), word(3), word(4)])
    }

    /// Writes the head behind the tag, in words from registers: a copy of the struct would wait for the stores of its fields.
    #[inline]
    pub fn emit(&self, head: Head) {
        for (i, word) in head.words().into_iter().enumerate() {
            // SAFETY: inside the cell, 4-aligned; the caller owns the cell until it is marked.
            unsafe { self.at.add(4 + 4 * i).cast::<u32>().write_volatile(word) };
        }
    }

    /// Writes what an XRC message goes through.
    #[inline(always)]
    pub fn emit_via(&self, via: Via) {
        // SAFETY: inside the cell, 8-aligned; the caller owns the cell until it is marked.
        unsafe { self.at.add(VIA_AT).cast::<u64>().write_volatile(via.word()) };
    }

    /// What has been written there, if anything has: of any cell.
    #[inline(always)]
    pub fn via(&self) -> Via {
        // SAFETY: inside the cell, 8-aligned; any value is valid.
        Via::of_word(unsafe { self.at.add(VIA_AT).cast::<u64>().read_volatile() })
    }

    /// Writes when its payload is begun to be written, or that this is not said.
    pub fn emit_begin(&self, begin: Option<Begin>) {
        // SAFETY: inside the cell, 8-aligned; the caller owns the cell until it is marked.
        unsafe { self.at.add(CELL_HEAD).cast::<u64>().write_volatile(begin.map_or(0, Begin::word)) };
    }

    /// What has been written there, if anything has: of a cell that has been found filled.
    pub fn begin(&self) -> Option<Begin> {
        // SAFETY: inside the cell, 8-aligned; any value is valid.
        Begin::of_word(unsafe { self.at.add(CELL_HEAD).cast::<u64>().read_volatile() })
    }

    /// The inline part, `INLINE_MAX` bytes.
    #[inline]
    pub fn payload(&self) -> *mut u8 {
        // SAFETY: inside the cell.
        unsafe { self.at.add(CELL_HEAD).as_ptr() }
    }

    /// Makes this processor's cache the only one that has the first two lines. Nothing in them changes, even while their sender writes: each
    /// word is replaced by itself, atomically. That takes its time for each, one after the other.
    pub fn acquire(&self) {
        for line in (0..2).rev() {
            // SAFETY: the first word of a line of the cell, aligned; atomics tolerate other processes.
            let word = unsafe { self.at.add(line * LINE).cast::<AtomicU32>().as_ref() };
            let now = word.load(Ordering::Relaxed);
            let _ = word.compare_exchange(now, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Asks for the first line, to be written to.
    #[inline(always)]
    pub fn prefetch_to_write(&self) {
        prefetch_to_write(self.at.as_ptr());
    }

    /// Asks for the first line.
    #[inline(always)]
    pub fn prefetch_first(&self) {
        prefetch(self.at.as_ptr());
    }

    /// Asks for the second line.
    #[inline(always)]
    pub fn prefetch(&self) {
        prefetch_second(self.tag());
    }

    /// Asks for the lines behind the second that a payload of `len` bytes has.
    #[inline(always)]
    pub fn prefetch_rest(&self, len: u32) {
        self.each_of_the_rest(len, prefetch);
    }

    /// The same, to be written to.
    #[inline(always)]
    pub fn prefetch_rest_to_write(&self, len: u32) {
        self.each_of_the_rest(len, prefetch_to_write);
    }

    #[inline(always)]
    fn each_of_the_rest(&self, len: u32, ask: impl Fn(*const u8)) {
        for line in 2..lines(len) {
            // SAFETY: inside the cell, which has as many lines as `lines` says at most.
            ask(unsafe { self.at.add(line * LINE).as_ptr() });
        }
    }
}

/// Asks for the second line of the cell with this tag.
#[inline(always)]
pub fn prefetch_second(tag: &AtomicU32) {
    prefetch(std::ptr::from_ref(tag).wrapping_byte_add(LINE));
}

/// Asks for the line at an address, which need not be valid: a hint.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint has no effect on memory.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks for the line at an address, which need not be valid, as its only owner: a hint.
#[inline(always)]
pub fn prefetch_to_write<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint has no effect on memory; processors that lack the instruction take it for a NOP.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks for each line of `len` bytes that begin at a line's start.
#[inline(always)]
pub fn each_line(at: *const u8, len: u32, ask: impl Fn(*const u8)) {
    for line in 0..len.div_ceil(LINE as u32) {
        ask(at.wrapping_add(line as usize * LINE));
    }
}

/// Asks for each line that has some of `len` bytes.
#[inline(always)]
pub fn each_line_of(at: NonNull<u8>, len: usize, ask: impl Fn(*const u8)) {
    let within = at.addr().get() % LINE;
    each_line(at.as_ptr().wrapping_sub(within), (within + len) as u32, ask);
}

/// Lines of a cell that a payload of `len` bytes takes; no more than it has.
#[inline(always)]
fn lines(len: u32) -> usize {
    (CELL_HEAD + len as usize).div_ceil(LINE).min(CELL / LINE)
}

/// A cache line.
pub const LINE: usize = 64;

/// Fewest bytes of a payload that goes beyond the second line of its cell.
pub const LONG: u32 = (2 * LINE - CELL_HEAD + 1) as u32;

const _: () = assert!(CELL.is_multiple_of(LINE) && CELL >= 2 * LINE);
const _: () = assert!(CELLS_LEN == CELLS * CELL && CELLS_LEN <= CONTROL);
