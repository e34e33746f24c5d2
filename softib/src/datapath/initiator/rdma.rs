//! One-sided operations: RDMA WRITE, READ, and the 64-bit atomics.
//!
//! The initiator checks the key, the bounds, the rights and the protection domain in the target's MR table, says which
//! region it works on (hazard word of its ring, so that the target's dereg waits), and moves the data itself with
//! process_vm_writev/readv: no CPU of the target is needed. Where that is not allowed (found by trying; SOFTIB_CMA=0 forbids
//! it), the request goes through the rings, see `ring`. So does a READ from a process that looks at its rings as ours does, for then both
//! copy at the same time, each from and to memory in its own caches; what does not come soon is fetched after all (`queue::hurry`). And so
//! does a WRITE of a program that has said that it polls until it is over. Both do so only where that takes less time (`objects::moves`).
//!
//! Atomics are one atomic instruction of a CPU: of the initiator's where the memory is mapped there (`mapped`), else of its owner's, which is asked
//! through the rings. So they are atomic among all initiators, all keys of the same memory and the owner's own atomics, no lock exists that
//! a process could take to its grave (or hold while it is stopped), and an initiator that dies leaves its operation
//! done once or not at all.

use super::direct::{direct, is_answered_with_data, needed, probe};
use super::mapped::moved_mapped;
use super::path::{Path, Way};
use crate::datapath::iwarp;
use crate::datapath::pieces::{PIECE, is_whole};
use crate::extras::mappings;
use crate::objects::grant::Grant;
use crate::objects::moves::Kind;
use crate::objects::mr::Mrs;
use crate::objects::qp::Qp;
use crate::objects::reply::{Asked, Reply};
use crate::objects::work::{Remote, Step, WORD, Work};
use crate::objects::world::World;
use crate::shm::ring::{self, Given};
use crate::shm::segment::Segment;
use rdma_sys::*;

/// From here on it is worth the wait to ask a peer that has polled until it stopped some milliseconds ago, or that shares a processor with
/// others and may not be running: that it communicates again, as we do, is likely, and fetching takes as long as the wait for one that does not.
const LEAST_AWAITED: u32 = 64 << 10;

/// Carries an RDMA request to the connected queue pair out.
pub fn attempt(qp: &mut Qp, w: &mut World, work: &mut Work, sges: &[ibv_sge]) -> Step {
    let (reads, dest, iwarp) = (qp.attr.max_rd_atomic, qp.attr.dest_qp_num, w.is_iwarp());
    work.may_give = if work.asked { work.may_give } else { may_give(qp, w, work) };
    work.crosses |= crosses(qp, w, work);
    if work.late && !work.recalled && is_waited_for(qp, &w.segment, work) {
        return Step::Data;
    }
    if !work.asked {
        work.heard = qp.heard;
    }
    let World { peers, stats, segment, mrs, .. } = w;
    let mut way = match Way::to_peer(qp, peers, stats, segment.incarnation, work) {
        Ok(way) => way,
        Err(step) => return step,
    };
    if let Some(status) = local_error(reads, work) {
        return Step::Done(status);
    }
    if iwarp && is_answered_with_data(work) && !iwarp::may_read_into(mrs, sges) {
        return Step::Done(IBV_WC_LOC_PROT_ERR);
    }
    let grant = Grant { access: way.link.view.access, pd: way.link.view.pd, qpn: dest };
    let step = way.one_sided(mrs, &grant, work, sges);
    if work.may_cross() && work.moved {
        let crossed = work.crosses || moves_itself(qp, &w.segment);
        qp.link.iter_mut().for_each(|link| link.note_crossing(crossed));
    }
    step
}

/// Whether a long READ crosses one of the peer's: that fetches by its own hand just now, or an answer of ours to it is under way.
pub fn crosses(qp: &Qp, w: &World, work: &Work) -> bool {
    let is_answer = |reply: &Reply| matches!(reply.asked, Asked::Qp { index, .. } if index == qp.index);
    work.may_cross() && (moves_itself(qp, &w.segment) || w.replies.iter().any(is_answer))
}

/// Whether the data of a WRITE may be handed to a peer that polls. It is not there then before one of the two has polled again, which the
/// program has said that it does: others leave it to the device, and wait for data in memory.
pub fn may_give(qp: &Qp, w: &World, work: &Work) -> bool {
    let is_write = matches!(work.opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM);
    is_write
        && w.peers.awaits_writes
        && qp.kind == IBV_QPT_RC
        && !mappings::are_checked()
        && !(work.len > PIECE && moves_itself(qp, &w.segment))
}

/// The peer is moving data from or to our memory by its own hand just now: it looks at no ring meanwhile, and if both do so, neither waits for the other.
fn moves_itself(qp: &Qp, own: &Segment) -> bool {
    qp.link.as_ref().is_some_and(|link| ring::is_fetching(&own.map, link.slot, link.incarnation))
}

/// The peer has done so since this was asked last.
fn has_moved_itself(qp: &mut Qp, own: &Segment) -> bool {
    let Some(link) = qp.link.as_mut() else { return false };
    let moves = ring::moves(&own.map, link.slot, link.incarnation);
    std::mem::replace(&mut link.moves, moves) != moves
}

/// So often a peer that is late, and does the same as we do, is waited for again, for `queue::SOON` each.
const AGAIN: u8 = 40;

/// A peer is late with the answer to this request because it posts requests of its own, of which some have come meanwhile, or fetches something from
/// us, or has, by a system call; during all that it looks at no ring. It is waited for: if its part were done meanwhile, it would find us late in its turn,
/// and so on.
/// A WRITE of several pieces that was given is not waited for: it is carried out at once, as the peer's own are.
#[cold]
fn is_waited_for(qp: &mut Qp, own: &Segment, work: &mut Work) -> bool {
    let has_moved = has_moved_itself(qp, own);
    let posts = std::mem::replace(&mut work.heard, qp.heard) != qp.heard;
    work.crosses |= posts;
    let is_gift = work.may_give && work.len > PIECE;
    let waits = work.waited < AGAIN && !is_gift && (posts || has_moved || moves_itself(qp, own));
    if waits {
        (work.late, work.waited) = (false, work.waited + 1);
    }
    waits
}

/// Why a request fails without the peer: an atomic of another length than a word's, or one that is answered with data by a queue pair
/// that may have none such (max_rd_atomic).
pub fn local_error(reads: u8, work: &Work) -> Option<u32> {
    if matches!(work.remote, Remote::Word { .. }) && work.len != WORD {
        return Some(IBV_WC_LOC_LEN_ERR);
    }
    (is_answered_with_data(work) && reads == 0).then_some(IBV_WC_LOC_QP_OP_ERR)
}

impl<P: Path> Way<'_, P> {
    /// Carries an RDMA request out for which the other end grants `grant`.
    pub fn one_sided(&mut self, own: &Mrs, grant: &Grant, work: &mut Work, sges: &[ibv_sge]) -> Step {
        if !work.begun() && !grant.offers(needed(work)) {
            return self.refused(IBV_WC_REM_INV_REQ_ERR);
        }
        if !work.moved
            && work.len > 0
            && let Some(step) = self.move_data(own, grant, work, sges)
        {
            return step;
        }
        match work.opcode {
            IBV_WR_RDMA_WRITE_WITH_IMM => self.notify(work),
            _ => Step::Done(IBV_WC_SUCCESS),
        }
    }

    /// Moves the data, or has it moved. None: it is where it belongs.
    fn move_data(&mut self, own: &Mrs, grant: &Grant, work: &mut Work, sges: &[ibv_sge]) -> Option<Step> {
        if !work.begun() && moved_mapped((self.link, self.peer), grant, work, sges).is_some() {
            (work.moved, self.stats.rdma_direct) = (true, self.stats.rdma_direct + 1);
            return None;
        }
        if matches!(work.remote, Remote::Word { .. }) {
            return Some(self.request(work, sges));
        }
        if !probe(self.peer) {
            return Some(self.request(work, sges));
        }
        if work.late && !self.takes_back(work) {
            return Some(Step::Data);
        }
        if work.moved {
            return None;
        }
        if work.asked || self.is_moved_sooner(work) {
            return Some(if work.may_give { self.give(work, sges, true) } else { self.ask(work) });
        }
        match self.move_by_hand(own, grant, work, sges) {
            Ok(()) => {
                (work.moved, self.stats.rdma_direct) = (true, self.stats.rdma_direct + 1);
                None
            }
            Err(IBV_WC_REM_ACCESS_ERR) => Some(self.refused(IBV_WC_REM_ACCESS_ERR)),
            Err(status) => Some(Step::Done(status)),
        }
    }

    /// Whether a request goes by our own hand, as that takes less time or is the only way, and nothing is to be found out before.
    #[inline]
    pub fn is_by_hand(&self, grant: &Grant, work: &Work) -> bool {
        let may = grant.offers(needed(work)) && self.peer.reachable == Some(true) && !work.may_cross();
        let is_own = work.opcode == IBV_WR_RDMA_WRITE && !work.may_give;
        may && (is_own || self.peer.moves.is_by_hand(self.kind(work)))
    }

    /// Moves the data by our own hand. Err: a completion status.
    pub fn move_by_hand(
        &mut self,
        own: &Mrs,
        grant: &Grant,
        work: &Work,
        sges: &[ibv_sge],
    ) -> Result<(), u32> {
        let kind = self.kind(work).filter(|kind| self.peer.moves.is_by_hand(Some(*kind)));
        let timed = self.peer.moves.go(kind).map(|kind| (kind, timing::now()));
        direct(self.peer, own, grant, work, sges)?;
        if let Some((kind, since)) = timed {
            self.peer.moves.note_by_hand(kind, work.len, timing::now() - since);
        }
        Ok(())
    }

    /// Whether the time of this request is wanted.
    #[inline]
    pub fn is_timed(&self, work: &Work) -> bool {
        self.peer.moves.is_timed(self.kind(work))
    }

    /// The kind of a request, of which some take less time through the rings, and some by our own hand. None: it has no choice, as atomics have none.
    #[inline]
    pub fn kind(&self, work: &Work) -> Option<Kind> {
        match work.opcode {
            IBV_WR_RDMA_READ if work.may_cross() && self.link.crosses() => Some(Kind::Crossing),
            IBV_WR_RDMA_READ => Kind::of(true, work.len, work.in_burst),
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => Kind::of(false, work.len, work.in_burst),
            _ => None,
        }
    }

    /// Whether the peer, if asked, sends the data of a READ sooner than it could be fetched, or places that of a WRITE: both sides look
    /// at their rings.
    ///
    /// It copies out of its own caches then, into a ring that goes round in both sides', and our copy overlaps its; the kernel's copy
    /// from or to another process' pages is one, and slower on most processors. Where it has been late, it is not asked for a while, and never while it owes an
    /// answer.
    fn is_moved_sooner(&mut self, work: &Work) -> bool {
        let reads = work.opcode == IBV_WR_RDMA_READ;
        let is_long = reads && work.len >= LEAST_AWAITED;
        let may = !work.unsent && (is_long || !self.is_crowded && (reads || work.may_give));
        if !may || self.is_fetched_as_it_crosses(work) || !self.polls || self.peer.is_self() {
            return false;
        }
        let link = &mut *self.link;
        link.unasked = link.unasked.saturating_sub(1);
        let comes_soon = self.peer.polls() || work.len >= LEAST_AWAITED;
        let is_free = link.owed == 0 && link.unasked == 0;
        let may_be_asked = is_free && comes_soon && self.peer.ring.is_watched();
        may_be_asked && !self.peer.moves.is_by_hand(self.kind(work)) && (reads || self.may_give(work.len))
    }

    /// Whether a WRITE of so many bytes may be given now.
    fn may_give(&mut self, len: u32) -> bool {
        self.peer.ring.may_give(is_whole(len)) && self.has_room_for_gift(len.min(PIECE))
    }

    /// Whether a READ is fetched because it crosses one of the peer's. The processors share no cache where the peer's answers take less time past its caches.
    fn is_fetched_as_it_crosses(&self, work: &Work) -> bool {
        self.kind(work) == Some(Kind::Crossing) && work.is_long_crossing(self.peer.pace.streams())
    }

    /// Whether the peer carries this request out as things stand: nothing is to be found out before, and it does not refuse.
    #[inline]
    pub fn may_ask(&mut self, work: &Work) -> bool {
        let grants = self.link.view.access & needed(work) != 0;
        let is_known = self.peer.reachable == Some(true) && self.link.unasked == 0;
        grants && (matches!(work.remote, Remote::Word { .. }) || is_known && self.is_moved_sooner(work))
    }

    /// The peer was late with the answer to this READ, or WRITE, which is done without it. From now on the peer leaves the memory alone,
    /// which may be gone when this request is over, and places nothing. False: it is just copying, so that there is something to wait for.
    #[cold]
    fn takes_back(&mut self, work: &mut Work) -> bool {
        work.late = false;
        if !self.peer.ring.withdraw_asks() {
            return false;
        }
        let is_answered = !work.gives_on();
        if work.may_give {
            // It may have been done, and the answer be on its way. What has been recalled was behind one that had not.
            match self.peer.ring.given(work.give) {
                Given::Answered if !work.recalled => return false,
                given => work.moved = given == Given::Placed,
            }
            self.peer.ring.give_is_over(is_whole(work.len));
        }
        (work.asked, work.unsent, work.sent) = (false, true, 0);
        match (work.recalled, is_answered) {
            (true, _) => {}
            (false, true) => self.link.was_late(),
            (false, false) => self.link.was_slow(),
        }
        self.stats.rdma_late += 1;
        true
    }
}

/// The state of a peer that owes an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answerer {
    Open,
    /// Its queue pair takes no more requests; an answer may be on its way.
    Closed,
    Dead,
}

/// Looks at the peer that owes the answer at the head of the SQ.
pub fn answerer(qp: &mut Qp, w: &mut World) -> Answerer {
    let me = (qp.num, w.segment.incarnation);
    let Some(link) = qp.link.as_mut() else { return Answerer::Dead };
    match w.peers.connected(link) {
        Ok(peer) if link.is_open(peer, me) => Answerer::Open,
        Ok(_) => Answerer::Closed,
        Err(_) => Answerer::Dead,
    }
}
