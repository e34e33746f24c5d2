//! Address handles.
//!
//! A handle carries the destination behind its C struct, so that a post copies it and the handle may go at once.

use super::guard::{guard, guard_ptr};
use super::handle::{engine, pd_key, use_pd};
use super::listing::device_of;
use crate::errno::Errno;
use crate::fabric::address::Address;
use crate::faults::{Call, calls as faults};
use rdma_sys::*;
use std::ffi::c_int;

/// The C struct of an address handle, and where it leads.
#[repr(C)]
struct Ah {
    c: ibv_ah,
    to: Address,
}

/// Makes an address handle. EINVAL for an address that our kind of port cannot send to; an address
/// that no port has is accepted.
pub unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    guard_ptr(|| {
        faults::fate(Call::CreateAh)?;
        // SAFETY: the program passes valid pointers.
        let (attr, context) = unsafe { (&*attr, (*pd).context) };
        let mut to = Address::from(attr);
        let mut state = engine()?.enter();
        let ports = &state.w.ports;
        to.port = ports.place(device_of(context)?, attr.port_num)?;
        to.check(ports.card(to.port))?;
        // Of a parent domain it is the domain below: nothing else counts address handles.
        let pd = state.w.pds.get(pd_key(pd)).ok_or(Errno::INVAL)?.c.as_ptr();
        use_pd(&mut state.w, pd_key(pd), 1);
        let ah = Box::new(Ah { c: ibv_ah { context, pd, handle: 0 }, to });
        Ok(Box::into_raw(ah).cast())
    })
}

/// Where a handle that a program passed leads.
///
/// # Safety
/// A live handle of ours.
pub unsafe fn destination(ah: *mut ibv_ah) -> Address {
    // SAFETY: the caller passes a live handle; create_ah makes all of ours, each as the first
    // member of an Ah.
    unsafe { (*ah.cast::<Ah>()).to }
}

/// `ibv_destroy_ah(3)`.
pub unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    guard(|| {
        faults::fate(Call::DestroyAh)?;
        // SAFETY: made by create_ah, destroyed once by the rules of the API.
        let ah = unsafe { Box::from_raw(ah.cast::<Ah>()) };
        let mut state = engine()?.enter();
        use_pd(&mut state.w, pd_key(ah.c.pd), -1);
        Ok(())
    })
}
