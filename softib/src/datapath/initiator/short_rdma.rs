//! The short way of READs, atomics, and WRITEs that are given, of one buffer, for a peer that polls as we do: the request goes straight into
//! the ring, and its answer, if that is in one piece, from the ring into the buffer and to the poller. One whose memory is mapped here, or that
//! goes by our own hand, is over as it is posted.
//!
//! The conditions are looked at before anything is done; if one does not hold the general way is taken, and finds out why.

use super::ahead::{ask_more, follow, may_follow};
use super::mapped::{is_mapped, moved_mapped};
use super::path::{Rc, Way};
use super::queue::{advance, enqueue, soon};
use super::rdma::{crosses, may_give};
use crate::datapath::ends::code_of;
use crate::datapath::pieces::{PIECE, is_whole};
use crate::fabric::MAX_MESSAGE;
use crate::objects::expected::Expected;
use crate::objects::grant::Grant;
use crate::objects::mr::Mrs;
use crate::objects::peer::Peer;
use crate::objects::qp::{Qp, Qps};
use crate::objects::work::{Queued, Remote, Sges, Step, WORD, Wait, Work};
use crate::objects::world::World;
use crate::shm::cell::{Found, Head, flag, op};
use crate::shm::copy::copy;
use crate::shm::layout::QPS;
use rdma_sys::*;
use std::cell::LazyCell;
use std::mem::MaybeUninit;

/// Whether a request of this opcode may go this way.
pub fn asks(opcode: u32) -> bool {
    matches!(
        opcode,
        IBV_WR_RDMA_READ | IBV_WR_RDMA_WRITE | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
    )
}

/// Posts a request that its peer answers, or that is carried out at once. False: nothing has happened yet.
#[inline(never)]
pub fn ask_short(qp: &mut Qp, w: &mut World, wr: &ibv_send_wr, sges: &[ibv_sge]) -> bool {
    let Some(mut work) = short_request(qp, w, wr, sges) else { return false };
    w.in_burst = true;
    let began = w.began.take();
    (work.may_give, work.crosses) = (may_give(qp, w, &work), crosses(qp, w, &work));
    let (leads, dest) = (qp.sq.is_empty(), qp.attr.dest_qp_num);
    let World { peers, stats, segment, mrs, .. } = w;
    let Ok(mut way) = Way::to_peer(qp, peers, stats, segment.incarnation, &work) else { return false };
    let grant = Grant { access: way.link.view.access, pd: way.link.view.pd, qpn: dest };
    if leads {
        work.since = began.or_else(|| way.is_timed(&work).then(timing::now));
    }
    if leads && moves_at_once(&mut way, mrs, &grant, &work, sges) {
        stats.rdma_direct += 1;
        qp.sq_posted = work.number;
        qp.complete_send(w, &work, IBV_WC_SUCCESS);
        return true;
    }
    if !leads && is_mapped(way.link, way.peer, &work) || !way.may_ask(&work) {
        return false;
    }
    let step = match (work.remote, work.may_give) {
        (Remote::Word { .. }, _) => way.request(&mut work, sges),
        (_, true) => way.give(&mut work, sges, leads),
        (_, false) => way.ask(&mut work),
    };
    if matches!(step, Step::Room) {
        return false;
    }
    qp.sq_posted = work.number;
    if leads {
        enqueue(qp, w, work, sges, step);
    } else {
        follow(qp, work, sges);
    }
    expect_answer(qp, w);
    true
}

/// Moves the data at once: its memory is mapped here, or it goes by our own hand. False: nothing has happened.
#[inline(always)]
pub fn moves_at_once(way: &mut Way<'_, Rc>, own: &Mrs, grant: &Grant, work: &Work, sges: &[ibv_sge]) -> bool {
    moved_mapped((way.link, way.peer), grant, work, sges).is_some()
        || way.is_by_hand(grant, work) && way.move_by_hand(own, grant, work, sges).is_ok()
}

/// The request, if nothing is in its way at this end.
#[inline(always)]
fn short_request(qp: &Qp, w: &World, wr: &ibv_send_wr, sges: &[ibv_sge]) -> Option<Work> {
    let [sge] = sges else { return None };
    let may_go = qp.short && qp.attr.max_rd_atomic > 0 && (qp.sq.is_empty() || follows(qp, wr));
    let usual = wr.send_flags & IBV_SEND_INLINE == 0 && !w.is_iwarp();
    let has_room = qp.sq_posted.wrapping_sub(qp.sq_retired) < qp.cap.max_send_wr;
    let (writes, len) = (wr.opcode == IBV_WR_RDMA_WRITE, sge.length);
    let takes = (1..=MAX_MESSAGE).contains(&len) && w.mrs.allows(sge, qp.pd as u32, !writes);
    let remote = remote_of(wr);
    let fits = len == WORD || !matches!(remote, Remote::Word { .. });
    (may_go && usual && has_room && takes && fits).then(|| Work {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        remote,
        len,
        signalled: qp.sig_all || wr.send_flags & IBV_SEND_SIGNALED != 0,
        number: qp.sq_posted.wrapping_add(1),
        heard: qp.heard,
        in_burst: w.in_burst,
        ..Default::default()
    })
}

/// Whether it may go out behind others that have gone out.
#[inline(never)]
fn follows(qp: &Qp, wr: &ibv_send_wr) -> bool {
    wr.send_flags & IBV_SEND_FENCE == 0 && may_follow(qp, wr.opcode)
}

/// What the request is for.
#[inline(always)]
fn remote_of(wr: &ibv_send_wr) -> Remote {
    if matches!(wr.opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD) {
        // SAFETY: the opcode says which member of the union the program has filled.
        let word = unsafe { wr.wr.atomic };
        let (addr, rkey) = (word.remote_addr, word.rkey);
        return Remote::Word { addr, rkey, first: word.compare_add, swap: word.swap };
    }
    // SAFETY: the opcode says which member of the union the program has filled.
    let rdma = unsafe { wr.wr.rdma };
    Remote::Memory { addr: rdma.remote_addr, rkey: rdma.rkey }
}

/// Ends the request at the head of a send queue with its answer, from process `incarnation`: its completion is the poller's, if that polls queue
/// `cq` for it, or goes to its own queue. How many the poller has, and whether the next answer may have come, too; None: nothing has
/// happened yet.
#[inline(always)]
pub fn take_answer(
    qps: &mut Qps,
    w: &mut World,
    (cq, incarnation): (usize, u64),
    found: &Found,
    to: &mut MaybeUninit<ibv_wc>,
) -> Option<(usize, bool)> {
    let head = &found.head;
    let qp = qps.get_mut(head.dst as usize % QPS)?;
    if !is_plain(head) || !qp.is_usually_from(head, incarnation) {
        return None;
    }
    let queued = qp.sq.front()?;
    let buffer = buffer_of(queued, head, &w.mrs, qp.pd as u32)?;
    // SAFETY: the buffer lies in a valid MR of this PD with local write and has as many bytes as the payload (checked); the program vouches
    // for registered memory. The payload is len readable bytes.
    unsafe { copy(found.payload, buffer as *mut u8, head.len as usize) };
    if let Some(link) = qp.link.as_mut() {
        link.was_in_time();
        if (queued.work.may_give || queued.work.timed.is_some())
            && let Some(peer) = w.peers.attached(link.slot)
        {
            settle(peer, &queued.work);
        }
    }
    let Work { wr_id, opcode, len: byte_len, .. } = queued.work;
    let wc = ibv_wc { wr_id, opcode: code_of(opcode), byte_len, qp_num: qp.num, ..Default::default() };
    qp.pop_head();
    let is_here = qp.send_cq == cq;
    if is_here {
        qp.sq_retired = head.pos;
        to.write(wc);
    } else {
        qp.complete_wc(w, wc, head.pos);
    }
    let next_out = qp.sq.front_mut().filter(|next| next.wait == Wait::Asked);
    let is_next_out = next_out.is_some();
    if let Some(next) = next_out {
        if next.work.timed.is_some() {
            next.work.begin(timing::now());
        }
        ask_more(qp, w);
        expect_answer(qp, w);
    } else {
        go_on(qp, w);
    }
    Some((usize::from(is_here), is_next_out))
}

/// The peer has answered a request that it was given, or that is timed.
#[inline(never)]
fn settle(peer: &mut Peer, work: &Work) {
    if work.may_give {
        peer.ring.give_is_over(is_whole(work.len));
    }
    peer.note_answer(work);
}

/// The request at the head of a send queue is over: the next one goes out, if there is one.
#[inline(always)]
fn go_on(qp: &mut Qp, w: &mut World) {
    qp.busy = !qp.sq.is_empty() && advance(qp, w, &LazyCell::new(timing::now)).is_some();
    w.expected = Expected::default();
    if qp.busy {
        return expect_answer(qp, w);
    }
    w.busy.retain(|busy| *busy != qp.index);
    if w.busy.is_empty() {
        w.looked = None;
    }
}

/// If only the answer to the request at the head of this send queue is waited for, and comes in one piece, polls do without the clock for a while.
#[inline]
fn expect_answer(qp: &Qp, w: &mut World) {
    let is_short = |queued: &&Queued| queued.wait.is_for_answer() && queued.work.len <= PIECE;
    if let Some(queued) = qp.sq.front().filter(is_short)
        && w.busy.len() == 1
    {
        w.expected = Expected::since(queued.wait.until().map(|until| until - soon(&queued.work)));
    }
}

/// Nothing was wrong, and all that comes back is here.
fn is_plain(head: &Head) -> bool {
    (head.op, head.flags & !flag::BULK, head.imm) == (op::RESPONSE, flag::LAST, IBV_WC_SUCCESS)
}

/// Where the data of this answer goes, if that is what the request waits for, and its completion is wanted.
fn buffer_of(queued: &Queued, head: &Head, mrs: &Mrs, pd: u32) -> Option<u64> {
    let (work, Sges::One(sge)) = (&queued.work, &queued.sges) else { return None };
    let awaited = queued.awaits(head.pos) && work.signalled;
    let comes = match work.opcode {
        IBV_WR_RDMA_WRITE if work.sent == work.len => 0,
        _ if work.fetches() && work.sent == 0 => work.len,
        _ => return None,
    };
    (awaited && comes == head.len && mrs.allows(sge, pd, comes != 0)).then_some(sge.addr)
}
