//! Receive slots: the numbers under which receive buffers are posted.
#![forbid(unsafe_code)]

use crate::transport::wrid::{GENERATION_MASK, Kind, WrId};
use verbs::{Buf, Pool, PoolError, Posted, RecvChain};

/// Receives that are posted with one call.
pub const CHAIN: usize = 16;

/// Buffers on their way to the device, under their slots' work request ids.
pub type Chain = RecvChain<CHAIN>;

/// A receive buffer and where it is posted.
#[derive(Debug)]
pub struct RecvSlot {
    /// The device's buffer, while it is posted.
    pub posted: Option<Posted>,
    /// Our buffer, while it waits to be posted again; in neither while its message is being
    /// delivered.
    pub held: Option<Buf>,
    /// Which use of this slot (24 bits).
    pub generation: u32,
    /// Endpoint of a per-peer queue, or [`NO_ENDPOINT`].
    pub endpoint: u32,
    /// Queue of the layout.
    pub queue: u8,
    /// Where its endpoint's list has it.
    place: u32,
}

/// All receive slots of a transport. While a slot is in use its buffer is posted again and again
/// under one number.
#[derive(Debug, Default)]
pub struct RecvSlots {
    slots: Vec<RecvSlot>,
    free: Vec<u32>,
    /// The slots of each endpoint's per-peer queues, by its index: taking an endpoint down must not
    /// cost a look at all others' slots.
    owned: Vec<Vec<u32>>,
}

impl RecvSlots {
    /// A slot for a buffer of `queue`, of `endpoint` where the queue is per peer.
    pub fn take(&mut self, endpoint: u32, queue: usize) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let slot = &mut self.slots[index as usize];
        (slot.endpoint, slot.queue) = (endpoint, queue as u8);
        if endpoint != NO_ENDPOINT {
            self.own(index, endpoint as usize);
        }
        index
    }

    fn grow(&mut self) -> u32 {
        let unused =
            RecvSlot { posted: None, held: None, generation: 0, endpoint: NO_ENDPOINT, queue: 0, place: 0 };
        self.slots.push(unused);
        (self.slots.len() - 1) as u32
    }

    fn own(&mut self, index: u32, endpoint: usize) {
        if self.owned.len() <= endpoint {
            self.owned.resize_with(endpoint + 1, Vec::new);
        }
        self.slots[index as usize].place = self.owned[endpoint].len() as u32;
        self.owned[endpoint].push(index);
    }

    /// The slot belongs to no endpoint any more.
    fn part(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let (endpoint, place) = (std::mem::replace(&mut slot.endpoint, NO_ENDPOINT), slot.place);
        let Some(owned) = self.owned.get_mut(endpoint as usize) else { return };
        owned.swap_remove(place as usize);
        if let Some(moved) = owned.get(place as usize) {
            self.slots[*moved as usize].place = place;
        }
    }

    /// Takes the buffers of a shared queue that the device has given up with it.
    pub fn take_back(&mut self, queue: usize) -> impl Iterator<Item = Buf> {
        let slots = self.slots.iter_mut().filter(move |slot| usize::from(slot.queue) == queue);
        slots.filter_map(|slot| slot.posted.take()).map(Posted::completed)
    }

    /// The work request id under which the slot's buffer is posted.
    pub fn wr_id(&self, kind: Kind, index: u32) -> u64 {
        let slot = &self.slots[index as usize];
        WrId::new(kind, slot.queue as usize, slot.generation, index).0
    }

    /// Moves the buffers of consumed slots into a chain, as many as it takes.
    #[inline]
    pub fn take_consumed(&mut self, kind: Kind, consumed: &mut Vec<u32>, chain: &mut Chain) {
        while chain.len() < CHAIN
            && let Some(index) = consumed.pop()
        {
            if let Some(buf) = self.by_index(index).held.take() {
                self.add(kind, index, buf, chain);
            }
        }
    }

    /// Puts `wanted` new buffers into a chain, or as many as it takes, each in a slot of its own for
    /// this endpoint and queue.
    ///
    /// # Errors
    /// Memory is short; those before it are in the chain.
    pub fn fill(
        &mut self,
        (endpoint, queue): (u32, usize),
        pool: &mut Pool,
        wanted: usize,
        chain: &mut Chain,
    ) -> Result<(), PoolError> {
        while chain.len() < wanted.min(CHAIN) {
            let buf = pool.take()?;
            let index = self.take(endpoint, queue);
            self.add(Kind::Peer, index, buf, chain);
        }
        Ok(())
    }

    /// What the device has not taken of a chain goes back to its pool, and its slots are free.
    #[cold]
    pub fn empty(&mut self, mut chain: Chain, pool: &mut Pool) {
        while let Some((wr_id, buf)) = chain.pop() {
            pool.put(buf);
            self.release(WrId(wr_id).index());
        }
    }

    /// Appends a slot's buffer to a chain; one that has no room leaves it with the slot.
    #[inline]
    pub fn add(&mut self, kind: Kind, index: u32, buf: Buf, chain: &mut Chain) {
        if let Err(buf) = chain.push(self.wr_id(kind, index), buf) {
            self.by_index(index).held = Some(buf);
        }
    }

    /// The device has taken a slot's buffer.
    #[inline]
    pub fn posted(&mut self, wr_id: u64, buf: Posted) {
        self.by_index(WrId(wr_id).index()).posted = Some(buf);
    }

    /// What the device has not taken of a chain waits in its slots.
    #[cold]
    pub fn put_back(&mut self, mut chain: Chain, consumed: &mut Vec<u32>) {
        while let Some((wr_id, buf)) = chain.pop() {
            let index = WrId(wr_id).index();
            self.by_index(index).held = Some(buf);
            consumed.push(index);
        }
    }

    /// The slot is no longer used; completions that still name it are stale.
    pub fn release(&mut self, index: u32) {
        self.part(index);
        let slot = &mut self.slots[index as usize];
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        self.free.push(index);
    }

    /// The slot of a completion; `None` if it is stale.
    #[inline]
    pub fn at(&mut self, id: WrId) -> Option<&mut RecvSlot> {
        self.slots.get_mut(id.index() as usize).filter(|s| s.generation == id.generation())
    }

    /// The slot by its number.
    #[inline]
    pub fn by_index(&mut self, index: u32) -> &mut RecvSlot {
        &mut self.slots[index as usize]
    }

    /// Buffers of `queue` that the device holds, and that wait to be posted again.
    pub fn tally(&self, queue: usize) -> (usize, usize) {
        let of_queue = || self.slots.iter().filter(|s| usize::from(s.queue) == queue);
        (of_queue().filter(|s| s.posted.is_some()).count(), of_queue().filter(|s| s.held.is_some()).count())
    }

    /// What the upper layer still holds of `endpoint`'s messages is of a connection that is gone.
    pub fn disown(&mut self, endpoint: u32) {
        let held_above = |s: &RecvSlot| s.posted.is_none() && s.held.is_none();
        for index in self.owned_by(endpoint).to_vec() {
            if held_above(&self.slots[index as usize]) {
                self.part(index);
            }
        }
    }

    /// Slots in use on the per-peer queues of `endpoint`.
    pub fn of_endpoint(&self, endpoint: u32) -> Vec<u32> {
        let in_use = |s: &RecvSlot| s.posted.is_some() || s.held.is_some();
        self.owned_by(endpoint).iter().copied().filter(|i| in_use(&self.slots[*i as usize])).collect()
    }

    /// The device holds a buffer of `endpoint`'s per-peer queues.
    pub fn are_posted(&self, endpoint: u32) -> bool {
        self.owned_by(endpoint).iter().any(|i| self.slots[*i as usize].posted.is_some())
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
        let mut all: Vec<_> = (0..).zip(&slots.slots).map(|(index, slot)| (slot.endpoint, index)).collect();
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
                    0 => used.push(slots.take(endpoint, 0)),
                    1 => used.push(slots.take(NO_ENDPOINT, 1)),
                    2 if !used.is_empty() => slots.release(used.swap_remove(which.index(used.len()))),
                    _ => slots.disown(endpoint),
                }
                prop_assert_eq!(lists(&slots), owners(&slots));
            }
        }
    }
}
