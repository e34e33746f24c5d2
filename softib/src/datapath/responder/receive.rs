//! Messages: they take a receive of their receiver, fill it, and complete it.

use super::placing::{fill, scatter, tell_limit};
use super::receiver::Receiver;
use crate::objects::mr::Mrs;
use crate::objects::qp::Qp;
use crate::objects::recvq::{Partial, Taken};
use crate::objects::world::World;
use crate::shm::cell::{Envelope, Found, Head, flag};
use rdma_sys::*;

/// The receive at `pos`, and the SRQ's limit event if this is the one that crosses it.
pub fn take<R: Receiver>(to: &mut R, w: &mut World, pos: u32) -> Option<Taken> {
    let taken = to.queue(&mut w.srqs)?.take(pos)?;
    if let Some(key) = to.srq() {
        tell_limit(w, key);
    }
    Some(taken)
}

/// A message of one cell, the usual case: placed from the ring straight into the posted buffers.
#[inline(always)]
pub fn send<R: Receiver>(to: &mut R, w: &mut World, found: &Found) {
    let head = &found.head;
    if head.flags & (flag::FIRST | flag::LAST) != flag::FIRST | flag::LAST {
        return send_part(to, w, found);
    }
    let (srq, pd) = (to.srq(), to.pd());
    let taken = to.queue(&mut w.srqs).and_then(|queue| queue.take_in_place(head.pos));
    let Some((wr_id, sges)) = taken else { return send_displaced(to, w, found) };
    let placed = place(&w.mrs, pd, sges, found);
    if let Some(key) = srq {
        tell_limit(w, key);
    }
    finish(to, w, wr_id, placed, found);
}

/// The same for a receive that a slow sender had claimed before its slot was used again.
#[cold]
fn send_displaced<R: Receiver>(to: &mut R, w: &mut World, found: &Found) {
    let Some(taken) = take(to, w, found.head.pos) else { return to.nonsense(w) };
    let placed = place(&w.mrs, to.pd(), &taken.sges, found);
    finish(to, w, taken.wr_id, placed, found);
}

/// Copies a whole message into its buffers; the number of bytes they hold now.
#[inline]
fn place(mrs: &Mrs, pd: usize, sges: &[ibv_sge], found: &Found) -> Option<u32> {
    scatter(mrs, pd, sges, 0, found).then_some(found.head.len)
}

#[inline(always)]
fn finish<R: Receiver>(to: &mut R, w: &mut World, wr_id: u64, placed: Option<u32>, found: &Found) {
    match placed {
        Some(len) => complete(to, w, (wr_id, IBV_WC_RECV, len), &found.head),
        None => bad_buffers(to, w, wr_id),
    }
}

/// A fragment of a longer message.
fn send_part<R: Receiver>(to: &mut R, w: &mut World, found: &Found) {
    let head = &found.head;
    if head.flags & flag::FIRST != 0 {
        if !to.is_free(w) {
            return to.nonsense(w);
        }
        let Some(taken) = take(to, w, head.pos) else { return to.nonsense(w) };
        to.keep_part(w, Partial { taken, received: 0 });
    }
    let Some(mut part) = to.take_part(w) else { return to.nonsense(w) };
    let fits = u64::from(part.received) + u64::from(head.len) <= part.taken.capacity();
    if !fits || !scatter(&w.mrs, to.pd(), &part.taken.sges, part.received, found) {
        return bad_buffers(to, w, part.taken.wr_id);
    }
    part.received += head.len;
    if head.flags & flag::LAST != 0 {
        complete(to, w, (part.taken.wr_id, IBV_WC_RECV, part.received), head);
    } else {
        to.keep_part(w, part);
    }
}

/// Completes a receive (its wr_id, operation, length) of a connection; the LID and what else a packet's headers say is not known for those
/// (ibv_poll_cq(3): valid for UD).
#[inline(always)]
fn complete<R: Receiver>(to: &R, w: &mut World, wc: (u64, u32, u32), head: &Head) {
    complete_from(to, w, wc, head, Envelope { slid: 0, sl: 0 });
}

/// The same with what the headers say.
#[inline(always)]
pub fn complete_from<R: Receiver>(to: &R, w: &mut World, wc: (u64, u32, u32), head: &Head, from: Envelope) {
    let ((cq, num), solicited) = (to.completes(), head.flags & flag::SOLICITED != 0);
    w.complete_with(cq, num, solicited, |cqe| {
        cqe.retire = None;
        fill(&mut cqe.wc, num, wc, head, from);
    });
}

/// A SEND whose data its initiator has placed: the receive completes with the number of bytes that are there. What that says is not believed where
/// the receive is not one that such data goes into.
pub fn filled<R: Receiver>(to: &mut R, w: &mut World, found: &Found) {
    let Some(taken) = take(to, w, found.head.pos) else { return to.nonsense(w) };
    let len = found.number().filter(|len| !taken.bad && u64::from(*len) <= taken.capacity());
    match len {
        Some(len) if taken.sges.len() == 1 => complete(to, w, (taken.wr_id, IBV_WC_RECV, len), &found.head),
        _ => {
            w.complete_receive_error(to.completes(), taken.wr_id, IBV_WC_LOC_PROT_ERR);
            to.nonsense(w);
        }
    }
}

/// An RDMA WRITE with immediate: the receive completes with the number of bytes that were written.
pub fn write_imm<R: Receiver>(to: &mut R, w: &mut World, found: &Found) {
    let Some(taken) = take(to, w, found.head.pos) else { return to.nonsense(w) };
    let Some(written) = found.number() else {
        w.complete_receive_error(to.completes(), taken.wr_id, IBV_WC_LOC_PROT_ERR);
        return to.nonsense(w);
    };
    complete(to, w, (taken.wr_id, IBV_WC_RECV_RDMA_WITH_IMM, written), &found.head);
}

/// An unreliable message that did not fit: it is dropped, the receive goes back.
pub fn repost(qp: &mut Qp, w: &mut World, pos: u32) {
    w.stats.ud_dropped += u64::from(qp.kind == IBV_QPT_UD);
    let Some(queue) = qp.queue(&mut w.srqs) else { return };
    if let Some(taken) = queue.take(pos) {
        queue.repost(taken);
    }
}

/// A receive that the message did not fit, or whose buffers were invalid: it completes with `status`, and the queue pair ends.
#[cold]
pub fn broken_receive<R: Receiver>(to: &mut R, w: &mut World, pos: u32, status: u32) {
    let Some(taken) = take(to, w, pos) else { return to.nonsense(w) };
    w.complete_receive_error(to.completes(), taken.wr_id, status);
    to.fail_after(w, status);
}

/// A receive whose buffers are not what they were when it was posted.
#[cold]
pub fn bad_buffers<R: Receiver>(to: &mut R, w: &mut World, wr_id: u64) {
    w.complete_receive_error(to.completes(), wr_id, IBV_WC_LOC_PROT_ERR);
    to.fail_after(w, IBV_WC_LOC_PROT_ERR);
}
