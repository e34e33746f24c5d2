//! One-sided operations: RDMA WRITE, READ, and the 64-bit atomics.
//!
//! The initiator checks the key, the bounds, the rights and the protection domain in the target's MR table, says which
//! region it works on (hazard word of its ring, so that the target's dereg waits), and moves the data itself with
//! process_vm_writev/readv: no CPU of the target is needed. Where that is not allowed (found by trying; SOFTIB_CMA=0 forbids
//! it), the request goes through the rings, see `rdma_ring`.
//!
//! Atomics always go through the rings: the owner of the memory carries them out with an atomic instruction of its CPU. So
//! they are atomic among all initiators, all keys of the same memory and the owner's own atomics, no lock exists that
//! a process could take to its grave (or hold while it is stopped), and an initiator that dies leaves its operation
//! done once or not at all.

use crate::engine::world::{Stats, World};
use crate::errno::Errno;
use crate::objects::mr::Mrs;
use crate::objects::peer::{Link, Peer};
use crate::objects::qp::Qp;
use crate::port::Copies;
use crate::rdma_ring::{self, Message, WORD};
use crate::send::{self, Remote, Step, Work};
use crate::shm::cell::{Head, op};
use crate::shm::copy;
use crate::shm::layout::{H_NONCE, H_PROBE, R_HAZARD, ring_entry};
use crate::shm::mrtable::{self, Exposed};
use crate::shm::ring;
use crate::{iwarp, xrc};
use rdma_sys::*;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Carries an RDMA request out.
pub fn attempt(qp: &mut Qp, w: &mut World, work: &mut Work, sges: &[ibv_sge]) -> Step {
    let (me, iwarp) = ((qp.num, w.segment.incarnation), w.is_iwarp());
    let Some(link) = qp.link.as_mut() else { return xrc::send::attempt(qp, w, work, sges) };
    if work.unconfirmed {
        return send::outcome(&mut w.peers, link, me, work);
    }
    let peer = match send::reach(&mut w.peers, link, me) {
        Ok(peer) => peer,
        Err(step) => return step,
    };
    if matches!(work.remote, Remote::Word { .. }) && work.len != WORD {
        return Step::Done(IBV_WC_LOC_LEN_ERR);
    }
    if is_answered_with_data(work) {
        if qp.attr.max_rd_atomic == 0 {
            return Step::Done(IBV_WC_LOC_QP_OP_ERR);
        }
        if iwarp && !iwarp::may_read_into(&w.mrs, sges) {
            return Step::Done(IBV_WC_LOC_PROT_ERR);
        }
    }
    let from = Sender { kind: qp.kind, num: qp.num };
    let grant = Grant { access: link.view.access, pd: link.view.pd, qpn: qp.attr.dest_qp_num };
    if !work.begun() && !grant.offers(needed(work)) {
        return refused(peer, &mut w.stats, from, link, IBV_WC_REM_INV_REQ_ERR);
    }
    if !work.moved && work.len > 0 {
        if matches!(work.remote, Remote::Word { .. }) || !probe(peer) {
            let to = Message { dst: link.dst, src_qpn: qp.num, via: None };
            return rdma_ring::request(peer, &mut w.stats, to, work, sges);
        }
        match direct(peer, &w.mrs, &grant, work, sges) {
            Ok(()) => (work.moved, w.stats.rdma_direct) = (true, w.stats.rdma_direct + 1),
            Err(IBV_WC_REM_ACCESS_ERR) => {
                return refused(peer, &mut w.stats, from, link, IBV_WC_REM_ACCESS_ERR);
            }
            Err(status) => return Step::Done(status),
        }
    }
    if work.opcode == IBV_WR_RDMA_WRITE_WITH_IMM {
        return send::notify(qp, w, work);
    }
    Step::Done(IBV_WC_SUCCESS)
}

/// READ and the fetching atomics need resources of the responder (max_rd_atomic of the initiator, max_dest_rd_atomic there).
pub fn is_answered_with_data(work: &Work) -> bool {
    work.fetches()
}

/// Who is refused.
#[derive(Debug, Clone, Copy)]
pub struct Sender {
    pub kind: u32,
    pub num: u32,
}

/// The target refuses a request, as its tables say: it hears of that, for its queue pair ends as well (IBTA 9.9.3, class C). An
/// unreliable one drops the request and goes on.
#[cold]
pub fn refused(peer: &mut Peer, stats: &mut Stats, from: Sender, link: &Link, status: u32) -> Step {
    if from.kind != IBV_QPT_UC {
        if !peer.ring.has_room(0) {
            return Step::Room;
        }
        let dst = link.dst;
        let head = Head { op: op::REFUSED, dst, src_qpn: from.num, imm: status, ..Head::default() };
        let pushed = peer.ring.push(head, |_| ());
        send::rung(pushed, peer, &mut stats.doorbells);
    }
    Step::Done(status)
}

/// What the remote QP lets its peer do, and its number.
#[derive(Debug, Clone, Copy)]
pub struct Grant {
    pub access: u32,
    pub pd: u32,
    pub qpn: u32,
}

impl Grant {
    /// Where the `len` bytes are that requests call `addr`, if `need` is granted on them.
    pub fn permits(&self, exposed: &Exposed, need: u32, addr: u64, len: u64) -> Option<u64> {
        let region = &exposed.region;
        let ours = region.pd == self.pd && (exposed.qpn == 0 || exposed.qpn == self.qpn);
        let fine = self.offers(need) && region.access & need == need && ours && region.covers(addr, len);
        fine.then(|| exposed.place(addr))
    }

    /// Whether the queue pair takes such requests at all.
    pub fn offers(&self, need: u32) -> bool {
        self.access & need == need
    }
}

/// The rights that a request needs of the target's memory (IBV_ACCESS_*).
pub fn needed(work: &Work) -> u32 {
    match work.opcode {
        IBV_WR_RDMA_READ => IBV_ACCESS_REMOTE_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_ACCESS_REMOTE_ATOMIC,
        _ => IBV_ACCESS_REMOTE_WRITE,
    }
}

/// Moves the data with the initiator's own hands. Err: a completion status.
///
/// A wrong entry in a peer's table harms that peer; our own memory is not touched on the word of a table that others can write
/// to, so `own` is asked for it.
pub fn direct(peer: &mut Peer, own: &Mrs, grant: &Grant, work: &Work, sges: &[ibv_sge]) -> Result<(), u32> {
    let (addr, rkey) = work.remote.memory();
    peer.ring.hazard().store(rkey, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let exposed = if peer.is_self() { own.exposed(rkey) } else { mrtable::look_up(&peer.map, rkey) };
    let (need, len) = (needed(work), u64::from(work.len));
    let place = exposed.and_then(|exposed| grant.permits(&exposed, need, addr, len));
    let moved = place.map_or(Err(Errno(libc::EFAULT)), |place| transfer(peer, work, place, sges));
    peer.ring.hazard().store(0, Ordering::Release);
    match moved {
        Ok(()) => Ok(()),
        Err(Errno(libc::ESRCH)) => Err(IBV_WC_RETRY_EXC_ERR),
        Err(_) => Err(IBV_WC_REM_ACCESS_ERR),
    }
}

fn transfer(peer: &mut Peer, work: &Work, mut remote: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
    let reading = work.opcode == IBV_WR_RDMA_READ;
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        let len = sge.length as usize;
        if peer.is_self() {
            copy_own(sge.addr, remote, len, reading);
        } else {
            copy_remote(peer.pid, sge.addr, remote, len, reading)?;
        }
        remote += len as u64;
    }
    Ok(())
}

fn copy_own(local: u64, remote: u64, len: usize, reading: bool) {
    let (from, to) = if reading { (remote, local) } else { (local, remote) };
    let (from, to) = (from as *const u8, to as *mut u8);
    let apart = local.abs_diff(remote) >= len as u64;
    // SAFETY: both ranges lie in valid MRs of this process with the rights needed (checked by the callers); only `copy` is given
    // ranges that overlap.
    unsafe {
        if reading || !apart { std::ptr::copy(from, to, len) } else { copy::write_in_order(from, to, len) }
    };
}

fn copy_remote(pid: i32, local: u64, remote: u64, len: usize, reading: bool) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        let mine = part(local, done, len);
        // Each is a copy of its own to the kernel, after the one before it.
        let body = if reading { len } else { copy::body(remote, len).max(done) };
        let theirs = [part(remote, done, body), part(remote, body, len)];
        // SAFETY: the local range is a buffer that the program vouches for (checked against its MR); the remote one is
        // touched by the kernel on behalf of its owner's registration (checked).
        let moved = unsafe {
            match reading {
                true => libc::process_vm_readv(pid, &mine, 1, theirs.as_ptr(), 1, 0),
                false => libc::process_vm_writev(pid, &mine, 1, theirs.as_ptr(), 2, 0),
            }
        };
        match moved {
            -1 if Errno::last().0 == libc::EINTR => {}
            -1 => return Err(Errno::last()),
            0 => return Err(Errno(libc::EFAULT)),
            moved => done += moved as usize,
        }
    }
    Ok(())
}

/// The bytes from `start` to `end` of a range.
fn part(base: u64, start: usize, end: usize) -> libc::iovec {
    libc::iovec { iov_base: (base as usize + start) as *mut _, iov_len: end - start }
}

/// What SOFTIB_CMA says about this peer: `0` never, `node` within a node.
fn may_reach(peer: &Peer) -> bool {
    match Copies::from_environment() {
        Ok(Copies::Never) => false,
        Ok(Copies::WithinNode) => peer.cards[0].guid == crate::port::guid(0),
        // What cannot be understood keeps the device from being opened.
        Ok(Copies::Anywhere) | Err(_) => true,
    }
}

/// Whether process_vm_* reaches the peer: found by reading its nonce where it says a copy is.
pub fn probe(peer: &mut Peer) -> bool {
    if let Some(known) = peer.reachable {
        return known;
    }
    if !may_reach(peer) {
        peer.reachable = Some(false);
        return false;
    }
    let at = peer.map.u64(H_PROBE).load(Ordering::Relaxed);
    let mut copy = [0u8; 16];
    let read = copy_remote(peer.pid, copy.as_mut_ptr() as u64, at, copy.len(), true);
    let reachable = read.is_ok() && copy == peer.map.read::<16>(H_NONCE);
    peer.reachable = Some(reachable);
    reachable
}

/// The state of a peer that owes an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answerer {
    Open,
    /// Its queue pair takes no more requests; an answer may be on its way.
    Closed,
    Dead,
}

/// Looks at the peer that owes the answer at the head of the SQ.
pub fn answerer(qp: &mut Qp, w: &mut World, work: &Work) -> Answerer {
    let me = (qp.num, w.segment.incarnation);
    let Some(link) = qp.link.as_mut() else { return xrc::send::answerer(qp, w, work) };
    match w.peers.connected(link) {
        Ok(peer) if link.is_open(peer, me) => Answerer::Open,
        Ok(_) => Answerer::Closed,
        Err(_) => Answerer::Dead,
    }
}

/// An initiator works on a region for as long as a copy takes; only one that is stopped in the middle of it takes longer.
const BUSY: Duration = Duration::from_secs(10);

/// Waits until no initiator works on the region behind an invalidated key. EBUSY: one does not come to an end; the key stays
/// invalid, and the caller may wait again.
pub fn wait_for_initiators(engine: &crate::engine::Engine, key: u32) -> Result<(), Errno> {
    let start = Instant::now();
    let map = engine.enter().w.segment.map.clone();
    for ring in 0..ring::limit(&map) {
        let Some((slot, incarnation)) = ring::sender(&map, ring) else { continue };
        let mut looks = 0u32;
        while map.u32(ring_entry(ring) + R_HAZARD).load(Ordering::Acquire) == key {
            std::thread::yield_now();
            looks += 1;
            if !looks.is_multiple_of(1024) {
                continue;
            }
            if engine.enter().w.peers.is_gone(slot, incarnation) {
                break;
            }
            if start.elapsed() >= BUSY {
                return Err(Errno::BUSY);
            }
        }
    }
    Ok(())
}
