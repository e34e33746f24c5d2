//! The receiving end of a ring.

use super::{ACTIVE, BULK_FIRST, CELLS_AHEAD, FRAGMENT_MAX, bulk_end, bulk_start, free, second_half, wider};
use crate::clock;
use crate::shm::cell::{Begin, Found, Head, INLINE_MAX, flag, op};
use crate::shm::cells::{Cells, LONG};
use crate::shm::copy::STREAMS;
use crate::shm::handover;
use crate::shm::layout::*;
use crate::shm::map::Map;
use crate::shm::pace::{Pace, TIMED_OF};
use crate::shm::parts::Inlets;
use crate::shm::placed;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A receiver that waits asks for the lines of the next payload again and again, as it does for the next cell, if the last one was no longer
/// than this. Of more lines a near sender is kept from writing.
const AWAITED: u32 = 224;

/// The receiving end, in our own segment.
#[derive(Debug)]
#[repr(C)] // in this order: what each poll looks at comes first
pub struct RecvRing {
    cells: Cells,
    seq: u32,
    /// The cell for which there is nothing to prepare.
    awaited: u32,
    broken: bool,
    /// While it reads, it was time to tell the sender how far the ring has been read.
    late: bool,
    published: (u32, u32),
    /// Address of the payload that the program was given where it lies, or 0.
    lent: usize,
    /// Our tables.
    map: Arc<Map>,
    /// Cells, control block and bulk.
    data: Arc<Map>,
    index: usize,
    bulk: u32,
    bulk_len: u32,
    /// Bytes of the bulk that are in use.
    used: u32,
    /// The cell that has been made ready for its sender last.
    acquired: u32,
    /// Who sends: slot and incarnation of its process.
    pub slot: usize,
    pub incarnation: u64,
    /// How the sender is to write long messages; and the one that is being timed, with its length.
    pace: Pace,
    timed: Option<(Begin, u32)>,
    /// Long messages that were waited for and not timed.
    untimed: u8,
}

/// So many bytes of the bulk that have been read are told, where `used` are in use. Behind less, the longest message fits the half that its sender
/// keeps to: of the last half that a ring can come to use as well, whose end it has to leave out if it does not fit there.
const fn untold(used: u32) -> u32 {
    used / 64 * 15
}

const _: () = assert!(untold(BULK_MIN as u32) as usize + FRAGMENT_MAX <= BULK_MIN / 2, "there is room");

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
            slot,
            incarnation,
            broken: false,
            lent: 0,
            late: false,
            pace: Pace::default(),
            timed: None,
            untimed: 0,
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

    /// As [`Self::next_cell`]. None: there is something to prepare for it ([`Self::await_next`]).
    #[inline(always)]
    pub fn awaited_cell(&self) -> Option<(&AtomicU32, u32)> {
        (self.awaited == self.seq).then(|| self.next_cell())
    }

    /// The tag of the next cell, and the number that it is compared with ([`handover::is_filled`]).
    #[inline(always)]
    pub fn next_cell(&self) -> (&AtomicU32, u32) {
        (self.cells.at(self.seq).tag(), self.seq)
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

    /// The cell is made ready for its sender, once. Behind a payload of three or four lines, those of another one as long are asked for every
    /// time: its sender asks for all of them together, and when it has come, none of them is waited for.
    #[inline(never)]
    fn prepare(&mut self) {
        if self.acquired != self.seq {
            self.acquired = self.seq;
            self.cells.at(self.seq).acquire();
            self.publish_if_due();
        }
        // A guess: what is there may be of another lap.
        match self.cells.at(self.seq.wrapping_sub(1)).head().len {
            last @ LONG..=AWAITED => self.cells.at(self.seq).prefetch_rest(last),
            _ => self.awaited = self.seq,
        }
    }

    /// Gives the cell just found back to the sender; its payload was in it. The caller sees to it that the ring is [awaited](Self::await_next)
    /// soon, or that [`Self::publish_if_due`] is called. True: it is called now.
    #[inline(always)]
    #[must_use]
    pub fn consume_quietly(&mut self) -> bool {
        self.seq = self.seq.wrapping_add(1);
        self.seq.wrapping_sub(self.published.0) >= self.cells.count() / 2
    }

    /// Tells the sender how far the ring has been read, if that is a good part of it: a quarter, and of the bulk a little less. With more left untold,
    /// a sender that has begun to use twice as much of the ring, and keeps to the new half, would wait for a word that does not come.
    #[inline]
    pub fn publish_if_due(&mut self) {
        if self.seq.wrapping_sub(self.published.0) >= self.cells.count() / 4
            || self.bulk.wrapping_sub(self.published.1) >= untold(self.used)
        {
            self.publish();
        }
    }

    /// The next cell, if one has arrived. A cell that makes no sense ends the ring.
    #[inline]
    pub fn peek(&mut self) -> Option<Found> {
        let (head, fixed) = self.front()?;
        match self.message(head, fixed) {
            None => self.peek_rare(head, fixed),
            found => found,
        }
    }

    /// The next cell, if it has arrived, is not about the ring itself, and makes sense.
    #[inline(always)] // what it finds stays in registers
    pub fn peek_message(&self) -> Option<Found> {
        let (head, fixed) = self.front()?;
        self.message(head, fixed)
    }

    /// What the next cell, which has arrived, brings, if it is as [`Self::peek_message`] says.
    #[inline(always)] // as there
    fn message(&self, head: Head, fixed: *const u8) -> Option<Found> {
        let (via, bulk, used) = (self.cells.at(self.seq).via(), self.bulk, self.used);
        if head.flags & flag::BULK == 0 {
            let fits = head.len as usize <= INLINE_MAX;
            return fits.then_some(Found { head, payload: fixed, fixed, via, ring: self.index, bulk, used });
        }
        let own = head.op == op::MORE_CELLS || head.op == op::LESS_BULK;
        let most = used.min(self.bulk_len).min(FRAGMENT_MAX as u32);
        if own || head.flags & flag::WIDER != 0 || head.len > most {
            return None;
        }
        let start = bulk_start(bulk, head.len, used);
        let payload = self.data.bytes(BULK + (start & (used - 1)) as usize, head.len as usize).cast_const();
        Some(Found { head, payload, fixed, via, ring: self.index, bulk: bulk_end(start, head.len), used })
    }

    /// As [`Self::peek`], of a cell that brings no usual message.
    #[inline(never)]
    fn peek_rare(&mut self, head: Head, fixed: *const u8) -> Option<Found> {
        let via = self.cells.at(self.seq).via();
        match head.op {
            op::MORE_CELLS => return self.more_cells(),
            op::LESS_BULK => return self.less_bulk(head.imm),
            _ => {}
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
        Some(Found { head, payload, fixed, via, ring: self.index, bulk: bulk_end(start, head.len), used })
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

    /// The cell in front says that so many bytes of the bulk are used from the next one on, which is looked at.
    #[cold]
    #[inline(never)]
    fn less_bulk(&mut self, used: u32) -> Option<Found> {
        if !used.is_power_of_two() || !(BULK_FIRST..self.used).contains(&used) {
            return self.give_up();
        }
        self.seq = self.seq.wrapping_add(1);
        self.used = used;
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
    #[inline(always)]
    pub fn consume(&mut self, found: &Found) {
        self.seq = self.seq.wrapping_add(1);
        self.bulk = found.bulk;
        self.used = found.used;
        self.publish_if_due();
    }

    /// The program reads this payload where it lies, until [`placed::word`] says otherwise: what has been read of the ring stays as it is.
    pub fn lend(&mut self, payload: *const u8) {
        self.lent = payload.addr();
    }

    /// The message of the next cell, of [`PAST`](crate::shm::cell::PAST) bytes or more, has been found. If its sender was asked to say when it began to
    /// write it, and it was waited for, how long it takes until it has been read says how others are to be written.
    #[inline(never)]
    pub fn time(&mut self, head: &Head, is_read: bool) {
        const WHOLE: u8 = flag::FIRST | flag::LAST | flag::BULK;
        if head.flags & WHOLE != WHOLE {
            return;
        }
        let is_awaited = self.acquired == self.seq;
        match self.cells.at(self.seq).begin() {
            Some(begin) if is_awaited => self.timed = Some((begin, head.len)),
            Some(_) => self.ask_for(self.pace.streams(), false),
            None if is_awaited => self.skip_one(),
            None => {}
        }
        if is_read {
            self.has_been_read();
        }
    }

    /// One that was waited for is not timed; the next one may be.
    fn skip_one(&mut self) {
        self.untimed = self.untimed.wrapping_add(1);
        if self.untimed.is_multiple_of(TIMED_OF) {
            let streams = self.pace.next_streams();
            self.ask_for(streams, true);
        }
    }

    /// The message that is timed, if there is one, has been read.
    #[inline]
    pub fn has_been_read(&mut self) {
        if let Some((begin, len)) = self.timed.take() {
            self.note(begin, len);
        }
    }

    /// Its time says how others are to be written.
    #[inline(never)]
    fn note(&mut self, begin: Begin, len: u32) {
        let time = Duration::from_nanos(clock::ticks().saturating_sub(begin.at));
        let is_small = self.used <= 2 * len.next_power_of_two();
        match begin.streams {
            false if is_small => self.pace.note_through_small(len, time),
            streams => self.pace.note(streams, len, time),
        }
        self.ask_for(self.pace.streams(), false);
    }

    /// Tells the sender how to write long messages, and whether to say when it begins.
    fn ask_for(&self, streams: bool, times: bool) {
        let past = if STREAMS && streams { ASKS_PAST } else { 0 };
        let word = past | if times { ASKS_TIME } else { 0 };
        self.data.u32(C_MANNER).store(word, Ordering::Relaxed);
    }

    /// The program reads a payload of this ring.
    #[inline]
    pub fn is_lent(&self) -> bool {
        self.lent != 0 && placed::word().at().addr() == self.lent
    }

    /// Tells the sender what it was not told while a payload was being read.
    pub fn publish_late(&mut self) {
        if std::mem::take(&mut self.late) {
            self.publish();
        }
    }

    #[inline(never)]
    fn publish(&mut self) {
        if self.is_lent() {
            self.late = true;
            return;
        }
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
