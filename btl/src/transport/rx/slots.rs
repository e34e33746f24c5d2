//! Receive slots: the numbers under which receive buffers are posted.
#![forbid(unsafe_code)]

use crate::transport::stats::Chains;
use crate::transport::wrid::{GENERATION_MASK, Kind, WrId};
use slab::Slab;
use verbs::{Buf, Completion, Destroyed, Pool, PoolError, Posted, Qp, RecvChain};

/// Receives that are posted with one call.
pub const CHAIN: usize = 16;

/// Buffers on their way to the device, under their slots' work request ids.
pub type Chain = RecvChain<CHAIN>;

/// Where the buffer of a slot is.
#[derive(Debug)]
enum Place {
    /// With the device.
    Posted(Posted),
    /// With us: it waits to be posted again.
    Held(Buf),
    /// With the upper layer, while its message is being delivered.
    Above,
}

/// A receive buffer and where it is.
#[derive(Debug)]
pub struct RecvSlot {
    place: Place,
    /// Under which its buffer is posted, again and again.
    id: WrId,
    /// Endpoint of a per-peer queue, or [`NO_ENDPOINT`].
    endpoint: u32,
    /// Where its endpoint's list has it.
    at: u32,
}

impl RecvSlot {
    /// The buffer waits to be posted again.
    #[inline]
    pub fn hold(&mut self, buf: Buf) {
        self.place = Place::Held(buf);
    }

    #[inline]
    fn held(&mut self) -> Option<Buf> {
        match std::mem::replace(&mut self.place, Place::Above) {
            Place::Held(buf) => Some(buf),
            other => {
                self.place = other;
                None
            }
        }
    }
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
        place.insert(RecvSlot { place: Place::Above, id, endpoint, at: 0 });
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
        slots.filter(move |slot| slot.id.queue() == queue).filter_map(|slot| {
            match std::mem::replace(&mut slot.place, Place::Above) {
                Place::Posted(posted) => posted.outlived(gone),
                other => {
                    slot.place = other;
                    None
                }
            }
        })
    }

    /// The slot, if it is of this endpoint and of a connection that it still has.
    #[inline]
    pub fn of(&mut self, index: u32, endpoint: u32) -> Option<&mut RecvSlot> {
        self.slots.get_mut(index as usize).filter(|slot| slot.endpoint == endpoint)
    }

    /// The device has taken `count` receives of a list.
    #[inline]
    pub fn count_chain(&mut self, count: usize) {
        self.chains.lists += 1;
        self.chains.requests += count as u64;
    }

    /// What went to the device in lists.
    pub fn chains(&self) -> Chains {
        self.chains
    }

    /// The buffer of a receive that has completed, and the endpoint that its slot is of; `None` if
    /// it is stale.
    #[inline]
    pub fn completed(&mut self, done: Completion) -> Option<(Buf, u32)> {
        let slot = self.slots.get_mut(WrId(done.wr_id()).index() as usize)?;
        match std::mem::replace(&mut slot.place, Place::Above) {
            Place::Posted(posted) => match posted.completed(done) {
                Ok(buf) => return Some((buf, slot.endpoint)),
                Err(posted) => slot.place = Place::Posted(posted),
            },
            other => slot.place = other,
        }
        None
    }

    /// Posts the buffer of a slot that waits to be posted again; how many, which is 0 if none waits.
    ///
    /// # Errors
    /// The queue is full: the buffer waits as before.
    #[inline(always)] // a result so large would come back through memory
    pub fn post(&mut self, index: u32, qp: &Qp) -> Result<u16, verbs::Error> {
        let Some(slot) = self.slots.get_mut(index as usize) else { return Ok(0) };
        let Some(buf) = slot.held() else { return Ok(0) };
        let (place, result) = match qp.post_recv(slot.id.0, buf) {
            Ok(posted) => (Place::Posted(posted), Ok(1)),
            Err((buf, error)) => (Place::Held(buf), Err(error)),
        };
        slot.place = place;
        result
    }

    /// The slot's buffer waits to be posted again.
    #[inline]
    pub fn hold(&mut self, index: u32, buf: Buf) {
        self.set(index, Place::Held(buf));
    }

    /// The device has taken a slot's buffer.
    #[inline]
    pub fn posted(&mut self, wr_id: u64, buf: Posted) {
        self.set(WrId(wr_id).index(), Place::Posted(buf));
    }

    #[inline]
    fn set(&mut self, index: u32, place: Place) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.place = place;
        }
    }

    /// The buffer of a slot that waits to be posted again.
    #[inline]
    pub fn take_held(&mut self, index: u32) -> Option<Buf> {
        self.slots.get_mut(index as usize)?.held()
    }

    /// The work request id under which the slot's buffer is posted.
    #[inline]
    pub fn wr_id(&self, index: u32) -> u64 {
        self.slots[index as usize].id.0
    }

    /// Moves the buffers of consumed slots into a chain, as many as it takes.
    #[inline]
    pub fn take_consumed(&mut self, consumed: &mut Vec<u32>, chain: &mut Chain) {
        while chain.len() < CHAIN
            && let Some(index) = consumed.pop()
        {
            if let Some(slot) = self.slots.get_mut(index as usize)
                && let Some(buf) = slot.held()
                && let Err(buf) = chain.push(slot.id.0, buf)
            {
                slot.place = Place::Held(buf);
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
            let index = self.take(Kind::Peer, endpoint, queue);
            self.add(index, buf, chain);
        }
        Ok(())
    }

    /// Appends a slot's buffer to a chain; one that has no room leaves it with the slot.
    pub fn add(&mut self, index: u32, buf: Buf, chain: &mut Chain) {
        if let Err(buf) = chain.push(self.wr_id(index), buf) {
            self.hold(index, buf);
        }
    }

    /// What the device has not taken of a chain goes back to its pool, and its slots are free.
    #[cold]
    pub fn empty(&mut self, mut chain: Chain, pool: &mut Pool) {
        while let Some((wr_id, buf)) = chain.pop() {
            pool.put(buf);
            self.release(WrId(wr_id).index());
        }
    }

    /// What the device has not taken of a chain waits in its slots.
    #[cold]
    pub fn put_back(&mut self, mut chain: Chain, consumed: &mut Vec<u32>) {
        while let Some((wr_id, buf)) = chain.pop() {
            let index = WrId(wr_id).index();
            self.hold(index, buf);
            consumed.push(index);
        }
    }

    /// The slot is no longer used; completions that still name it are stale. What it holds.
    pub fn release(&mut self, index: u32) -> Option<Buf> {
        self.part(index);
        self.slots.try_remove(index as usize).and_then(|mut slot| slot.held())
    }

    /// Buffers of `queue` that the device holds, and that wait to be posted again.
    pub fn tally(&self, queue: usize) -> (usize, usize) {
        let of_queue = || self.slots.iter().map(|(_, slot)| slot).filter(|slot| slot.id.queue() == queue);
        let posted = of_queue().filter(|slot| matches!(slot.place, Place::Posted(_))).count();
        let held = of_queue().filter(|slot| matches!(slot.place, Place::Held(_))).count();
        (posted, held)
    }

    /// What the upper layer still holds of `endpoint`'s messages is of a connection that is gone.
    pub fn disown(&mut self, endpoint: u32) {
        for index in self.owned_by(endpoint).to_vec() {
            if matches!(self.slots[index as usize].place, Place::Above) {
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
            let queue = slot.id.queue();
            if !matches!(slot.place, Place::Above) {
                buffers.extend(self.release(index).map(|buf| (queue, buf)));
            }
        }
        buffers
    }

    /// The device holds a buffer of `endpoint`'s per-peer queues.
    pub fn are_posted(&self, endpoint: u32) -> bool {
        let is_posted = |index: &u32| matches!(self.slots[*index as usize].place, Place::Posted(_));
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
    fn a_slot_takes_one_line_of_the_cache() {
        assert_eq!(size_of::<RecvSlot>(), 64);
    }
}
