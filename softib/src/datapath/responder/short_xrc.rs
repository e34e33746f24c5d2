//! The counterpart of `initiator::short_xrc`: a message over XRC that a caller polls for.

use super::short::{Short, place};
use super::xrc;
use crate::objects::qp::Qps;
use crate::objects::world::World;
use crate::shm::cell::{Head, Via, flag, op};
use crate::shm::layout::QPS;
use rdma_sys::*;
use std::mem::MaybeUninit;

/// Places a whole SEND to an SRQ that completes to queue `cq`, as [`take_short`](super::short::take_short) on the careful way. What came
/// is passed by value: its parts stay in registers where it is none over XRC.
pub fn take_over_xrc(
    qps: &Qps,
    w: &mut World,
    cq: usize,
    (head, via): (Head, Via),
    payload: (*const u8, u32),
    to: &mut MaybeUninit<ibv_wc>,
) -> Short {
    let whole = flag::FIRST | flag::LAST;
    if head.op != op::SEND | op::XRC || head.flags & !(flag::SOLICITED | flag::BULK) != whole {
        return Short::Other;
    }
    let Some(key) = qps.shared_queue(head.dst as usize % QPS) else { return Short::Other };
    if !xrc::is_usual(w, key, cq, (head.dst, via)) {
        return Short::Other;
    }
    let World { srqs, mrs, .. } = w;
    match srqs.get_mut(key) {
        // The one that makes the limit tell is left to the general way.
        Some(srq) if srq.queue.outstanding > srq.limit => {
            let pd = srq.pd as u32;
            place::<false>((&mut srq.queue, mrs, pd), via.qpn, &head, payload, to)
        }
        _ => Short::Other,
    }
}
