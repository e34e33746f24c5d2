//! The initiator over XRC: from a send queue pair, through a receive queue pair of a domain, to a shared receive queue of any process of
//! that domain (`responder::xrc` has the picture).

use super::path::{Way, Xrc};
use super::rdma::{Answerer, local_error};
use crate::objects::grant::Grant;
use crate::objects::qp::{Qp, number};
use crate::objects::work::{Step, Work};
use crate::objects::world::World;
use crate::objects::xrc_link::{SendLink, Sight};
use crate::shm::cell::Via;
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
    let (polls, is_crowded) = (peers.polls, peers.is_crowded());
    let Some(peer) = peers.attached(link.slot) else { return Step::Silent };
    // The keys are those of the process that has the SRQ, in the protection domain of the SRQ.
    let grant = Grant { access: seen.offers(), pd: link.view.pd, qpn };
    let (me, src_qpn, kind) = (domain, qp.num, qp.kind);
    let mut way = Way { path: Xrc(via), peer, link, stats, me, src_qpn, kind, polls, is_crowded };
    if matches!(work.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) {
        return way.send(work, sges);
    }
    match local_error(qp.attr.max_rd_atomic, work) {
        Some(status) => Step::Done(status),
        None => way.one_sided(mrs, &grant, work, sges),
    }
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
