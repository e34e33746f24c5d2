//! The end of a queue pair: what it has acknowledged is taken in, then the rest is flushed.
//!
//! An initiator consumes the receive and completes by its own hand, so messages that it has been told are delivered may still
//! be in a ring when the queue pair goes to ERR or RESET, or is destroyed. On an adapter their completions stand in the queue
//! before the acknowledgement leaves.
//!
//! ```text
//!   target                                     initiator
//!   not open any more (qptable)                last cell of the message (tag)
//!   fence on all senders                       fence, or the target's
//!   take in what the rings hold                still open? ── yes ──> success
//!   how far that was (qptable)                             └─ no ───> taken in? ── yes ──> success
//!   flush                                                                       └─ no ───> RETRY_EXC_ERR in the end
//! ```
//!
//! One of them sees the other: a message that has been acknowledged is found in the ring. One that the target has found, before or after it
//! closed, succeeds as well: the target says how far it has read, and an initiator that was held up in between reads that, also when
//! the target's process has ended since. `tests/handover.rs` has the model.

use super::state::State;
use crate::shm::{qptable, ring};
use rdma_sys::{IBV_QPT_UC, IBV_QPT_UD};

impl State {
    /// Moves queue pair `index` to the error state, and flushes it.
    pub fn fail(&mut self, index: usize) {
        let State { qps, w, .. } = self;
        if let Some(qp) = qps.get_mut(index) {
            qp.begin_end(w, None);
        }
        self.settle();
    }

    /// Makes queue pair `index` deaf, for its reset: what it has acknowledged is delivered, and nothing is flushed. Where
    /// nothing is acknowledged its buffers are left alone: the program may have unmapped them, still registered (UCX
    /// probably does: it has a registration cache), which an adapter's pinned pages allow.
    pub fn silence(&mut self, index: usize) {
        let State { qps, w, .. } = self;
        let Some(qp) = qps.get_mut(index) else { return };
        qp.begin_end(w, None);
        if !matches!(qp.kind, IBV_QPT_UD | IBV_QPT_UC) {
            self.take_in_for(&[index]);
        }
        self.w.ending.retain(|&ending| ending != index);
        self.settle();
    }

    /// Finishes with the queue pairs that have gone to the error state.
    #[inline]
    pub fn settle(&mut self) {
        if !self.w.ending.is_empty() {
            self.settle_all();
        }
    }

    #[cold]
    fn settle_all(&mut self) {
        // What is taken in may end others.
        while !self.w.ending.is_empty() {
            let ending = std::mem::take(&mut self.w.ending);
            self.take_in_for(&ending);
            let State { qps, w, .. } = self;
            for index in ending {
                qps.get_mut(index).into_iter().for_each(|qp| qp.end(w));
            }
        }
    }

    /// Delivers what has been sent to queue pairs that are not open any more.
    fn take_in_for(&mut self, closed: &[usize]) {
        let (mut senders, mut anybody) = (Vec::new(), false);
        for &index in closed {
            let Some(qp) = self.qps.get_mut(index) else { continue };
            if !qp.ending.as_ref().is_some_and(|ending| ending.takes) {
                continue;
            }
            anybody |= qp.kind == IBV_QPT_UD;
            senders.extend(qp.link.as_ref().map(|link| link.incarnation));
        }
        if anybody || !senders.is_empty() {
            self.take_in_from(|incarnation| anybody || senders.contains(&incarnation));
        }
        closed.iter().for_each(|&index| self.say_how_far(index));
    }

    /// Publishes how much of its peer's ring a connected queue pair has taken in. One that has failed on the way says
    /// nothing, for what stood behind the failure was dropped.
    fn say_how_far(&mut self, index: usize) {
        let State { qps, w, inbound, .. } = self;
        let Some(qp) = qps.get_mut(index) else { return };
        let takes = qp.ending.as_ref().is_some_and(|ending| ending.takes);
        let Some(link) = qp.link.as_ref().filter(|_| takes) else { return };
        if let Some(taken) = inbound.taken_from(link.slot, link.incarnation) {
            qptable::mark_ended(&w.segment.map, index, qp.generation, taken);
        }
    }

    /// Delivers what processes, by incarnation, have sent before they could see a change that has been published.
    pub fn take_in_from(&mut self, is_meant: impl Fn(u64) -> bool) {
        self.inbound.barrier.all_senders();
        for index in 0..ring::limit(&self.w.segment.map) {
            let known = self.inbound.sender(index).or_else(|| ring::sender(&self.w.segment.map, index));
            if known.is_some_and(|(_, incarnation)| is_meant(incarnation)) {
                self.take_in(index);
            }
        }
    }
}
