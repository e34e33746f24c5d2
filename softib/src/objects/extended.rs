//! The C structs of completion queues and queue pairs in their extended form: what programs read completions from field by field, and
//! put requests together in call by call (`abi::cq_ex`, `abi::qp_ex`). Every completion queue has room for it; a queue pair only if the
//! program asked for it, because a large job has thousands of them.

use super::{CBox, zeroed};
use crate::clock::Stamp;
use crate::errno::Errno;
use rdma_sys::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// The C struct of a completion queue, and the completion that is being read.
#[repr(C)]
pub struct CqEx {
    /// What programs see.
    pub ex: ibv_cq_ex,
    /// The completion that is being read.
    pub wc: ibv_wc,
    /// When it was made.
    pub stamp: Stamp,
    /// Taken by `start_poll`, given back by `end_poll`, unless `single_threaded`.
    pub turn: Turn,
    /// IBV_CREATE_CQ_ATTR_SINGLE_THREADED.
    pub single_threaded: bool,
    /// The parent domain it was made with, or null.
    pub parent: *mut ibv_pd,
}

/// An `ibv_cq` in its extended form, without functions yet.
pub fn extended(c: ibv_cq) -> CqEx {
    // SAFETY: ibv_cq_ex is plain C data; zeroes are valid (null functions).
    let mut ex: ibv_cq_ex = unsafe { zeroed() };
    (ex.context, ex.channel, ex.cq_context) = (c.context, c.channel, c.cq_context);
    (ex.handle, ex.cqe) = (c.handle, c.cqe);
    CqEx {
        ex,
        wc: ibv_wc::default(),
        stamp: Stamp::default(),
        turn: Turn::default(),
        single_threaded: false,
        parent: std::ptr::null_mut(),
    }
}

// The ibv_cq that programs see is the beginning of the extended one.
const _: () = {
    assert!(std::mem::offset_of!(ibv_cq, handle) == std::mem::offset_of!(ibv_cq_ex, handle));
    assert!(std::mem::offset_of!(ibv_cq, mutex) == std::mem::offset_of!(ibv_cq_ex, mutex));
    assert!(size_of::<ibv_cq>() <= std::mem::offset_of!(ibv_cq_ex, status));
};

/// The C struct of a queue pair.
#[derive(Debug)]
pub enum QpC {
    Plain(CBox<ibv_qp>),
    Extended(CBox<QpEx>),
}

impl QpC {
    /// What programs know the queue pair by.
    pub fn pointer(&self) -> *mut ibv_qp {
        match self {
            QpC::Plain(c) => c.as_ptr(),
            QpC::Extended(c) => c.as_ptr().cast(),
        }
    }

    /// Its extended form, if it has one.
    pub fn extended(&self) -> Option<*mut QpEx> {
        match self {
            QpC::Plain(_) => None,
            QpC::Extended(c) => Some(c.as_ptr()),
        }
    }
}

/// The C struct of a queue pair in its extended form, and the requests that are being put together.
#[repr(C)]
pub struct QpEx {
    /// What programs see.
    pub ex: ibv_qp_ex,
    /// Its capabilities, for the checks of each request.
    pub cap: ibv_qp_cap,
    /// Taken by `wr_start`, given back by `wr_complete` or `wr_abort`.
    pub turn: Turn,
    /// The requests since `wr_start`.
    pub list: List,
}

/// Requests in the making.
#[derive(Default)]
pub struct List {
    /// In the order in which they were begun.
    pub requests: Vec<ibv_send_wr>,
    /// One for each of them.
    pub parts: Vec<Parts>,
    /// The first mistake.
    pub mistake: Option<Errno>,
}

/// What a request is filled from.
#[derive(Default)]
pub struct Parts {
    /// Its SGEs.
    pub sges: Vec<ibv_sge>,
    /// Its inline payload.
    pub inline: Vec<u8>,
}

impl QpEx {
    /// An `ibv_qp` in its extended form, without functions yet.
    pub fn new(qp_base: ibv_qp, cap: ibv_qp_cap) -> QpEx {
        // SAFETY: ibv_qp_ex is plain C data; zeroes are valid (null functions).
        let ex = ibv_qp_ex { qp_base, ..unsafe { zeroed() } };
        QpEx { ex, cap, turn: Turn::default(), list: List::default() }
    }
}

/// Whose turn it is to use a C struct over several calls. Giving it back twice is harmless: programs do that.
#[derive(Debug, Default)]
pub struct Turn(AtomicBool);

impl Turn {
    /// Waits until the turn is free, and takes it.
    pub fn take(&self) {
        while self.0.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Lets the next one have it.
    pub fn give(&self) {
        self.0.store(false, Ordering::Release);
    }
}
