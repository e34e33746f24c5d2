//! A send request of a queue pair without a connection (UD): to one queue pair, or to a group.

use super::datagram::Datagram;
use super::multicast;
use crate::objects::qp::Qp;
use crate::objects::work::{Remote, Step, Work};
use crate::objects::world::World;
use crate::shm::layout::{QP_BITS, QPS};
use crate::shm::shortage::is_shortage;
use rdma_sys::*;

/// Sends a datagram, loses it, finds that it has to wait for room, or that there is no memory for a
/// ring to its target.
pub fn send_datagram(qp: &mut Qp, w: &mut World, work: &Work, sges: &[ibv_sge]) -> Step {
    let step = try_datagram(qp, w, work, sges);
    if step.is_none() {
        w.stats.ud_dropped += 1;
    }
    step.unwrap_or(Step::Done(IBV_WC_SUCCESS))
}

/// None: it is lost.
fn try_datagram(qp: &Qp, w: &mut World, work: &Work, sges: &[ibv_sge]) -> Option<Step> {
    let Remote::Datagram { qpn, qkey, to } = work.remote else { return None };
    if to.port != qp.port {
        // A handle for another port, or of another device, than the queue pair's.
        return Some(Step::Done(IBV_WC_LOC_QP_OP_ERR));
    }
    let datagram = Datagram { from: qp, qkey, to, work, sges };
    if qpn == multicast::QPN {
        multicast::send(w, &datagram);
        return Some(Step::Done(IBV_WC_SUCCESS));
    }
    let World { peers, ports, stats, .. } = w;
    let peer = match peers.reach((qpn >> QP_BITS) as usize) {
        Ok(peer) => peer,
        Err(error) => return is_shortage(error).then_some(Step::Refused(error)),
    };
    let port = to.find(ports.card(qp.port), &peer.cards)?;
    datagram.offer(ports, peer, qpn as usize % QPS, Some(port), &mut stats.doorbells)
}
