//! iWARP: how a side that leaves knows that its last messages have come.
//!
//! ```text
//!   data, data, end of stream --> each queue         all of the queue has come: acknowledgement
//!   <--------------------------------------------------------------------------------------
//!   all queues are acknowledged: the connection may go
//! ```
//! Elsewhere a completion says that the peer's device has the message, and what it has stays with the peer when we
//! leave. On iWARP (RFC 5040) it says that our TCP has it: a connection that ends then may take along what is
//! still on its way. Ends and acknowledgements are messages like the upper layer's, with credits, in the order of
//! their queue.
#![forbid(unsafe_code)]

use crate::protocol::wire::{Header, Kind};
use crate::transport::endpoint::EpId;
use crate::transport::endpoint::state::State;
use crate::transport::port::buffer::Queued;
use crate::transport::{Delivery, Transport};
use verbs::Buf;

/// No peer that keeps the rules has so many messages waiting for it that each of its ends adds another.
const MOST_WAITING: u32 = 1 << 16;

impl<C> Transport<C> {
    /// All is out. Whether the peer has still to say that it has come: it is asked once, and again if more has been sent since.
    pub(super) fn awaits_acknowledgement(&mut self, id: EpId) -> bool {
        let Some(ep) = self.endpoints.named_mut(id).filter(|ep| ep.first.is_some() && ep.state().flows())
        else {
            return false;
        };
        let sent = ep.traffic.sent;
        if std::mem::replace(&mut ep.ended_at, sent) != sent {
            (0..self.tx.queues.len()).for_each(|queue| self.end_stream(id, queue));
        }
        self.endpoints.named(id).is_some_and(|ep| ep.unacked != 0 && ep.state().flows())
    }

    fn end_stream(&mut self, id: EpId, queue: usize) {
        if self.send_own(id, queue, Kind::End)
            && let Some(ep) = self.endpoints.named_mut(id)
        {
            ep.unacked += 1;
        }
    }

    /// Sends a message without payload; whether there was a buffer for it.
    fn send_own(&mut self, id: EpId, queue: usize, kind: Kind) -> bool {
        match self.tx.control_buf(queue, &[]) {
            Ok(buf) => self.send_message(id, Queued { buf, len: 0, tag: 0, is_answer: false, kind }),
            Err(error) => {
                log::warn!("no buffer for an end of stream: {error}; its peer may miss what was sent last");
                false
            }
        }
    }

    /// An end of stream or its acknowledgement has come.
    #[cold]
    pub(crate) fn ended(&mut self, (index, queue, slot): (u32, usize, u32), header: Header, buf: Buf) {
        let Some(ep) = self.endpoints.get(index) else { return self.rx.repost(queue, slot, buf) };
        let endpoint = EpId { index, generation: ep.generation };
        if ep.state() != State::Connected {
            self.early(index, queue);
        }
        self.accept(index, queue, header.grant);
        self.delivered(Delivery { endpoint, tag: 0, buf, len: 0, slot, queue: queue as u8 });
        let waiting = self.endpoints.named(endpoint).map_or(0, |ep| ep.queued);
        match header.kind {
            Kind::EndAck => self.acknowledged(endpoint),
            _ if waiting < MOST_WAITING => drop(self.send_own(endpoint, queue, Kind::EndAck)),
            _ => self.refuse(index, "the peer ends its stream again and again, and takes no acknowledgement"),
        }
    }

    /// An end of stream has failed: the peer has taken its queue pairs down before it saw it. What was sent before had been
    /// taken by our device.
    #[cold]
    pub(crate) fn left_unheard(&mut self, index: u32) {
        log::debug!("endpoint {index}: the peer has left before it acknowledged the end of the stream");
        self.disconnected(index);
    }

    fn acknowledged(&mut self, id: EpId) {
        let Some(ep) = self.endpoints.named_mut(id) else { return };
        match ep.unacked.checked_sub(1) {
            Some(left) => ep.unacked = left,
            None => self.refuse(id.index, "an end of stream was acknowledged that was not sent"),
        }
    }
}
