//! The receiving side of all rings: which are looked at on every poll, and whose turn it is.

use crate::shm::barrier::Barrier;
use crate::shm::handover;
use crate::shm::layout::{BITMAP, MARKED, RINGS};
use crate::shm::map::{Word, Words};
use crate::shm::parts::Inlets;
use crate::shm::ring::RecvRing;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Rings that are looked at on every poll.
const HOT: usize = 8;

/// A hot ring gives its place away after so many polls without a message.
const COLD_AFTER: u64 = 4096;

/// The turn while there is no hot ring, as when the device thread owns progress: everything goes the general way.
pub(super) const NO_RING: usize = usize::MAX;

/// Who works on the rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The device thread.
    Thread,
    /// The same in place of the thread (by its pointer) that has polled until a nap ago: the hot rings are watched still.
    Deputy(usize),
    /// The thread (by its pointer) that polls.
    Application(usize),
}

impl Owner {
    /// The program looks at its rings itself.
    #[inline]
    pub fn is_application(self) -> bool {
        matches!(self, Owner::Application(_))
    }
}

/// A ring that is looked at on every poll.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hot {
    pub(super) ring: usize,
    /// Cells that had been taken from it when its use was looked at last.
    taken: u32,
    /// When that was: the last poll until then that went the general way.
    since: u64,
}

impl Hot {
    /// Whether it has had messages since it was asked last. Messages do not note when they came: what the ring has taken tells.
    fn note(&mut self, rings: &[Option<RecvRing>], polls: u64) -> bool {
        let taken = rings[self.ring].as_ref().map_or(self.taken, RecvRing::taken);
        let some = taken != self.taken;
        if some {
            (self.taken, self.since) = (taken, polls);
        }
        some
    }
}

/// The receiving side of all rings.
#[derive(Debug)]
#[repr(C)] // in this order: what each poll looks at comes first
pub struct Inbound {
    /// As far as they have been looked at: senders claim them from the first on.
    pub(super) rings: Vec<Option<RecvRing>>,
    /// The hot one that the shortcut looks at next, or [`NO_RING`].
    pub(super) turn: usize,
    /// Whether a bit of `bitmap` may be set.
    pub(super) marked: Word,
    pub(super) hot: Vec<Hot>,
    /// One bit for each ring that has something and is not watched.
    pub(super) bitmap: Words<{ RINGS / 64 }>,
    pub(super) inlets: Arc<Inlets>,
    pub owner: Owner,
    /// When the thread is a [deputy](Owner::Deputy) no longer.
    pub(super) stands_in_until: Option<Instant>,
    pub(super) streak: u32,
    pub(super) polls: u64,
    /// Looks at several hot rings that have found nothing since rings that have none were looked for.
    pub(super) idle: u32,
    pub barrier: Arc<Barrier>,
}

impl Inbound {
    /// No ring known yet; the device thread owns progress.
    pub fn new(inlets: Arc<Inlets>, barrier: Arc<Barrier>) -> Inbound {
        Inbound {
            bitmap: inlets.tables().words(BITMAP),
            marked: inlets.tables().word(MARKED),
            inlets,
            rings: Vec::new(),
            hot: Vec::new(),
            turn: NO_RING,
            owner: Owner::Thread,
            stands_in_until: None,
            streak: 0,
            polls: 0,
            idle: 0,
            barrier,
        }
    }

    /// Starts to watch `ring`, in the place of one that has gone cold, if there is a place.
    pub(super) fn watch(&mut self, ring: usize) {
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

    /// Stops watching the hot rings that have had nothing since the last call, but for the one whose turn it is; how many.
    #[cold]
    pub(super) fn cool(&mut self) -> u64 {
        let Inbound { hot, rings, turn, polls, .. } = self;
        let mut cold = Vec::new();
        hot.retain_mut(|hot| {
            let stays = hot.note(rings, *polls) || hot.ring == *turn;
            cold.extend((!stays).then_some(hot.ring));
            stays
        });
        if !cold.is_empty() {
            self.unwatch(&cold);
        }
        cold.len() as u64
    }

    /// The hot ring that has had nothing for longest, if that is long.
    fn coldest(&mut self) -> Option<usize> {
        for hot in &mut self.hot {
            hot.note(&self.rings, self.polls);
        }
        let (at, hot) = self.hot.iter().enumerate().min_by_key(|(_, hot)| hot.since)?;
        (self.polls - hot.since > COLD_AFTER).then_some(at)
    }

    /// Stops watching: senders announce from now on. What was sent before is marked as announced
    /// here.
    pub(super) fn unwatch(&mut self, rings: &[usize]) {
        for inbound in rings.iter().filter_map(|&ring| self.rings[ring].as_ref()) {
            handover::unwatch(inbound.watched(), || ());
        }
        self.barrier.all_senders();
        for &ring in rings {
            self.mark(ring);
        }
    }

    /// Announces a ring to ourselves.
    pub(super) fn mark(&self, ring: usize) {
        handover::set_mark((&self.bitmap[ring / 64], 1 << (ring % 64)), &*self.marked);
    }

    /// Whether a ring that is not watched may have something.
    #[inline]
    pub(super) fn announced(&self) -> bool {
        handover::is_marked(&*self.marked)
    }

    /// A look at one word: false is the answer nearly always, and what an idle poll costs.
    #[inline]
    pub(super) fn may_hold(&self, index: usize) -> bool {
        self.rings.get(index).and_then(Option::as_ref).is_none_or(RecvRing::is_ready)
    }

    #[inline]
    pub(super) fn ring(&mut self, index: usize) -> Option<&mut RecvRing> {
        let Inbound { rings, inlets, .. } = self;
        if index >= rings.len() {
            grow(rings, index)?;
        }
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
        let ring = self.rings.get(index)?.as_ref()?;
        Some((ring.slot, ring.incarnation))
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
        self.rings.get_mut(index)?.take()
    }
}

/// Makes room for the ring of that index. None: there is no such ring.
#[cold]
fn grow(rings: &mut Vec<Option<RecvRing>>, index: usize) -> Option<()> {
    (index < RINGS).then(|| rings.resize_with(index + 1, || None))
}

#[cold]
fn adopt<'a>(place: &'a mut Option<RecvRing>, inlets: &Inlets, index: usize) -> Option<&'a mut RecvRing> {
    *place = RecvRing::adopt(inlets, index);
    place.as_mut()
}

impl Inbound {
    /// Sees to it that it is a hot ring's turn, if there is one and the program polls.
    pub(super) fn restart_turns(&mut self) {
        let last = self.hot.last().filter(|_| self.owner.is_application());
        self.give_turn(last.map_or(NO_RING, |hot| hot.ring));
    }

    /// It is this ring's turn from now on. That of another ends: what its sender would have been told when nothing came, it is told now.
    pub(super) fn give_turn(&mut self, ring: usize) {
        if self.turn != ring
            && let Some(Some(last)) = self.rings.get_mut(self.turn)
        {
            last.publish_if_due();
        }
        self.turn = ring;
    }

    /// The place of the hot ring behind the one whose turn it is.
    pub(super) fn behind_turn(&self) -> usize {
        self.hot.iter().position(|hot| hot.ring == self.turn).map_or(0, |at| (at + 1) % self.hot.len())
    }

    /// The turn goes to the next hot ring, if there is another.
    #[inline(never)]
    pub(super) fn pass_turn(&mut self) {
        let at = self.behind_turn();
        self.give_turn(self.hot.get(at).map_or(NO_RING, |hot| hot.ring));
    }
}
