//! READs that are under way behind another one: a queue pair asks for as many as it may (max_rd_atomic) before the first is answered.
//!
//! ```text
//!   SQ    READ      READ     READ     READ    SEND
//!         Data      Asked    Asked    Turn    Turn
//!         head      `Qp::ahead` = 2
//! ```
//!
//! Their owner answers in order, so an answer is always the head's. The time of one begins when it comes to the head. If the head has to be
//! fetched, or fails, the others are recalled ([`Qp::recall`]): each is fetched in its turn, when its owner has left it alone, and what is
//! answered all the same is nobody's.

use super::attempt::is_readable;
use super::path::Way;
use crate::objects::qp::Qp;
use crate::objects::work::{Queued, Step, Wait, Work};
use crate::objects::world::World;
use rdma_sys::*;

/// Whether a READ that is posted now may go out behind all that waits, none of which waits for its turn.
#[inline]
pub fn may_follow(qp: &Qp) -> bool {
    qp.sq.len() == qp.ahead + 1 && has_place(qp)
}

/// Queues a READ that has been asked for behind others ([`may_follow`]).
#[inline]
pub fn follow(qp: &mut Qp, work: Work, sges: &[ibv_sge]) {
    qp.sq.push_back(Queued::new(work, sges, Wait::Asked, qp.attr.rnr_retry));
    qp.ahead += 1;
}

/// Asks for the READs behind the head, if that is one and is waited for, as far as the queue pair may.
#[inline]
pub fn ask_more(qp: &mut Qp, w: &mut World) {
    while qp.sq.len() > qp.ahead + 1 && has_place(qp) && ask_next(qp, w) {
        qp.ahead += 1;
    }
}

/// Another READ may be under way.
#[inline]
fn has_place(qp: &Qp) -> bool {
    let leads = |head: &Queued| matches!(head.wait, Wait::Data { .. } | Wait::Asked) && is_out(&head.work);
    qp.short && qp.ahead + 1 < qp.attr.max_rd_atomic.into() && qp.sq.front().is_some_and(leads)
}

/// Its owner has been asked for this READ, and is waited for.
fn is_out(work: &Work) -> bool {
    work.opcode == IBV_WR_RDMA_READ && work.asked && !work.recalled
}

/// Asks for the first READ that has not been asked for. False: something is in its way, or it is none; it waits for its turn.
fn ask_next(qp: &mut Qp, w: &mut World) -> bool {
    let at = qp.ahead + 1;
    let usual =
        |queued: &&Queued| queued.wait == Wait::Turn && queued.fate.is_none() && may_pass(&queued.work);
    let Some(queued) = qp.sq.get(at).filter(usual) else { return false };
    if w.is_iwarp() || !is_readable(qp, w, queued) {
        return false;
    }
    let mut work = queued.work;
    let World { peers, stats, segment, .. } = w;
    let asked = Way::to_peer(qp, peers, stats, segment.incarnation, &work)
        .is_ok_and(|mut way| way.may_ask(&work) && way.ask(&mut work) == Step::Data);
    if let Some(queued) = qp.sq.get_mut(at).filter(|_| asked) {
        (queued.work, queued.wait) = (work, Wait::Asked);
    }
    asked
}

/// A READ that does not wait for what has been posted before it (IBTA 10.8.3.3: one with the fence indicator does).
fn may_pass(work: &Work) -> bool {
    let is_new = !work.asked && !work.unsent && !work.late;
    work.opcode == IBV_WR_RDMA_READ && is_new && work.len > 0 && work.flags & IBV_SEND_FENCE == 0
}
