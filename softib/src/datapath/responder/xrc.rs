//! Messages over XRC: from a send queue pair, through a receive queue pair of a domain, to a shared receive queue of any process
//! of that domain.
//!
//! ```text
//!   process A               domain D (segment)            process C
//!   XRC_SEND qp ──────────> XRC_RECV qp ────────────────> XRC SRQ, its CQ, its PD
//!      │   state, connection, rights, holders: looked at      ^
//!      └──────────────────────── ring of A in C ──────────────┘
//! ```
//!
//! No process stands for the receive queue pair: the initiator reads in the domain's segment
//! whether it takes messages, and goes to the process whose SRQ the request names. So that process
//! is the only one whose death fails a request, and the receive queue pair lives as long as any
//! process has a handle of it.
//!
//! What is in the ring names the receive queue pair (`shm::cell::Via`), and the target looks at the domain itself before it believes it.
//!
//! Here is the target: the process that has the SRQ.
//!
//! A request for memory is believed when the SRQ exists and the receive queue pair that it says it came through exists in the
//! SRQ's domain, takes messages and is connected to that very sender. A message that has consumed a receive of ours was let through by the
//! initiator, and has been acknowledged by that: it is delivered, even if the receive queue pair has gone since. Its
//! completion carries the number of the receive queue pair; so do answers.

use super::placing::From;
use super::receive::{broken_receive, send, write_imm};
use super::{events, rdma};
use crate::objects::arrival::Arrival;
use crate::objects::qp::Qps;
use crate::objects::qp_state::is_receiving;
use crate::objects::srq::Srq;
use crate::objects::world::World;
use crate::objects::xrc::{Flow, XrcSrq};
use crate::shm::cell::{Found, Via, op};
use crate::shm::domain::Passage;
use crate::shm::layout::{QP_BITS, QPS};
use rdma_sys::*;

/// Handles a cell of an XRC message.
#[cold]
pub fn cell(qps: &Qps, w: &mut World, from: From, found: &Found) {
    let head = &found.head;
    let Some(key) = qps.shared_queue(head.dst as usize % QPS) else { return w.stats.stray += 1 };
    let Some((mut to, open)) = arrival(w, key, from, found) else { return w.stats.stray += 1 };
    match head.op & !op::XRC {
        op::SEND => send(&mut to, w, found),
        op::WRITE_IMM => write_imm(&mut to, w, found),
        op::TOO_LONG => broken_receive(&mut to, w, head.pos, IBV_WC_LOC_LEN_ERR),
        op::BAD_RECEIVE => broken_receive(&mut to, w, head.pos, IBV_WC_LOC_PROT_ERR),
        _ if !open => w.stats.stray += 1,
        op::REFUSED => events::refuse(w, &to, head.imm),
        op::WRITE | op::READ | op::ASK | op::FETCH_ADD | op::CMP_SWAP => rdma::xrc_arrived(w, &to, found),
        _ => w.stats.stray += 1,
    }
}

/// The XRC side of SRQ `key`, if the cell means it and not one that had its place before.
fn meant(w: &World, key: usize, dst: u16) -> Option<(&Srq, &XrcSrq)> {
    let srq = w.srqs.get(key)?;
    let xrc = srq.xrc.as_ref()?;
    let same =
        xrc.index == dst as usize % QPS && xrc.generation as u16 & (u16::MAX >> QP_BITS) == dst >> QP_BITS;
    same.then_some((srq, xrc))
}

/// Whether a cell is for SRQ `key`, which completes to queue `cq`, and through a receive queue pair of its domain that has had messages. What
/// has consumed a receive is delivered, whatever has become of that queue pair (`cell`); the first one is an event.
#[inline]
pub fn is_usual(w: &World, key: usize, cq: usize, (dst, via): (u16, Via)) -> bool {
    let Some((_, xrc)) = meant(w, key, dst).filter(|(_, xrc)| xrc.cq == cq) else { return false };
    let Some(domain) = w.xrc.domains.get(xrc.domain).map(|domain| &domain.file) else { return false };
    (via.qpn >> QP_BITS) as usize == domain.slot && domain.is_established(via.qpn as usize % QPS)
}

/// Whether a message comes through this receive queue pair, and from the one that it is connected to.
fn takes(qp: &Passage, via: Via, sender: (u32, u64)) -> bool {
    qp.generation == via.generation && qp.sender == sender && is_receiving(qp.state)
}

/// What a cell comes to, and whether its receive queue pair takes messages of that sender now.
fn arrival(w: &mut World, key: usize, from: From, found: &Found) -> Option<(Arrival, bool)> {
    let (head, via) = (&found.head, found.via);
    let (srq, xrc) = meant(w, key, head.dst)?;
    let domain = w.xrc.domains.get(xrc.domain)?.file.clone();
    if (via.qpn >> QP_BITS) as usize != domain.slot {
        return None;
    }
    let index = via.qpn as usize % QPS;
    let through = domain.passage(index).filter(|qp| takes(qp, via, (head.src_qpn, from.incarnation)));
    let (access, pkey) = through.map_or((0, 0), |qp| (qp.offers, qp.pkey));
    let ports = through.map_or((0, 0), |qp| qp.ports);
    let sender = (from.incarnation, head.src_qpn);
    let (srq_key, cq, pd) = (key, xrc.cq, srq.pd);
    let to = Arrival { srq: srq_key, domain, index, via, cq, pd, sender, access, pkey, ports };
    if through.is_some_and(|qp| qp.state == IBV_QPS_RTR) && to.domain.establish(index) {
        events::raise(w, &to.domain, index, IBV_EVENT_COMM_EST);
    }
    Some((to, through.is_some()))
}

/// Posts the receives of messages again that can't go on: of senders for which `is_gone`, or through a queue pair that takes
/// nothing any more and has not brought anything since the last time. (What it had taken before may still be in the ring.)
pub fn forget_flows(w: &mut World, is_gone: impl Fn(u64) -> bool) {
    let World { srqs, xrc, .. } = w;
    for (_, srq) in srqs.iter_mut() {
        let Some(side) = srq.xrc.as_mut().filter(|side| !side.flows.is_empty()) else { continue };
        let Some(domain) = xrc.domains.get(side.domain) else { continue };
        let ended = |&(incarnation, _): &(u64, u32), flow: &mut Flow| {
            let through = domain.file.look_up(flow.through.0);
            let open = through
                .is_some_and(|(_, qp)| qp.generation == flow.through.1 && is_receiving(qp.attr.qp_state));
            let stands = std::mem::replace(&mut flow.seen, flow.part.received) == flow.part.received;
            is_gone(incarnation) || !open && stands
        };
        let ended: Vec<Flow> = side.flows.extract_if(ended).map(|(_, flow)| flow).collect();
        ended.into_iter().for_each(|flow| srq.queue.repost(flow.part.taken));
    }
}
