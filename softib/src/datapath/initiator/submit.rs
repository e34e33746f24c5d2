//! Posting: a request is attempted at once, or waits its turn.

use super::attempt::attempt;
use super::finish::fail_send;
use super::queue::{advance, enqueue};
use crate::datapath::iwarp;
use crate::errno::Errno;
use crate::objects::qp::Qp;
use crate::objects::work::{Queued, Step, Wait, Work};
use crate::objects::world::World;
use rdma_sys::*;
use std::cell::LazyCell;

/// Takes a checked request: attempts it now, or queues it behind others.
#[inline]
pub fn submit(qp: &mut Qp, w: &mut World, mut work: Work, sges: &[ibv_sge]) -> Result<(), Errno> {
    if qp.sq_posted.wrapping_sub(qp.sq_retired) >= qp.cap.max_send_wr {
        return Err(Errno::NOMEM);
    }
    qp.sq_posted = qp.sq_posted.wrapping_add(1);
    work.number = qp.sq_posted;
    if !qp.direct || !qp.sq.is_empty() {
        return submit_later(qp, w, work, sges);
    }
    match attempt(qp, w, &mut work, sges) {
        Step::Done(IBV_WC_SUCCESS) => qp.complete_send(w, &work, IBV_WC_SUCCESS),
        Step::Done(status) => fail_send(qp, w, &work, status),
        Step::Refused(error) => return Err(not_posted(qp, error)),
        step => enqueue(qp, w, work, sges, step),
    }
    Ok(())
}

#[cold]
fn not_posted(qp: &mut Qp, error: Errno) -> Errno {
    qp.sq_posted = qp.sq_posted.wrapping_sub(1);
    error
}

#[cold]
fn submit_later(qp: &mut Qp, w: &mut World, work: Work, sges: &[ibv_sge]) -> Result<(), Errno> {
    match qp.state {
        IBV_QPS_RTS | IBV_QPS_SQD => {
            if let Some(status) = iwarp::first_request(qp, w) {
                fail_send(qp, w, &work, status);
                return Ok(());
            }
            let queued = Queued::new(work, sges, Wait::Turn, qp.attr.rnr_retry);
            take_turn(qp, w, queued);
        }
        // Behind the one that has failed.
        IBV_QPS_ERR if qp.ending.is_some() => {
            qp.sq.push_back(Queued::new(work, sges, Wait::Turn, qp.attr.rnr_retry));
        }
        IBV_QPS_ERR | IBV_QPS_SQE => qp.complete_send(w, &work, IBV_WC_WR_FLUSH_ERR),
        _ => {
            qp.sq_posted = qp.sq_posted.wrapping_sub(1);
            return Err(Errno::INVAL);
        }
    }
    Ok(())
}

/// Takes a request of a queue pair that is not direct: behind others, or at once by way of the queue.
#[cold]
fn take_turn(qp: &mut Qp, w: &mut World, mut queued: Queued) {
    if let Some(faults) = w.faults.as_mut() {
        queued.fate = Some(Box::new(faults.decide(qp.kind, &queued.work)));
    }
    queued.wait = Wait::Turn;
    qp.sq.push_back(queued);
    if qp.state == IBV_QPS_RTS && !qp.busy && advance(qp, w, &LazyCell::new(timing::now)).is_some() {
        qp.busy = true;
        w.busy.push(qp.index);
    }
}
