//! One ring per ordered pair of processes, in the receiver's segment.
//!
//! ```text
//!   cells    512 x 128 B    | tag | head | 96 bytes inline payload |   (`super::cell`, `super::cells`)
//!   control  2 x 64 B       the receiver watches; how far it has read
//!   bulk     256 K or 1 MiB payload that does not fit a cell, contiguous, in the order of the cells
//! ```
//!
//! The sender fills a cell and stores its tag last (release). A tag is the cell's sequence number plus one and sits
//! at every cell's start, so stale bytes can't look valid. The receiver never changes cells; it publishes
//! how far it has read every quarter of the ring, and the sender looks there only when the ring seems full.
//!
//! A ring that the receiver does not watch is announced by its sender in the inbound bitmap. The hand-over is
//! store-fence-load on both sides: the sender stores the tag, then loads `watched`; the receiver stores `watched = 0`,
//! then looks at the ring once more. One of them sees the other. The sender's fence is left out when both sides are
//! registered for membarrier, which the receiver then issues (`tests/handover.rs` models the fenced form).
//!
//! Bulk offsets are not transmitted: both sides derive them from the lengths by the rule in [`bulk_start`].
//!
//! Only a part of cells and bulk is used at first, and again and again, so that it stays in the caches, and a peer with little to say
//! takes little memory: 16 cells and 1 KiB. A sender that finds all of it unread doubles the part; of the bulk, up to what a busy ring uses
//! ([`BULK_BUSY`]), also one that comes to the end of what it knows to be free. The next cell, or payload, is then the first of the new half,
//! which nothing has used before:
//!
//! ```text
//!   cells   op MORE_CELLS in the last free cell; the next cell is the first of the second half
//!   bulk    flag WIDER at a payload, which begins the second half of what is used then ([`wider`]); it takes space of the file
//!           system only then, beyond what each ring has
//! ```
//!
//! What of the former part has not been read yet lies by the old rule, so the sender stays in the new half until it has.

use super::cell::{Found, Head, INLINE_MAX, flag, op};
use super::cells::{Cells, each_line, prefetch, prefetch_to_write};
use super::copy::copy_short;
use super::handover;
use super::keyed;
use super::layout::*;
use super::map::{Map, Word};
use super::parts::Inlets;
use super::shortage;
use super::shortage::take_space;
use super::space::{allocate, free_space, give_space};
use crate::errno::Errno;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

/// Longest payload of one cell with bulk.
pub const FRAGMENT_MAX: usize = 32 << 10;
/// What of the bulk is used at first.
pub const BULK_FIRST: u32 = 1 << 10;
/// What of the bulk a ring comes to use without its being unread: with the cells half of a processor's first cache. Of more than that, what
/// goes round is out of it when it comes again, and a message of 200 bytes to 4 KiB takes twice as long.
const BULK_BUSY: u32 = 8 << 10;

/// In a burst a cell is asked for when the one so many before it has been written, or read: it is in the other side's cache, and a message
/// takes less time than the way from there. Where one side waits for the other, that would take the cell away from it.
const CELLS_AHEAD: u32 = 2;

/// A payload up to here is written line by line, so its lines are asked for before. memcpy(3) writes longer ones in another way, in which whole
/// lines are taken over without being read.
const COPIED: u32 = 2048;

/// A receiver that waits asks for the lines of the next payload again and again, as it does for the next cell, if the last one was no longer
/// than this. Of more lines the sender is kept from writing.
const AWAITED: u32 = 512;

const CLAIMING: u64 = 1;
const ACTIVE: u64 = 2;

/// Where the bulk payload of `len` bytes starts when `pos` bytes have gone before and `of` bytes of the bulk are in use (a power
/// of two).
#[inline]
fn bulk_start(pos: u32, len: u32, of: u32) -> u32 {
    let offset = pos & (of - 1);
    if offset + len > of { pos.wrapping_add(of - offset) } else { pos }
}

/// Bytes of the bulk in use from a payload of `len` bytes on, which begins their second half, when `used` have been before.
pub fn wider(used: u32, len: u32) -> u32 {
    2 * used.max(len.next_power_of_two())
}

/// Where the first payload of the second half starts, when `half` bytes have been in use.
fn second_half(pos: u32, half: u32) -> u32 {
    pos.wrapping_add(half.wrapping_sub(pos) & (2 * half - 1))
}

/// The sender's half of the barrier; the receiver's membarrier stands in for it where both have it.
#[inline]
fn send_fence(fenced: bool) {
    if fenced {
        fence(Ordering::SeqCst);
    } else {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

#[inline]
fn bulk_end(start: u32, len: u32) -> u32 {
    start.wrapping_add(len.next_multiple_of(64))
}

/// The sending end. One per peer process, used under the engine lock.
#[derive(Debug)]
pub struct SendRing {
    /// The receiver's tables.
    map: Arc<Map>,
    /// Its segment.
    file: Arc<File>,
    /// Cells, control block and bulk.
    data: Arc<Map>,
    index: usize,
    cells: Cells,
    watched: Word,
    seq: u32,
    /// The first cell that is not free, as far as is known; while there are cells that are not in use, the last free one.
    end: u32,
    /// The cell that began the present half, as long as one before it may be unread.
    half: Option<u32>,
    bulk: u32,
    bulk_len: u32,
    /// Bytes of the bulk that are in use.
    used: u32,
    /// The next payload begins the half that is not in use yet.
    widens: bool,
    /// Where the present half began, as long as something before it may be unread.
    since: Option<u32>,
    /// What the receiver had consumed when we looked last: cells, bulk bytes.
    seen: (u32, u32),
    fenced: bool,
    /// What the receiver had consumed when the ring was found full, and since when.
    stall: Option<((u32, u32), Instant)>,
    /// ASKs sent so far.
    asks: u32,
}

/// What a push asks of its caller.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
#[must_use]
pub enum Pushed {
    /// The receiver watches this ring.
    Watched,
    /// It has been announced in the bitmap, and the device thread is to be woken.
    RingBell,
}

impl SendRing {
    /// Claims a free ring in the receiver's segment, with much or little room for bulk data. `EUSERS` when all are taken.
    pub fn claim(
        map: &Arc<Map>,
        file: &Arc<File>,
        me: (usize, u64),
        fenced: bool,
        large: bool,
    ) -> Result<SendRing, Errno> {
        let tag = (me.0 as u64) << 8;
        let taken = (0..RINGS).find(|&i| {
            let owner = map.u64(ring_entry(i) + R_OWNER);
            owner.compare_exchange(0, tag | CLAIMING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        let index = taken
            .ok_or_else(|| shortage::full(format_args!("the {RINGS} rings of the process to send to")))?;
        map.u32(H_RING_LIMIT).fetch_max(index as u32 + 1, Ordering::SeqCst);
        let at = ring_entry(index);
        let (bulk, len) = if large { (BULK_MAX, RING_LEN) } else { (BULK_MIN, RING_MIN) };
        let taken = take_space(file, ring_data(index), RING_MIN, "a ring to a process");
        let data = taken
            .and_then(|()| map.part(file, ring_data(index), len))
            .inspect_err(|_| map.u64(at + R_OWNER).store(0, Ordering::Release))?;
        let data = Arc::new(data);
        map.u32(at + R_BULK).store(bulk as u32, Ordering::Relaxed);
        data.u32(C_WATCHED).store(0, Ordering::Relaxed);
        data.u64(C_CONSUMED).store(0, Ordering::Relaxed);
        for word in [R_HAZARD, R_WITHDRAWN, R_ANSWERING] {
            map.u32(at + word).store(0, Ordering::Relaxed);
        }
        map.u64(at + R_INCARNATION).store(me.1, Ordering::Relaxed);
        map.u64(at + R_OWNER).store(tag | ACTIVE, Ordering::Release);
        let cells = Cells::new(&data);
        Ok(SendRing {
            map: map.clone(),
            file: file.clone(),
            end: free_cells(&cells),
            cells,
            watched: data.word(C_WATCHED),
            data,
            index,
            seq: 0,
            half: None,
            bulk: 0,
            bulk_len: bulk as u32,
            used: BULK_FIRST,
            widens: false,
            since: None,
            seen: (0, 0),
            fenced,
            stall: None,
            asks: 0,
        })
    }

    /// Which of the receiver's rings it is.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The number of the next cell: those before it have been sent.
    pub fn sent(&self) -> u32 {
        self.seq
    }

    /// Whether a cell with `len` bytes of payload fits now.
    #[inline(always)]
    pub fn has_room(&mut self, len: usize) -> bool {
        self.fits(len) || self.fits_after_looking(len, u32::MAX)
    }

    /// The same for what can wait: no more than `most` bytes of the bulk come to be used for it.
    pub fn has_room_within(&mut self, len: usize, most: u32) -> bool {
        self.fits(len) || self.fits_after_looking(len, most)
    }

    /// Whether it fits as far as is known.
    #[inline(always)]
    pub fn fits(&self, len: usize) -> bool {
        self.seq != self.end && (len <= INLINE_MAX || self.bulk_fits(len as u32))
    }

    /// As [`Self::has_room`], with half of the ring's cells left free.
    pub fn has_room_to_spare(&mut self, len: usize) -> bool {
        let spare = |ring: &SendRing| ring.seq.wrapping_sub(ring.seen.0) < CELLS as u32 / 2 && ring.fits(len);
        spare(self) || self.fits_after_looking(len, u32::MAX) && spare(self)
    }

    /// How long the receiver of a full ring has read nothing, as far as it has been asked.
    #[cold]
    pub fn stalled(&mut self) -> Duration {
        match self.stall {
            Some((seen, since)) if seen == self.seen => timing::now() - since,
            _ => {
                self.stall = Some((self.seen, timing::now()));
                Duration::ZERO
            }
        }
    }

    fn bulk_fits(&self, len: u32) -> bool {
        let end = bulk_end(bulk_start(self.bulk, len, self.used), len);
        let room = match self.since {
            None => end.wrapping_sub(self.seen.1) <= self.used,
            Some(since) => end.wrapping_sub(since) <= self.used / 2,
        };
        room || self.widens
    }

    #[cold]
    fn fits_after_looking(&mut self, len: usize, most: u32) -> bool {
        let (no_cell, bytes) = (self.seq == self.end, len as u32);
        let no_bulk = len > INLINE_MAX && !self.bulk_fits(bytes);
        let word = handover::consumed(self.data.u64(C_CONSUMED));
        self.seen = (word as u32, (word >> 32) as u32);
        self.since = self.since.filter(|since| (self.seen.1.wrapping_sub(*since) as i32) < 0);
        if no_cell {
            self.find_cells();
        }
        if no_bulk && (self.used < BULK_BUSY || !self.bulk_fits(bytes)) {
            self.widens = wider(self.used, bytes) <= most && self.has_more(bytes);
        }
        self.fits(len)
    }

    /// Up to which cell they are free, with more of them in use where that is due.
    fn find_cells(&mut self) {
        let unread = self.seq.wrapping_sub(self.seen.0);
        self.half = self.half.filter(|first| (self.seen.0.wrapping_sub(*first) as i32) < 0);
        let all_known = self.half.is_none() && unread < free_cells(&self.cells);
        if self.cells.can_double() && !all_known {
            self.double_cells();
        }
        let (from, free) = match self.half {
            None => (self.seen.0, free_cells(&self.cells)),
            Some(first) => (first, free_cells(&self.cells) - self.cells.count() / 2),
        };
        self.end = from.wrapping_add(free);
    }

    /// The next cell, which is free, says that more are used from then on.
    fn double_cells(&mut self) {
        let cell = self.cells.at(self.seq);
        cell.emit(Head { op: op::MORE_CELLS, flags: flag::BULK, ..Head::default() });
        cell.mark(self.seq);
        self.seq = self.seq.wrapping_add(1);
        self.cells.double(self.seq);
        self.half = Some(self.seq);
    }

    /// There is a part of the bulk that is not in use yet, and space for it.
    fn has_more(&mut self, len: u32) -> bool {
        let (used, wider) = (self.used as usize, wider(self.used, len));
        // Up to BULK_MIN the ring has its space; from there on each part is as long as all before it.
        let start = ring_data(self.index) + BULK + used;
        if used >= BULK_MIN && wider <= self.bulk_len && allocate(&self.file, start, used).is_err() {
            self.bulk_len = self.used;
        }
        wider <= self.bulk_len
    }

    /// Sends one cell whose `head.len` payload bytes `fill` writes. The caller has asked [`Self::has_room`].
    #[inline(always)]
    pub fn push(&mut self, head: Head, fill: impl FnOnce(*mut u8)) -> Pushed {
        if self.send_any(head, fill) { Pushed::Watched } else { self.announce() }
    }

    /// Where the `len` payload bytes of the next cell go, and the flag that says so.
    #[inline(always)]
    fn place(&mut self, len: u32) -> (*mut u8, u8) {
        if len as usize <= INLINE_MAX { (self.cells.at(self.seq).payload(), 0) } else { self.take_bulk(len) }
    }

    /// Sends one cell with a fixed part in the cell and `head.len` bytes, filled by `fill`, in the bulk.
    pub fn push_with(&mut self, mut head: Head, fixed: &[u8], fill: impl FnOnce(*mut u8)) -> Pushed {
        assert!(fixed.len() <= INLINE_MAX);
        // SAFETY: a cell has room for INLINE_MAX bytes (checked), and it is ours until it is marked.
        unsafe { fixed.as_ptr().copy_to_nonoverlapping(self.cells.at(self.seq).payload(), fixed.len()) };
        let (place, flags) = self.take_bulk(head.len);
        head.flags |= flags;
        fill(place);
        if self.publish_unannounced(head) { Pushed::Watched } else { self.announce() }
    }

    /// The next `len` bytes of the bulk, and the flags that say so.
    fn take_bulk(&mut self, len: u32) -> (*mut u8, u8) {
        let flags = if self.widens { flag::BULK | self.widen(len) } else { flag::BULK };
        let start = bulk_start(self.bulk, len, self.used);
        self.bulk = bulk_end(start, len);
        (self.data.bytes(BULK + (start & (self.used - 1)) as usize, len as usize), flags)
    }

    /// The next payload, of `len` bytes, begins the second half of more.
    #[cold]
    fn widen(&mut self, len: u32) -> u8 {
        let used = wider(self.used, len);
        self.bulk = second_half(self.bulk, used / 2);
        (self.used, self.widens, self.since) = (used, false, Some(self.bulk));
        flag::WIDER
    }

    /// Sends the next cell, whose payload has been written. As [`Self::send_any`].
    #[inline(always)]
    fn publish_unannounced(&mut self, head: Head) -> bool {
        let seq = self.seq;
        let cell = self.cells.at(seq);
        cell.emit(head);
        cell.mark(seq);
        self.after(seq)
    }

    /// As [`Self::push`]; false: the receiver does not watch, and the caller has to [`Self::announce`] the ring.
    #[inline(always)]
    #[must_use]
    pub fn send_any(&mut self, mut head: Head, fill: impl FnOnce(*mut u8)) -> bool {
        let (place, bulk) = self.place(head.len);
        fill(place);
        head.flags |= bulk;
        self.publish_unannounced(head)
    }

    /// Sends the next cell, with the `head.len` bytes at `payload` in it. The caller has asked [`Self::fits`]. As [`Self::send_any`].
    ///
    /// # Safety
    /// `payload` has that many readable bytes, which are [`INLINE_MAX`] at most.
    #[inline(always)]
    #[must_use]
    pub unsafe fn send_inline(&mut self, head: Head, payload: *const u8) -> bool {
        let seq = self.seq;
        let cell = self.cells.at(seq);
        // SAFETY: the caller passes head.len readable bytes, INLINE_MAX at most; a cell has room
        // for as many, and it is ours until it is marked.
        unsafe { copy_short(payload, cell.payload(), head.len as usize) };
        cell.emit(head);
        cell.mark(seq);
        self.after(seq)
    }

    /// The cell of this number is on its way. Whether the receiver watches.
    #[inline(always)]
    fn after(&mut self, seq: u32) -> bool {
        self.seq = seq.wrapping_add(1);
        let fenced = self.fenced;
        handover::is_watched(&*self.watched, || send_fence(fenced))
    }

    /// Whether the receiver looks at this ring without being told, as far as can be seen.
    pub fn is_watched(&self) -> bool {
        handover::is_watched(&*self.watched, || ())
    }

    /// In a burst: asks for a cell that is written soon.
    #[inline(always)]
    pub fn expect_more(&self) {
        self.cells.at(self.seq.wrapping_add(CELLS_AHEAD)).prefetch_to_write();
    }

    /// Asks for the lines that a payload of `len` bytes is written to, if that goes line by line: they come all at once, and while the rest of
    /// the request is seen to.
    #[inline(always)]
    pub fn expect_payload(&self, len: u32) {
        if len <= COPIED {
            let start = bulk_start(self.bulk, len, self.used) & (self.used - 1);
            each_line(self.data.bytes(BULK + start as usize, len as usize), len, prefetch_to_write);
        }
    }

    /// Tells a receiver that does not watch.
    #[cold]
    pub fn announce(&self) -> Pushed {
        let bits = self.map.u64(BITMAP + self.index / 64 * 8);
        let rings =
            handover::announce(bits, 1 << (self.index % 64), self.map.u32(BELL), || fence(Ordering::SeqCst));
        if rings { Pushed::RingBell } else { Pushed::Watched }
    }

    /// The number of the next ASK; never 0.
    pub fn next_ask(&mut self) -> u32 {
        self.asks = self.asks.wrapping_add(1).max(1);
        self.asks
    }

    /// Takes all ASKs back that have been sent. False: the receiver is just answering one.
    pub fn withdraw_asks(&self) -> bool {
        let row = ring_entry(self.index);
        keyed::take_back(self.map.u32(row + R_WITHDRAWN), self.map.u32(row + R_ANSWERING), self.asks)
    }

    /// The word that says which of the receiver's memory regions we are working on.
    pub fn hazard(&self) -> &AtomicU32 {
        self.map.u32(ring_entry(self.index) + R_HAZARD)
    }
}

/// How many cells a sender may have unread: while there are others that are not in use, one is left for the word that they are.
fn free_cells(cells: &Cells) -> u32 {
    cells.count() - u32::from(cells.can_double())
}

/// Whether a ring may take much room: only where a small share of what is left will do. A container's /dev/shm of 64 MB would soon
/// be full.
pub fn may_be_large(file: &File) -> bool {
    free_space(file) / 64 >= BULK_MAX as u64
}

/// Rings from here on have never been used.
#[inline]
pub fn limit(map: &Map) -> usize {
    (map.u32(H_RING_LIMIT).load(Ordering::Relaxed) as usize).min(RINGS)
}

/// Slot and incarnation of the process that sends through a ring. One that is still claiming it has incarnation 0.
pub fn sender(map: &Map, index: usize) -> Option<(usize, u64)> {
    let at = ring_entry(index);
    let owner = map.u64(at + R_OWNER).load(Ordering::Acquire);
    let incarnation = map.u64(at + R_INCARNATION).load(Ordering::Relaxed);
    let slot = (owner >> 8) as usize;
    match owner & 0xff {
        ACTIVE if slot < SLOTS => Some((slot, incarnation)),
        CLAIMING if slot < SLOTS => Some((slot, 0)),
        _ => None,
    }
}

/// The inbound ring of ours through which this process sends.
pub fn of_sender(map: &Map, slot: usize, incarnation: u64) -> Option<usize> {
    (0..limit(map)).find(|index| sender(map, *index) == Some((slot, incarnation)))
}

/// Lets `copy` work on what an ASK names that has come through ring `index`; None: it has been withdrawn, and what it names may be gone.
pub fn while_asked<T>(map: &Map, index: usize, ask: u32, copy: impl FnOnce() -> T) -> Option<T> {
    let row = ring_entry(index);
    keyed::while_asked(map.u32(row + R_WITHDRAWN), map.u32(row + R_ANSWERING), ask, copy)
}

/// Frees a ring of ours that is no longer in use; it reads as empty when it is claimed again.
pub fn free(map: &Map, file: &File, index: usize) {
    give_space(file, ring_data(index), RING_LEN);
    map.u64(ring_entry(index) + R_OWNER).store(0, Ordering::Release);
}

/// The receiving end, in our own segment.
#[derive(Debug)]
pub struct RecvRing {
    /// Our tables.
    map: Arc<Map>,
    /// Cells, control block and bulk.
    data: Arc<Map>,
    index: usize,
    cells: Cells,
    seq: u32,
    bulk: u32,
    bulk_len: u32,
    /// Bytes of the bulk that are in use.
    used: u32,
    published: (u32, u32),
    /// The cell for which there is nothing to prepare.
    awaited: u32,
    /// The cell that has been made ready for its sender last.
    acquired: u32,
    /// The cell behind the last short payload, and how long that was.
    short: (u32, u32),
    /// Who sends: slot and incarnation of its process.
    pub slot: usize,
    pub incarnation: u64,
    broken: bool,
}

impl RecvRing {
    /// Adopts ring `index` of our segment if a sender has made it active. None, too: it cannot be mapped, which has been said.
    pub fn adopt(inlets: &Inlets, index: usize) -> Option<RecvRing> {
        let (map, at) = (inlets.tables(), ring_entry(index));
        let owner = map.u64(at + R_OWNER).load(Ordering::Acquire);
        let slot = (owner >> 8) as usize;
        let bulk_len = map.u32(at + R_BULK).load(Ordering::Relaxed);
        let sane = [BULK_MIN as u32, BULK_MAX as u32].contains(&bulk_len);
        if owner & 0xff != ACTIVE || slot >= SLOTS || !sane {
            return None;
        }
        let incarnation = map.u64(at + R_INCARNATION).load(Ordering::Relaxed);
        let data = inlets.ring(index).ok()?.clone();
        Some(RecvRing {
            map: map.clone(),
            cells: Cells::new(&data),
            data,
            index,
            seq: 0,
            bulk: 0,
            bulk_len,
            used: BULK_FIRST,
            published: (0, 0),
            awaited: u32::MAX,
            acquired: u32::MAX,
            short: (u32::MAX, 0),
            slot,
            incarnation,
            broken: false,
        })
    }

    /// Which of the receiver's rings it is.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Cells taken from it so far.
    #[inline]
    pub fn taken(&self) -> u32 {
        self.seq
    }

    /// The next cell has arrived.
    #[inline]
    pub fn is_ready(&self) -> bool {
        let cell = self.cells.at(self.seq);
        cell.prefetch();
        cell.is_filled(self.seq)
    }

    /// The head of the next cell, if one has arrived, and its inline part.
    #[inline(always)]
    pub fn front(&self) -> Option<(Head, *const u8)> {
        let cell = self.cells.at(self.seq);
        cell.prefetch();
        let ready = cell.is_filled(self.seq) && !self.broken;
        ready.then(|| (cell.head(), cell.payload().cast_const()))
    }

    /// In a burst: asks for a cell that is read soon.
    #[inline(always)]
    pub fn expect_more(&self) {
        self.cells.at(self.seq.wrapping_add(CELLS_AHEAD)).prefetch_first();
    }

    /// The receiver waits for the next cell, and has nothing else to do.
    #[inline(always)]
    pub fn await_next(&mut self) {
        if self.awaited != self.seq {
            self.prepare();
        }
    }

    /// The cell is made ready for its sender, once. Behind a short payload, the lines of the bulk where another one as long would be are asked
    /// for every time: its sender asks for all of them together, and when it has come, none of them is waited for.
    #[inline(never)]
    fn prepare(&mut self) {
        if self.acquired != self.seq {
            self.acquired = self.seq;
            self.cells.at(self.seq).acquire();
        }
        match self.short {
            (behind, len) if behind == self.seq => {
                let start = bulk_start(self.bulk, len, self.used) & (self.used - 1);
                each_line(self.data.bytes(BULK + start as usize, len as usize), len, prefetch);
            }
            _ => self.awaited = self.seq,
        }
    }

    /// Gives the cell just found back to the sender; its payload was in it. True: it is time to [`Self::publish_if_due`].
    #[inline(always)]
    #[must_use]
    pub fn consume_quietly(&mut self) -> bool {
        self.seq = self.seq.wrapping_add(1);
        self.is_due()
    }

    #[inline(always)]
    fn is_due(&self) -> bool {
        self.seq.wrapping_sub(self.published.0) >= self.cells.count() / 4
    }

    /// Tells the sender how far the ring has been read, if that is a good part of it.
    pub fn publish_if_due(&mut self) {
        if self.is_due() {
            self.publish();
        }
    }

    /// The next cell, if one has arrived. A cell that makes no sense ends the ring.
    #[inline(always)]
    pub fn peek(&mut self) -> Option<Found> {
        let cell = self.cells.at(self.seq);
        cell.prefetch();
        if !cell.is_filled(self.seq) || self.broken {
            return None;
        }
        let (head, fixed) = (cell.head(), cell.payload().cast_const());
        if head.flags & flag::BULK == 0 && head.len as usize <= INLINE_MAX {
            return Some(Found { head, payload: fixed, fixed, bulk: self.bulk });
        }
        self.peek_bulk(head, fixed)
    }

    #[inline]
    fn peek_bulk(&mut self, head: Head, fixed: *const u8) -> Option<Found> {
        if head.op == op::MORE_CELLS {
            return self.more_cells();
        }
        let used = self.used_by(&head);
        if head.flags & flag::BULK == 0 || head.len as usize > FRAGMENT_MAX || used > self.bulk_len {
            return self.give_up();
        }
        let pos = if used > self.used { second_half(self.bulk, used / 2) } else { self.bulk };
        let start = bulk_start(pos, head.len, used);
        if head.len > used {
            return self.give_up();
        }
        let at = BULK + (start & (used - 1)) as usize;
        let payload = self.data.bytes(at, head.len as usize).cast_const();
        Some(Found { head, payload, fixed, bulk: bulk_end(start, head.len) })
    }

    /// Bytes of the bulk that are in use from a cell on.
    #[inline]
    fn used_by(&self, head: &Head) -> u32 {
        let widens = head.flags & (flag::BULK | flag::WIDER) == flag::BULK | flag::WIDER;
        if widens { wider(self.used, head.len.min(FRAGMENT_MAX as u32)) } else { self.used }
    }

    /// The cell in front says that more cells are used from the next one on, which is looked at.
    #[cold]
    #[inline(never)]
    fn more_cells(&mut self) -> Option<Found> {
        if !self.cells.can_double() {
            return self.give_up();
        }
        self.seq = self.seq.wrapping_add(1);
        self.cells.double(self.seq);
        self.publish();
        self.peek()
    }

    #[cold]
    fn give_up(&mut self) -> Option<Found> {
        self.broken = true;
        log::error!("ring of slot {}: a cell makes no sense, its sender is ignored from now on", self.slot);
        None
    }

    /// Gives the cell just found back to the sender.
    #[inline]
    pub fn consume(&mut self, found: &Found) {
        self.seq = self.seq.wrapping_add(1);
        self.bulk = found.bulk;
        self.used = self.used_by(&found.head);
        if found.head.len <= AWAITED {
            self.short = (self.seq, found.head.len);
        }
        if self.is_due() || self.bulk.wrapping_sub(self.published.1) >= self.used / 4 {
            self.publish();
        }
    }

    fn publish(&mut self) {
        self.published = (self.seq, self.bulk);
        let word = u64::from(self.seq) | u64::from(self.bulk) << 32;
        handover::consume(self.data.u64(C_CONSUMED), word);
    }

    /// The word that tells the sender whether we look at this ring without being told.
    pub fn watched(&self) -> &AtomicU32 {
        self.data.u32(C_WATCHED)
    }

    /// Frees the ring of a dead or departed sender; everything in it has been read.
    pub fn release(self, file: &File) {
        free(&self.map, file, self.index);
    }
}
