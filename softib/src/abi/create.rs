//! Protection domains, channels, CQs, SRQs: create, change, destroy.

use super::device::{MAX_CQE, MAX_WR, context_key};
use super::{cq_ex, domain, engine, event, guard, guard_ptr, xrc};
use crate::engine::world::{State, World};
use crate::errno::Errno;
use crate::faults::{Call, calls as faults};
use crate::objects::cq::{Channel, Cq, event_file};
use crate::objects::events::Subject;
use crate::objects::mr::Pd;
use crate::objects::recvq::RecvQ;
use crate::objects::srq::Srq;
use crate::objects::{CBox, zeroed};
use crate::send::MAX_SGE;
use rdma_sys::*;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Instant;

/// Counts an object in or out of its context.
pub fn use_context(w: &mut World, key: usize, delta: i32) -> Result<(), Errno> {
    let context = w.contexts.get_mut(key).ok_or(Errno::INVAL)?;
    context.users = context.users.saturating_add_signed(delta);
    Ok(())
}

/// Counts an object in or out of its protection domain.
pub fn use_pd(w: &mut World, key: usize, delta: i32) {
    if let Some(pd) = w.pds.get_mut(key) {
        pd.users = pd.users.saturating_add_signed(delta);
    }
}

/// Index of a PD that a program passed.
pub fn pd_key(pd: *mut ibv_pd) -> usize {
    // SAFETY: the program passes a PD of ours.
    unsafe { (*pd).handle as usize }
}

pub unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    guard_ptr(|| {
        faults::fate(Call::AllocPd)?;
        let (mut state, key) = (engine()?.enter(), context_key(context));
        use_context(&mut state.w, key, 1)?;
        let entry = state.w.pds.vacant_entry();
        let c = CBox::new(ibv_pd { context, handle: entry.key() as u32 });
        let pointer = c.as_ptr();
        entry.insert(Pd { c, context: key, users: 0 });
        Ok(pointer)
    })
}

pub unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guard(|| {
        let (mut state, key) = (engine()?.enter(), pd_key(pd));
        if domain::is_parent(&state.w, pd) {
            return domain::dealloc_parent(&mut state, pd);
        }
        let found = state.w.pds.get(key).ok_or(Errno::INVAL)?;
        if found.users > 0 {
            return Err(Errno::BUSY);
        }
        let context = found.context;
        state.w.pds.remove(key);
        use_context(&mut state.w, context, -1)
    })
}

pub unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    guard_ptr(|| {
        faults::fate(Call::CreateCompChannel)?;
        let file = event_file()?;
        let (mut state, key) = (engine()?.enter(), context_key(context));
        use_context(&mut state.w, key, 1)?;
        let entry = state.w.channels.vacant_entry();
        // refcnt is private to libraries; it carries the channel's index here.
        let c = CBox::new(ibv_comp_channel { context, fd: file.as_raw_fd(), refcnt: entry.key() as c_int });
        let pointer = c.as_ptr();
        entry.insert(Channel::new(c, key, file));
        Ok(pointer)
    })
}

/// Index of a channel that a program passed.
pub fn channel_key(channel: *mut ibv_comp_channel) -> usize {
    // SAFETY: the program passes a channel of ours.
    unsafe { (*channel).refcnt as usize }
}

pub unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    guard(|| {
        let (mut state, key) = (engine()?.enter(), channel_key(channel));
        let found = state.w.channels.get(key).ok_or(Errno::INVAL)?;
        if found.users > 0 {
            return Err(Errno::BUSY);
        }
        let context = found.context;
        state.w.channels.remove(key);
        use_context(&mut state.w, context, -1)
    })
}

pub unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    depth: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    guard_ptr(|| {
        if vector != 0 {
            return Err(Errno::INVAL);
        }
        let depth = check_depth(depth)?;
        let channel_at = optional_channel(channel);
        // SAFETY: ibv_cq is plain C data; zeroes are valid, also for its mutex and cond on Linux.
        let mut c: ibv_cq = unsafe { zeroed() };
        (c.context, c.channel, c.cq_context, c.cqe) = (context, channel, cq_context, depth as c_int);
        insert_cq(&mut engine()?.enter(), context_key(context), channel_at, c)
    })
}

/// Index of the channel that a program passed for a CQ, if it did.
pub fn optional_channel(channel: *mut ibv_comp_channel) -> Option<usize> {
    (!channel.is_null()).then(|| channel_key(channel))
}

/// The depth of a completion queue. EINVAL: none, or more than there can be (ibv_create_cq(3)).
pub fn check_depth(depth: c_int) -> Result<usize, Errno> {
    let depth = u32::try_from(depth).map_err(|_| Errno::INVAL)?;
    if (1..=MAX_CQE).contains(&depth) { Ok(depth as usize) } else { Err(Errno::INVAL) }
}

/// Enters a completion queue, and counts it as a user of its context and of its channel.
pub fn insert_cq(
    state: &mut State,
    context: usize,
    channel: Option<usize>,
    c: ibv_cq,
) -> Result<*mut ibv_cq, Errno> {
    faults::fate(Call::CreateCq)?;
    let w = &mut state.w;
    if let Some(channel) = channel {
        let device = w.device(context);
        let of = w.channels.get(channel).ok_or(Errno::INVAL)?.context;
        if w.device(of) != device {
            return Err(Errno::INVAL);
        }
        w.channels[channel].users += 1;
    }
    use_context(w, context, 1)?;
    let entry = w.cqs.vacant_entry();
    let depth = c.cqe as usize;
    let c = CBox::new(cq_ex::extended(ibv_cq { handle: entry.key() as u32, ..c }));
    let cq = entry.insert(Cq::new(c, context, channel, depth));
    Ok(cq.pointer())
}

/// Index of a CQ that a program passed.
pub fn cq_key(cq: *mut ibv_cq) -> usize {
    // SAFETY: the program passes a CQ of ours.
    unsafe { (*cq).handle as usize }
}

pub unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, depth: c_int) -> c_int {
    guard(|| {
        faults::fate(Call::ResizeCq)?;
        let depth = check_depth(depth)?;
        let mut state = engine()?.enter();
        state.w.cqs.get_mut(cq_key(cq)).ok_or(Errno::INVAL)?.resize(depth)?;
        // SAFETY: the program passes a CQ of ours.
        unsafe { (*cq).cqe = depth as c_int };
        Ok(())
    })
}

pub unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    guard(|| {
        let key = cq_key(cq);
        let (delivered, async_delivered) = {
            let mut state = engine()?.enter();
            let found = state.w.cqs.get(key).ok_or(Errno::INVAL)?;
            if found.users > 0 {
                return Err(Errno::BUSY);
            }
            let (context, channel) = (found.context, found.channel);
            event::forget(&mut state.w, context, Subject::Cq(key));
            if let Some(channel) = channel.and_then(|channel| state.w.channels.get_mut(channel)) {
                channel.queue.retain(|&cq| cq != key);
            }
            (state.w.cqs[key].events, state.w.cqs[key].async_events)
        };
        event::wait_for_cq_acks(cq, delivered, async_delivered);
        let mut state = engine()?.enter();
        let gone = state.w.cqs.try_remove(key).ok_or(Errno::INVAL)?;
        if let Some(channel) = gone.channel.and_then(|channel| state.w.channels.get_mut(channel)) {
            channel.users -= 1;
        }
        use_context(&mut state.w, gone.context, -1)
    })
}

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

/// Index of an SRQ that a program passed.
pub fn srq_key(srq: *mut ibv_srq) -> usize {
    // SAFETY: the program passes an SRQ of ours.
    unsafe { (*srq).handle as usize }
}

pub unsafe extern "C" fn modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    guard(|| {
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
            super::queue::resize_srq(qps, w, key, max_wr)?;
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            w.srqs[key].limit = attr.srq_limit;
        }
        Ok(())
    })
}

pub unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    guard(|| {
        let state = engine()?.enter();
        let found = state.w.srqs.get(srq_key(srq)).ok_or(Errno::INVAL)?;
        let (max_wr, max_sge, srq_limit) = (found.queue.max_wr, found.queue.max_sge, found.limit);
        // SAFETY: the program passes a valid pointer.
        unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit }) };
        Ok(())
    })
}

pub unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    guard(|| {
        let key = srq_key(srq);
        let delivered = {
            let mut state = engine()?.enter();
            let found = state.w.srqs.get(key).ok_or(Errno::INVAL)?;
            if found.users > 0 {
                return Err(Errno::BUSY);
            }
            let context = found.context;
            xrc::silence(&mut state, key);
            event::forget(&mut state.w, context, Subject::Srq(key));
            state.w.srqs.get(key).map_or(0, |srq| srq.async_events)
        };
        event::wait_for_srq_acks(srq, delivered);
        let mut state = engine()?.enter();
        let gone = state.w.srqs.try_remove(key).ok_or(Errno::INVAL)?;
        state.qps.forget_srq(key);
        if let Some(xrc) = &gone.xrc {
            let State { qps, w, .. } = &mut *state;
            xrc::withdraw(qps, w, xrc);
        }
        release_queue(&mut state.w, &gone.queue);
        use_pd(&mut state.w, gone.pd, -1);
        use_context(&mut state.w, gone.context, -1)
    })
}

/// Gives a receive queue's place in the segment back, once no initiator can be in the middle of looking at it.
pub fn release_queue(w: &mut World, queue: &RecvQ) {
    w.retired.push((Instant::now(), queue.extent()));
}
