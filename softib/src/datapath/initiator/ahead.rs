//! Requests that are under way behind another one of their kind: a queue pair asks for as many READs as it may (max_rd_atomic) before the first is
//! answered, and gives [`GIFTS`] WRITEs.
//!
//! ```text
//!   SQ    READ      READ     READ     READ    SEND
//!         Data      Asked    Asked    Turn    Turn
//!         head      `Qp::ahead` = 2
//! ```
//!
//! The peer answers in order, so an answer is always the head's. The time of one begins when it comes to the head. If the head has to be
//! carried out by the initiator, or fails, the others are recalled ([`Qp::recall`]): each is carried out in its turn, when the peer has left it
//! alone, and an answer that comes all the same is dropped. Of WRITEs the peer places none behind one that it has not placed, up to the next one
//! that was at the head as it was given (`flag::FIRST`).

use super::attempt::is_readable;
use super::mapped::is_mapped;
use super::path::Way;
use super::rdma::{crosses, may_give};
use crate::objects::qp::Qp;
use crate::objects::work::{Queued, Sges, Step, Wait, Work};
use crate::objects::world::World;
use rdma_sys::*;

/// How many WRITEs of a queue pair are given at a time.
const GIFTS: usize = 8;

/// Whether a request of this kind that is posted now may go out behind all that waits, none of which waits for its turn.
#[inline]
pub fn may_follow(qp: &Qp, opcode: u32) -> bool {
    qp.sq.len() == qp.ahead + 1 && leader(qp) == Some(opcode)
}

/// Queues a request that has gone out behind others ([`may_follow`]).
#[inline(never)]
pub fn follow(qp: &mut Qp, work: Work, sges: &[ibv_sge]) {
    qp.sq.push_back(Queued::new(work, sges, Wait::Asked, qp.attr.rnr_retry));
    qp.ahead += 1;
}

/// Sends the requests behind the head, if they are of its kind and it is waited for, as far as the queue pair may.
#[inline]
pub fn ask_more(qp: &mut Qp, w: &mut World) {
    if qp.sq.len() > qp.ahead + 1 {
        ask_all(qp, w);
    }
}

#[inline(never)]
fn ask_all(qp: &mut Qp, w: &mut World) {
    while let Some(opcode) = leader(qp)
        && ask_next(qp, w, opcode)
    {
        qp.ahead += 1;
    }
}

/// The kind of the head, if another one of it may be under way.
#[inline]
fn leader(qp: &Qp) -> Option<u32> {
    let head = qp.sq.front().filter(|head| matches!(head.wait, Wait::Data { .. } | Wait::Asked))?;
    let most = match head.work.opcode {
        IBV_WR_RDMA_READ => qp.attr.max_rd_atomic.into(),
        IBV_WR_RDMA_WRITE => GIFTS,
        _ => return None,
    };
    let is_out = head.work.asked && !head.work.recalled && !head.work.gives_on();
    (qp.short && is_out && qp.ahead + 1 < most).then_some(head.work.opcode)
}

/// Sends the first request that has not gone out. False: something is in its way, or it is of another kind; it waits for its turn.
fn ask_next(qp: &mut Qp, w: &mut World, opcode: u32) -> bool {
    let at = qp.ahead + 1;
    let usual = |queued: &&Queued| queued.wait == Wait::Turn && queued.fate.is_none();
    let Some(queued) = qp.sq.get(at).filter(usual) else { return false };
    let (mut work, Sges::One(sge)) = (queued.work, &queued.sges) else { return false };
    let sges = [*sge];
    if work.opcode != opcode || !may_pass(&work) || w.is_iwarp() || !is_readable(qp, w, queued) {
        return false;
    }
    (work.may_give, work.heard) = (may_give(qp, w, &work), qp.heard);
    work.crosses = crosses(qp, w, &work);
    let World { peers, stats, segment, .. } = w;
    let sent = Way::to_peer(qp, peers, stats, segment.incarnation, &work).is_ok_and(|mut way| {
        let may_ask = way.may_ask(&work) && !is_mapped(way.link, way.peer, &work);
        let step = may_ask.then(|| match work.may_give {
            true => way.give(&mut work, &sges, false),
            false => way.ask(&mut work),
        });
        step == Some(Step::Data)
    });
    if let Some(queued) = qp.sq.get_mut(at).filter(|_| sent) {
        (queued.work, queued.wait) = (work, Wait::Asked);
    }
    sent
}

/// It does not wait for what has been posted before it (IBTA 10.8.3.3: one with the fence indicator does).
fn may_pass(work: &Work) -> bool {
    let is_new = !work.asked && !work.unsent && !work.late && !work.moved;
    is_new && work.len > 0 && work.flags & IBV_SEND_FENCE == 0
}
