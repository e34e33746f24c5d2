//! The data path's functions for a context that is opened under a plan in which one of them fails, or the process is killed at one: each
//! asks for its fate first.
//! Without such a plan a context has the functions themselves, which ask nothing.

use super::{ops, poll, receive};
use crate::errno::Errno;
use crate::faults::{Call, Step, calls as faults};
use rdma_sys::*;
use std::ffi::c_int;

/// Puts them in the place of the usual ones.
pub fn interpose(ops: &mut ibv_context_ops) {
    ops.poll_cq = Some(poll_cq);
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
}

/// None of a list of requests is taken: `bad` is the first of them.
fn refuse<T>(call: Call, first: *mut T, bad: *mut *mut T) -> Option<c_int> {
    let Err(Errno(code)) = faults::fate(call) else { return None };
    if !bad.is_null() {
        // SAFETY: the program passes null or a valid pointer.
        unsafe { *bad = first };
    }
    Some(code)
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    match faults::fate(Call::PollCq) {
        // SAFETY: the program passes a CQ of ours and room for `count` completions.
        Ok(()) => unsafe { poll::poll_cq(cq, count, wc) },
        Err(_) => -1,
    }
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the program passes a QP of ours and a list of valid requests.
    let steps = || unsafe { steps_of((*qp).qp_type, wr) };
    steps().for_each(faults::reach);
    // SAFETY: the program passes a QP of ours, a list of valid requests, and null or a valid `bad`.
    let code = refuse(Call::PostSend, wr, bad).unwrap_or_else(|| unsafe { ops::post_send(qp, wr, bad) });
    if code == 0 {
        steps().for_each(|step| faults::reach(step.and_then(Step::posted)));
    }
    code
}

/// The steps that a list of requests is.
///
/// # Safety
/// `first` is null, or a list of valid requests that outlives what is returned.
unsafe fn steps_of(kind: u32, first: *mut ibv_send_wr) -> impl Iterator<Item = Option<Step>> {
    // SAFETY: the caller's promise.
    let next = |wr: &&ibv_send_wr| unsafe { wr.next.as_ref() };
    // SAFETY: the caller's promise.
    let list = std::iter::successors(unsafe { first.as_ref() }, next);
    list.map(move |wr| Step::of_request(kind, wr.opcode))
}

unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the program passes a QP of ours.
    let step = (unsafe { (*qp).qp_type } != IBV_QPT_UD).then_some(Step::Recv);
    faults::reach(step);
    // SAFETY: the program passes a QP of ours, a list of valid requests, and null or a valid `bad`.
    let code = refuse(Call::PostRecv, wr, bad).unwrap_or_else(|| unsafe { receive::post_recv(qp, wr, bad) });
    if code == 0 {
        faults::reach(step.and_then(Step::posted));
    }
    code
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program passes an SRQ of ours, a list of valid requests, and null or a valid `bad`.
    refuse(Call::PostSrqRecv, wr, bad).unwrap_or_else(|| unsafe { receive::post_srq_recv(srq, wr, bad) })
}
