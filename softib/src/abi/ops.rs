//! The data path: what `ibv_context.ops` points to.

use super::address::destination;
use super::create::{cq_key, srq_key};
use super::queue::qp_index;
use super::{engine, guard, window};
use crate::clock::Stamp;
use crate::engine::lock::thread_id;
use crate::engine::world::{State, World};
use crate::errno::Errno;
use crate::iwarp;
use crate::objects::cq::Armed;
use crate::objects::mr::Mrs;
use crate::objects::mw::Binding;
use crate::objects::qp::Qp;
use crate::objects::qp_state;
use crate::objects::recvq::RecvQ;
use crate::rdma_ring::WORD;
use crate::send::{self, MAX_MESSAGE, Remote, UD_MTU, Work};
use rdma_sys::*;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    let polled = catch_unwind(AssertUnwindSafe(|| {
        let key = cq_key(cq);
        // SAFETY: the program passes room for `count` completions.
        unsafe {
            poll(key, count.max(0) as usize, |i, found, _| wc.add(i).copy_from_nonoverlapping(found, 1))
        }
    }));
    match polled {
        Ok(Ok(count)) => count as c_int,
        _ => -1,
    }
}

/// Polls once and hands over up to `count` completions, with their times if those are kept.
#[inline]
pub fn poll(
    key: usize,
    count: usize,
    mut out: impl FnMut(usize, &ibv_wc, Option<&Stamp>),
) -> Result<usize, Errno> {
    let engine = engine()?;
    let mut guard = engine.enter();
    let state = &mut *guard;
    engine.shared.polled();
    if state.w.cqs.get(key).ok_or(Errno::INVAL)?.is_empty() {
        if state.poll(thread_id()) {
            engine.shared.control_changed(true);
        }
        if state.has_waiting() && engine.shared.thread_in_charge() {
            engine.shared.wake();
        }
    }
    let State { qps, w, .. } = state;
    let cq = &mut w.cqs[key];
    if cq.is_empty() {
        return if cq.overrun { Err(Errno(libc::EOVERFLOW)) } else { Ok(0) };
    }
    let mut polled = 0;
    while polled < count {
        let popped = cq.pop_with(|cqe, stamp| {
            if let Some((index, generation, upto)) = cqe.retire
                && let Some(qp) = qps.get_mut(index as usize)
                && qp.generation == generation
            {
                qp.sq_retired = upto;
            }
            out(polled, &cqe.wc, stamp);
        });
        if !popped {
            break;
        }
        polled += 1;
    }
    Ok(polled)
}

pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    guard(|| arm(cq_key(cq), if solicited_only != 0 { Armed::Solicited } else { Armed::Any }))
}

fn arm(key: usize, armed: Armed) -> Result<(), Errno> {
    let engine = engine()?;
    let mut state = engine.enter();
    let cq = state.w.cqs.get_mut(key).ok_or(Errno::INVAL)?;
    cq.arm(armed);
    if state.arm(thread_id()) {
        engine.shared.control_changed(false);
    }
    Ok(())
}

pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut at = wr;
    let result = guard(|| {
        let engine = engine()?;
        let mut state = engine.enter();
        let State { qps, w, .. } = &mut *state;
        let qp = qps.get_mut(qp_index(qp)).ok_or(Errno::INVAL)?;
        while !at.is_null() {
            // SAFETY: the program passes a list of valid requests, each with num_sge elements.
            let wr = unsafe { &*at };
            post_one(qp, w, wr)?;
            at = wr.next;
        }
        if !w.busy.is_empty() && engine.shared.thread_in_charge() {
            engine.shared.wake();
        }
        Ok(())
    });
    if result != 0 && !bad.is_null() {
        // SAFETY: the program passes null or a valid pointer.
        unsafe { *bad = at };
    }
    result
}

/// Posts a list of which every request is sure to be taken: all of them, or none.
pub fn post_all(qp: *mut ibv_qp, requests: &[ibv_send_wr]) -> Result<(), Errno> {
    let engine = engine()?;
    let mut state = engine.enter();
    let State { qps, w, .. } = &mut *state;
    let qp = qps.get_mut(qp_index(qp)).ok_or(Errno::INVAL)?;
    if matches!(qp.state, IBV_QPS_RESET | IBV_QPS_INIT | IBV_QPS_RTR) {
        return Err(Errno::INVAL);
    }
    let waiting = qp.sq_posted.wrapping_sub(qp.sq_retired) as usize;
    if waiting + requests.len() > qp.cap.max_send_wr as usize {
        return Err(Errno::NOMEM);
    }
    for wr in requests {
        post_one(qp, w, wr)?;
    }
    if !w.busy.is_empty() && engine.shared.thread_in_charge() {
        engine.shared.wake();
    }
    Ok(())
}

#[inline(always)]
fn post_one(qp: &mut Qp, w: &mut World, wr: &ibv_send_wr) -> Result<(), Errno> {
    if send::send_short(qp, w, wr) { Ok(()) } else { post_any(qp, w, wr) }
}

/// Posts a request of any kind.
#[inline(never)]
fn post_any(qp: &mut Qp, w: &mut World, wr: &ibv_send_wr) -> Result<(), Errno> {
    // SAFETY: the program passes num_sge elements at sg_list.
    let sges = unsafe { sge_list(wr.sg_list, wr.num_sge, qp.cap.max_send_sge) }?;
    let len: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
    let limit = match qp.kind {
        _ if wr.send_flags & IBV_SEND_INLINE != 0 => qp.cap.max_inline_data,
        IBV_QPT_UD => UD_MTU,
        _ => MAX_MESSAGE,
    };
    if len > u64::from(limit) {
        return Err(Errno::INVAL);
    }
    let mut work = work_of(qp, wr, len as u32);
    if qp.kind != IBV_QPT_RC || wr.opcode != IBV_WR_SEND {
        address(qp, wr, &mut work)?;
        if w.is_iwarp() && !iwarp::offers(wr.opcode, wr.num_sge) {
            return Err(Errno::INVAL);
        }
    }
    send::submit(qp, w, work, sges)
}

#[inline]
fn work_of(qp: &Qp, wr: &ibv_send_wr, len: u32) -> Work {
    Work {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        flags: wr.send_flags,
        // SAFETY: both members are u32; any value is valid.
        imm: unsafe { wr.imm.imm_data },
        remote: Remote::Peer,
        len,
        sent: 0,
        receive: None,
        signalled: qp.sig_all || wr.send_flags & IBV_SEND_SIGNALED != 0,
        number: 0,
        asked: false,
        moved: false,
        srqn: 0,
    }
}

/// Posts a bind that has been checked.
pub fn post_bind(qp: *mut ibv_qp, wr: &ibv_send_wr, binding: Binding) -> Result<(), Errno> {
    let engine = engine()?;
    let mut state = engine.enter();
    let State { qps, w, .. } = &mut *state;
    let qp = qps.get_mut(qp_index(qp)).ok_or(Errno::INVAL)?;
    if !matches!(qp.kind, IBV_QPT_RC | IBV_QPT_UC) {
        return Err(Errno::INVAL);
    }
    let work = Work { remote: Remote::Bind(binding), ..work_of(qp, wr, 0) };
    send::submit(qp, w, work, &[])?;
    if !w.busy.is_empty() && engine.shared.thread_in_charge() {
        engine.shared.wake();
    }
    Ok(())
}

/// Fills in where a request other than a plain RC send goes; refuses what the QP's type does not offer.
fn address(qp: &Qp, wr: &ibv_send_wr, work: &mut Work) -> Result<(), Errno> {
    match (qp.kind, wr.opcode) {
        (IBV_QPT_UD, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) => {
            // SAFETY: the QP's type says which member of the union the program has filled; its AH is one of ours.
            let (ud, to) = unsafe { (wr.wr.ud, destination(wr.wr.ud.ah)) };
            work.remote = Remote::Datagram { qpn: ud.remote_qpn, qkey: ud.remote_qkey, to };
        }
        (IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) => {}
        // What comes back can't be placed in a copy of the buffers (ibv_post_send(3): inline is for SEND and WRITE).
        _ if work.fetches() && wr.send_flags & IBV_SEND_INLINE != 0 => return Err(Errno::INVAL),
        (IBV_QPT_RC | IBV_QPT_XRC_SEND, IBV_WR_RDMA_READ)
        | (IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM) => {
            // SAFETY: the opcode says which member of the union the program has filled.
            let rdma = unsafe { wr.wr.rdma };
            work.remote = Remote::Memory { addr: rdma.remote_addr, rkey: rdma.rkey };
        }
        (IBV_QPT_RC | IBV_QPT_XRC_SEND, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD) => {
            // SAFETY: the opcode says which member of the union the program has filled.
            let word = unsafe { wr.wr.atomic };
            let (addr, rkey) = (word.remote_addr, word.rkey);
            work.remote = Remote::Word { addr, rkey, first: word.compare_add, swap: word.swap };
        }
        (IBV_QPT_RC | IBV_QPT_XRC_SEND, IBV_WR_ATOMIC_WRITE) if work.len == WORD => {
            // SAFETY: the opcode says which member of the union the program has filled.
            let rdma = unsafe { wr.wr.rdma };
            work.remote = Remote::Word { addr: rdma.remote_addr, rkey: rdma.rkey, first: 0, swap: 0 };
        }
        (IBV_QPT_RC, IBV_WR_SEND_WITH_INV) | (IBV_QPT_RC | IBV_QPT_UC, IBV_WR_LOCAL_INV) => {}
        (IBV_QPT_RC | IBV_QPT_UC, IBV_WR_BIND_MW) => {
            // SAFETY: the opcode says which member of the union the program has filled.
            work.remote = Remote::Bind(window::requested(unsafe { &wr.rare.bind_mw })?);
        }
        _ => return Err(Errno::INVAL),
    }
    if qp.kind == IBV_QPT_XRC_SEND {
        // SAFETY: the QP's type says which member of the union the program has filled.
        work.srqn = unsafe { wr.qp_type.xrc.remote_srqn };
    }
    Ok(())
}

/// # Safety
/// `list` has `count` elements.
#[inline]
unsafe fn sge_list<'a>(list: *const ibv_sge, count: c_int, limit: u32) -> Result<&'a [ibv_sge], Errno> {
    match count {
        0 => Ok(&[]),
        count if count < 0 || count as u32 > limit || list.is_null() => Err(Errno::INVAL),
        // SAFETY: contract of this function.
        count => Ok(unsafe { std::slice::from_raw_parts(list, count as usize) }),
    }
}

pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = wr;
    let result = guard(|| {
        let mut state = engine()?.enter();
        let State { qps, w, .. } = &mut *state;
        let qp = qps.get_mut(qp_index(qp)).ok_or(Errno::INVAL)?;
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
    if sges.iter().all(|sge| w.mrs.allows(sge, pd, true)) {
        rq.post(wr.wr_id, sges, false)
    } else {
        receive_elsewhere(&w.mrs, rq, pd, wr.wr_id, sges)
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

pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut at = wr;
    let result = guard(|| {
        let mut state = engine()?.enter();
        let World { srqs, mrs, .. } = &mut state.w;
        let srq = srqs.get_mut(srq_key(srq)).ok_or(Errno::INVAL)?;
        while !at.is_null() {
            // SAFETY: the program passes a list of valid requests, each with num_sge elements.
            let (wr, sges) = unsafe { (&*at, sge_list((*at).sg_list, (*at).num_sge, srq.queue.max_sge)?) };
            let pd = srq.pd as u32;
            if sges.iter().all(|sge| mrs.allows(sge, pd, true)) {
                srq.queue.post(wr.wr_id, sges, false)?;
            } else {
                receive_elsewhere(mrs, &mut srq.queue, pd, wr.wr_id, sges)?;
            }
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
