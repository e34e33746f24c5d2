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
use crate::transport::wrid::{Kind, WrId};
use crate::transport::{Delivery, Transport, Upcall};
use verbs::{Buf, Completion};

/// Polls that found something, between two looks at what can wait.
const BUSY_POLLS: u32 = 8;

/// A failed request that is not signalled is found after so many polls that find nothing, and a shared queue that is empty filled.
const RARE_POLLS: u32 = 256;

impl<C> Transport<C> {
    /// Looks around once: connection events, completions. True if there is something for
    /// [`Transport::take_upcall`].
    #[inline]
    pub fn poll(&mut self) -> bool {
        if self.port.service.pending() {
            self.connection_events();
        }
        if self.rx.batch.is_empty() {
            let found = self.look_for_receives();
            if !self.rx.hold.is_empty() {
                self.rx.note_turn(found, self.tx.answers);
            }
            self.rx.polls = self.rx.polls.wrapping_add(1);
            if found == 0 || self.rx.polls.is_multiple_of(BUSY_POLLS) {
                self.other_work();
            }
        }
        !self.rx.batch.is_empty() || !self.up.is_empty() || !self.rx.hold.is_empty()
    }

    /// The next receive completions, in place of those that have been looked at; how many.
    #[inline]
    pub(crate) fn look_for_receives(&mut self) -> usize {
        match self.rx.cq.poll(&mut self.rx.batch) {
            Ok(found) => found,
            Err(error) => self.cq_broken(&error),
        }
    }

    /// Nothing arrived, or something has for a while: time for what can wait.
    #[inline]
    fn other_work(&mut self) {
        if let Some((index, queue)) = self.rx.repost_later.take() {
            self.repost_early(index, queue);
        }
        let rarely = self.rx.polls.is_multiple_of(RARE_POLLS);
        if rarely {
            self.keep_alive();
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
        if self.rx.hungry && self.rx.polls.is_multiple_of(RARE_POLLS) {
            self.rx.feed();
        }
    }

    /// The next thing for the upper layer, of what the last `poll` found. What was put aside
    /// before, or comes up while a message's sender is looked for, is older than what is in the
    /// batch.
    #[inline]
    pub fn take_upcall(&mut self) -> Option<Upcall<C>> {
        loop {
            if !self.up.is_empty() {
                return self.up.take();
            }
            let Some(done) = self.rx.batch.take() else { return self.take_held() };
            let Some(delivery) = self.received(done) else { continue };
            let delivery = if self.is_behind() { self.hold_back(delivery) } else { Some(delivery) };
            match delivery {
                Some(delivery) if self.up.is_empty() => return Some(Upcall::Deliver(delivery)),
                Some(delivery) => self.up.push(Upcall::Deliver(delivery)),
                None => {}
            }
        }
    }

    /// Takes a receive completion apart; a message for the upper layer comes back.
    #[inline]
    pub(crate) fn received(&mut self, done: Completion) -> Option<Delivery> {
        let id = WrId(done.wr_id());
        if !done.is_ok() {
            self.receive_failed(done, id);
            return None;
        }
        let slot = id.index();
        let queue = id.queue();
        let len = done.byte_len() as usize;
        let (buf, index) = if id.is(Kind::Peer) {
            self.rx.slots.completed(done)?
        } else if id.is(Kind::Shared) {
            match self.sender(&done) {
                Some(index) => (self.rx.slots.completed(done)?.0, index),
                None => {
                    self.rx.put_aside(done, &mut self.stats);
                    return None;
                }
            }
        } else {
            return self.received_otherwise(done, id);
        };
        let len = len.min(buf.capacity() as usize);
        let header = buf.as_slice()[..len].first_chunk().and_then(|head| DataHeader::parse(*head));
        match header.filter(|h| usize::from(h.queue()) == queue) {
            Some(header) => self.data_received((index, queue, slot), header, buf, len),
            None => self.rare_received((index, queue, slot), buf, len),
        }
    }

    /// A data message that has taken its sender's last credit; or no data message.
    #[cold]
    fn rare_received(&mut self, at: (u32, usize, u32), buf: Buf, len: usize) -> Option<Delivery> {
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
    #[inline(always)] // with every message
    fn data_received(
        &mut self,
        (index, queue, slot): (u32, usize, u32),
        header: DataHeader,
        buf: Buf,
        len: usize,
    ) -> Option<Delivery> {
        let Some(ep) = self.endpoints.get_mut(index) else {
            self.rx.repost(queue, slot, buf);
            return None;
        };
        let endpoint = EpId { index, generation: ep.generation };
        let len = (len - HEADER_LEN) as u32;
        ep.traffic.received += u64::from(len);
        ep.ends.received = ep.ends.received.wrapping_add(1);
        let lane = &mut ep.lanes[queue];
        lane.received = lane.received.wrapping_add(1);
        self.stats.received += 1;
        let grant = header.grant();
        if ep.state() != State::Connected {
            self.early(index, queue);
            self.accept(index, queue, grant);
        } else if grant != Grant::NONE {
            let accepted = ep.lanes[queue].accept(grant);
            self.accepted(index, queue, accepted);
        }
        Some(Delivery { endpoint, tag: header.tag(), buf, len, slot, queue: queue as u8 })
    }

    /// Credits that a message of the peer brought.
    #[inline]
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
    #[inline]
    pub fn delivered(&mut self, delivery: Delivery) {
        let queue = delivery.queue as usize;
        let slot = delivery.slot;
        if self.rx.queues[queue].shared.is_some() {
            return self.rx.repost(queue, slot, delivery.buf);
        }
        let index = delivery.endpoint.index;
        // A message of a former connection has its slot, but no credit to return.
        let current = self.rx.slots.of(slot, index);
        let (Some(ep), Some(current)) = (self.endpoints.named_mut(delivery.endpoint), current) else {
            return self.rx.drop_slot(queue, slot, delivery.buf);
        };
        let lane = &mut ep.lanes[queue];
        let Some((credits, window)) = &mut lane.credits else { return };
        let overrun = credits.consumed(window).err();
        let due = credits.repost_due(window) != 0 || credits.explicit_due(window);
        lane.consumed.push(slot);
        current.hold(delivery.buf);
        if let Some(error) = overrun {
            self.fail(index, &error);
        } else if due {
            self.return_credits(index, queue);
        } else {
            self.rx.repost_later = Some((index, queue));
        }
    }

    /// The endpoint is new: data before the connection manager's last word stands in for it, the
    /// first message is noted, and answers can be expected from now on.
    #[cold]
    pub(crate) fn early(&mut self, index: u32, queue: usize) {
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
