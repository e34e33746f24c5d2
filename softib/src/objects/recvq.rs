//! Receive queues, private part: what a posted receive looks like to its owner.
//!
//! The shared part (`shm::rq`) tells initiators that a receive exists and how long it is; buffers and wr_ids are kept
//! here, by position. In a queue with many senders a position may be claimed by a slow sender while the
//! ring of slots comes round: the claim then moves to `displaced` and the slot is used again.

use crate::errno::Errno;
use crate::shm::buffers::{Buffer, Buffers, LEAST};
use crate::shm::heap::{Extent, Heap};
use crate::shm::rq::{self, Place, Shape};
use crate::shm::segment::Segment;
use crate::shm::shortage::take_space;
use rdma_sys::ibv_sge;
use std::collections::HashMap;

/// A receive taken from the queue, with its buffers.
#[derive(Debug, Clone)]
pub struct Taken {
    /// As it was posted.
    pub wr_id: u64,
    /// Its buffers.
    pub sges: Vec<ibv_sge>,
    /// A buffer was not one to receive into when it was posted.
    pub bad: bool,
}

/// A message of several fragments on its way in.
#[derive(Debug)]
pub struct Partial {
    /// The receive that it goes into.
    pub taken: Taken,
    /// Bytes that have come.
    pub received: u32,
}

impl Taken {
    /// Bytes that its buffers hold.
    pub fn capacity(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// A posted receive; half a cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(32))]
struct Slot {
    wr_id: u64,
    /// Its buffer, if it has one; more are in the queue's `lists`.
    one: ibv_sge,
    pos: u32,
    sges: u8,
    live: bool,
    bad: bool,
    /// It has been posted with one buffer that was fine then.
    vouched: bool,
}

impl Slot {
    /// Whether it is live, and has one buffer that was fine when it was posted.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        let flags = [self.sges, self.live.into(), self.bad.into(), self.vouched.into()];
        // One comparison.
        u32::from_ne_bytes(flags) == u32::from_ne_bytes([1, 1, 0, 1])
    }
}

/// A receive that an initiator has consumed, for a caller that may want to take it.
#[derive(Debug)]
pub struct Next<'a> {
    slot: &'a mut Slot,
    head: &'a mut u32,
    outstanding: &'a mut u32,
}

impl Next<'_> {
    /// Its buffer.
    #[inline(always)]
    pub fn buffer(&self) -> &ibv_sge {
        &self.slot.one
    }

    /// Takes it: its wr_id.
    #[inline(always)]
    pub fn take(self) -> u64 {
        *self.head = self.slot.pos.wrapping_add(1);
        *self.outstanding -= 1;
        self.slot.live = false;
        self.slot.wr_id
    }
}

/// Receives that are posted one after the other: of a queue with one sender, they are shown when it is dropped, all at once.
#[derive(Debug)]
pub struct Posting<'a> {
    queue: &'a mut RecvQ,
    tail: u32,
    /// So many more may be posted.
    room: u32,
    /// One less than the queue has places.
    mask: u32,
}

impl Posting<'_> {
    /// As [`RecvQ::post_short`].
    #[inline(always)]
    pub fn add(&mut self, wr_id: u64, one: ibv_sge) -> bool {
        let (pos, at) = (self.tail, (self.tail & self.mask) as usize);
        let Some(slot) = self.queue.slots.get_mut(at) else { return false };
        if slot.live || one.length >= rq::BAD || self.room == 0 {
            return false;
        }
        *slot = Slot { wr_id, one, pos, sges: 1, live: true, bad: false, vouched: true };
        if one.length >= LEAST {
            self.queue.write_down(pos, &one);
        }
        match self.queue.shared {
            true => self.queue.place.post_shared(pos, one.length),
            false => self.queue.place.prepare(pos, one.length),
        }
        self.tail = pos.wrapping_add(1);
        self.room -= 1;
        true
    }
}

impl Drop for Posting<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let queue = &mut *self.queue;
        if !queue.shared {
            queue.place.show(self.tail);
        }
        queue.outstanding += self.tail.wrapping_sub(queue.tail);
        queue.tail = self.tail;
    }
}

/// Slots that are made together.
const SLOTS_AT_A_TIME: usize = 64;

/// A receive queue: the private part, and where the shared one is.
#[derive(Debug)]
pub struct RecvQ {
    /// The shared part.
    pub place: Place,
    extent: Extent,
    /// Many senders claim (SRQ, UD), or one counts (RC, UC).
    pub shared: bool,
    /// Most receives that may be posted.
    pub max_wr: u32,
    /// Most buffers of one receive.
    pub max_sge: u32,
    /// Receives posted and not yet taken.
    pub outstanding: u32,
    tail: u32,
    head: u32,
    /// When position `vouched_from` was posted, so many regions had been withdrawn, and none has been until the last one was.
    withdrawn: u32,
    vouched_from: u32,
    /// Those that have been used: at most as many as the queue has places.
    slots: Vec<Slot>,
    /// What initiators are told of the buffers, once one has asked, and where that is.
    told: Option<(Buffers, Extent)>,
    /// `max_sge` places for each slot, if that is more than one.
    lists: Box<[ibv_sge]>,
    displaced: HashMap<u32, (Taken, usize)>,
}

impl RecvQ {
    /// An empty queue, placed in the segment. ENOMEM: no room there.
    pub fn new(
        segment: &Segment,
        heap: &mut Heap,
        shared: bool,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<RecvQ, Errno> {
        let size = max_wr.max(1).next_power_of_two();
        let shape = Shape { size, shared };
        let extent = heap.alloc(shape.bytes()).ok_or(Errno::NOMEM)?;
        let place = open_place(segment, extent, shape).inspect_err(|_| heap.release(extent))?;
        place.reset();
        let max_sge = max_sge.max(1);
        let listed = if max_sge > 1 { size * max_sge } else { 0 };
        Ok(RecvQ {
            place,
            extent,
            shared,
            max_wr,
            max_sge,
            outstanding: 0,
            tail: 0,
            head: 0,
            withdrawn: 0,
            vouched_from: 0,
            slots: Vec::new(),
            told: None,
            lists: vec![ibv_sge::default(); listed as usize].into_boxed_slice(),
            displaced: HashMap::new(),
        })
    }

    /// How many receives of a queue with many senders can still be claimed, if some have been claimed that have not been taken.
    #[inline]
    pub fn unclaimed(&self) -> Option<u32> {
        let left = self.tail.wrapping_sub(self.place.next_claim()?);
        (left < self.outstanding).then_some(left)
    }

    /// Where the queue was, so that its space can be released.
    pub fn extents(&self) -> impl Iterator<Item = Extent> {
        let told = self.told.as_ref().map(|(_, extent)| *extent);
        [self.extent].into_iter().chain(told)
    }

    /// An initiator asks where the buffers are, or does not want to know any more, and is to be [told](Self::tell).
    #[inline(always)]
    pub fn is_asked(&self) -> bool {
        self.place.is_asked()
    }

    /// Tells initiators where the buffers of receives are that are posted from now on, if there is room for that in the segment; or what was told
    /// comes back, if no initiator wants to know it any more.
    #[cold]
    pub fn tell(&mut self, segment: &Segment, heap: &mut Heap) -> Option<Extent> {
        if self.place.takes_decline() {
            return self.told.take().map(|(_, extent)| extent);
        }
        if self.told.is_none() {
            self.told = open_told(segment, heap, self.place.size);
        }
        if let Some((buffers, _)) = &self.told {
            // Positions begin at 0 again where a queue pair has been reset.
            (0..self.place.size).for_each(|pos| buffers.clear(pos));
        }
        self.place.tell(self.told.as_ref().map_or(0, |(_, extent)| extent.offset));
        None
    }

    /// Writes the only buffer of a receive down for initiators that have asked.
    #[inline]
    fn write_down(&self, pos: u32, one: &ibv_sge) {
        if let Some((buffers, _)) = &self.told {
            buffers.put(pos, Buffer { addr: one.addr, lkey: one.lkey, len: one.length });
        }
    }

    fn index(&self, pos: u32) -> usize {
        (pos & (self.place.size - 1)) as usize
    }

    /// Posts a receive; `bad` marks one whose buffers failed the checks.
    #[inline(always)]
    pub fn post(&mut self, wr_id: u64, sges: &[ibv_sge], bad: bool) -> Result<(), Errno> {
        if self.outstanding >= self.max_wr {
            return Err(Errno::NOMEM);
        }
        if sges.len() > self.max_sge as usize {
            return Err(Errno::INVAL);
        }
        let (pos, at) = (self.tail, self.index(self.tail));
        if self.slots.len() <= at {
            self.add_slots(at);
        }
        if self.slots[at].live {
            self.displace(at);
        }
        let one = sges.first().copied().unwrap_or_default();
        self.slots[at] = Slot { wr_id, one, pos, sges: sges.len() as u8, live: true, bad, vouched: false };
        let start = at * self.max_sge as usize;
        if sges.len() > 1
            && let Some(list) = self.lists.get_mut(start..start + sges.len())
        {
            list.copy_from_slice(sges);
        }
        let total: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        let len = (total.min(u64::from(rq::BAD - 1)) as u32) | if bad { rq::BAD } else { 0 };
        self.show(pos, len);
        Ok(())
    }

    /// Shows a receive that has been written down to those who send.
    #[inline(always)]
    fn show(&mut self, pos: u32, len: u32) {
        if self.shared {
            self.place.post_shared(pos, len);
        } else {
            self.place.post(pos, len);
        }
        self.tail = pos.wrapping_add(1);
        self.outstanding += 1;
    }

    /// Posts a receive with one buffer, which has been checked when `withdrawn` regions had been withdrawn. False: there is something in
    /// its way.
    #[inline(always)]
    pub fn post_short(&mut self, wr_id: u64, one: ibv_sge, withdrawn: u32) -> bool {
        self.posting(withdrawn).add(wr_id, one)
    }

    /// The same for several.
    #[inline(always)]
    pub fn posting(&mut self, withdrawn: u32) -> Posting<'_> {
        if self.withdrawn != withdrawn {
            (self.withdrawn, self.vouched_from) = (withdrawn, self.tail);
        }
        let (room, mask) = (self.max_wr.saturating_sub(self.outstanding), self.place.size - 1);
        Posting { tail: self.tail, room, mask, queue: self }
    }

    /// Makes the slot of a place and some behind it: a queue is often much larger than what is posted to it.
    #[cold]
    fn add_slots(&mut self, at: usize) {
        let count = (at + SLOTS_AT_A_TIME).min(self.place.size as usize);
        self.slots.resize(count, Slot::default());
    }

    #[cold]
    fn displace(&mut self, at: usize) {
        let pos = self.slots[at].pos;
        let owner = self.place.displace(pos).unwrap_or(usize::MAX);
        let taken = self.read(at);
        self.displaced.insert(pos, (taken, owner));
        self.slots[at].live = false;
    }

    fn read(&self, at: usize) -> Taken {
        let slot = &self.slots[at];
        Taken { wr_id: slot.wr_id, sges: self.list(at, slot.sges).to_vec(), bad: slot.bad }
    }

    /// Takes the receive that an initiator consumed, and shows its buffers where they lie: wr_id and scatter list. None: the
    /// queue has to be asked with [`Self::take`].
    #[inline(always)]
    pub fn take_in_place(&mut self, pos: u32) -> Option<(u64, &[ibv_sge])> {
        let at = self.index(pos);
        let slot = *self.slots.get(at)?;
        if !slot.live || slot.pos != pos || !self.shared && pos != self.head {
            return None;
        }
        self.head = pos.wrapping_add(1);
        self.slots[at].live = false;
        self.outstanding -= 1;
        Some((slot.wr_id, self.list(at, slot.sges)))
    }

    /// Receive `pos`, if it can be the one that was consumed, and has one buffer, which was fine when it was posted. With one sender it
    /// is the head, and what is live at the head's place is that.
    #[inline(always)]
    pub fn next(&mut self, pos: u32) -> Option<Next<'_>> {
        let at = self.index(pos);
        let slot = self.slots.get_mut(at)?;
        let next = if self.shared { slot.pos == pos } else { pos == self.head };
        (next && slot.is_plain()).then_some(Next {
            slot,
            head: &mut self.head,
            outstanding: &mut self.outstanding,
        })
    }

    /// Whether the buffer of a receive that [`Self::next`] has shown, or will, is as fine as when it was posted: `withdrawn` regions
    /// have been withdrawn by now.
    #[inline(always)]
    pub fn vouches(&self, pos: u32, withdrawn: u32) -> bool {
        // Older ones lie less than a queue's length before it. So long after it that positions come round, a few are taken for such.
        let age = self.vouched_from.wrapping_sub(pos).wrapping_sub(1);
        self.withdrawn == withdrawn && age >= self.place.size
    }

    #[inline]
    fn list(&self, at: usize, count: u8) -> &[ibv_sge] {
        match count {
            1 => std::slice::from_ref(&self.slots[at].one),
            count => {
                let start = at * self.max_sge as usize;
                self.lists.get(start..start + count as usize).unwrap_or_default()
            }
        }
    }

    /// Takes the receive that an initiator consumed. None: it can't have, the message is not to be believed.
    pub fn take(&mut self, pos: u32) -> Option<Taken> {
        let bad = self.slots.get(self.index(pos)).is_some_and(|slot| slot.bad);
        if let Some((wr_id, sges)) = self.take_in_place(pos) {
            return Some(Taken { wr_id, sges: sges.to_vec(), bad });
        }
        self.take_displaced(pos)
    }

    #[cold]
    fn take_displaced(&mut self, pos: u32) -> Option<Taken> {
        let (taken, _) = self.displaced.remove(&pos)?;
        self.outstanding -= 1;
        Some(taken)
    }

    /// Posts a receive again that was taken and not used.
    pub fn repost(&mut self, taken: Taken) {
        // There is room: it was counted as outstanding a moment ago.
        let _ = self.post(taken.wr_id, &taken.sges, taken.bad);
    }

    /// Asks about each posted receive whether its buffers are fine. None: as before.
    pub fn recheck(&mut self, fine: impl Fn(&[ibv_sge]) -> Option<bool>) {
        for at in 0..self.slots.len() {
            let slot = self.slots[at];
            let verdict = if slot.live { fine(self.list(at, slot.sges)) } else { None };
            let Some(fine) = verdict else { continue };
            self.slots[at].bad = !fine;
            let flag = if fine { 0 } else { rq::BAD };
            self.place.change_len(slot.pos, |len| len & !rq::BAD | flag);
        }
    }

    /// Takes everything that is posted, in order, for a flush. Initiators find nothing afterwards.
    pub fn take_all(&mut self) -> Vec<Taken> {
        let mut early: Vec<(u32, Taken)> =
            self.displaced.drain().map(|(pos, (taken, _))| (pos, taken)).collect();
        early.sort_by_key(|(pos, _)| self.tail.wrapping_sub(*pos));
        let mut all: Vec<Taken> = early.into_iter().rev().map(|(_, taken)| taken).collect();
        let first = self.tail.wrapping_sub(self.place.size);
        for pos in (0..self.place.size).map(|i| first.wrapping_add(i)) {
            let at = self.index(pos);
            if self.slots.get(at).is_some_and(|slot| slot.live && slot.pos == pos) {
                self.place.withdraw(pos);
                all.push(self.read(at));
                self.slots[at].live = false;
            }
        }
        self.outstanding = 0;
        self.head = self.tail;
        if self.shared {
            self.place.start_at(self.tail);
        }
        all
    }

    /// Receives that ring `owner` claimed and, being dead, never delivered.
    pub fn reclaim(&mut self, owner: usize) -> Vec<Taken> {
        let mut back: Vec<u32> =
            self.displaced.iter().filter(|(_, (_, by))| *by == owner).map(|(&pos, _)| pos).collect();
        let claimed =
            self.slots.iter().filter(|slot| slot.live && self.place.claimant(slot.pos) == Some(owner));
        back.extend(claimed.map(|slot| slot.pos));
        // The dead may not have moved the head past what they claimed.
        for &pos in &back {
            let _dead = self.place.displace(pos);
        }
        back.into_iter().filter_map(|pos| self.take(pos)).collect()
    }

    /// Moves a queue with many senders to a place of another size; returns what was the old one. EINVAL: more is posted.
    ///
    /// Positions go on counting, so that what was claimed in the old place is still delivered.
    pub fn resize(&mut self, segment: &Segment, heap: &mut Heap, max_wr: u32) -> Result<RecvQ, Errno> {
        if max_wr < self.outstanding {
            return Err(Errno::INVAL);
        }
        let mut new = RecvQ::new(segment, heap, true, max_wr, self.max_sge)?;
        new.place.start_at(self.tail);
        (new.tail, new.head) = (self.tail, self.tail);
        new.displaced = std::mem::take(&mut self.displaced);
        let first = self.tail.wrapping_sub(self.place.size);
        let mut free = Vec::new();
        for pos in (0..self.place.size).map(|i| first.wrapping_add(i)) {
            let at = self.index(pos);
            if !self.slots.get(at).is_some_and(|slot| slot.live && slot.pos == pos) {
                continue;
            }
            let taken = self.read(at);
            if self.place.withdraw(pos) {
                free.push(taken);
            } else {
                let owner = self.place.claimant(pos).unwrap_or(usize::MAX);
                new.displaced.insert(pos, (taken, owner));
            }
        }
        new.outstanding = new.displaced.len() as u32;
        free.into_iter().for_each(|taken| new.repost(taken));
        Ok(std::mem::replace(self, new))
    }

    /// Forgets everything, as a QP does on its way to RESET.
    pub fn reset(&mut self) {
        self.place.reset();
        self.slots.clear();
        self.displaced.clear();
        (self.tail, self.head, self.outstanding) = (0, 0, 0);
    }
}

/// Maps a place in our segment for what initiators are told of the buffers of so many receives, and takes its space. None: there is none.
fn open_told(segment: &Segment, heap: &mut Heap, size: u32) -> Option<(Buffers, Extent)> {
    let extent = heap.alloc(Buffers::bytes(size))?;
    let taken = take_space(&segment.file, extent.offset, extent.len, "where the buffers of receives are");
    match taken.and_then(|()| segment.heaps.memory(extent.offset, extent.len)) {
        Ok(Some((map, within))) => Some((Buffers::new(map, within, size), extent)),
        Ok(None) | Err(_) => {
            heap.release(extent);
            None
        }
    }
}

/// Maps the place of a queue in our segment, and takes its space.
fn open_place(segment: &Segment, extent: Extent, shape: Shape) -> Result<Place, Errno> {
    let place = segment.heaps.queue(extent.offset, shape)?.ok_or(Errno::NOMEM)?;
    take_space(&segment.file, extent.offset, extent.len, "a receive queue")?;
    Ok(place)
}
