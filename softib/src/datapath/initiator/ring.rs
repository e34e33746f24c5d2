//! Requests for memory that go through a ring: atomics, and all of them for peers whose memory we can't reach. What the target makes of
//! them is `responder::rdma`, and what becomes of its answer `answer`.

use crate::datapath::pieces::{PIECE, rung};
use crate::objects::peer::Peer;
use crate::objects::reply::Target;
use crate::objects::sges::gather;
use crate::objects::work::{Remote, Step, WORD, Work};
use crate::objects::world::Stats;
use crate::shm::cell::{self, Head, Via, flag, op};
use rdma_sys::*;

/// Where a request goes, and the queue pair that it comes from.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    pub dst: u16,
    pub src_qpn: u32,
    /// XRC: the receive queue pair that it goes through.
    pub via: Option<Via>,
}

impl Message {
    /// The operation of a request's cell, and its fixed part.
    fn fixed(&self, op: u8, request: &[u8]) -> (u8, [u8; cell::FIXED]) {
        match self.via {
            Some(via) => (op | op::XRC, via.emit(request)),
            None => (op, Via::default().emit(request)),
        }
    }
}

/// Sends a request, or as much of it as there is room for (initiator).
pub fn request(peer: &mut Peer, stats: &mut Stats, to: Message, work: &mut Work, sges: &[ibv_sge]) -> Step {
    if work.asked {
        return Step::Answer;
    }
    if let Remote::Word { addr, rkey, first, swap } = work.remote {
        let target = Target { addr, rkey, len: WORD };
        let first = if work.opcode == IBV_WR_ATOMIC_WRITE { word_of(sges) } else { first };
        return request_atomic(peer, stats, to, work, &target, [first, swap]);
    }
    let reading = work.opcode == IBV_WR_RDMA_READ;
    let (addr, rkey) = work.remote.memory();
    loop {
        let len = if reading { 0 } else { (work.len - work.sent).min(PIECE) };
        if !peer.ring.has_room(PIECE as usize) {
            return Step::Room;
        }
        let last = reading || work.sent + len == work.len;
        let whole = if reading { work.len } else { len };
        let target = Target { addr: addr.wrapping_add(work.sent.into()), rkey, len: whole };
        let (op, fixed) = to.fixed(if reading { op::READ } else { op::WRITE }, &target.emit());
        let head = Head {
            op,
            flags: if last { flag::LAST } else { 0 },
            dst: to.dst,
            src_qpn: to.src_qpn,
            len,
            pos: work.number,
            ..Head::default()
        };
        let skip = work.sent as usize;
        let pushed = peer.ring.push_with(head, &fixed, |to| gather(sges, skip, len as usize, to));
        rung(pushed, peer, &mut stats.doorbells);
        work.sent += len;
        if last {
            (work.asked, work.sent) = (true, 0);
            stats.rdma_ring += 1;
            return Step::Answer;
        }
    }
}

/// The payload of an atomic WRITE.
fn word_of(sges: &[ibv_sge]) -> u64 {
    let mut bytes = [0u8; WORD as usize];
    gather(sges, 0, bytes.len(), bytes.as_mut_ptr());
    u64::from_ne_bytes(bytes)
}

/// Sends an atomic: all of it is in the cell.
fn request_atomic(
    peer: &mut Peer,
    stats: &mut Stats,
    to: Message,
    work: &mut Work,
    target: &Target,
    operands: [u64; 2],
) -> Step {
    if !peer.ring.has_room(0) {
        return Step::Room;
    }
    let mut parts = [0; 32];
    parts[..16].copy_from_slice(&target.emit());
    parts[16..24].copy_from_slice(&operands[0].to_ne_bytes());
    parts[24..].copy_from_slice(&operands[1].to_ne_bytes());
    let op = match work.opcode {
        IBV_WR_ATOMIC_FETCH_AND_ADD => op::FETCH_ADD,
        IBV_WR_ATOMIC_WRITE => op::ATOMIC_WRITE,
        _ => op::CMP_SWAP,
    };
    let (op, fixed) = to.fixed(op, &parts);
    let head =
        Head { op, flags: flag::LAST, dst: to.dst, src_qpn: to.src_qpn, pos: work.number, ..Head::default() };
    let pushed = peer.ring.push_with(head, &fixed, |_| ());
    rung(pushed, peer, &mut stats.doorbells);
    work.asked = true;
    stats.rdma_ring += 1;
    Step::Answer
}
