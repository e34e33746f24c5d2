//! Where a message's bytes and its completion go, whatever way it has come.

use crate::objects::events::Subject;
use crate::objects::mr::Mrs;
use crate::objects::recvq::RecvQ;
use crate::objects::sges::spread;
use crate::objects::world::World;
use crate::shm::cell::{Envelope, Found, Head, flag};
use rdma_sys::*;

/// The process a cell came from.
#[derive(Debug, Clone, Copy)]
pub struct From {
    /// Its incarnation.
    pub incarnation: u64,
}

/// Tells the program, once, that an SRQ has fallen below its limit.
#[inline]
pub fn tell_limit(w: &mut World, key: usize) {
    tell_if_below(w, key, |queue| Some(queue.outstanding));
}

/// The same before receives are posted: what senders have claimed by then is left no more, though not all of it has been delivered. A receiver that
/// posts as fast as it takes would never have been below its limit otherwise, while its senders find nothing.
#[inline]
pub fn tell_limit_before_posts(w: &mut World, key: usize) {
    tell_if_below(w, key, RecvQ::unclaimed);
}

#[inline(always)]
fn tell_if_below(w: &mut World, key: usize, left: impl FnOnce(&RecvQ) -> Option<u32>) {
    let Some(srq) = w.srqs.get_mut(key).filter(|srq| srq.limit != 0) else { return };
    if left(&srq.queue).is_some_and(|left| left < srq.limit) {
        srq.limit = 0;
        let context = srq.context;
        w.async_event(context, IBV_EVENT_SRQ_LIMIT_REACHED, Subject::Srq(key));
    }
}

/// Copies a cell's payload into a receive's buffers from `offset` on. False: they are not what they were when posted.
#[inline(always)]
pub fn scatter(mrs: &Mrs, pd: usize, sges: &[ibv_sge], offset: u32, found: &Found) -> bool {
    let [one] = sges else { return scatter_many(mrs, pd, sges, offset, found) };
    let len = found.head.len;
    let fits = u64::from(offset) + u64::from(len) <= u64::from(one.length);
    if !fits || !mrs.allows(one, pd as u32, true) {
        return false;
    }
    let to = (one.addr + u64::from(offset)) as *mut u8;
    // SAFETY: inside the posted buffer (checked), which lies in a valid MR of this PD with local write (checked); the
    // program vouches for registered memory. The payload is len readable bytes.
    unsafe { crate::shm::copy::copy(found.payload, to, len as usize) };
    true
}

fn scatter_many(mrs: &Mrs, pd: usize, sges: &[ibv_sge], offset: u32, found: &Found) -> bool {
    if !sges.iter().all(|sge| mrs.allows(sge, pd as u32, true)) {
        return false;
    }
    spread(sges, offset as usize, found) == found.head.len as usize
}

/// Writes the completion of a receive on queue pair `num`.
#[inline]
pub fn fill(
    wc: &mut ibv_wc,
    num: u32,
    (wr_id, opcode, byte_len): (u64, u32, u32),
    head: &Head,
    from: Envelope,
) {
    let imm = head.flags & (flag::IMM | flag::INV) != 0;
    (wc.wr_id, wc.status, wc.opcode, wc.vendor_err, wc.byte_len) =
        (wr_id, IBV_WC_SUCCESS, opcode, 0, byte_len);
    wc.imm = ibv_wc_imm { imm_data: if imm { head.imm } else { 0 } };
    (wc.qp_num, wc.src_qp) = (num, head.src_qpn);
    wc.wc_flags = wc_flags(head.flags);
    (wc.pkey_index, wc.slid, wc.sl, wc.dlid_path_bits) = (0, from.slid, from.sl, 0);
}

/// A cell's flags as a completion's: each is a few bits further down.
#[inline]
fn wc_flags(flags: u8) -> u32 {
    u32::from(flags >> 3) & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV) | u32::from(flags >> 5) & IBV_WC_GRH
}

const _: () = {
    assert!(flag::IMM as u32 >> 3 == IBV_WC_WITH_IMM && flag::INV as u32 >> 3 == IBV_WC_WITH_INV);
    assert!(flag::GRH as u32 >> 5 == IBV_WC_GRH);
};
