//! Event channels.

use super::event::{self, CmEvent};
use crate::driver::Driver;
use crate::error::Error;
use rdma_cm_sys as sys;
use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Where the events of ids arrive. Its descriptor becomes readable when there may be one; it is non-blocking.
#[derive(Debug)]
pub struct EventChannel {
    pub(super) table: &'static sys::Table,
    raw: NonNull<sys::rdma_event_channel>,
}

// SAFETY: librdmacm's calls may be made from every thread.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// Opens a channel of the connection manager that goes with the driver's devices.
    ///
    /// # Errors
    /// There is no librdmacm, or the kernel has no connection manager.
    pub fn create(driver: &Driver) -> Result<Arc<EventChannel>, Error> {
        let table = driver.connections()?;
        // SAFETY: the table is that of a librdmacm.
        let raw = unsafe { (table.create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("rdma_create_event_channel", table.name))?;
        let channel = EventChannel { table, raw };
        channel.make_non_blocking()?;
        Ok(Arc::new(channel))
    }

    fn make_non_blocking(&self) -> Result<(), Error> {
        // SAFETY: the channel's own descriptor.
        let code = unsafe {
            let flags = libc::fcntl(self.fd(), libc::F_GETFL);
            libc::fcntl(self.fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        if code == 0 { Ok(()) } else { Err(Error::last("fcntl", "the event channel")) }
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> RawFd {
        // SAFETY: a live channel; its descriptor never changes.
        unsafe { (*self.raw.as_ptr()).fd }
    }

    /// Takes and acknowledges the next event, if there is one.
    ///
    /// # Errors
    /// The connection manager is gone.
    pub fn next_event(self: &Arc<Self>) -> Result<Option<CmEvent>, Error> {
        let mut raw = null_mut();
        // SAFETY: a live channel and room for the answer.
        if unsafe { (self.table.get_cm_event)(self.raw(), &mut raw) } != 0 {
            return match rdma_sys::errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => Err(Error::new("rdma_get_cm_event", "the event channel", errno)),
            };
        }
        // SAFETY: taken just now; acknowledged once, after it was copied.
        unsafe {
            let event = event::copy(self, &*raw);
            (self.table.ack_cm_event)(raw);
            Ok(Some(event))
        }
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
