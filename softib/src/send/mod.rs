//! The initiator: what happens to a send work request.
//!
//! ```text
//!   post ──> attempt ──┬── done: completion (if asked for)
//!                      └── wait ──> queued in the SQ ──> attempted again by progress ──> ...
//! ```
//!
//! A SEND looks at the peer's life, its QP, a posted receive, that receive's length and the ring's room, in this order, and
//! consumes the receive by its own hand: that is the acknowledgement. What can't go on waits at the head of its own
//! SQ and keeps the order there; other QPs of the pair go on. The waits:
//!
//! * `Room`: the ring is full; the peer has been told. Datagrams, too, but not for ever.
//! * `Rnr`: no receive; waits the responder's min_rnr_timer, rnr_retry times (7: for ever), then RNR_RETRY_EXC_ERR.
//! * `Silent`: the peer's QP does not answer; RETRY_EXC_ERR after timeout x (retry_cnt + 1). A dead peer's at once. So does one that
//!   closes while a message is put into its ring (`engine::ending`).

mod datagram;
mod message;
pub mod multicast;
mod queue;
mod unconnected;
mod work;

pub use message::{
    Claimed, PIECE, Rest, SHORT_SGES, Short, confirm, finish_short, notify, outcome, reach, rung,
    send_message, send_short, solicited,
};
pub use queue::{advance, finish_head, tell_drained};
pub use work::{GRH_LEN, MAX_MESSAGE, MAX_SGE, Queued, Remote, Step, UD_MTU, Wait, Work, gather};

use crate::engine::world::World;
use crate::errno::Errno;
use crate::faults::sends as faults;
use crate::objects::mr::Mrs;
use crate::objects::qp::Qp;
use crate::{iwarp, rdma, window};
use rdma_sys::*;

/// Takes a checked request: attempts it now, or queues it behind others.
#[inline]
pub fn submit(qp: &mut Qp, w: &mut World, mut work: Work, sges: &[ibv_sge]) -> Result<(), Errno> {
    if qp.sq_posted.wrapping_sub(qp.sq_retired) >= qp.cap.max_send_wr {
        return Err(Errno::NOMEM);
    }
    qp.sq_posted = qp.sq_posted.wrapping_add(1);
    work.number = qp.sq_posted;
    if !qp.direct || !qp.sq.is_empty() {
        return submit_later(qp, w, work, sges);
    }
    match attempt(qp, w, &mut work, sges) {
        Step::Done(IBV_WC_SUCCESS) => qp.complete_send(w, &work, IBV_WC_SUCCESS),
        Step::Done(status) => fail_send(qp, w, &work, status),
        Step::Refused(error) => return Err(not_posted(qp, error)),
        step => enqueue(qp, w, work, sges, step),
    }
    Ok(())
}

#[cold]
fn not_posted(qp: &mut Qp, error: Errno) -> Errno {
    qp.sq_posted = qp.sq_posted.wrapping_sub(1);
    error
}

#[cold]
fn submit_later(qp: &mut Qp, w: &mut World, work: Work, sges: &[ibv_sge]) -> Result<(), Errno> {
    match qp.state {
        IBV_QPS_RTS | IBV_QPS_SQD => {
            if let Some(status) = iwarp::first_request(qp, w) {
                fail_send(qp, w, &work, status);
                return Ok(());
            }
            let queued = Queued::new(work, sges, Wait::Turn, qp.attr.rnr_retry);
            faults::enqueue(qp, w, queued);
        }
        // Behind the one that has failed.
        IBV_QPS_ERR if qp.ending.is_some() => {
            qp.sq.push_back(Queued::new(work, sges, Wait::Turn, qp.attr.rnr_retry));
        }
        IBV_QPS_ERR | IBV_QPS_SQE => qp.complete_send(w, &work, IBV_WC_WR_FLUSH_ERR),
        _ => {
            qp.sq_posted = qp.sq_posted.wrapping_sub(1);
            return Err(Errno::INVAL);
        }
    }
    Ok(())
}

/// A request that waits, for what `step` says.
#[cold]
pub fn enqueue(qp: &mut Qp, w: &mut World, work: Work, sges: &[ibv_sge], step: Step) {
    let mut queued = Queued::new(work, sges, Wait::Turn, qp.attr.rnr_retry);
    let spent = queue::wait_for(qp, w, &mut queued, step);
    qp.sq.push_back(queued);
    if let Some(status) = spent {
        return finish_head(qp, w, status);
    }
    if !qp.busy {
        qp.busy = true;
        w.busy.push(qp.index);
    }
}

/// An error completion on an SQ: RC and XRC go to ERR, the others to SQE.
#[cold]
pub fn fail_send(qp: &mut Qp, w: &mut World, work: &Work, status: u32) {
    if matches!(qp.kind, IBV_QPT_RC | IBV_QPT_XRC_SEND) {
        qp.begin_end(w, Some((*work, status)));
    } else {
        qp.complete_send(w, work, status);
        qp.set_state(IBV_QPS_SQE, w);
        qp.flush_sends(w);
    }
}

/// One try to carry a request out (or on).
#[inline]
pub fn attempt(qp: &mut Qp, w: &mut World, work: &mut Work, sges: &[ibv_sge]) -> Step {
    if work.flags & IBV_SEND_INLINE == 0 && !readable(&w.mrs, work, sges, qp.pd as u32) {
        return attempt_elsewhere(qp, w, work, sges);
    }
    carry_out(qp, w, work, sges)
}

/// The same for buffers whose memory is not where the request says it is.
#[cold]
fn attempt_elsewhere(qp: &mut Qp, w: &mut World, work: &mut Work, sges: &[ibv_sge]) -> Step {
    match w.mrs.resolve(sges, qp.pd as u32, work.fetches()) {
        Some(real) => carry_out(qp, w, work, &real),
        None => Step::Done(IBV_WC_LOC_PROT_ERR),
    }
}

#[inline]
fn carry_out(qp: &mut Qp, w: &mut World, work: &mut Work, sges: &[ibv_sge]) -> Step {
    match work.opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM if qp.kind == IBV_QPT_UD => {
            unconnected::send_datagram(qp, w, work, sges)
        }
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => unreliable(qp.kind, message::send_message(qp, w, work, sges)),
        IBV_WR_LOCAL_INV | IBV_WR_BIND_MW => window::attempt(qp, w, work),
        IBV_WR_SEND_WITH_INV => window::send_invalidating(qp, w, work, sges),
        _ => unreliable(qp.kind, rdma::attempt(qp, w, work, sges)),
    }
}

/// Whether a queued request may read its buffers.
pub fn is_readable(qp: &Qp, w: &World, queued: &Queued) -> bool {
    let inline = queued.work.flags & IBV_SEND_INLINE != 0;
    inline || readable(&w.mrs, &queued.work, &queued.sges, qp.pd as u32)
}

#[inline]
fn readable(mrs: &Mrs, work: &Work, sges: &[ibv_sge], pd: u32) -> bool {
    sges.iter().all(|sge| mrs.allows(sge, pd, work.fetches()))
}

/// UC does not hear back from its peer: what RC waits for or fails with is a loss there.
#[inline]
fn unreliable(kind: u32, step: Step) -> Step {
    match step {
        Step::Rnr | Step::Silent if kind == IBV_QPT_UC => Step::Done(IBV_WC_SUCCESS),
        Step::Done(status) if kind == IBV_QPT_UC && is_remote(status) => Step::Done(IBV_WC_SUCCESS),
        step => step,
    }
}

fn is_remote(status: u32) -> bool {
    let remote = [IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR];
    remote.contains(&status)
}

const _: () = {
    assert!(IBV_WR_ATOMIC_CMP_AND_SWP == IBV_WR_RDMA_READ + 1);
    assert!(IBV_WR_ATOMIC_FETCH_AND_ADD == IBV_WR_RDMA_READ + 2);
};
