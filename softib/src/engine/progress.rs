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
//! While the thread has control a poll is a guest: it drains what is announced and changes nothing. While the application
//! has it, a few hot rings are looked at on every poll, and one line of bitmap covers all others.

mod shortcut;

pub use shortcut::Short;

use crate::deliver::{self, From};
use crate::engine::barrier::Barrier;
use crate::engine::world::State;
use crate::shm::handover;
use crate::shm::layout::{BITMAP, CELLS, QP_BITS, QPS, RINGS};
use crate::shm::map::Map;
use crate::shm::parts::Inlets;
use crate::shm::ring::{self, RecvRing};
use crate::xrc::events;
use crate::{rdma_ring, send};
use rdma_sys::IBV_EVENT_QP_FATAL;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Rings that are looked at on every poll.
const HOT: usize = 8;
/// Polls in a row that make the application the owner of progress.
const STREAK: u32 = 64;
/// A hot ring gives its place away after so many polls without a message.
const COLD_AFTER: u64 = 4096;
/// Cells taken from one ring in one go, so that a flood does not keep a poll from returning.
const BATCH: usize = 64;
/// Batches taken from one announced ring before the others get their turn.
const SHARE: usize = 8;

/// Who works on the rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Thread,
    /// The thread (by its pointer) that polls.
    Application(usize),
}

/// A ring that is looked at on every poll.
#[derive(Debug, Clone, Copy)]
struct Hot {
    ring: usize,
    /// Cells that had been taken from it when its use was looked at last.
    taken: u32,
    /// The first poll that may be later than its last message.
    since: u64,
}

/// The receiving side of all rings.
#[derive(Debug)]
pub struct Inbound {
    map: Arc<Map>,
    inlets: Arc<Inlets>,
    rings: Vec<Option<RecvRing>>,
    hot: Vec<Hot>,
    /// The one of them that the shortcut looks at next, or [`shortcut::NOBODY`].
    turn: usize,
    pub owner: Owner,
    streak: u32,
    polls: u64,
    pub barrier: Barrier,
}

impl Inbound {
    /// No ring known yet; the device thread owns progress.
    pub fn new(inlets: Arc<Inlets>, barrier: Barrier) -> Inbound {
        let mut rings = Vec::new();
        rings.resize_with(RINGS, || None);
        Inbound {
            map: inlets.tables().clone(),
            inlets,
            rings,
            hot: Vec::new(),
            turn: shortcut::NOBODY,
            owner: Owner::Thread,
            streak: 0,
            polls: 0,
            barrier,
        }
    }

    /// Starts to watch `ring`, in the place of one that has gone cold, if there is a place.
    fn watch(&mut self, ring: usize) {
        if self.hot.iter().any(|hot| hot.ring == ring) {
            return;
        }
        if self.hot.len() == HOT {
            let Some(at) = self.coldest() else { return };
            let old = self.hot.swap_remove(at).ring;
            self.unwatch(&[old]);
        }
        if let Some(Some(inbound)) = self.rings.get(ring) {
            inbound.watched().store(1, Ordering::Relaxed);
            self.hot.push(Hot { ring, taken: inbound.taken(), since: self.polls });
        }
        self.restart_turns();
    }

    /// The hot ring that has had nothing for longest, if that is long. Messages do not note when
    /// they came: what each ring has taken since the last look tells.
    fn coldest(&mut self) -> Option<usize> {
        for hot in &mut self.hot {
            let taken = self.rings[hot.ring].as_ref().map_or(hot.taken, RecvRing::taken);
            if taken != hot.taken {
                (hot.taken, hot.since) = (taken, self.polls);
            }
        }
        let (at, hot) = self.hot.iter().enumerate().min_by_key(|(_, hot)| hot.since)?;
        (self.polls - hot.since > COLD_AFTER).then_some(at)
    }

    /// Stops watching: senders announce from now on. What was sent before is marked as announced
    /// here.
    fn unwatch(&mut self, rings: &[usize]) {
        for inbound in rings.iter().filter_map(|&ring| self.rings[ring].as_ref()) {
            handover::unwatch(inbound.watched(), || ());
        }
        self.barrier.all_senders();
        for &ring in rings {
            self.mark(ring);
        }
    }

    /// Announces a ring to ourselves.
    fn mark(&self, ring: usize) {
        self.map.u64(BITMAP + ring / 64 * 8).fetch_or(1 << (ring % 64), Ordering::SeqCst);
    }

    /// A look at one word: false is the answer nearly always, and what an idle poll costs.
    #[inline]
    fn may_hold(&self, index: usize) -> bool {
        self.rings[index].as_ref().is_none_or(RecvRing::is_ready)
    }

    #[inline]
    fn ring(&mut self, index: usize) -> Option<&mut RecvRing> {
        let Inbound { rings, inlets, .. } = self;
        match rings.get_mut(index)? {
            Some(ring) => Some(ring),
            none => adopt(none, inlets, index),
        }
    }

    /// Rings whose senders may be gone: index, slot and incarnation.
    pub fn senders(&self) -> Vec<(usize, usize, u64)> {
        let known = self.rings.iter().flatten();
        known.map(|ring| (ring.index(), ring.slot, ring.incarnation)).collect()
    }

    /// Who sends through a ring that has been adopted.
    pub fn sender(&self, index: usize) -> Option<(usize, u64)> {
        self.rings[index].as_ref().map(|ring| (ring.slot, ring.incarnation))
    }

    /// How many cells of the ring of this process have been taken in; None: it has sent nothing.
    pub fn taken_from(&self, slot: usize, incarnation: u64) -> Option<u32> {
        let of_sender = |ring: &&RecvRing| (ring.slot, ring.incarnation) == (slot, incarnation);
        self.rings.iter().flatten().find(of_sender).map(RecvRing::taken)
    }

    /// Takes a ring out, for its release.
    pub fn remove(&mut self, index: usize) -> Option<RecvRing> {
        self.hot.retain(|hot| hot.ring != index);
        self.restart_turns();
        self.rings[index].take()
    }
}

/// Words of the bitmap that can have a bit set; they are one cache line in all.
#[inline]
fn words(map: &Map) -> usize {
    ring::limit(map).div_ceil(64)
}

/// Whether a ring that is not watched has something.
#[inline]
fn announced(map: &Map) -> bool {
    (0..words(map)).any(|word| map.u64(BITMAP + word * 8).load(Ordering::Relaxed) != 0)
}

#[cold]
fn adopt<'a>(place: &'a mut Option<RecvRing>, inlets: &Inlets, index: usize) -> Option<&'a mut RecvRing> {
    *place = RecvRing::adopt(inlets, index);
    place.as_mut()
}

impl State {
    /// One poll of the application, the `polls`-th, by the thread `me`. True: control has just changed hands.
    #[inline]
    pub fn poll(&mut self, me: usize, polls: u64) -> bool {
        self.inbound.polls = polls;
        if self.inbound.owner == Owner::Thread {
            return self.guest_poll(me);
        }
        for at in 0..self.inbound.hot.len() {
            let ring = self.inbound.hot[at].ring;
            if self.inbound.may_hold(ring) {
                self.drain(ring);
            }
        }
        if announced(&self.inbound.map) {
            self.take_announced();
        }
        self.advance_sends();
        false
    }

    #[cold]
    fn guest_poll(&mut self, me: usize) -> bool {
        self.progress();
        self.inbound.streak += 1;
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
            Owner::Thread => self.inbound.streak = 0,
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
        self.inbound.streak = 0;
        let hot: Vec<usize> = self.inbound.hot.drain(..).map(|hot| hot.ring).collect();
        self.inbound.restart_turns();
        self.inbound.unwatch(&hot);
    }

    /// Everything there is to do now, as the device thread or a guest. Some(time): look again then.
    pub fn progress(&mut self) -> Option<Instant> {
        self.take_announced();
        let again = self.advance_sends();
        if announced(&self.inbound.map) { Some(Instant::now()) } else { again }
    }

    fn take_announced(&mut self) {
        for word in 0..words(&self.inbound.map) {
            let bits = self.inbound.map.u64(BITMAP + word * 8);
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

    /// Empties a ring, or takes a fair share of one that fills as fast and marks it as announced again.
    fn drain_announced(&mut self, ring: usize) {
        let emptied = (0..SHARE).any(|_| !self.drain(ring));
        if !emptied {
            self.inbound.mark(ring);
        }
        if self.inbound.owner != Owner::Thread {
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
            deliver::cell(qps, w, from, &found);
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
        let now = Instant::now();
        let mut soonest = rdma_ring::advance(qps, w).then(|| now + Duration::from_micros(50));
        for index in std::mem::take(&mut w.busy) {
            let Some(qp) = qps.get_mut(index) else { continue };
            let again = send::advance(qp, w, now);
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
