//! Messages that go at once from memory of ours: too long for the device to copy, they are copied here.
//!
//! Steps of a message to a queue pair of the peer's own: find endpoint and lane, take entry and credit, write header and pieces into the ledger, post.
//! The ledger gets memory for that when some messages have gone; before, and for what finds no room there, a buffer is taken, and the line gives it
//! back. What takes something scarce, or goes over a route, has a longer way.
#![forbid(unsafe_code)]

use super::post::channel;
use crate::protocol::pending::LaneId;
use crate::protocol::wire::{DataHeader, HEADER_LEN, Kind, XrcHeader};
use crate::transport::Transport;
use crate::transport::channel::{Refused, Target, copy};
use crate::transport::endpoint::EpId;
use crate::transport::port::buffer::{Queued, SendBuf};

impl<C> Transport<C> {
    /// Sends two pieces as one message over a queue, from a buffer, if that is possible at once; else nothing has happened. The endpoint is
    /// connected.
    #[inline(never)]
    pub(super) fn sendi_copied(&mut self, id: EpId, tag: u8, queue: usize, pieces: [&[u8]; 2]) -> bool {
        let lane = self.endpoints.get_mut(id.index).and_then(|ep| ep.lanes.get_mut(queue));
        // Over a route there is no ledger to be posted from.
        if lane.is_none_or(|lane| lane.channel.is_none()) {
            return self.sendi_scarce(id, tag, queue, pieces);
        }
        self.sendi_long(id, tag, queue, pieces) || self.sendi_buffered(id, tag, queue, pieces)
    }

    /// The same from the ledger of a queue pair of the peer's own, if there is room, nothing waits and what it takes is plenty.
    #[inline(always)] // the way of nearly all
    fn sendi_long(&mut self, id: EpId, tag: u8, queue: usize, [head, body]: [&[u8]; 2]) -> bool {
        let len = head.len() + body.len();
        if !self.tx.send_rings.take(HEADER_LEN + len) {
            return false;
        }
        let Some(ep) = self.endpoints.get_mut(id.index) else { return false };
        let Some(lane) = ep.lanes.get_mut(queue) else { return false };
        if !lane.has_long_room(HEADER_LEN + len) || !self.tx.pending.is_empty() || !lane.has_plenty() {
            return false;
        }
        let Some(grant) = self.tx.acquire_plain(lane, id.index, queue) else { return false };
        let header = DataHeader::new(tag, queue as u8, grant).emit();
        match lane.post_long((self.tx.signalling, false), header, [head, body]) {
            Ok(signalled) => {
                lane.sent = lane.sent.wrapping_add(1);
                ep.count_written(len);
                self.tx.count_posted(ep, signalled);
                self.stats.sent_buffered += 1;
            }
            Err(error) => self.send_refused(LaneId { peer: id.index, queue: queue as u8 }, &error),
        }
        true
    }

    /// The same if that is scarce, or from a buffer.
    #[inline(never)]
    fn sendi_buffered(&mut self, id: EpId, tag: u8, queue: usize, pieces: [&[u8]; 2]) -> bool {
        if self.sendi_long_scarce(id, tag, queue, pieces) {
            return true;
        }
        let sent = self.sendi_plenty(id, tag, queue, pieces) || self.sendi_scarce(id, tag, queue, pieces);
        if sent && self.tx.send_rings.take(HEADER_LEN + pieces[0].len() + pieces[1].len()) {
            self.consider_send_ring(id, queue);
        }
        sent
    }

    /// As [`Self::sendi_long`], if that takes something scarce.
    fn sendi_long_scarce(&mut self, id: EpId, tag: u8, queue: usize, [head, body]: [&[u8]; 2]) -> bool {
        let (name, len) = (LaneId { peer: id.index, queue: queue as u8 }, head.len() + body.len());
        let lane = self.endpoints.lane(id.index, queue);
        let has_room = self.tx.send_rings.take(HEADER_LEN + len)
            && lane.is_some_and(|lane| lane.has_long_room(HEADER_LEN + len));
        if !has_room || !self.tx.pending.is_idle(name) {
            return false;
        }
        let Some(grant) = self.acquire(name) else { return false };
        let Some(ep) = self.endpoints.get_mut(id.index) else { return false };
        let Some(lane) = ep.lanes.get_mut(queue) else { return false };
        let header = DataHeader::new(tag, queue as u8, grant).flag_last(lane.is_out_of_credits()).emit();
        let policy = (self.tx.signalling, self.tx.is_scarce(lane, queue));
        match lane.post_long(policy, header, [head, body]) {
            Ok(signalled) => {
                self.tx.count_posted(ep, signalled);
                ep.count_sent(queue, Kind::Data, len as u32);
                self.stats.sent_buffered += 1;
            }
            Err(error) => self.send_refused(name, &error),
        }
        true
    }

    /// Many messages go from buffers to this peer: from now on they go from the ledger.
    fn consider_send_ring(&mut self, id: EpId, queue: usize) {
        let lane = self.endpoints.named_mut(id).and_then(|ep| ep.lanes.get_mut(queue));
        if let Some(channel) = lane.and_then(|lane| lane.channel.as_mut())
            && channel.counts_buffered()
        {
            self.stats.send_rings += u64::from(channel.send_from_ledger(&self.tx.send_rings));
        }
    }

    /// The same to a queue pair of the peer's own, if nothing waits and what it takes is plenty.
    #[inline(always)] // into its only caller
    fn sendi_plenty(&mut self, id: EpId, tag: u8, queue: usize, [head, body]: [&[u8]; 2]) -> bool {
        let Some(ep) = self.endpoints.get_mut(id.index) else { return false };
        let to = ep.connection(id.index);
        let Some(lane) = ep.lanes.get_mut(queue) else { return false };
        if lane.channel.is_none() || !self.tx.pending.is_empty() || !lane.has_plenty() {
            return false;
        }
        let Some(sends) = self.tx.queues.get_mut(queue) else { return false };
        let Some(mut buf) = sends.take_plenty(id.index) else { return false };
        let share = Some(id.index);
        let grant = self.tx.acquire_plain(lane, id.index, queue);
        let (Some(grant), Some(channel)) = (grant, &mut lane.channel) else {
            self.tx.give_back(SendBuf { buf, class: queue as u8, share });
            return false;
        };
        let len = head.len() + body.len();
        let (first, rest) = buf.as_mut_slice()[..HEADER_LEN + len].split_at_mut(HEADER_LEN);
        first.copy_from_slice(&DataHeader::new(tag, queue as u8, grant).emit());
        let (second, third) = rest.split_at_mut(head.len());
        copy(second, head);
        third.copy_from_slice(body);
        let target = Target { to, queue: queue as u8, srq: None, scarce: false };
        let message = (SendBuf { buf, class: queue as u8, share }, (HEADER_LEN + len) as u32);
        match channel.post_buffer(&mut self.tx.held, self.tx.signalling, target, message) {
            Ok(signalled) => {
                lane.sent = lane.sent.wrapping_add(1);
                ep.count_written(len);
                self.tx.count_posted(ep, signalled);
                self.stats.sent_buffered += 1;
            }
            Err(refused) => self.buffer_refused(LaneId { peer: id.index, queue: queue as u8 }, *refused),
        }
        true
    }

    #[cold]
    fn buffer_refused(&mut self, name: LaneId, refused: Refused<C>) {
        let Refused { error, unposted } = refused;
        self.tx.take_back(unposted, &mut self.up);
        self.send_refused(name, &error);
    }

    /// The same over a route, or if others wait, or of what is scarce.
    #[inline(never)]
    fn sendi_scarce(&mut self, id: EpId, tag: u8, queue: usize, [head, body]: [&[u8]; 2]) -> bool {
        let name = LaneId { peer: id.index, queue: queue as u8 };
        if !self.tx.pending.is_idle(name) {
            return false;
        }
        let Some(mut buf) = self.tx.queues[queue].take_of(name.peer, name.queue) else { return false };
        let len = head.len() + body.len();
        let (first, second) = buf.payload()[..len].split_at_mut(head.len());
        first.copy_from_slice(head);
        second.copy_from_slice(body);
        let message = Queued { buf, len: len as u32, tag, is_answer: false, kind: Kind::Data };
        self.send_over_route(name, message).is_none_or(|message| self.send_carefully(name, message))
    }

    /// Sends a message that is in its buffer over the route of its endpoint, if it has one, nothing waits and it takes nothing scarce. Else it comes
    /// back. The endpoint is connected.
    #[inline(always)] // a message is passed on in registers
    fn send_over_route(&mut self, name: LaneId, message: Queued) -> Option<Queued> {
        let queue = usize::from(name.queue);
        let Some(ep) = self.endpoints.get_mut(name.peer) else { return Some(message) };
        let to = ep.connection(name.peer);
        let lane = &mut ep.lanes[queue];
        let is_plain = self.tx.pending.is_empty() && !self.tx.queues[queue].bufs_are_scarce();
        let Some(label) = ep.route.as_ref().map(|route| route.label) else { return Some(message) };
        if lane.channel.is_some() || !is_plain || !lane.has_plenty() {
            return Some(message);
        }
        // Only shared queues have routes: no credits.
        if self.tx.acquire_plain(lane, name.peer, queue).is_none() {
            return Some(message);
        }
        let Queued { mut buf, tag, len, .. } = message;
        let header = XrcHeader::new(tag, name.queue, label, ep.numbers.take()).emit();
        buf.buf.as_mut_slice()[..HEADER_LEN].copy_from_slice(&header);
        let Some((channel, route)) = channel(ep, queue, &mut self.paths) else {
            self.tx.give_back(buf);
            return None;
        };
        let target = Target { to, queue: name.queue, srq: route.map(|(srq, _)| srq), scarce: false };
        let total = HEADER_LEN as u32 + len;
        match channel.post_buffer(&mut self.tx.held, self.tx.signalling, target, (buf, total)) {
            Ok(signalled) => {
                self.tx.count_posted(ep, signalled);
                ep.count_sent(queue, Kind::Data, len);
                self.stats.sent_buffered += 1;
            }
            Err(refused) => self.buffer_refused(name, *refused),
        }
        None
    }

    /// The same if others wait. Whether it has been sent; else nothing has happened.
    #[inline(never)]
    fn send_carefully(&mut self, name: LaneId, message: Queued) -> bool {
        match self.acquire_after_look(name) {
            Some(grant) => self.post_data(name, message, grant),
            None => {
                self.tx.give_back(message.buf);
                return false;
            }
        }
        true
    }
}
