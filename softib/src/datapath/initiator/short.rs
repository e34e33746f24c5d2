//! The short way of a SEND: one cell, straight into the ring, its completion straight into the queue.

use super::filling::{fill as fill_posted, is_long};
use super::queue::enqueue;
use super::transit::outcome;
use crate::datapath::pieces::{WHOLE, WHOLE_PLACED, rung, whole};
use crate::objects::mr::Mrs;
use crate::objects::qp::Qp;
use crate::objects::sges::{gather_all, gather_past, gather_short, length};
use crate::objects::work::{Step, Work};
use crate::objects::world::World;
use crate::shm::cell::{Head, INLINE_MAX, flag, op};
use crate::shm::cells::LONG;
use crate::shm::ring::SendRing;
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
    if !qp.short {
        return Short::Other;
    }
    let Some(len) = short_len::<INLINE>(qp, w, wr, sges) else { return Short::Other };
    let Some(link) = qp.link.as_mut() else { return Short::Other };
    let Some(peer) = w.peers.at_hand(link) else { return Short::Other };
    if !INLINE {
        peer.ring.prepare(len);
    }
    if !link.is_current() || !INLINE && !fits_piece(&peer.ring, len) || !peer.ring.fits(len as usize) {
        return Short::Other;
    }
    // What is in one piece and fits a cell is shorter most often.
    if !(INLINE && sges.len() == 1) && len >= LONG && !(is_long(len) && link.filling.goes_on()) {
        peer.ring.expect_payload(len);
    }
    // Of a shared queue's receives none is read ahead, and of a queue with one sender none can be claimed.
    let mut pos = link.consume_fitting(len);
    if pos.is_none() {
        pos = link.claim_fitting(peer.ring.index(), len);
    }
    let Some(pos) = pos else { return Short::Other };
    let flags = short_flags(wr);
    let head = Head { op: op::SEND, flags, dst: link.dst, src_qpn: qp.num, len, imm: 0, pos };
    let watched = match sges {
        _ if !INLINE && is_long(len) && fill_posted(link, peer, (pos, len), sges) => {
            w.stats.filled += 1;
            let bytes = len.to_ne_bytes();
            // SAFETY: four bytes, which fit a cell.
            unsafe { peer.ring.send_inline(Head { op: op::FILLED, len: 4, ..head }, bytes.as_ptr()) }
        }
        // SAFETY: the caller of post_send vouches for its buffer until the completion (checked against its MR unless inline); its length
        // has been compared.
        [one] if INLINE => unsafe { peer.ring.send_inline(head, one.addr as *const u8) },
        _ => {
            let (place, bulk) = if INLINE { peer.ring.place_inline() } else { peer.ring.place(len) };
            if INLINE {
                gather_short(sges, place)
            } else {
                fill(peer.ring.begin(len), len, sges, place)
            }
            peer.ring.send_filled(Head { flags: flags | bulk, ..head })
        }
    };
    if w.in_burst {
        peer.ring.expect_more();
    }
    w.in_burst = true;
    let open = link.is_current();
    let nothing_due = watched && open && !link.wants_to_read() && peer.ring.fits(len as usize);
    sent_short(qp, wr, len, (watched, open, nothing_due))
}

/// A message of so many bytes would go into the peer's ring now: nothing waits before it, and there is room.
pub fn goes_at_once(qp: &mut Qp, w: &mut World, len: u32) -> bool {
    if !qp.sq.is_empty() {
        return false;
    }
    let Some(link) = qp.link.as_mut() else { return true };
    w.peers.at_hand(link).is_none_or(|peer| peer.ring.has_room(len as usize))
}

/// Bytes of a SEND of at most one cell, or of one piece of the bulk, if nothing is in its way at this end.
#[inline(always)]
pub fn short_len<const INLINE: bool>(qp: &Qp, w: &World, wr: &ibv_send_wr, sges: &[ibv_sge]) -> Option<u32> {
    let usual = wr.opcode == IBV_WR_SEND && qp.sq.is_empty();
    if !usual || qp.sq_posted.wrapping_sub(qp.sq_retired) >= qp.cap.max_send_wr {
        return None;
    }
    let len = length(sges);
    if len > if INLINE { INLINE_MAX as u64 } else { WHOLE_PLACED.into() } {
        return None;
    }
    may_send(qp, &w.mrs, wr, sges, len as u32).then_some(len as u32)
}

/// A message into this ring goes in one piece.
#[inline(always)]
pub fn fits_piece(ring: &SendRing, len: u32) -> bool {
    len <= WHOLE || len <= whole(ring)
}

/// Copies a message of one piece into a ring, past the caches or not.
#[inline(always)]
pub fn fill(past: bool, len: u32, sges: &[ibv_sge], to: *mut u8) {
    match past {
        true => gather_past(sges, 0, len as usize, to),
        false => gather_all(sges, to),
    }
}

/// Flags of the only cell of a request.
#[inline(always)]
pub fn short_flags(wr: &ibv_send_wr) -> u8 {
    let solicited = if wr.send_flags & IBV_SEND_SOLICITED != 0 { flag::SOLICITED } else { 0 };
    flag::FIRST | flag::LAST | solicited
}

/// A short message is in the ring. Its receiver watches, and its queue was open as it had been seen, or not; nothing is due, as far as the
/// receiver and the ring are concerned.
#[inline(always)]
pub fn sent_short(
    qp: &mut Qp,
    wr: &ibv_send_wr,
    len: u32,
    (watched, open, nothing_due): (bool, bool, bool),
) -> Short {
    qp.sq_posted = qp.sq_posted.wrapping_add(1);
    let signalled = qp.sig_all || wr.send_flags & IBV_SEND_SIGNALED != 0;
    if nothing_due && !signalled {
        return Short::Sent;
    }
    Short::Unfinished(Rest { wr_id: wr.wr_id, len, watched, signalled, open })
}

/// Does what is left to do when a short message is in the ring.
#[inline(never)]
pub fn finish_short(qp: &mut Qp, w: &mut World, rest: Rest) {
    if let Some(link) = qp.last_link() {
        link.read_ahead();
        if let Some(peer) = w.peers.attached(link.slot) {
            if !rest.watched {
                rung(peer.ring.announce(false), peer, &mut w.stats.doorbells);
            }
            if !peer.ring.fits(rest.len as usize) {
                peer.ring.look_ahead(rest.len as usize);
            }
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
    let (me, srqn) = match &qp.xrc {
        Some(to) => ((to.domain.slot as u32, to.domain.incarnation), to.last_number()),
        None => ((qp.num, w.segment.incarnation), 0),
    };
    let (opcode, number) = (IBV_WR_SEND, qp.sq_posted);
    let Some(link) = qp.last_link() else { return };
    let Rest { wr_id, len, signalled, .. } = rest;
    let in_ring = w.peers.attached(link.slot).map_or(0, |peer| peer.ring.sent());
    let unconfirmed = true;
    let work =
        Work { wr_id, opcode, len, signalled, number, srqn, unconfirmed, in_ring, ..Default::default() };
    match outcome(&mut w.peers, link, me, &work) {
        Step::Done(IBV_WC_SUCCESS) => qp.complete_send(w, &work, IBV_WC_SUCCESS),
        step => enqueue(qp, w, work, &[], step),
    }
}

/// The completion of the request that was posted last.
fn complete_short(qp: &Qp, w: &mut World, wr_id: u64, byte_len: u32) {
    complete(qp, w, wr_id, (IBV_WC_SEND, byte_len));
}

/// The same of an RDMA WRITE.
#[inline(never)]
pub fn complete_write(qp: &Qp, w: &mut World, wr_id: u64, byte_len: u32) {
    complete(qp, w, wr_id, (IBV_WC_RDMA_WRITE, byte_len));
}

#[inline]
fn complete(qp: &Qp, w: &mut World, wr_id: u64, (opcode, byte_len): (u32, u32)) {
    w.complete_with(qp.send_cq, qp.num, false, |cqe| {
        cqe.retire = Some((qp.index as u16, qp.generation, qp.sq_posted));
        cqe.wc = ibv_wc { wr_id, opcode, byte_len, qp_num: qp.num, ..Default::default() };
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
