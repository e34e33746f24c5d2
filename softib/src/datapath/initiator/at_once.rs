//! READs and WRITEs of one buffer that need no entry of the send queue and no completion, for they are over within the call: their memory is mapped
//! here, or they go by our own hand. Whatever is in the way of that, the program posts them, and the general way finds out why.

use super::path::Way;
use super::rdma::may_give;
use super::short_rdma::moves_at_once;
use super::short_write::write_over;
use crate::fabric::MAX_MESSAGE;
use crate::objects::grant::Grant;
use crate::objects::moves::Kind;
use crate::objects::peer::Link;
use crate::objects::qp::Qp;
use crate::objects::work::{Remote, Work};
use crate::objects::world::World;
use rdma_sys::*;

/// A READ or WRITE.
#[derive(Debug)]
pub struct AtOnce<'a> {
    /// `ibv_wr_opcode`.
    pub opcode: u32,
    /// The buffer.
    pub sge: &'a ibv_sge,
    /// Its address at the peer, and the key.
    pub remote: (u64, u32),
    /// The program begins others before it waits for it.
    pub in_burst: bool,
}

/// Carries a request out, if that is how it would go as it is posted, and nothing that was posted before waits. False: it is to be posted.
#[inline(never)]
pub fn rdma_at_once(qp: &mut Qp, w: &mut World, request: &AtOnce) -> bool {
    let AtOnce { opcode, sge, remote, in_burst } = *request;
    w.in_burst |= in_burst;
    let reads = opcode == IBV_WR_RDMA_READ;
    let is_usual = (1..=MAX_MESSAGE).contains(&sge.length) && (reads || opcode == IBV_WR_RDMA_WRITE);
    if !is_usual
        || !qp.writes
        || !qp.sq.is_empty()
        || goes_through_rings(qp, w, request)
        || !w.mrs.allows(sge, qp.pd as u32, reads)
    {
        return false;
    }
    let moved = !reads && write_over(qp, w, sge, remote) || move_by_peer(qp, w, request);
    w.stats.rdma_direct += u64::from(moved);
    moved
}

/// The same, where what is known of the peer is looked up.
#[inline(always)]
fn move_by_peer(qp: &mut Qp, w: &mut World, request: &AtOnce) -> bool {
    if qp.attr.max_rd_atomic == 0 || w.is_iwarp() {
        return false;
    }
    let mut work = work_of(request, w.in_burst);
    work.may_give = may_give(qp, w, &work);
    let dest = qp.attr.dest_qp_num;
    let World { peers, stats, segment, mrs, .. } = w;
    let Ok(mut way) = Way::to_peer(qp, peers, stats, segment.incarnation, &work) else { return false };
    let grant = Grant { access: way.link.view.access, pd: way.link.view.pd, qpn: dest };
    moves_at_once(&mut way, mrs, &grant, &work, std::slice::from_ref(request.sge))
}

fn work_of(request: &AtOnce, in_burst: bool) -> Work {
    let (addr, rkey) = request.remote;
    Work {
        opcode: request.opcode,
        remote: Remote::Memory { addr, rkey },
        len: request.sge.length,
        in_burst,
        ..Default::default()
    }
}

/// It goes through the rings, for its memory is known not to be mapped here, and that takes less time than by our own hand.
#[inline(always)]
fn goes_through_rings(qp: &Qp, w: &mut World, request: &AtOnce) -> bool {
    let AtOnce { opcode, sge, remote: (_, rkey), .. } = *request;
    let is_apart = |link: &&Link| link.is_current() && link.apart == rkey;
    let Some(link) = qp.link.as_ref().filter(is_apart) else { return false };
    let kind = Kind::of(opcode == IBV_WR_RDMA_READ, sge.length, w.in_burst);
    let Some(peer) = w.peers.attached(link.slot).filter(|peer| !peer.moves.is_by_hand(kind)) else {
        return false;
    };
    w.began = peer.moves.is_timed(kind).then(timing::now);
    w.peers.awaits_writes
}
