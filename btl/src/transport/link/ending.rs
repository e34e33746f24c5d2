//! How a side leaves: it says how much it has sent, and goes when the peer has said that all of it has come.
//!
//! ```text
//!   data, data, data --> any queue
//!   end of stream (3 messages) --> one queue           three messages have come, what waits for the other side is out
//!   <------------------------------------------------- acknowledgement (3); nothing follows it
//!   the connection may go
//! ```
//! Two sides that leave at the same time both do so. After the acknowledgement nothing of the upper layer goes to the one
//! that leaves, so neither side posts to receive queues of a process that has gone: over X queues that would
//! break the send queue pair to a whole node. On iWARP (RFC 5040) there is another reason: a completion there says that our TCP has
//! the bytes, and a connection that ends may take along what is still on its way.
#![forbid(unsafe_code)]

use crate::protocol::wire::{End, HEADER_LEN, Header, Kind, WireError};
use crate::transport::endpoint::state::{Event, State};
use crate::transport::endpoint::{Endpoint, EpId};
use crate::transport::port::buffer::Queued;
use crate::transport::{Delivery, SendBuf, Transport};
use verbs::Lent;

impl<C> Transport<C> {
    /// Says that the stream to the peer ends, when all is out: once, and again if more has been sent since.
    pub(super) fn end_stream(&mut self, id: EpId) {
        if self.endpoints.named(id).is_some_and(Endpoint::has_only_received) {
            return self.want_send(id.index);
        }
        let Some(ep) = self.endpoints.named(id).filter(|ep| ep.may_end()) else { return };
        // On iWARP behind what has been written to the peer's memory.
        let queue = if ep.first.is_some() { self.port.layout().largest() } else { self.control_queue() };
        let count = ep.ends.sent;
        let Some(buf) = self.end_message(queue, count) else { return };
        if let Some(ep) = self.endpoints.named_mut(id) {
            ep.ends.tell();
        }
        self.send_own(id, buf, Kind::End);
    }

    /// The peer has not said yet that all has come, or has to be told the same, over this connection or the one that comes up; and it is there.
    pub(super) fn has_to_hear(&self, id: EpId) -> bool {
        let cts = self.port.uses_cts();
        let goes_on = |ep: &Endpoint<C>| ep.has_to_resume() || ep.is_rerouted();
        let comes_up = |ep: &Endpoint<C>| goes_on(ep) && !ep.ends.all_is_heard() || ep.may_hold_unseen(cts);
        let waits = |ep: &Endpoint<C>| ep.ends.are_open() || ep.has_only_received() || comes_up(ep);
        self.endpoints.named(id).is_some_and(|ep| !ep.state().is_over() && waits(ep))
    }

    /// The smallest per-peer queue, or the smallest at all.
    pub(super) fn control_queue(&self) -> usize {
        self.port.cts_queue.or(self.port.layout().for_payload(End::LEN)).unwrap_or_default()
    }

    fn end_message(&mut self, queue: usize, count: u32) -> Option<SendBuf> {
        let buf = self.tx.control_buf(queue, &End { count }.message());
        buf.inspect_err(|error| log::warn!("no buffer for the end of a stream, which is not told: {error}"))
            .ok()
    }

    fn send_own(&mut self, id: EpId, buf: SendBuf, kind: Kind) {
        self.stats.ends += 1;
        self.send_message(id, Queued { buf, len: End::LEN as u32, tag: 0, is_answer: false, kind });
    }

    /// An end of stream or its acknowledgement has come over a P or S queue.
    #[cold]
    pub(crate) fn end_received(
        &mut self,
        (index, queue, slot): (u32, usize, u32),
        header: Header,
        (buf, len): (Lent, usize),
    ) {
        let Some(ep) = self.endpoints.get(index) else { return self.rx.repost(queue, slot, buf) };
        let endpoint = EpId { index, generation: ep.generation };
        if ep.state() != State::Connected {
            self.early(index, queue);
        }
        let end = End::parse(&buf.as_slice()[HEADER_LEN..len]);
        self.count_numbered(index, queue);
        self.accept(index, queue, header.grant);
        self.delivered(Delivery::new(endpoint, 0, buf, 0, (slot, queue)));
        self.ended(endpoint, header.kind, end);
    }

    /// The peer says that its stream ends, or that all of ours has come.
    #[cold]
    pub(crate) fn ended(&mut self, id: EpId, kind: Kind, end: Result<End, WireError>) {
        let Some(ep) = self.endpoints.named_mut(id) else { return };
        match (kind, end) {
            (_, Err(error)) => self.refuse(id.index, &error.to_string()),
            (Kind::EndAck, Ok(End { count })) => {
                if !ep.ends.hear(count) {
                    self.refuse(id.index, "an end of stream was acknowledged that was not sent");
                }
            }
            (_, Ok(End { count })) => {
                ep.ends.peer_ends(count);
                if !self.ending.contains(&id) {
                    self.ending.push(id);
                    self.rx.chores = true;
                }
            }
        }
    }

    /// Tells peers that are leaving that all has come, as soon as it has.
    #[cold]
    pub(crate) fn acknowledge_ends(&mut self) {
        if !self.up.is_empty() {
            return;
        }
        let mut ending = std::mem::take(&mut self.ending);
        ending.retain(|id| !self.acknowledge_end(*id));
        self.ending.append(&mut ending);
    }

    /// Whether there is nothing to be told any more.
    fn acknowledge_end(&mut self, id: EpId) -> bool {
        let Some(ep) = self.endpoints.named(id).filter(|ep| !ep.state().is_over()) else { return true };
        let due = ep.ends.due().filter(|_| !self.rx.hold.has(id.index) && ep.backlog() == 0);
        let Some(count) = due else { return false };
        if !ep.state().flows() {
            // X queues: what we send takes a connection of its own.
            self.want_send(id.index);
            return false;
        }
        let Some(buf) = self.end_message(self.control_queue(), count) else { return false };
        if let Some(ep) = self.endpoints.named_mut(id) {
            ep.ends.acknowledged();
        }
        self.send_own(id, buf, Kind::EndAck);
        self.on_event(id.index, Event::Acknowledged);
        true
    }

    /// A request to a peer that nothing more was to go to has failed: it has taken its queue pairs down before it, or its
    /// device, saw that.
    #[cold]
    pub(crate) fn left_unheard(&mut self, index: u32) {
        log::debug!("endpoint {index}: the peer has left before it acknowledged the end of the stream");
        self.has_left(index);
    }
}
