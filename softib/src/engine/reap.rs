//! The device thread's rounds: what senders that have died or left still hold of ours.
//!
//! A ring is emptied first (what was sent counts), then receives that its sender had claimed and
//! never delivered are posted again, then the ring is free for another sender.

use super::shared::ROUNDS;
use super::state::State;
use crate::datapath::responder::xrc;
use crate::objects::peer::{Link, Peer};
use crate::objects::recvq::RecvQ;
use crate::objects::world::World;
use crate::shm::heap::Extent;
use crate::shm::ring;
use crate::shm::space::give_space;
use std::time::{Duration, Instant};

/// An initiator that has looked a queue up is through with it long before this.
const REST: Duration = Duration::from_millis(200);

impl State {
    /// There is no peer whose death would matter, and no plan of faults.
    pub fn is_alone(&mut self) -> bool {
        let unknown = self.inbound.senders().is_empty() && self.w.peers.all().all(|peer| peer.is_self());
        unknown && self.w.faults.is_none()
    }

    /// Looks at every sender once, and at what a plan of faults has for the time; returns when to come again.
    pub fn rounds(&mut self) -> Instant {
        self.settle_lent();
        self.w.peers.all().for_each(Peer::recheck);
        let mut any = false;
        for index in 0..ring::limit(&self.w.segment.map) {
            // What was true when the ring was adopted can't be overwritten.
            let known = self.inbound.sender(index);
            let Some((slot, incarnation)) = known.or_else(|| ring::sender(&self.w.segment.map, index)) else {
                continue;
            };
            if self.w.peers.is_gone(slot, incarnation) && !self.is_lent(index) {
                self.reap(index);
                xrc::forget_flows(&mut self.w, |sender| sender == incarnation);
                any = true;
            }
        }
        if any {
            self.w.segment.sweep_others();
        }
        xrc::forget_flows(&mut self.w, |_| false);
        self.sweep_mapped();
        self.w.release_retired(REST);
        self.follow_plan();
        self.settle();
        let planned = self.w.faults.as_ref().and_then(|faults| faults.next_change());
        let usual = timing::now() + ROUNDS;
        planned.map_or(usual, |time| time.min(usual))
    }

    /// Gives back what is mapped of files whose peers' programs have them registered no more.
    fn sweep_mapped(&mut self) {
        for peer in self.w.peers.all() {
            peer.files.sweep(&peer.map);
        }
        let links = self.qps.iter_mut().filter_map(|qp| qp.link.as_mut());
        links.for_each(Link::sweep);
    }

    #[cold]
    fn reap(&mut self, ring: usize) {
        self.empty(ring);
        let shared = self.w.srqs.iter_mut().map(|(_, srq)| &mut srq.queue);
        let own = self.qps.iter_mut().filter_map(|qp| qp.rq.as_mut().filter(|rq| rq.shared));
        for queue in shared.chain(own) {
            repost_claims(queue, ring);
        }
        match self.inbound.remove(ring) {
            Some(ring) => ring.release(&self.w.segment.file),
            // Its sender died while it was claiming it.
            None => ring::free(&self.w.segment.map, &self.w.segment.file, ring),
        }
    }
}

impl World {
    /// Frees the places of queues that were destroyed at least `rest` ago.
    pub fn release_retired(&mut self, rest: Duration) {
        let old: Vec<Extent> = self
            .retired
            .extract_if(.., |(since, _)| timing::now() - *since >= rest)
            .map(|(_, extent)| extent)
            .collect();
        for extent in old {
            if give_space(&self.segment.file, extent.offset, extent.len) {
                self.heap.release(extent);
            }
        }
    }
}

fn repost_claims(queue: &mut RecvQ, ring: usize) {
    for taken in queue.reclaim(ring) {
        queue.repost(taken);
    }
}
