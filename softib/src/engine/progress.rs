//! Progress: inbound rings, stuck sends; and who does it, the application or the device thread.
//!
//! ```text
//!                       64 polls in a row
//!   Thread ─────────────────────────────────────> Application    rings watched; the thread naps and looks whether there are polls
//!     ^ ^   <────── the poller arms a CQ ──────      │   ^
//!     │ │                                no poll for │   │ the poller's
//!     │ │                                      a nap │   │ first poll
//!     │ └─ something is urgent, a CQ is armed, ──    v   │
//!     │    or it has been away for long           Deputy          rings watched; the thread looks at them with every nap
//!   rings not watched: senders announce in the bitmap and ring the bell
//! ```
//!
//! While the thread has control a poll is a guest: it drains what is announced, and nothing changes but that the program is known to
//! poll. While the application has it, a few hot rings are looked at on every poll, and one word says whether there is something in others.
//!
//! A program that computes and communicates by turns goes to and fro on the right side: what its peers send at the end of a turn rings no
//! bell, moves no thread, and is found by the program's own first poll.

use super::inbound::Owner;
use super::lent::is_left;
use super::state::State;
use crate::datapath::initiator;
use crate::datapath::responder::{self, From, events};
use crate::objects::qp::Qps;
use crate::objects::world::World;
use crate::shm::cell::Found;
use crate::shm::handover;
use crate::shm::layout::{CELLS, H_POLLS, QP_BITS, QPS};
use rdma_sys::IBV_EVENT_QP_FATAL;
use std::cell::LazyCell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Polls in a row that make the application the owner of progress.
const STREAK: u32 = 64;
/// Cells taken from one ring in one go, so that a flood does not keep a poll from returning.
const BATCH: usize = 64;
/// Batches taken from one announced ring before the others get their turn.
const SHARE: usize = 8;
/// A program that does nothing but look around comes back sooner. As much as a ring has room for in that time is less than is fetched in it.
const ELSEWHERE: Duration = Duration::from_micros(8);
/// How long the thread is a deputy at most.
const ABSENCE: Duration = Duration::from_millis(300);

impl State {
    /// One poll of the application, the `polls`-th, by the thread `me`. True: control has just changed hands.
    #[inline]
    pub fn poll(&mut self, me: usize, polls: u64) -> bool {
        self.inbound.polls = polls;
        self.w.unlooked = 0;
        self.note_absence();
        self.settle_lent();
        let leaves = self.leaves_messages();
        if !self.inbound.owner.is_application() {
            return self.guest_poll(me);
        }
        self.drain_hot(leaves);
        if self.inbound.announced() {
            self.take_announced();
        }
        self.advance_sends();
        false
    }

    /// Takes in what the hot rings hold, up to messages that are left if it `leaves` such; the first of these is of a ring behind the one that had
    /// one last.
    #[inline]
    fn drain_hot(&mut self, leaves: bool) {
        let (first, count) = (self.inbound.behind_turn(), self.inbound.hot.len());
        for at in first..first + count {
            let ring = self.inbound.hot[at % count].ring;
            if self.inbound.may_hold(ring) {
                self.drain_until(ring, |qps, w, from, found| leaves && is_left(qps, w, from, found));
            }
        }
    }

    #[cold]
    fn guest_poll(&mut self, me: usize) -> bool {
        self.progress();
        self.inbound.streak += 1;
        self.w.peers.polls = true;
        if self.inbound.streak < STREAK {
            return false;
        }
        self.set_owner(Owner::Application(me));
        let known: Vec<usize> = self.inbound.senders().iter().map(|&(ring, ..)| ring).collect();
        for ring in known {
            self.inbound.watch(ring);
        }
        true
    }

    /// The thread `me` polls. If it has polled until a deputy came, it has control again, and rings are watched still; whether that is so.
    #[inline]
    pub fn regain_control(&mut self, me: usize) -> bool {
        let is_back = self.inbound.owner == Owner::Deputy(me);
        if is_back {
            self.set_owner(Owner::Application(me));
            self.w.peers.polls = true;
        }
        is_back
    }

    /// The poller, or one beside a deputy, is going to sleep on a channel: control goes to the thread. True: it has just done so.
    pub fn arm(&mut self, me: usize) -> bool {
        match self.inbound.owner {
            Owner::Thread => (self.inbound.streak, self.w.peers.polls) = (0, false),
            Owner::Application(poller) if poller != me => {}
            Owner::Application(_) | Owner::Deputy(_) => {
                self.give_back();
                return true;
            }
        }
        false
    }

    /// The program has not polled for a nap: the device thread works in its place.
    pub fn step_aside(&mut self) {
        if let Owner::Application(poller) = self.inbound.owner {
            self.lose_control(Owner::Deputy(poller));
            self.inbound.stands_in_until = Some(timing::now() + ABSENCE);
            self.w.hurried = false;
        }
    }

    /// Gives control to the device thread.
    pub fn give_back(&mut self) {
        self.lose_control(Owner::Thread);
        let hot: Vec<usize> = self.inbound.hot.drain(..).map(|hot| hot.ring).collect();
        self.inbound.unwatch(&hot);
    }

    fn lose_control(&mut self, to: Owner) {
        self.set_owner(to);
        self.w.peers.polls = false;
        self.inbound.streak = 0;
    }

    fn set_owner(&mut self, owner: Owner) {
        self.inbound.owner = owner;
        self.w.segment.map.u32(H_POLLS).store(owner.is_application().into(), Ordering::Relaxed);
        self.inbound.restart_turns();
    }

    /// A turn of the device thread: everything there is to do now. When it has to look again, if that is known.
    pub fn thread_turn(&mut self) -> Option<Instant> {
        let again = self.progress();
        let is_over = |until: Instant| self.w.hurried || timing::now() >= until;
        if self.is_deputy() && self.inbound.stands_in_until.is_none_or(is_over) {
            self.give_back();
            return self.progress();
        }
        again
    }

    /// The device thread works in place of a program that has just polled.
    pub fn is_deputy(&self) -> bool {
        matches!(self.inbound.owner, Owner::Deputy(_))
    }

    /// A look begins. If something waits: whether the program was elsewhere since the last one.
    #[inline]
    fn note_absence(&mut self) {
        let last = self.w.looked.take();
        self.w.was_elsewhere = last.is_some_and(|last| timing::now() - last >= ELSEWHERE);
    }

    /// Everything there is to do now, as the device thread or a guest. Some(time): look again then.
    pub fn progress(&mut self) -> Option<Instant> {
        self.settle_lent();
        self.take_announced();
        if self.is_deputy() {
            self.look_at_hot();
        }
        let again = self.advance_sends();
        if self.inbound.announced() { Some(timing::now()) } else { again }
    }

    fn take_announced(&mut self) {
        if !handover::take_marked(&*self.inbound.marked) {
            return;
        }
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

    /// Takes in what the hot rings hold. Of one that holds more than a batch the sender may wait for room.
    fn look_at_hot(&mut self) {
        for at in 0..self.inbound.hot.len() {
            let ring = self.inbound.hot[at].ring;
            if self.inbound.may_hold(ring) && self.drain(ring) && self.inbound.may_hold(ring) {
                self.w.hurried = true;
                self.inbound.mark(ring);
            }
        }
    }

    /// Delivers what a ring holds, up to a batch. False: it was empty.
    fn drain(&mut self, index: usize) -> bool {
        self.drain_until(index, |_, _, _, _| false)
    }

    /// The same behind the first cell, up to a message that is left in its ring.
    #[cold]
    pub(super) fn drain_one_to_left(&mut self, index: usize) {
        let mut first = true;
        self.drain_until(index, |qps, w, from, found| {
            !std::mem::take(&mut first) && is_left(qps, w, from, found)
        });
    }

    /// Delivers what a ring holds up to the first cell that `is_left` there, or a batch. False: nothing.
    #[inline(always)]
    fn drain_until(
        &mut self,
        index: usize,
        mut is_left: impl FnMut(&mut Qps, &mut World, From, &Found) -> bool,
    ) -> bool {
        let State { qps, inbound, w, .. } = self;
        let Some(ring) = inbound.ring(index) else { return false };
        let from = From { incarnation: ring.incarnation };
        let mut any = false;
        for _ in 0..BATCH {
            let Some(found) = ring.peek() else { break };
            if is_left(qps, w, from, &found) {
                break;
            }
            w.hurried |= !found.head.is_patient();
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
        // In most cases all that was waited for has come, and the time is of no interest.
        let now: LazyCell<Instant> = LazyCell::new(timing::now);
        let replies = responder::rdma::advance(qps, w).then(|| *now + Duration::from_micros(50));
        let soonest = advance_queues(qps, w, &now).into_iter().chain(replies).min();
        self.settle();
        self.w.looked = soonest.map(|_| timing::now());
        soonest
    }
}

/// Works on the send queues in which something waits. Some(time): when to look again at the latest.
fn advance_queues(qps: &mut Qps, w: &mut World, now: &LazyCell<Instant>) -> Option<Instant> {
    let mut soonest = None;
    // Those in which something still waits stay in front; the list keeps its memory.
    let (known, mut kept) = (w.busy.len(), 0);
    for at in 0..known {
        let index = w.busy[at];
        let Some(qp) = qps.get_mut(index) else { continue };
        let again = initiator::advance(qp, w, now);
        qp.busy = again.is_some();
        if again.is_some() {
            w.busy[kept] = index;
            kept += 1;
            soonest = soonest.into_iter().chain(again).min();
        }
    }
    w.busy.drain(kept..known);
    soonest
}
