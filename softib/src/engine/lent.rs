//! The ring of which the program reads a message where it lies (`shm::placed`), and the messages that are left in their rings for that.
//!
//! The poll of a completion queue beside the one that places messages takes in what the rings hold, up to the first message that the poll of
//! its own queue gives to the program where it lies: one copy less, and none to a buffer that is in no cache. Where sends of ours wait for room all is
//! taken in at once: the peer's sends wait, too, and a ring that stays full costs each of them a copy more.

use super::state::State;
use crate::datapath::responder::{From, Short, meaning};
use crate::objects::cq::Cq;
use crate::objects::qp::{Qps, Usual};
use crate::objects::world::World;
use crate::shm::cell::Found;
use crate::shm::layout::QPS;
use crate::shm::placed;
use rdma_sys::ibv_wc;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Shorter messages are not left: with each that is, a poll hands over one in place of all that have come.
const LEAST_LEFT: u32 = 12 << 10;

/// A program that polls so often and not the queue of such a message waits for something else, which may be behind it.
const MOST_LOOKS: u32 = 64;

impl State {
    /// If the program is done with the message that it was given, the sender of its ring is told how far that has been read. False: it is
    /// not.
    #[inline(never)]
    pub fn settle_lent(&mut self) -> bool {
        let Some((ring, _)) = self.w.lender else { return true };
        if let Some(Some(ring)) = self.inbound.rings.get_mut(ring) {
            if ring.is_lent() {
                return false;
            }
            ring.has_been_read();
            ring.publish_late();
        }
        self.w.lender = None;
        true
    }

    /// The program reads a message of this ring, which must not be freed.
    pub fn is_lent(&mut self, ring: usize) -> bool {
        !self.settle_lent() && self.w.lender.is_some_and(|(lender, _)| lender == ring)
    }

    /// This completion queue leaves messages of `least` bytes and more where they are. None: it is none of ours.
    pub fn place_from(&mut self, key: usize, least: u32) -> Option<()> {
        self.w.cqs.get_mut(key)?.placed_from = least;
        self.w.left.from = self.w.left.from.min(least.max(LEAST_LEFT));
        Some(())
    }

    /// A look begins: what the last one has left is forgotten. Whether this one leaves messages to the polls of their queues.
    #[inline]
    pub(super) fn leaves_messages(&mut self) -> bool {
        let left = &mut self.w.left;
        left.looks = if left.next.take().is_some() { left.looks + 1 } else { 0 };
        left.looks < MOST_LOOKS
    }

    /// Hands over the message that the last look has left in its ring, if it is of completion queue `key`, in which nothing waits. What does not
    /// go that way after all is copied, and waits in the queue.
    #[inline]
    pub fn poll_left(&mut self, key: usize, to: &mut MaybeUninit<ibv_wc>) -> bool {
        let Some((ring, cq)) = self.w.left.next else { return false };
        if cq != key || self.w.lender.is_some() || !self.w.cqs.get(key).is_some_and(Cq::is_open) {
            return false;
        }
        self.w.left.next = None;
        self.inbound.give_turn(ring);
        let taken = matches!(self.poll_any::<false>(key, to), Short::Placed | Short::Taken);
        if !taken {
            self.drain_one_to_left(ring);
        }
        taken
    }

    /// A completion queue goes, and with it what the program was given by it.
    pub fn take_back(&mut self, cq: usize) {
        if self.w.lender.is_some_and(|(_, of)| of == cq) {
            placed::word().set(null_mut());
            self.settle_lent();
        }
    }
}

/// A message is left in its ring: the poll of its queue gives it to the program where it lies, when nothing waits in that queue.
#[inline]
pub(super) fn is_left(qps: &mut Qps, w: &mut World, from: From, found: &Found) -> bool {
    found.head.len >= w.left.from && w.busy.is_empty() && is_left_by(qps, w, from, found)
}

#[inline(never)]
fn is_left_by(qps: &mut Qps, w: &mut World, From { incarnation }: From, found: &Found) -> bool {
    let head = &found.head;
    let Some(usual) = qps.get_mut(head.dst as usize % QPS).map(|qp| qp.usual) else { return false };
    let (src_qpn, meaning, cq) = (head.src_qpn, meaning::<false>(head), usual.cq);
    let places = |cq: &Cq| cq.is_plain() && head.len >= cq.placed_from;
    let is_left = usual == Usual { incarnation, src_qpn, meaning, cq } && w.cqs.get(cq).is_some_and(places);
    if is_left {
        w.left.next.get_or_insert((found.ring, cq));
    }
    is_left
}
