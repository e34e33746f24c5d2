//! Messages that arrive for a queue pair of ours, connected or not: they take a receive, fill it, and complete it.

use super::placing::{fill, scatter, tell_limit};
use crate::objects::events::Subject;
use crate::objects::mr::Mrs;
use crate::objects::qp::{Inbound, Qp};
use crate::objects::recvq::Taken;
use crate::objects::world::World;
use crate::shm::cell::{Envelope, Found, Head, flag};
use rdma_sys::*;

/// The receive at `pos`, and the SRQ's limit event if this is the one that crosses it.
pub fn take(qp: &mut Qp, w: &mut World, pos: u32) -> Option<Taken> {
    let Some(key) = qp.srq else { return qp.rq.as_mut()?.take(pos) };
    let taken = w.srqs.get_mut(key)?.queue.take(pos)?;
    tell_limit(w, key);
    Some(taken)
}

/// A message of one cell, the usual case: placed from the ring straight into the posted buffers.
#[inline(always)]
pub fn send(qp: &mut Qp, w: &mut World, found: &Found) {
    let head = &found.head;
    if head.flags & (flag::FIRST | flag::LAST) != flag::FIRST | flag::LAST {
        return send_part(qp, w, found);
    }
    let queue = match qp.srq {
        Some(key) => w.srqs.get_mut(key).map(|srq| &mut srq.queue),
        None => qp.rq.as_mut(),
    };
    let Some((wr_id, sges)) = queue.and_then(|queue| queue.take_in_place(head.pos)) else {
        return send_displaced(qp, w, found);
    };
    let placed = place(&w.mrs, qp.pd, sges, found);
    if let Some(key) = qp.srq {
        tell_limit(w, key);
    }
    finish(qp, w, wr_id, placed, found);
}

/// The same for a receive that a slow sender had claimed before its slot was used again.
#[cold]
fn send_displaced(qp: &mut Qp, w: &mut World, found: &Found) {
    let Some(taken) = take(qp, w, found.head.pos) else { return nonsense(qp, w) };
    let placed = place(&w.mrs, qp.pd, &taken.sges, found);
    finish(qp, w, taken.wr_id, placed, found);
}

/// Copies a whole message into its buffers; the number of bytes they hold now.
#[inline]
fn place(mrs: &Mrs, pd: usize, sges: &[ibv_sge], found: &Found) -> Option<u32> {
    scatter(mrs, pd, sges, 0, found).then_some(found.head.len)
}

#[inline(always)]
fn finish(qp: &mut Qp, w: &mut World, wr_id: u64, placed: Option<u32>, found: &Found) {
    match placed {
        Some(len) => complete(qp, w, wr_id, IBV_WC_RECV, len, &found.head),
        None => bad_buffers(qp, w, wr_id),
    }
}

/// A fragment of a longer message; only one can be under way on a connected QP.
fn send_part(qp: &mut Qp, w: &mut World, found: &Found) {
    let head = &found.head;
    if qp.kind == IBV_QPT_UD {
        // A datagram is never in parts. If a receive was taken for this one it goes back.
        return repost(qp, w, head.pos);
    }
    if head.flags & flag::FIRST != 0 {
        if qp.inbound.is_some() {
            return nonsense(qp, w);
        }
        let Some(taken) = take(qp, w, head.pos) else { return nonsense(qp, w) };
        qp.inbound = Some(Inbound { taken, received: 0 });
    }
    let Some(mut inbound) = qp.inbound.take() else { return nonsense(qp, w) };
    let fits = u64::from(inbound.received) + u64::from(head.len) <= inbound.taken.capacity();
    if !fits || !scatter(&w.mrs, qp.pd, &inbound.taken.sges, inbound.received, found) {
        return bad_buffers(qp, w, inbound.taken.wr_id);
    }
    inbound.received += head.len;
    if head.flags & flag::LAST != 0 {
        complete(qp, w, inbound.taken.wr_id, IBV_WC_RECV, inbound.received, head);
    } else {
        qp.inbound = Some(inbound);
    }
}

/// Completes a receive of a connected queue pair; the LID and what else a packet's headers say is not known for those
/// (ibv_poll_cq(3): valid for UD).
#[inline]
fn complete(qp: &mut Qp, w: &mut World, wr_id: u64, opcode: u32, byte_len: u32, head: &Head) {
    complete_with(qp, w, (wr_id, opcode, byte_len), head, Envelope { slid: 0, sl: 0 });
}

/// Completes a receive that a datagram took.
pub fn complete_datagram(qp: &mut Qp, w: &mut World, wr_id: u64, len: u32, head: &Head, from: Envelope) {
    complete_with(qp, w, (wr_id, IBV_WC_RECV, len), head, from);
}

#[inline]
fn complete_with(
    qp: &mut Qp,
    w: &mut World,
    (wr_id, opcode, byte_len): (u64, u32, u32),
    head: &Head,
    from: Envelope,
) {
    let (num, solicited) = (qp.num, head.flags & flag::SOLICITED != 0);
    w.complete_with(qp.recv_cq, num, solicited, |cqe| {
        cqe.retire = None;
        fill(&mut cqe.wc, num, (wr_id, opcode, byte_len), head, from);
    });
}

/// An RDMA WRITE with immediate: the receive completes with the number of bytes that were written.
pub fn write_imm(qp: &mut Qp, w: &mut World, found: &Found) {
    let Some(taken) = take(qp, w, found.head.pos) else { return nonsense(qp, w) };
    if found.head.len != 4 {
        return nonsense(qp, w);
    }
    // SAFETY: the payload has head.len bytes, which is 4; no alignment is assumed.
    let written = unsafe { found.payload.cast::<u32>().read_unaligned() };
    complete(qp, w, taken.wr_id, IBV_WC_RECV_RDMA_WITH_IMM, written, &found.head);
}

/// An unreliable message that did not fit: it is dropped, the receive goes back.
pub fn repost(qp: &mut Qp, w: &mut World, pos: u32) {
    w.stats.ud_dropped += u64::from(qp.kind == IBV_QPT_UD);
    let queue = match qp.srq {
        Some(srq) => w.srqs.get_mut(srq).map(|srq| &mut srq.queue),
        None => qp.rq.as_mut(),
    };
    let Some(queue) = queue else { return };
    if let Some(taken) = queue.take(pos) {
        queue.repost(taken);
    }
}

/// A receive that the message did not fit, or whose buffers were invalid: it completes with `status`, and the queue pair ends.
pub fn broken_receive(qp: &mut Qp, w: &mut World, pos: u32, status: u32) {
    let Some(taken) = take(qp, w, pos) else { return nonsense(qp, w) };
    qp.complete_receive_error(w, taken.wr_id, status);
    qp.fail(w);
}

#[cold]
pub fn bad_buffers(qp: &mut Qp, w: &mut World, wr_id: u64) {
    qp.complete_receive_error(w, wr_id, IBV_WC_LOC_PROT_ERR);
    qp.fail(w);
}

/// The peer says what can't be: its QP or ours is out of step. Ours ends; the peer will hear. A
/// datagram may come from any process: it is ignored.
#[cold]
pub fn nonsense(qp: &mut Qp, w: &mut World) {
    if qp.kind == IBV_QPT_UD {
        w.stats.stray += 1;
        return;
    }
    log::warn!("qp {:#x}: a message from qp {:#x} makes no sense here", qp.num, qp.attr.dest_qp_num);
    w.async_event(qp.context, IBV_EVENT_QP_FATAL, Subject::Qp(qp.index));
    qp.fail(w);
}
