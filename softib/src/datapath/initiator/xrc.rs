//! The initiator over XRC: from a send queue pair, through a receive queue pair of a domain, to a shared receive queue of any process of
//! that domain (`responder::xrc` has the picture).

use super::direct::{direct, is_answered_with_data, needed, probe};
use super::rdma::Answerer;
use super::ring;
use super::transit::{Claimed, confirm, solicited};
use crate::datapath::pieces::{PIECE, rung};
use crate::objects::grant::Grant;
use crate::objects::peer::{Link, Peer};
use crate::objects::qp::{Qp, number};
use crate::objects::sges::gather;
use crate::objects::work::{Remote, Step, WORD, Work};
use crate::objects::world::World;
use crate::objects::xrc_link::{SendLink, Sight};
use crate::shm::cell::{Head, INLINE_MAX, Via, destination, flag, op};
use crate::shm::layout::{QP_BITS, QPS};
use crate::shm::qptable;
use crate::shm::shortage::is_shortage;
use rdma_sys::*;

/// Where a request goes: the peer process, its SRQ as we see it, and what every message carries.
struct Target<'a> {
    peer: &'a mut Peer,
    link: &'a mut Link,
    via: Via,
    /// Slot and incarnation of the domain, whose the SRQ is.
    domain: (u32, u64),
    src_qpn: u32,
    bells: &'a mut u64,
}

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
    let Some(peer) = peers.attached(link.slot) else { return Step::Silent };
    if matches!(work.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) {
        let mut target = Target { peer, link, via, domain, src_qpn: qp.num, bells: &mut stats.doorbells };
        return target.send(work, sges);
    }
    if matches!(work.remote, Remote::Word { .. }) && work.len != WORD {
        return Step::Done(IBV_WC_LOC_LEN_ERR);
    }
    if is_answered_with_data(work) && qp.attr.max_rd_atomic == 0 {
        return Step::Done(IBV_WC_LOC_QP_OP_ERR);
    }
    // The keys are those of the process that has the SRQ, in the protection domain of the SRQ.
    let grant = Grant { access: seen.offers(), pd: link.view.pd, qpn };
    let mut target = Target { peer, link, via, domain, src_qpn: qp.num, bells: &mut stats.doorbells };
    if !work.begun() && !grant.offers(needed(work)) {
        return target.refused(IBV_WC_REM_INV_REQ_ERR);
    }
    if !work.moved && work.len > 0 {
        if matches!(work.remote, Remote::Word { .. }) || !probe(target.peer) {
            let dst = destination(target.link.index, target.link.view.generation);
            let to = ring::Message { dst, src_qpn: qp.num, via: Some(via) };
            return ring::request(peer, stats, to, work, sges);
        }
        match direct(target.peer, mrs, &grant, work, sges) {
            Ok(()) => (work.moved, stats.rdma_direct) = (true, stats.rdma_direct + 1),
            Err(IBV_WC_REM_ACCESS_ERR) => return target.refused(IBV_WC_REM_ACCESS_ERR),
            Err(status) => return Step::Done(status),
        }
    }
    if work.opcode == IBV_WR_RDMA_WRITE_WITH_IMM { target.notify(work) } else { Step::Done(IBV_WC_SUCCESS) }
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

impl Target<'_> {
    fn head(&self, op: u8) -> Head {
        let dst = destination(self.link.index, self.link.view.generation);
        Head { op: op | op::XRC, dst, src_qpn: self.src_qpn, ..Head::default() }
    }

    fn push(&mut self, head: Head, fill: impl FnOnce(*mut u8)) {
        let pushed = self.peer.ring.push_with(head, &self.via.emit(&[]), fill);
        rung(pushed, self.peer, self.bells);
    }

    /// Every cell has a fixed part, so all payload is in the bulk.
    fn has_room(&mut self, len: u32) -> bool {
        self.peer.ring.has_room((len as usize).max(INLINE_MAX + 1))
    }

    /// The target refuses a request, as its tables say: it hears of that, for the receive queue pair ends as well.
    #[cold]
    fn refused(&mut self, status: u32) -> Step {
        if !self.has_room(0) {
            return Step::Room;
        }
        self.push(Head { imm: status, ..self.head(op::REFUSED) }, |_| ());
        Step::Done(status)
    }

    fn claim(&mut self, len: u32) -> Claimed {
        Claimed::shared(self.link.place.as_ref(), self.peer.ring.index(), len)
    }

    fn send(&mut self, work: &mut Work, sges: &[ibv_sge]) -> Step {
        if !self.has_room(work.len.min(PIECE)) {
            return Step::Room;
        }
        if work.receive.is_none() {
            match self.claim(work.len) {
                Claimed::Ok(pos) => work.receive = Some(pos),
                Claimed::Empty => return Step::Rnr,
                Claimed::Wrong { pos, op, status } => {
                    self.push(Head { pos, ..self.head(op) }, |_| ());
                    return Step::Done(status);
                }
            }
        }
        self.push_fragments(work, sges)
    }

    /// Puts as much of a message into the ring as there is room for.
    fn push_fragments(&mut self, work: &mut Work, sges: &[ibv_sge]) -> Step {
        let imm = if work.opcode == IBV_WR_SEND_WITH_IMM { flag::IMM } else { 0 };
        loop {
            let len = (work.len - work.sent).min(PIECE);
            if work.sent > 0 && !self.has_room(len) {
                return Step::Room;
            }
            let first = if work.sent == 0 { flag::FIRST } else { 0 };
            let last = if work.sent + len == work.len { flag::LAST } else { 0 };
            let flags = solicited(work) | imm | first | last;
            let pos = work.receive.unwrap_or_default();
            let head = Head { flags, len, imm: work.imm, pos, ..self.head(op::SEND) };
            let skip = work.sent as usize;
            self.push(head, |to| gather(sges, skip, len as usize, to));
            work.sent += len;
            if last != 0 {
                return confirm(self.link, self.peer, self.domain, work);
            }
        }
    }

    /// Consumes a receive for an RDMA WRITE with immediate.
    fn notify(&mut self, work: &mut Work) -> Step {
        if !self.has_room(0) {
            return Step::Room;
        }
        let (pos, op, status) = match self.claim(0) {
            Claimed::Ok(pos) => (pos, op::WRITE_IMM, IBV_WC_SUCCESS),
            Claimed::Empty => return Step::Rnr,
            Claimed::Wrong { pos, op, status } => (pos, op, status),
        };
        let flags = flag::IMM | solicited(work);
        // The receiver completes with the number of bytes written; they are not in the ring.
        let head = Head { flags, len: 4, imm: work.imm, pos, ..self.head(op) };
        let bytes = work.len.to_ne_bytes();
        // SAFETY: push hands out room for head.len bytes, which is 4.
        self.push(head, |to| unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, 4) });
        if status == IBV_WC_SUCCESS {
            confirm(self.link, self.peer, self.domain, work)
        } else {
            Step::Done(status)
        }
    }
}
