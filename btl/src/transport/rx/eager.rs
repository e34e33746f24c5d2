//! Receiving by eager RDMA: rings are offered to peers that send many short messages, and looked at.
//!
//! ```text
//!   the peer has sent `threshold` messages over the first queue      offer ──────────>   opens its rings, too
//!                                                                    <────────── offer
//!   <──── WRITE: message, message, ..        WRITE: so many have been taken ─────────>
//! ```
#![forbid(unsafe_code)]

use crate::protocol::eager::{Refused, TRAILER};
use crate::protocol::wire::{HEADER_LEN, Header, Kind, Offer};
use crate::transport::endpoint::ring::{Next, Ring};
use crate::transport::endpoint::{Endpoint, EpId, NO_RING};
use crate::transport::port::buffer::Queued;
use crate::transport::{Delivery, Landed, Transport, Upcall};
use verbs::Lent;

impl<C> Transport<C> {
    /// The next message that has landed in a ring, if all that its sender has sent before it have come.
    #[inline(always)] // with every message
    pub(super) fn take_landed(&mut self) -> Option<Delivery> {
        if self.rings.is_empty() {
            return None;
        }
        let number = self.rings.take_found().or_else(|| self.rings.ready())?;
        if self.rings.permits() { self.take_of(number).map(Delivery::from) } else { None }
    }

    /// The last look has found a message in a ring, which has not been asked for since.
    #[inline(always)] // with every message
    pub fn has_found_landed(&self) -> bool {
        self.rings.has_found()
    }

    /// That message, if nothing older waits for the upper layer. Its endpoint counts it with the next look.
    #[inline(always)] // with every message
    pub fn take_found(&mut self) -> Option<Landed> {
        let number = self.rings.take_found()?;
        if self.is_behind() || !self.up.is_empty() || !self.rings.permits() {
            return None;
        }
        debug_assert!(self.is_in_step(number), "ring {number}");
        let Some(landed) = self.rings.take(number) else { return self.take_of(number) };
        self.count_taken(number);
        Some(landed)
    }

    /// The same beside the way of what has completed.
    #[inline(never)]
    pub(super) fn take_found_aside(&mut self) -> Option<Delivery> {
        self.take_found().map(Delivery::from)
    }

    /// The upper layer is done with a message that has landed: the next one of its ring, if it has landed, too, and nothing has to go up
    /// before it.
    ///
    /// # Errors
    /// There is none; whether there is something else to hand up.
    #[inline(always)] // with every message
    pub fn next_landed(&mut self, done: Landed) -> Result<Landed, bool> {
        let Landed { payload, ring: number, .. } = done;
        if self.is_behind() || !self.up.is_empty() || !self.rings.permits() {
            return Err(self.end_landing(number, payload));
        }
        match self.rings.back_and_take(number, payload) {
            Ok(landed) => {
                self.count_taken(number);
                Ok(landed)
            }
            Err(true) => self.landed_behind(number),
            Err(false) => Err(self.has_more_behind()),
        }
    }

    /// The same if nothing has been called since that message was taken, so that nothing has come up and its ring is as it was.
    #[inline(always)] // with every message
    pub fn next_short(&mut self, done: Landed) -> Next<Landed, Landed> {
        debug_assert!(!self.is_behind() && self.up.is_empty(), "something has been called since");
        debug_assert!(
            self.rings.uncounted == done.ring,
            "of ring {} another one has been taken since",
            done.ring
        );
        if !self.rings.permits() {
            return Next::Unknown(done);
        }
        let next = self.rings.exchange(done);
        self.stats.received += u64::from(matches!(next, Next::Short(_)));
        next
    }

    /// The same where something is due, or there is none that is expected.
    #[inline(never)]
    fn landed_behind(&mut self, number: u32) -> Result<Landed, bool> {
        self.landed_done(number);
        if self.rings.get_mut(number).is_some_and(|ring| ring.is_ready())
            && let Some(landed) = self.take_of(number)
        {
            return Ok(landed);
        }
        Err(self.has_more_behind())
    }

    /// The same where something has to go up before it.
    #[inline(never)]
    fn end_landing(&mut self, number: u32, payload: Lent) -> bool {
        self.landed_delivered(number, payload);
        self.has_more_behind()
    }

    /// What the callbacks of messages that have landed have begun may be over. Whether there is something to hand up.
    #[inline(always)] // with every message that comes alone
    pub fn has_more_behind(&mut self) -> bool {
        self.look_for_completions();
        self.has_upcalls() || self.has_landed_elsewhere()
    }

    /// The upper layer is done with a message that has landed, and went up in another way.
    pub(super) fn landed_delivered(&mut self, number: u32, payload: Lent) {
        self.rings.back(number, payload);
        self.landed_done(number);
    }

    /// Messages of this ring have come back: the peer is told, if it is time for that.
    fn landed_done(&mut self, number: u32) {
        if self.rings.come_back(number) {
            self.tell_taken(number);
        }
    }

    /// A message can be taken from one of several rings.
    pub fn has_landed_elsewhere(&self) -> bool {
        self.rings.are_many() && self.rings.ready().is_some()
    }

    /// The ring whose next message has landed, and all that its sender has sent before it have come; a cold one, too, if it is their turn.
    #[inline(always)] // with every look
    pub(super) fn look_for_landed(&mut self) -> Option<u32> {
        self.rings.ready().or_else(|| self.rings.ready_of_cold(self.rx.looks))
    }

    /// The next message of this ring, in which one has landed, if all that its sender has sent before it have come.
    #[inline(never)]
    fn take_of(&mut self, number: u32) -> Option<Landed> {
        debug_assert!(self.is_in_step(number), "ring {number}");
        if let Some(landed) = self.rings.take(number).or_else(|| self.rings.take_checked(number)) {
            self.count_taken(number);
            return Some(landed);
        }
        let ring = self.rings.get_mut(number)?;
        let id = ring.endpoint;
        match ring.check() {
            Ok(is_unfinished) => self.stats.eager_unfinished += u64::from(is_unfinished),
            Err(refused) => self.refuse_ring(number, id, &refused),
        }
        self.rings.count_others();
        None
    }

    /// What has landed in this ring is no message.
    #[cold]
    fn refuse_ring(&mut self, number: u32, id: EpId, refused: &Refused) {
        if let Some(ep) = self.endpoints.named_mut(id) {
            ep.lose_ring();
        }
        self.rings.close(number);
        self.refuse(id.index, &refused.to_string());
    }

    /// A message has been taken from this ring. Its endpoint counts it with the next look, or when one is taken from another ring.
    #[inline(always)] // with every message
    fn count_taken(&mut self, number: u32) {
        self.stats.received += 1;
        if self.rings.uncounted != number {
            self.count_other(number);
        }
    }

    #[inline(never)]
    fn count_other(&mut self, number: u32) {
        let before = std::mem::replace(&mut self.rings.uncounted, number);
        self.count_landed(before);
    }

    /// Endpoints count all that has been taken from rings.
    #[inline(always)] // with every look
    pub(super) fn count_uncounted(&mut self) {
        if self.rings.uncounted != NO_RING {
            self.count_other(NO_RING);
        }
    }

    /// A ring expects the message of its lane that is next.
    fn is_in_step(&self, number: u32) -> bool {
        let Some(ring) = self.rings.get(number) else { return true };
        let lane = self.endpoints.named(ring.endpoint).and_then(|ep| ep.lanes.first());
        lane.is_none_or(|lane| ring.is_in_step(lane.received))
    }

    /// Their endpoint counts the messages that have been taken from this ring. The ring is told which one of the lane is next, which has changed where
    /// one has come by SEND.
    pub(crate) fn count_landed(&mut self, number: u32) {
        let Some(ring) = self.rings.get_mut(number) else { return };
        let (messages, len) = ring.take_uncounted();
        let Some(ep) = self.endpoints.named_mut(ring.endpoint) else { return };
        if let Some(received) = ep.count_landed(messages, len) {
            ring.expect_next(received);
        }
    }

    /// A message that is not for the upper layer, and has a number in its lane as those have, has come by SEND.
    pub(crate) fn count_numbered(&mut self, index: u32, queue: usize) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let Some(lane) = ep.lanes.get_mut(queue) else { return };
        lane.received = lane.received.wrapping_add(1);
        if queue == 0 {
            let ring = ep.ring;
            self.count_landed(ring);
        }
    }

    /// A message has come over the first queue: what was written into this endpoint's ring before it goes up before it. All of that is there when its
    /// completion is (IBTA section 9.5, transaction ordering): what seems to be next, and is not finished, is one behind it, whose number is being
    /// written.
    pub(crate) fn land_before(&mut self, index: u32) {
        self.land_all(index);
        let number = self.endpoints.get(index).map_or(NO_RING, |ep| ep.ring);
        while self.rings.get(number).is_some_and(Ring::is_unfinished) {
            std::hint::spin_loop();
            self.land_all(index);
        }
    }

    /// What has landed of this endpoint goes up before what is to be said of it: also of a ring that is cold.
    pub(crate) fn land_all(&mut self, index: u32) {
        let number = self.endpoints.get(index).map_or(NO_RING, |ep| ep.ring);
        self.count_landed(number);
        while self.rings.get(number).is_some_and(Ring::is_next) {
            let Some(landed) = self.take_of(number) else { return };
            self.count_landed(number);
            if let Some(delivery) = self.deliver_in_order(landed.into()) {
                self.up.push(Upcall::Deliver(delivery));
            }
        }
    }

    /// A message has come from this endpoint, over a queue of its own or no longer than those in rings: it may be one that sends many.
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
        self.count_landed(number);
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
        self.count_numbered(index, queue);
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
