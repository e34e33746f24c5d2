//! The target's side of a datagram: data from byte 40 on, the route header before it if there is one.

use super::placing::{scatter, tell_limit};
use super::receive::{bad_buffers, complete_from, take};
use super::receiver::Receiver;
use crate::objects::mr::Mrs;
use crate::objects::qp::Qp;
use crate::objects::work::GRH_LEN;
use crate::objects::world::World;
use crate::shm::cell::{Envelope, Found, flag};
use rdma_sys::*;

/// A datagram, taken apart.
struct Parts {
    envelope: Envelope,
    grh: Option<Found>,
    data: Found,
}

impl Parts {
    /// None: its sender has made it up.
    fn of(found: &Found) -> Option<Parts> {
        let prefix = found.part(0, Envelope::LEN as u32)?;
        // SAFETY: the part has this many readable bytes.
        let envelope =
            Envelope::parse(unsafe { prefix.payload.cast::<[u8; Envelope::LEN]>().read_unaligned() });
        let has_grh = found.head.flags & flag::GRH != 0;
        let start = Envelope::LEN as u32 + if has_grh { GRH_LEN } else { 0 };
        let data = found.part(start, found.head.len.checked_sub(start)?)?;
        let grh = if has_grh { Some(found.part(Envelope::LEN as u32, GRH_LEN)?) } else { None };
        Some(Parts { envelope, grh, data })
    }

    /// Copies it into a receive's buffers: the number of bytes they hold now, room for a GRH included.
    fn place(&self, mrs: &Mrs, pd: usize, sges: &[ibv_sge]) -> Option<u32> {
        let placed = scatter(mrs, pd, sges, GRH_LEN, &self.data)
            && self.grh.as_ref().is_none_or(|grh| scatter(mrs, pd, sges, 0, grh));
        placed.then(|| GRH_LEN + self.data.head.len)
    }
}

/// Delivers a datagram.
pub fn arrived(qp: &mut Qp, w: &mut World, found: &Found) {
    let Some(parts) = Parts::of(found).filter(|_| qp.kind == IBV_QPT_UD) else { return qp.nonsense(w) };
    let pd = qp.pd;
    let taken = match qp.queue(&mut w.srqs).and_then(|queue| queue.take_in_place(found.head.pos)) {
        Some((wr_id, sges)) => Some((wr_id, parts.place(&w.mrs, pd, sges))),
        None => {
            take(qp, w, found.head.pos).map(|taken| (taken.wr_id, parts.place(&w.mrs, qp.pd, &taken.sges)))
        }
    };
    if let Some(key) = qp.srq {
        tell_limit(w, key);
    }
    match taken {
        Some((wr_id, Some(len))) => {
            complete_from(qp, w, (wr_id, IBV_WC_RECV, len), &found.head, parts.envelope)
        }
        Some((wr_id, None)) => bad_buffers(qp, w, wr_id),
        None => qp.nonsense(w),
    }
}
