//! The C face: control functions for the table, data path functions for `ibv_context.ops`.
//!
//! Each `extern "C"` function guards against unwinding, turns pointers into references or indices, and calls a safe
//! function. Programs vouch for the pointers they pass, as in libibverbs.
//!
//! ```text
//! table     the driver table
//! device    device list, contexts, queries        create   PD, CQ, channel, SRQ, AH
//! memory    regions                               window   memory windows
//! dm        device memory                         domain   thread domains, parent domains
//! queue     QPs: create, modify, query, destroy   event    completion and asynchronous events
//! ops       send requests                         receive  receives
//! poll      poll, arm                             port     port, GID and P_Key queries
//! address   address handles
//! cq_ex     completions field by field            qp_ex    requests call by call
//! rereg     memory regions that change             import   objects once more
//! multicast queue pairs that listen to groups
//! xrc       XRC domains and SRQs                  shared_qp receive QPs that belong to a domain
//! ```

pub mod address;
pub mod cq_ex;
pub mod create;
pub mod device;
pub mod dm;
pub mod domain;
pub mod event;
pub mod import;
pub mod memory;
pub mod multicast;
pub mod ops;
pub mod poll;
pub mod port;
pub mod qp_ex;
pub mod queue;
pub mod receive;
pub mod rereg;
pub mod shared_qp;
pub mod table;
pub mod window;
pub mod xrc;

use crate::engine::{self, Engine};
use crate::errno::Errno;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Runs `body` for a function that returns 0 or an errno value.
#[inline]
pub fn guard(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(Errno(code))) => code,
        Err(_) => libc::EIO,
    }
}

/// Runs `body` for a function that returns a pointer, or null and sets errno.
pub fn guard_ptr<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(pointer)) => pointer,
        Ok(Err(error)) => {
            error.set();
            std::ptr::null_mut()
        }
        Err(_) => {
            Errno(libc::EIO).set();
            std::ptr::null_mut()
        }
    }
}

/// Runs `body` for a function that returns 0, or -1 and sets errno.
pub fn guard_minus(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guard(body) {
        0 => 0,
        code => {
            Errno(code).set();
            -1
        }
    }
}

/// The engine; ENODEV when no context is open (or in a fork child).
#[inline]
pub fn engine() -> Result<&'static Engine, Errno> {
    engine::current().ok_or(Errno::NODEV)
}
