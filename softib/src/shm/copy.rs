//! Copies of payloads. Short ones are what latency is made of: two or four overlapping words instead of a call.

use std::sync::atomic::{Ordering, fence};

/// Copies `len` bytes.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller vouches for `len` readable bytes at `from` and `len` writable ones at
    // `to`, without overlap.
    unsafe {
        match len {
            0..=SHORT => copy_short(from, to, len),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// How many bytes of an RDMA WRITE of `len` bytes to `to` are written before the rest: all but what lies in its last aligned word. Programs
/// poll the last byte of a message and then read all of it (openib's eager RDMA, DAPL's dtest), or poll a word that is written as
/// a whole; memory is written in order of address by adapters, by neither memcpy(3) nor the kernel.
#[inline(always)]
pub fn body(to: u64, len: usize) -> usize {
    let word = to.wrapping_add(len as u64).saturating_sub(1) & !7;
    word.saturating_sub(to) as usize
}

/// Copies as an RDMA WRITE does: a reader that sees the last byte sees all of them.
///
/// # Safety
/// As [`copy`], but for readers of `to` in other threads and processes, who read what they polled for.
#[inline(always)]
pub unsafe fn write_in_order(from: *const u8, to: *mut u8, len: usize) {
    let body = body(to as u64, len);
    // SAFETY: both parts lie inside the `len` bytes that the caller vouches for.
    unsafe {
        copy_out(from, to, body);
        fence(Ordering::Release);
        match len - body {
            8 => to.add(body).cast::<u64>().write_volatile(from.add(body).cast::<u64>().read_unaligned()),
            rest => (body..body + rest).for_each(|at| to.add(at).write_volatile(*from.add(at))),
        }
    }
}

/// Writes the last word of what a reader polls for: who sees it sees all that was written before it.
///
/// # Safety
/// `to` is writable and aligned; readers in other threads and processes see it whole.
#[inline(always)]
pub unsafe fn put_last(to: *mut u64, word: u64) {
    fence(Ordering::Release);
    // SAFETY: as the caller promises.
    unsafe { to.write_volatile(word) }
}

/// Whether [`stream`] does what it says here.
pub const STREAMS: bool = cfg!(target_arch = "x86_64");

/// Copies `len` bytes past the caches: straight to memory, with no line taken from another processor that has it. A store behind it is not seen
/// before them. What is not all of a line is written through the caches.
///
/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
pub unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const WORD: usize = size_of::<__m128i>();
    let first = to.align_offset(LINE).min(len);
    let end = first + (len - first) / WORD * WORD;
    // SAFETY: all pieces lie inside the `len` bytes that the caller vouches for; from `first` on, places of whole words are aligned. Every x86-64
    // processor has SSE2.
    unsafe {
        copy_short(from, to, first);
        for at in (first..end).step_by(WORD) {
            _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast()));
        }
        copy_short(from.add(end), to.add(end), len - end);
        _mm_sfence();
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// As [`copy`]: there is no other way.
///
/// # Safety
/// As [`copy`].
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe { copy(from, to, len) }
}

/// Up to here [`copy`] makes no call. memcpy(3) is faster with more.
pub const SHORT: usize = 128;

/// Copies `len` bytes without a call: the code around it keeps what it has in registers.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
pub unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: every word lies inside the first `len` bytes of both sides, by the arms' bounds; the caller vouches for them.
    unsafe {
        match len {
            8..=15 => ends::<u64>(from, to, len),
            16..=32 => ends::<u128>(from, to, len),
            33..=64 => {
                ends::<u128>(from.add(len - 32), to.add(len - 32), 32);
                ends::<u128>(from, to, 32);
            }
            65.. => {
                let last = len - LINE;
                (0..last).step_by(LINE).for_each(|at| copy_line(from.add(at), to.add(at)));
                copy_line(from.add(last), to.add(last));
            }
            4..=7 => ends::<u32>(from, to, len),
            2..=3 => ends::<u16>(from, to, len),
            1 => *to = *from,
            0 => {}
        }
    }
}

/// A copy of up to so many bytes to what another processor polls goes [by lines](copy_by_lines); memcpy(3) aligns longer ones.
const BY_LINES: usize = 2048;

/// As [`copy`], to memory that another processor may poll.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
pub unsafe fn copy_out(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        match len {
            0..=BY_LINES => copy_by_lines(from, to, len),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// The same of what fits a cell. Short ones are in the two lines that each look of its reader asks for, and gain nothing: 64 and 100 bytes take up to
/// 1.1 of the time by lines.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
pub unsafe fn copy_to_cell(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        match len {
            0..=SHORT => copy_short(from, to, len),
            _ => copy_by_lines(from, to, len),
        }
    }
}

/// Copies `len` bytes with no store that reaches into two cache lines: such a store needs both at the same time, while who polls them takes back
/// one or the other (up to half of the time of a message of 130 to 250 bytes).
///
/// # Safety
/// As [`copy`].
#[inline(always)]
pub unsafe fn copy_by_lines(from: *const u8, to: *mut u8, len: usize) {
    let first = to.align_offset(LINE);
    // SAFETY: all parts lie inside the `len` bytes that the caller vouches for.
    unsafe {
        if len <= first {
            return copy_short(from, to, len);
        }
        copy_short(from, to, first);
        let mut at = first;
        while len - at >= LINE {
            copy_line(from.add(at), to.add(at));
            at += LINE;
        }
        copy_short(from.add(at), to.add(at), len - at);
    }
}

/// All `len` bytes at `to` are in one cache line.
#[inline(always)]
pub fn is_one_line(to: *const u8, len: usize) -> bool {
    to.addr() % LINE + len <= LINE
}

/// Copies `len` bytes, no more than a line has.
///
/// # Safety
/// As [`copy`], and `len` is [`LINE`] at most.
#[inline(always)]
pub unsafe fn copy_within_line(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        std::hint::assert_unchecked(len <= LINE);
        copy_short(from, to, len);
    }
}

/// Copies as many bytes as a line has.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
unsafe fn copy_line(from: *const u8, to: *mut u8) {
    const HALF: usize = LINE / 2;
    // SAFETY: both halves lie inside the line's bytes that the caller vouches for.
    unsafe {
        ends::<u128>(from, to, HALF);
        ends::<u128>(from.add(HALF), to.add(HALF), HALF);
    }
}

/// As [`copy_short`], of 8 to 16 bytes.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
pub unsafe fn copy_words(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe { ends::<u64>(from, to, len) }
}

/// Copies the first and the last word of `len` bytes, which may overlap.
///
/// # Safety
/// As `copy`, and `len` is between one word and two.
#[inline(always)]
unsafe fn ends<T: Copy>(from: *const u8, to: *mut u8, len: usize) {
    let last = len - size_of::<T>();
    // SAFETY: both words lie inside the first `len` bytes; unaligned accesses are asked for as such.
    unsafe {
        let (first, second) =
            (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
        to.add(last).cast::<T>().write_unaligned(second);
        to.cast::<T>().write_unaligned(first);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        LINE, body, copy, copy_out, copy_to_cell, copy_within_line, is_one_line, stream, write_in_order,
    };

    #[test]
    fn the_last_aligned_word_is_written_after_the_rest_and_a_word_is_not_divided() {
        assert_eq!([body(64, 8), body(64, 1), body(64, 4), body(64, 0)], [0, 0, 0, 0]);
        assert_eq!([body(64, 9), body(64, 16), body(67, 16), body(64, 4096)], [8, 8, 13, 4088]);
        let from: Vec<u8> = (0..200).map(|i| i as u8 ^ 0x5a).collect();
        for (len, at) in (0..=100).flat_map(|len| [(len, 0), (len, 3)]) {
            let mut to = [0xffu8; 200];
            // SAFETY: both are 200 bytes, and separate.
            unsafe { write_in_order(from.as_ptr().add(5), to.as_mut_ptr().add(at), len) };
            assert_eq!(to[at..at + len], from[5..5 + len], "{len}");
            assert!(to[..at].iter().chain(&to[at + len..]).all(|b| *b == 0xff), "{len}");
        }
    }

    const ROOM: usize = 2560;

    #[repr(align(64))]
    struct Lines([u8; ROOM]);

    /// So many bytes, copied to where a line has `at` bytes before it, are what they were, and nothing around them has changed.
    fn is_exact(copy: unsafe fn(*const u8, *mut u8, usize), len: usize, at: usize) {
        let from: Vec<u8> = (0..ROOM).map(|i| (i % 251) as u8 ^ 0x5a).collect();
        let mut to = Lines([0xff; ROOM]);
        assert!(len.max(at) + 3 <= ROOM && at + len <= ROOM);
        // SAFETY: both have that many bytes (checked above), and are separate.
        unsafe { copy(from.as_ptr().add(3), to.0.as_mut_ptr().add(at), len) };
        assert_eq!(to.0[at..at + len], from[3..3 + len], "{len} at {at}");
        assert!(to.0[..at].iter().chain(&to.0[at + len..]).all(|b| *b == 0xff), "{len} at {at}");
    }

    #[test]
    fn what_is_copied_past_the_caches_is_exact_too() {
        for (len, at) in (0..=250).flat_map(|len| [0, 16, 19, 63].map(|at| (len, at))) {
            is_exact(stream, len, at);
        }
    }

    #[test]
    fn what_is_copied_line_by_line_is_exact_too() {
        let lengths = (0..=300).chain([2047, 2048, 2049, 2200]);
        for (len, at) in lengths.flat_map(|len| [0, 1, 34, 56, 63].map(|at| (len, at))) {
            is_exact(copy_out, len, at);
            is_exact(copy_to_cell, len, at);
        }
    }

    #[test]
    fn what_is_in_one_line_is_known_and_copied_exactly() {
        let to = Lines([0; ROOM]);
        for (len, at) in (0..=LINE).flat_map(|len| [0, 7, 42, 63].map(|at| (len, at))) {
            let is_one = is_one_line(to.0.as_ptr().wrapping_add(at), len);
            assert_eq!(is_one, at + len <= LINE, "{len} at {at}");
            if is_one {
                is_exact(copy_within_line, len, at);
            }
        }
    }

    #[test]
    fn every_length_is_copied_exactly() {
        let from: Vec<u8> = (0..200).map(|i| i as u8 ^ 0x5a).collect();
        for len in 0..=150 {
            let mut to = [0xffu8; 200];
            // SAFETY: both are 200 bytes, and separate.
            unsafe { copy(from.as_ptr().add(3), to.as_mut_ptr().add(1), len) };
            assert_eq!(to[1..1 + len], from[3..3 + len], "{len}");
            assert!(to[0] == 0xff && to[1 + len..].iter().all(|b| *b == 0xff), "{len}");
        }
    }
}
