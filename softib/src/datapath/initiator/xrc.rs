//! The initiator over XRC: from a send queue pair, through a receive queue pair of a domain, to a shared receive queue of any process of
//! that domain (`responder::xrc` has the picture).

use super::path::{Way, Xrc};
use super::rdma::{Answerer, local_error};
use super::short::{Short, sent_short, short_flags, short_len};
use crate::objects::grant::Grant;
use crate::objects::qp::{Qp, number};
use crate::objects::sges::gather_all;
use crate::objects::work::{Step, Work};
use crate::objects::world::World;
use crate::objects::xrc_link::{SendLink, Sight};
use crate::shm::cell::{Head, Via, op};
use crate::shm::cells::LONG;
use crate::shm::layout::{QP_BITS, QPS};
use crate::shm::qptable;
use crate::shm::shortage::is_shortage;
use rdma_sys::*;

/// One try to carry a request out (or on).
pub fn attempt(qp: &mut Qp, w: &mut World, work: &mut Work, sges: &[ibv_sge]) -> Step {
    // It comes back in any case; nothing in between needs the queue pair to have it.
    let Some(mut link) = qp.xrc.take() else { return Step::Silent };
    let step = attempt_on(&mut link, qp, w, work, sges);
    qp.xrc = Some(link);
    step
}

fn attempt_on(to: &mut SendLink, qp: &Qp, w: &mut World, work: &mut Work, sges: &[ibv_sge]) -> Step {
    match to.look((qp.num, w.segment.incarnation)) {
        Sight::Open => {}
        Sight::Silent => return Step::Silent,
        Sight::Orphaned => return Step::Done(IBV_WC_RETRY_EXC_ERR),
        Sight::Short => return Step::Done(IBV_WC_LOC_QP_OP_ERR),
    }
    let Some((_, seen)) = to.seen else { return Step::Silent };
    let qpn = number(to.domain.slot, to.index);
    let via = Via { qpn, generation: seen.generation };
    let domain = (to.domain.slot as u32, to.domain.incarnation);
    let Some(link) = to.queue(&mut w.peers, work.srqn) else { return no_queue(w, work) };
    if work.unconfirmed {
        return Step::Done(IBV_WC_SUCCESS);
    }
    let World { peers, stats, mrs, .. } = w;
    let polls = peers.polls;
    let Some(peer) = peers.attached(link.slot) else { return Step::Silent };
    // The keys are those of the process that has the SRQ, in the protection domain of the SRQ.
    let grant = Grant { access: seen.offers(), pd: link.view.pd, qpn };
    let (me, src_qpn, kind) = (domain, qp.num, qp.kind);
    let mut way = Way { path: Xrc(via), peer, link, stats, me, src_qpn, kind, polls };
    if matches!(work.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) {
        return way.send(work, sges);
    }
    match local_error(qp.attr.max_rd_atomic, work) {
        Some(status) => Step::Done(status),
        None => way.one_sided(mrs, &grant, work, sges),
    }
}

/// A SEND of one cell, as [`send_short`](super::short::send_short): to an SRQ that has been sent to before, through a receive queue pair that
/// is as it was then.
pub fn send_short(qp: &mut Qp, w: &mut World, wr: &ibv_send_wr, sges: &[ibv_sge]) -> Short {
    if !qp.direct {
        return Short::Other;
    }
    let Some(len) = short_len::<false>(qp, w, wr, sges) else { return Short::Other };
    // SAFETY: the queue pair's type says which member of the union the program has filled.
    let number = unsafe { wr.qp_type.xrc.remote_srqn };
    let Some((via, link)) = qp.xrc.as_mut().and_then(|to| to.at_hand(number)) else { return Short::Other };
    let Some(peer) = w.peers.at_hand(link) else { return Short::Other };
    if !link.is_current() || !peer.ring.fits(len as usize) {
        return Short::Other;
    }
    if len >= LONG {
        peer.ring.expect_payload(len);
    }
    let Some(pos) = link.claim_fitting(peer.ring.index(), len) else { return Short::Other };
    let (op, flags) = (op::SEND | op::XRC, short_flags(wr));
    peer.ring.set_via(via);
    let head = Head { op, flags, dst: link.dst, src_qpn: qp.num, len, imm: 0, pos };
    let watched = peer.ring.send_any(head, |to| gather_all(sges, to));
    if w.in_burst {
        peer.ring.expect_more();
    }
    w.in_burst = true;
    let (open, room) = (link.is_current(), peer.ring.fits(len as usize));
    sent_short(qp, wr, len, (watched, open, room))
}

/// The SRQ that a request names can't be found. While its owner is changing it (a resize) it is waited
/// for; where its process cannot be reached for want of a resource, that is no error of the peer's.
#[cold]
fn no_queue(w: &mut World, work: &Work) -> Step {
    let index = work.srqn as usize % QPS;
    match w.peers.reach((work.srqn >> QP_BITS) as usize) {
        Ok(peer) if qptable::is_changing(&peer.map, index) => Step::Silent,
        Ok(peer) if peer.open_queue(index).is_err() => Step::Done(IBV_WC_LOC_QP_OP_ERR),
        Err(error) if is_shortage(error) => Step::Done(IBV_WC_LOC_QP_OP_ERR),
        _ => Step::Done(IBV_WC_REM_INV_REQ_ERR),
    }
}

/// Looks at the process that owes the answer to the request at the head of the SQ.
pub fn answerer(qp: &mut Qp, w: &mut World, work: &Work) -> Answerer {
    let me = (qp.num, w.segment.incarnation);
    let Some(to) = qp.xrc.as_mut() else { return Answerer::Dead };
    let alive = to.known_queue(work.srqn).is_some_and(|link| w.peers.connected(link).is_ok());
    match to.look(me) {
        _ if !alive => Answerer::Dead,
        Sight::Open | Sight::Short => Answerer::Open,
        Sight::Silent | Sight::Orphaned => Answerer::Closed,
    }
}
