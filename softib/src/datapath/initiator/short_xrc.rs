//! The short way of a SEND over XRC.

use super::short::{Short, fill, fits_piece, sent_short, short_flags, short_len};
use crate::objects::qp::{self, Qp};
use crate::objects::world::World;
use crate::shm::cell::{Head, Via, op};
use crate::shm::cells::LONG;
use rdma_sys::*;

/// A SEND of one cell, as [`send_short`](super::short::send_short) on a connected queue pair: to an SRQ that has been sent to before, through a receive queue pair that
/// is as it was then.
pub fn send_short(qp: &mut Qp, w: &mut World, wr: &ibv_send_wr, sges: &[ibv_sge]) -> Short {
    if !qp.direct {
        return Short::Other;
    }
    let Some(len) = short_len::<false>(qp, w, wr, sges) else { return Short::Other };
    // SAFETY: the queue pair's type says which member of the union the program has filled.
    let number = unsafe { wr.qp_type.xrc.remote_srqn };
    let Some(to) = qp.xrc.as_mut() else { return Short::Other };
    let through = qp::number(to.domain.slot, to.index);
    let Some((generation, link)) = to.at_hand(number) else { return Short::Other };
    let Some(peer) = w.peers.at_hand(link) else { return Short::Other };
    peer.ring.prepare(len);
    if !link.is_current() || !fits_piece(&peer.ring, len) || !peer.ring.fits(len as usize) {
        return Short::Other;
    }
    if len >= LONG {
        peer.ring.expect_payload(len);
    }
    let Some(pos) = link.claim_fitting(peer.ring.index(), len) else { return Short::Other };
    let (op, flags) = (op::SEND | op::XRC, short_flags(wr));
    peer.ring.set_via(Via { qpn: through, generation });
    let head = Head { op, flags, dst: link.dst, src_qpn: qp.num, len, imm: 0, pos };
    let past = peer.ring.begin(len);
    let watched = peer.ring.send_any(head, |to| fill(past, len, sges, to));
    if w.in_burst {
        peer.ring.expect_more();
    }
    w.in_burst = true;
    let open = link.is_current();
    let nothing_due = watched && open && peer.ring.fits(len as usize);
    sent_short(qp, wr, len, (watched, open, nothing_due))
}
