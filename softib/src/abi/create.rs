//! Protection domains, channels, CQs: create, change, destroy.

use super::event;
use super::extras::domain;
use super::guard::{guard, guard_ptr};
use super::handle::{channel_key, context_key, cq_key, engine, optional_channel, pd_key, use_context};
use super::limits::MAX_CQE;
use crate::engine::state::State;
use crate::errno::Errno;
use crate::faults::{Call, calls as faults};
use crate::objects::cq::{Channel, Cq, event_file};
use crate::objects::events::Subject;
use crate::objects::extended::extended;
use crate::objects::mr::Pd;
use crate::objects::{CBox, zeroed};
use rdma_sys::*;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

/// `ibv_alloc_pd(3)`.
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

/// `ibv_dealloc_pd(3)`.
pub unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guard(|| {
        faults::fate(Call::DeallocPd)?;
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

/// `ibv_create_comp_channel(3)`.
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

/// `ibv_destroy_comp_channel(3)`.
pub unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    guard(|| {
        faults::fate(Call::DestroyCompChannel)?;
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

/// `ibv_create_cq(3)`.
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
    let c = CBox::new(extended(ibv_cq { handle: entry.key() as u32, ..c }));
    let cq = entry.insert(Cq::new(c, context, channel, depth));
    Ok(cq.pointer())
}

/// `ibv_resize_cq(3)`.
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

/// `ibv_destroy_cq(3)`.
pub unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    guard(|| {
        faults::fate(Call::DestroyCq)?;
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
        state.take_back(key);
        let gone = state.w.cqs.try_remove(key).ok_or(Errno::INVAL)?;
        if let Some(channel) = gone.channel.and_then(|channel| state.w.channels.get_mut(channel)) {
            channel.users -= 1;
        }
        use_context(&mut state.w, gone.context, -1)
    })
}
