//! One-sided operations through the rings: atomics, READs for a peer that polls as we do, and all of them for peers that can't reach our
//! memory.
//!
//! ```text
//!   WRITE   fragments {address, key} + data  ───>  target copies, checks each fragment
//!           <─── RESPONSE {status}
//!   READ    {address, key, length}           ───>  target checks
//!           <─── RESPONSE {status} + data, in fragments
//!   ASK     as READ, by one that can fetch it   ───>  a response without data says that it has to
//!   GIVE    as WRITE, by one that can place it  ───>  a response of the same kind says that it has to
//!   ATOMIC  {address, key, operands}         ───>  target checks, and does it
//!           <─── RESPONSE {status} + the value before
//! ```
//!
//! The target's poll, or its device thread, does the work. Answers that find no room in the ring wait in `World::replies`.
//! The request stays in its SQ until the answer is there, and answers come in order, so the order on the QP is kept.

use super::events;
use crate::datapath::pieces::{AHEAD, PIECE, ahead_of_answer, rung};
use crate::extras::{mappings, paging};
use crate::objects::arrival::Arrival;
use crate::objects::grant::Grant;
use crate::objects::moves::Copied;
use crate::objects::mr::Mrs;
use crate::objects::peer::{Link, Peer};
use crate::objects::peers::Peers;
use crate::objects::qp::{Qp, Qps};
use crate::objects::reply::{Answer, Asked, Gift, Reply, Target};
use crate::objects::work::{WORD, may_cross};
use crate::objects::world::World;
use crate::shm::cell::{Found, Head, NOT_SENT, flag, op};
use crate::shm::copy;
use crate::shm::map::Map;
use crate::shm::ring::{self, Pushed};
use crate::shm::segment::Segment;
use rdma_sys::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// The operands of an atomic.
fn operands(found: &Found) -> [u64; 2] {
    // SAFETY: the fixed part of a cell has more than 32 readable bytes; no alignment is assumed.
    unsafe { found.fixed.add(16).cast::<[u64; 2]>().read_unaligned() }
}

/// Answers that a queue pair may owe: its peer has up to 16 requests under way (max_rd_atomic), and, when it does without the answers to those,
/// another one. More is a flood (IBTA 9.7.4.1: too many requests).
const OWED: usize = 32;

/// Whether a QP has not been asked for more than it may.
pub fn accepts(qp: &mut Qp, w: &mut World) -> bool {
    let owed = |reply: &&Reply| matches!(reply.asked, Asked::Qp { index, .. } if index == qp.index);
    let fine = w.replies.iter().filter(owed).count() < OWED;
    if !fine {
        qp.refuse(w, IBV_WC_REM_INV_REQ_ERR);
    }
    fine
}

/// Who answers a request.
enum Responder<'a> {
    Qp(&'a mut Qp),
    /// A queue pair of a domain, for an SRQ of ours.
    Shared(&'a Arrival),
}

impl Responder<'_> {
    fn grant(&self) -> Grant {
        match self {
            Responder::Qp(qp) => grant_of(qp),
            Responder::Shared(to) => to.grant(),
        }
    }

    fn answer(&self, w: &mut World, number: u32, value: Option<u64>) {
        let answer = Answer { number, status: IBV_WC_SUCCESS, value, ..Answer::default() };
        w.replies.push_back(Reply { asked: self.asked(), answer });
    }

    /// Answers a READ with data.
    fn send(&self, w: &mut World, found: &Found, read: Target) {
        let (number, status, streams) = (found.head.pos, IBV_WC_SUCCESS, streams(&found.head));
        let answer = Answer { number, status, read: Some(read), streams, ..Answer::default() };
        w.replies.push_back(Reply { asked: self.asked(), answer });
    }

    /// Answers an ASK with data, or says that none comes.
    fn offer(&self, w: &mut World, found: &Found, read: Option<Target>) {
        let status = if read.is_some() { IBV_WC_SUCCESS } else { NOT_SENT };
        let (number, ask) = (found.head.pos, Some((found.head.imm, found.ring)));
        let answer = Answer { number, status, read, ask, streams: streams(&found.head), ..Answer::default() };
        w.replies.push_back(Reply { asked: self.asked(), answer });
    }

    /// Answers that a request is refused; a reliable queue pair ends with that.
    fn refuse(&mut self, w: &mut World, number: u32, status: u32) {
        let answer = Answer { number, status, ..Answer::default() };
        w.replies.push_back(Reply { asked: self.asked(), answer });
        match self {
            Responder::Qp(qp) => qp.refuse(w, status),
            Responder::Shared(to) => events::refuse(w, to, status),
        }
    }

    fn asked(&self) -> Asked {
        match self {
            Responder::Qp(qp) => Asked::Qp { index: qp.index, generation: qp.generation },
            Responder::Shared(to) => {
                let back = Box::new(to.back());
                Asked::Shared { to: Box::new((*to).clone()), back }
            }
        }
    }
}

/// Whether the data that a READ or an ASK wants is written past the caches.
fn streams(asks: &Head) -> bool {
    asks.flags & flag::PAST != 0
}

pub(super) fn grant_of(qp: &Qp) -> Grant {
    Grant { access: qp.offers(), pd: qp.pd as u32, qpn: qp.num }
}

/// Where a target is that a request needs `need` on. Err: why the request is refused.
pub(super) fn granted(grant: &Grant, mrs: &Mrs, target: &Target, need: u32) -> Result<u64, u32> {
    if !grant.offers(need) {
        return Err(IBV_WC_REM_INV_REQ_ERR);
    }
    permits(grant, mrs, target, need).ok_or(IBV_WC_REM_ACCESS_ERR)
}

/// Where the target is in our memory, if the peer may do this.
#[inline(always)] // what it finds stays in registers
fn permits(grant: &Grant, mrs: &Mrs, target: &Target, need: u32) -> Option<u64> {
    let exposed = mrs.exposed(target.rkey)?;
    let len = target.len.into();
    let write = need != IBV_ACCESS_REMOTE_READ;
    let place = grant.permits(&exposed, need, target.addr, len)?;
    if !mappings::ours_are_as_registered(&exposed.region, place, len) {
        return None;
    }
    let paged = exposed.region.access & IBV_ACCESS_ON_DEMAND != 0;
    (!paged || paging::populate(place, len, write).is_ok()).then_some(place)
}

/// A fragment of an RDMA WRITE (target). The rest of one that an unreliable QP refused is dropped, too.
pub fn write_arrived(qp: &mut Qp, w: &mut World, found: &Found) {
    let head = &found.head;
    let before = qp.refused.filter(|(number, _)| *number == head.pos).map(|(_, status)| status);
    let refused = before.or_else(|| write_part(&grant_of(qp), w, found).err());
    match refused {
        Some(status) if qp.kind != IBV_QPT_UC => return Responder::Qp(qp).refuse(w, head.pos, status),
        Some(status) => qp.refused = Some((head.pos, status)),
        None => {}
    }
    if head.flags & flag::LAST != 0 {
        qp.refused = None;
        match refused {
            None => Responder::Qp(qp).answer(w, head.pos, None),
            Some(status) => Responder::Qp(qp).refuse(w, head.pos, status),
        }
    }
}

/// Places a fragment of an RDMA WRITE. Err: why it is refused.
fn write_part(grant: &Grant, w: &World, found: &Found) -> Result<(), u32> {
    let (len, mut target) = (found.head.len, Target::parse(found));
    target.len = len;
    let to = granted(grant, &w.mrs, &target, IBV_ACCESS_REMOTE_WRITE)?;
    // SAFETY: the range lies in a valid MR with remote write (checked); the payload has len bytes.
    unsafe { copy::write_in_order(found.payload, to as *mut u8, len as usize) };
    Ok(())
}

/// A part of an RDMA WRITE that its initiator can carry out itself, and does when we are late or do not permit it (target). So it does with those
/// behind one that it carries out, up to one before which nothing is open.
pub fn gift_arrived(qp: &mut Qp, w: &mut World, found: &Found) {
    let head = &found.head;
    qp.heard = qp.heard.wrapping_add(1);
    qp.refuses_gifts &= head.flags & flag::FIRST == 0;
    qp.refuses_gifts |=
        !qp.refuses_gifts && place_gift(&grant_of(qp), &w.mrs, &w.segment.map, found).is_none();
    if head.flags & flag::LAST != 0 {
        let status = if qp.refuses_gifts { NOT_SENT } else { IBV_WC_SUCCESS };
        let answer = Answer { number: head.pos, status, ..Answer::default() };
        w.replies.push_back(Reply { asked: Responder::Qp(qp).asked(), answer });
    }
}

/// Places a part of it, unless it is not permitted, or has been taken back.
#[inline]
pub(super) fn place_gift(grant: &Grant, mrs: &Mrs, map: &Map, found: &Found) -> Option<()> {
    let (head, gift) = (&found.head, Gift::parse(found));
    let all = granted(grant, mrs, &gift.target, IBV_ACCESS_REMOTE_WRITE).ok()?;
    let to = gift.place_of(all, head.len)?;
    // SAFETY: the range lies in a valid MR with remote write (checked); the payload has len bytes.
    let copy = || unsafe { copy::write_in_order(found.payload, to as *mut u8, head.len as usize) };
    match head.flags & flag::LAST {
        0 => ring::while_asked(map, found.ring, head.imm, copy),
        _ => ring::while_given(map, found.ring, head.imm, copy),
    }
}

/// An RDMA READ request (target).
pub fn read_arrived(qp: &mut Qp, w: &mut World, found: &Found) {
    qp.heard = qp.heard.wrapping_add(1);
    read_asked(Responder::Qp(qp), w, found);
}

fn read_asked(mut responder: Responder<'_>, w: &mut World, found: &Found) {
    let target = Target::parse(found);
    let granted = granted(&responder.grant(), &w.mrs, &target, IBV_ACCESS_REMOTE_READ);
    if found.head.op & !op::XRC == op::ASK {
        return responder.offer(w, found, granted.ok().map(|_| target));
    }
    match granted {
        Ok(_) => responder.send(w, found, target),
        Err(status) => responder.refuse(w, found.head.pos, status),
    }
}

/// An atomic (target).
pub fn atomic_arrived(qp: &mut Qp, w: &mut World, found: &Found) {
    atomic_asked(Responder::Qp(qp), w, found);
}

fn atomic_asked(mut responder: Responder<'_>, w: &mut World, found: &Found) {
    match check_atomic(&responder.grant(), &w.mrs, found) {
        Ok(place) => responder.answer(w, found.head.pos, carry_out(place, found)),
        Err(status) => responder.refuse(w, found.head.pos, status),
    }
}

/// Where the word of an atomic is. Err: a completion status.
pub(super) fn check_atomic(grant: &Grant, mrs: &Mrs, found: &Found) -> Result<u64, u32> {
    let target = Target { len: WORD, ..Target::parse(found) };
    let writes = found.head.op & !op::XRC == op::ATOMIC_WRITE;
    let need = if writes { IBV_ACCESS_REMOTE_WRITE } else { IBV_ACCESS_REMOTE_ATOMIC };
    let place = granted(grant, mrs, &target, need)?;
    // Where offsets are used for addresses, an aligned one may be at a place that is not.
    let aligned = (target.addr | place).is_multiple_of(WORD.into());
    if aligned { Ok(place) } else { Err(IBV_WC_REM_INV_REQ_ERR) }
}

/// A request that came through a queue pair of a domain to an SRQ of ours (target). After a refused fragment of an RDMA WRITE
/// the queue pair takes no more.
pub fn xrc_arrived(w: &mut World, to: &Arrival, found: &Found) {
    let (mut responder, head) = (Responder::Shared(to), &found.head);
    match head.op & !op::XRC {
        op::READ | op::ASK => read_asked(responder, w, found),
        op::WRITE => match write_part(&to.grant(), w, found) {
            Err(status) => responder.refuse(w, head.pos, status),
            Ok(()) if head.flags & flag::LAST != 0 => responder.answer(w, head.pos, None),
            Ok(()) => {}
        },
        _ => atomic_asked(responder, w, found),
    }
}

/// Does an atomic that has been checked; returns the value before, unless it only writes.
pub(super) fn carry_out(place: u64, found: &Found) -> Option<u64> {
    let [first, swap] = operands(found);
    // SAFETY: aligned, and inside a valid MR with the access needed (both checked by the caller);
    // the program vouches for registered memory, and for what else touches the word meanwhile.
    let word = unsafe { AtomicU64::from_ptr(place as *mut u64) };
    match found.head.op & !op::XRC {
        op::FETCH_ADD => Some(word.fetch_add(first, Ordering::SeqCst)),
        op::ATOMIC_WRITE => {
            word.store(first, Ordering::SeqCst);
            None
        }
        _ => match word.compare_exchange(first, swap, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(before) | Err(before) => Some(before),
        },
    }
}

/// Sends answers that wait; those of a queue pair in order. True: some still do.
pub fn advance(qps: &mut Qps, w: &mut World) -> bool {
    let mut at = 0;
    while at < w.replies.len() {
        if !is_behind(w, at) && send_reply(qps, w, at) {
            w.replies.remove(at);
        } else {
            at += 1;
        }
    }
    !w.replies.is_empty()
}

/// An answer of the same queue pair waits before this one.
fn is_behind(w: &World, at: usize) -> bool {
    let qp_of = |reply: &Reply| if let Asked::Qp { index, .. } = reply.asked { Some(index) } else { None };
    let this = w.replies.get(at).and_then(qp_of);
    this.is_some() && w.replies.iter().take(at).any(|before| qp_of(before) == this)
}

/// Our end of an answer's way: the queue pair that answers, as its peer knows it, what it grants, and the peer.
struct End<'a> {
    me: (u32, u64),
    grant: Grant,
    link: &'a mut Link,
}

/// The end that an answer leaves from. None: it is gone.
fn end_of<'a>(qps: &'a mut Qps, segment: &Segment, asked: &'a mut Asked) -> Option<End<'a>> {
    match asked {
        Asked::Qp { index, generation } => {
            let qp = qps.get_mut(*index).filter(|qp| qp.generation == *generation)?;
            let (me, grant) = ((qp.num, segment.incarnation), grant_of(qp));
            Some(End { me, grant, link: qp.link.as_mut()? })
        }
        Asked::Shared { to, back } => Some(End { me: to.end(), grant: to.grant(), link: back }),
    }
}

/// The process that an answer goes to; one that asked over XRC need not be attached yet.
fn peer_of<'a>(peers: &'a mut Peers, link: &Link) -> Option<&'a mut Peer> {
    if peers.attached(link.slot).is_none() {
        peers.reach(link.slot).ok()?;
    }
    peers.connected(link).ok()
}

/// Pushes a piece of an answer. None: it answers an ASK that has been withdrawn.
fn push_if_asked(tables: &Map, ask: Option<(u32, usize)>, push: impl FnOnce() -> Pushed) -> Option<Pushed> {
    match ask {
        None => Some(push()),
        Some((ask, ring)) => ring::while_asked(tables, ring, ask, push),
    }
}

/// Sends as much of the answer at this place as there is room for. True: that was all, or its requester can no
/// longer be answered.
fn send_reply(qps: &mut Qps, w: &mut World, at: usize) -> bool {
    loop {
        // In place: what is copied waits for the stores of the piece before.
        let World { replies, peers, mrs, segment, stats, .. } = w;
        let Some(Reply { asked, answer }) = replies.get_mut(at) else { return true };
        let Some(End { me, grant, link }) = end_of(qps, segment, asked) else { return true };
        let Some(peer) = peer_of(peers, link) else { return true };
        if !link.is_open(peer, me) {
            return true;
        }
        let ahead = answer.read.map_or(AHEAD, |read| ahead_of_answer(read.len));
        if !peer.ring.has_room_within(PIECE as usize, ahead) {
            return false;
        }
        let Ok((from, len)) = next_bytes(&grant, mrs, answer) else {
            take_data_out(qps, w, at);
            continue;
        };
        let head = head_of(answer, link, me.0, len);
        let last = head.flags & flag::LAST != 0;
        // SAFETY: the range is the answer's value, or lies in a valid MR with remote read (checked by `next_bytes`); push hands out
        // room for len bytes, which begins a line.
        let fill = |to: *mut u8| unsafe {
            match answer.streams {
                true => copy::stream(from, to, len as usize),
                false => std::ptr::copy_nonoverlapping(from, to, len as usize),
            }
        };
        // Of a long one the copy of one piece is timed.
        let since =
            (answer.sent == PIECE && answer.read.is_some_and(|read| may_cross(read.len))).then(timing::now);
        let push = || if len == 0 { peer.ring.push(head, |_| ()) } else { peer.ring.push(head, fill) };
        let Some(pushed) = push_if_asked(&segment.map, answer.ask.filter(|_| len != 0), push) else {
            (answer.read, answer.status) = (None, NOT_SENT);
            continue;
        };
        if let Some(since) = since {
            peer.moves.note_copy(Copied::In, since);
        }
        rung(pushed, peer, &mut stats.doorbells);
        answer.sent += len;
        if last {
            return true;
        }
    }
}

/// The next bytes of an answer: where they are, and how many. Err: its requester may not read them any more.
#[inline(always)] // what is copied on the way waits for the stores of the piece before
fn next_bytes(grant: &Grant, mrs: &Mrs, answer: &Answer) -> Result<(*const u8, u32), ()> {
    if let Some(value) = &answer.value {
        return Ok((std::ptr::from_ref(value).cast(), WORD));
    }
    let Some(read) = answer.read else { return Ok((std::ptr::null(), 0)) };
    let (addr, len) = (read.addr + u64::from(answer.sent), (read.len - answer.sent).min(PIECE));
    let target = Target { addr, rkey: read.rkey, len };
    let place = permits(grant, mrs, &target, IBV_ACCESS_REMOTE_READ).ok_or(())?;
    Ok((place as *const u8, len))
}

/// What is said of the next `len` bytes of an answer, which comes from queue pair `from`.
fn head_of(answer: &Answer, link: &Link, from: u32, len: u32) -> Head {
    let last = answer.read.is_none_or(|read| answer.sent + len == read.len);
    let flags = if last { flag::LAST } else { 0 };
    Head {
        op: op::RESPONSE,
        flags,
        dst: link.dst,
        src_qpn: from,
        len,
        imm: answer.status,
        pos: answer.number,
    }
}

/// The answer at this place has no data any more: who can fetch it is told so, and who cannot is refused, with which a reliable queue pair ends.
#[cold]
fn take_data_out(qps: &mut Qps, w: &mut World, at: usize) {
    let Some(reply) = w.replies.get_mut(at) else { return };
    reply.answer.read = None;
    if reply.answer.ask.is_some() {
        reply.answer.status = NOT_SENT;
        return;
    }
    reply.answer.status = IBV_WC_REM_ACCESS_ERR;
    match &reply.asked {
        &Asked::Qp { index, .. } => {
            qps.get_mut(index).into_iter().for_each(|qp| qp.refuse(w, IBV_WC_REM_ACCESS_ERR));
        }
        Asked::Shared { to, .. } => {
            let to = to.clone();
            events::refuse(w, &to, IBV_WC_REM_ACCESS_ERR);
        }
    }
}
