//! Shared receive queues: create, change, destroy. What is particular to XRC ones is at the end.

use super::event;
use super::guard::{guard, guard_ptr};
use super::handle::{context_key, engine, pd_key, srq_key, use_context, use_pd};
use super::limits::MAX_WR;
use crate::engine::state::State;
use crate::errno::Errno;
use crate::faults::{Call, calls as faults};
use crate::objects::events::Subject;
use crate::objects::qp::Qps;
use crate::objects::recvq::RecvQ;
use crate::objects::srq::Srq;
use crate::objects::work::MAX_SGE;
use crate::objects::world::World;
use crate::objects::xrc::{FULL_PKEY, KIND_SRQ, XrcSrq};
use crate::objects::{CBox, zeroed};
use crate::shm::qptable::{self, Public};
use rdma_sys::*;
use std::ffi::c_int;

/// `ibv_create_srq(3)`.
pub unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    guard_ptr(|| {
        faults::fate(Call::CreateSrq)?;
        // SAFETY: the program passes a valid pointer.
        let init = unsafe { &mut *init };
        new_srq(&mut engine()?.enter().w, pd, init)
    })
}

/// A shared receive queue, not yet of a domain; `init` returns what was granted.
pub fn new_srq(w: &mut World, pd: *mut ibv_pd, init: &mut ibv_srq_init_attr) -> Result<*mut ibv_srq, Errno> {
    if !(1..=MAX_WR).contains(&init.attr.max_wr) || init.attr.max_sge > MAX_SGE {
        return Err(Errno::INVAL);
    }
    // SAFETY: the program passes a PD of ours.
    let (pd_at, context) = unsafe { (pd_key(pd), (*pd).context) };
    let context_at = context_key(context);
    w.pds.get(pd_at).ok_or(Errno::INVAL)?;
    let queue = RecvQ::new(&w.segment, &mut w.heap, true, init.attr.max_wr, init.attr.max_sge)?;
    init.attr.max_sge = queue.max_sge;
    // SAFETY: ibv_srq is plain C data; zeroes are valid.
    let mut c: ibv_srq = unsafe { zeroed() };
    (c.context, c.pd, c.srq_context) = (context, pd, init.srq_context);
    use_context(w, context_at, 1)?;
    use_pd(w, pd_at, 1);
    let entry = w.srqs.vacant_entry();
    c.handle = entry.key() as u32;
    let c = CBox::new(c);
    let pointer = c.as_ptr();
    let (context, pd) = (context_at, pd_at);
    entry.insert(Srq { c, context, pd, queue, limit: 0, users: 0, async_events: 0, xrc: None });
    Ok(pointer)
}

/// `ibv_modify_srq(3)`.
pub unsafe extern "C" fn modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    guard(|| {
        faults::fate(Call::ModifySrq)?;
        // SAFETY: the program passes a valid pointer.
        let (attr, mask) = (unsafe { *attr }, mask as u32);
        let mut state = engine()?.enter();
        let State { qps, w, .. } = &mut *state;
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::INVAL);
        }
        let key = srq_key(srq);
        let found = w.srqs.get(key).ok_or(Errno::INVAL)?;
        let max_wr = if mask & IBV_SRQ_MAX_WR != 0 { attr.max_wr } else { found.queue.max_wr };
        if mask & IBV_SRQ_LIMIT != 0 && attr.srq_limit > max_wr {
            return Err(Errno::INVAL);
        }
        if mask & IBV_SRQ_MAX_WR != 0 {
            resize_srq(qps, w, key, max_wr)?;
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            w.srqs[key].limit = attr.srq_limit;
        }
        Ok(())
    })
}

/// `ibv_query_srq(3)`.
pub unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    guard(|| {
        faults::fate(Call::QuerySrq)?;
        let state = engine()?.enter();
        let found = state.w.srqs.get(srq_key(srq)).ok_or(Errno::INVAL)?;
        let (max_wr, max_sge, srq_limit) = (found.queue.max_wr, found.queue.max_sge, found.limit);
        // SAFETY: the program passes a valid pointer.
        unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit }) };
        Ok(())
    })
}

/// `ibv_destroy_srq(3)`.
pub unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    guard(|| {
        faults::fate(Call::DestroySrq)?;
        let key = srq_key(srq);
        let delivered = {
            let mut state = engine()?.enter();
            let found = state.w.srqs.get(key).ok_or(Errno::INVAL)?;
            if found.users > 0 {
                return Err(Errno::BUSY);
            }
            let context = found.context;
            silence(&mut state, key);
            event::forget(&mut state.w, context, Subject::Srq(key));
            state.w.srqs.get(key).map_or(0, |srq| srq.async_events)
        };
        event::wait_for_srq_acks(srq, delivered);
        let mut state = engine()?.enter();
        let gone = state.w.srqs.try_remove(key).ok_or(Errno::INVAL)?;
        state.qps.forget_srq(key);
        if let Some(xrc) = &gone.xrc {
            let State { qps, w, .. } = &mut *state;
            withdraw(qps, w, xrc);
        }
        release_queue(&mut state.w, &gone.queue);
        use_pd(&mut state.w, gone.pd, -1);
        use_context(&mut state.w, gone.context, -1)
    })
}

/// Gives an SRQ another depth; peers learn the new place with their next look at a QP's entry.
pub fn resize_srq(qps: &mut Qps, w: &mut World, key: usize, max_wr: u32) -> Result<(), Errno> {
    if !(1..=MAX_WR).contains(&max_wr) {
        return Err(Errno::INVAL);
    }
    let World { srqs, heap, segment, retired, .. } = w;
    let srq = srqs.get_mut(key).ok_or(Errno::INVAL)?;
    let old = srq.queue.resize(segment, heap, max_wr)?;
    retired.extend(old.extents().map(|extent| (timing::now(), extent)));
    for qp in qps.iter_mut().filter(|qp| qp.srq == Some(key)) {
        qp.publish(w);
    }
    publish(w, key);
    Ok(())
}

/// Gives a receive queue's place in the segment back, once no initiator can be in the middle of looking at it.
pub fn release_queue(w: &mut World, queue: &RecvQ) {
    w.retired.extend(queue.extents().map(|extent| (timing::now(), extent)));
}

/// Tells senders of the domain where an XRC SRQ is now.
pub fn publish(w: &World, key: usize) {
    let Some(srq) = w.srqs.get(key) else { return };
    let Some((xrc, domain)) = srq.xrc.as_ref().and_then(|xrc| Some((xrc, w.xrc.domains.get(xrc.domain)?)))
    else {
        return;
    };
    let public = Public {
        state: IBV_QPS_RTR,
        kind: KIND_SRQ,
        generation: xrc.generation,
        // A sender compares these as it does with a queue pair that is connected to it.
        dest_qpn: domain.file.slot as u32,
        dest_incarnation: domain.file.incarnation,
        // The partition is checked with the receive queue pair.
        pkey: FULL_PKEY.into(),
        pd: srq.pd as u32,
        rq_offset: srq.queue.place.offset as u64,
        rq_size: srq.queue.place.size,
        rq_shared: true,
        ..Default::default()
    };
    qptable::publish(&w.segment.map, xrc.index, &public);
}

/// Hides an SRQ from senders, if it is an XRC one, and delivers what it has acknowledged.
pub fn silence(state: &mut State, key: usize) {
    let Some(xrc) = state.w.srqs.get(key).and_then(|srq| srq.xrc.as_ref()) else { return };
    let gone = Public { generation: xrc.generation, ..Default::default() };
    qptable::publish(&state.w.segment.map, xrc.index, &gone);
    state.take_in_from(|_| true);
    state.settle();
}

/// Takes an SRQ's XRC side down, for its destruction.
pub fn withdraw(qps: &mut Qps, w: &mut World, xrc: &XrcSrq) {
    qps.release(xrc.index);
    w.xrc.use_xrcd(xrc.xrcd, -1);
    if let Some(cq) = w.cqs.get_mut(xrc.cq) {
        cq.users = cq.users.saturating_sub(1);
    }
}
