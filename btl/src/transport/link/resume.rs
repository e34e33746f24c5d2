//! A connection that breaks while its peer is there: another one takes its place, and what the first has not carried out is
//! sent again (P and S queues; X queues have `tx::replay`).
//!
//! ```text
//!   a request fails, or the peer has taken the connection down in the middle of its stream
//!   Renewing   the queue pairs go to the error state; what is flushed is kept, in its order (`tx::keep`)
//!   Retiring   all is flushed, and what had come is taken up: the counts of both sides stand still
//!   Idle ..    the next connection, through the connection manager, as the first; both sides agree there whether they go on
//!   Resuming   each side tells, queue by queue, how many messages have come to it
//!   Ready      what is known to have come is dropped; the rest goes, and then what has waited
//! ```
//! A message that completed has been taken by the peer's device, which has a completion of it, so only what was flushed can be
//! missing, and of that only the last ones, for a queue pair keeps their order. Reads and writes are carried out again: as long as the
//! upper layer has not been told that they are over, their outcome is the same. An atomic is reported as failed.
//!
//! On iWARP a completion says that our TCP has the message: there a connection that breaks is lost, as is one whose peer's process
//! is known to have ended.
#![forbid(unsafe_code)]

use super::Renewal;
use super::alternate::GIVEN_UP;
use crate::protocol::pending::LaneId;
use crate::protocol::wire::Arrived;
use crate::transport::Transport;
use crate::transport::endpoint::Endpoint;
use crate::transport::endpoint::retained::{Copied, Kept, Resume};
use crate::transport::endpoint::state::{Event, Reason, State};
use crate::transport::port::buffer::Queued;
use cpc::{ConnectError, StreamNum};
use std::fmt::Display;

impl<C> Transport<C> {
    /// The connection is broken. Another takes its place, if the peer may be there.
    #[cold]
    pub(crate) fn broken(&mut self, index: u32, reason: &dyn Display) {
        let Some(ep) = self.endpoints.get(index) else { return };
        let waits = ep.state().is_replaced();
        if ep.has_heard_all() {
            // The peer, which may wait for a word of ours, hears that the connection is over.
            self.port.service.remove_endpoint(ep.key(index));
            return self.has_left(index);
        }
        if !waits && !ep.state().is_over() && !self.lose(index, reason, Endpoint::may_lose) {
            self.broken_for_good(index, reason);
        }
    }

    /// The connection is broken, and no other one would help.
    #[cold]
    pub(crate) fn broken_for_good(&mut self, index: u32, reason: &dyn Display) {
        if self.endpoints.get(index).is_some_and(Endpoint::has_only_to_hear) {
            return self.left_unheard(index);
        }
        self.fail(index, reason);
    }

    /// Begins another connection in place of one that is broken, if that may be.
    pub(super) fn lose(
        &mut self,
        index: u32,
        reason: &dyn Display,
        may: impl FnOnce(&mut Endpoint<C>, u8) -> bool,
    ) -> bool {
        let most = if self.paths.are_used() { 0 } else { self.port.config.reconnects };
        let queues = self.tx.queues.len();
        let Some(ep) = self.endpoints.get_mut(index).filter(|ep| ep.can_resume()) else { return false };
        if !may(ep, most) {
            return false;
        }
        let (peer, backlog) = (ep.peer, ep.backlog());
        let ended = ep.state() == State::Ended;
        let resume = ep.resume.get_or_insert_with(|| Box::new(Resume::new(queues)));
        resume.acknowledges |= ended && backlog != 0;
        resume.reason = reason.to_string();
        resume.arrived = None;
        log::info!("the connection to process {peer:#x} is broken: {reason}; another one takes its place");
        self.stats.reconnects += 1;
        self.avoid_port_that_is_down(index);
        self.on_event(index, Event::Renew(Reason::Broken));
        true
    }

    /// The connection is given up before it is there, for one over another port. False: it has no queue pairs, and does not take the place
    /// of any.
    pub(super) fn lose_tentatively(&mut self, index: u32) -> bool {
        let Some(ep) = self.endpoints.get(index).filter(|ep| ep.can_resume()) else { return false };
        let first = ep.resume.as_ref().map(|resume| resume.reason.clone());
        let reason = first.unwrap_or_else(|| GIVEN_UP.to_owned());
        self.lose(index, &reason, |_, _| true)
    }

    /// A peer that has ended its stream, and has been told that all of it has come, is back. It may not have heard that, and go on with its
    /// stream; or it has left, and begins another one: the connection managers agree upon that.
    pub(super) fn expect_return(&mut self, index: u32) {
        let (replaces, queues) = (self.port.replaces(), self.tx.queues.len());
        let Some(ep) = self.endpoints.get_mut(index).filter(|_| replaces) else { return };
        if ep.ends.peer_is_done() {
            ep.resume.get_or_insert_with(|| Box::new(Resume::new(queues)));
        }
    }

    /// The peer has taken the connection down, and it is not known yet that it has left: what it said last may not have been
    /// looked at. The next poll does, and decides.
    pub(super) fn may_be_cut(&mut self, index: u32) -> bool {
        let Some(ep) = self.endpoints.get(index) else { return false };
        let comes_again = ep.resume.is_some() && ep.state().is_coming_up();
        if comes_again {
            self.cut(index);
        } else if self.is_there(index) {
            let settle = Renewal::Settle(ep.key(index));
            self.renew_later(settle);
        } else {
            return false;
        }
        true
    }

    /// The same, when all that the peer has said is known.
    pub(super) fn settle_cut(&mut self, index: u32) {
        self.reap();
        self.poll_sends();
        let Some(ep) = self.endpoints.get(index).filter(|_| self.is_there(index)) else { return };
        // Where no other connection would take its place, what went to a peer that leaves is not asked for.
        let has_left = match self.port.replaces() {
            true => ep.has_parted() && !ep.is_busy(),
            false => ep.has_parted() || ep.ends.peer_has_ended(),
        };
        if !ep.has_moved() && !ep.state().flows() {
            if !self.renew_soon(index) {
                self.has_left(index);
            }
        } else if has_left {
            self.has_left(index);
        } else {
            self.cut(index);
        }
    }

    /// The connection is broken on the peer's side. How often that may be, the peer knows: it may have done something over it that
    /// does not show here.
    fn cut(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get(index) else { return };
        let waits = ep.state().is_replaced();
        let reason = "its process has taken it down, and has not said that it leaves";
        if !waits && !self.lose(index, &reason, |_, most| most != 0) {
            self.broken_for_good(index, &reason);
        }
    }

    /// The connection that was to take the place of one that broke does not come up. A peer that has said that it leaves has
    /// left.
    pub(super) fn not_resumed(&mut self, index: u32, error: &ConnectError) {
        let Some(ep) = self.endpoints.get(index) else { return };
        let (left, first) =
            (ep.ends.peer_has_ended(), ep.resume.as_ref().map(|resume| resume.reason.clone()));
        if left && error.cause.finds_no_peer() {
            return self.left_unheard(index);
        }
        let first = first.unwrap_or_default();
        let again = error.cause.is_refusal_for_now() || self.can_try_other_port(index);
        if !again || !self.lose(index, &first, Endpoint::may_lose) {
            self.fail(
                index,
                &format_args!("its connection is broken ({first}), and no other one comes up: {error}"),
            );
        }
    }

    /// The queue pairs are gone. A peer that has ended its stream, and whose device has our acknowledgement, has left: what it did not take
    /// is of no interest to it any more, and should it come back, it begins anew, unless it has sent more that was lost with the connection.
    /// Nor is another connection needed if it is we who leave, and all has come.
    pub(super) fn part_from_leaver(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let Some(resume) = &ep.resume else { return };
        let peer_left = ep.ends.peer_is_done() && !resume.has_to_acknowledge();
        if !peer_left && !ep.ends.all_is_heard() {
            return;
        }
        ep.part();
        ep.departures = ep.departures.max(1);
        self.drop_kept(index);
    }

    /// The queue pairs are gone: what they have not carried out goes in front of what waits.
    pub(super) fn put_in_front(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let Some(resume) = &mut ep.resume else { return };
        let retained = std::mem::take(&mut resume.retained);
        resume.again_operations += retained.operations.len();
        resume.base = (ep.lanes.iter().map(|lane| lane.received).collect(), ep.ends.received);
        let lost = resume.lost.take();
        retained.operations.into_iter().rev().for_each(|operation| ep.rdma.push_front(operation));
        retained.messages.into_iter().rev().for_each(|kept| self.send_again(index, kept));
        if let Some(lost) = lost {
            self.fail(index, &lost);
        }
    }

    /// A message of the stream that goes on, which may not have come, goes in front of what waits.
    fn send_again(&mut self, index: u32, kept: Kept) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let queue = usize::from(kept.queue);
        let message = match Queued::again(kept.buf, kept.total) {
            Ok(message) => message,
            Err(own) => return self.tx.give_back(own),
        };
        ep.unsend(queue, message.kind, message.len);
        ep.count_queued(queue);
        if let Some(resume) = &mut ep.resume {
            resume.again[queue] = resume.again[queue].wrapping_add(1);
        }
        self.tx.pending.push_front(LaneId { peer: index, queue: kept.queue }, message);
    }

    /// The same of messages without buffers.
    fn send_copied(&mut self, index: u32, copied: &[Copied]) {
        for message in copied.iter().rev() {
            match self.tx.in_buffer(message) {
                Ok(kept) => self.send_again(index, kept),
                Err(error) => {
                    let why = format_args!("there is no buffer to send a message again: {error}");
                    return self.fail(index, &why);
                }
            }
        }
    }

    /// The connection managers have agreed upon the stream that the connection at hand carries on, or begins. That counts when the
    /// peer is known to be on it, too: a request that it has given up since may still come, and be answered.
    pub(super) fn agreed(&mut self, index: u32, stream: StreamNum) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        ep.agreed = stream;
        if ep.has_brought() {
            self.agreement_counts(index);
        }
    }

    /// The connection manager has the connection at hand up, or something has come over it: what has been agreed upon counts.
    pub(crate) fn agreement_counts(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let stream = std::mem::replace(&mut ep.agreed, StreamNum::NONE);
        if stream != StreamNum::NONE {
            self.carries(index, stream);
        }
    }

    /// The connection at hand, which may have broken already, carries this stream.
    fn carries(&mut self, index: u32, stream: StreamNum) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        if stream == self.port.offered(ep) {
            let copied = ep.go_back();
            return self.send_copied(index, &copied);
        }
        let goes_on = !ep.is_at_the_beginning();
        (ep.stream, ep.former) = (stream, None);
        let Some(resume) = ep.resume.take_if(|resume| !resume.is_at_hand) else { return };
        if goes_on && let Err(reason) = self.begin_anew(index, &resume) {
            return self.refuse(index, reason);
        }
        self.break_in_its_beginning(index, *resume);
    }

    /// If the connection that has begun a stream has broken meanwhile, what is kept is of that stream.
    fn break_in_its_beginning(&mut self, index: u32, before: Resume<C>) {
        let queues = self.tx.queues.len();
        let Some(ep) = self.endpoints.get_mut(index).filter(|ep| ep.state().is_replaced()) else { return };
        let Resume { reason, retained, lost, .. } = before;
        ep.resume = Some(Box::new(Resume { reason, retained, lost, ..Resume::new(queues) }));
    }

    /// Tells the peer what has come over the connection that broke.
    pub(super) fn resume(&mut self, index: u32) {
        let queue = self.control_queue();
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let Some(resume) = &ep.resume else { return };
        let message = Arrived::new(resume.base.0.iter().copied()).message(queue as u8);
        let lane = &mut ep.lanes[queue];
        let has_credit = lane.credits.as_mut().is_none_or(|(credits, _)| credits.acquire_opener());
        let has_entry = lane.budget.acquire();
        if let Some(slots) = &mut self.tx.queues[queue].slots {
            slots.take_beyond(index);
        }
        debug_assert!(has_credit && has_entry, "the first message of a connection has both");
        if let Err(error) = self.post_control(index, queue, &message) {
            let lane = LaneId { peer: index, queue: queue as u8 };
            self.fail_unposted(lane, 1, &format_args!("post of what has come so far failed: {error}"));
        }
        self.go_on(index);
    }

    /// The peer has told what has come to it over the connection that broke. That both go on may be behind its word.
    #[cold]
    pub(crate) fn resumes(&mut self, index: u32, arrived: Arrived) {
        self.connection_events();
        self.agreement_counts(index);
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        if ep.state().is_replaced() {
            return; // this connection has broken, too: the next one brings later counts
        }
        let flows = ep.state().flows();
        match &mut ep.resume {
            Some(_) if flows => {} // as above, and it is about to be known
            Some(resume) => {
                resume.arrived = Some(arrived);
                self.go_on(index);
            }
            None => self.refuse(index, "the peer counts the messages of a stream that does not go on"),
        }
    }

    /// The peer goes on with a stream whose end we have acknowledged: nothing but acknowledgements goes to it, as before.
    fn end_again(&mut self, index: u32) {
        if self.endpoints.get(index).is_some_and(|ep| ep.ends.peer_is_done()) {
            self.on_event(index, Event::Acknowledged);
        }
    }

    /// If both sides have told: what had come is not sent again, the rest goes.
    fn go_on(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        if ep.state() != State::Resuming && !ep.state().flows() {
            return;
        }
        let Some(mut resume) = ep.resume.take_if(|resume| resume.arrived.is_some()) else { return };
        let Some(arrived) = resume.arrived.take() else { return };
        if let Err(reason) = self.skip_all(index, &resume, arrived.counts()) {
            return self.refuse(index, reason);
        }
        if self.endpoints.get(index).is_some_and(|ep| ep.state() == State::Resuming) {
            self.on_event(index, Event::Resumed);
        }
        self.end_again(index);
    }

    /// What had come is not sent again.
    fn skip_all(&mut self, index: u32, resume: &Resume<C>, arrived: &[u16]) -> Result<(), &'static str> {
        for (queue, again) in resume.again.iter().enumerate() {
            if !self.skip(index, queue, *again, arrived.get(queue).copied().unwrap_or(0)) {
                return Err("the peer counts messages that were not sent, or not those that were");
            }
        }
        Ok(())
    }

    /// The peer is another one than that of the connection that broke. If that one had ended its stream, and had been told that all of it
    /// has come, then it had left, and what had not come to it is of no interest to this one.
    fn begin_anew(&mut self, index: u32, resume: &Resume<C>) -> Result<(), &'static str> {
        let Some(ep) = self.endpoints.get_mut(index).filter(|ep| ep.ends.peer_is_done()) else {
            return Err("the peer has begun anew in the middle of its stream");
        };
        ep.begin_anew(resume);
        let operations = resume.again_operations.min(ep.rdma.len());
        self.tx.give_up(ep.rdma.drain(..operations), &mut self.up);
        for (queue, again) in resume.again.iter().enumerate() {
            let lane = LaneId { peer: index, queue: queue as u8 };
            for _ in 0..*again {
                let Some(message) = self.tx.pending.pull(lane) else { break };
                ep.count_served(queue);
                self.tx.give_back(message.buf);
            }
        }
        Ok(())
    }

    /// Of the `again` messages in front of a lane the peer has those that make its count `arrived`. False: that cannot be.
    fn skip(&mut self, index: u32, queue: usize, again: u16, arrived: u16) -> bool {
        let Some(ep) = self.endpoints.get_mut(index) else { return false };
        let come = arrived.wrapping_sub(ep.lanes[queue].sent);
        log::debug!(
            "endpoint {index}, queue {queue}: of {again} messages that may have come, {come} have; {} before",
            ep.lanes[queue].sent
        );
        if come > again {
            return false;
        }
        for _ in 0..come {
            let Some(message) = self.tx.pending.pull(LaneId { peer: index, queue: queue as u8 }) else {
                return false;
            };
            ep.count_served(queue);
            ep.count_sent(queue, message.kind, message.len);
            self.tx.give_back(message.buf);
        }
        self.stats.replayed += u64::from(again - come);
        true
    }
}
