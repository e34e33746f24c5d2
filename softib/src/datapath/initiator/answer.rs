//! Answers to requests for memory: they belong to the request at the head of the send queue.

use super::finish::finish_head;
use crate::datapath::pieces::{PIECE, is_whole};
use crate::objects::moves::Copied;
use crate::objects::mr::Mrs;
use crate::objects::peer::{Link, Peer};
use crate::objects::qp::{Qp, Qps};
use crate::objects::qp_state::is_receiving;
use crate::objects::sges::spread;
use crate::objects::work::{Queued, Wait, Work};
use crate::objects::world::World;
use crate::shm::cell::{Found, Head, NOT_SENT, flag};
use crate::shm::layout::{QP_BITS, QPS};
use rdma_sys::*;

/// An answer (initiator): it belongs to the request at the head of the SQ.
pub fn response_arrived(qp: &mut Qp, w: &mut World, found: &Found) {
    let head = &found.head;
    if !is_awaited(qp, head) {
        return qp.link.iter_mut().for_each(|link| too_late(link, head));
    }
    let Some(queued) = qp.sq.front_mut() else { return };
    if queued.work.may_give
        && let Some(peer) = qp.link.as_ref().and_then(|link| w.peers.attached(link.slot))
    {
        peer.ring.give_is_over(is_whole(queued.work.len));
    }
    if head.imm == NOT_SENT && matches!(queued.wait, Wait::Data { .. } | Wait::Asked) {
        (queued.work.asked, queued.work.unsent, queued.work.sent) = (false, true, 0);
        queued.wait = Wait::Turn;
        return qp.recall();
    }
    if head.imm != IBV_WC_SUCCESS {
        return refused_there(qp, w, head.imm);
    }
    if queued.work.fetches() && !take_data(qp, w, found) {
        return finish_head(qp, w, IBV_WC_LOC_PROT_ERR);
    }
    if head.flags & flag::LAST == 0 {
        return;
    }
    let Some(queued) = qp.sq.front_mut() else { return };
    if queued.work.opcode == IBV_WR_RDMA_WRITE_WITH_IMM {
        (queued.work.moved, queued.wait) = (true, Wait::Turn);
        return;
    }
    if queued.work.asked {
        note_end(qp, w);
    }
    finish_head(qp, w, IBV_WC_SUCCESS);
}

/// The peer has carried out the request at the head of the SQ. How long that has taken says little of a READ that has crossed one of the peer's, or of a
/// program that looks around now and then only.
fn note_end(qp: &mut Qp, w: &mut World) {
    let Some(queued) = qp.sq.front() else { return };
    let by_and_by = queued.wait.is_now_and_then(w.was_elsewhere);
    let crossed = queued.work.may_cross() && has_crossed(qp, &queued.work);
    let note = if by_and_by { Link::was_slow } else { Link::was_in_time };
    qp.last_link().into_iter().for_each(note);
    if !by_and_by
        && !crossed
        && let Some((peer, work)) = asked_of(qp, w)
    {
        peer.note_answer(&work);
    }
}

/// A request of the peer's has been seen under way together with this one of ours.
fn has_crossed(qp: &Qp, work: &Work) -> bool {
    work.crosses || work.heard != qp.heard
}

/// Whether an answer is to the request at the head of the SQ.
fn is_awaited(qp: &Qp, head: &Head) -> bool {
    qp.sq.front().is_some_and(|queued| {
        // A request can be refused before all of it has been sent. One that was recalled is carried out without the peer, whatever that says.
        let refused = head.imm != IBV_WC_SUCCESS && queued.work.sent > 0 && !queued.work.recalled;
        queued.awaits(head.pos) || refused && queued.work.number == head.pos
    })
}

/// An answer to a request that is over: the peer was late with it, and may be asked again.
#[cold]
fn too_late(link: &mut Link, head: &Head) {
    link.owed = link.owed.saturating_sub(u32::from(head.flags & flag::LAST != 0));
}

/// A refusal has come back. An unreliable QP does not hear of it.
#[cold]
fn refused_there(qp: &mut Qp, w: &mut World, said: u32) {
    let status = match said {
        _ if qp.kind == IBV_QPT_UC => IBV_WC_SUCCESS,
        IBV_WC_REM_INV_REQ_ERR => IBV_WC_REM_INV_REQ_ERR,
        _ => IBV_WC_REM_ACCESS_ERR,
    };
    finish_head(qp, w, status);
}

/// Places what has come of the data that the request at the head of the SQ fetches. False: it has no place.
fn take_data(qp: &mut Qp, w: &mut World, found: &Found) -> bool {
    let (pd, len) = (qp.pd as u32, found.head.len);
    let Some(queued) = qp.sq.front_mut() else { return false };
    let (before, whole) = (queued.work.sent, queued.work.len);
    let fits = before.checked_add(len).is_some_and(|end| end <= whole);
    if before == 0
        && len < whole
        && let Some((peer, work)) = asked_of(qp, w)
    {
        peer.came = Some((work.number, qp.num, timing::now()));
    }
    let Some(queued) = qp.sq.front_mut().filter(|_| fits) else { return false };
    // Of a long one the copy of one piece is timed.
    let since = (before == PIECE && queued.work.may_cross()).then(timing::now);
    if !place_answer(&w.mrs, queued, pd, found) {
        return false;
    }
    queued.work.sent += len;
    if let Some(since) = since
        && let Some((peer, _)) = asked_of(qp, w)
    {
        peer.moves.note_copy(Copied::Out, since);
    }
    let Some(queued) = qp.sq.front() else { return false };
    if before > 0 && before + len == whole && !queued.wait.is_now_and_then(w.was_elsewhere) {
        has_come(qp, w);
    }
    true
}

/// All of the data that the request at the head of the SQ fetches has come, in several pieces: how long that took from the first one on, and
/// whether it has crossed such a request of the peer's.
fn has_come(qp: &mut Qp, w: &mut World) {
    if let Some(work) = qp.sq.front().map(|queued| queued.work).filter(Work::may_cross) {
        let crossed = has_crossed(qp, &work);
        qp.link.iter_mut().for_each(|link| link.note_crossing(crossed));
        if crossed && let Some((peer, _)) = asked_of(qp, w) {
            peer.moves.note_crossing(PIECE);
        }
    }
    if let Some((peer, work)) = asked_of(qp, w)
        && let Some((number, num, since)) = peer.came.take()
        && (number, num) == (work.number, qp.num)
    {
        peer.pace.note(work.streamed, work.len, timing::now() - since);
    }
}

/// The request at the head of the SQ, and the process that it has gone to.
fn asked_of<'a>(qp: &mut Qp, w: &'a mut World) -> Option<(&'a mut Peer, Work)> {
    let (work, slot) = (qp.sq.front()?.work, qp.last_link()?.slot);
    Some((w.peers.attached(slot)?, work))
}

/// Copies what came back into the buffers of its request. False: they are not what they were when posted.
fn place_answer(mrs: &Mrs, queued: &Queued, pd: u32, found: &Found) -> bool {
    let skip = queued.work.sent as usize;
    if queued.sges.iter().all(|sge| mrs.allows(sge, pd, true)) {
        spread(&queued.sges, skip, found);
        return true;
    }
    let real = mrs.resolve(&queued.sges, pd, true);
    real.map(|sges| spread(&sges, skip, found)).is_some()
}

/// An answer that no connected queue pair wanted: it may be for one of our XRC send queue pairs.
pub fn answered(qps: &mut Qps, w: &mut World, incarnation: u64, found: &Found) -> bool {
    let head = &found.head;
    let Some(qp) = qps.get_mut(head.dst as usize % QPS) else { return false };
    let same = qp.generation as u16 & (u16::MAX >> QP_BITS) == head.dst >> QP_BITS;
    if !same || qp.attr.dest_qp_num != head.src_qpn || !is_receiving(qp.state) {
        return false;
    }
    let srqn = qp.sq.front().map_or(0, |queued| queued.work.srqn);
    let known = qp.xrc.as_ref().and_then(|to| to.known_queue(srqn));
    let asked = known.is_some_and(|link| link.incarnation == incarnation);
    if asked && is_awaited(qp, head) {
        response_arrived(qp, w, found);
        return true;
    }
    let late = qp.xrc.as_mut().and_then(|to| to.links_to(incarnation).find(|link| link.owed > 0));
    late.map(|link| too_late(link, head)).is_some()
}
