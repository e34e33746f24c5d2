//! The counterpart of `send::send_short`: a message that somebody polls for goes from the ring into its buffer, and its completion to
//! the poller, with no queue in between.

use super::From;
use crate::objects::mr::Mrs;
use crate::objects::qp::{Origin, Qps};
use crate::send::op;
use crate::shm::layout::QPS;
use crate::shm::ring::{Head, flag};
use rdma_sys::*;
use std::mem::MaybeUninit;

/// What tells a whole SEND of the plain kind from other cells, and the flags that make no difference.
const PLAIN: u16 = Head::kind_of(op::SEND, flag::FIRST | flag::LAST);
const HARMLESS: u16 = Head::kind_of(0, flag::BULK | flag::SOLICITED);

/// Places a whole SEND, whose `payload` has `head.len` bytes, to a connected queue pair that completes to queue `cq`, and writes its
/// completion. False: something is not as it usually is, nothing has happened yet, and the general way ([`super::cell`]) finds out.
#[inline(always)]
pub fn take_short(
    qps: &mut Qps,
    mrs: &Mrs,
    cq: usize,
    from: From,
    head: &Head,
    payload: *const u8,
    to: &mut MaybeUninit<ibv_wc>,
) -> bool {
    let Some(qp) = qps.get_mut(head.dst as usize % QPS) else { return false };
    let plain = Head::kind_of(head.op, head.flags) & !HARMLESS == PLAIN;
    let origin = Origin { incarnation: from.incarnation, src_qpn: head.src_qpn, dst: head.dst };
    if !plain || qp.hears != origin || qp.recv_cq != cq {
        return false;
    }
    let Some(queue) = qp.rq.as_mut() else { return false };
    let Some(next) = queue.next(head.pos) else { return false };
    let buffer = next.buffer();
    if head.len > buffer.length || !mrs.allows(buffer, qp.pd as u32, true) {
        return false;
    }
    // SAFETY: inside the posted buffer (checked), which lies in a valid MR of this PD with local write (checked); the
    // program vouches for registered memory. The payload is len readable bytes.
    unsafe { crate::shm::copy::copy(payload, buffer.addr as *mut u8, head.len as usize) };
    to.write(ibv_wc {
        wr_id: next.take(),
        opcode: IBV_WC_RECV,
        byte_len: head.len,
        qp_num: qp.num,
        src_qp: head.src_qpn,
        ..Default::default()
    });
    true
}
