//! The target: what happens to a cell that arrives.
//!
//! A message is believed when its QP exists, has the generation the sender saw, takes messages, and (RC, UC) is
//! connected to that very sender. Everything else is a stray: dropped, counted, and what it consumed from a
//! shared queue is posted again.

mod datagram;
mod short;

pub use short::take_short;

use crate::engine::world::World;
use crate::objects::events::Subject;
use crate::objects::mr::Mrs;
use crate::objects::qp::{Inbound, Qp, Qps};
use crate::objects::qp_state::is_receiving;
use crate::objects::recvq::Taken;
use crate::shm::cell::{Envelope, Found, Head, flag, op};
use crate::shm::layout::{QP_BITS, QPS};
use crate::{rdma_ring, window, xrc};
use rdma_sys::*;

/// The process a cell came from.
#[derive(Debug, Clone, Copy)]
pub struct From {
    pub incarnation: u64,
}

/// Handles one cell.
#[inline(always)]
pub fn cell(qps: &mut Qps, w: &mut World, from: From, found: &Found) {
    let head = &found.head;
    let qp = qps.get_mut(head.dst as usize % QPS).filter(|qp| wanted(qp, head, from));
    let Some(qp) = qp else { return stray(qps, w, from, found) };
    if qp.state == IBV_QPS_RTR && !qp.established && qp.kind != IBV_QPT_UD {
        establish(qp, w);
    }
    match head.op {
        op::SEND => send(qp, w, found),
        op::DATAGRAM => datagram::arrived(qp, w, found),
        _ => rare(qp, w, found),
    }
}

#[inline]
fn wanted(qp: &Qp, head: &Head, from: From) -> bool {
    let generation = qp.generation as u16 & (u16::MAX >> QP_BITS) == head.dst >> QP_BITS;
    let connected = match qp.kind {
        IBV_QPT_UD => matches!(head.op, op::DATAGRAM | op::TOO_LONG),
        _ => {
            qp.attr.dest_qp_num == head.src_qpn
                && qp.link.as_ref().is_some_and(|link| link.incarnation == from.incarnation)
        }
    };
    generation && connected && (is_receiving(qp.state) || qp.takes_in(head))
}

#[cold]
fn establish(qp: &mut Qp, w: &mut World) {
    qp.established = true;
    w.async_event(qp.context, IBV_EVENT_COMM_EST, Subject::Qp(qp.index));
}

/// A message for no connected queue pair: it is XRC's, or it is dropped. A receive that it took
/// from an SRQ is not lost then: it is posted again, as if it had not been taken. (It is not
/// flushed if the QP is in error: LAST_WQE_REACHED has promised that no more completions follow.)
#[cold]
fn stray(qps: &mut Qps, w: &mut World, from: From, found: &Found) {
    let head = &found.head;
    if head.op & op::XRC != 0 {
        return xrc::target::cell(qps, w, from, found);
    }
    if head.op == op::RESPONSE && xrc::send::answered(qps, w, from, found) {
        return;
    }
    w.stats.stray += 1;
    if !consumed_a_receive(head) {
        return;
    }
    let index = head.dst as usize % QPS;
    let Some(key) = qps.shared_queue(index) else { return };
    let Some(taken) = w.srqs.get_mut(key).and_then(|srq| srq.queue.take(head.pos)) else { return };
    w.srqs[key].queue.repost(taken);
}

/// Whether this cell is the one that says which receive its message took.
fn consumed_a_receive(head: &Head) -> bool {
    match head.op {
        op::SEND | op::SEND_INV => head.flags & flag::FIRST != 0,
        op::DATAGRAM | op::WRITE_IMM | op::TOO_LONG | op::BAD_RECEIVE => true,
        _ => false,
    }
}

#[cold]
fn rare(qp: &mut Qp, w: &mut World, found: &Found) {
    let head = &found.head;
    match head.op {
        op::WRITE_IMM => write_imm(qp, w, found),
        op::TOO_LONG if matches!(qp.kind, IBV_QPT_UD | IBV_QPT_UC) => repost(qp, w, head.pos),
        op::TOO_LONG => broken_receive(qp, w, head.pos, IBV_WC_LOC_LEN_ERR),
        op::BAD_RECEIVE => broken_receive(qp, w, head.pos, IBV_WC_LOC_PROT_ERR),
        op::WRITE | op::READ | op::FETCH_ADD | op::CMP_SWAP | op::ATOMIC_WRITE
            if !rdma_ring::accepts(qp, w) => {}
        op::WRITE => rdma_ring::write_arrived(qp, w, found),
        op::READ => rdma_ring::read_arrived(qp, w, found),
        op::RESPONSE => rdma_ring::response_arrived(qp, w, found),
        op::FETCH_ADD | op::CMP_SWAP | op::ATOMIC_WRITE => rdma_ring::atomic_arrived(qp, w, found),
        op::REFUSED => qp.refuse(w, head.imm),
        op::SEND_INV => window::send_arrived(qp, w, found),
        _ => w.stats.stray += 1,
    }
}

/// The receive at `pos`, and the SRQ's limit event if this is the one that crosses it.
fn take(qp: &mut Qp, w: &mut World, pos: u32) -> Option<Taken> {
    let Some(key) = qp.srq else { return qp.rq.as_mut()?.take(pos) };
    let taken = w.srqs.get_mut(key)?.queue.take(pos)?;
    tell_limit(w, key);
    Some(taken)
}

/// Tells the program, once, that an SRQ has fallen below its limit.
#[inline]
pub fn tell_limit(w: &mut World, key: usize) {
    let Some(srq) = w.srqs.get_mut(key) else { return };
    if srq.queue.outstanding < srq.limit {
        srq.limit = 0;
        let context = srq.context;
        w.async_event(context, IBV_EVENT_SRQ_LIMIT_REACHED, Subject::Srq(key));
    }
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

/// Copies a cell's payload into a receive's buffers from `offset` on. False: they are not what they were when posted.
#[inline(always)]
pub fn scatter(mrs: &Mrs, pd: usize, sges: &[ibv_sge], offset: u32, found: &Found) -> bool {
    let [one] = sges else { return scatter_many(mrs, pd, sges, offset, found) };
    let len = found.head.len;
    let fits = u64::from(offset) + u64::from(len) <= u64::from(one.length);
    if !fits || !mrs.allows(one, pd as u32, true) {
        return false;
    }
    let to = (one.addr + u64::from(offset)) as *mut u8;
    // SAFETY: inside the posted buffer (checked), which lies in a valid MR of this PD with local write (checked); the
    // program vouches for registered memory. The payload is len readable bytes.
    unsafe { crate::shm::copy::copy(found.payload, to, len as usize) };
    true
}

fn scatter_many(mrs: &Mrs, pd: usize, sges: &[ibv_sge], offset: u32, found: &Found) -> bool {
    if !sges.iter().all(|sge| mrs.allows(sge, pd as u32, true)) {
        return false;
    }
    spread(sges, offset as usize, found) == found.head.len as usize
}

/// Copies a cell's payload into a checked scatter list, `skip` bytes into it; returns how much of it fitted.
pub fn spread(sges: &[ibv_sge], mut skip: usize, found: &Found) -> usize {
    let (mut done, len) = (0, found.head.len as usize);
    for sge in sges {
        let length = sge.length as usize;
        let here = length.saturating_sub(skip).min(len - done);
        if here > 0 {
            let to = (sge.addr as usize + skip) as *mut u8;
            // SAFETY: skip + here <= sge.length, inside a valid MR with local write (checked by the caller); done + here <= len.
            unsafe { std::ptr::copy_nonoverlapping(found.payload.add(done), to, here) };
        }
        skip = skip.saturating_sub(length);
        done += here;
    }
    done
}

/// Completes a receive of a connected queue pair; the LID and what else a packet's headers say is not known for those
/// (ibv_poll_cq(3): valid for UD).
#[inline]
fn complete(qp: &mut Qp, w: &mut World, wr_id: u64, opcode: u32, byte_len: u32, head: &Head) {
    complete_with(qp, w, (wr_id, opcode, byte_len), head, Envelope { slid: 0, sl: 0 });
}

/// Completes a receive that a datagram took.
fn complete_datagram(qp: &mut Qp, w: &mut World, wr_id: u64, len: u32, head: &Head, from: Envelope) {
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

/// Writes the completion of a receive on queue pair `num`.
#[inline]
pub fn fill(
    wc: &mut ibv_wc,
    num: u32,
    (wr_id, opcode, byte_len): (u64, u32, u32),
    head: &Head,
    from: Envelope,
) {
    let imm = head.flags & (flag::IMM | flag::INV) != 0;
    (wc.wr_id, wc.status, wc.opcode, wc.vendor_err, wc.byte_len) =
        (wr_id, IBV_WC_SUCCESS, opcode, 0, byte_len);
    wc.imm = ibv_wc_imm { imm_data: if imm { head.imm } else { 0 } };
    (wc.qp_num, wc.src_qp) = (num, head.src_qpn);
    wc.wc_flags = wc_flags(head.flags);
    (wc.pkey_index, wc.slid, wc.sl, wc.dlid_path_bits) = (0, from.slid, from.sl, 0);
}

/// A cell's flags as a completion's: each is a few bits further down.
#[inline]
fn wc_flags(flags: u8) -> u32 {
    u32::from(flags >> 3) & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV) | u32::from(flags >> 5) & IBV_WC_GRH
}

const _: () = {
    assert!(flag::IMM as u32 >> 3 == IBV_WC_WITH_IMM && flag::INV as u32 >> 3 == IBV_WC_WITH_INV);
    assert!(flag::GRH as u32 >> 5 == IBV_WC_GRH);
};

fn write_imm(qp: &mut Qp, w: &mut World, found: &Found) {
    let Some(taken) = take(qp, w, found.head.pos) else { return nonsense(qp, w) };
    if found.head.len != 4 {
        return nonsense(qp, w);
    }
    // SAFETY: the payload has head.len bytes, which is 4; no alignment is assumed.
    let written = unsafe { found.payload.cast::<u32>().read_unaligned() };
    complete(qp, w, taken.wr_id, IBV_WC_RECV_RDMA_WITH_IMM, written, &found.head);
}

/// An unreliable message that did not fit: it is dropped, the receive goes back.
fn repost(qp: &mut Qp, w: &mut World, pos: u32) {
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
fn bad_buffers(qp: &mut Qp, w: &mut World, wr_id: u64) {
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
