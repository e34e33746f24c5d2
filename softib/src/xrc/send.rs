//! The initiator over XRC.

use super::FULL_PKEY;
use crate::deliver::From;
use crate::engine::world::World;
use crate::errno::Errno;
use crate::objects::peer::{Link, Peer, Route};
use crate::objects::qp::{Qp, Qps};
use crate::objects::qp_state::is_receiving;
use crate::objects::xrc::KIND_SRQ;
use crate::port::pkeys_match;
use crate::rdma::{self, Answerer, Grant};
use crate::rdma_ring::{self, WORD};
use crate::send::{self, Claimed, PIECE, Remote, Step, Work};
use crate::shm::cell::{Found, Head, INLINE_MAX, Via, destination, flag, op};
use crate::shm::domain::{DomainFile, SharedQp};
use crate::shm::layout::{H_NONCE, QP_BITS, QPS};
use crate::shm::liveness::Liveness;
use crate::shm::map::Map;
use crate::shm::shortage::is_shortage;
use crate::shm::{qptable, segment};
use rdma_sys::*;
use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A send queue pair's view of the other side.
#[derive(Debug)]
pub struct SendLink {
    domain: Arc<DomainFile>,
    /// Of the receive queue pair in its domain.
    index: usize,
    /// From our port, in our partition, to the port of the domain's device.
    route: Route,
    seen: Option<(u32, SharedQp)>,
    /// The generation we first spoke to; another one is another connection.
    generation: Option<u32>,
    witness: Option<Witness>,
    /// The SRQs sent to, by number.
    queues: HashMap<u32, Link>,
}

/// A process that holds the receive queue pair, so that it is there as long as this one lives.
#[derive(Debug)]
struct Witness {
    /// Only the header is mapped.
    map: Map,
    file: File,
    live: Liveness,
}

/// What a look at the receive queue pair came to.
enum Sight {
    Open,
    /// It does not answer: not connected to us, not in a state to receive, or gone with its last handle.
    Silent,
    /// All who held it are dead.
    Orphaned,
    /// Whether one lives cannot be seen for want of a resource.
    Short,
}

impl SendLink {
    /// The link of a send queue pair to the receive queue pair `qpn` of a domain, not looked at yet.
    pub fn new(domain: Arc<DomainFile>, qpn: u32, route: Route) -> SendLink {
        let (index, queues) = (qpn as usize % QPS, HashMap::new());
        SendLink { domain, index, route, seen: None, generation: None, witness: None, queues }
    }

    /// Takes another partition or path (a change in SQD).
    pub fn repath(&mut self, route: Route) {
        (self.route, self.seen) = (route, None);
    }

    /// The port of the domain's device that it goes to.
    pub fn theirs(&self) -> u8 {
        self.route.theirs
    }

    /// The incarnation of the domain: a peer knows our connection by it.
    pub fn incarnation(&self) -> u64 {
        self.domain.incarnation
    }

    /// The receive queue pair's min_rnr_timer.
    pub fn min_rnr_timer(&self) -> u32 {
        self.seen.as_ref().map_or(0, |(_, qp)| qp.attr.min_rnr_timer.into())
    }

    fn look(&mut self, me: (u32, u64)) -> Sight {
        let current = self.seen.as_ref().is_some_and(|(seq, _)| self.domain.sequence(self.index) == *seq);
        if !current && !self.refresh(me) {
            return Sight::Silent;
        }
        if self.witness.as_mut().is_some_and(Witness::lives) {
            return Sight::Open;
        }
        self.find_witness()
    }

    #[cold]
    fn refresh(&mut self, me: (u32, u64)) -> bool {
        self.seen = None;
        // The witness may have lost its handle since: look for one again.
        self.witness = None;
        if self.domain.exists(self.index)
            && self.domain.sequence(self.index) & 1 != 0
            && let Ok(locked) = self.domain.lock()
        {
            // Only a process that died in the middle leaves it so when we have the lock.
            let _ = locked.mend(self.index);
        }
        let Some((seq, qp)) = self.domain.look_up(self.index) else { return false };
        let ports = (qp.attr.port_num.wrapping_sub(1), qp.dest_port) == (self.route.theirs, self.route.ours);
        let ours = qp.attr.dest_qp_num == me.0 && qp.dest_incarnation == me.1 && ports;
        let same = self.generation.is_none_or(|generation| generation == qp.generation);
        if !ours || !same || !is_receiving(qp.attr.qp_state) || !pkeys_match(self.route.pkey, qp.pkey) {
            return false;
        }
        self.generation = Some(qp.generation);
        self.seen = Some((seq, qp));
        true
    }

    #[cold]
    fn find_witness(&mut self) -> Sight {
        let dir = segment::directory();
        let mut short = false;
        self.witness = self.domain.holders(self.index).find_map(|process| {
            let found = Witness::of(&dir, process);
            short |= found.as_ref().is_err_and(|error| is_shortage(*error));
            found.ok().flatten()
        });
        match self.witness {
            Some(_) => Sight::Open,
            None if short => Sight::Short,
            None => Sight::Orphaned,
        }
    }

    /// What stands for the SRQ `number` in the peer process: known to exist, and of our domain.
    fn queue(&mut self, w: &mut World, number: u32) -> Option<&mut Link> {
        let ours = (self.domain.slot as u32, self.domain.incarnation);
        let known = self.queues.get_mut(&number).is_some_and(|link| is_there(link, w, ours));
        if !known {
            self.queues.remove(&number);
            let incarnation = w.peers.reach((number >> QP_BITS) as usize).ok()?.incarnation;
            // An SRQ is at no port: the receive queue pair's counts.
            let route = Route { incarnation, pkey: FULL_PKEY, ..Route::default() };
            let mut link = Link::new(number, route);
            if !is_there(&mut link, w, ours) {
                return None;
            }
            self.queues.insert(number, link);
        }
        self.queues.get_mut(&number)
    }
}

fn is_there(link: &mut Link, w: &mut World, domain: (u32, u64)) -> bool {
    let Ok(peer) = w.peers.connected(link) else { return false };
    link.is_open(peer, domain) && link.view.kind == KIND_SRQ
}

impl Witness {
    /// None: the process is gone.
    fn of(dir: &std::path::Path, (slot, incarnation): (usize, u64)) -> Result<Option<Witness>, Errno> {
        let file = segment::open_slot(dir, slot)?;
        if file.metadata()?.len() == 0 {
            return Ok(None);
        }
        let map = Map::new(&file, HEADER_LEN)?;
        let mut witness = Witness { map, file, live: Liveness::default() };
        let same = witness.map.u64(H_NONCE).load(Ordering::Relaxed) == incarnation;
        Ok((same && witness.lives()).then_some(witness))
    }

    fn lives(&mut self) -> bool {
        self.live.alive(&self.map, &self.file)
    }
}

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
    let qpn = crate::objects::qp::number(to.domain.slot, to.index);
    let via = Via { qpn, generation: seen.generation };
    let domain = (to.domain.slot as u32, to.domain.incarnation);
    let Some(link) = to.queue(w, work.srqn) else { return no_queue(w, work) };
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
    if rdma::is_answered_with_data(work) && qp.attr.max_rd_atomic == 0 {
        return Step::Done(IBV_WC_LOC_QP_OP_ERR);
    }
    // The keys are those of the process that has the SRQ, in the protection domain of the SRQ.
    let grant = Grant { access: seen.offers(), pd: link.view.pd, qpn };
    let mut target = Target { peer, link, via, domain, src_qpn: qp.num, bells: &mut stats.doorbells };
    if !work.begun() && !grant.offers(rdma::needed(work)) {
        return target.refused(IBV_WC_REM_INV_REQ_ERR);
    }
    if !work.moved && work.len > 0 {
        if matches!(work.remote, Remote::Word { .. }) || !rdma::probe(target.peer) {
            let dst = destination(target.link.index, target.link.view.generation);
            let to = rdma_ring::Message { dst, src_qpn: qp.num, via: Some(via) };
            return rdma_ring::request(peer, stats, to, work, sges);
        }
        match rdma::direct(target.peer, mrs, &grant, work, sges) {
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
    let alive = to.queues.get(&work.srqn).is_some_and(|link| w.peers.connected(link).is_ok());
    match to.look(me) {
        _ if !alive => Answerer::Dead,
        Sight::Open | Sight::Short => Answerer::Open,
        Sight::Silent | Sight::Orphaned => Answerer::Closed,
    }
}

/// An answer that no connected queue pair wanted: it may be for one of our XRC send queue pairs.
pub fn answered(qps: &mut Qps, w: &mut World, from: From, found: &Found) -> bool {
    let head = &found.head;
    let Some(qp) = qps.get_mut(head.dst as usize % QPS) else { return false };
    let same = qp.generation as u16 & (u16::MAX >> QP_BITS) == head.dst >> QP_BITS;
    let srqn = qp.sq.front().map_or(0, |queued| queued.work.srqn);
    let asked = qp
        .xrc
        .as_ref()
        .and_then(|to| to.queues.get(&srqn))
        .is_some_and(|link| link.incarnation == from.incarnation);
    if !same || !asked || qp.attr.dest_qp_num != head.src_qpn || !is_receiving(qp.state) {
        return false;
    }
    rdma_ring::response_arrived(qp, w, found);
    true
}

impl Target<'_> {
    fn head(&self, op: u8) -> Head {
        let dst = destination(self.link.index, self.link.view.generation);
        Head { op: op | op::XRC, dst, src_qpn: self.src_qpn, ..Head::default() }
    }

    fn push(&mut self, head: Head, fill: impl FnOnce(*mut u8)) {
        let pushed = self.peer.ring.push_with(head, &self.via.emit(&[]), fill);
        send::rung(pushed, self.peer, self.bells);
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
            let flags = send::solicited(work) | imm | first | last;
            let pos = work.receive.unwrap_or_default();
            let head = Head { flags, len, imm: work.imm, pos, ..self.head(op::SEND) };
            let skip = work.sent as usize;
            self.push(head, |to| send::gather(sges, skip, len as usize, to));
            work.sent += len;
            if last != 0 {
                return send::confirm(self.link, self.peer, self.domain, work);
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
        let flags = flag::IMM | send::solicited(work);
        // The receiver completes with the number of bytes written; they are not in the ring.
        let head = Head { flags, len: 4, imm: work.imm, pos, ..self.head(op) };
        let bytes = work.len.to_ne_bytes();
        // SAFETY: push hands out room for head.len bytes, which is 4.
        self.push(head, |to| unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, 4) });
        if status == IBV_WC_SUCCESS {
            send::confirm(self.link, self.peer, self.domain, work)
        } else {
            Step::Done(status)
        }
    }
}

/// Bytes of a segment that say who has it and whether it lives.
const HEADER_LEN: usize = 4096;
