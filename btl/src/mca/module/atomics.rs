//! `btl_atomic_op`, `btl_atomic_fop` and `btl_atomic_cswap`: atomics on 64-bit words.

use super::{Cookie, Module, Operation, from_raw, to_raw};
use crate::mca::handle::RegHandle;
use crate::protocol::atomic::Atomic;
use crate::transport::{NotBegun, Transport};
use opal_sys::*;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use verbs::{Atomics, RKey};

impl Module {
    /// Begins one.
    pub fn atomic(&'static self, atomic: Atomic, remote: (u64, RKey), operation: Operation) -> c_int {
        if !is_aligned(remote.0) {
            return OPAL_ERR_BAD_PARAM;
        }
        let id = from_raw(operation.endpoint);
        let begin = |t: &mut Transport<Cookie>, cookie| t.atomic(id, atomic, remote, cookie).map_err(Some);
        match self.with(|state| state.begin(operation, None, begin)) {
            Ok(()) => OPAL_SUCCESS,
            Err(None | Some(NotBegun::Lost(_))) => self.refused(id),
            Err(Some(NotBegun::NoBuffer(error, _))) => {
                log::debug!("an atomic has to wait: {error}");
                OPAL_ERR_OUT_OF_RESOURCE
            }
        }
    }

    /// One on a word of this process, whosever endpoint it comes with: 4.1's osc/rdma has no handle for what
    /// it reaches itself, windows in shared memory among it. 1: it is done.
    ///
    /// # Safety
    /// `place` is the address of eight bytes of this process that last until the callback; so does
    /// `operation.local`, unless it is NULL.
    #[cold]
    pub unsafe fn atomic_here(&'static self, atomic: Atomic, place: u64, operation: Operation) -> c_int {
        if !is_aligned(place) {
            return OPAL_ERR_BAD_PARAM;
        }
        if self.atomics == Atomics::Global {
            // SAFETY: aligned, and of this process; what else changes the word is as atomic, the
            // device says.
            let word = unsafe { AtomicU64::from_ptr(place as *mut u64) };
            // SAFETY: the caller promises room for the value before.
            unsafe { hand_over(&operation, carry_out(word, atomic)) };
            return 1;
        }
        // SAFETY: the caller keeps the word until the callback, and the registration ends before that.
        let own = unsafe { self.register(place as *mut c_void, 8, MCA_BTL_REG_FLAG_REMOTE_ATOMIC) };
        let itself = self.transport(None, |t| t.itself(self.abi.my_name().word()));
        let (Some(itself), false) = (itself, own.is_null()) else { return OPAL_ERR_NOT_SUPPORTED };
        // SAFETY: the handle that has just been returned.
        let remote = (place, unsafe { RegHandle::remote(own) });
        let status = self.atomic(atomic, remote, Operation { endpoint: to_raw(itself), own, ..operation });
        if status != OPAL_SUCCESS {
            // SAFETY: a handle of ours that nothing uses.
            unsafe { self.deregister(own) };
        }
        status
    }
}

/// The peer's device would refuse another, and the connection would end with that.
fn is_aligned(place: u64) -> bool {
    let aligned = place.is_multiple_of(8);
    if !aligned {
        log::error!("an atomic on address {place:#x} is refused: it is no multiple of 8");
    }
    aligned
}

/// By the processor; the value before.
fn carry_out(word: &AtomicU64, atomic: Atomic) -> u64 {
    let change = |was| Some(atomic.changed(was));
    word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).unwrap_or_else(|was| was)
}

/// One is over: hands the value before to its caller, whose callback comes next.
///
/// # Safety
/// `operation` is an atomic's: its `local` is NULL, or has room for eight bytes until the callback.
#[inline]
pub(super) unsafe fn hand_over(operation: &Operation, value: u64) {
    if !operation.local.is_null() {
        // SAFETY: the caller promises room; no alignment is assumed.
        unsafe { operation.local.cast::<u64>().write_unaligned(value) };
    }
}
