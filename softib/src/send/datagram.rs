//! Datagrams (UD): they find a queue pair and a receive, or they are lost.
//!
//! Room in the ring is another matter: a wire would hold more than a ring does, so a datagram waits for it at the head of its SQ
//! while the target lives ([`send_datagram`]). It is lost only if the target has not read for [`PATIENCE`], so that a stopped
//! process does not keep a queue pair from all others. Half of a ring is for connected queue pairs only: they have a
//! receive for each message in it, while datagrams that nobody has read yet hold receives back.

use super::Step;
use super::message::{destination, rung, solicited};
use super::work::{GRH_LEN, Remote, Route, UD_MTU, Work, gather, op};
use crate::engine::world::World;
use crate::objects::qp::Qp;
use crate::shm::layout::QP_BITS;
use crate::shm::ring::{FRAGMENT_MAX, Head, flag};
use crate::shm::rq::{self, Claim};
use rdma_sys::*;
use std::time::Duration;

/// How long a datagram waits for a target that lives and does not read.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends a datagram, loses it, or finds that it has to wait for room.
pub fn send_datagram(qp: &mut Qp, w: &mut World, work: &Work, sges: &[ibv_sge]) -> Step {
    let step = try_datagram(qp, w, work, sges);
    if step.is_none() {
        w.stats.ud_dropped += 1;
    }
    step.unwrap_or(Step::Done(IBV_WC_SUCCESS))
}

/// None: it is lost.
fn try_datagram(qp: &Qp, w: &mut World, work: &Work, sges: &[ibv_sge]) -> Option<Step> {
    let Remote::Datagram { qpn, qkey, route: Route::Here { global } } = work.remote else { return None };
    let slot = (qpn >> QP_BITS) as usize;
    let index = qpn as usize % crate::shm::layout::QPS;
    let peer = w.peers.reach(slot).ok()?;
    let known = crate::shm::qptable::exists(&peer.map, index);
    let (_, view) = known.then(|| crate::shm::qptable::look_up(&peer.map, index)).flatten()?;
    // A Q_Key with the upper bit set stands for the sending QP's own (IBTA 10.2.5).
    let qkey = if qkey >> 31 != 0 { qp.attr.qkey } else { qkey };
    let open = crate::objects::qp_state::is_receiving(view.state) && view.kind == IBV_QPT_UD;
    if !open || view.qkey != qkey {
        return None;
    }
    if !peer.ring.has_room_to_spare(work.len as usize) {
        return (peer.ring.stalled() < PATIENCE).then_some(Step::Room);
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
    Some(Step::Done(IBV_WC_SUCCESS))
}

const _: () = assert!(UD_MTU as usize <= FRAGMENT_MAX);
