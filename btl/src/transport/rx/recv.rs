//! The receiving side, and the turning of completions into what the upper layer hears.
//!
//! Receive completions are looked at first; send completions, if there can be any, when nothing
//! arrived, and now and then when something always does: a process that is flooded has to be able
//! to send. A message's credits are applied as soon as its header is parsed; its own buffer is
//! posted again, and its credit returned, only when the upper layer has given it back.
#![forbid(unsafe_code)]

use crate::protocol::credits::{CreditError, Grant};
use crate::protocol::wire::{DataHeader, HEADER_LEN};
use crate::transport::endpoint::EpId;
use crate::transport::endpoint::state::State;
use crate::transport::upcall::LANDED;
use crate::transport::wrid::{Kind, WrId};
use crate::transport::{Delivery, Transport, Upcall};
use verbs::{Broken, Completion, Lent};

/// Looks that found something, between two at what can wait.
const BUSY_LOOKS: u32 = 8;

/// A failed request that is not signalled is found after so many looks, and a shared queue that is empty filled.
pub(super) const RARE_LOOKS: u32 = 256;

impl<C> Transport<C> {
    /// Looks around once: connection events, completions. True if there is something for
    /// [`Transport::take_upcall`].
    pub fn poll(&mut self) -> bool {
        self.look(1)
    }

    /// The same; for receives up to `times` times, until there is one.
    #[inline(always)] // all that most calls of Open MPI's progress function do
    pub fn look(&mut self, times: u32) -> bool {
        if self.rx.done.is_some() {
            self.settle_delivered();
        }
        if self.port.service.pending() {
            self.connection_events();
        }
        self.rx.count_look();
        if !self.rx.batch.is_empty() {
            return self.found_before();
        }
        if self.rings.are_due(self.rx.looks) {
            return self.look_with_rings(times);
        }
        match self.rx.cq.poll_times(&mut self.rx.batch, times) {
            Ok(0) => {}
            Ok(_) => return self.found(),
            Err(Broken) => self.receive_cq_broken(),
        }
        self.end_look()
    }

    /// Completions have been found by the last glance, or have not been handed up yet.
    #[cold]
    fn found_before(&mut self) -> bool {
        self.rings.count_others();
        self.found()
    }

    /// The same where there are rings. They come behind completions where one of ours is awaited.
    #[inline(never)] // the way of those without stays short
    pub(super) fn look_with_rings(&mut self, times: u32) -> bool {
        self.rings.allow();
        self.count_uncounted();
        if self.rings.come_first()
            && self.tx.awaited == 0
            && let Some(number) = self.look_at_rings()
        {
            return self.found_in_rings(number);
        }
        match self.rx.cq.poll_times(&mut self.rx.batch, times) {
            Ok(0) => {}
            Ok(_) => {
                self.rings.count_others();
                return self.found();
            }
            Err(Broken) => self.receive_cq_broken(),
        }
        if let Some(number) = self.look_for_landed() {
            return self.found_in_rings(number);
        }
        self.end_look()
    }

    /// Looks at rings before completions, as long as messages come through rings; where one has landed.
    #[inline(always)] // with every look
    fn look_at_rings(&mut self) -> Option<u32> {
        let found = self.look_for_landed();
        if found.is_none() {
            self.rings.count_vain();
            self.rings.make_ready();
        }
        found
    }

    /// A message has landed in this ring.
    #[inline]
    pub(super) fn found_in_rings(&mut self, number: u32) -> bool {
        self.rings.count_found(number);
        if self.rx.looks.is_multiple_of(BUSY_LOOKS) { self.look_at_all() } else { self.found() }
    }

    /// Messages have landed with each look: what comes otherwise is looked for, too.
    #[inline(never)]
    fn look_at_all(&mut self) -> bool {
        self.look_for_receives();
        self.found()
    }

    /// Nothing has arrived.
    #[inline(always)] // with every look
    fn end_look(&mut self) -> bool {
        if self.rx.chores || self.tx.awaited != 0 || self.rx.looks.is_multiple_of(RARE_LOOKS) {
            return self.found_nothing();
        }
        self.may_glance()
    }

    /// Something has arrived; now and then it is time for what can wait.
    #[inline]
    fn found(&mut self) -> bool {
        if self.rx.looks.is_multiple_of(BUSY_LOOKS) || !self.rx.hold.is_empty() {
            self.other_work(true);
        }
        true
    }

    /// Nothing has, and there is something to do.
    #[inline(never)]
    fn found_nothing(&mut self) -> bool {
        if let Some((index, queue)) = self.rx.latest.take() {
            self.repost_early(index, queue);
            self.consider_ring(index);
        }
        if self.rx.refills {
            self.rx.refill_early();
        }
        self.other_work(false);
        let found = self.has_upcalls();
        if found {
            self.rings.count_others();
            return true;
        }
        self.may_glance()
    }

    /// Looks whether what receive callbacks have begun is over, behind the last of them: a program that looks around now and then only would
    /// hear of it, and its peer, with its next look.
    #[inline(always)] // with every message that comes alone
    pub fn look_for_completions(&mut self) {
        if self.tx.awaited != 0 {
            self.poll_sends();
        }
    }

    /// There may be something for [`Transport::take_upcall`]. What has landed in rings since the last look is for the next one.
    #[inline]
    pub fn has_upcalls(&self) -> bool {
        !self.up.is_empty() || !self.rx.batch.is_empty() || !self.rx.hold.is_empty()
    }

    /// The queue of receive completions is broken, and all endpoints with it.
    #[cold]
    fn receive_cq_broken(&mut self) {
        let error = self.rx.cq.broken();
        self.all_broken(&format!("completion queue broken: {error}"));
    }

    /// The next receive completions, in place of those that have been looked at; how many.
    pub(crate) fn look_for_receives(&mut self) -> usize {
        match self.rx.cq.poll(&mut self.rx.batch) {
            Ok(found) => found,
            Err(error) => self.cq_broken(&error),
        }
    }

    /// The last look has found nothing: whether its thread is to give the processor away, which it does with no lock held ([`Rx::note_coming_up`]).
    #[inline]
    pub fn gives_way(&mut self) -> bool {
        let gives = self.rx.gives_way != 0;
        self.rx.gives_way -= u32::from(gives);
        gives
    }

    /// Nothing arrived, or something has for a while: time for what can wait.
    #[inline(never)]
    fn other_work(&mut self, found: bool) {
        if !self.rx.hold.is_empty() {
            self.rx.note_turn(found, self.tx.answers);
        }
        let rarely = self.rx.looks.is_multiple_of(RARE_LOOKS);
        if rarely {
            self.keep_alive();
            self.rings.cool_down(self.rx.looks);
        }
        if self.tx.awaited != 0 || rarely && self.tx.outstanding != 0 {
            self.poll_sends();
        }
        if !self.ending.is_empty() {
            self.acknowledge_ends();
        }
        if !self.renewals.is_empty() {
            self.renew_due();
        }
        if self.rx.hungry && rarely {
            self.rx.feed();
        }
        if self.rings.owe_word {
            self.tell_untold();
        }
        self.rx.chores = !self.ending.is_empty()
            || !self.renewals.is_empty()
            || !self.rx.hold.is_empty()
            || self.rings.owe_word
            || self.rx.gives_way != 0;
    }

    /// The next message of what the last look has found, if nothing older waits for the upper layer and it is a plain one. `None`:
    /// [`Transport::has_upcalls`] knows whether there is something else.
    #[inline(always)] // with every message
    pub fn take_message(&mut self) -> Option<Delivery> {
        if self.is_behind() || !self.up.is_empty() {
            return None;
        }
        let Some(next) = self.rx.batch.peek() else {
            return if self.has_found_landed() { self.take_found_aside().map(Delivery::apart) } else { None };
        };
        let (id, len, sent_to) = (WrId(next.wr_id()), next.byte_len() as usize, next.qp_num());
        if !next.is_ok() {
            return None;
        }
        let (slot, queue) = (id.index(), id.queue());
        let (done, sender) = if id.is(Kind::Peer) {
            if queue == 0 && !self.rings.is_empty() {
                return self.take_behind_ring().map(Delivery::apart);
            }
            (self.rx.batch.take()?, None)
        } else if id.is(Kind::Shared) {
            let sender = self.rx.sender_known(queue, sent_to)?;
            (self.rx.batch.take()?, Some(sender))
        } else {
            return if id.is(Kind::Xrc) { self.take_otherwise(id).map(Delivery::apart) } else { None };
        };
        let (bytes, owner) = self.rx.slots.completed(done)?;
        let index = sender.unwrap_or(owner);
        let len = len.min(bytes.capacity());
        let header = bytes.as_slice()[..len].first_chunk().and_then(|head| DataHeader::parse(*head));
        match (header, self.endpoints.get_mut(index)) {
            (Some(header), Some(ep))
                if usize::from(header.queue()) == queue && ep.state() == State::Connected =>
            {
                let endpoint = EpId { index, generation: ep.generation };
                let len = (len - HEADER_LEN) as u32;
                ep.count_received(queue, len);
                self.stats.received += 1;
                if header.has_grant() {
                    self.accept(index, queue, header.grant());
                }
                Some(Delivery::new(endpoint, header.tag(), bytes, len, (slot, queue)))
            }
            _ => {
                self.deliver_behind((index, queue, slot), bytes, len);
                None
            }
        }
    }

    /// The next message of a lane that a ring may belong to: what has landed there is older.
    #[inline(never)] // the way of those without stays short
    fn take_behind_ring(&mut self) -> Option<Delivery> {
        let done = self.rx.batch.take()?;
        let delivery = self.received(done)?;
        self.deliver_in_order(delivery)
    }

    /// The message of an X queue that is next, if it can go up now.
    #[inline(never)]
    fn take_otherwise(&mut self, id: WrId) -> Option<Delivery> {
        let done = self.rx.batch.take()?;
        let delivery = self.received_otherwise(done, id)?;
        self.deliver_in_order(delivery)
    }

    /// The message comes back if it can go up now. Else it is held back, or goes up behind what has come up before it.
    pub(super) fn deliver_in_order(&mut self, delivery: Delivery) -> Option<Delivery> {
        let delivery = if self.is_behind() { self.hold_back(delivery)? } else { delivery };
        if self.up.is_empty() {
            return Some(delivery);
        }
        self.up.push(Upcall::Deliver(self.rx.kept(delivery)));
        None
    }

    /// What has come is no plain message, or not over a connection that is up: what comes of it goes up behind what it brings about.
    #[cold]
    fn deliver_behind(&mut self, at: (u32, usize, u32), bytes: Lent, len: usize) {
        if let Some(delivery) = self.arrived(at, bytes, len).and_then(|delivery| self.hold_back(delivery)) {
            self.up.push(Upcall::Deliver(self.rx.kept(delivery)));
        }
    }

    /// The cookie of what is over, if that is the next thing for the upper layer; whether it has succeeded, and what an atomic has fetched.
    #[inline]
    pub fn first_completed(&self) -> Option<(&C, bool, Option<u64>)> {
        self.up.first_completed()
    }

    /// The upper layer has it.
    #[inline]
    pub fn take_first_completed(&mut self) {
        self.up.take();
    }

    /// The next thing for the upper layer, of what the last `poll` found. What was put aside
    /// before, or comes up while a message's sender is looked for, is older than what is in the
    /// batch.
    pub fn take_upcall(&mut self) -> Option<Upcall<C>> {
        loop {
            if !self.up.is_empty() {
                return self.up.take();
            }
            if let Some(delivery) = self.take_landed() {
                match self.deliver_in_order(delivery) {
                    Some(delivery) => return Some(Upcall::Deliver(delivery)),
                    None => continue,
                }
            }
            let Some(done) = self.rx.batch.take() else { return self.take_held() };
            let delivery = self.received(done).and_then(|delivery| self.deliver_in_order(delivery));
            if let Some(delivery) = delivery {
                return Some(Upcall::Deliver(delivery));
            }
        }
    }

    /// Takes a receive completion apart; a message for the upper layer comes back.
    pub(crate) fn received(&mut self, done: Completion) -> Option<Delivery> {
        let id = WrId(done.wr_id());
        if !done.is_ok() {
            self.receive_failed(done, id);
            return None;
        }
        let (slot, queue, len) = (id.index(), id.queue(), done.byte_len() as usize);
        let (bytes, index) = if id.is(Kind::Peer) {
            self.rx.slots.completed(done)?
        } else if id.is(Kind::Shared) {
            self.completed_shared(done)?
        } else {
            return self.received_otherwise(done, id);
        };
        let len = len.min(bytes.capacity());
        self.arrived((index, queue, slot), bytes, len)
    }

    /// The bytes of a receive of a shared queue that has completed, and their sender. `None`: it is not known, and may be later.
    #[inline]
    fn completed_shared(&mut self, done: Completion) -> Option<(Lent, u32)> {
        match self.sender(&done) {
            Some(index) => Some((self.rx.slots.completed(done)?.0, index)),
            None => {
                self.rx.put_aside(done, &mut self.stats);
                None
            }
        }
    }

    /// `len` bytes have come, from an endpoint, over a queue, in a slot.
    fn arrived(&mut self, at: (u32, usize, u32), bytes: Lent, len: usize) -> Option<Delivery> {
        let header = bytes.as_slice()[..len].first_chunk().and_then(|head| DataHeader::parse(*head));
        match header.filter(|h| usize::from(h.queue()) == at.1) {
            Some(header) => self.data_received(at, header, bytes, len),
            None => self.rare_received(at, bytes, len),
        }
    }

    /// A data message that has taken its sender's last credit; or no data message.
    #[cold]
    fn rare_received(&mut self, at: (u32, usize, u32), buf: Lent, len: usize) -> Option<Delivery> {
        let (index, queue, slot) = at;
        let header = buf.as_slice()[..len].first_chunk().and_then(|head| DataHeader::parse_last(*head));
        let per_peer = self.rx.queues[queue].shared.is_none();
        let Some(header) = header.filter(|h| per_peer && usize::from(h.queue()) == queue) else {
            self.control(index, queue, slot, buf, len);
            return None;
        };
        let delivery = self.data_received(at, header, buf, len);
        self.widen(index, queue);
        delivery
    }

    /// A data message has come, for an endpoint, over a queue, in a slot.
    fn data_received(
        &mut self,
        (index, queue, slot): (u32, usize, u32),
        header: DataHeader,
        buf: Lent,
        len: usize,
    ) -> Option<Delivery> {
        if queue == 0 {
            self.land_before(index);
        }
        let Some(ep) = self.endpoints.get_mut(index) else {
            self.rx.repost(queue, slot, buf);
            return None;
        };
        let endpoint = EpId { index, generation: ep.generation };
        let len = (len - HEADER_LEN) as u32;
        ep.count_received(queue, len);
        self.stats.received += 1;
        let (ring, is_early) = (ep.ring, ep.state() != State::Connected);
        if queue == 0 {
            self.count_landed(ring);
        }
        if is_early {
            self.early(index, queue);
        }
        self.accept(index, queue, header.grant());
        Some(Delivery::new(endpoint, header.tag(), buf, len, (slot, queue)))
    }

    /// Credits that a message of the peer brought.
    #[inline(never)]
    pub(crate) fn accept(&mut self, index: u32, queue: usize, grant: Grant) {
        if grant == Grant::NONE {
            return;
        }
        let Some(lane) = self.endpoints.lane(index, queue) else { return };
        let accepted = lane.accept(grant);
        self.accepted(index, queue, accepted);
    }

    /// A lane has what its peer returned, or the peer has broken the rules.
    #[inline]
    fn accepted(&mut self, index: u32, queue: usize, accepted: Result<(), CreditError>) {
        match accepted {
            Ok(()) => self.wake(index, queue),
            Err(error) => self.fail(index, &error),
        }
    }

    /// The upper layer is done with a message: post its buffer again, return its credit.
    #[inline(always)] // with every message
    pub fn delivered(&mut self, delivery: Delivery) {
        let (endpoint, len) = (delivery.endpoint(), delivery.payload_len());
        let (buf, slot, queue) = delivery.into_receive();
        // One that has landed in a ring has no queue, and the number of that in place of a slot.
        let current = self.rx.queues.get(queue).and_then(|_| self.rx.slots.get_mut(slot));
        let Some(current) = current else { return self.delivered_otherwise(queue, slot, buf) };
        if current.is_shared() {
            current.back(buf);
            self.rx.consumed(queue, slot);
            if len <= self.rings.longest {
                self.consider_later(endpoint.index, queue);
            }
            return;
        }
        let lane = self.endpoints.named_mut(endpoint).and_then(|ep| ep.lanes.get_mut(queue));
        // A message of a former connection has its slot, but no credit to return.
        let Some(lane) = lane.filter(|_| current.is_of(endpoint.index)) else {
            return self.delivered_otherwise(queue, slot, buf);
        };
        current.back(buf);
        lane.consumed.push(slot);
        (self.rx.latest, self.rx.chores) = (Some((endpoint.index, queue)), true);
        let Some((credits, window)) = &mut lane.credits else { return };
        if !credits.consumed_quietly(window) {
            self.credit_due(endpoint.index, queue);
        }
    }

    /// The same of the last message that there is: it is seen to at the next look, so that the upper layer can answer before. Not if something
    /// is due with it, or it may lie in the device's ring: its sender goes on there although the upper layer does not look for long.
    #[inline(always)] // with every message
    pub fn delivered_last(&mut self, delivery: Delivery) {
        // One that has landed in a ring has no queue, and none of its slots is to be given back late.
        let lane = self.endpoints.lane(delivery.endpoint().index, delivery.queue.into());
        let is_apart = delivery.payload_len() + HEADER_LEN < self.port.placed_from as usize;
        if is_apart && self.rx.done.is_none() && lane.is_some_and(|lane| lane.consumes_quietly()) {
            self.rx.done = Some(delivery);
        } else {
            self.delivered_aside(delivery);
        }
    }

    /// As [`Self::delivered`], where that is rare.
    #[inline(never)]
    fn delivered_aside(&mut self, delivery: Delivery) {
        self.delivered(delivery);
    }

    /// What has been put off is seen to.
    #[inline(never)]
    pub(crate) fn settle_delivered(&mut self) {
        if let Some(delivery) = self.rx.done.take() {
            self.delivered(delivery);
        }
    }

    /// A message that fits a ring has come over a shared queue: its sender may be offered one when there is nothing else to do.
    #[inline(never)]
    fn consider_later(&mut self, index: u32, queue: usize) {
        if self.rings.are_offered() {
            (self.rx.latest, self.rx.chores) = (Some((index, queue)), true);
        }
    }

    /// The same of a message that has landed in a ring, or of a former connection.
    #[inline(never)]
    fn delivered_otherwise(&mut self, queue: usize, slot: u32, buf: Lent) {
        if queue == usize::from(LANDED) {
            self.landed_delivered(slot, buf);
        } else {
            self.rx.drop_slot(queue, slot, buf);
        }
    }

    /// A data message of a lane has been processed, with which something is due: buffers are posted again, credits returned.
    #[inline(never)]
    fn credit_due(&mut self, index: u32, queue: usize) {
        let Some(lane) = self.endpoints.lane(index, queue) else { return };
        let Some((credits, window)) = &mut lane.credits else { return };
        if let Err(error) = credits.consumed(window) {
            return self.fail(index, &error);
        }
        if credits.repost_due(window) != 0 || credits.explicit_due(window) {
            self.return_credits(index, queue);
        }
    }

    /// The endpoint is new: data before the connection manager's last word stands in for it, the
    /// first message is noted, and answers can be expected from now on.
    #[cold]
    pub(crate) fn early(&mut self, index: u32, queue: usize) {
        self.agreement_counts(index);
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        ep.peer_has_sent = true;
        match ep.state() {
            State::HaveQps | State::HaveCts => {
                let key = ep.key(index);
                self.port.service.first_data(key);
            }
            State::Ready => self.first_message(index),
            State::AwaitingFirst => self.opened(index, queue),
            _ => {}
        }
    }
}
