//! The counterpart of `initiator::send_short`: a message that a caller polls for goes from the ring into
//! its buffer, and its completion to the poller, with no queue in between.

use super::placing::From;
use crate::objects::qp::{Qps, Usual};
use crate::objects::world::World;
use crate::shm::cell::{Head, flag};
use crate::shm::copy::{copy, copy_short};
use crate::shm::layout::QPS;
use rdma_sys::*;
use std::mem::MaybeUninit;

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    /// A completion has been handed over.
    Taken,
    /// The same, and `State::tell_sender` is to be called.
    TakenDue,
    /// There is nothing to do.
    Nothing,
    /// There is something for `State::poll_careful`.
    Careful,
    /// There is something for the general way.
    Other,
}

/// The flags that make no difference.
const fn harmless(inline: bool) -> u32 {
    Head::meaning(0, flag::SOLICITED | if inline { 0 } else { flag::BULK }, 0)
}

/// Places a whole SEND, whose `payload` has `head.len` bytes, to a connected queue pair that completes to queue `cq`, and writes its
/// completion. `Other`: something is not as it usually is, nothing has happened yet, and the general way (`responder::cell`) finds out.
/// `INLINE`: the payload is in the cell, and if the buffer's region has to be looked up, that is left to the careful way.
#[inline(always)]
pub fn take_short<const INLINE: bool>(
    qps: &mut Qps,
    w: &mut World,
    cq: usize,
    from: From,
    head: &Head,
    payload: *const u8,
    to: &mut MaybeUninit<ibv_wc>,
) -> Short {
    let World { srqs, mrs, .. } = w;
    let Some(qp) = qps.get_mut(head.dst as usize % QPS) else { return Short::Other };
    let meaning = Head::meaning(head.op, head.flags, head.dst) & !harmless(INLINE);
    let (incarnation, src_qpn) = (from.incarnation, head.src_qpn);
    if qp.usual != (Usual { incarnation, src_qpn, meaning, cq }) {
        return Short::Other;
    }
    let queue = match (qp.rq.as_mut(), qp.srq) {
        (Some(queue), _) => queue,
        (None, Some(key)) => match srqs.get_mut(key) {
            // The one that makes the limit tell is left to the general way.
            Some(srq) if srq.queue.outstanding > srq.limit => &mut srq.queue,
            _ => return Short::Other,
        },
        _ => return Short::Other,
    };
    let vouched = queue.vouches(head.pos, mrs.withdrawn);
    let Some(next) = queue.next(head.pos) else { return Short::Other };
    let buffer = next.buffer();
    if INLINE && !vouched {
        return Short::Careful;
    }
    if head.len > buffer.length || !vouched && !mrs.allows(buffer, qp.pd as u32, true) {
        return Short::Other;
    }
    // SAFETY: inside the posted buffer (checked), which lies in a valid MR of this PD with local write (checked); the
    // program vouches for registered memory. The payload is len readable bytes.
    unsafe {
        let (to, len) = (buffer.addr as *mut u8, head.len as usize);
        if INLINE { copy_short(payload, to, len) } else { copy(payload, to, len) }
    }
    to.write(ibv_wc {
        wr_id: next.take(),
        opcode: IBV_WC_RECV,
        byte_len: head.len,
        qp_num: qp.num,
        src_qp: head.src_qpn,
        ..Default::default()
    });
    Short::Taken
}
