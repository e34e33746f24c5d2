//! Objects of a device that is open already, once more: `ibv_import_device`, `ibv_import_pd`, `ibv_import_mr`.
//!
//! The command descriptor of a context is a file in memory that says which process and context it belongs to, so a duplicate
//! of it names them, too. Contexts of other processes can't be imported: their memory is not ours, and no kernel stands between.
//! Imported objects are C structs of their own for the same thing; "unimport" gives the struct back, not the thing.

use super::command::signature;
use crate::abi::device::open_as;
use crate::abi::guard::{guard, guard_ptr};
use crate::abi::handle::{context_key, engine, pd_key, use_context};
use crate::errno::Errno;
use rdma_sys::*;
use std::ffi::c_int;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

/// `ibv_import_device`: another context of the device. It owns the descriptor from then on. EINVAL: the descriptor is no duplicate
/// of a `cmd_fd` of ours; EOPNOTSUPP: it is one of another process.
///
/// # Safety
/// The descriptor is the caller's to give away.
pub unsafe extern "C" fn import_device(cmd_fd: c_int) -> *mut ibv_context {
    guard_ptr(|| {
        if cmd_fd < 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: it is only read here; without success it stays the caller's.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(cmd_fd) });
        let (incarnation, context) = signature(&file).ok_or(Errno::INVAL)?;
        let device = {
            let state = engine().map_err(|_| Errno::OPNOTSUPP)?.enter();
            if state.w.segment.incarnation != incarnation {
                return Err(Errno::OPNOTSUPP);
            }
            let known = state.w.contexts.get(context).ok_or(Errno::INVAL)?;
            // SAFETY: our own struct, alive as long as its entry.
            unsafe { (*known.c.as_ptr()).context.device }
        };
        open_as(device, ManuallyDrop::into_inner(file))
    })
}

/// `ibv_import_pd`: the protection domain of another context, by its handle.
///
/// # Safety
/// An open context.
pub unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    guard_ptr(|| {
        let mut state = engine()?.enter();
        let w = &state.w;
        let owner = w.pds.get(handle as usize).ok_or(Errno::INVAL)?.context;
        if w.device(owner) != w.device(context_key(context)) {
            return Err(Errno::INVAL);
        }
        use_context(&mut state.w, context_key(context), 1)?;
        Ok(Box::into_raw(Box::new(ibv_pd { context, handle })))
    })
}

/// `ibv_unimport_pd`
///
/// # Safety
/// What [`import_pd`] returned, once.
pub unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    guard(|| {
        // SAFETY: the caller passes what import_pd returned, a box that it leaked, and passes it
        // once.
        let pd = unsafe { Box::from_raw(pd) };
        use_context(&mut engine()?.enter().w, context_key(pd.context), -1)
    });
}

/// `ibv_import_mr`: a region by its handle. Its address is not known to the struct (ibv_import_mr(3)).
///
/// # Safety
/// A live PD of this device.
pub unsafe extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    guard_ptr(|| {
        let state = engine()?.enter();
        let region = state.w.mrs.exposed(handle).ok_or(Errno::INVAL)?.region;
        if region.pd as usize != pd_key(pd) {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program passes a PD of ours.
        let context = unsafe { (*pd).context };
        let (addr, length) = (std::ptr::null_mut(), region.len as usize);
        Ok(Box::into_raw(Box::new(ibv_mr { context, pd, addr, length, handle, lkey: handle, rkey: handle })))
    })
}

/// `ibv_unimport_mr`
///
/// # Safety
/// What [`import_mr`] returned, once.
pub unsafe extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    guard(|| {
        // SAFETY: the caller passes what import_mr returned, a box that it leaked, and passes it
        // once.
        drop(unsafe { Box::from_raw(mr) });
        Ok(())
    });
}
