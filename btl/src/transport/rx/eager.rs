//! Receiving by eager RDMA: rings are offered to peers that send many short messages, and looked at.
//!
//! ```text
//!   the peer has sent `threshold` messages over the first queue      offer ──────────>   opens its rings, too
//!                                                                    <────────── offer
//!   <──── WRITE: message, message, ..        WRITE: so many have been taken ─────────>
//! ```
#![forbid(unsafe_code)]

use crate::protocol::eager::TRAILER;
use crate::protocol::wire::{HEADER_LEN, Header, Kind, Offer};
use crate::transport::endpoint::ring::Ring;
use crate::transport::endpoint::{Endpoint, Endpoints, EpId, NO_RING};
use crate::transport::port::buffer::Queued;
use crate::transport::{Delivery, Transport, Upcall};
use verbs::Lent;

impl<C> Transport<C> {
    /// The next message that has landed in a ring, if all that its sender has sent before it have come.
    #[inline(always)] // with every message
    pub(super) fn take_landed(&mut self) -> Option<Delivery> {
        if self.rings.is_empty() {
            return None;
        }
        let number = self.rings.take_found().or_else(|| self.landed())?;
        if self.rings.permits() { self.take_of(number) } else { None }
    }

    /// The last look has found a message in a ring, which has not been asked for since.
    #[inline(always)] // with every message
    pub fn has_found_landed(&self) -> bool {
        self.rings.has_found()
    }

    /// That message, if nothing older waits for the upper layer.
    #[inline(always)] // with every message
    pub fn take_found(&mut self) -> Option<Delivery> {
        let number = self.rings.take_found()?;
        if self.is_behind() || !self.up.is_empty() || !self.rings.permits() {
            return None;
        }
        self.take_of(number)
    }

    /// The same beside the way of what has completed.
    #[inline(never)]
    pub(super) fn take_found_aside(&mut self) -> Option<Delivery> {
        self.take_found()
    }

    /// The upper layer is done with a message that has landed: the next one of its ring, if it has landed, too, and nothing has to go up
    /// before it.
    #[inline(always)] // with every message
    pub fn next_landed(&mut self, done: Delivery) -> Option<Delivery> {
        let (payload, number, _) = done.into_receive();
        self.landed_delivered(number, payload);
        if self.is_behind() || !self.up.is_empty() || !self.rings.permits() {
            return None;
        }
        let ring = self.rings.get_mut(number)?;
        let id = ring.endpoint;
        let ep = self.endpoints.named_mut(id)?;
        // What is refused is found by the next look.
        let (tag, payload) = ring.take(ep.lanes.first()?.received).ok()??;
        ring.prefetch();
        ep.count_received(0, payload.capacity() as u32);
        self.stats.received += 1;
        Some(Delivery::landed(id, tag, payload, number))
    }

    /// A message can be taken from one of several rings.
    pub fn has_landed_elsewhere(&self) -> bool {
        self.rings.are_many() && self.landed().is_some()
    }

    /// The ring whose next message has landed, and all that its sender has sent before it have come.
    #[inline(always)] // with every look
    pub(super) fn landed(&self) -> Option<u32> {
        self.rings.ready(|ring| is_next(&self.endpoints, ring))
    }

    /// The same where cold rings are looked at, too, if it is their turn.
    #[inline(always)] // with every look
    pub(super) fn look_for_landed(&mut self) -> Option<u32> {
        let (endpoints, look) = (&self.endpoints, self.rx.looks);
        let found = self.rings.ready(|ring| is_next(endpoints, ring));
        found.or_else(|| self.rings.ready_of_cold(look, |ring| is_next(endpoints, ring)))
    }

    /// The next message of this ring, in which one has landed.
    #[inline(always)] // with every message
    fn take_of(&mut self, number: u32) -> Option<Delivery> {
        let ring = self.rings.get_mut(number)?;
        let id = ring.endpoint;
        let ep = self.endpoints.named_mut(id)?;
        match ring.take(ep.lanes.first()?.received) {
            Ok(None) => {
                self.rings.count_others();
                None
            }
            Ok(Some((tag, payload))) => {
                let len = payload.capacity() as u32;
                ep.count_received(0, len);
                self.stats.received += 1;
                Some(Delivery::landed(id, tag, payload, number))
            }
            Err(refused) => {
                ep.lose_ring();
                self.rings.close(number);
                self.refuse(id.index, &refused.to_string());
                None
            }
        }
    }

    /// The upper layer is done with a message that has landed.
    #[inline(always)] // with every message
    pub(super) fn landed_delivered(&mut self, number: u32, payload: Lent) {
        if self.rings.back(number, payload) {
            self.tell_taken(number);
        }
    }

    /// What has landed of this endpoint goes up before what comes next of its lane, or is to be said of it: also of a ring that is cold.
    pub(crate) fn land_all(&mut self, index: u32) {
        while self.endpoints.get(index).is_some_and(|ep| self.rings.has_next(ep)) {
            let number = self.endpoints.get(index).map_or(NO_RING, |ep| ep.ring);
            let Some(delivery) = self.take_of(number) else { return };
            if let Some(delivery) = self.deliver_in_order(delivery) {
                self.up.push(Upcall::Deliver(delivery));
            }
        }
    }

    /// A message has come from this endpoint over the first queue: it may be one that sends many.
    #[inline]
    pub(super) fn consider_ring(&mut self, index: u32) {
        let sent = |ep: &Endpoint<C>| ep.ends.received.wrapping_sub(ep.ringless_from);
        let wants = |ep: &&Endpoint<C>| ep.ring == NO_RING && self.rings.wants(sent(ep));
        if let Some(ep) = self.endpoints.get(index).filter(wants) {
            self.open_if_possible(EpId { index, generation: ep.generation });
        }
    }

    #[inline(never)]
    fn open_if_possible(&mut self, id: EpId) {
        if self.endpoints.named(id).is_none_or(|ep| !ep.may_have_ring()) {
            return;
        }
        if self.rings.has_place() {
            self.open_ring(id);
        } else if let Some(number) = self.rings.unused() {
            self.take_offer_back(number);
        }
    }

    /// Opens rings to a peer, and tells it.
    #[cold]
    fn open_ring(&mut self, id: EpId) {
        let Some(number) = self.rings.open(&self.port.pd, id) else { return };
        if let Some(ep) = self.endpoints.named_mut(id) {
            ep.ring = number;
        }
        self.stats.rings += 1;
        self.tell_offer(number);
    }

    /// Tells a peer where its messages are looked for.
    #[cold]
    fn tell_offer(&mut self, number: u32) {
        if let Some(ring) = self.rings.get_mut(number) {
            let (id, offer) = (ring.endpoint, ring.offer());
            self.send_offer(id, offer);
        }
    }

    /// Nothing of ours goes into the peer's ring from now on. Ours is looked at until the peer says that nothing of its own does.
    #[cold]
    fn take_offer_back(&mut self, number: u32) {
        let Some(ring) = self.rings.get_mut(number) else { return };
        let id = ring.endpoint;
        ring.forgo();
        ring.is_closing = true;
        self.stats.rings_closed += 1;
        self.send_offer(id, Offer::NONE);
    }

    fn send_offer(&mut self, id: EpId, offer: Offer) {
        match self.tx.control_buf(0, &offer.message()) {
            Ok(buf) => {
                let len = Offer::LEN as u32;
                self.send_message(id, Queued { buf, len, tag: 0, is_answer: false, kind: Kind::Eager });
            }
            Err(error) => {
                self.fail(id.index, &format_args!("no buffer for the offer of a ring: {error}"));
            }
        }
    }

    /// The peer offers its ring, or takes the offer back.
    #[cold]
    pub(crate) fn offer_received(
        &mut self,
        (index, queue, slot): (u32, usize, u32),
        header: Header,
        (buf, len): (Lent, usize),
    ) {
        let Some(ep) = self.endpoints.get(index) else { return self.rx.repost(queue, slot, buf) };
        let id = EpId { index, generation: ep.generation };
        let offer = Offer::parse(&buf.as_slice()[HEADER_LEN..len]);
        if let Some(lane) = self.endpoints.lane(index, queue) {
            lane.received = lane.received.wrapping_add(1);
        }
        self.accept(index, queue, header.grant);
        self.delivered(Delivery::new(id, 0, buf, 0, (slot, queue)));
        match offer {
            Err(error) => self.refuse(index, &error.to_string()),
            Ok(offer) => self.offered(id, offer),
        }
    }

    /// What the peer has written into our ring has been taken before this message, which has a later number.
    #[cold]
    fn offered(&mut self, id: EpId, offer: Offer) {
        let Some(ep) = self.endpoints.named(id) else { return };
        let number = ep.ring;
        let Some(ring) = self.rings.get_mut(number) else {
            return match offer.slots {
                0 => self.send_offer(id, Offer::NONE),
                _ => self.open_for(id, offer),
            };
        };
        if offer.slots != 0 {
            // It may have had no place for a ring when ours was offered.
            if ring.accept(offer) {
                self.tell_offer(number);
            }
            return;
        }
        let is_answer = ring.is_closing;
        self.rings.close(number);
        if let Some(ep) = self.endpoints.named_mut(id) {
            ep.lose_ring();
        }
        if !is_answer {
            self.send_offer(id, Offer::NONE);
        }
    }

    /// The peer has offered its ring, and has none here.
    fn open_for(&mut self, id: EpId, offer: Offer) {
        if !self.rings.has_place() || self.endpoints.named(id).is_none_or(|ep| !ep.may_have_ring()) {
            return;
        }
        self.open_ring(id);
        let number = self.endpoints.named(id).map_or(NO_RING, |ep| ep.ring);
        if let Some(ring) = self.rings.get_mut(number) {
            ring.accept(offer);
        }
    }
}

/// All that the sender of the next message of a ring has sent before it has come.
#[inline(always)] // with every message
fn is_next<C>(endpoints: &Endpoints<C>, ring: &Ring) -> bool {
    let lane = endpoints.named(ring.endpoint).and_then(|ep| ep.lanes.first());
    lane.is_some_and(|lane| ring.is_next(lane.received))
}

impl<C> Endpoint<C> {
    /// It has a queue pair and credits of its own for the messages that would go into rings, which takes what is written into them inline, and both
    /// sides send.
    fn may_have_ring(&self) -> bool {
        let has_queue = self.lanes.first().is_some_and(|lane| {
            lane.channel.is_some() && lane.credits.is_some() && usize::from(lane.max_inline) >= TRAILER
        });
        has_queue && self.takes_messages() && self.state().flows()
    }
}
