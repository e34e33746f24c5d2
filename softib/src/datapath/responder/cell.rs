//! The target: what happens to a cell that arrives.
//!
//! A message is believed when its QP exists, has the generation the sender saw, takes messages, and (RC, UC) is
//! connected to that very sender. Everything else is a stray: dropped, counted, and what it consumed from a
//! shared queue is posted again.

use super::placing::From;
use super::receive::{broken_receive, filled, repost, send, write_imm};
use super::{datagram, rdma, window, xrc};
use crate::datapath::initiator::{answered, response_arrived};
use crate::objects::events::Subject;
use crate::objects::qp::{Qp, Qps};
use crate::objects::qp_state::is_receiving;
use crate::objects::world::World;
use crate::shm::cell::{Found, Head, flag, op};
use crate::shm::layout::{QP_BITS, QPS};
use rdma_sys::*;

/// Handles one cell.
#[inline(always)]
pub fn cell(qps: &mut Qps, w: &mut World, from: From, found: &Found) {
    let head = &found.head;
    let qp = qps.get_mut(head.dst as usize % QPS).filter(|qp| wanted(qp, head, from));
    let Some(qp) = qp else { return stray(qps, w, from, found) };
    if qp.state == IBV_QPS_RTR && !qp.established && qp.kind != IBV_QPT_UD {
        establish(qp, w);
    }
    match head.op {
        op::SEND => send(qp, w, found),
        op::DATAGRAM => datagram::arrived(qp, w, found),
        _ => rare(qp, w, found),
    }
}

#[inline]
fn wanted(qp: &Qp, head: &Head, from: From) -> bool {
    let generation = qp.generation as u16 & (u16::MAX >> QP_BITS) == head.dst >> QP_BITS;
    let connected = match qp.kind {
        IBV_QPT_UD => matches!(head.op, op::DATAGRAM | op::TOO_LONG),
        _ => {
            qp.attr.dest_qp_num == head.src_qpn
                && qp.link.as_ref().is_some_and(|link| link.incarnation == from.incarnation)
        }
    };
    generation && connected && (is_receiving(qp.state) || qp.takes_in(head))
}

#[cold]
fn establish(qp: &mut Qp, w: &mut World) {
    qp.established = true;
    w.async_event(qp.context, IBV_EVENT_COMM_EST, Subject::Qp(qp.index));
}

/// A message for no connected queue pair: it is XRC's, or it is dropped. A receive that it took
/// from an SRQ is not lost then: it is posted again, as if it had not been taken. (It is not
/// flushed if the QP is in error: LAST_WQE_REACHED has promised that no more completions follow.)
#[cold]
fn stray(qps: &mut Qps, w: &mut World, from: From, found: &Found) {
    let head = &found.head;
    if head.op & op::XRC != 0 {
        return xrc::cell(qps, w, from, found);
    }
    if head.op == op::RESPONSE && answered(qps, w, from.incarnation, found) {
        return;
    }
    w.stats.stray += 1;
    if !consumed_a_receive(head) {
        return;
    }
    let index = head.dst as usize % QPS;
    let Some(key) = qps.shared_queue(index) else { return };
    let Some(taken) = w.srqs.get_mut(key).and_then(|srq| srq.queue.take(head.pos)) else { return };
    w.srqs[key].queue.repost(taken);
}

/// Whether this cell is the one that says which receive its message took.
fn consumed_a_receive(head: &Head) -> bool {
    match head.op {
        op::SEND | op::SEND_INV => head.flags & flag::FIRST != 0,
        op::DATAGRAM | op::WRITE_IMM | op::FILLED | op::TOO_LONG | op::BAD_RECEIVE => true,
        _ => false,
    }
}

#[cold]
fn rare(qp: &mut Qp, w: &mut World, found: &Found) {
    let head = &found.head;
    match head.op {
        op::WRITE_IMM => write_imm(qp, w, found),
        op::FILLED => filled(qp, w, found),
        op::TOO_LONG if matches!(qp.kind, IBV_QPT_UD | IBV_QPT_UC) => repost(qp, w, head.pos),
        op::TOO_LONG => broken_receive(qp, w, head.pos, IBV_WC_LOC_LEN_ERR),
        op::BAD_RECEIVE => broken_receive(qp, w, head.pos, IBV_WC_LOC_PROT_ERR),
        op::WRITE | op::READ | op::ASK | op::GIVE | op::FETCH_ADD | op::CMP_SWAP | op::ATOMIC_WRITE
            if !rdma::accepts(qp, w) => {}
        op::WRITE => rdma::write_arrived(qp, w, found),
        op::READ | op::ASK => rdma::read_arrived(qp, w, found),
        op::GIVE => rdma::gift_arrived(qp, w, found),
        op::RESPONSE => response_arrived(qp, w, found),
        op::FETCH_ADD | op::CMP_SWAP | op::ATOMIC_WRITE => rdma::atomic_arrived(qp, w, found),
        op::REFUSED => qp.refuse(w, head.imm),
        op::SEND_INV => window::send_arrived(qp, w, found),
        _ => w.stats.stray += 1,
    }
}
