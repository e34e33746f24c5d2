//! The initiator: what happens to a send work request.
//!
//! ```text
//!   post ──> attempt ──┬── done: completion (if asked for)
//!                      └── wait ──> queued in the SQ ──> attempted again by progress ──> ...
//! ```
//!
//! A SEND looks at the peer's life, its QP, a posted receive, that receive's length and the ring's room, in this order, and
//! consumes the receive by its own hand: that is the acknowledgement. What can't go on waits at the head of its own
//! SQ and keeps the order there; other QPs of the pair go on. The waits:
//!
//! * `Room`: the ring is full; the peer has been told.
//! * `Rnr`: no receive; waits the responder's min_rnr_timer, rnr_retry times (7: for ever), then RNR_RETRY_EXC_ERR.
//! * `Silent`: the peer's QP does not answer; RETRY_EXC_ERR after timeout x (retry_cnt + 1). A dead peer's at once.

use crate::engine::world::World;
use crate::errno::Errno;
use crate::objects::events::Subject;
use crate::objects::mr::Mrs;
use crate::objects::peer::{Absent, Peer};
use crate::objects::qp::Qp;
use crate::rdma;
use crate::shm::copy;
use crate::shm::layout::QP_BITS;
use crate::shm::ring::{FRAGMENT_MAX, Head, INLINE_MAX, Pushed, flag};
use crate::shm::rq::{self, Claim};
use rdma_sys::*;
use std::time::{Duration, Instant};

/// Cell operations.
pub mod op {
    pub const SEND: u8 = 1;
    /// RDMA WRITE with immediate: the data is there, this consumes a receive.
    pub const WRITE_IMM: u8 = 2;
    /// The consumed receive was too short for the message.
    pub const TOO_LONG: u8 = 3;
    /// The consumed receive had invalid buffers.
    pub const BAD_RECEIVE: u8 = 4;
    pub const WRITE: u8 = 5;
    pub const READ: u8 = 6;
    pub const RESPONSE: u8 = 7;
    pub const FETCH_ADD: u8 = 8;
    pub const CMP_SWAP: u8 = 9;
}

/// Longest message (the port's max_msg_sz).
pub const MAX_MESSAGE: u32 = 1 << 30;
pub const MAX_SGE: u32 = 16;
/// Room in front of every received datagram for a global route header.
pub const GRH_LEN: u32 = 40;
pub const UD_MTU: u32 = 4096;

/// One send request on its way.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    pub wr_id: u64,
    pub opcode: u32,
    pub flags: u32,
    pub imm: u32,
    pub remote: Remote,
    /// Payload bytes in all, and those that are in the ring.
    pub len: u32,
    pub sent: u32,
    /// The receive that was consumed, once it was.
    pub receive: Option<u32>,
    pub signalled: bool,
    /// Number of requests posted to this SQ up to this one.
    pub number: u32,
    /// RDMA: the request is in the ring; the data is where it belongs.
    pub asked: bool,
    pub moved: bool,
}

/// What a request names on the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remote {
    /// The connected queue pair.
    Peer,
    Memory {
        addr: u64,
        rkey: u32,
    },
    /// A 64-bit word. `first` is added (FETCH_ADD) or compared with (CMP_SWAP), `swap` takes its place then.
    Word {
        addr: u64,
        rkey: u32,
        first: u64,
        swap: u64,
    },
    Datagram {
        qpn: u32,
        qkey: u32,
        route: Route,
    },
}

impl Remote {
    /// The address and key of a one-sided operation.
    pub fn memory(&self) -> (u64, u32) {
        match *self {
            Remote::Memory { addr, rkey } | Remote::Word { addr, rkey, .. } => (addr, rkey),
            Remote::Peer | Remote::Datagram { .. } => (0, 0),
        }
    }
}

/// Where an address handle leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// To our own port; with a global route header or without.
    Here { global: bool },
    /// To a place that does not exist: the datagram is lost.
    Nowhere,
}

/// A request that waits in the SQ, with its own copy of what it needs.
pub struct Queued {
    pub work: Work,
    pub sges: Vec<ibv_sge>,
    /// Inline payload; `sges` points to it.
    _inline: Box<[u8]>,
    pub wait: Wait,
    pub rnr_left: u8,
}

/// What a request at the head of an SQ waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Its turn.
    Turn,
    Room,
    Rnr {
        until: Instant,
    },
    Silent {
        /// When to give up; None: never.
        deadline: Option<Instant>,
    },
    /// An answer of the peer to an RDMA request; it comes through `deliver`.
    Answer,
}

/// What an attempt came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Done(u32),
    Room,
    Rnr,
    Silent,
    Answer,
}

impl Work {
    /// Something of it has reached the peer: it is finished even when the QP drains.
    fn begun(&self) -> bool {
        self.receive.is_some() || self.asked || self.moved
    }
}

impl Queued {
    pub fn new(work: Work, sges: &[ibv_sge], wait: Wait, rnr_left: u8) -> Queued {
        if work.flags & IBV_SEND_INLINE == 0 {
            return Queued { work, sges: sges.to_vec(), _inline: Box::default(), wait, rnr_left };
        }
        let mut inline = vec![0u8; work.len as usize].into_boxed_slice();
        gather(sges, 0, work.len as usize, inline.as_mut_ptr());
        let sges = vec![ibv_sge { addr: inline.as_ptr() as u64, length: work.len, lkey: 0 }];
        Queued { work, sges, _inline: inline, wait, rnr_left }
    }
}

/// Copies `len` bytes of a gather list, from `skip` on, to `to`.
#[inline]
pub fn gather(sges: &[ibv_sge], skip: usize, len: usize, to: *mut u8) {
    if let [one] = sges {
        let from = (one.addr as usize + skip) as *const u8;
        // SAFETY: the caller of post_send vouches for its buffers until the completion (checked against its MR unless
        // inline), and `to` has room for len bytes.
        return unsafe { copy::copy(from, to, len) };
    }
    gather_many(sges, skip, len, to);
}

/// Copies all of a gather list, piece by piece.
#[inline]
fn gather_all(sges: &[ibv_sge], mut to: *mut u8) {
    for sge in sges {
        let len = sge.length as usize;
        // SAFETY: as in gather(); the caller has made room for all pieces.
        unsafe {
            copy::copy(sge.addr as *const u8, to, len);
            to = to.add(len);
        }
    }
}

fn gather_many(sges: &[ibv_sge], mut skip: usize, len: usize, to: *mut u8) {
    let mut done = 0;
    for sge in sges {
        let length = sge.length as usize;
        let here = length.saturating_sub(skip).min(len - done);
        if here > 0 {
            // SAFETY: as in gather(); done + here <= len.
            unsafe {
                std::ptr::copy_nonoverlapping((sge.addr as usize + skip) as *const u8, to.add(done), here)
            };
        }
        skip = skip.saturating_sub(length);
        done += here;
    }
}

/// A short inline SEND on a connected RC queue pair with nothing queued: the request that latency is made of. It goes
/// straight to the ring; its completion is written when it is on its way. `false`: something is not as it should be, nothing
/// has happened yet, and the general way finds out.
#[inline]
pub fn send_short(qp: &mut Qp, w: &mut World, wr: &ibv_send_wr) -> bool {
    let usual =
        wr.opcode == IBV_WR_SEND && wr.send_flags & IBV_SEND_INLINE != 0 && (1..=4).contains(&wr.num_sge);
    let able = qp.kind == IBV_QPT_RC && qp.state == IBV_QPS_RTS && qp.sq.is_empty();
    if !usual
        || !able
        || wr.num_sge as u32 > qp.cap.max_send_sge
        || qp.sq_posted.wrapping_sub(qp.sq_retired) >= qp.cap.max_send_wr
    {
        return false;
    }
    // SAFETY: the program passes a list of num_sge elements.
    let sges = unsafe { std::slice::from_raw_parts(wr.sg_list, wr.num_sge as usize) };
    let len = sges.iter().fold(0, |sum: u32, sge| sum.saturating_add(sge.length));
    let me = (qp.num, w.segment.incarnation);
    let Some(link) = qp.link.as_mut() else { return false };
    let Ok(peer) = w.peers.connected(link) else { return false };
    let fits =
        len as usize <= INLINE_MAX && len <= qp.cap.max_inline_data && peer.ring.has_room(len as usize);
    // is_open refreshes the view: it comes first.
    if !fits || !link.is_open(&peer.map, me) || link.view.rq_shared {
        return false;
    }
    let Some(pos) = link.consume_fitting(len) else { return false };
    let solicited = if wr.send_flags & IBV_SEND_SOLICITED != 0 { flag::SOLICITED } else { 0 };
    let head = Head {
        op: op::SEND,
        flags: flag::FIRST | flag::LAST | solicited,
        dst: destination(link.index, link.view.generation),
        src_qpn: qp.num,
        len,
        pos,
        ..Head::default()
    };
    let pushed = peer.ring.push(head, |to| gather_all(sges, to));
    rung(pushed, peer, &mut w.stats.doorbells);
    qp.sq_posted = qp.sq_posted.wrapping_add(1);
    if qp.sig_all || wr.send_flags & IBV_SEND_SIGNALED != 0 {
        let wc = ibv_wc {
            wr_id: wr.wr_id,
            opcode: IBV_WC_SEND,
            byte_len: len,
            qp_num: qp.num,
            ..Default::default()
        };
        qp.complete_wc(w, wc, qp.sq_posted);
    }
    true
}

/// Takes a checked request: attempts it now, or queues it behind others.
#[inline]
pub fn submit(qp: &mut Qp, w: &mut World, mut work: Work, sges: &[ibv_sge]) -> Result<(), Errno> {
    if qp.sq_posted.wrapping_sub(qp.sq_retired) >= qp.cap.max_send_wr {
        return Err(Errno::NOMEM);
    }
    qp.sq_posted = qp.sq_posted.wrapping_add(1);
    work.number = qp.sq_posted;
    if qp.state != IBV_QPS_RTS || !qp.sq.is_empty() {
        return submit_later(qp, w, work, sges);
    }
    match attempt(qp, w, &mut work, sges) {
        Step::Done(IBV_WC_SUCCESS) => qp.complete_send(w, &work, IBV_WC_SUCCESS),
        Step::Done(status) => fail_send(qp, w, &work, status),
        step => enqueue(qp, w, work, sges, step),
    }
    Ok(())
}

#[cold]
fn submit_later(qp: &mut Qp, w: &mut World, work: Work, sges: &[ibv_sge]) -> Result<(), Errno> {
    match qp.state {
        IBV_QPS_RTS | IBV_QPS_SQD => qp.sq.push_back(Queued::new(work, sges, Wait::Turn, qp.attr.rnr_retry)),
        IBV_QPS_ERR | IBV_QPS_SQE => qp.complete_send(w, &work, IBV_WC_WR_FLUSH_ERR),
        _ => {
            qp.sq_posted = qp.sq_posted.wrapping_sub(1);
            return Err(Errno::INVAL);
        }
    }
    Ok(())
}

#[cold]
fn enqueue(qp: &mut Qp, w: &mut World, work: Work, sges: &[ibv_sge], step: Step) {
    let mut queued = Queued::new(work, sges, Wait::Turn, qp.attr.rnr_retry);
    let spent = wait_for(qp, w, &mut queued, step);
    qp.sq.push_back(queued);
    if let Some(status) = spent {
        return finish_head(qp, w, status);
    }
    if !qp.busy {
        qp.busy = true;
        w.busy.push(qp.index);
    }
}

/// An error completion on an SQ: RC goes to ERR, the others to SQE.
#[cold]
pub fn fail_send(qp: &mut Qp, w: &mut World, work: &Work, status: u32) {
    qp.complete_send(w, work, status);
    if qp.kind == IBV_QPT_RC {
        qp.fail(w);
    } else {
        qp.set_state(IBV_QPS_SQE, w);
        qp.flush_sends(w);
    }
}

/// One try to carry a request out (or on).
#[inline]
pub fn attempt(qp: &mut Qp, w: &mut World, work: &mut Work, sges: &[ibv_sge]) -> Step {
    if work.flags & IBV_SEND_INLINE == 0 && !readable(&w.mrs, work, sges, qp.pd as u32) {
        return Step::Done(IBV_WC_LOC_PROT_ERR);
    }
    match work.opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM if qp.kind == IBV_QPT_UD => {
            send_datagram(qp, w, work, sges);
            Step::Done(IBV_WC_SUCCESS)
        }
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => unreliable(qp.kind, send_message(qp, w, work, sges)),
        _ => unreliable(qp.kind, rdma::attempt(qp, w, work, sges)),
    }
}

#[inline]
fn readable(mrs: &Mrs, work: &Work, sges: &[ibv_sge], pd: u32) -> bool {
    // READ and the atomics, which are the next two codes, write to the local buffers.
    sges.iter().all(|sge| mrs.allows(sge, pd, work.opcode >= IBV_WR_RDMA_READ))
}

/// UC does not hear back from its peer: what RC waits for or fails with is a loss there.
#[inline]
fn unreliable(kind: u32, step: Step) -> Step {
    match step {
        Step::Rnr | Step::Silent if kind == IBV_QPT_UC => Step::Done(IBV_WC_SUCCESS),
        Step::Done(status) if kind == IBV_QPT_UC && is_remote(status) => Step::Done(IBV_WC_SUCCESS),
        step => step,
    }
}

fn is_remote(status: u32) -> bool {
    let remote = [IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR];
    remote.contains(&status)
}

#[inline]
fn send_message(qp: &mut Qp, w: &mut World, work: &mut Work, sges: &[ibv_sge]) -> Step {
    let me = (qp.num, w.segment.incarnation);
    let Some(link) = qp.link.as_mut() else { return Step::Silent };
    let peer = match w.peers.connected(link) {
        Ok(peer) => peer,
        Err(Absent::Never) => return Step::Silent,
        Err(Absent::Gone) => return Step::Done(IBV_WC_RETRY_EXC_ERR),
    };
    if !link.is_open(&peer.map, me) {
        return Step::Silent;
    }
    if !peer.ring.has_room(first_fragment(work.len)) {
        return Step::Room;
    }
    let dst = destination(link.index, link.view.generation);
    if work.receive.is_none() {
        match claim(link, peer, work.len) {
            Claimed::Ok(pos) => work.receive = Some(pos),
            Claimed::Empty => return Step::Rnr,
            Claimed::Wrong { pos, op, status } => {
                let head = Head { op, dst, src_qpn: qp.num, pos, ..Head::default() };
                let pushed = peer.ring.push(head, |_| ());
                rung(pushed, peer, &mut w.stats.doorbells);
                return Step::Done(status);
            }
        }
    }
    push_fragments(peer, &mut w.stats.doorbells, Message { op: op::SEND, dst, src_qpn: qp.num }, work, sges)
}

/// The `dst` field of a cell: the QP's index and the low bits of its generation.
#[inline]
pub fn destination(index: usize, generation: u32) -> u16 {
    index as u16 | (generation as u16) << QP_BITS
}

enum Claimed {
    Ok(u32),
    Empty,
    /// The receive is consumed, and both sides hear about it.
    Wrong {
        pos: u32,
        op: u8,
        status: u32,
    },
}

/// Consumes a receive of the connected QP that has room for `len` bytes.
#[inline]
fn claim(link: &mut crate::objects::peer::Link, peer: &Peer, len: u32) -> Claimed {
    let (pos, room) = if link.view.rq_shared {
        match link.place.as_ref().map(|place| place.claim(peer.ring.index())) {
            Some(Claim::Got { pos, len }) => (pos, len),
            _ => return Claimed::Empty,
        }
    } else {
        match link.consume() {
            Some(got) => got,
            None => return Claimed::Empty,
        }
    };
    if room & rq::BAD != 0 {
        return Claimed::Wrong { pos, op: op::BAD_RECEIVE, status: IBV_WC_REM_OP_ERR };
    }
    if room < len {
        return Claimed::Wrong { pos, op: op::TOO_LONG, status: IBV_WC_REM_INV_REQ_ERR };
    }
    Claimed::Ok(pos)
}

/// Consumes a receive for an RDMA WRITE with immediate and tells the peer.
pub fn notify(qp: &mut Qp, w: &mut World, work: &Work) -> Step {
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
    let (dst, imm) = (destination(link.index, link.view.generation), work.imm);
    // The receiver completes with the number of bytes written; they are not in the ring.
    let head = Head { op, flags, dst, src_qpn: qp.num, len: 4, imm, pos };
    let bytes = work.len.to_ne_bytes();
    // SAFETY: push hands out room for head.len bytes, which is 4.
    let pushed = peer.ring.push(head, |to| unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, 4) });
    rung(pushed, peer, &mut w.stats.doorbells);
    Step::Done(status)
}

/// Messages up to two of these go in one piece or two; pieces overlap the two sides' copies.
pub const PIECE: u32 = 16 << 10;

#[inline]
fn first_fragment(len: u32) -> usize {
    len.min(PIECE) as usize
}

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
        if work.opcode == IBV_WR_SEND_WITH_IMM {
            flags |= flag::IMM;
        }
        let (imm, pos) = (work.imm, work.receive.unwrap_or_default());
        let head = Head { op: to.op, flags, dst: to.dst, src_qpn: to.src_qpn, len, imm, pos };
        let skip = work.sent as usize;
        let pushed = peer.ring.push(head, |to| gather(sges, skip, len as usize, to));
        rung(pushed, peer, bells);
        work.sent += len;
        if flags & flag::LAST != 0 {
            return Step::Done(IBV_WC_SUCCESS);
        }
    }
}

/// Wakes the peer's device thread if the push asked for it.
#[inline]
pub fn rung(pushed: Pushed, peer: &Peer, bells: &mut u64) {
    if pushed == Pushed::RingBell {
        *bells += 1;
        crate::engine::world::ring_bell(&peer.map);
    }
}

/// Sends a datagram, or loses it.
fn send_datagram(qp: &mut Qp, w: &mut World, work: &Work, sges: &[ibv_sge]) {
    if try_datagram(qp, w, work, sges).is_none() {
        w.stats.ud_dropped += 1;
    }
}

fn try_datagram(qp: &Qp, w: &mut World, work: &Work, sges: &[ibv_sge]) -> Option<()> {
    let Remote::Datagram { qpn, qkey, route: Route::Here { global } } = work.remote else { return None };
    let slot = (qpn >> QP_BITS) as usize;
    let index = qpn as usize % crate::shm::layout::QPS;
    let peer = w.peers.reach(slot).ok()?;
    let known = crate::shm::qptable::exists(&peer.map, index);
    let (_, view) = known.then(|| crate::shm::qptable::look_up(&peer.map, index)).flatten()?;
    // A Q_Key with the upper bit set stands for the sending QP's own (IBTA 10.2.5).
    let qkey = if qkey >> 31 != 0 { qp.attr.qkey } else { qkey };
    let open = crate::objects::qp_state::is_receiving(view.state) && view.kind == IBV_QPT_UD;
    if !open || view.qkey != qkey || !peer.ring.has_room(work.len as usize) {
        return None;
    }
    let place = crate::objects::peer::place_of(&view, &peer.map)?;
    let Claim::Got { pos, len } = place.claim(peer.ring.index()) else { return None };
    let fits = len & rq::BAD == 0 && len >= work.len.saturating_add(GRH_LEN);
    let op = if fits { op::SEND } else { op::TOO_LONG };
    let imm = if work.opcode == IBV_WR_SEND_WITH_IMM { flag::IMM } else { 0 };
    let grh = if global { flag::GRH } else { 0 };
    let flags = flag::FIRST | flag::LAST | solicited(work) | imm | grh;
    let sent = if fits { work.len } else { 0 };
    let dst = destination(index, view.generation);
    let head = Head { op, flags, dst, src_qpn: qp.num, len: sent, imm: work.imm, pos };
    let pushed = peer.ring.push(head, |to| gather(sges, 0, sent as usize, to));
    rung(pushed, peer, &mut w.stats.doorbells);
    Some(())
}

/// Notes what a request waits for. Some(status): it has waited long enough.
fn wait_for(qp: &Qp, w: &mut World, queued: &mut Queued, step: Step) -> Option<u32> {
    queued.wait = match step {
        Step::Done(status) => return Some(status),
        Step::Answer => Wait::Answer,
        Step::Room => {
            w.stats.ring_full += u64::from(queued.wait != Wait::Room);
            Wait::Room
        }
        Step::Rnr => {
            w.stats.rnr += 1;
            if queued.rnr_left == 0 {
                return Some(IBV_WC_RNR_RETRY_EXC_ERR);
            }
            if queued.rnr_left != 7 {
                queued.rnr_left -= 1;
            }
            let timer = qp.link.as_ref().map_or(0, |link| link.view.min_rnr_timer);
            Wait::Rnr { until: Instant::now() + rnr_time(timer) }
        }
        Step::Silent => match queued.wait {
            Wait::Silent { deadline: Some(deadline) } if Instant::now() >= deadline => {
                return Some(IBV_WC_RETRY_EXC_ERR);
            }
            Wait::Silent { .. } => return None,
            _ => Wait::Silent { deadline: patience(&qp.attr).map(|time| Instant::now() + time) },
        },
    };
    None
}

/// How long a silent peer is asked again: timeout x (retry_cnt + 1); None: for ever (IBTA 9.7.6.1.3).
fn patience(attr: &ibv_qp_attr) -> Option<Duration> {
    let once = Duration::from_nanos(4096 << attr.timeout.min(31));
    (attr.timeout != 0).then(|| once * (u32::from(attr.retry_cnt) + 1))
}

/// The RNR NAK timer codes (IBTA table 45), in units of 10 us.
fn rnr_time(code: u32) -> Duration {
    const UNITS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(10 * UNITS[code as usize % 32])
}

/// Ends the request at the head of the SQ.
pub fn finish_head(qp: &mut Qp, w: &mut World, status: u32) {
    let Some(queued) = qp.sq.pop_front() else { return };
    if status == IBV_WC_SUCCESS {
        qp.complete_send(w, &queued.work, status);
    } else {
        fail_send(qp, w, &queued.work, status);
    }
}

/// Works on the queued sends of one QP. Some(time): when to look again at the latest.
pub fn advance(qp: &mut Qp, w: &mut World, now: Instant) -> Option<Instant> {
    let again = work_off(qp, w, now);
    tell_drained(qp, w);
    again
}

/// A draining QP says when the last send that had begun is over.
pub fn tell_drained(qp: &mut Qp, w: &mut World) {
    let begun = qp.sq.front().is_some_and(|queued| queued.work.begun());
    if qp.state == IBV_QPS_SQD && !begun && qp.attr.en_sqd_async_notify != 0 {
        qp.attr.en_sqd_async_notify = 0;
        w.async_event(qp.context, IBV_EVENT_SQ_DRAINED, Subject::Qp(qp.index));
    }
}

fn work_off(qp: &mut Qp, w: &mut World, now: Instant) -> Option<Instant> {
    while matches!(qp.state, IBV_QPS_RTS | IBV_QPS_SQD) {
        let mut queued = qp.sq.pop_front()?;
        let idle = qp.state == IBV_QPS_SQD && !queued.work.begun();
        let early = matches!(queued.wait, Wait::Rnr { until } if until > now);
        if queued.wait == Wait::Answer && rdma::is_lost(qp, w) {
            qp.sq.push_front(queued);
            finish_head(qp, w, IBV_WC_RETRY_EXC_ERR);
            continue;
        }
        if idle || early || queued.wait == Wait::Answer {
            let again = next_look(&queued.wait, now);
            qp.sq.push_front(queued);
            return Some(again);
        }
        let step = attempt(qp, w, &mut queued.work, &queued.sges);
        let ended = wait_for(qp, w, &mut queued, step);
        let again = next_look(&queued.wait, now);
        qp.sq.push_front(queued);
        match ended {
            Some(status) => finish_head(qp, w, status),
            None => return Some(again),
        }
    }
    None
}

/// Looking again is a load or two; the device thread does it in steps like these while nobody polls.
fn next_look(wait: &Wait, now: Instant) -> Instant {
    match *wait {
        Wait::Turn | Wait::Room => now + Duration::from_micros(50),
        Wait::Rnr { until } => until,
        Wait::Silent { .. } => now + Duration::from_millis(1),
        Wait::Answer => now + Duration::from_millis(10),
    }
}

const _: () =
    assert!(IBV_WR_ATOMIC_CMP_AND_SWP > IBV_WR_RDMA_READ && IBV_WR_ATOMIC_FETCH_AND_ADD > IBV_WR_RDMA_READ);
const _: () = assert!(PIECE as usize <= FRAGMENT_MAX && UD_MTU as usize <= FRAGMENT_MAX && INLINE_MAX >= 24);
