//! Receiving: a message's header names its endpoint.
#![forbid(unsafe_code)]

use super::Rx;
use crate::protocol::wire::{End, HEADER_LEN, Kind as MessageKind, XrcHeader};
use crate::transport::endpoint::EpId;
use crate::transport::endpoint::numbers::Arrival;
use crate::transport::endpoint::state::State;
use crate::transport::wrid::{Kind, WrId};
use crate::transport::{Delivery, Transport};
use verbs::{Completion, Lent};

impl Rx {
    /// No oxib of this version writes such a message, and it names no endpoint: it is dropped.
    #[cold]
    fn drop_malformed(&mut self, queue: usize, slot: u32, buf: Lent) {
        log::warn!("queue {queue}: a message without a valid header was dropped");
        self.repost(queue, slot, buf);
    }
}

impl<C> Transport<C> {
    /// A receive completion of neither a P nor an S queue.
    #[inline(never)]
    pub(crate) fn received_otherwise(&mut self, done: Completion, id: WrId) -> Option<Delivery> {
        match id.kind() {
            Some(Kind::Xrc) => self.received_xrc(done, id),
            _ => self.cts_received(done, id),
        }
    }

    /// Takes a receive completion of an X queue apart.
    fn received_xrc(&mut self, done: Completion, id: WrId) -> Option<Delivery> {
        let (slot, queue) = (id.index(), id.queue());
        self.rx.count_consumed(queue);
        let len = done.byte_len() as usize;
        let (buf, _) = self.rx.slots.completed(done)?;
        let len = len.min(buf.capacity());
        let header = buf.as_slice()[..len].first_chunk().and_then(|head| XrcHeader::parse(*head));
        let Some(header) = header.filter(|h| usize::from(h.queue()) == queue) else {
            self.stats.refused += 1;
            self.rx.drop_malformed(queue, slot, buf);
            return None;
        };
        let Some(endpoint) = self.labelled(header) else {
            self.rx.repost(queue, slot, buf);
            return None;
        };
        if header.kind() != MessageKind::Data {
            let end = End::parse(&buf.as_slice()[HEADER_LEN..len]);
            self.rx.repost(queue, slot, buf);
            self.ended(endpoint, header.kind(), end);
            return None;
        }
        let len = (len - HEADER_LEN) as u32;
        if let Some(ep) = self.endpoints.named_mut(endpoint) {
            ep.traffic.received += u64::from(len);
            ep.ends.received = ep.ends.received.wrapping_add(1);
        }
        self.stats.received += 1;
        Some(Delivery::new(endpoint, header.tag(), buf, len, (slot, queue)))
    }

    /// The endpoint that goes by the message's label, if the message is new.
    fn labelled(&mut self, header: XrcHeader) -> Option<EpId> {
        let Some((index, ep)) = self.endpoints.labelled(header.label()) else {
            // Of a peer that has been removed since.
            self.stats.stale += 1;
            return None;
        };
        let id = EpId { index, generation: ep.generation };
        match (ep.numbers.arrived(header.number()), ep.state()) {
            (Arrival::Next, State::Failed) => return None,
            (Arrival::Next, State::Connected) => {}
            (Arrival::Next, State::Ready) => self.first_message(index),
            // The route back may not be there: nothing has been sent yet, or it broke.
            (Arrival::Next, _) => {
                ep.peer_has_sent = true;
                // If our request was withdrawn (`link::unlist`), what has waited asks again: the peer is there.
                if ep.backlog() != 0 {
                    self.want_send(index);
                }
            }
            (Arrival::Again, _) => {
                self.stats.repeated += 1;
                return None;
            }
            (Arrival::Gap, _) => {
                self.refuse(index, "a message of the peer is missing");
                return None;
            }
        }
        Some(id)
    }
}
