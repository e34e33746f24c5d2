//! Completion events and asynchronous events: fetching and acknowledging.
//!
//! Fetching reads the descriptor first, outside of the engine's lock, so that it blocks (or not, O_NONBLOCK) as the program has set it.
//! Destroying an object waits until every event fetched for it has been acknowledged, as in libibverbs; the
//! counters and the condition for that live in the C structs.

use super::guard::{guard, guard_minus};
use super::handle::{channel_key, context_key, engine};
use crate::errno::Errno;
use crate::faults::{Call, calls as faults};
use crate::objects::events::{Event, Subject};
use crate::objects::world::World;
use rdma_sys::*;
use std::ffi::{c_int, c_uint, c_void};

/// Takes one count of an eventfd. EINTR: a signal's handler has run, and was not installed with SA_RESTART; the caller is told, as by
/// libibverbs, for programs end their waits that way.
fn take_count(fd: c_int) -> Result<(), Errno> {
    let mut count = 0u64;
    // SAFETY: the buffer is ours and has the 8 bytes an eventfd wants.
    let got = unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
    if got == 8 { Ok(()) } else { Err(Errno::last()) }
}

/// `ibv_get_cq_event(3)`.
pub unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    guard_minus(|| {
        faults::fate(Call::GetCqEvent)?;
        // SAFETY: the program passes a channel of ours.
        let (fd, key) = unsafe { ((*channel).fd, channel_key(channel)) };
        let fired = loop {
            take_count(fd)?;
            if let Some(fired) = next_cq(key)? {
                break fired;
            }
        };
        // SAFETY: the program passes valid pointers; the CQ exists, a destroyed one leaves no event behind.
        unsafe {
            cq.write(fired);
            cq_context.write((*fired).cq_context);
        }
        Ok(())
    })
}

fn next_cq(channel: usize) -> Result<Option<*mut ibv_cq>, Errno> {
    let mut state = engine()?.enter();
    let w = &mut state.w;
    let queue = &mut w.channels.get_mut(channel).ok_or(Errno::INVAL)?.queue;
    let Some(cq) = queue.pop_front().and_then(|key| w.cqs.get_mut(key)) else { return Ok(None) };
    cq.events += 1;
    Ok(Some(cq.pointer()))
}

/// `ibv_ack_cq_events(3)`.
pub unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: the program passes a CQ of ours, whose mutex and cond are initialised (zero) and used only this way.
    unsafe {
        let (mutex, cond) = (&raw mut (*cq).mutex, &raw mut (*cq).cond);
        add_ack(mutex, cond, &raw mut (*cq).comp_events_completed, count);
    }
}

/// # Safety
/// The three belong to one live C object.
unsafe fn add_ack(
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    counter: *mut u32,
    count: u32,
) {
    // SAFETY: the caller passes the mutex, condition variable and counter of one live C object,
    // which is made with zeroes: both initialised. The counter is accessed only under the mutex.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        *counter = (*counter).wrapping_add(count);
        libc::pthread_cond_broadcast(cond);
        libc::pthread_mutex_unlock(mutex);
    }
}

/// # Safety
/// The three belong to one live C object.
unsafe fn wait_ack(
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    counter: *mut u32,
    wanted: u32,
) {
    // SAFETY: the caller passes the mutex, condition variable and counter of one live C object,
    // which is made with zeroes: both initialised. The counter is accessed only under the mutex.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        // The counter is changed by other threads, under the mutex that the wait gives up.
        while counter.read_volatile() != wanted {
            libc::pthread_cond_wait(cond, mutex);
        }
        libc::pthread_mutex_unlock(mutex);
    }
}

/// Waits until a CQ's events have been acknowledged.
pub fn wait_for_cq_acks(cq: *mut ibv_cq, completions: u32, others: u32) {
    // SAFETY: the program passes a CQ of ours that is not destroyed before this returns.
    unsafe {
        let (mutex, cond) = (&raw mut (*cq).mutex, &raw mut (*cq).cond);
        wait_ack(mutex, cond, &raw mut (*cq).comp_events_completed, completions);
        wait_ack(mutex, cond, &raw mut (*cq).async_events_completed, others);
    }
}

/// Waits until an SRQ's events have been acknowledged.
pub fn wait_for_srq_acks(srq: *mut ibv_srq, wanted: u32) {
    // SAFETY: the program passes an SRQ of ours that is not destroyed before this returns.
    unsafe { wait_ack(&raw mut (*srq).mutex, &raw mut (*srq).cond, &raw mut (*srq).events_completed, wanted) }
}

/// Waits until a QP's events have been acknowledged.
pub fn wait_for_qp_acks(qp: *mut ibv_qp, wanted: u32) {
    // SAFETY: the program passes a QP of ours that is not destroyed before this returns.
    unsafe { wait_ack(&raw mut (*qp).mutex, &raw mut (*qp).cond, &raw mut (*qp).events_completed, wanted) }
}

/// Drops the events of an object that goes away and have not been fetched.
pub fn forget(w: &mut World, context: usize, subject: Subject) {
    if let Some(context) = w.contexts.get_mut(context) {
        context.queue.retain(|event| event.subject != subject);
    }
}

/// `ibv_get_async_event(3)`.
pub unsafe extern "C" fn get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    guard_minus(|| {
        faults::fate(Call::GetAsyncEvent)?;
        // SAFETY: the program passes a context of ours.
        let (fd, key) = unsafe { ((*context).async_fd, context_key(context)) };
        let next = loop {
            take_count(fd)?;
            if let Some(next) = next_event(key)? {
                break next;
            }
        };
        // SAFETY: the program passes a valid pointer.
        unsafe { event.write(next) };
        Ok(())
    })
}

fn next_event(context: usize) -> Result<Option<ibv_async_event>, Errno> {
    let mut state = engine()?.enter();
    let state = &mut *state;
    let queue = &mut state.w.contexts.get_mut(context).ok_or(Errno::INVAL)?.queue;
    let Some(Event { kind, subject }) = queue.pop_front() else { return Ok(None) };
    let element = match subject {
        Subject::Cq(key) => {
            let cq = state.w.cqs.get_mut(key).ok_or(Errno::INVAL)?;
            cq.async_events += 1;
            ibv_async_event_element { cq: cq.pointer() }
        }
        Subject::Srq(key) => {
            let srq = state.w.srqs.get_mut(key).ok_or(Errno::INVAL)?;
            srq.async_events += 1;
            ibv_async_event_element { srq: srq.c.as_ptr() }
        }
        Subject::Port(num) => ibv_async_event_element { port_num: num.into() },
        Subject::Handle(key) => {
            let handle = state.w.xrc.handles.get_mut(key).ok_or(Errno::INVAL)?;
            handle.async_events += 1;
            ibv_async_event_element { qp: handle.pointer() }
        }
        Subject::Qp(index) => {
            let qp = state.qps.get_mut(index).ok_or(Errno::INVAL)?;
            qp.async_events += 1;
            ibv_async_event_element { qp: qp.pointer() }
        }
    };
    Ok(Some(ibv_async_event { element, event_type: kind }))
}

/// `ibv_ack_async_event(3)`.
pub unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    guard(|| {
        // SAFETY: the program passes an event that get_async_event filled; its type says which member is valid, and
        // the object lives because destroying it waits for this.
        unsafe { acknowledge(&*event) };
        Ok(())
    });
}

/// # Safety
/// The event's object is alive.
unsafe fn acknowledge(event: &ibv_async_event) {
    // SAFETY: the type of the event says which member of the union is valid.
    unsafe {
        match event.event_type {
            IBV_EVENT_CQ_ERR => {
                let cq = event.element.cq;
                add_ack(&raw mut (*cq).mutex, &raw mut (*cq).cond, &raw mut (*cq).async_events_completed, 1);
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                let srq = event.element.srq;
                add_ack(&raw mut (*srq).mutex, &raw mut (*srq).cond, &raw mut (*srq).events_completed, 1);
            }
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => {
                let qp = event.element.qp;
                add_ack(&raw mut (*qp).mutex, &raw mut (*qp).cond, &raw mut (*qp).events_completed, 1);
            }
            _ => {}
        }
    }
}
