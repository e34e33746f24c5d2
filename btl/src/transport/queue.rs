//! What all peers share of one queue of the layout: buffers, the shared receive queue, its send
//! slots.
#![forbid(unsafe_code)]

use super::send::SendBuf;
use super::wrid::{GENERATION_MASK, Kind, WrId};
use crate::protocol::pending::Shares;
use crate::protocol::wire::HEADER_LEN;
use std::sync::Arc;
use verbs::{Access, Buf, Pd, Pool, PoolConfig, Posted, Srq};

/// Buffers start on a cache line, so that header and first payload bytes share one.
const ALIGN: u32 = 64;

/// A message that could not go out at once. Its sender has been told that it is done: the data is
/// ours now.
#[derive(Debug)]
pub struct Queued {
    /// Room for the header, then the payload.
    pub buf: SendBuf,
    /// Length of the payload in bytes.
    pub len: u32,
    /// Upper layer's tag.
    pub tag: u8,
}

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

/// A shared receive queue and how full it is kept.
#[derive(Debug)]
pub struct Shared {
    /// The device's queue.
    pub srq: Arc<Srq>,
    /// What its receives are posted as.
    kind: Kind,
    /// Buffers that the device holds.
    pub posted: u32,
    /// Fill up to this many; grows from rd_init to rd_num as the queue proves too short.
    pub target: u32,
    /// Never more than this (rd_num).
    pub limit: u32,
    /// Refill when no more than this many are posted, as a share of `target` (rd_low of rd_num).
    pub low: u32,
    /// The device tells when fewer than this many are left; 0: it does not.
    pub srq_limit: u32,
    /// Slots whose buffers have been consumed.
    pub consumed: Vec<u32>,
    /// Sends in flight on this queue that are still allowed, over all peers (sd_max).
    pub send_slots: SendSlots,
}

/// The sends that a shared queue allows at a time. A peer whose queue is full holds its sends until
/// it takes them, so each gets a share only, as of the buffers.
#[derive(Debug)]
pub struct SendSlots {
    shares: Shares,
    /// A peer was refused since the last release.
    wanted: bool,
}

impl SendSlots {
    fn new(total: u32) -> SendSlots {
        SendSlots { shares: Shares::new(total, total.div_ceil(2)), wanted: false }
    }

    /// Takes one for `peer`; `false`: none is left for it.
    #[inline]
    pub fn take(&mut self, peer: u32) -> bool {
        let taken = self.shares.take(peer).is_ok();
        self.wanted |= !taken;
        taken
    }

    /// A send to `peer` is over. Whether a peer waits for that.
    #[inline]
    pub fn release(&mut self, peer: u32) -> bool {
        self.shares.release(peer);
        std::mem::take(&mut self.wanted)
    }

    /// The peer is gone, and completions of its sends will not be looked at any more.
    pub fn forget(&mut self, peer: u32) {
        for _ in 0..self.shares.held(peer) {
            self.shares.release(peer);
        }
    }

    /// Those that no peer holds.
    pub fn free(&self) -> u32 {
        self.shares.free()
    }
}

/// One queue of the layout, as all peers share it.
#[derive(Debug)]
pub struct QueueRes {
    /// Send buffers: header room and payload.
    pub send: Pool,
    /// Who holds how many of the send buffers that the limit allows.
    pub shares: Shares,
    /// Receive buffers.
    pub recv: Pool,
    /// Set for shared queues.
    pub shared: Option<Shared>,
}

impl QueueRes {
    /// Pools for a queue whose buffers carry `size` bytes; no more than `limit` (0: any number) of
    /// the send buffers are handed to callers that can wait.
    pub fn new(pd: &Arc<Pd>, size: u32, grow_by: u32, limit: u32) -> QueueRes {
        let config = PoolConfig {
            buf_len: size + HEADER_LEN as u32,
            align: ALIGN,
            grow_by,
            max: 0,
            access: Access::LOCAL_WRITE,
        };
        let limit = if limit == 0 { u32::MAX } else { limit };
        let shares = Shares::new(limit, limit.div_ceil(2));
        QueueRes { send: Pool::new(pd, config.clone()), shares, recv: Pool::new(pd, config), shared: None }
    }

    /// A send buffer of this peer's share has come back.
    #[inline]
    pub fn release_share(&mut self, share: Option<u32>) {
        if let Some(peer) = share {
            self.shares.release(peer);
        }
    }
}

impl Shared {
    /// A queue of up to `limit` buffers that starts with `initial` and refills at `low` of `limit`.
    pub fn new(srq: Arc<Srq>, (limit, initial, low): (u32, u32, u32), sd_max: u32, srq_limit: u32) -> Shared {
        let target = initial.clamp(1, limit);
        let send_slots = SendSlots::new(sd_max);
        let kind = Kind::RecvShared;
        Shared { srq, kind, posted: 0, target, limit, low, srq_limit, consumed: Vec::new(), send_slots }
    }

    /// The same of an XRC domain: who sent a message is in its header.
    pub fn over_xrc(self) -> Shared {
        Shared { kind: Kind::RecvXrc, ..self }
    }

    /// Refill now? rd_low is given for a full queue; a shorter one refills at the same share.
    #[inline]
    pub fn refill_due(&self) -> bool {
        u64::from(self.posted) * u64::from(self.limit) <= u64::from(self.low) * u64::from(self.target)
    }

    /// The queue was found nearly empty: keep twice as many from now on. Whether it could grow.
    pub fn grow(&mut self) -> bool {
        let grown = (self.target * 2).min(self.limit);
        let did = grown > self.target;
        self.target = grown;
        did
    }

    /// Hands a buffer to the device under `slot`; on an error the slot holds it.
    pub fn post(&mut self, slots: &mut RecvSlots, slot: u32, buf: Buf) -> Result<(), verbs::Error> {
        match self.srq.post_recv(slots.wr_id(self.kind, slot), buf) {
            Ok(posted) => {
                slots.by_index(slot).posted = Some(posted);
                self.posted += 1;
                Ok(())
            }
            Err((buf, error)) => {
                slots.by_index(slot).held = Some(buf);
                Err(error)
            }
        }
    }
}

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
