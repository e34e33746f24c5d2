//! Event channels.

use super::loader;
use crate::descriptor::set_nonblocking;
use crate::driver::Driver;
use crate::error::Error;
use rdma_cm_sys as sys;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Where the events of ids arrive. Its descriptor becomes readable when there may be one; it is non-blocking.
#[derive(Debug)]
pub struct EventChannel {
    pub(super) table: &'static sys::Table,
    raw: NonNull<sys::rdma_event_channel>,
}

// SAFETY: librdmacm's calls may be made from every thread.
unsafe impl Send for EventChannel {}
// SAFETY: the pointer and the descriptor never change; the kernel gives each event of librdmacm's
// channel to one reader, and softib's manager locks its state.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// Opens a channel of the connection manager that goes with the driver's devices.
    ///
    /// # Errors
    /// There is no librdmacm, or the kernel has no connection manager.
    pub fn create(driver: &Driver) -> Result<Arc<EventChannel>, Error> {
        let table = connections(driver)?;
        // SAFETY: the table is that of a librdmacm.
        let raw = unsafe { (table.create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("rdma_create_event_channel", table.name))?;
        let channel = EventChannel { table, raw };
        set_nonblocking(channel.fd()).map_err(|e| Error::new("fcntl", "the event channel", e))?;
        Ok(Arc::new(channel))
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> RawFd {
        // SAFETY: a live channel; its descriptor never changes.
        unsafe { (*self.raw.as_ptr()).fd }
    }

    pub(super) fn raw(&self) -> *mut sys::rdma_event_channel {
        self.raw.as_ptr()
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every id holds its channel, so there are none; given back once.
        unsafe { (self.table.destroy_event_channel)(self.raw()) };
    }
}

/// The connection manager that goes with the devices: the linked-in one, else `librdmacm.so.1` of this machine.
fn connections(driver: &Driver) -> Result<&'static sys::Table, Error> {
    match driver.0.connections {
        Some(table) => Ok(table),
        None if loader::is_machines(driver.0.table) => loader::load()
            .map_err(|reason| Error::new("dlopen", "librdmacm.so.1", libc::ENOENT).because(reason)),
        None => Err(Error::new("rdma_create_event_channel", "the linked-in device", libc::ENOSYS)),
    }
}
