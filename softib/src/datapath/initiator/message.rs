//! Messages: consume the peer's receive, put the payload into the ring.

use super::filling::{fill, is_long};
use super::path::{Path, Way};
use super::transit::{Claimed, solicited};
use crate::datapath::pieces::{next_piece, whole};
use crate::objects::qp::Qp;
use crate::objects::sges::{gather, gather_past};
use crate::objects::work::{Step, Work};
use crate::objects::world::World;
use crate::shm::cell::{Head, flag, op};
use rdma_sys::*;

/// Sends a message to the connected queue pair as far as there is room for it.
#[inline]
pub fn attempt(qp: &mut Qp, w: &mut World, work: &mut Work, sges: &[ibv_sge]) -> Step {
    let World { peers, stats, segment, .. } = w;
    match Way::to_peer(qp, peers, stats, segment.incarnation, work) {
        Ok(mut way) => way.send(work, sges),
        Err(step) => step,
    }
}

impl<P: Path> Way<'_, P> {
    /// Sends a message as far as there is room for it.
    #[inline]
    pub fn send(&mut self, work: &mut Work, sges: &[ibv_sge]) -> Step {
        let whole = whole(&self.peer.ring);
        if !self.has_room(next_piece(work.len, work.sent, whole)) {
            return Step::Room;
        }
        if work.receive.is_none() {
            match self.claim(work.len) {
                Claimed::Ok(pos) => work.receive = Some(pos),
                Claimed::Empty => return Step::Rnr,
                // It is lost as if it had never come (IBTA 9.9.3, class D).
                Claimed::Wrong { op: op::TOO_LONG, .. }
                    if self.kind == IBV_QPT_UC && !self.link.view.rq_shared =>
                {
                    self.link.give_back();
                    return Step::Done(IBV_WC_SUCCESS);
                }
                Claimed::Wrong { pos, op, status } => {
                    self.push(Head { pos, ..self.head(op) }, |_| ());
                    return Step::Done(status);
                }
            }
        }
        if work.sent == 0 && is_long(work.len) && self.fill(work, sges) {
            return self.confirm(work);
        }
        self.push_fragments(work, sges, whole)
    }

    /// Places a message in the receive that it has consumed, by our own hand, and says so. False: it goes through the ring.
    fn fill(&mut self, work: &Work, sges: &[ibv_sge]) -> bool {
        let at = (work.receive.unwrap_or_default(), work.len);
        // Who takes the window of a SEND with invalidation away does so as the message comes.
        if P::SHARED || work.opcode == IBV_WR_SEND_WITH_INV || !fill(self.link, self.peer, at, sges) {
            return false;
        }
        let imm = if work.opcode == IBV_WR_SEND_WITH_IMM { flag::IMM } else { 0 };
        self.tell(
            Head { flags: imm | solicited(work), imm: work.imm, pos: at.0, ..self.head(op::FILLED) },
            work.len,
        );
        self.stats.filled += 1;
        true
    }

    /// Puts a cell into the ring that says how many bytes are where they belong.
    fn tell(&mut self, head: Head, len: u32) {
        let bytes = len.to_ne_bytes();
        // SAFETY: push hands out room for head.len bytes, which is 4.
        self.push(Head { len: 4, ..head }, |to| unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, 4)
        });
    }

    /// Puts as much of a message into the ring as there is room for; up to `whole` bytes go in one piece.
    #[inline]
    fn push_fragments(&mut self, work: &mut Work, sges: &[ibv_sge], whole: u32) -> Step {
        loop {
            let len = next_piece(work.len, work.sent, whole);
            if work.sent > 0 && !self.has_room(len) {
                return Step::Room;
            }
            let mut flags = solicited(work);
            if work.sent == 0 {
                flags |= flag::FIRST;
            }
            if work.sent + len == work.len {
                flags |= flag::LAST;
            }
            let mut op = op::SEND;
            if work.opcode != IBV_WR_SEND {
                let (variant, flag) = variant(work.opcode);
                (op, flags) = (variant, flags | flag);
            }
            let (imm, pos) = (work.imm, work.receive.unwrap_or_default());
            let head = Head { flags, len, imm, pos, ..self.head(op) };
            let skip = work.sent as usize;
            let past = self.peer.ring.begin(len);
            self.push(head, |to| match past {
                true => gather_past(sges, skip, len as usize, to),
                false => gather(sges, skip, len as usize, to),
            });
            work.sent += len;
            if flags & flag::LAST != 0 {
                return self.confirm(work);
            }
        }
    }

    /// Consumes a receive for an RDMA WRITE with immediate and tells the peer.
    pub fn notify(&mut self, work: &mut Work) -> Step {
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
        self.tell(Head { flags, imm: work.imm, pos, ..self.head(op) }, work.len);
        if status == IBV_WC_SUCCESS { self.confirm(work) } else { Step::Done(status) }
    }
}

/// What sets the cells of SEND's variants apart.
fn variant(opcode: u32) -> (u8, u8) {
    if opcode == IBV_WR_SEND_WITH_INV { (op::SEND_INV, flag::INV) } else { (op::SEND, flag::IMM) }
}
