//! A peer's memory region that is mapped here, for it lies in the heap of the peer's segment, or in a file that its program has mapped.

use super::cells::{each_line_of, prefetch_to_write};
use super::copy::{copy, copy_out, copy_within_line, is_one_line, put_last, stream, write_in_order};
use super::keyed;
use super::layout::H_LIFE;
use super::liveness::Liveness;
use super::map::{Map, Word};
use super::mrtable::{Exposed, Watched};
use super::pace::WriterPace;
use super::ring::{SendRing, send_fence};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The region, as it was looked up, and its bytes.
#[derive(Debug)]
#[repr(C, align(64))] // what each write needs is in two cache lines
pub struct Mapped {
    /// Its row in the peer's table.
    pub row: Watched,
    /// Its first byte, as requests call it, and its bytes.
    addr: u64,
    len: u64,
    at: NonNull<u8>,
    /// Says to the peer which of its regions we work on; and whether its deregistration does not make us execute a fence.
    hazard: Word,
    fenced: bool,
    alive: u32,
    /// The peer's word of life, and what it is as long as it lives.
    life: Word,
    /// Where was written last.
    last: NonNull<u8>,
    map: Arc<Map>,
    /// How long pieces are written.
    pace: WriterPace,
}

const _: () = assert!(offset_of!(Mapped, pace) == 128, "two cache lines, and what long writes need");

// SAFETY: the bytes belong to a mapping that may be used from any thread; they are reached by copies only.
unsafe impl Send for Mapped {}

impl Mapped {
    /// The region that `exposed` is in the tables of `tables`, whose bytes begin at `within` of `map`, of a peer to which `ring` leads, and of whose
    /// life `live` tells.
    pub fn new(
        (tables, live): (&Arc<Map>, &Liveness),
        exposed: &Exposed,
        (map, within): (&Arc<Map>, usize),
        ring: &SendRing,
    ) -> Mapped {
        let (addr, len) = (exposed.region.addr, exposed.region.len);
        let at = map.place(within, len as usize);
        let is_file = exposed.shared == 0;
        Mapped {
            row: Watched::of(tables, exposed),
            addr,
            len,
            at,
            hazard: ring.hazard_word(),
            // The peer does not know which processes have mapped a file of its program, so its deregistration makes none execute a fence.
            fenced: is_file || ring.is_fenced(),
            life: tables.word(H_LIFE),
            alive: live.expected(),
            last: at,
            map: map.clone(),
            pace: WriterPace::default(),
        }
    }

    /// The peer lives, if one load says so.
    #[inline(always)]
    pub fn is_alive(&self) -> bool {
        self.alive != 0 && self.life.load(Ordering::Relaxed) == self.alive
    }

    /// Says that we work on it; whether it is as it was.
    #[inline(always)]
    pub fn begin(&self) -> bool {
        keyed::begin_with(&*self.hazard, self.row.key(), || send_fence(self.fenced));
        self.row.holds()
    }

    /// We do no more.
    #[inline(always)]
    pub fn end(&self) {
        keyed::end(&*self.hazard);
    }

    /// Of a file, asked behind a copy: it has been cut short, and what was copied may be lost.
    pub fn is_lost(&self) -> bool {
        self.map.is_lost_behind_copy()
    }

    /// Where `len` bytes are that requests call `addr`. None: they are not all in the region.
    #[inline(always)]
    pub fn place(&self, addr: u64, len: u32) -> Option<NonNull<u8>> {
        let within = addr.wrapping_sub(self.addr);
        let inside = within <= self.len && u64::from(len) <= self.len - within;
        // SAFETY: inside the region, all of which is mapped (checked when it was made).
        inside.then(|| unsafe { self.at.add(within as usize) })
    }

    /// Writes `len` bytes to a [place](Self::place) for so many, as an RDMA WRITE does: a reader that sees the last one sees all.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes. The peer has granted it.
    #[inline(always)]
    pub unsafe fn write(&self, from: *const u8, place: NonNull<u8>, len: u32) {
        // SAFETY: the place has `len` bytes of the mapping, and the caller vouches for as many at `from`.
        unsafe { write_in_order(from, place.as_ptr(), len as usize) }
    }

    /// The same of pieces, behind which there is a word, which is aligned at the peer.
    ///
    /// # Safety
    /// The pieces are readable, and [the place](Self::place) is for all bytes of them and the word. The peer has granted it.
    #[inline(always)]
    pub unsafe fn write_pieces(&self, pieces: [(*const u8, usize); 2], last: u64, place: NonNull<u8>) {
        let [(head, head_len), (body, body_len)] = pieces;
        let to = place.as_ptr();
        // SAFETY: the caller vouches for the pieces, and for the place, in which each begins behind the one before it and which ends behind the word,
        // which is aligned. Where both are in one line neither is longer than that.
        unsafe {
            if is_one_line(to, head_len + body_len) {
                copy_within_line(head, to, head_len);
                copy_within_line(body, to.add(head_len), body_len);
            } else {
                write_lines(pieces, to);
            }
            put_last(to.add(head_len + body_len).cast(), last)
        }
    }

    /// The same of long pieces, past the caches if that takes less time.
    ///
    /// # Safety
    /// As [`Self::write_pieces`].
    #[inline(never)]
    pub unsafe fn write_long(&mut self, pieces: [(*const u8, usize); 2], last: u64, place: NonNull<u8>) {
        let [(head, head_len), (body, body_len)] = pieces;
        // SAFETY: the caller vouches for the piece, and for the place of both and the word.
        let to = unsafe {
            copy(head, place.as_ptr(), head_len);
            place.as_ptr().add(head_len)
        };
        // SAFETY: the place is for both pieces and the word: the second piece begins behind the first, and the word, which is aligned, behind that.
        unsafe {
            self.pace.write(body_len as u32, |past| match past {
                true => stream(body, to, body_len),
                false => copy(body, to, body_len),
            });
            put_last(to.add(body_len).cast(), last);
        }
    }

    /// One write after the other: asks for the lines of the one behind the next, if it is as far on as this one was.
    #[inline(always)]
    pub fn expect_more(&mut self, place: NonNull<u8>, in_burst: bool) {
        let last = std::mem::replace(&mut self.last, place).as_ptr() as usize;
        if in_burst {
            let step = (place.as_ptr() as usize).wrapping_sub(last);
            prefetch_to_write(place.as_ptr().wrapping_add(step.wrapping_mul(2)));
        }
    }

    /// The same of all lines of a write of `len` bytes.
    #[inline]
    pub fn expect_as_long(&mut self, place: NonNull<u8>, len: usize, in_burst: bool) {
        let last = std::mem::replace(&mut self.last, place).as_ptr() as usize;
        if in_burst {
            let step = (place.as_ptr() as usize).wrapping_sub(last);
            if let Some(next) = NonNull::new(place.as_ptr().wrapping_add(step.wrapping_mul(2))) {
                each_line_of(next, len, prefetch_to_write);
            }
        }
    }
}

/// Writes pieces to a place that is in several lines.
///
/// # Safety
/// As [`Mapped::write_pieces`].
#[inline(never)] // the way of short ones stays short
unsafe fn write_lines(pieces: [(*const u8, usize); 2], mut to: *mut u8) {
    for (from, len) in pieces {
        // SAFETY: the caller vouches for the piece, and for the place, in which each begins behind the one before it.
        unsafe {
            copy_out(from, to, len);
            to = to.add(len);
        }
    }
}
