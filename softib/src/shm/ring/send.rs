//! The sending end of a ring.

use super::{ACTIVE, BULK_FIRST, CELLS_AHEAD, CLAIMING, bulk_end, bulk_start, second_half, wider};
use crate::clock;
use crate::errno::Errno;
use crate::shm::cell::{Begin, Head, INLINE_MAX, PAST, Via, flag, op};
use crate::shm::cells::{Cells, each_line, prefetch_to_write};
use crate::shm::copy::copy_to_cell;
use crate::shm::layout::*;
use crate::shm::map::{Map, Word};
use crate::shm::shortage::{self, take_space};
use crate::shm::space::allocate;
use crate::shm::{handover, keyed};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

/// What of the bulk a ring comes to use without its being unread: with the cells half of a processor's first cache. Of more than that, what
/// goes round is out of it when it comes again, and a message of 200 bytes to 4 KiB takes twice as long.
const BULK_BUSY: u32 = 8 << 10;

/// Payloads of up to so many bytes go round in a small part of the bulk. The lines of that are all in the caches of their reader's core, and each has to be
/// taken from there before it is written; those of a larger part have left them by then, which saves longer payloads more than what it costs them:
/// 5000 bytes take 0.78 of the time, 16 KiB 0.6.
const SMALL: u32 = 4 << 10;

/// Bytes of the bulk that a busy ring comes to use for payloads of `len` bytes, which go past the caches or not. Of short ones, and of those past the
/// caches, two are to have their place, so that one may be written while it is not known yet that the other has been read; for middle ones what each
/// ring has space for is used; for long ones all that there is.
fn busy(len: u32, past: bool) -> u32 {
    match len {
        _ if past || len <= SMALL => BULK_BUSY.max(2 * len),
        0..PAST => BULK_MIN as u32,
        PAST.. => BULK_MAX as u32,
    }
}

/// A payload up to here is written line by line, so its lines are asked for before. memcpy(3) writes longer ones in another way, in which whole
/// lines are taken over without being read.
const COPIED: u32 = 2048;

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
    manner: Word,
    seq: u32,
    /// The first cell that is not free, as far as is known; while there are cells that are not in use, the last free one.
    end: u32,
    /// The cell that began the present half, as long as one before it may be unread.
    half: Option<u32>,
    /// There is no space for more cells.
    short_of_cells: bool,
    bulk: u32,
    bulk_len: u32,
    /// Bytes of the bulk for which the file has space.
    spacious: u32,
    /// Bytes of the bulk that are in use.
    used: u32,
    /// It went back to less when messages came to go past the caches.
    is_narrowed: bool,
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
    /// GIVEs of one piece that have been sent and whose end is not known; and that there is one of several pieces. That is alone: the receiver
    /// says of the last one only that it has placed it, and places those of one piece in the order in which they have been sent.
    gives: u32,
    gives_pieces: bool,
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

/// What a receiver has made of a GIVE.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Given {
    /// Nothing, nor will it.
    Not,
    /// It has placed the data.
    Placed,
    /// It has placed that of a later one, so it has answered this one, in one way or the other.
    Answered,
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
        let (first, space) = (ring_data(index) + RING_FIRST, RING_MIN - RING_FIRST);
        let taken = take_space(file, first, space, "a ring to a process");
        let data = taken
            .and_then(|()| map.part(file, ring_data(index), len))
            .inspect_err(|_| map.u64(at + R_OWNER).store(0, Ordering::Release))?;
        let data = Arc::new(data);
        map.u32(at + R_BULK).store(bulk as u32, Ordering::Relaxed);
        data.u32(C_WATCHED).store(0, Ordering::Relaxed);
        data.u64(C_CONSUMED).store(0, Ordering::Relaxed);
        data.u32(C_MANNER).store(0, Ordering::Relaxed);
        for word in [R_HAZARD, R_WITHDRAWN, R_ANSWERING, R_GIVEN, R_FILLS, R_MOVES] {
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
            manner: data.word(C_MANNER),
            data,
            index,
            seq: 0,
            half: None,
            short_of_cells: false,
            bulk: 0,
            bulk_len: bulk as u32,
            spacious: BULK_MIN as u32,
            used: BULK_FIRST,
            is_narrowed: false,
            widens: false,
            since: None,
            seen: (0, 0),
            fenced,
            stall: None,
            asks: 0,
            gives: 0,
            gives_pieces: false,
        })
    }

    /// Which of the receiver's rings it is.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The receiver reads messages where they lie, as far as it is known.
    #[inline]
    pub fn is_read_in_place(&self) -> bool {
        self.map.u32(H_PLACES).load(Ordering::Relaxed) != 0
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

    /// The same for what can wait: no more than `most` bytes of the bulk, a power of two, come to be used for it. If more are used already,
    /// the ring goes back to `most` as soon as all that is in it has been read.
    pub fn has_room_within(&mut self, len: usize, most: u32) -> bool {
        if self.used > most {
            self.narrow(most);
        }
        self.fits(len) || self.fits_after_looking(len, most)
    }

    /// Whether it fits as far as is known.
    #[inline(always)]
    pub fn fits(&self, len: usize) -> bool {
        self.seq != self.end && (len <= INLINE_MAX || self.bulk_fits(len as u32))
    }

    /// Looks how far the receiver has read by now, for the next message: it need not look then.
    #[inline(never)]
    pub fn look_ahead(&mut self, len: usize) {
        let (no_bulk, bytes) = (len > INLINE_MAX && !self.bulk_fits(len as u32), len as u32);
        self.look();
        if no_bulk && self.is_narrow(bytes) {
            self.widens = self.has_more(bytes);
        }
        let unread = self.seq.wrapping_sub(self.seen.0);
        if self.half.is_none() && unread < free_cells(&self.cells) {
            self.end = self.seen.0.wrapping_add(free_cells(&self.cells));
        }
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

    #[inline(always)]
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
        self.look();
        if no_cell {
            self.find_cells();
        }
        if no_bulk && (self.is_narrow(bytes) || !self.bulk_fits(bytes)) {
            self.widens = wider(self.used, bytes) <= most && self.has_more(bytes);
        }
        self.fits(len)
    }

    /// A ring that is busy comes to use more of the bulk than it does, for payloads as long as this.
    fn is_narrow(&self, len: u32) -> bool {
        self.used < busy(len, len >= PAST && self.manner.load(Ordering::Relaxed) & ASKS_PAST != 0)
    }

    /// How far the receiver has read.
    fn look(&mut self) {
        let word = handover::consumed(self.data.u64(C_CONSUMED));
        self.seen = (word as u32, (word >> 32) as u32);
        self.since = self.since.filter(|since| (self.seen.1.wrapping_sub(*since) as i32) < 0);
    }

    /// Up to which cell they are free, with more of them in use where that is due.
    fn find_cells(&mut self) {
        let unread = self.seq.wrapping_sub(self.seen.0);
        self.half = self.half.filter(|first| (self.seen.0.wrapping_sub(*first) as i32) < 0);
        let all_known = self.half.is_none() && unread < free_cells(&self.cells);
        if self.cells.can_double() && !all_known && self.has_more_cells() {
            self.double_cells();
        }
        let (from, free) = match self.half {
            None => (self.seen.0, free_cells(&self.cells)),
            Some(first) => (first, free_cells(&self.cells) - self.cells.count() / 2),
        };
        self.end = from.wrapping_add(free);
    }

    /// There is space for as many cells again as are in use.
    fn has_more_cells(&mut self) -> bool {
        if !self.short_of_cells {
            let len = self.cells.count() as usize * CELL;
            let start = ring_data(self.index) + CONTROL - 2 * len;
            self.short_of_cells = allocate(&self.file, start, len).is_err();
        }
        !self.short_of_cells
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

    /// The next cell says that so many bytes of the bulk are used from then on, if nothing in it is unread.
    #[cold]
    fn narrow(&mut self, to: u32) {
        self.look();
        let is_empty = self.seen.1 == self.bulk && self.since.is_none() && !self.widens;
        if !is_empty || self.end.wrapping_sub(self.seq) < 2 {
            return;
        }
        let cell = self.cells.at(self.seq);
        cell.emit(Head { op: op::LESS_BULK, flags: flag::BULK, imm: to, ..Head::default() });
        cell.mark(self.seq);
        self.seq = self.seq.wrapping_add(1);
        self.used = to;
    }

    /// There is a part of the bulk that is not in use yet, and space for it.
    fn has_more(&mut self, len: u32) -> bool {
        let wider = wider(self.used, len);
        if wider > self.spacious && wider <= self.bulk_len {
            let (start, more) = (BULK + self.spacious as usize, (wider - self.spacious) as usize);
            match allocate(&self.file, ring_data(self.index) + start, more) {
                Ok(()) => self.spacious = wider,
                Err(_) => self.bulk_len = self.spacious,
            }
        }
        wider <= self.bulk_len
    }

    /// Sends one cell whose `head.len` payload bytes `fill` writes. The caller has asked [`Self::has_room`].
    #[inline(always)]
    pub fn push(&mut self, head: Head, fill: impl FnOnce(*mut u8)) -> Pushed {
        let urgent = !head.is_patient();
        if self.send_any(head, fill) { Pushed::Watched } else { self.announce(urgent) }
    }

    /// Where the `len` payload bytes of the next cell go, and the flag that says so.
    #[inline(always)]
    pub fn place(&mut self, len: u32) -> (*mut u8, u8) {
        if len as usize <= INLINE_MAX { self.place_inline() } else { self.take_bulk(len) }
    }

    /// A message of `len` bytes is next. When such messages come to go past the caches, the ring goes back to as much of the bulk as they need: of
    /// more, they take up to 1.3 times as long.
    #[inline(always)]
    pub fn prepare(&mut self, len: u32) {
        if len >= PAST {
            self.prepare_long(len);
        }
    }

    #[inline(never)]
    fn prepare_long(&mut self, len: u32) {
        match self.manner.load(Ordering::Relaxed) {
            0 => self.is_narrowed = false,
            ASKS_PAST if !self.is_narrowed => {
                let enough = busy(len, true).next_power_of_two();
                if self.used > enough {
                    self.narrow(enough);
                }
                self.is_narrowed = self.used <= enough;
            }
            // One that is timed may be a trial.
            _ => {}
        }
    }

    /// The payload of the next cell, `len` bytes of a message, is about to be written. Whether that is to be past the caches.
    #[inline(always)]
    pub fn begin(&self, len: u32) -> bool {
        len >= PAST && self.begin_long()
    }

    #[inline(never)]
    fn begin_long(&self) -> bool {
        let manner = self.manner.load(Ordering::Relaxed);
        let streams = manner & ASKS_PAST != 0;
        let begin = (manner & ASKS_TIME != 0).then(|| Begin { at: clock::ticks(), streams });
        self.cells.at(self.seq).emit_begin(begin);
        streams
    }

    /// The next cell goes through this queue pair.
    #[inline(always)]
    pub fn set_via(&self, via: Via) {
        self.cells.at(self.seq).emit_via(via);
    }

    /// Sends one cell with a fixed part in the cell and `head.len` bytes, filled by `fill`, in the bulk.
    pub fn push_with(&mut self, mut head: Head, fixed: &[u8], fill: impl FnOnce(*mut u8)) -> Pushed {
        assert!(fixed.len() <= INLINE_MAX);
        // SAFETY: a cell has room for INLINE_MAX bytes (checked), and it is ours until it is marked.
        unsafe { fixed.as_ptr().copy_to_nonoverlapping(self.cells.at(self.seq).payload(), fixed.len()) };
        let (place, flags) = self.take_bulk(head.len);
        head.flags |= flags;
        fill(place);
        let urgent = !head.is_patient();
        if self.send_filled(head) { Pushed::Watched } else { self.announce(urgent) }
    }

    /// The next `len` bytes of the bulk, and the flags that say so.
    #[inline(always)]
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
        self.data.populate(BULK + self.used as usize, (used - self.used) as usize);
        self.bulk = second_half(self.bulk, used / 2);
        (self.used, self.widens, self.since) = (used, false, Some(self.bulk));
        flag::WIDER
    }

    /// As [`Self::place`], of what fits a cell.
    #[inline(always)]
    pub fn place_inline(&self) -> (*mut u8, u8) {
        (self.cells.at(self.seq).payload(), 0)
    }

    /// Sends the next cell, whose payload has been written to its [place](Self::place), with the flag that says so. As [`Self::send_any`].
    #[inline(always)]
    #[must_use]
    pub fn send_filled(&mut self, head: Head) -> bool {
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
        self.send_filled(head)
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
        unsafe { copy_to_cell(payload, cell.payload(), head.len as usize) };
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

    /// Asks for the lines that a payload of `len` bytes is written to, if that goes line by line and they are more than two: they come all at
    /// once, and while the rest of the request is seen to.
    #[inline(always)]
    pub fn expect_payload(&self, len: u32) {
        if len as usize <= INLINE_MAX {
            self.cells.at(self.seq).prefetch_rest_to_write(len);
        } else if len <= COPIED {
            let start = bulk_start(self.bulk, len, self.used) & (self.used - 1);
            each_line(self.data.bytes(BULK + start as usize, len as usize), len, prefetch_to_write);
        }
    }

    /// Tells a receiver that does not watch.
    #[cold]
    pub fn announce(&self, urgent: bool) -> Pushed {
        let bit = (self.map.u64(BITMAP + self.index / 64 * 8), 1 << (self.index % 64));
        let (marked, bell) = (self.map.u32(MARKED), self.map.u32(BELL));
        let rings = handover::announce(bit, marked, bell, urgent, || fence(Ordering::SeqCst));
        if rings { Pushed::RingBell } else { Pushed::Watched }
    }

    /// The number of the next ASK; never 0.
    pub fn next_ask(&mut self) -> u32 {
        self.asks = self.asks.wrapping_add(1).max(1);
        self.asks
    }

    /// A GIVE of one piece, or of several, may be sent as far as others go.
    pub fn may_give(&self, is_whole: bool) -> bool {
        !self.gives_pieces && (is_whole || self.gives == 0)
    }

    /// The number of the next GIVE, which is not over until [`SendRing::give_is_over`].
    pub fn next_give(&mut self, is_whole: bool) -> u32 {
        self.gives += u32::from(is_whole);
        self.gives_pieces = !is_whole;
        self.next_ask()
    }

    /// One of one piece, or of several, has been answered, or withdrawn.
    pub fn give_is_over(&mut self, is_whole: bool) {
        self.gives = self.gives.saturating_sub(is_whole.into());
        self.gives_pieces &= is_whole;
    }

    /// What the receiver has made of a GIVE that has been withdrawn.
    pub fn given(&self, number: u32) -> Given {
        match keyed::last_done(self.map.u32(ring_entry(self.index) + R_GIVEN), number) {
            std::cmp::Ordering::Equal => Given::Placed,
            std::cmp::Ordering::Greater => Given::Answered,
            std::cmp::Ordering::Less => Given::Not,
        }
    }

    /// Takes all ASKs and GIVEs back that have been sent. False: the receiver is just answering one.
    pub fn withdraw_asks(&self) -> bool {
        let row = ring_entry(self.index);
        keyed::take_back(self.map.u32(row + R_WITHDRAWN), self.map.u32(row + R_ANSWERING), self.asks)
    }

    /// Fences of ours are not the receiver's business.
    #[inline(always)]
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// [`Self::hazard`], for those who write to it often.
    pub fn hazard_word(&self) -> Word {
        self.map.word(ring_entry(self.index) + R_HAZARD)
    }

    /// The word that says which of the receiver's queue pairs has receives that we are filling.
    pub fn fills(&self) -> &AtomicU32 {
        self.map.u32(ring_entry(self.index) + R_FILLS)
    }

    /// We have copied from or to the receiver's memory by our own hand, with a system call.
    pub fn count_move(&self) {
        let moves = self.map.u32(ring_entry(self.index) + R_MOVES);
        moves.store(moves.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
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

/// The sender's half of the barrier; the receiver's membarrier stands in for it where both have it.
#[inline]
pub fn send_fence(fenced: bool) {
    if fenced {
        fence(Ordering::SeqCst);
    } else {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}
