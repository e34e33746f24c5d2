//! Polling: completions that wait in a queue, and messages that wait in a ring.

use super::guard::guard;
use super::handle::{cq_key, engine};
use crate::clock::Stamp;
use crate::datapath::responder::Short;
use crate::engine::Engine;
use crate::engine::state::State;
use crate::errno::Errno;
use crate::faults::{Call, calls as faults};
use crate::objects::cq::Armed;
use crate::shm::layout::H_PLACES;
use crate::shm::placed;
use rdma_sys::*;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use sync::{Owned, thread_id};

/// `ibv_poll_cq(3)`.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    if let Ok(engine) = engine()
        && let Some(state) = engine.enter_to_poll()
    {
        engine.shared.polled();
        if state.still.holds(cq) {
            return 0;
        }
        if state.still.is_of_several(cq) {
            // SAFETY: the program passes a CQ of ours and room for `count` completions.
            return unsafe { poll_several(cq, count, wc, state, engine) };
        }
        // SAFETY: the program passes a CQ of ours and room for `count` completions.
        return unsafe { poll_shortly(cq, count, wc, state, engine) };
    }
    // SAFETY: the program passes a CQ of ours and room for `count` completions.
    unsafe { poll_generally(cq, count, wc) }
}

/// As [`State::poll_waiting`].
#[inline(never)]
fn poll_waiting(mut state: Owned<'_, State>, key: usize, out: &mut [MaybeUninit<ibv_wc>]) -> Option<usize> {
    catch_unwind(AssertUnwindSafe(|| state.poll_waiting(key, out))).unwrap_or(None)
}

/// A poll behind one that has found nothing at several rings.
///
/// # Safety
/// A queue of ours, and room for that many completions.
#[inline(never)]
unsafe extern "C" fn poll_several(
    cq: *mut ibv_cq,
    count: c_int,
    wc: *mut ibv_wc,
    mut state: Owned<'_, State>,
    engine: &Engine,
) -> c_int {
    if state.still.holds_of_several() {
        return 0;
    }
    // SAFETY: as the caller promises.
    unsafe { poll_shortly(cq, count, wc, state, engine) }
}

/// A poll that may find something.
///
/// # Safety
/// A queue of ours, and room for that many completions.
#[inline(never)]
unsafe extern "C" fn poll_shortly(
    cq: *mut ibv_cq,
    count: c_int,
    wc: *mut ibv_wc,
    mut state: Owned<'_, State>,
    engine: &Engine,
) -> c_int {
    state.still.forget();
    if count < 1 {
        return 0;
    }
    // SAFETY: the caller passes room for one completion at least.
    match state.poll_short::<true>(cq_key(cq), unsafe { &mut *wc.cast() }) {
        Short::Nothing => {
            state.note_still(cq);
            0
        }
        Short::Taken if count == 1 || !state.has_next() => 1,
        // SAFETY: as the caller promises.
        Short::Careful => unsafe { poll_other::<false>(engine, state, (cq, count, wc)) },
        // SAFETY: as the caller promises.
        Short::OverXrc => unsafe { poll_other::<true>(engine, state, (cq, count, wc)) },
        Short::Other => {
            // SAFETY: the caller passes room for `count` completions.
            match poll_waiting(state, cq_key(cq), unsafe { room(count, wc) }) {
                Some(polled) => polled as c_int,
                // SAFETY: as the caller promises.
                None => unsafe { poll_generally(cq, count, wc) },
            }
        }
        // SAFETY: as the caller promises.
        first => unsafe { poll_on(engine, state, (cq, count, wc), first) },
    }
}

/// The next message is longer than a cell, or comes over XRC, and is alone most often.
///
/// # Safety
/// A queue of ours, and room for that many completions.
#[inline(never)]
unsafe fn poll_other<const XRC: bool>(
    engine: &Engine,
    mut state: Owned<'_, State>,
    (cq, count, wc): (*mut ibv_cq, c_int, *mut ibv_wc),
) -> c_int {
    // SAFETY: the caller passes room for one completion at least.
    match state.poll_any::<XRC>(cq_key(cq), unsafe { &mut *wc.cast() }) {
        Short::Placed => 1,
        Short::Taken if count == 1 || !state.has_next() => 1,
        // SAFETY: as the caller promises.
        taken => unsafe { poll_on(engine, state, (cq, count, wc), taken) },
    }
}

/// Goes on behind the shortcut, which has led so far.
///
/// # Safety
/// A queue of ours, and room for that many completions; the first is written if one has been taken.
#[inline(never)]
unsafe fn poll_on(
    engine: &Engine,
    mut state: Owned<'_, State>,
    (cq, count, wc): (*mut ibv_cq, c_int, *mut ibv_wc),
    first: Short,
) -> c_int {
    said(AssertUnwindSafe(|| {
        // SAFETY: as the caller promises.
        let (key, out) = (cq_key(cq), unsafe { room(count, wc) });
        let taken = match (first, out.first_mut()) {
            (Short::TakenDue, _) => state.tell_sender(),
            (Short::Careful, Some(to)) => state.poll_careful(key, to),
            (Short::OverXrc, Some(to)) => state.poll_over_xrc(key, to),
            (Short::Lent, Some(to)) => poll_behind::<true>(&mut state, key, to),
            (first, _) => first,
        };
        match taken {
            Short::Taken => return Ok(poll_rest(engine, state, key, out)),
            Short::Placed => return Ok(1),
            Short::Nothing => return Ok(0),
            _ => {}
        }
        drop(state);
        poll_queue(engine, key, out, None)
    }))
}

/// # Safety
/// A queue of ours, and room for `count` completions.
#[inline(never)]
unsafe extern "C" fn poll_generally(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: as the caller promises.
    said(AssertUnwindSafe(|| poll_queue(engine()?, cq_key(cq), unsafe { room(count, wc) }, None)))
}

/// # Safety
/// Room for `count` completions, which need not be initialised. Nothing else uses it meanwhile.
unsafe fn room<'a>(count: c_int, wc: *mut ibv_wc) -> &'a mut [MaybeUninit<ibv_wc>] {
    match count {
        ..=0 => &mut [],
        // SAFETY: the caller passes so many, which is above 0 in this arm.
        _ => unsafe { std::slice::from_raw_parts_mut(wc.cast(), count as usize) },
    }
}

/// What ibv_poll_cq returns.
#[inline(always)]
fn said(poll: impl FnOnce() -> Result<usize, Errno> + UnwindSafe) -> c_int {
    match catch_unwind(poll) {
        Ok(Ok(count)) => count as c_int,
        _ => -1,
    }
}

/// Polls once and hands over as many completions as there is room for; `stamp` gets the time of the last one, if times are kept.
pub fn poll(key: usize, out: &mut [MaybeUninit<ibv_wc>], stamp: Option<&mut Stamp>) -> Result<usize, Errno> {
    let engine = engine()?;
    if let Some(mut state) = engine.enter_as_owner()
        && let Some(first) = out.first_mut()
    {
        engine.shared.polled();
        match poll_one::<true>(&mut state, key, first) {
            Short::Nothing => return Ok(0),
            Short::Taken => return Ok(poll_rest(engine, state, key, out)),
            Short::Placed => return Ok(1),
            _ => {}
        }
    }
    poll_queue(engine, key, out, stamp)
}

/// Polls for what else there is room for in `out`, of which the first is written; how many are then.
fn poll_rest(
    engine: &Engine,
    mut state: Owned<'_, State>,
    key: usize,
    out: &mut [MaybeUninit<ibv_wc>],
) -> usize {
    let mut at = 1;
    while at < out.len() {
        let (taken, next) = state.poll_run(key, &mut out[at..]);
        at += taken;
        let Some(to) = out.get_mut(at) else { break };
        match poll_further::<false>(&mut state, key, to, next) {
            Short::Taken => at += 1,
            Short::Nothing => return at,
            Short::Placed => return at + 1,
            _ => {
                drop(state);
                // What has been handed over is not taken back for an error: the next poll says it.
                return at + poll_queue(engine, key, &mut out[at..], None).unwrap_or(0);
            }
        }
    }
    out.len()
}

/// Polls for one completion, as far as shortcuts lead.
#[inline(always)]
fn poll_one<const WAITS: bool>(state: &mut State, key: usize, to: &mut MaybeUninit<ibv_wc>) -> Short {
    let came = state.poll_short::<WAITS>(key, to);
    poll_further::<WAITS>(state, key, to, came)
}

/// Goes on where the shortest of them ends.
#[inline(always)]
fn poll_further<const WAITS: bool>(
    state: &mut State,
    key: usize,
    to: &mut MaybeUninit<ibv_wc>,
    came: Short,
) -> Short {
    match came {
        Short::Careful => state.poll_careful(key, to),
        Short::OverXrc => state.poll_over_xrc(key, to),
        Short::TakenDue => state.tell_sender(),
        Short::Lent => poll_behind::<WAITS>(state, key, to),
        other => other,
    }
}

/// The same behind a message that the program was given where it lies, if it is done with that.
#[inline(never)]
fn poll_behind<const WAITS: bool>(state: &mut State, key: usize, to: &mut MaybeUninit<ibv_wc>) -> Short {
    if state.settle_lent() { poll_one::<WAITS>(state, key, to) } else { Short::Other }
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
    if state.regain_control(thread_id()) {
        engine.shared.control_is_back();
        if let Some(first) = out.first_mut()
            && matches!(poll_one::<true>(state, key, first), Short::Taken | Short::Placed)
        {
            return Ok(1);
        }
    }
    let is_empty = state.w.cqs.get(key).ok_or(Errno::INVAL)?.is_empty();
    if is_empty || !state.w.may_pass_by() {
        if state.poll(thread_id(), polls) {
            engine.shared.control_changed(true);
        }
        if state.has_waiting() && engine.shared.thread_in_charge() {
            engine.shared.wake();
        }
    }
    if let Some(first) = out.first_mut()
        && state.poll_left(key, first)
    {
        return Ok(1);
    }
    let State { qps, w, .. } = state;
    let cq = &mut w.cqs[key];
    if cq.is_empty() {
        return if cq.overrun { Err(Errno(libc::EOVERFLOW)) } else { Ok(0) };
    }
    let mut polled = 0;
    for to in out {
        let popped = cq.pop_with(|cqe, at| {
            qps.retire(cqe.retire);
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

/// `await_writes` of the driver table.
pub unsafe extern "C" fn await_writes() {
    guard(|| {
        engine()?.enter().w.peers.awaits_writes = true;
        Ok(())
    });
}

/// `place_messages` of the driver table. Null: the queue is none of ours.
pub unsafe extern "C" fn place_messages(cq: *mut ibv_cq, least: u32) -> *const Placed {
    let enabled = guard(|| {
        let mut state = engine()?.enter();
        state.place_from(cq_key(cq), least).ok_or(Errno::INVAL)?;
        state.w.segment.map.u32(H_PLACES).store(1, Ordering::Relaxed);
        Ok(())
    });
    if enabled == 0 { placed::word() } else { std::ptr::null() }
}

/// `ibv_req_notify_cq(3)`.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    guard(|| {
        faults::fate(Call::ReqNotifyCq)?;
        arm(cq_key(cq), if solicited_only != 0 { Armed::Solicited } else { Armed::Any })
    })
}

fn arm(key: usize, armed: Armed) -> Result<(), Errno> {
    let engine = engine()?;
    let mut state = engine.enter();
    state.w.arm(key, armed)?;
    if state.arm(thread_id()) {
        engine.shared.control_changed(false);
    }
    Ok(())
}
