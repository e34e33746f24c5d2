//! What the transport has for the upper layer, which takes it one by one and may call back in
//! between.
#![forbid(unsafe_code)]

use super::endpoint::ring::Landed;
use super::endpoint::{Endpoint, EpId};
use crate::protocol::wire::HEADER_LEN;
use std::collections::VecDeque;
use verbs::Lent;

/// A message for the upper layer. Give it back with [`Transport::delivered`] when its callback has
/// returned.
///
/// [`Transport::delivered`]: super::Transport::delivered
#[derive(Debug)]
pub struct Delivery {
    /// [`EpId::word`]. A processor that reads a word behind two stores to its halves waits for both to be written.
    endpoint: u64,
    /// The slot of its receive, and bytes behind our header in the upper half.
    slot_and_len: u64,
    buf: Lent,
    /// The upper layer's tag.
    pub tag: u8,
    /// [`LANDED`] in place of the queue: it has landed in a ring, and has no header of ours.
    pub(super) queue: u8,
}

/// What a message that has landed in a ring has in place of a queue, which is the first one: no layout has so many.
pub(super) const LANDED: u8 = 0xff;

impl From<Landed> for Delivery {
    fn from(landed: Landed) -> Delivery {
        let Landed { endpoint, payload, ring, tag } = landed;
        let slot_and_len = (payload.capacity() as u64) << 32 | u64::from(ring);
        Delivery { endpoint, slot_and_len, buf: payload, tag, queue: LANDED }
    }
}

impl Delivery {
    /// It has landed in a ring.
    #[inline(always)] // with every message
    pub fn has_landed(&self) -> bool {
        self.queue == LANDED
    }

    /// A message of `len` bytes behind our header, in the buffer of this receive of a queue.
    #[inline(always)] // with every message
    pub(super) fn new(endpoint: EpId, tag: u8, buf: Lent, len: u32, (slot, queue): (u32, usize)) -> Delivery {
        let slot_and_len = u64::from(len) << 32 | u64::from(slot);
        Delivery { endpoint: endpoint.word(), slot_and_len, buf, tag, queue: queue as u8 }
    }

    /// Who sent it.
    #[inline]
    pub fn endpoint(&self) -> EpId {
        EpId::of_word(self.endpoint)
    }

    /// Bytes behind our header.
    #[inline]
    pub(super) fn payload_len(&self) -> usize {
        (self.slot_and_len >> 32) as usize
    }

    /// Its receive: the buffer, its slot and queue. If it has landed in a ring: the number of that in place of the slot.
    #[inline(always)] // with every message
    pub(super) fn into_receive(self) -> (Lent, u32, usize) {
        (self.buf, self.slot_and_len as u32, self.queue.into())
    }

    /// The same, made anew of its parts: where it has come from memory, those that are made in registers need not go there.
    #[inline(always)]
    pub(super) fn apart(self) -> Delivery {
        let Delivery { endpoint, slot_and_len, buf, tag, queue } = self;
        Delivery { endpoint, slot_and_len, buf, tag, queue }
    }

    /// The same message in the buffer that `settle` says for its slot and present one.
    pub(super) fn settled(self, settle: impl FnOnce(u32, Lent) -> Lent) -> Delivery {
        Delivery { buf: settle(self.slot_and_len as u32, self.buf), ..self }
    }

    /// The lane that it came over: its endpoint and queue.
    pub fn lane(&self) -> (EpId, u8) {
        (self.endpoint(), if self.has_landed() { 0 } else { self.queue })
    }

    /// The payload, behind our header.
    pub fn payload(&mut self) -> &mut [u8] {
        let front = if self.has_landed() { 0 } else { HEADER_LEN };
        let end = front + self.payload_len();
        &mut self.buf.as_mut_slice()[front..end]
    }
}

/// What came of polling, for the upper layer.
#[derive(Debug)]
pub enum Upcall<C> {
    /// A message arrived.
    Deliver(Delivery),
    /// A put or get is over, an atomic has failed, the connection that
    /// [`Transport::when_connected`] waits for is there or has failed, or it is time for what
    /// [`Transport::later`] was given. `cookie` is what the call was given; `ok`: it has not
    /// failed.
    ///
    /// [`Transport::when_connected`]: super::Transport::when_connected
    /// [`Transport::later`]: super::Transport::later
    Completed { cookie: C, ok: bool },
    /// An atomic is over; `value` is the word before it.
    Fetched { cookie: C, value: u64 },
    /// A process that we have no endpoint for wants to connect: add it, or let it wait. `peer` is
    /// its name in one word.
    UnknownPeer { peer: u64 },
    /// An endpoint is lost; what it had queued is given up. `told`: [`Transport::untold_failure`] has told so before.
    ///
    /// [`Transport::untold_failure`]: super::Transport::untold_failure
    Failed { endpoint: EpId, peer: u64, reason: String, told: bool },
}

/// What has come up and has not been taken, oldest first.
#[derive(Debug)]
pub struct Upcalls<C>(VecDeque<Upcall<C>>);

impl<C> Upcalls<C> {
    /// Nothing has come up.
    pub const fn new() -> Upcalls<C> {
        Upcalls(VecDeque::new())
    }

    /// Nothing is left to be taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the oldest.
    #[inline]
    pub fn take(&mut self) -> Option<Upcall<C>> {
        self.0.pop_front()
    }

    /// Whose callback is the oldest, if that is of something that is over; whether it has succeeded, and what an atomic has fetched.
    #[inline]
    pub fn first_completed(&self) -> Option<(&C, bool, Option<u64>)> {
        match self.0.front()? {
            Upcall::Completed { cookie, ok } => Some((cookie, *ok, None)),
            Upcall::Fetched { cookie, value } => Some((cookie, true, Some(*value))),
            _ => None,
        }
    }

    /// One more.
    #[inline]
    pub fn push(&mut self, upcall: Upcall<C>) {
        self.0.push_back(upcall);
    }

    /// The failure of an endpoint, if it is there and has not been told: its peer, and why. It is from now on.
    pub fn tell_failure(&mut self, id: EpId) -> Option<(u64, String)> {
        self.0.iter_mut().find_map(|upcall| match upcall {
            Upcall::Failed { endpoint, peer, reason, told: told @ false } if *endpoint == id => {
                *told = true;
                Some((*peer, reason.clone()))
            }
            _ => None,
        })
    }

    /// What was taken, and is put back behind all others.
    pub fn extend(&mut self, upcalls: Vec<Upcall<C>>) {
        self.0.extend(upcalls);
    }

    /// What this callback waits for is over.
    #[inline]
    pub fn completed(&mut self, cookie: C, ok: bool) {
        self.push(Upcall::Completed { cookie, ok });
    }

    /// Hands back what was waiting for the connection. `ok`: it is there, or one of the two sides
    /// has taken the endpoint down, so that what was sent is of no interest any more. Otherwise it
    /// has failed, and what was sent with it.
    pub fn end_waiting(&mut self, ep: &mut Endpoint<C>, ok: bool) {
        std::mem::take(&mut ep.awaiting).into_iter().for_each(|cookie| self.completed(cookie, ok));
    }
}
