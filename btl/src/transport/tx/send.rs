//! Messages that go from buffers of ours, and those that wait.
//!
//! A message goes out at once when its endpoint is connected and its lane has a credit and a work
//! queue entry and nothing before it waits. Otherwise it is queued: its data is in a buffer of ours
//! already, so its sender is done in either case (a local completion says that the buffer is ours
//! no more, not that the peer has it).
#![forbid(unsafe_code)]

use crate::protocol::credits::Grant;
use crate::protocol::pending::LaneId;
use crate::protocol::wire::{DataHeader, HEADER_LEN, Kind};
use crate::transport::channel::{Ready, Request, SENDS};
use crate::transport::endpoint::lane::Lack;
use crate::transport::endpoint::state::{Action, Event, Reason, State};
use crate::transport::endpoint::{Endpoint, EpId, Listing, PATIENCE};
use crate::transport::port::buffer::Queued;
use crate::transport::stats::Stats;
use crate::transport::{SendBuf, Transport, Upcall};
use std::fmt::Display;

impl<C> Transport<C> {
    /// A buffer for `len` bytes of payload to this peer; none if no queue is that large, memory is
    /// short, or the peer has its share of the pool and the caller `can_wait`.
    pub fn take(&mut self, id: EpId, len: usize, can_wait: bool) -> Option<SendBuf> {
        let class = self.port.layout().for_payload(len)?;
        self.tx.take((class, len), id.index, can_wait, &mut self.stats)
    }

    /// Gives an unused buffer back.
    pub fn give_back(&mut self, buf: SendBuf) {
        self.tx.give_back(buf);
    }

    /// Sends the first `len` bytes of the payload, now or as soon as possible, in order. `false` if
    /// the endpoint is lost: the message is given up.
    pub fn send(&mut self, id: EpId, tag: u8, buf: SendBuf, len: usize) -> bool {
        self.send_message(id, Queued { buf, len: len as u32, tag, is_answer: false, kind: Kind::Data })
    }

    /// The same from within a receive callback. While too many answers wait, messages are held back
    /// (`protocol::hold`).
    pub fn answer(&mut self, id: EpId, tag: u8, buf: SendBuf, len: usize) -> bool {
        self.send_message(id, Queued { buf, len: len as u32, tag, is_answer: true, kind: Kind::Data })
    }

    pub(crate) fn send_message(&mut self, id: EpId, message: Queued) -> bool {
        if !self.takes(id, message.kind) || message.len as usize > message.buf.capacity() {
            self.tx.give_back(message.buf);
            return false;
        }
        let lane = LaneId { peer: id.index, queue: message.buf.class };
        let mut grant = if self.tx.pending.is_idle(lane) { self.may_send(lane) } else { None };
        if grant.is_none() && self.tx.awaited != 0 {
            grant = self.reclaim(lane);
        }
        match grant {
            Some(grant) => self.post_data(lane, message, grant),
            None if self.takes(id, message.kind) => self.enqueue(lane, message),
            // What has completed tells that the endpoint is lost.
            None => {
                self.tx.give_back(message.buf);
                return false;
            }
        }
        true
    }

    /// The endpoint takes messages of this kind.
    fn takes(&self, id: EpId, kind: Kind) -> bool {
        let takes = |ep: &Endpoint<C>| ep.takes_messages() || kind != Kind::Data && ep.state().flows();
        self.endpoints.named(id).is_some_and(takes)
    }

    #[cold]
    fn enqueue(&mut self, lane: LaneId, message: Queued) {
        self.stats.sent_late += u64::from(message.kind == Kind::Data);
        self.make_lanes(lane.peer);
        if let Some(ep) = self.endpoints.get_mut(lane.peer) {
            ep.count_queued(lane.queue.into());
            ep.answers += u32::from(message.is_answer);
            self.tx.answers += u32::from(message.is_answer);
        }
        self.tx.pending.push(lane, message);
        self.want_send(lane.peer);
    }

    /// Asks for the connection, if that has not been done.
    pub(crate) fn want_send(&mut self, index: u32) {
        // What few endpoints have an answer to, and each message that waits asks.
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        match ep.state() {
            State::Idle => self.on_event(index, Event::WantSend),
            State::Renewing(Reason::Withdrawn) | State::Retiring(Reason::Withdrawn) => {
                ep.listing = Listing::Wanted;
            }
            _ => {}
        }
    }

    /// Takes what a message on this lane needs, if it may go now: a send slot of a shared queue, an
    /// entry, a credit.
    fn may_send(&mut self, lane: LaneId) -> Option<Grant> {
        let queue = usize::from(lane.queue);
        let ep = self.endpoints.get_mut(lane.peer)?;
        if !ep.state().flows() {
            self.stats.stalled_connecting += 1;
            return None;
        }
        let Some(grant) = self.tx.acquire(&mut ep.lanes[queue], lane.peer, queue) else {
            count_stall(&mut self.stats, ep.lanes[queue].lacks());
            return None;
        };
        if ep.state() == State::Ready {
            self.first_message(lane.peer);
        }
        Some(grant)
    }

    /// Lets those out that wait and have been woken, peers in turn: what a lane may send at once, with one call.
    pub(crate) fn serve(&mut self) {
        while let Some(turn) = self.tx.pending.take() {
            let lane = turn.lane;
            match self.may_send(lane) {
                None => self.tx.pending.blocked(turn),
                Some(grant) => {
                    self.count_served(lane, &turn.fragment);
                    if self.tx.pending.has_more(lane) {
                        self.serve_chain(lane, turn.fragment, grant);
                    } else {
                        self.post_data(lane, turn.fragment, grant);
                    }
                    self.tx.pending.sent(lane);
                }
            }
        }
    }

    fn count_served(&mut self, lane: LaneId, message: &Queued) {
        if let Some(ep) = self.endpoints.get_mut(lane.peer) {
            ep.count_served(lane.queue.into());
            ep.answers -= u32::from(message.is_answer);
            self.tx.answers -= u32::from(message.is_answer);
        }
    }

    /// Posts this message, which has an entry and a credit, and those behind it that find theirs.
    fn serve_chain(&mut self, lane: LaneId, first: Queued, grant: Grant) {
        let mut ready = std::mem::take(&mut self.tx.ready);
        ready.extend(self.make_ready(lane, first, grant));
        while ready.len() < SENDS
            && self.tx.pending.has_more(lane)
            && let Some(grant) = self.acquire(lane)
        {
            let Some(message) = self.tx.pending.next(lane) else { break };
            self.count_served(lane, &message);
            ready.extend(self.make_ready(lane, message, grant));
        }
        let posted = self.post_chain(lane, &mut ready);
        self.tx.ready = ready;
        if let Err((unposted, error)) = posted {
            self.fail_unposted(lane, unposted, &format_args!("post of sends failed: {error}"));
        }
    }

    /// What a message on this lane needs, if it is there and nothing says that it has to wait.
    pub(super) fn acquire(&mut self, lane: LaneId) -> Option<Grant> {
        let ep = self.endpoints.get_mut(lane.peer).filter(|ep| ep.state().flows())?;
        self.tx.acquire(&mut ep.lanes[usize::from(lane.queue)], lane.peer, lane.queue.into())
    }

    /// The same; what is missing may have come back by now.
    #[inline]
    pub(super) fn acquire_after_look(&mut self, lane: LaneId) -> Option<Grant> {
        let grant = self.acquire(lane);
        if grant.is_some() || self.tx.awaited == 0 {
            return grant;
        }
        self.reclaim(lane)
    }

    /// Looks at what has completed before a message waits for a send slot or an entry; credits come with messages. Others that wait
    /// come first.
    #[cold]
    fn reclaim(&mut self, lane: LaneId) -> Option<Grant> {
        let ep = self.endpoints.get(lane.peer).filter(|ep| ep.state().flows())?;
        if ep.lanes.get(usize::from(lane.queue))?.lacks() == Lack::Credit {
            return None;
        }
        self.poll_sends();
        if self.tx.pending.is_idle(lane) { self.may_send(lane) } else { None }
    }

    /// A message with its header, to be posted. `None`: its endpoint is gone.
    fn make_ready(&mut self, lane: LaneId, mut message: Queued, grant: Grant) -> Option<Ready> {
        let Some((total, inline)) = self.write_header(lane, &mut message, grant) else {
            self.tx.give_back(message.buf);
            return None;
        };
        let ep = self.endpoints.get(lane.peer)?;
        let (queue, buf) = (usize::from(lane.queue), message.buf);
        let scarce = self.tx.is_scarce(&ep.lanes[queue], queue) || !inline && self.tx.is_wanted(&buf);
        Some(Ready { buf, total, inline, scarce })
    }

    /// Something came free that this lane may have waited for.
    #[inline]
    pub(crate) fn wake(&mut self, index: u32, queue: usize) {
        if !self.tx.pending.is_empty() {
            self.wake_lane(LaneId { peer: index, queue: queue as u8 });
        }
    }

    #[cold]
    fn wake_lane(&mut self, lane: LaneId) {
        if let Some(ep) = self.endpoints.get_mut(lane.peer) {
            ep.patience = PATIENCE;
        }
        self.tx.pending.wake(lane);
        self.serve();
    }

    /// Writes the header of a message whose entry and credit have been taken: how long it is with it, and whether it goes
    /// inline. `None`: its endpoint is gone.
    fn write_header(&mut self, lane: LaneId, message: &mut Queued, grant: Grant) -> Option<(u32, bool)> {
        let total = HEADER_LEN as u32 + message.len;
        let ep = self.endpoints.get_mut(lane.peer)?;
        let is_data = message.kind == Kind::Data;
        ep.count_sent(usize::from(lane.queue), message.kind, message.len);
        let to = &ep.lanes[usize::from(lane.queue)];
        let last = is_data && to.is_out_of_credits();
        let header = DataHeader::new(message.tag, lane.queue, grant).flag_last(last).of_kind(message.kind);
        let bytes = message.buf.buf.as_mut_slice();
        bytes[..HEADER_LEN].copy_from_slice(&header.emit());
        // Of our own each has a completion, as those that carry a buffer of no peer's share.
        let inline = is_data && total <= to.max_inline.into();
        if to.channel.is_none() {
            ep.numbers.stamp(message.kind, lane.queue, bytes);
        }
        self.stats.sent_buffered += u64::from(is_data && !inline);
        Some((total, inline))
    }

    /// Posts a message whose entry and credit have been taken: inline, or from its buffer.
    pub(super) fn post_data(&mut self, lane: LaneId, mut message: Queued, grant: Grant) {
        let Some((total, inline)) = self.write_header(lane, &mut message, grant) else {
            return self.tx.give_back(message.buf);
        };
        let posted = if inline {
            let posted = self.post(lane, Request::Inline([&message.buf.buf.as_slice()[..total as usize]]));
            self.tx.give_back(message.buf);
            posted
        } else {
            self.post::<0>(lane, Request::Message { buf: message.buf, total })
        };
        if let Err(error) = posted {
            self.send_refused(lane, &error);
        }
    }

    /// Everything that waits on an endpoint may try: it has just become connected.
    pub(crate) fn flow(&mut self, index: u32) {
        for queue in 0..self.tx.queues.len() {
            self.send_credits_if_due(index, queue);
        }
        self.tx.pending.wake_peer(index);
        self.serve();
        self.pump_rdma(index);
    }

    /// `count` sends on `queue` are over: their entries and, on a shared queue, their send slots are free again.
    #[inline]
    pub(crate) fn sends_done(&mut self, index: u32, queue: usize, count: u16) {
        self.tx.release_slots(index, queue, count);
        self.entries_free(index, queue, count);
    }

    /// `count` work queue entries of a lane are free again.
    #[inline]
    pub(crate) fn entries_free(&mut self, index: u32, queue: usize, count: u16) {
        self.tx.outstanding -= u32::from(count);
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        ep.outstanding -= u32::from(count);
        if ep.lanes[queue].free_entries(count) || !self.tx.pending.is_empty() || !ep.rdma.is_empty() {
            self.entry_wanted(index, queue);
        }
    }

    #[cold]
    pub(crate) fn entry_wanted(&mut self, index: u32, queue: usize) {
        self.send_credits_if_due(index, queue);
        self.tx.pending.wake(LaneId { peer: index, queue: queue as u8 });
        self.serve();
        self.pump_rdma(index);
    }

    /// A message or an operation has been refused: the failure of its endpoint, which has not come up yet and has not been told, and the
    /// peer. The upper layer may end the job for the refusal, and never hear why.
    #[cold]
    pub fn untold_failure(&mut self, id: EpId) -> Option<(u64, String)> {
        self.up.tell_failure(id)
    }

    /// The device has refused a message of this lane.
    #[cold]
    pub(crate) fn send_refused(&mut self, lane: LaneId, error: &verbs::Error) {
        self.fail_unposted(lane, 1, &format_args!("post of a send failed: {error}"));
    }

    /// The device has refused `count` messages of this lane: their endpoint is lost. No completion
    /// gives their send slots back, so that happens here; lanes that wait for them are served.
    #[cold]
    pub(crate) fn fail_unposted(&mut self, lane: LaneId, count: u16, reason: &dyn Display) {
        let wanted = self.tx.release_slots(lane.peer, lane.queue.into(), count);
        self.fail(lane.peer, reason);
        if wanted {
            self.serve();
        }
    }

    /// The endpoint is lost: what it has queued is given up, its queue pairs go to ERR and flush
    /// the rest.
    #[cold]
    pub(crate) fn fail(&mut self, index: u32, reason: &dyn Display) {
        let cts = self.port.uses_cts();
        self.land_all(index);
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let was = ep.state().is_coming_up();
        let action = ep.on(Event::Error, cts);
        self.rx.note_coming_up(was, ep.state().is_coming_up());
        if action != Action::FailAll {
            return;
        }
        self.stats.failed += 1;
        if !ep.is_to_itself() {
            self.port.service.abandon_endpoint(ep.key(index));
        }
        let id = EpId { index, generation: ep.generation };
        let peer = ep.peer;
        log::debug!("endpoint {index} to {peer:#x} failed: {reason}");
        self.tx.mark(ep, &mut self.paths);
        ep.to_error(log::Level::Warn);
        ep.queued = 0;
        self.tx.give_up(ep.rdma.drain(..), &mut self.up);
        self.up.push(Upcall::Failed { endpoint: id, peer, reason: reason.to_string(), told: false });
        self.up.end_waiting(ep, false);
        self.drop_pending(index);
    }
}

/// A message of an endpoint that is up has to wait.
#[cold]
fn count_stall(stats: &mut Stats, lack: Lack) {
    *match lack {
        Lack::Entry => &mut stats.stalled_entries,
        Lack::Credit => &mut stats.stalled_credits,
        Lack::Shared => &mut stats.stalled_shared,
    } += 1;
}
