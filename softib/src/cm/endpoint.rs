//! Endpoints: an id, its address and its queue pair in one call (rdma_create_ep(3)).
//!
//! Their ids have no channel, so they are synchronous: calls wait for the event that they end with (`sync`).

use super::id::{create_qp, make, migrate};
use super::sync::{acknowledge, drop_event};
use super::world::{CEvent, Template, id_key, world};
use super::{api, channel, device, srq};
use crate::abi::guard::guard_minus;
use crate::errno::Errno;
use rdma_cm_sys::*;
use rdma_sys::*;
use std::ffi::c_int;
use std::ptr::null_mut;

/// `rdma_create_ep`: an id for an address that `rdma_getaddrinfo` found, synchronous, with a QP unless it is to listen.
pub unsafe extern "C" fn create_ep(
    to: *mut *mut rdma_cm_id,
    found: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    guard_minus(|| {
        // SAFETY: pointers by the rules of the API.
        unsafe {
            let found = &*found;
            let qp_type = found.ai_qp_type as u32;
            if let Some(init) = init.as_mut() {
                init.qp_type = qp_type;
            }
            device::keep_open(&mut world());
            let id = make(null_mut(), null_mut(), found.ai_port_space as u32, Some(qp_type))?;
            let made = if found.ai_flags as u32 & RAI_PASSIVE != 0 {
                passive(id, found, pd, init)
            } else {
                active(id, found, pd, init)
            };
            match made {
                Ok(()) => to.write(id),
                Err(error) => {
                    destroy_ep(id);
                    return Err(error);
                }
            }
        }
        Ok(())
    })
}

/// # Safety
/// As `create_ep`.
unsafe fn passive(
    id: *mut rdma_cm_id,
    found: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: create_ep has just made `id`; the program passes it a result of rdma_getaddrinfo,
    // whose addresses are null or as long as their families say, and null or valid attributes.
    unsafe {
        let key = id_key(id)?;
        let address = super::address::parse(found.ai_src_addr)?;
        let mut world = world();
        world.bind(key, address)?;
        world.id(key)?.template = init.as_ref().map(|init| Template { pd, init: *init });
    }
    Ok(())
}

/// Long enough for every address and route there is: both are known at once.
const RESOLVE_MS: c_int = 2000;

/// # Safety
/// As `create_ep`.
unsafe fn active(
    id: *mut rdma_cm_id,
    found: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    let done = |code: c_int| if code == 0 { Ok(()) } else { Err(Errno::last()) };
    // SAFETY: create_ep has just made `id`; the program passes it a result of rdma_getaddrinfo,
    // whose addresses are null or as long as their families say, and null or valid attributes.
    unsafe {
        done(api::resolve_addr(id, found.ai_src_addr, found.ai_dst_addr, RESOLVE_MS))?;
        done(api::resolve_route(id, RESOLVE_MS))?;
        match init.as_mut() {
            Some(init) => create_qp(id_key(id)?, pd, init),
            None => Ok(()),
        }
    }
}

/// `rdma_destroy_ep(3)`.
pub unsafe extern "C" fn destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: an id of ours by the rules of the API.
    unsafe {
        api::destroy_qp(id);
        srq::destroy_srq(id);
        api::destroy_id(id);
    }
}

/// `rdma_get_request`: waits for a request to a synchronous listener; the new id is synchronous, too.
pub unsafe extern "C" fn get_request(listener: *mut rdma_cm_id, to: *mut *mut rdma_cm_id) -> c_int {
    guard_minus(|| {
        // SAFETY: an id of ours by the rules of the API.
        let key = unsafe { id_key(listener)? };
        let (own, template) = {
            let mut world = world();
            let id = world.id(key)?;
            if !id.sync {
                return Err(Errno::INVAL);
            }
            (id.channel, id.template)
        };
        drop_event(listener);
        let event = channel::next_event_of(own)?;
        // SAFETY: an event just taken.
        let (id, kind, status) = unsafe { ((*event).id, (*event).event, (*event).status) };
        if kind != RDMA_CM_EVENT_CONNECT_REQUEST || status != 0 {
            // SAFETY: taken just now, given back once.
            unsafe { acknowledge(event) };
            return Err(Errno::INVAL);
        }
        adopt(key, event, id)?;
        if let Some(Template { pd, mut init }) = template {
            // SAFETY: an id of ours.
            create_qp(unsafe { id_key(id)? }, pd, &mut init)?;
        }
        // SAFETY: the program passes a valid pointer.
        unsafe { to.write(id) };
        Ok(())
    })
}

/// A request's id gets a channel of its own, and keeps the event for its private data.
fn adopt(listener: usize, event: *mut rdma_cm_event, id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: an id of ours, not yet handed out, and the event that brought it.
    unsafe {
        migrate(id.cast(), null_mut())?;
        let key = id_key(id)?;
        let mut world = world();
        // From now on the event counts for the new id: the listener may go first.
        (*event.cast::<CEvent>()).owner = key;
        world.id(listener)?.unacknowledged -= 1;
        world.id(key)?.unacknowledged += 1;
        (*id).event = event;
    }
    Ok(())
}
