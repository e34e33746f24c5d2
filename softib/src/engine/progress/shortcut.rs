//! The shortcut of a poll: a message that a hot ring holds for an empty completion queue goes straight to the poller.
//!
//! ```text
//!   ring ──> posted buffer, caller's ibv_wc            (this file)
//!   ring ──> posted buffer, completion queue ──> poll  (the general way: everything else)
//! ```
//!
//! Hot rings take turns, and announced ones are looked for now and then, so that a ring that never runs dry keeps none from being
//! read.

use super::{Inbound, Owner, announced};
use crate::deliver::{self, From};
use crate::engine::world::State;
use crate::objects::cq::Cq;
use crate::shm::ring::{INLINE_MAX, flag};
use rdma_sys::ibv_wc;
use std::mem::MaybeUninit;

/// Announced rings are looked for once in so many messages of a ring that always has one.
const LOOK_AROUND: u32 = 64;

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    /// A completion has been handed over.
    Taken,
    /// There is nothing to do.
    Nothing,
    /// There is something for the general way.
    Other,
}

impl State {
    /// Polls queue `key` for one completion, as far as the shortcut leads.
    #[inline(always)]
    pub fn poll_short(&mut self, key: usize, to: &mut MaybeUninit<ibv_wc>) -> Short {
        let State { qps, inbound, w } = self;
        let open = w.cqs.get(key).is_some_and(Cq::is_open);
        if !open || inbound.owner == Owner::Thread || !w.is_quiet() {
            return Short::Other;
        }
        let Some(Some(ring)) = inbound.rings.get_mut(inbound.turn) else { return Short::Other };
        let Some((head, payload)) = ring.front() else { return inbound.look_around() };
        if ring.taken().is_multiple_of(LOOK_AROUND) && announced(&inbound.map) {
            return Short::Other;
        }
        if head.flags & flag::BULK != 0 {
            return self.poll_bulk(key, to);
        }
        let from = From { incarnation: ring.incarnation };
        let fits = head.len as usize <= INLINE_MAX;
        if !fits || !deliver::take_short(qps, &w.mrs, key, from, &head, payload, to) {
            return Short::Other;
        }
        ring.consume_inline();
        inbound.next_turn();
        Short::Taken
    }

    /// The same for a message with bulk, which the ring whose turn it is has.
    #[inline(never)]
    fn poll_bulk(&mut self, key: usize, to: &mut MaybeUninit<ibv_wc>) -> Short {
        let State { qps, inbound, w } = self;
        let Some(Some(ring)) = inbound.rings.get_mut(inbound.turn) else { return Short::Other };
        let Some(found) = ring.peek() else { return Short::Other };
        let from = From { incarnation: ring.incarnation };
        if !deliver::take_short(qps, &w.mrs, key, from, &found.head, found.payload, to) {
            return Short::Other;
        }
        ring.consume(&found);
        inbound.next_turn();
        Short::Taken
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

    /// Sees to it that it is a hot ring's turn.
    pub(super) fn restart_turns(&mut self) {
        self.turn = self.hot.last().map_or(0, |hot| hot.ring);
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
