//! The shortcut of a poll: a message that a hot ring holds for an empty completion queue goes straight to the poller.
//!
//! ```text
//!   ring ──> posted buffer, caller's ibv_wc            (this file)
//!   ring ──> posted buffer, completion queue ──> poll  (the general way: everything else)
//! ```
//!
//! Hot rings take turns, and announced ones are looked for now and then, so that a ring that never runs dry keeps none from being
//! read.

use super::{Inbound, announced};
use crate::deliver::{self, From};
use crate::engine::world::State;
use crate::objects::cq::Cq;
use crate::shm::cell::INLINE_MAX;
use rdma_sys::ibv_wc;
use std::mem::MaybeUninit;

/// Announced rings are looked for once in so many messages of a ring that always has one.
const LOOK_AROUND: u32 = 64;

/// The turn while there is no hot ring, as when the device thread owns progress: everything goes the general way.
pub(super) const NOBODY: usize = usize::MAX;

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    /// A completion has been handed over.
    Taken,
    /// The same, and [`State::end_turn`] is to be called.
    TakenLast,
    /// There is nothing to do.
    Nothing,
    /// There is something for [`State::poll_careful`].
    Careful,
    /// There is something for the general way.
    Other,
}

impl State {
    /// Polls queue `key` for one completion, as far as the shortcut leads. Nothing is called on this way when a message has come, so that
    /// all of it stays in registers; what is rarely needed is the caller's to ask for. `WAITS`: the program has had nothing from this poll
    /// yet, so there is time to get ready for the next message.
    #[inline(always)]
    pub fn poll_short<const WAITS: bool>(&mut self, key: usize, to: &mut MaybeUninit<ibv_wc>) -> Short {
        let State { qps, inbound, w } = self;
        let open = w.cqs.get(key).is_some_and(Cq::is_open);
        if !open || !w.is_quiet() {
            return Short::Other;
        }
        let Some(Some(ring)) = inbound.rings.get_mut(inbound.turn) else { return Short::Other };
        let Some((head, payload)) = ring.front() else {
            if WAITS {
                ring.await_next();
            }
            return inbound.look_around();
        };
        if head.len as usize > INLINE_MAX || ring.taken().is_multiple_of(LOOK_AROUND) {
            return Short::Careful;
        }
        let from = From { incarnation: ring.incarnation };
        let taken = deliver::take_short::<true>(qps, &w.mrs, key, from, &head, payload, to);
        if taken != Short::Taken {
            return taken;
        }
        let due = ring.consume_quietly();
        if due || inbound.hot.len() > 1 { Short::TakenLast } else { Short::Taken }
    }

    /// The same for a message with bulk, for the one at which other rings are looked for, and for one whose buffer has to be checked.
    #[inline(never)]
    pub fn poll_careful(&mut self, key: usize, to: &mut MaybeUninit<ibv_wc>) -> Short {
        let State { qps, inbound, w } = self;
        let open = w.cqs.get(key).is_some_and(Cq::is_open);
        let Some(Some(ring)) = inbound.rings.get_mut(inbound.turn) else { return Short::Other };
        if !open || ring.taken().is_multiple_of(LOOK_AROUND) && announced(&inbound.map) {
            return Short::Other;
        }
        let Some(found) = ring.peek() else { return Short::Other };
        let from = From { incarnation: ring.incarnation };
        let taken = deliver::take_short::<false>(qps, &w.mrs, key, from, &found.head, found.payload, to);
        if taken != Short::Taken {
            return taken;
        }
        ring.consume(&found);
        inbound.next_turn();
        Short::Taken
    }

    /// What is left to do when a message has been taken from the ring whose turn it is.
    #[inline(never)]
    pub fn end_turn(&mut self) {
        if let Some(Some(ring)) = self.inbound.rings.get_mut(self.inbound.turn) {
            ring.publish_if_due();
        }
        self.inbound.next_turn();
    }
}

impl Inbound {
    /// The ring whose turn it is has nothing.
    #[inline(always)]
    fn look_around(&mut self) -> Short {
        self.next_turn();
        let other = self.hot.len() > 1 && self.hot.iter().any(|hot| self.may_hold(hot.ring));
        if other || announced(&self.map) { Short::Other } else { Short::Nothing }
    }

    /// Sees to it that it is a hot ring's turn, if there is one.
    pub(super) fn restart_turns(&mut self) {
        self.turn = self.hot.last().map_or(NOBODY, |hot| hot.ring);
    }

    /// The turn goes to the next hot ring, if there is another.
    #[inline(always)]
    fn next_turn(&mut self) {
        if self.hot.len() > 1 {
            self.pass_turn();
        }
    }

    #[inline(never)]
    fn pass_turn(&mut self) {
        let at =
            self.hot.iter().position(|hot| hot.ring == self.turn).map_or(0, |at| (at + 1) % self.hot.len());
        self.turn = self.hot[at].ring;
    }
}
