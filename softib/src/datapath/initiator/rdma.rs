//! One-sided operations: RDMA WRITE, READ, and the 64-bit atomics.
//!
//! The initiator checks the key, the bounds, the rights and the protection domain in the target's MR table, says which
//! region it works on (hazard word of its ring, so that the target's dereg waits), and moves the data itself with
//! process_vm_writev/readv: no CPU of the target is needed. Where that is not allowed (found by trying; SOFTIB_CMA=0 forbids
//! it), the request goes through the rings, see `ring`.
//!
//! Atomics always go through the rings: the owner of the memory carries them out with an atomic instruction of its CPU. So
//! they are atomic among all initiators, all keys of the same memory and the owner's own atomics, no lock exists that
//! a process could take to its grave (or hold while it is stopped), and an initiator that dies leaves its operation
//! done once or not at all.

use super::direct::{direct, is_answered_with_data, needed, probe};
use super::message::notify;
use super::ring::{self, Message};
use super::transit::{Sender, outcome, reach, refused};
use crate::datapath::iwarp;
use crate::objects::grant::Grant;
use crate::objects::qp::Qp;
use crate::objects::work::{Remote, Step, WORD, Work};
use crate::objects::world::World;
use rdma_sys::*;

/// Carries an RDMA request out.
pub fn attempt(qp: &mut Qp, w: &mut World, work: &mut Work, sges: &[ibv_sge]) -> Step {
    let (me, iwarp) = ((qp.num, w.segment.incarnation), w.is_iwarp());
    let Some(link) = qp.link.as_mut() else { return Step::Silent };
    if work.unconfirmed {
        return outcome(&mut w.peers, link, me, work);
    }
    let peer = match reach(&mut w.peers, link, me) {
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
            return ring::request(peer, &mut w.stats, to, work, sges);
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
        return notify(qp, w, work);
    }
    Step::Done(IBV_WC_SUCCESS)
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
pub fn answerer(qp: &mut Qp, w: &mut World) -> Answerer {
    let me = (qp.num, w.segment.incarnation);
    let Some(link) = qp.link.as_mut() else { return Answerer::Dead };
    match w.peers.connected(link) {
        Ok(peer) if link.is_open(peer, me) => Answerer::Open,
        Ok(_) => Answerer::Closed,
        Err(_) => Answerer::Dead,
    }
}
