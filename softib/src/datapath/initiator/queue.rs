//! The send queue: requests that wait, for what, and how long.

use super::ahead::ask_more;
use super::attempt::attempt;
use super::finish::finish_head;
use super::rdma::{self, Answerer};
use super::{fates, xrc};
use crate::datapath::pieces::PIECE;
use crate::objects::events::Subject;
use crate::objects::expected::Expected;
use crate::objects::qp::Qp;
use crate::objects::work::{Queued, SHORT, Step, Wait, Work};
use crate::objects::world::World;
use rdma_sys::*;
use std::cell::LazyCell;
use std::time::{Duration, Instant};

/// A request that waits, for what `step` says.
#[cold]
pub fn enqueue(qp: &mut Qp, w: &mut World, work: Work, sges: &[ibv_sge], step: Step) {
    let mut queued = Queued::new(work, sges, Wait::Turn, qp.attr.rnr_retry);
    let spent = wait_for(qp, w, &mut queued, step);
    qp.sq.push_back(queued);
    w.expected = Expected::default();
    if let Some(status) = spent {
        return finish_head(qp, w, status);
    }
    if !qp.busy {
        qp.busy = true;
        w.busy.push(qp.index);
    }
}

/// Notes what a request waits for. Some(status): it has waited long enough.
pub fn wait_for(qp: &Qp, w: &mut World, queued: &mut Queued, step: Step) -> Option<u32> {
    queued.wait = match step {
        Step::Done(status) => return Some(status),
        // It was posted behind others: lost, as datagrams may be. Its reason has been said.
        Step::Refused(_) => return Some(IBV_WC_SUCCESS),
        Step::Held(until) => Wait::Held { until },
        Step::Answer => Wait::Answer,
        Step::Data => {
            let now = timing::now();
            queued.work.begin(now);
            Wait::Data { sent: queued.work.sent, until: now + soon(&queued.work), elsewhere: 0 }
        }
        Step::Turn => Wait::Turn,
        Step::Room => {
            w.stats.ring_full += u64::from(queued.wait != Wait::Room);
            Wait::Room
        }
        Step::Rnr => {
            w.stats.rnr += 1;
            if queued.rnr_left == 0 {
                return Some(IBV_WC_RNR_RETRY_EXC_ERR);
            }
            if queued.rnr_left != 7 {
                queued.rnr_left -= 1;
            }
            let timer = match (&qp.link, &qp.xrc) {
                (Some(link), _) => link.view.min_rnr_timer,
                (None, Some(xrc)) => xrc.min_rnr_timer(),
                (None, None) => 0,
            };
            Wait::Rnr { until: timing::now() + rnr_time(timer) }
        }
        Step::Silent => match queued.wait {
            Wait::Silent { deadline: Some(deadline) } if timing::now() >= deadline => {
                return Some(IBV_WC_RETRY_EXC_ERR);
            }
            Wait::Silent { .. } => return None,
            _ => Wait::Silent { deadline: patience(&qp.attr).map(|time| timing::now() + time) },
        },
    };
    None
}

/// How long a silent peer is asked again: timeout x (retry_cnt + 1); None: for ever (IBTA 9.7.6.1.3).
fn patience(attr: &ibv_qp_attr) -> Option<Duration> {
    let once = Duration::from_nanos(4096 << attr.timeout.min(31));
    (attr.timeout != 0).then(|| once * (u32::from(attr.retry_cnt) + 1))
}

/// The RNR NAK timer codes (IBTA table 45), in units of 10 us.
fn rnr_time(code: u32) -> Duration {
    const UNITS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(10 * UNITS[code as usize % 32])
}

/// Works on the queued sends of one QP. Some(time): when to look again at the latest.
pub fn advance(qp: &mut Qp, w: &mut World, now: &LazyCell<Instant>) -> Option<Instant> {
    let again = if qp.sq.is_empty() { None } else { work_off(qp, w, **now) };
    ask_more(qp, w);
    tell_drained(qp, w);
    let held = if qp.held.is_some() { fates::release(qp, w, **now) } else { None };
    again.into_iter().chain(held).min()
}

/// A draining QP says when the last send that had begun is over.
pub fn tell_drained(qp: &mut Qp, w: &mut World) {
    let begun = qp.sq.front().is_some_and(|queued| queued.work.begun());
    if qp.state == IBV_QPS_SQD && !begun && qp.attr.en_sqd_async_notify != 0 {
        qp.attr.en_sqd_async_notify = 0;
        w.async_event(qp.context, IBV_EVENT_SQ_DRAINED, Subject::Qp(qp.index));
    }
}

fn work_off(qp: &mut Qp, w: &mut World, now: Instant) -> Option<Instant> {
    while matches!(qp.state, IBV_QPS_RTS | IBV_QPS_SQD) {
        // What waits for data is not moved out and in again at every poll.
        if let Some(queued) = qp.sq.front_mut()
            && hurry(queued, now, w.was_elsewhere)
        {
            if !queued.work.gives_on() {
                return Some(next_look(&queued.wait, now));
            }
            match give_on(qp, w)? {
                Ok(status) => finish_head(qp, w, status),
                Err(again) => return Some(again.min(now + SOON)),
            }
            continue;
        }
        let mut queued = qp.sq.pop_front()?;
        let idle = qp.state == IBV_QPS_SQD && !queued.work.begun();
        let early = matches!(queued.wait, Wait::Rnr { until } | Wait::Held { until } if until > now);
        if queued.wait.is_for_answer() && given_up(qp, w, &mut queued, now) {
            qp.sq.push_front(queued);
            finish_head(qp, w, IBV_WC_RETRY_EXC_ERR);
            continue;
        }
        if idle || early || queued.wait.is_for_answer() {
            let again = next_look(&queued.wait, now);
            qp.sq.push_front(queued);
            return Some(again);
        }
        let step = match fates::verdict(qp, w, &mut queued, now) {
            Some(step) => step,
            None => attempt(qp, w, &mut queued.work, &queued.sges),
        };
        let ended = wait_for(qp, w, &mut queued, step);
        let (again, unsent) = (next_look(&queued.wait, now), queued.work.unsent);
        qp.sq.push_front(queued);
        if unsent && qp.ahead > 0 {
            qp.recall();
        }
        let Some(status) = ended else { return Some(again) };
        finish_head(qp, w, status);
        if is_owed(qp) && !qp.sq.is_empty() {
            return Some(now);
        }
    }
    None
}

/// The peer owes an answer that is not waited for. Until it is here all go by our own hand, so rings are looked at between one and the next.
fn is_owed(qp: &Qp) -> bool {
    qp.link.as_ref().is_some_and(|link| link.owed != 0)
}

/// The peer is given more of the data at the head of the SQ. Ok: that is over; else when to look again.
fn give_on(qp: &mut Qp, w: &mut World) -> Option<Result<u32, Instant>> {
    let mut queued = qp.sq.pop_front()?;
    let step = attempt(qp, w, &mut queued.work, &queued.sges);
    // How long the peer is waited for is counted on.
    let ended = if step == Step::Data { None } else { wait_for(qp, w, &mut queued, step) };
    let again = next_look(&queued.wait, timing::now());
    qp.sq.push_front(queued);
    Some(ended.ok_or(again))
}

/// Looks at the peer that owes the answer at the head of the SQ.
fn answerer(qp: &mut Qp, w: &mut World, work: &Work) -> Answerer {
    if qp.kind == IBV_QPT_XRC_SEND { xrc::answerer(qp, w, work) } else { rdma::answerer(qp, w) }
}

/// An answer that is sure to be in the ring is found in less time, however short the QP's own patience is.
const DELIVERY: Duration = Duration::from_millis(20);

/// How long a peer that looks at its rings is waited for, when it has been asked for data and sends nothing.
const SOON: Duration = Duration::from_micros(50);

/// The same of a READ shorter than [`SHORT`], and of a WRITE of one piece, which are carried out without the peer in a few microseconds.
const SOON_IF_SHORT: Duration = Duration::from_micros(5);

/// The same of a longer WRITE, whose target has been given as much of it as it places in less.
const SOON_IF_GIVEN: Duration = Duration::from_micros(10);

/// How long the peer is waited for that has been asked for this, or given it.
pub fn soon(work: &Work) -> Duration {
    match work.may_give {
        true if work.len <= PIECE => SOON_IF_SHORT,
        true => SOON_IF_GIVEN,
        false if work.len < SHORT => SOON_IF_SHORT,
        false => SOON,
    }
}

/// With so much of it still to come the data is fetched, if the program looks around now and then only.
const LEAST_LEFT: u32 = 128 << 10;

/// Data that its owner does not send in time is fetched instead: all of it, for what has come may be of another moment. The owner's answer
/// has the number of a request that is over then. So is what would come by and by, as much with each look as a ring has room for, since the program
/// looks around now and then only, as with MPI_Test between pieces of a computation (`was_elsewhere`). True: it goes on waiting.
fn hurry(queued: &mut Queued, now: Instant, was_elsewhere: bool) -> bool {
    let work = &mut queued.work;
    if queued.wait == Wait::Asked {
        work.begin(now);
        queued.wait = Wait::Data { sent: work.sent, until: now + soon(work), elsewhere: 0 };
    }
    let Wait::Data { sent, until, elsewhere } = &mut queued.wait else { return false };
    if *sent != work.sent {
        (*sent, *until) = (work.sent, now + soon(work));
    }
    *elsewhere = elsewhere.saturating_add(was_elsewhere.into());
    let in_time = now < *until;
    let by_and_by = queued.wait.is_now_and_then(false) && work.len - work.sent >= LEAST_LEFT;
    if in_time && !by_and_by {
        return true;
    }
    (work.late, queued.wait) = (true, Wait::Turn);
    false
}

/// Whether the answer at the head of the SQ can't come any more: its process is dead, or its QP has been closed for as long as a
/// silent one is asked again.
fn given_up(qp: &mut Qp, w: &mut World, queued: &mut Queued, now: Instant) -> bool {
    queued.wait = match (answerer(qp, w, &queued.work), queued.wait) {
        (Answerer::Dead, _) => return true,
        (Answerer::Open, _) => Wait::Answer,
        (Answerer::Closed, Wait::LastAnswer { deadline }) => {
            return deadline.is_some_and(|deadline| now >= deadline);
        }
        (Answerer::Closed, _) => {
            Wait::LastAnswer { deadline: patience(&qp.attr).map(|time| now + time.max(DELIVERY)) }
        }
    };
    false
}

/// Looking again is a load or two; the device thread does it in steps like these while the program
/// does not poll.
fn next_look(wait: &Wait, now: Instant) -> Instant {
    match *wait {
        Wait::Turn | Wait::Room => now + Duration::from_micros(50),
        Wait::Rnr { until } | Wait::Held { until } | Wait::Data { until, .. } => until,
        Wait::Silent { .. } | Wait::LastAnswer { .. } => now + Duration::from_millis(1),
        Wait::Answer | Wait::Asked => now + Duration::from_millis(10),
    }
}
