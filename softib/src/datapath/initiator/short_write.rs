//! The short way of an RDMA WRITE of one buffer to memory that the peer shares with us: a copy, as it is posted.

use super::mapped::open;
use super::short::{Short, complete_write};
use crate::objects::qp::Qp;
use crate::objects::world::World;
use rdma_sys::*;

/// An RDMA WRITE of one buffer on a connected RC queue pair with nothing queued, to memory that is mapped here.
#[inline(always)]
pub fn write_mapped(qp: &mut Qp, w: &mut World, wr: &ibv_send_wr, sge: &ibv_sge) -> Short {
    let has_room = qp.sq_posted.wrapping_sub(qp.sq_retired) < qp.cap.max_send_wr;
    if !qp.short || !qp.sq.is_empty() || !has_room {
        return Short::Other;
    }
    let inline = wr.send_flags & IBV_SEND_INLINE != 0;
    let may_read =
        if inline { sge.length <= qp.cap.max_inline_data } else { w.mrs.allows(sge, qp.pd as u32, false) };
    let Some(link) = qp.link.as_mut().filter(|link| may_read && link.is_current()) else {
        return Short::Other;
    };
    // SAFETY: the caller has seen that it is a WRITE, so the program has filled this member of the union.
    let rdma = unsafe { wr.wr.rdma };
    let Some(peer) = w.peers.at_hand(link) else { return Short::Other };
    let window = match &mut link.window {
        Some(window) if window.row.key() == rdma.rkey => window,
        _ if link.apart == rdma.rkey => return Short::Other,
        _ => match open(link, peer, qp.attr.dest_qp_num, rdma.rkey) {
            Some(window) => window,
            None => return Short::Other,
        },
    };
    let Some(place) = window.place(rdma.remote_addr, sge.length) else { return Short::Other };
    let holds = window.begin(peer.ring.is_fenced());
    if holds {
        // SAFETY: the program vouches for its buffer until the completion (inline, or checked against its MR). The peer had granted the region
        // when it was looked at, and that has not changed.
        unsafe { window.write(sge.addr as *const u8, place, sge.length) };
    }
    window.end();
    if !holds {
        return Short::Other;
    }
    window.expect_more(place, w.in_burst);
    w.in_burst = true;
    qp.sq_posted = qp.sq_posted.wrapping_add(1);
    w.stats.rdma_direct += 1;
    if qp.sig_all || wr.send_flags & IBV_SEND_SIGNALED != 0 {
        complete_write(qp, w, wr.wr_id, sge.length);
    }
    Short::Sent
}
