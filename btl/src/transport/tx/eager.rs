//! Sending by eager RDMA: short messages that are written into the peer's ring.
#![forbid(unsafe_code)]

use crate::protocol::eager::LONGEST;
use crate::protocol::pending::LaneId;
use crate::transport::Transport;
use crate::transport::endpoint::EpId;

impl<C> Transport<C> {
    /// Sends two pieces as one message of the first queue to a peer with rings, over any device, or where something is scarce: into its ring,
    /// if there is room and it fits a slot, else as a SEND. The endpoint is connected, and nothing waits. `false`: nothing has happened.
    #[inline(never)] // the straight way stays short
    pub(super) fn sendi_eager(&mut self, id: EpId, tag: u8, pieces: [&[u8]; 2]) -> bool {
        let Some(ep) = self.endpoints.get_mut(id.index) else { return false };
        let (Some(ring), Some(lane)) = (self.rings.get_mut(ep.ring), ep.lanes.first_mut()) else {
            return false;
        };
        let len = pieces[0].len().wrapping_add(pieces[1].len());
        if len > LONGEST || !ring.has_room() || !lane.has_plenty() {
            return self.sendi_first(id, tag, pieces);
        }
        let Some(channel) = &mut lane.channel else { return false };
        let Some((bytes, remote)) = ring.compose(tag, lane.sent, pieces) else { return false };
        let signalled = channel.ledger.unsignalled() >= self.tx.signalling.most;
        match channel.post_write(bytes, remote, signalled) {
            Ok(()) => {
                ring.posted();
                lane.budget.acquire();
                lane.sent = lane.sent.wrapping_add(1);
                ep.count_straight(len);
                self.tx.outstanding += 1;
                self.tx.awaited += u32::from(signalled);
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
            (self.rings.owe_word, self.chores) = (true, true);
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
