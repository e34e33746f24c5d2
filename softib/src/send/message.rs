//! Messages between connected queue pairs: consume the peer's receive, put the payload into the ring.

use super::Step;
use super::work::{Work, gather, gather_all};
use crate::engine::world::World;
use crate::objects::mr::Mrs;
use crate::objects::peer::{Absent, Link, Peer, Peers};
use crate::objects::qp::Qp;
use crate::shm::cell::{Head, INLINE_MAX, flag, op};
use crate::shm::ring::{FRAGMENT_MAX, Pushed};
use crate::shm::rq::{self, Claim, Place};
use crate::xrc;
use rdma_sys::*;

/// Most pieces of a short message.
pub const SHORT_SGES: u32 = 4;

/// What came of a request that looked short and usual.
#[derive(Debug, Clone, Copy)]
pub enum Short {
    /// It is on its way, and there is nothing left to do.
    Sent,
    /// It is on its way, and [`finish_short`] is to be called.
    Unfinished(Rest),
    /// Something is not as it should be, nothing has happened yet, and the general way finds out.
    Other,
}

/// What is left to do when a short message is in the ring.
#[derive(Debug, Clone, Copy)]
pub struct Rest {
    wr_id: u64,
    len: u32,
    watched: bool,
    signalled: bool,
    /// The receiver's queue pair was open, as it had been seen, when the message was in the ring.
    open: bool,
}

/// A SEND of one cell on a connected RC queue pair with nothing queued, of a payload in `sges`: the request that latency is made of. It
/// goes straight to the ring; its completion is written when it is on its way. `INLINE`: the payload is to fit the cell.
///
/// Nothing is called on this way, so that all of it stays in registers.
#[inline(always)]
pub fn send_short<const INLINE: bool>(
    qp: &mut Qp,
    w: &mut World,
    wr: &ibv_send_wr,
    sges: &[ibv_sge],
) -> Short {
    let usual = wr.opcode == IBV_WR_SEND && qp.short && qp.sq.is_empty();
    if !usual || qp.sq_posted.wrapping_sub(qp.sq_retired) >= qp.cap.max_send_wr {
        return Short::Other;
    }
    let len = sges.iter().fold(0, |sum: u32, sge| sum.saturating_add(sge.length));
    if len > if INLINE { INLINE_MAX as u32 } else { PIECE } || !may_send(qp, &w.mrs, wr, sges, len) {
        return Short::Other;
    }
    let Some(link) = qp.link.as_mut() else { return Short::Other };
    let Some(peer) = w.peers.at_hand(link) else { return Short::Other };
    if !link.is_current() || !peer.ring.fits(len as usize) {
        return Short::Other;
    }
    // Of a shared queue's receives none is read ahead.
    let Some(pos) = link.consume_fitting(len) else { return Short::Other };
    let solicited = if wr.send_flags & IBV_SEND_SOLICITED != 0 { flag::SOLICITED } else { 0 };
    let flags = flag::FIRST | flag::LAST | solicited;
    let head = Head { op: op::SEND, flags, dst: link.dst, src_qpn: qp.num, len, imm: 0, pos };
    let watched = match sges {
        // SAFETY: the caller of post_send vouches for its buffer until the completion (checked against its MR unless inline); its length
        // has been compared.
        [one] if INLINE => unsafe { peer.ring.send_inline(head, one.addr as *const u8) },
        _ => peer.ring.send_any(head, |to| gather_all(sges, to)),
    };
    let open = link.is_current();
    qp.sq_posted = qp.sq_posted.wrapping_add(1);
    let signalled = qp.sig_all || wr.send_flags & IBV_SEND_SIGNALED != 0;
    if watched && open && !signalled && !link.is_used_up() {
        return Short::Sent;
    }
    Short::Unfinished(Rest { wr_id: wr.wr_id, len, watched, signalled, open })
}

/// Does what is left to do when a short message is in the ring.
#[inline(never)]
pub fn finish_short(qp: &mut Qp, w: &mut World, rest: Rest) {
    if let Some(link) = qp.link.as_mut() {
        link.read_ahead();
        if !rest.watched
            && let Some(peer) = w.peers.attached(link.slot)
        {
            rung(peer.ring.announce(), peer, &mut w.stats.doorbells);
        }
    }
    if !rest.open {
        return confirm_short(qp, w, rest);
    }
    if rest.signalled {
        complete_short(qp, w, rest.wr_id, rest.len);
    }
}

/// Looks again at a receiver that has changed while a short message was on its way to it.
#[cold]
fn confirm_short(qp: &mut Qp, w: &mut World, rest: Rest) {
    let me = (qp.num, w.segment.incarnation);
    let Some(link) = qp.link.as_mut() else { return };
    let Rest { wr_id, len, signalled, .. } = rest;
    let (opcode, number) = (IBV_WR_SEND, qp.sq_posted);
    let in_ring = w.peers.attached(link.slot).map_or(0, |peer| peer.ring.sent());
    let work =
        Work { wr_id, opcode, len, signalled, number, unconfirmed: true, in_ring, ..Default::default() };
    match outcome(&mut w.peers, link, me, &work) {
        Step::Done(IBV_WC_SUCCESS) => qp.complete_send(w, &work, IBV_WC_SUCCESS),
        step => super::enqueue(qp, w, work, &[], step),
    }
}

/// The completion of the request that was posted last.
fn complete_short(qp: &Qp, w: &mut World, wr_id: u64, byte_len: u32) {
    w.complete_with(qp.send_cq, qp.num, false, |cqe| {
        cqe.retire = Some((qp.index as u16, qp.generation, qp.sq_posted));
        cqe.wc = ibv_wc { wr_id, opcode: IBV_WC_SEND, byte_len, qp_num: qp.num, ..Default::default() };
    });
}

/// Whether the payload may be read where the request says it is: inline, or in memory of the queue pair's protection domain.
#[inline(always)]
fn may_send(qp: &Qp, mrs: &Mrs, wr: &ibv_send_wr, sges: &[ibv_sge], len: u32) -> bool {
    if wr.send_flags & IBV_SEND_INLINE != 0 {
        return len <= qp.cap.max_inline_data;
    }
    mrs.allow(sges, qp.pd as u32, false)
}

/// Sends a message as far as there is room for it.
#[inline]
pub fn send_message(qp: &mut Qp, w: &mut World, work: &mut Work, sges: &[ibv_sge]) -> Step {
    let me = (qp.num, w.segment.incarnation);
    let Some(link) = qp.link.as_mut() else { return xrc::send::attempt(qp, w, work, sges) };
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

/// What becomes of a request all of which is in the ring: it has been acknowledged if the receiver
/// is still open, for the process that closes it looks into the ring after that (`engine::ending`).
#[inline]
pub fn confirm(link: &mut Link, peer: &Peer, me: (u32, u64), work: &mut Work) -> Step {
    if link.is_open(peer, me) {
        return Step::Done(IBV_WC_SUCCESS);
    }
    (work.unconfirmed, work.in_ring) = (true, peer.ring.sent());
    if was_taken_in(link, peer, work) { Step::Done(IBV_WC_SUCCESS) } else { Step::Silent }
}

/// What has become of a request that was in the ring when the receiver was not open any more.
#[cold]
pub fn outcome(peers: &mut Peers, link: &mut Link, me: (u32, u64), work: &Work) -> Step {
    if peers.attached(link.slot).is_some_and(|peer| was_taken_in(link, peer, work)) {
        return Step::Done(IBV_WC_SUCCESS);
    }
    match reach(peers, link, me) {
        Ok(_) => Step::Done(IBV_WC_SUCCESS),
        Err(step) => step,
    }
}

/// Whether the receiver had found all of a request when it ended. Its word for that outlives its process.
#[cold]
fn was_taken_in(link: &Link, peer: &Peer, work: &Work) -> bool {
    let taken = link.taken_at_end(peer);
    taken.is_some_and(|taken| taken.wrapping_sub(work.in_ring) <= i32::MAX as u32)
}

/// The process behind a connected queue pair, if it lives and its queue pair takes messages; else what becomes of the request.
#[inline]
pub fn reach<'a>(peers: &'a mut Peers, link: &mut Link, me: (u32, u64)) -> Result<&'a mut Peer, Step> {
    match peers.connected(link) {
        Ok(peer) if link.is_open(peer, me) => Ok(peer),
        Ok(_) if link.is_short => Err(Step::Done(IBV_WC_LOC_QP_OP_ERR)),
        Ok(_) | Err(Absent::Never) => Err(Step::Silent),
        Err(Absent::Gone) => Err(Step::Done(IBV_WC_RETRY_EXC_ERR)),
    }
}

/// What came of consuming a receive.
pub enum Claimed {
    Ok(u32),
    Empty,
    /// The receive is consumed, and both sides hear about it.
    Wrong {
        pos: u32,
        op: u8,
        status: u32,
    },
}

impl Claimed {
    /// The receive at `pos` has been consumed for a message of `len` bytes; `room` is its length word.
    #[inline]
    pub fn judge(pos: u32, room: u32, len: u32) -> Claimed {
        if room & rq::BAD != 0 {
            return Claimed::Wrong { pos, op: op::BAD_RECEIVE, status: IBV_WC_REM_OP_ERR };
        }
        if room < len {
            return Claimed::Wrong { pos, op: op::TOO_LONG, status: IBV_WC_REM_INV_REQ_ERR };
        }
        Claimed::Ok(pos)
    }

    /// Consumes a receive of a shared queue, through the ring of this number.
    #[inline]
    pub fn shared(place: Option<&Place>, ring: usize, len: u32) -> Claimed {
        match place.map(|place| place.claim(ring)) {
            Some(Claim::Got { pos, len: room }) => Claimed::judge(pos, room, len),
            _ => Claimed::Empty,
        }
    }
}

/// Consumes a receive of the connected QP that has room for `len` bytes.
#[inline]
fn claim(link: &mut Link, peer: &Peer, len: u32) -> Claimed {
    if link.view.rq_shared {
        return Claimed::shared(link.place.as_ref(), peer.ring.index(), len);
    }
    match link.consume() {
        Some((pos, room)) => Claimed::judge(pos, room, len),
        None => Claimed::Empty,
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

/// Messages up to two of these go in one piece or two; pieces overlap the two sides' copies.
pub const PIECE: u32 = 16 << 10;

#[inline]
fn first_fragment(len: u32) -> usize {
    len.min(PIECE) as usize
}

/// The cell's flag for a request that asks for a solicited event.
pub fn solicited(work: &Work) -> u8 {
    if work.flags & IBV_SEND_SOLICITED != 0 { flag::SOLICITED } else { 0 }
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

/// Wakes the peer's device thread if the push asked for it.
#[inline]
pub fn rung(pushed: Pushed, peer: &Peer, bells: &mut u64) {
    if pushed == Pushed::RingBell {
        *bells += 1;
        crate::shm::futex::ring_bell(&peer.map);
    }
}

const _: () = assert!(PIECE as usize <= FRAGMENT_MAX && INLINE_MAX >= 24);
