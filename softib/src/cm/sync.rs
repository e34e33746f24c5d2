//! Synchronous ids: calls that end with an event wait for it, and keep it until the next (rdma_create_id(3)).

use super::channel;
use super::world::{ACKNOWLEDGED, CEvent, world};
use crate::errno::Errno;
use rdma_cm_sys::*;
use std::ptr::null_mut;

/// Of a synchronous id: waits for the event that the call ends with.
pub fn complete(key: usize) -> Result<(), Errno> {
    let (c, own) = {
        let mut world = world();
        let id = world.id(key)?;
        if !id.sync {
            return Ok(());
        }
        (id.c(), id.channel)
    };
    drop_event(c);
    let event = channel::next_event_of(own)?;
    // SAFETY: our own struct, and an event just taken.
    let (kind, status) = unsafe {
        (*c).event = event;
        ((*event).event, (*event).status)
    };
    match (kind, status) {
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, status) if status < 0 => Err(Errno(-status)),
        _ => Err(Errno(libc::ECONNREFUSED)),
    }
}

/// Acknowledges the event that a synchronous id keeps.
pub fn drop_event(c: *mut rdma_cm_id) {
    // SAFETY: our own struct; the event is ours until it is acknowledged, here.
    unsafe {
        let event = std::mem::replace(&mut (*c).event, null_mut());
        if !event.is_null() {
            acknowledge(event);
        }
    }
}

/// Gives an event back that has been taken from its channel: its id may go.
///
/// # Safety
/// An event of ours that has not been acknowledged.
pub unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: the caller passes an event of ours, which the channel has made as a boxed CEvent, once.
    let event = unsafe { Box::from_raw(event.cast::<CEvent>()) };
    if let Ok(id) = world().id(event.owner) {
        id.unacknowledged = id.unacknowledged.saturating_sub(1);
    }
    ACKNOWLEDGED.notify_all();
}
