//! Messages between connected queue pairs: consume the peer's receive, put the payload into the ring.

use super::transit::{Claimed, claim, confirm, first_fragment, outcome, reach, solicited};
use crate::datapath::pieces::{PIECE, rung};
use crate::objects::peer::Peer;
use crate::objects::qp::Qp;
use crate::objects::sges::gather;
use crate::objects::work::{Step, Work};
use crate::objects::world::World;
use crate::shm::cell::{Head, flag, op};
use rdma_sys::*;

/// Sends a message as far as there is room for it.
#[inline]
pub fn send_message(qp: &mut Qp, w: &mut World, work: &mut Work, sges: &[ibv_sge]) -> Step {
    let me = (qp.num, w.segment.incarnation);
    let Some(link) = qp.link.as_mut() else { return Step::Silent };
    if work.unconfirmed {
        return outcome(&mut w.peers, link, me, work);
    }
    let peer = match reach(&mut w.peers, link, me) {
        Ok(peer) => peer,
        Err(step) => return step,
    };
    if !peer.ring.has_room(first_fragment(work.len)) {
        return Step::Room;
    }
    let dst = link.dst;
    if work.receive.is_none() {
        match claim(link, peer, work.len) {
            Claimed::Ok(pos) => work.receive = Some(pos),
            Claimed::Empty => return Step::Rnr,
            // It is lost as if it had never come (IBTA 9.9.3, class D).
            Claimed::Wrong { op: op::TOO_LONG, .. } if qp.kind == IBV_QPT_UC && !link.view.rq_shared => {
                link.give_back();
                return Step::Done(IBV_WC_SUCCESS);
            }
            Claimed::Wrong { pos, op, status } => {
                let head = Head { op, dst, src_qpn: qp.num, pos, ..Head::default() };
                let pushed = peer.ring.push(head, |_| ());
                rung(pushed, peer, &mut w.stats.doorbells);
                return Step::Done(status);
            }
        }
    }
    let to = Message { op: op::SEND, dst, src_qpn: qp.num };
    match push_fragments(peer, &mut w.stats.doorbells, to, work, sges) {
        Step::Done(IBV_WC_SUCCESS) => confirm(link, peer, me, work),
        step => step,
    }
}

/// Consumes a receive for an RDMA WRITE with immediate and tells the peer.
pub fn notify(qp: &mut Qp, w: &mut World, work: &mut Work) -> Step {
    let me = (qp.num, w.segment.incarnation);
    let Some(link) = qp.link.as_mut() else { return Step::Silent };
    let Some(peer) = w.peers.attached(link.slot) else { return Step::Silent };
    if !peer.ring.has_room(0) {
        return Step::Room;
    }
    let (pos, op, status) = match claim(link, peer, 0) {
        Claimed::Ok(pos) => (pos, op::WRITE_IMM, IBV_WC_SUCCESS),
        Claimed::Empty => return Step::Rnr,
        Claimed::Wrong { pos, op, status } => (pos, op, status),
    };
    let flags = flag::IMM | solicited(work);
    let (dst, imm) = (link.dst, work.imm);
    // The receiver completes with the number of bytes written; they are not in the ring.
    let head = Head { op, flags, dst, src_qpn: qp.num, len: 4, imm, pos };
    let bytes = work.len.to_ne_bytes();
    // SAFETY: push hands out room for head.len bytes, which is 4.
    let pushed = peer.ring.push(head, |to| unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, 4) });
    rung(pushed, peer, &mut w.stats.doorbells);
    if status == IBV_WC_SUCCESS { confirm(link, peer, me, work) } else { Step::Done(status) }
}

struct Message {
    op: u8,
    dst: u16,
    src_qpn: u32,
}

/// Puts as much of a message into the ring as there is room for.
#[inline]
fn push_fragments(peer: &mut Peer, bells: &mut u64, to: Message, work: &mut Work, sges: &[ibv_sge]) -> Step {
    loop {
        let len = (work.len - work.sent).min(PIECE);
        if work.sent > 0 && !peer.ring.has_room(len as usize) {
            return Step::Room;
        }
        let mut flags = solicited(work);
        if work.sent == 0 {
            flags |= flag::FIRST;
        }
        if work.sent + len == work.len {
            flags |= flag::LAST;
        }
        let mut op = to.op;
        if work.opcode != IBV_WR_SEND {
            let (variant, flag) = variant(work.opcode);
            (op, flags) = (variant, flags | flag);
        }
        let (imm, pos) = (work.imm, work.receive.unwrap_or_default());
        let head = Head { op, flags, dst: to.dst, src_qpn: to.src_qpn, len, imm, pos };
        let skip = work.sent as usize;
        let pushed = peer.ring.push(head, |to| gather(sges, skip, len as usize, to));
        rung(pushed, peer, bells);
        work.sent += len;
        if flags & flag::LAST != 0 {
            return Step::Done(IBV_WC_SUCCESS);
        }
    }
}

/// What sets the cells of SEND's variants apart.
fn variant(opcode: u32) -> (u8, u8) {
    if opcode == IBV_WR_SEND_WITH_INV { (op::SEND_INV, flag::INV) } else { (op::SEND, flag::IMM) }
}
