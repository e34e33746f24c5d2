//! Sending by eager RDMA: short messages that are written into the peer's ring.
#![forbid(unsafe_code)]

use crate::protocol::eager::{LONGEST, slots_of};
use crate::protocol::pending::LaneId;
use crate::transport::Transport;
use crate::transport::endpoint::EpId;
use crate::transport::endpoint::ring::Ring;
use verbs::Pieces;

impl<C> Transport<C> {
    /// Sends two pieces as one message of one slot to a peer with rings, by [`Self::write`]. The endpoint is connected. `false`: nothing has happened.
    #[inline(never)] // the ways over queues stay short
    pub(super) fn sendi_eager(&mut self, id: EpId, tag: u8, pieces: [&[u8]; 2]) -> bool {
        self.write(id, tag, pieces)
    }

    /// The same as one message of several slots, else over a queue.
    #[inline(never)] // the way of those that fit no ring stays short
    pub(super) fn sendi_wide(&mut self, id: EpId, tag: u8, pieces: [&[u8]; 2]) -> bool {
        self.write(id, tag, pieces) || self.sendi_gathered(id, tag, pieces)
    }

    /// Writes a message into the ring of a peer, over any device, if there is room, it fits that, and nothing waits or is scarce. `false`: nothing has
    /// happened.
    #[inline(always)] // with every message of several slots
    fn write(&mut self, id: EpId, tag: u8, pieces: [&[u8]; 2]) -> bool {
        self.tx.pending.is_empty()
            && (self.write_short(id, tag, pieces) || self.write_posted(id, tag, pieces))
    }

    /// The same by the device's [own way](verbs::ShortWriter).
    #[inline(always)] // with every message of several slots
    fn write_short(&mut self, id: EpId, tag: u8, pieces: [&[u8]; 2]) -> bool {
        let len = pieces[0].len().wrapping_add(pieces[1].len());
        let Some(ep) = self.endpoints.get_mut(id.index) else { return false };
        let (Some(ring), Some(lane)) = (self.rings.get_mut(ep.ring), ep.lanes.first_mut()) else {
            return false;
        };
        let slots = slots_of(len);
        if len > LONGEST || !ring.has_free(slots) && (ring.are_posted() || !ring.has_room(slots)) {
            return false;
        }
        let pieces = Pieces::new(pieces);
        let way = lane.way_into(ring, slots);
        let written = way.is_some_and(|way| way.write(tag, lane.sent, (&pieces, len)));
        if written {
            lane.sent = lane.sent.wrapping_add(1);
            ep.count_written(len);
            self.stats.sent_eager += 1;
        }
        written
    }

    /// Posts two pieces as one message of one slot to a peer with rings, where those [are posted](Ring::are_posted), or as a SEND, if they do not fit. The
    /// endpoint is connected, and nothing waits. `false`: nothing has happened.
    #[inline(never)] // the device's own way stays short
    pub(super) fn sendi_posted(&mut self, id: EpId, tag: u8, pieces: [&[u8]; 2]) -> bool {
        let ring = self.endpoints.get(id.index).and_then(|ep| self.rings.get(ep.ring));
        ring.is_some_and(Ring::are_posted)
            && (self.post_into(id, tag, pieces) || self.sendi_first(id, tag, pieces))
    }

    /// Writes a message into the ring of a peer, if there is room, it goes inline, and entries are not scarce. `false`: nothing has happened.
    #[inline(never)]
    fn write_posted(&mut self, id: EpId, tag: u8, pieces: [&[u8]; 2]) -> bool {
        self.post_into(id, tag, pieces)
    }

    /// The same. Of one call less a message on soft RoCE has 29 instructions fewer.
    #[inline(always)] // with every message
    fn post_into(&mut self, id: EpId, tag: u8, pieces: [&[u8]; 2]) -> bool {
        let Some(ep) = self.endpoints.get_mut(id.index) else { return false };
        let (Some(ring), Some(lane)) = (self.rings.get_mut(ep.ring), ep.lanes.first_mut()) else {
            return false;
        };
        let len = pieces[0].len().wrapping_add(pieces[1].len());
        let has_plenty = lane.has_plenty();
        let Some(channel) = lane.channel.as_mut().filter(|_| has_plenty) else { return false };
        let Some(outlet) = ring.outlet_for(len, channel.qp.cap().max_inline as usize) else { return false };
        let mut slot = None;
        let Some((bytes, remote)) = outlet.compose((tag, lane.sent), pieces, &mut slot) else { return false };
        let signalled = channel.ledger.unsignalled() >= self.tx.signalling.most;
        match channel.post_write(bytes, remote, signalled) {
            Ok(()) => {
                outlet.posted(slots_of(len));
                lane.budget.acquire();
                lane.sent = lane.sent.wrapping_add(1);
                ep.count_written(len);
                self.tx.count_posted(ep, signalled);
                self.stats.sent_eager += 1;
            }
            Err(error) => self.send_refused(LaneId { peer: id.index, queue: 0 }, &error),
        }
        true
    }

    /// Tells the peer how many messages of its ring have been taken; when its queue pair has an entry for that.
    #[inline(never)]
    pub(crate) fn tell_taken(&mut self, number: u32) {
        let Some(ring) = self.rings.get_mut(number) else { return };
        let id = ring.endpoint;
        let Some(ep) = self.endpoints.named_mut(id).filter(|ep| ep.ring == number && ep.state().flows())
        else {
            return;
        };
        let Some(lane) = ep.lanes.first_mut() else { return };
        if !lane.budget.acquire() {
            (self.rings.owe_word, self.rx.chores) = (true, true);
            return;
        }
        // The last entries are got back by a completion only.
        let scarce = lane.is_scarce();
        let Some(channel) = &mut lane.channel else { return lane.budget.release(1) };
        let Some((bytes, remote)) = ring.news() else { return lane.budget.release(1) };
        let signalled = scarce || channel.ledger.unsignalled() >= self.tx.signalling.most;
        match channel.post_write(&bytes, remote, signalled) {
            Ok(()) => self.tx.count_posted(ep, signalled),
            Err(error) => self.send_refused(LaneId { peer: id.index, queue: 0 }, &error),
        }
    }

    /// The same of rings whose peers could not be told when it was due.
    #[cold]
    pub(crate) fn tell_untold(&mut self) {
        self.rings.owe_word = false;
        for number in self.rings.due() {
            self.tell_taken(number);
        }
    }
}
