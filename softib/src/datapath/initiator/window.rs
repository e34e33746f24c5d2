//! Memory windows on the wire: bind, local invalidation, SEND with invalidation.
//!
//! A key that loses its validity is withdrawn from the segment first; the request is over when no initiator works with it any
//! more (they say so in the hazard word of their ring), so that after its completion nothing comes through the window.
//!
//! SEND with invalidation: the initiator, which alone may use a type 2 window of the other queue pair, withdraws the key in the
//! peer's table with its own hand, so what it posts later finds it invalid; the target does the rest when the message arrives.

use super::path::Way;
use crate::objects::qp::Qp;
use crate::objects::work::{Remote, Step, Work};
use crate::objects::world::World;
use crate::shm::layout::{R_HAZARD, ring_entry};
use crate::shm::{mrtable, ring};
use rdma_sys::*;
use std::sync::atomic::Ordering;

/// Carries out a bind or a local invalidation (IBTA 10.6.7.2.3, 11.4.1.1).
#[cold]
pub fn attempt(qp: &Qp, w: &mut World, work: &mut Work) -> Step {
    match work.remote {
        Remote::Bind(binding) => {
            let Some(plan) = w.mrs.plan(&binding, qp.pd as u32, qp.num) else {
                return Step::Done(IBV_WC_MW_BIND_ERR);
            };
            if !is_free(w, work, plan.index) {
                return Step::Turn;
            }
            w.mrs.bind(&w.segment, plan);
        }
        _ => {
            let index = mrtable::index_of(work.imm);
            if !work.asked && w.mrs.invalidable(work.imm, qp.num).is_none() {
                return Step::Done(IBV_WC_MW_BIND_ERR);
            }
            if !is_free(w, work, index) {
                return Step::Turn;
            }
        }
    }
    Step::Done(IBV_WC_SUCCESS)
}

/// Frees the window, and says whether all initiators have stopped using it.
fn is_free(w: &mut World, work: &mut Work, index: usize) -> bool {
    if !work.asked {
        w.mrs.unbind(&w.segment, index);
        work.asked = true;
    }
    let map = w.segment.map.clone();
    (0..ring::limit(&map)).all(|ring| {
        let key = map.u32(ring_entry(ring) + R_HAZARD).load(Ordering::Acquire);
        let busy = key != 0 && mrtable::index_of(key) == index;
        !busy || ring::sender(&map, ring).is_none_or(|(slot, inc)| w.peers.is_gone(slot, inc))
    })
}

/// A SEND with invalidation (initiator). A key that the peer's queue pair can't invalidate is a remote access error.
#[cold]
pub fn send_invalidating(qp: &mut Qp, w: &mut World, work: &mut Work, sges: &[ibv_sge]) -> Step {
    let dest = qp.attr.dest_qp_num;
    let World { peers, stats, segment, .. } = w;
    let mut way = match Way::to_peer(qp, peers, stats, segment.incarnation, work) {
        Ok(way) => way,
        Err(step) => return step,
    };
    if !work.moved {
        let known = mrtable::look_up(&way.peer.map, work.imm);
        if known.is_none_or(|exposed| exposed.qpn != dest) {
            return way.refused(IBV_WC_REM_ACCESS_ERR);
        }
        mrtable::revoke(&way.peer.map, work.imm);
        work.moved = true;
    }
    way.send(work, sges)
}
