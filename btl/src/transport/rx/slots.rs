//! Receive slots: the numbers under which receive buffers are posted.
#![forbid(unsafe_code)]

use crate::transport::stats::Chains;
use crate::transport::wrid::{GENERATION_MASK, Kind, WrId};
use slab::Slab;
use verbs::{Buf, Completion, Destroyed, Lent, Pool, PoolError, Recv, RecvList, RecvQueue};

/// Receives that are posted with one call.
pub const LIST: usize = 16;

/// A receive and whose it is.
#[derive(Debug)]
pub struct RecvSlot {
    /// Its buffer is with the device, with us until it is posted again, or with the upper layer, while its message is being
    /// delivered.
    pub recv: Recv,
    /// Endpoint of a per-peer queue, or [`NO_ENDPOINT`].
    endpoint: u32,
    /// Where its endpoint's list has it.
    at: u32,
}

impl RecvSlot {
    /// The bytes come back: the buffer waits to be posted again.
    #[inline]
    pub fn back(&mut self, bytes: Lent) {
        if let Err(bytes) = self.recv.back(bytes) {
            confused(&bytes);
        }
    }

    /// It is of a shared queue.
    #[inline(always)] // with every message
    pub fn is_shared(&self) -> bool {
        !WrId(self.recv.wr_id()).is(Kind::Peer)
    }

    /// It is of this endpoint, and of a connection that it still has.
    #[inline(always)] // with every message
    pub fn is_of(&self, endpoint: u32) -> bool {
        self.endpoint == endpoint
    }

    fn queue(&self) -> usize {
        WrId(self.recv.wr_id()).queue()
    }
}

#[cold]
fn confused(bytes: &Lent) {
    log::error!("{bytes:?} came back to a receive that did not lend it");
}

/// All receive slots of a transport. While a slot is in use its buffer is posted again and again
/// under one number.
#[derive(Debug, Default)]
pub struct RecvSlots {
    slots: Slab<RecvSlot>,
    /// Slots that have been taken: tells the uses of a place apart (24 bits).
    taken: u32,
    /// The slots of each endpoint's per-peer queues, by its index: taking an endpoint down must not
    /// cost a look at all others' slots.
    owned: Vec<Vec<u32>>,
    /// What went to the device in lists.
    chains: Chains,
}

impl RecvSlots {
    /// A slot for a buffer of `queue`, of `endpoint` where the queue is per peer.
    pub fn take(&mut self, kind: Kind, endpoint: u32, queue: usize) -> u32 {
        self.taken = (self.taken + 1) & GENERATION_MASK;
        let place = self.slots.vacant_entry();
        let index = place.key() as u32;
        let id = WrId::new(kind, queue, self.taken, index);
        place.insert(RecvSlot { recv: Recv::new(id.0), endpoint, at: 0 });
        if endpoint != NO_ENDPOINT {
            self.own(index, endpoint as usize);
        }
        index
    }

    fn own(&mut self, index: u32, endpoint: usize) {
        if self.owned.len() <= endpoint {
            self.owned.resize_with(endpoint + 1, Vec::new);
        }
        self.slots[index as usize].at = self.owned[endpoint].len() as u32;
        self.owned[endpoint].push(index);
    }

    /// The slot belongs to no endpoint any more.
    fn part(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let (endpoint, at) = (std::mem::replace(&mut slot.endpoint, NO_ENDPOINT), slot.at);
        let Some(owned) = self.owned.get_mut(endpoint as usize) else { return };
        owned.swap_remove(at as usize);
        if let Some(moved) = owned.get(at as usize) {
            self.slots[*moved as usize].at = at;
        }
    }

    /// The buffers of a shared queue that is gone: the device has given them up with it.
    pub fn take_back(&mut self, queue: usize, gone: &Destroyed) -> impl Iterator<Item = Buf> {
        let slots = self.slots.iter_mut().map(|(_, slot)| slot);
        slots.filter(move |slot| slot.queue() == queue).filter_map(|slot| slot.recv.outlived(gone))
    }

    /// The slot.
    #[inline(always)] // with every message
    pub fn get_mut(&mut self, index: u32) -> Option<&mut RecvSlot> {
        self.slots.get_mut(index as usize)
    }

    /// What went to the device in lists.
    pub fn chains(&self) -> Chains {
        self.chains
    }

    /// The bytes of a receive that has completed, and the endpoint that its slot is of; `None` if
    /// it is stale.
    #[inline(always)] // with every message
    pub fn completed(&mut self, done: Completion) -> Option<(Lent, u32)> {
        let slot = self.slots.get_mut(WrId(done.wr_id()).index() as usize)?;
        Some((slot.recv.completed(done)?, slot.endpoint))
    }

    /// The bytes of a slot's message are going to be kept: they are put into its buffer if they lie elsewhere.
    #[inline]
    pub fn settle(&self, index: u32, bytes: Lent) -> Lent {
        match self.slots.get(index as usize) {
            Some(slot) => slot.recv.settle(bytes),
            None => bytes,
        }
    }

    /// The same for a completion that is going to be kept.
    pub fn settle_completion(&mut self, done: &mut Completion) {
        if let Some(slot) = self.slots.get_mut(WrId(done.wr_id()).index() as usize) {
            slot.recv.settle_completion(done);
        }
    }

    /// The slot has a buffer, which waits to be posted.
    pub fn hold(&mut self, index: u32, buf: Buf) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            let held = slot.recv.hold(buf);
            debug_assert!(held.is_ok(), "only a new slot takes a buffer");
        }
    }

    /// The bytes of a slot come back: its buffer waits to be posted again.
    #[inline]
    pub fn back(&mut self, index: u32, bytes: Lent) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.back(bytes);
        }
    }

    /// Appends a slot's receive to a list, if it waits to be posted.
    #[inline]
    pub fn add<Q: RecvQueue>(&mut self, index: u32, list: &mut RecvList<'_, Q, LIST>) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            list.push(&mut slot.recv);
        }
    }

    /// Moves the receives of consumed slots into a list, as many as it takes and are wanted.
    #[inline]
    pub fn take_consumed<Q: RecvQueue>(
        &mut self,
        consumed: &mut Vec<u32>,
        wanted: usize,
        list: &mut RecvList<'_, Q, LIST>,
    ) {
        let from = consumed.len().saturating_sub(wanted.min(LIST));
        let mut filling = list.filling();
        for index in consumed.drain(from..).rev() {
            if let Some(slot) = self.slots.get_mut(index as usize) {
                filling.push(&mut slot.recv);
            }
        }
    }

    /// Puts `wanted` new buffers into a list, or as many as it takes, each in a slot of its own for
    /// this endpoint and queue.
    ///
    /// # Errors
    /// Memory is short; those before it are in the list.
    pub fn fill<Q: RecvQueue>(
        &mut self,
        (endpoint, queue): (u32, usize),
        pool: &mut Pool,
        wanted: usize,
        list: &mut RecvList<'_, Q, LIST>,
    ) -> Result<(), PoolError> {
        while list.len() < wanted.min(LIST) {
            let buf = pool.take()?;
            let index = self.take(Kind::Peer, endpoint, queue);
            self.hold(index, buf);
            self.add(index, list);
        }
        Ok(())
    }

    /// Posts the receives of a list: how many went, and why not all. What the device has not taken waits in its slots:
    /// [`RecvSlots::refused`] names them.
    #[inline]
    pub fn post<Q: RecvQueue>(
        &mut self,
        list: &mut RecvList<'_, Q, LIST>,
    ) -> (usize, Result<(), verbs::Error>) {
        let (count, result) = match list.post() {
            Ok(count) => (count, Ok(())),
            Err((count, error)) => (count, Err(error)),
        };
        self.chains.lists += 1;
        self.chains.requests += count as u64;
        (count, result)
    }

    /// The slot of the next request that the device has not taken of a list: its buffer waits in it.
    #[cold]
    pub fn refused<Q: RecvQueue>(&mut self, list: &mut RecvList<'_, Q, LIST>) -> Option<u32> {
        let unposted = list.pop()?;
        let index = WrId(unposted.wr_id()).index();
        let known = self.slots.get_mut(index as usize).is_some_and(|slot| slot.recv.refused(&unposted));
        debug_assert!(known, "a list has receives of slots only");
        Some(index)
    }

    /// What the device has not taken of a list goes back to its pool, and its slots are free.
    #[cold]
    pub fn empty<Q: RecvQueue>(&mut self, list: &mut RecvList<'_, Q, LIST>, pool: &mut Pool) {
        while let Some(index) = self.refused(list) {
            self.release(index).into_iter().for_each(|buf| pool.put(buf));
        }
    }

    /// What the device has not taken of a list waits in its slots.
    #[cold]
    pub fn put_back<Q: RecvQueue>(&mut self, list: &mut RecvList<'_, Q, LIST>, consumed: &mut Vec<u32>) {
        while let Some(index) = self.refused(list) {
            consumed.push(index);
        }
    }

    /// The slot is no longer used; completions that still name it are stale. What it holds.
    pub fn release(&mut self, index: u32) -> Option<Buf> {
        self.part(index);
        self.slots.try_remove(index as usize).and_then(|mut slot| slot.recv.take())
    }

    /// Buffers of `queue` that the device holds, and that wait to be posted again.
    pub fn tally(&self, queue: usize) -> (usize, usize) {
        let of_queue = || self.slots.iter().map(|(_, slot)| slot).filter(|slot| slot.queue() == queue);
        let posted = of_queue().filter(|slot| slot.recv.is_posted()).count();
        let held = of_queue().filter(|slot| slot.recv.is_held()).count();
        (posted, held)
    }

    /// What the upper layer still holds of `endpoint`'s messages is of a connection that is gone.
    pub fn disown(&mut self, endpoint: u32) {
        for index in self.owned_by(endpoint).to_vec() {
            if self.slots[index as usize].recv.is_lent() {
                self.part(index);
            }
        }
    }

    /// Releases the slots of `endpoint`'s per-peer queues but for those whose messages the upper
    /// layer holds: the buffers that wait, each with its queue. One that is posted stays with the
    /// device.
    pub fn release_all(&mut self, endpoint: u32) -> Vec<(usize, Buf)> {
        let mut buffers = Vec::new();
        for index in self.owned_by(endpoint).to_vec() {
            let slot = &self.slots[index as usize];
            let queue = slot.queue();
            if !slot.recv.is_lent() {
                buffers.extend(self.release(index).map(|buf| (queue, buf)));
            }
        }
        buffers
    }

    /// The device holds a buffer of `endpoint`'s per-peer queues.
    pub fn are_posted(&self, endpoint: u32) -> bool {
        let is_posted = |index: &u32| self.slots[*index as usize].recv.is_posted();
        self.owned_by(endpoint).iter().any(is_posted)
    }

    /// Slots of `endpoint`'s per-peer queues.
    pub fn owned(&self, endpoint: u32) -> u32 {
        self.owned_by(endpoint).len() as u32
    }

    fn owned_by(&self, endpoint: u32) -> &[u32] {
        self.owned.get(endpoint as usize).map_or(&[], Vec::as_slice)
    }
}

/// The endpoint of slots that belong to no single peer.
pub const NO_ENDPOINT: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What each endpoint owns, as looking at every slot says.
    fn owners(slots: &RecvSlots) -> Vec<(u32, u32)> {
        let mut all: Vec<_> = slots.slots.iter().map(|(index, slot)| (slot.endpoint, index as u32)).collect();
        all.retain(|(endpoint, _)| *endpoint != NO_ENDPOINT);
        all.sort_unstable();
        all
    }

    fn lists(slots: &RecvSlots) -> Vec<(u32, u32)> {
        let of = |endpoint: u32| slots.owned_by(endpoint).iter().map(move |index| (endpoint, *index));
        let mut all: Vec<_> = (0..slots.owned.len() as u32).flat_map(of).collect();
        all.sort_unstable();
        all
    }

    proptest! {
        #[test]
        fn each_endpoint_lists_the_slots_that_are_its_own(
            steps in prop::collection::vec((0u8..4, 0u32..5, any::<prop::sample::Index>()), 1..200)
        ) {
            let mut slots = RecvSlots::default();
            let mut used = Vec::new();
            for (step, endpoint, which) in steps {
                match step {
                    0 => used.push(slots.take(Kind::Peer, endpoint, 0)),
                    1 => used.push(slots.take(Kind::Shared, NO_ENDPOINT, 1)),
                    2 if !used.is_empty() => drop(slots.release(used.swap_remove(which.index(used.len())))),
                    _ => slots.disown(endpoint),
                }
                prop_assert_eq!(lists(&slots), owners(&slots));
            }
        }
    }

    #[test]
    fn a_slot_is_no_longer_than_a_line_of_the_cache() {
        assert_eq!(size_of::<RecvSlot>(), 48);
    }
}
