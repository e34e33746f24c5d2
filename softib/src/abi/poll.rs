//! Polling: completions that wait in a queue, and messages that wait in a ring.

use super::create::cq_key;
use super::{engine, guard};
use crate::clock::Stamp;
use crate::engine::Engine;
use crate::engine::lock::{Owned, thread_id};
use crate::engine::progress::Short;
use crate::engine::world::State;
use crate::errno::Errno;
use crate::objects::cq::Armed;
use rdma_sys::*;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    let mut polled = -1;
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let out = match count {
            ..=0 => &mut [],
            // SAFETY: the program passes room for `count` completions.
            _ => unsafe { std::slice::from_raw_parts_mut(wc.cast(), count as usize) },
        };
        polled = poll(cq_key(cq), out, None).map_or(-1, |count| count as c_int);
    }));
    polled
}

/// Polls once and hands over as many completions as there is room for; `stamp` gets the time of the last one, if times are kept.
#[inline(always)]
pub fn poll(key: usize, out: &mut [MaybeUninit<ibv_wc>], stamp: Option<&mut Stamp>) -> Result<usize, Errno> {
    let engine = engine()?;
    if let Some(first) = out.first_mut()
        && let Some(mut state) = engine.enter_as_owner()
    {
        engine.shared.polled();
        match state.poll_short(key, first) {
            Short::Nothing => return Ok(0),
            Short::Taken if out.len() == 1 => return Ok(1),
            Short::Taken => return Ok(poll_on(engine, state, key, out)),
            Short::Other => {}
        }
    }
    poll_queue(engine, key, out, stamp)
}

/// Goes on when the first completion has been handed over and there is room for more.
#[inline(never)]
fn poll_on(
    engine: &Engine,
    mut state: Owned<'_, State>,
    key: usize,
    out: &mut [MaybeUninit<ibv_wc>],
) -> usize {
    for taken in 1..out.len() {
        match state.poll_short(key, &mut out[taken]) {
            Short::Taken => {}
            Short::Nothing => return taken,
            Short::Other => {
                drop(state);
                // What has been handed over is not taken back for an error: the next poll says it.
                return taken + poll_queue(engine, key, &mut out[taken..], None).unwrap_or(0);
            }
        }
    }
    out.len()
}

/// Looks at everything if the queue is empty, and hands over what is in the queue then.
#[inline(never)]
fn poll_queue(
    engine: &Engine,
    key: usize,
    out: &mut [MaybeUninit<ibv_wc>],
    mut stamp: Option<&mut Stamp>,
) -> Result<usize, Errno> {
    let mut guard = engine.enter();
    let state = &mut *guard;
    let polls = engine.shared.polled();
    if state.w.cqs.get(key).ok_or(Errno::INVAL)?.is_empty() {
        if state.poll(thread_id(), polls) {
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
    for to in out {
        let popped = cq.pop_with(|cqe, at| {
            if let Some((index, generation, upto)) = cqe.retire
                && let Some(qp) = qps.get_mut(index as usize)
                && qp.generation == generation
            {
                qp.sq_retired = upto;
            }
            to.write(cqe.wc);
            if let Some(stamp) = stamp.as_deref_mut() {
                *stamp = at.copied().unwrap_or_default();
            }
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
