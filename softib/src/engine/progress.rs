//! Progress: inbound rings, stuck sends; and who does it, the application or the device thread.
//!
//! ```text
//!              64 polls in a row                      (rings watched, the thread naps and looks now and then)
//!   Thread ───────────────────────> Application
//!     ^   <─────────────────────────   │
//!     │    the poller arms a CQ, or    │
//!     │    has not polled for a nap    │
//!   (rings unwatched: senders announce in the bitmap and ring the bell)
//! ```
//!
//! While the thread has control a poll is a guest: it drains what is announced, and nothing changes but that the program is known to
//! poll. While the application has it, a few hot rings are looked at on every poll, and one line of bitmap covers all others.

use super::inbound::Owner;
use super::state::State;
use crate::datapath::initiator;
use crate::datapath::responder::{self, From, events};
use crate::shm::handover;
use crate::shm::layout::{CELLS, QP_BITS, QPS};
use rdma_sys::IBV_EVENT_QP_FATAL;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Polls in a row that make the application the owner of progress.
const STREAK: u32 = 64;
/// Cells taken from one ring in one go, so that a flood does not keep a poll from returning.
const BATCH: usize = 64;
/// Batches taken from one announced ring before the others get their turn.
const SHARE: usize = 8;

impl State {
    /// One poll of the application, the `polls`-th, by the thread `me`. True: control has just changed hands.
    #[inline]
    pub fn poll(&mut self, me: usize, polls: u64) -> bool {
        self.inbound.polls = polls;
        self.settle_lent();
        if self.inbound.owner == Owner::Thread {
            return self.guest_poll(me);
        }
        for at in 0..self.inbound.hot.len() {
            let ring = self.inbound.hot[at].ring;
            if self.inbound.may_hold(ring) {
                self.drain(ring);
            }
        }
        if self.inbound.announced() {
            self.take_announced();
        }
        self.advance_sends();
        false
    }

    #[cold]
    fn guest_poll(&mut self, me: usize) -> bool {
        self.progress();
        self.inbound.streak += 1;
        self.w.peers.polls = true;
        if self.inbound.streak < STREAK {
            return false;
        }
        self.inbound.owner = Owner::Application(me);
        let known: Vec<usize> = self.inbound.senders().iter().map(|&(ring, ..)| ring).collect();
        for ring in known {
            self.inbound.watch(ring);
        }
        true
    }

    /// The poller is going to sleep on a channel: control goes back. True: it has just done so.
    pub fn arm(&mut self, me: usize) -> bool {
        match self.inbound.owner {
            Owner::Thread => (self.inbound.streak, self.w.peers.polls) = (0, false),
            Owner::Application(poller) if poller == me => {
                self.give_back();
                return true;
            }
            Owner::Application(_) => {}
        }
        false
    }

    /// Gives control to the device thread.
    pub fn give_back(&mut self) {
        self.inbound.owner = Owner::Thread;
        self.w.peers.polls = false;
        self.inbound.streak = 0;
        let hot: Vec<usize> = self.inbound.hot.drain(..).map(|hot| hot.ring).collect();
        self.inbound.restart_turns();
        self.inbound.unwatch(&hot);
    }

    /// Everything there is to do now, as the device thread or a guest. Some(time): look again then.
    pub fn progress(&mut self) -> Option<Instant> {
        self.settle_lent();
        self.take_announced();
        let again = self.advance_sends();
        if self.inbound.announced() { Some(timing::now()) } else { again }
    }

    fn take_announced(&mut self) {
        for word in 0..self.inbound.bitmap.len() {
            let bits = &self.inbound.bitmap[word];
            if bits.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut set = handover::take(bits);
            while set != 0 {
                let ring = word * 64 + set.trailing_zeros() as usize;
                set &= set - 1;
                self.drain_announced(ring);
            }
        }
    }

    /// Empties a ring, or takes a fair share of one that fills as fast and marks it as announced again. One that holds nothing has only
    /// ceased to be watched.
    fn drain_announced(&mut self, ring: usize) {
        let taken = (0..SHARE).take_while(|_| self.drain(ring)).count();
        if taken == SHARE {
            self.inbound.mark(ring);
        }
        if taken != 0 && self.inbound.owner != Owner::Thread {
            self.inbound.watch(ring);
        }
    }

    /// Delivers what a ring holds, up to a batch. False: it was empty.
    #[inline(always)]
    fn drain(&mut self, index: usize) -> bool {
        let State { qps, inbound, w } = self;
        let Some(ring) = inbound.ring(index) else { return false };
        let from = From { incarnation: ring.incarnation };
        let mut any = false;
        for _ in 0..BATCH {
            let Some(found) = ring.peek() else { break };
            responder::cell(qps, w, from, &found);
            ring.consume(&found);
            any = true;
        }
        any
    }

    /// Delivers everything a ring holds.
    pub fn empty(&mut self, ring: usize) {
        while self.drain(ring) {}
    }

    /// Delivers what a ring holds now, and at most as many cells as it has, though its sender may go on.
    pub fn take_in(&mut self, ring: usize) {
        for _ in 0..CELLS.div_ceil(BATCH) {
            if !self.drain(ring) {
                return;
            }
        }
    }

    /// Something waits for a time or for room: a thread has to come back to it.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        !(self.w.busy.is_empty() && self.w.replies.is_empty())
    }

    /// Works on queue pairs with waiting sends.
    #[inline]
    fn advance_sends(&mut self) -> Option<Instant> {
        if self.w.is_quiet() && self.w.ending.is_empty() {
            return None;
        }
        self.advance_busy()
    }

    #[cold]
    fn advance_busy(&mut self) -> Option<Instant> {
        let State { qps, w, .. } = self;
        for qpn in std::mem::take(&mut w.doomed) {
            if (qpn >> QP_BITS) as usize != w.segment.slot {
                events::fail_numbered(w, qpn, IBV_EVENT_QP_FATAL);
            } else if let Some(qp) = qps.get_mut(qpn as usize % QPS) {
                qp.fail(w);
            }
        }
        // A flush to a full queue dooms its QP again, which is in error by now.
        w.doomed.clear();
        let now = timing::now();
        let mut soonest = responder::rdma::advance(qps, w).then(|| now + Duration::from_micros(50));
        for index in std::mem::take(&mut w.busy) {
            let Some(qp) = qps.get_mut(index) else { continue };
            let again = initiator::advance(qp, w, now);
            qp.busy = again.is_some();
            if let Some(again) = again {
                w.busy.push(index);
                soonest = Some(soonest.map_or(again, |time| time.min(again)));
            }
        }
        self.settle();
        soonest
    }
}
