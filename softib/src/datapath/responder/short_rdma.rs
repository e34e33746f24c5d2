//! The short way of requests for memory whose answer is in one piece: it goes into the ring at once, with no list in between. It is the counterpart
//! of `initiator::ask_short`.

use super::placing::From;
use super::rdma::{carry_out, check_atomic, grant_of, granted, place_gift};
use crate::datapath::pieces::{AHEAD, PIECE, rung};
use crate::objects::grant::Grant;
use crate::objects::mr::Mrs;
use crate::objects::qp::Qps;
use crate::objects::reply::Target;
use crate::objects::work::WORD;
use crate::objects::world::World;
use crate::shm::cell::{Found, Head, flag, op};
use crate::shm::copy::copy_out;
use crate::shm::layout::QPS;
use crate::shm::map::Map;
use crate::shm::ring::{self, Pushed, SendRing};
use rdma_sys::*;

/// Answers a request. False: something is not as it usually is, nothing has happened yet, and the general way (`responder::cell`) finds out.
#[inline(always)]
pub fn answer_short(qps: &mut Qps, w: &mut World, from: From, found: &Found) -> bool {
    let Some(qp) = qps.get_mut(found.head.dst as usize % QPS) else { return false };
    if !qp.is_usually_from(&found.head, from.incarnation) {
        return false;
    }
    let World { mrs, peers, segment, stats, .. } = w;
    let (grant, src_qpn, takes_gifts) = (grant_of(qp), qp.num, !qp.refuses_gifts);
    let Some(link) = qp.link.as_mut() else { return false };
    let Some(peer) = peers.at_hand(link) else { return false };
    if !link.is_current() || !peer.ring.fits(0) {
        return false;
    }
    let (dst, pos, imm) = (link.dst, found.head.pos, IBV_WC_SUCCESS);
    let head = Head { op: op::RESPONSE, flags: flag::LAST, dst, src_qpn, len: 0, imm, pos };
    let mut way = Way { grant, mrs, map: &segment.map, ring: &mut peer.ring, head };
    let answered = match found.head.op {
        op::ASK => way.send(found),
        op::GIVE if takes_gifts => way.place(found),
        op::FETCH_ADD | op::CMP_SWAP => way.operate(found),
        _ => None,
    };
    let Some(pushed) = answered else { return false };
    rung(pushed, peer, &mut stats.doorbells);
    qp.heard = qp.heard.wrapping_add(1);
    true
}

/// From a request to its answer: what the queue pair grants, of which memory, and our tables; the ring that the answer goes through, which has
/// room for a cell, and what is said of it.
struct Way<'a> {
    grant: Grant,
    mrs: &'a Mrs,
    map: &'a Map,
    ring: &'a mut SendRing,
    head: Head,
}

impl Way<'_> {
    /// Sends what an ASK names.
    #[inline(always)]
    fn send(&mut self, found: &Found) -> Option<Pushed> {
        let target = Target::parse(found);
        let place = granted(&self.grant, self.mrs, &target, IBV_ACCESS_REMOTE_READ).ok()?;
        if !(1..=PIECE).contains(&target.len) || !self.ring.has_room_within(target.len as usize, AHEAD) {
            return None;
        }
        let answer = Head { len: target.len, ..self.head };
        // SAFETY: the range lies in a valid MR with remote read (checked); push hands out room for len bytes.
        let fill = |to: *mut u8| unsafe { copy_out(place as *const u8, to, target.len as usize) };
        ring::while_asked(self.map, found.ring, found.head.imm, || self.ring.push(answer, fill))
    }

    /// Places what a GIVE brings, if it is all of it.
    #[inline(always)]
    fn place(&mut self, found: &Found) -> Option<Pushed> {
        if found.head.flags & flag::LAST == 0 || found.head.len != Target::parse(found).len {
            return None;
        }
        place_gift(&self.grant, self.mrs, self.map, found)?;
        Some(self.ring.push(self.head, |_| ()))
    }

    /// Carries an atomic out.
    #[inline(always)]
    fn operate(&mut self, found: &Found) -> Option<Pushed> {
        let place = check_atomic(&self.grant, self.mrs, found).ok()?;
        let before = carry_out(place, found).unwrap_or_default();
        // SAFETY: push hands out room for the word; no alignment is assumed.
        let fill = |to: *mut u8| unsafe { to.cast::<u64>().write_unaligned(before) };
        Some(self.ring.push(Head { len: WORD, ..self.head }, fill))
    }
}
