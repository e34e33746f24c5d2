//! Posting receives.

use super::guard::guard;
use super::handle::{engine, qp_index, sge_list, srq_key};
use crate::datapath::responder::tell_limit_before_posts;
use crate::engine::state::State;
use crate::errno::Errno;
use crate::objects::mr::Mrs;
use crate::objects::qp::Qp;
use crate::objects::qp_state;
use crate::objects::recvq::RecvQ;
use crate::objects::world::World;
use crate::shm::heap::{Extent, Heap};
use crate::shm::segment::Segment;
use rdma_sys::*;
use std::ffi::c_int;
use std::time::Instant;

/// `ibv_post_recv(3)`.
pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program passes a list of valid requests.
    let one =
        unsafe { wr.as_ref() }.filter(|wr| wr.next.is_null() && wr.num_sge == 1 && !wr.sg_list.is_null());
    if let Some(wr) = one
        && guard(|| receive_short(qp_index(qp), wr)) == 0
    {
        return 0;
    }
    // SAFETY: the program passes a QP of ours, a list of valid requests, and null or a valid `bad`.
    unsafe { post_recv_list(qp, wr, bad) }
}

/// A receive with one buffer, to a queue of its queue pair's own. An error: something is not as it should be, nothing has happened
/// yet, and the general way finds out.
#[inline(always)]
fn receive_short(qp: usize, wr: &ibv_recv_wr) -> Result<(), Errno> {
    let mut state = engine()?.enter_as_owner().ok_or(Errno::BUSY)?;
    let State { qps, w, .. } = &mut *state;
    let qp = qps.get_mut(qp).ok_or(Errno::INVAL)?;
    if !qp_state::keeps_receives(qp.state) {
        return Err(Errno::INVAL);
    }
    let rq = qp.rq.as_mut().filter(|rq| !rq.is_asked()).ok_or(Errno::INVAL)?;
    // SAFETY: the program passes num_sge elements at sg_list; it is one.
    let buffer = unsafe { load(wr.sg_list) };
    let fine = w.mrs.allows(&buffer, qp.pd as u32, true) && rq.post_short(wr.wr_id, buffer, w.mrs.withdrawn);
    if fine { Ok(()) } else { Err(Errno::INVAL) }
}

/// Copies a scatter element field by field: a load of all of it at once would wait until the program's stores of its fields have
/// left the processor's store buffer.
///
/// # Safety
/// A valid pointer.
#[inline(always)]
unsafe fn load(sge: *const ibv_sge) -> ibv_sge {
    // SAFETY: the caller passes a valid pointer to an element, so its fields are readable and
    // aligned. Volatile, so that the compiler keeps three loads.
    unsafe {
        ibv_sge {
            addr: (&raw const (*sge).addr).read_volatile(),
            length: (&raw const (*sge).length).read_volatile(),
            lkey: (&raw const (*sge).lkey).read_volatile(),
        }
    }
}

/// # Safety
/// A queue pair of ours, a list of valid requests, null or a valid pointer.
#[inline(never)]
unsafe fn post_recv_list(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    let mut at = wr;
    let result = guard(|| {
        let mut state = engine()?.enter();
        let State { qps, w, .. } = &mut *state;
        let qp = qps.get_mut(qp_index(qp)).ok_or(Errno::INVAL)?;
        if qp_state::keeps_receives(qp.state)
            && let Some(rq) = qp.rq.as_mut()
        {
            answer(rq, (&w.segment, &mut w.heap, &mut w.retired));
            // SAFETY: the program passes a list of valid requests.
            unsafe { receive_plain(&w.mrs, rq, qp.pd as u32, &mut at) };
        }
        while !at.is_null() {
            // SAFETY: the program passes a list of valid requests.
            let wr = unsafe { &*at };
            receive_one(qp, w, wr)?;
            at = wr.next;
        }
        Ok(())
    });
    if result != 0 && !bad.is_null() {
        // SAFETY: the program passes null or a valid pointer.
        unsafe { *bad = at };
    }
    result
}

/// Posts the receives of a list until one is not usual: each with one buffer, in memory that is registered for it. `at` stands there then.
///
/// # Safety
/// A list of valid requests, or null.
#[inline(always)]
unsafe fn receive_plain(mrs: &Mrs, rq: &mut RecvQ, pd: u32, at: &mut *mut ibv_recv_wr) {
    let (mut region, mut posting) = (None, rq.posting(mrs.withdrawn));
    // SAFETY: the caller passes a list of valid requests: `at` is its head or the `next` of one of them.
    while let Some(wr) = unsafe { at.as_ref() } {
        if wr.num_sge != 1 || wr.sg_list.is_null() {
            return;
        }
        // SAFETY: the request has one element at sg_list, which is not null.
        let buffer = unsafe { load(wr.sg_list) };
        if !mrs.allows_as_before(&mut region, &buffer, pd, true) || !posting.add(wr.wr_id, buffer) {
            return;
        }
        *at = wr.next;
    }
}

/// Tells initiators where the buffers are, if one asks; what is told no more is given back once no initiator can be in the middle of looking at it.
#[inline]
fn answer(rq: &mut RecvQ, (segment, heap, retired): (&Segment, &mut Heap, &mut Vec<(Instant, Extent)>)) {
    if rq.is_asked() {
        retired.extend(rq.tell(segment, heap).map(|extent| (timing::now(), extent)));
    }
}

#[inline]
fn receive_one(qp: &mut Qp, w: &mut World, wr: &ibv_recv_wr) -> Result<(), Errno> {
    if !qp_state::takes_receives(qp.state) || qp.rq.is_none() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the program passes num_sge elements at sg_list.
    let sges = unsafe { sge_list(wr.sg_list, wr.num_sge, qp.cap.max_recv_sge) }?;
    if qp.state == IBV_QPS_ERR {
        qp.complete_flushed(w, wr.wr_id);
        return Ok(());
    }
    let pd = qp.pd as u32;
    let rq = qp.rq.as_mut().ok_or(Errno::INVAL)?;
    receive(&w.mrs, rq, pd, wr.wr_id, sges)
}

/// Posts a receive to a queue of this protection domain.
#[inline]
fn receive(mrs: &Mrs, rq: &mut RecvQ, pd: u32, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
    if let [one] = sges
        && mrs.allows(one, pd, true)
        && rq.post_short(wr_id, *one, mrs.withdrawn)
    {
        return Ok(());
    }
    if sges.iter().all(|sge| mrs.allows(sge, pd, true)) {
        rq.post(wr_id, sges, false)
    } else {
        receive_elsewhere(mrs, rq, pd, wr_id, sges)
    }
}

/// Posts a receive whose memory is not where the request says it is, or nowhere: that one is found when it is used.
#[cold]
fn receive_elsewhere(mrs: &Mrs, rq: &mut RecvQ, pd: u32, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
    match mrs.resolve(sges, pd, true) {
        Some(real) => rq.post(wr_id, &real, false),
        None => rq.post(wr_id, sges, true),
    }
}

/// `ibv_post_srq_recv(3)`.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = wr;
    let result = guard(|| {
        let mut state = engine()?.enter();
        tell_limit_before_posts(&mut state.w, srq_key(srq));
        let World { srqs, mrs, segment, heap, retired, .. } = &mut state.w;
        let srq = srqs.get_mut(srq_key(srq)).ok_or(Errno::INVAL)?;
        answer(&mut srq.queue, (segment, heap, retired));
        // SAFETY: the program passes a list of valid requests.
        unsafe { receive_plain(mrs, &mut srq.queue, srq.pd as u32, &mut at) };
        while !at.is_null() {
            // SAFETY: the program passes a list of valid requests, each with num_sge elements.
            let (wr, sges) = unsafe { (&*at, sge_list((*at).sg_list, (*at).num_sge, srq.queue.max_sge)?) };
            receive(mrs, &mut srq.queue, srq.pd as u32, wr.wr_id, sges)?;
            at = wr.next;
        }
        Ok(())
    });
    if result != 0 && !bad.is_null() {
        // SAFETY: the program passes null or a valid pointer.
        unsafe { *bad = at };
    }
    result
}
