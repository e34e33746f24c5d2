//! Messages that go at once, from the memory of the caller: into a ring of the peer, or over a queue.
//!
//! Steps of an 8-byte message: find the endpoint, pick the queue by size, take entry and credit,
//! post our header and the caller's two pieces inline. No allocation, no lock, no system call.
//! What cannot go at once has changed nothing: its sender tries another way, or takes a buffer (`send`).
#![forbid(unsafe_code)]

use crate::protocol::eager::ALONE;
use crate::protocol::pending::LaneId;
use crate::protocol::wire::{DataHeader, HEADER_LEN, Kind};
use crate::transport::Transport;
use crate::transport::endpoint::state::State;
use crate::transport::endpoint::{EpId, NO_RING};
use verbs::Pieces;

/// Bytes of a long message: one that the device copies does not go into a ring of ours.
const LONG: usize = 12_288;

/// What has become of a message that was tried in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It has gone.
    Sent,
    /// Nothing has happened: another way may be open to it.
    Otherwise,
    /// Nothing has happened, and no way is open to it now: its sender comes again, or takes a buffer.
    Refused,
}

impl From<bool> for Attempt {
    #[inline(always)] // with every message
    fn from(sent: bool) -> Attempt {
        if sent { Attempt::Sent } else { Attempt::Otherwise }
    }
}

impl<C> Transport<C> {
    /// A message of `len` bytes may go [straight](Self::sendi_straight): it is one for the first queue, and goes inline.
    #[inline(always)] // with every message
    pub fn goes_straight(&self, id: EpId, len: usize) -> bool {
        let lane = self.endpoints.get(id.index).and_then(|ep| ep.lanes.first());
        lane.is_some_and(|lane| len < usize::from(lane.straight_below))
    }

    /// Sends two pieces as one message of the first queue, into the peer's ring or as a SEND, if it takes nothing scarce.
    ///
    /// No branch of it comes back to its line, and behind the device's refusal nothing of the caller's is needed any more, so that what it knows stays
    /// in registers.
    #[inline(always)] // with every message
    pub fn sendi_straight(&mut self, id: EpId, tag: u8, [head, body]: [&[u8]; 2]) -> Attempt {
        let len = head.len().wrapping_add(body.len());
        let Some(ep) = self.endpoints.get_mut(id.index) else { return Attempt::Otherwise };
        if ep.state() != State::Connected || ep.generation != id.generation {
            return Attempt::Otherwise;
        }
        let Some(lane) = ep.lanes.first_mut() else { return Attempt::Otherwise };
        if len >= usize::from(lane.straight_below) || !self.tx.pending.is_empty() {
            return Attempt::Otherwise;
        }
        // `NO_RING` is the number of none.
        let Some(ring) = self.rings.get_mut(ep.ring) else {
            return self.sendi_first(id, tag, [head, body]).into();
        };
        if len > ALONE {
            return self.sendi_wide(id, tag, [head, body]).into();
        }
        let Some(way) = lane.way_into(ring, 1) else {
            return self.sendi_posted(id, tag, [head, body]).into();
        };
        let pieces = Pieces::new([head, body]);
        if way.write(tag, lane.sent, (&pieces, len)) {
            lane.sent = lane.sent.wrapping_add(1);
            ep.count_written(len);
            self.stats.sent_eager += 1;
            return Attempt::Sent;
        }
        if self.sendi_unwritten(id.index, tag, &pieces) { Attempt::Sent } else { Attempt::Refused }
    }

    /// The same of what the device does not write in its own way now.
    #[cold]
    fn sendi_unwritten(&mut self, index: u32, tag: u8, pieces: &Pieces<'_>) -> bool {
        let Some(ep) = self.endpoints.get(index) else { return false };
        let id = EpId { index, generation: ep.generation };
        self.sendi(id, tag, pieces.buffers())
    }

    #[cold]
    fn sendi_refused(&mut self, id: EpId, error: &verbs::Error) -> bool {
        self.send_refused(LaneId { peer: id.index, queue: 0 }, error);
        true
    }

    /// The same as a SEND. The endpoint is connected, and nothing waits.
    #[inline(never)] // the way into rings stays short
    pub(super) fn sendi_first(&mut self, id: EpId, tag: u8, [head, body]: [&[u8]; 2]) -> bool {
        let len = head.len().wrapping_add(body.len());
        let Some(ep) = self.endpoints.get_mut(id.index) else { return false };
        let Some(lane) = ep.lanes.first_mut() else { return false };
        if lane.credits.is_none() {
            return self.sendi_straight_to_all(id, tag, [head, body]);
        }
        match lane.post_straight(self.tx.signalling, tag, [head, body]) {
            None => false,
            Some(Ok(signalled)) => {
                lane.sent = lane.sent.wrapping_add(1);
                ep.count_written(len);
                self.tx.count_posted(ep, signalled);
                self.stats.sent_inline += 1;
                true
            }
            Some(Err(error)) => self.sendi_refused(id, &error),
        }
    }

    /// The same over a shared queue. The endpoint is connected, and nothing waits.
    #[inline(never)] // the way of the shortest messages over a queue of their peer's own stays short
    fn sendi_straight_to_all(&mut self, id: EpId, tag: u8, pieces: [&[u8]; 2]) -> bool {
        let Some(ep) = self.endpoints.get_mut(id.index) else { return false };
        let Some(lane) = ep.lanes.first_mut() else { return false };
        let len = pieces[0].len().wrapping_add(pieces[1].len());
        if !lane.is_plain() {
            return false;
        }
        let Some(grant) = self.tx.acquire_plain(lane, id.index, 0) else { return false };
        match lane.post_copied(self.tx.signalling, DataHeader::new(tag, 0, grant).emit(), pieces) {
            Ok(signalled) => {
                lane.sent = lane.sent.wrapping_add(1);
                ep.count_written(len);
                self.tx.count_posted(ep, signalled);
                self.stats.sent_inline += 1;
            }
            Err(error) => self.send_refused(LaneId { peer: id.index, queue: 0 }, &error),
        }
        true
    }

    /// The same of longer ones: into the peer's ring, or over any queue, of pieces that the device copies; what it does not copy goes from a buffer.
    /// `who` is what the caller will call a message that is refused when it comes again with it.
    #[inline(always)] // with every message
    pub fn sendi_longer(&mut self, id: EpId, tag: u8, [head, body]: [&[u8]; 2], who: usize) -> Attempt {
        let len = head.len().wrapping_add(body.len());
        let Some(ep) = self.endpoints.get_mut(id.index) else { return Attempt::Otherwise };
        if ep.state() != State::Connected || ep.generation != id.generation {
            return Attempt::Otherwise;
        }
        if len <= self.rings.longest && ep.ring != NO_RING {
            return self.sendi_wide(id, tag, [head, body]).into();
        }
        if len >= LONG && !self.may_go(id.index, len, who) {
            self.stats.long_refused += 1;
            return Attempt::Refused;
        }
        self.sendi_gathered(id, tag, [head, body]).into()
    }

    /// Whether a long message may go to this peer now (`LongSends`).
    #[inline(never)]
    fn may_go(&mut self, peer: u32, len: usize, who: usize) -> bool {
        let queue = self.port.layout().for_payload(len);
        let Some(ep) = self.endpoints.get_mut(peer) else { return true };
        let Some(lane) = queue.and_then(|queue| ep.lanes.get(queue)) else { return true };
        let total = HEADER_LEN + len;
        let at_once = || lane.qp().is_none_or(|qp| qp.sends_at_once(total as u32));
        !lane.is_gathered(total) || ep.long.may_go(who, (ep.traffic.sent, ep.traffic.received), at_once)
    }

    /// The same over a queue. The endpoint is connected.
    #[inline(always)] // with every message
    pub(super) fn sendi_gathered(&mut self, id: EpId, tag: u8, [head, body]: [&[u8]; 2]) -> bool {
        let len = head.len().wrapping_add(body.len());
        let Some(queue) = self.port.layout().for_payload(len) else { return false };
        let Some(ep) = self.endpoints.get_mut(id.index) else { return false };
        let Some(lane) = ep.lanes.get_mut(queue) else { return false };
        if !lane.takes_pieces(HEADER_LEN + len) {
            return self.sendi_copied(id, tag, queue, [head, body]);
        }
        if !lane.is_gathered(HEADER_LEN + len) {
            return self.sendi_plain(id, tag, queue, [head, body]);
        }
        if !self.tx.pending.is_empty() || !lane.is_plain() {
            return false;
        }
        let Some(grant) = self.tx.acquire_plain(lane, id.index, queue) else { return false };
        let header = DataHeader::new(tag, queue as u8, grant).emit();
        match lane.post_gathered(self.tx.signalling, [&header, head, body]) {
            Ok(signalled) => {
                lane.sent = lane.sent.wrapping_add(1);
                ep.count_written(len);
                self.tx.count_posted(ep, signalled);
                self.stats.sent_inline += 1;
            }
            Err(error) => self.send_refused(LaneId { peer: id.index, queue: queue as u8 }, &error),
        }
        true
    }

    /// Sends two pieces as one message, if that is possible at once: into the peer's ring, or over any queue. `false`: nothing
    /// has happened; use a buffer.
    #[inline(always)] // with every message
    pub fn sendi(&mut self, id: EpId, tag: u8, [head, body]: [&[u8]; 2]) -> bool {
        let len = head.len() + body.len();
        let Some(queue) = self.port.layout().for_payload(len) else { return false };
        let Some(ep) = self.endpoints.get_mut(id.index) else { return false };
        if ep.state() != State::Connected || ep.generation != id.generation {
            return false;
        }
        let has_ring = ep.ring != NO_RING && len <= ALONE;
        let Some(lane) = ep.lanes.get_mut(queue) else { return false };
        let inline = lane.takes_pieces(HEADER_LEN + len);
        let is_written = has_ring && self.sendi_eager(id, tag, [head, body]);
        is_written || self.sendi_over(id, tag, (queue, inline), [head, body])
    }

    /// The same over a queue, inline or from a buffer. The endpoint is connected.
    #[inline(always)] // with every message
    fn sendi_over(&mut self, id: EpId, tag: u8, (queue, inline): (usize, bool), pieces: [&[u8]; 2]) -> bool {
        if inline {
            self.sendi_plain(id, tag, queue, pieces)
        } else {
            self.sendi_copied(id, tag, queue, pieces)
        }
    }

    /// The same over any queue, inline. The endpoint is connected.
    #[inline(never)] // the way of the shortest messages stays short
    fn sendi_plain(&mut self, id: EpId, tag: u8, queue: usize, [head, body]: [&[u8]; 2]) -> bool {
        let Some(ep) = self.endpoints.get_mut(id.index) else { return false };
        let Some(lane) = ep.lanes.get_mut(queue) else { return false };
        let is_plain = self.tx.pending.is_empty() && lane.is_plain();
        let grant = if is_plain { self.tx.acquire_plain(lane, id.index, queue) } else { None };
        let Some(grant) = grant else { return self.sendi_carefully(id, tag, queue, [head, body]) };
        let header = DataHeader::new(tag, queue as u8, grant).emit();
        match lane.post_plain(self.tx.signalling, [&header, head, body]) {
            Ok(signalled) => {
                self.tx.count_posted(ep, signalled);
                ep.count_sent(queue, Kind::Data, (head.len() + body.len()) as u32);
                self.stats.sent_inline += 1;
            }
            Err(error) => self.send_refused(LaneId { peer: id.index, queue: queue as u8 }, &error),
        }
        true
    }

    /// As [`sendi_plain`](Self::sendi_plain), if others wait, or something is scarce.
    #[inline(never)]
    fn sendi_carefully(&mut self, id: EpId, tag: u8, queue: usize, [head, body]: [&[u8]; 2]) -> bool {
        let name = LaneId { peer: id.index, queue: queue as u8 };
        if !self.tx.pending.is_idle(name) {
            return false;
        }
        let Some(grant) = self.acquire_after_look(name) else { return false };
        let Some(ep) = self.endpoints.get_mut(id.index) else { return false };
        let lane = &mut ep.lanes[queue];
        let header = DataHeader::new(tag, queue as u8, grant).flag_last(lane.is_out_of_credits()).emit();
        let scarce = self.tx.is_scarce(lane, queue);
        let (policy, pieces) = (self.tx.signalling, [&header[..], head, body]);
        let copied = HEADER_LEN + head.len() + body.len() <= usize::from(lane.max_inline);
        let Some(channel) = &mut lane.channel else { return false };
        match channel.post_inline(policy, scarce, copied, pieces) {
            Ok(signalled) => {
                self.tx.count_posted(ep, signalled);
                ep.count_sent(queue, Kind::Data, (head.len() + body.len()) as u32);
                self.stats.sent_inline += 1;
            }
            Err(error) => self.send_refused(LaneId { peer: id.index, queue: queue as u8 }, &error),
        }
        true
    }
}
