//! XRC domains: what processes of a node share.

use crate::context::Context;
use crate::error::{Error, leaked};
use rdma_sys as sys;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Whether a domain has to be there already (ibv_open_xrcd(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XrcdOpen {
    /// It must exist.
    Existing,
    /// It is made if it does not exist.
    OrCreate,
    /// It must not exist.
    CreateNew,
}

/// An XRC domain.
#[derive(Debug)]
pub struct Xrcd {
    context: Arc<Context>,
    raw: NonNull<sys::ibv_xrcd>,
}

// SAFETY: verbs objects may be used from every thread.
unsafe impl Send for Xrcd {}
// SAFETY: a domain does not change between open and close, and only `drop` closes it.
unsafe impl Sync for Xrcd {}

impl Xrcd {
    /// Opens the domain of a file's inode, which stands for it on this node and device.
    ///
    /// # Errors
    /// The device has no XRC, the domain is not there, or is there already.
    pub fn open(context: &Arc<Context>, file: BorrowedFd<'_>, how: XrcdOpen) -> Result<Arc<Xrcd>, Error> {
        let oflags = match how {
            XrcdOpen::Existing => 0,
            XrcdOpen::OrCreate => libc::O_CREAT,
            XrcdOpen::CreateNew => libc::O_CREAT | libc::O_EXCL,
        };
        Xrcd::open_raw(context, file.as_raw_fd(), oflags)
    }

    /// A domain of this process alone.
    ///
    /// # Errors
    /// The device has no XRC, or no more domains.
    pub fn private(context: &Arc<Context>) -> Result<Arc<Xrcd>, Error> {
        Xrcd::open_raw(context, -1, libc::O_CREAT)
    }

    fn open_raw(context: &Arc<Context>, fd: i32, oflags: i32) -> Result<Arc<Xrcd>, Error> {
        let comp_mask = sys::IBV_XRCD_INIT_ATTR_FD | sys::IBV_XRCD_INIT_ATTR_OFLAGS;
        let mut attr = sys::ibv_xrcd_init_attr { comp_mask, fd, oflags };
        // SAFETY: an open context and attributes.
        let raw = unsafe { sys::ibv_open_xrcd(context.raw(), &mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_open_xrcd", context.name()))?;
        Ok(Arc::new(Xrcd { context: context.clone(), raw }))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_xrcd {
        self.raw.as_ptr()
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        // SAFETY: everything made with it holds it, so there is nothing left.
        let code = unsafe { sys::ibv_close_xrcd(self.raw()) };
        leaked("ibv_close_xrcd", code, &self.context.name());
    }
}
