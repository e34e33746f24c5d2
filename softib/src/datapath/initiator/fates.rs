//! What a plan of faults does to send requests.

use super::attempt::{attempt, is_readable};
use crate::objects::events::Subject;
use crate::objects::qp::Qp;
use crate::objects::work::{Fate, Held, Queued, Step};
use crate::objects::world::World;
use rdma_sys::*;
use std::time::{Duration, Instant};

/// How late a datagram is that nothing overtakes.
const LATE: Duration = Duration::from_millis(5);

/// What stands in the way of the request at the head of an SQ. None: nothing, it is attempted as usual.
#[inline]
pub fn verdict(qp: &mut Qp, w: &mut World, queued: &mut Queued, now: Instant) -> Option<Step> {
    if w.is_plain() || queued.work.begun() { None } else { judge(qp, w, queued, now) }
}

#[cold]
fn judge(qp: &mut Qp, w: &mut World, queued: &mut Queued, now: Instant) -> Option<Step> {
    let fate = &**queued.fate.get_or_insert_default();
    if let Some(time) = fate.not_before.filter(|&time| now < time) {
        return Some(Step::Held(time));
    }
    if !w.ports.is_up(qp.port) {
        let hears = !matches!(qp.kind, IBV_QPT_UD | IBV_QPT_UC);
        w.stats.ud_dropped += u64::from(qp.kind == IBV_QPT_UD);
        return Some(if hears { Step::Silent } else { Step::Done(IBV_WC_SUCCESS) });
    }
    if qp.kind == IBV_QPT_UD {
        return datagram(qp, w, queued, now);
    }
    if let Some(status) = fate.ends_with {
        if status == IBV_WC_LOC_QP_OP_ERR {
            w.async_event(qp.context, IBV_EVENT_QP_FATAL, Subject::Qp(qp.index));
        }
        return Some(Step::Done(status));
    }
    let fate = queued.fate.get_or_insert_default();
    let lasts = fate.storm?;
    let ends = *fate.storm_ends.get_or_insert(now + lasts);
    (now < ends).then_some(Step::Rnr)
}

fn datagram(qp: &mut Qp, w: &mut World, queued: &mut Queued, now: Instant) -> Option<Step> {
    let Fate { lost, twice, late, .. } = **queued.fate.get_or_insert_default();
    if lost {
        return Some(Step::Done(IBV_WC_SUCCESS));
    }
    if late && qp.held.is_none() && is_readable(qp, w, queued) {
        qp.held = Some(Box::new(Held { queued: queued.with_payload(), due: now + LATE }));
        return Some(Step::Done(IBV_WC_SUCCESS));
    }
    if twice {
        match attempt(qp, w, &mut queued.work.clone(), &queued.sges) {
            Step::Done(IBV_WC_SUCCESS) => queued.fate.get_or_insert_default().twice = false,
            other => return Some(other),
        }
    }
    // This one overtakes it.
    if let Some(held) = qp.held.as_mut() {
        held.due = now;
    }
    None
}

/// Sends the datagram that was held back, if it is time. Some(time): not before then.
#[cold]
pub fn release(qp: &mut Qp, w: &mut World, now: Instant) -> Option<Instant> {
    let mut held = qp.held.take()?;
    if now >= held.due {
        match attempt(qp, w, &mut held.queued.work, &held.queued.sges) {
            Step::Room => held.due = now + Duration::from_millis(1),
            _ => return None,
        }
    }
    let due = held.due;
    qp.held = Some(held);
    Some(due)
}
