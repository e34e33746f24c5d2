//! One try to carry a request out: which way it goes.

use super::{message, rdma, unconnected, window, xrc};
use crate::objects::mr::Mrs;
use crate::objects::qp::Qp;
use crate::objects::work::{Queued, Step, Work};
use crate::objects::world::World;
use rdma_sys::*;

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
        _ if qp.kind == IBV_QPT_XRC_SEND => xrc::attempt(qp, w, work, sges),
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM if qp.kind == IBV_QPT_UD => {
            unconnected::send_datagram(qp, w, work, sges)
        }
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => unreliable(qp.kind, message::attempt(qp, w, work, sges)),
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
