//! Device memory: `ibv_alloc_dm`, its copy functions, and regions on it (ibv_alloc_dm(3)).
//!
//! Offsets and lengths of copies are multiples of 4, as adapters ask for. A fork child, which has no device otherwise, can take
//! and use parts of the memory, too: nothing here needs the engine, except to count.

use crate::abi::guard::{guard, guard_ptr};
use crate::abi::handle::{context_key, engine, pd_key, use_context};
use crate::abi::memory::{self, Place, check_access};
use crate::errno::Errno;
use crate::extras::dm;
use crate::shm::mrtable::Region;
use rdma_sys::*;
use std::ffi::{c_int, c_uint, c_void};

/// What copies are multiples of.
const UNIT: u64 = 4;

/// `ibv_alloc_dm(3)`.
pub unsafe extern "C" fn alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    guard_ptr(|| {
        // SAFETY: the program passes a valid pointer.
        let attr = unsafe { &*attr };
        if attr.comp_mask != 0 {
            return Err(Errno::INVAL);
        }
        let handle = dm::alloc(attr.length, attr.log_align_req)?;
        Ok(hand_out(context, handle))
    })
}

fn hand_out(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    count(context, 1);
    Box::into_raw(Box::new(ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: IBV_DM_MASK_HANDLE,
        handle,
    }))
}

/// Counts device memory in or out of its context. A fork child has none to count in.
fn count(context: *mut ibv_context, delta: i32) {
    if let Ok(engine) = engine() {
        let _ = use_context(&mut engine.enter().w, context_key(context), delta);
    }
}

/// `verbs_context.free_dm`. EBUSY: regions are on it.
pub unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    guard(|| {
        // SAFETY: the program passes device memory of ours.
        dm::free(unsafe { (*dm).handle })?;
        forget(dm);
        Ok(())
    })
}

fn forget(dm: *mut ibv_dm) {
    // SAFETY: made by hand_out(), given back once by the rules of the API.
    let dm = unsafe { Box::from_raw(dm) };
    count(dm.context, -1);
}

/// `ibv_import_dm`: the same memory once more.
///
/// # Safety
/// An open context.
pub unsafe extern "C" fn import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    guard_ptr(|| {
        engine()?;
        dm::find(handle).map(|_| hand_out(context, handle))
    })
}

/// `ibv_unimport_dm`: the memory stays.
///
/// # Safety
/// What [`import_dm`] returned.
pub unsafe extern "C" fn unimport_dm(dm: *mut ibv_dm) {
    guard(|| {
        forget(dm);
        Ok(())
    });
}

/// The address of a part of device memory.
fn part(dm: *mut ibv_dm, offset: u64, len: u64) -> Result<usize, Errno> {
    // SAFETY: the program passes device memory of ours.
    let (at, size) = dm::find(unsafe { (*dm).handle })?;
    let inside = offset.checked_add(len).is_some_and(|end| end <= size as u64);
    if inside { Ok(at + offset as usize) } else { Err(Errno::INVAL) }
}

fn aligned(offset: u64, len: usize) -> Result<(), Errno> {
    let fine = offset.is_multiple_of(UNIT) && (len as u64).is_multiple_of(UNIT);
    if fine { Ok(()) } else { Err(Errno::INVAL) }
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, len: usize) -> c_int {
    guard(|| {
        aligned(offset, len)?;
        let to = part(dm, offset, len as u64)?;
        // SAFETY: the program passes `len` readable bytes; the other side lies inside its device memory (checked).
        unsafe { std::ptr::copy(from.cast::<u8>(), to as *mut u8, len) };
        Ok(())
    })
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, len: usize) -> c_int {
    guard(|| {
        aligned(offset, len)?;
        let from = part(dm, offset, len as u64)?;
        // SAFETY: the program passes `len` writable bytes; the other side lies inside its device memory (checked).
        unsafe { std::ptr::copy(from as *const u8, to.cast::<u8>(), len) };
        Ok(())
    })
}

/// `verbs_context.reg_dm_mr`: a region on a part of device memory, which requests address from 0 on.
pub unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    len: usize,
    access: c_uint,
) -> *mut ibv_mr {
    guard_ptr(|| {
        let access = check_access(access)?;
        if access & IBV_ACCESS_ZERO_BASED == 0 || access & IBV_ACCESS_ON_DEMAND != 0 {
            return Err(Errno::INVAL);
        }
        let base = part(dm, offset, len as u64)? as u64;
        // SAFETY: the program passes device memory of ours.
        let handle = unsafe { (*dm).handle };
        dm::hold(handle)?;
        let region = Region { key: 0, access, pd: pd_key(pd) as u32, addr: 0, len: len as u64 };
        let place = Place { addr: std::ptr::null_mut(), base, dm: Some(handle) };
        let made = engine().and_then(|engine| memory::insert(&mut engine.enter().w, pd, region, &place));
        made.inspect_err(|_| dm::release(handle))
    })
}
