//! Posting send requests.

use super::address::destination;
use super::extras::binding;
use super::guard::guard;
use super::handle::{engine, qp_index, sge_list};
use crate::datapath::initiator::{self, AtOnce, Rest, SHORT_SGES, Short};
use crate::datapath::iwarp;
use crate::engine::state::State;
use crate::errno::Errno;
use crate::fabric::MAX_MESSAGE;
use crate::objects::mw::Binding;
use crate::objects::qp::Qp;
use crate::objects::sges::length;
use crate::objects::work::{Remote, UD_MTU, WORD, Work};
use crate::objects::world::World;
use crate::shm::cell::INLINE_MAX;
use rdma_sys::*;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use sync::Owned;

/// `ibv_post_send(3)`.
pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the program passes a list of valid requests.
    let one = unsafe { wr.as_ref() }.filter(|wr| wr.next.is_null() && !wr.sg_list.is_null());
    match one {
        Some(request) if request.num_sge == 1 => {
            // SAFETY: the program passes num_sge elements at sg_list; it is one.
            let sge = unsafe { &*request.sg_list };
            if request.opcode != IBV_WR_SEND {
                // SAFETY: the program passes a QP of ours and null or a valid `bad`; `wr` and its
                // one buffer are not null (checked above).
                return unsafe { post_other(qp, wr, bad) };
            }
            if sge.length as usize > INLINE_MAX {
                // SAFETY: the program passes a QP of ours and null or a valid `bad`; `wr` and its
                // one buffer are not null (checked above).
                return unsafe { post_longer(qp, wr, bad) };
            }
            if post_short::<true>(qp_index(qp), request, std::slice::from_ref(sge)) {
                return 0;
            }
        }
        Some(request) if (2..=SHORT_SGES as c_int).contains(&request.num_sge) => {
            // SAFETY: a valid request with a few buffers (checked above).
            let (_, sges) = unsafe { self::request(request) };
            let fits = length(sges) <= INLINE_MAX as u64;
            // SAFETY: the program passes a QP of ours, null or a valid `bad`, and a valid request with a
            // few buffers (checked above).
            return unsafe { if fits { post_pieces(qp, wr, bad) } else { post_longer(qp, wr, bad) } };
        }
        _ => {}
    }
    // SAFETY: the program passes a QP of ours, a list of valid requests, and null or a valid `bad`.
    unsafe { post_list(qp, wr, bad) }
}

/// A request of one buffer that is no plain SEND.
///
/// # Safety
/// A queue pair of ours, one valid request with one buffer, null or a valid pointer.
#[inline(never)]
unsafe extern "C" fn post_other(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller passes one valid request with one buffer.
    let (one, sges) = unsafe { request(wr) };
    if one.opcode == IBV_WR_RDMA_WRITE && sges.first().is_some_and(|sge| post_write(qp_index(qp), one, sge)) {
        return 0;
    }
    // SAFETY: the caller passes a QP of ours, a list of one valid request, and null or a valid
    // `bad`.
    unsafe { post_list(qp, wr, bad) }
}

/// An RDMA WRITE of one buffer to memory that its owner shares with us. False: nothing has happened yet.
#[inline(always)]
fn post_write(qp: usize, wr: &ibv_send_wr, sge: &ibv_sge) -> bool {
    let Some(mut state) = engine().ok().and_then(|engine| engine.enter_as_owner()) else { return false };
    let State { qps, w, .. } = &mut *state;
    qps.get_mut(qp).is_some_and(|qp| matches!(initiator::write_mapped(qp, w, wr, sge), Short::Sent))
}

/// `write_short` of the driver table.
pub unsafe extern "C" fn write_short(
    qp: *mut ibv_qp,
    pieces: *const ShortWrite,
    last: u64,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: the caller passes valid pieces, which are readable.
    let (pieces, index) = unsafe { (&*pieces, qp_index(qp)) };
    let to = (remote_addr, rkey);
    let Some(mut state) = engine().ok().and_then(|engine| engine.enter_as_owner()) else {
        return libc::EAGAIN;
    };
    let State { qps, w, .. } = &mut *state;
    // SAFETY: the pieces are readable, as the caller promises.
    let written =
        qps.get_again(index).is_some_and(|qp| unsafe { initiator::write_short(qp, w, pieces, last, to) });
    if written { 0 } else { libc::EAGAIN }
}

/// `rdma_at_once` of the driver table.
pub unsafe extern "C" fn rdma_at_once(
    qp: *mut ibv_qp,
    opcode: u32,
    sge: *const ibv_sge,
    remote_addr: u64,
    rkey: u32,
    in_burst: c_int,
) -> c_int {
    // SAFETY: the caller passes a QP of ours and a valid buffer.
    let (sge, index) = unsafe { (&*sge, qp_index(qp)) };
    let request = AtOnce { opcode, sge, remote: (remote_addr, rkey), in_burst: in_burst != 0 };
    let Some(mut state) = engine().ok().and_then(|engine| engine.enter_as_owner()) else {
        return libc::EAGAIN;
    };
    let State { qps, w, .. } = &mut *state;
    let carried_out = qps.get_again(index).is_some_and(|qp| initiator::rdma_at_once(qp, w, &request));
    if carried_out { 0 } else { libc::EAGAIN }
}

/// `sends_at_once` of the driver table.
pub unsafe extern "C" fn sends_at_once(qp: *mut ibv_qp, len: u32) -> c_int {
    // The caller passes a QP of ours.
    let index = qp_index(qp);
    let Some(mut state) = engine().ok().and_then(|engine| engine.enter_as_owner()) else { return 1 };
    let State { qps, w, .. } = &mut *state;
    qps.get_mut(index).is_none_or(|qp| initiator::goes_at_once(qp, w, len)).into()
}

/// A request and its buffers.
///
/// # Safety
/// A valid request with at least one buffer.
#[inline(always)]
unsafe fn request<'a>(wr: *const ibv_send_wr) -> (&'a ibv_send_wr, &'a [ibv_sge]) {
    // SAFETY: the caller passes a valid request, so its list has num_sge elements, which are one at least.
    unsafe { (&*wr, std::slice::from_raw_parts((*wr).sg_list, (*wr).num_sge as usize)) }
}

/// A request whose payload is in a few buffers, and fits a cell.
///
/// # Safety
/// As [`post_longer`].
#[inline(never)]
unsafe extern "C" fn post_pieces(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller passes one valid request with at least one buffer.
    let (one, sges) = unsafe { request(wr) };
    if post_short::<true>(qp_index(qp), one, sges) {
        return 0;
    }
    // SAFETY: the caller passes a QP of ours, a list of one valid request, and null or a valid
    // `bad`.
    unsafe { post_list(qp, wr, bad) }
}

/// A request whose payload may be too long for a cell.
///
/// # Safety
/// A queue pair of ours, one valid request with at least one buffer, null or a valid pointer.
#[inline(never)]
unsafe extern "C" fn post_longer(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller passes one valid request with at least one buffer.
    let (one, sges) = unsafe { request(wr) };
    if post_short::<false>(qp_index(qp), one, sges) {
        return 0;
    }
    // SAFETY: the caller passes a QP of ours, a list of one valid request, and null or a valid
    // `bad`.
    unsafe { post_list(qp, wr, bad) }
}

/// A SEND of a few buffers. False: something is not as it should be, nothing has happened yet, and the general way finds out.
#[inline(always)]
fn post_short<const INLINE: bool>(qp: usize, wr: &ibv_send_wr, sges: &[ibv_sge]) -> bool {
    let Ok(engine) = engine() else { return false };
    let Some(mut state) = engine.enter_as_owner() else { return false };
    let State { qps, w, .. } = &mut *state;
    let Some(to) = qps.get_mut(qp) else { return false };
    match initiator::send_short::<INLINE>(to, w, wr, sges) {
        Short::Other if to.kind == IBV_QPT_XRC_SEND => return post_over_xrc(state, qp, wr, sges),
        Short::Other => return false,
        Short::Sent => {}
        Short::Unfinished(rest) => finish(state, qp, rest),
    }
    true
}

/// The same over an XRC send queue pair.
#[inline(never)]
fn post_over_xrc(mut state: Owned<'_, State>, qp: usize, wr: &ibv_send_wr, sges: &[ibv_sge]) -> bool {
    let State { qps, w, .. } = &mut *state;
    match qps.get_mut(qp).map(|qp| initiator::send_short_over_xrc(qp, w, wr, sges)) {
        None | Some(Short::Other) => return false,
        Some(Short::Sent) => {}
        Some(Short::Unfinished(rest)) => finish(state, qp, rest),
    }
    true
}

#[inline(never)]
fn finish(mut state: Owned<'_, State>, qp: usize, rest: Rest) {
    let finished = AssertUnwindSafe(|| {
        let State { qps, w, .. } = &mut *state;
        qps.get_mut(qp).into_iter().for_each(|qp| initiator::finish_short(qp, w, rest));
        state.settle();
    });
    // The message is on its way, so post_send succeeds: a panic here is not reported to its caller.
    let _ = catch_unwind(finished);
}

/// # Safety
/// A queue pair of ours, a list of valid requests, null or a valid pointer.
#[inline(never)]
unsafe extern "C" fn post_list(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    let mut at = wr;
    let result = guard(|| {
        let engine = engine()?;
        let mut state = engine.enter();
        // SAFETY: the program passes a list of valid requests.
        let posted = unsafe { post_each(&mut state, qp_index(qp), &mut at) };
        state.settle();
        if !state.w.busy.is_empty() && engine.shared.thread_in_charge() {
            engine.shared.wake();
        }
        posted
    });
    if result != 0 && !bad.is_null() {
        // SAFETY: the program passes null or a valid pointer.
        unsafe { *bad = at };
    }
    result
}

/// Posts requests until one can't be, at which `at` stands then.
///
/// # Safety
/// A list of valid requests.
#[inline(always)]
unsafe fn post_each(state: &mut State, qp: usize, at: &mut *mut ibv_send_wr) -> Result<(), Errno> {
    let State { qps, w, .. } = state;
    let qp = qps.get_mut(qp).ok_or(Errno::INVAL)?;
    // SAFETY: the caller passes a list of valid requests: `at` is its head or the `next` of one of
    // them, which is valid or, at the end, null.
    while let Some(wr) = unsafe { at.as_ref() } {
        post_one(qp, w, wr)?;
        *at = wr.next;
    }
    Ok(())
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
    let posted = requests.iter().try_for_each(|wr| post_one(qp, w, wr));
    state.settle();
    if !state.w.busy.is_empty() && engine.shared.thread_in_charge() {
        engine.shared.wake();
    }
    posted
}

#[inline(always)]
fn post_one(qp: &mut Qp, w: &mut World, wr: &ibv_send_wr) -> Result<(), Errno> {
    let (most, in_burst) = (qp.cap.max_send_sge.min(SHORT_SGES), w.in_burst);
    // SAFETY: the program passes num_sge elements at sg_list.
    let done = match unsafe { sge_list(wr.sg_list, wr.num_sge, most) } {
        Ok(sges) if initiator::asks(wr.opcode) && initiator::ask_short(qp, w, wr, sges) => Short::Sent,
        Ok(sges) if !sges.is_empty() && qp.kind == IBV_QPT_XRC_SEND => {
            initiator::send_short_over_xrc(qp, w, wr, sges)
        }
        Ok(sges) if !sges.is_empty() => initiator::send_short::<false>(qp, w, wr, sges),
        _ => Short::Other,
    };
    match done {
        Short::Sent => Ok(()),
        Short::Unfinished(rest) => {
            initiator::finish_short(qp, w, rest);
            Ok(())
        }
        Short::Other => post_any(qp, w, wr, in_burst),
    }
}

/// Posts a request of any kind, which may be one of a burst.
#[inline(never)]
fn post_any(qp: &mut Qp, w: &mut World, wr: &ibv_send_wr, in_burst: bool) -> Result<(), Errno> {
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
    let mut work = Work { in_burst, ..work_of(qp, wr, len as u32) };
    if qp.kind != IBV_QPT_RC || wr.opcode != IBV_WR_SEND {
        address(qp, wr, &mut work)?;
        if w.is_iwarp() && !iwarp::offers(wr.opcode, wr.num_sge) {
            return Err(Errno::INVAL);
        }
    }
    initiator::submit(qp, w, work, sges)
}

#[inline]
fn work_of(qp: &Qp, wr: &ibv_send_wr, len: u32) -> Work {
    Work {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        flags: wr.send_flags,
        // SAFETY: both members are u32; any value is valid.
        imm: unsafe { wr.imm.imm_data },
        len,
        signalled: qp.sig_all || wr.send_flags & IBV_SEND_SIGNALED != 0,
        ..Default::default()
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
    let posted = initiator::submit(qp, w, work, &[]);
    state.settle();
    if !state.w.busy.is_empty() && engine.shared.thread_in_charge() {
        engine.shared.wake();
    }
    posted
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
            work.remote = Remote::Bind(binding::requested(unsafe { &wr.rare.bind_mw })?);
        }
        _ => return Err(Errno::INVAL),
    }
    if qp.kind == IBV_QPT_XRC_SEND {
        // SAFETY: the QP's type says which member of the union the program has filled.
        work.srqn = unsafe { wr.qp_type.xrc.remote_srqn };
    }
    Ok(())
}
