//! Protection domains and registered memory.

use crate::context::Context;
use crate::error::{Error, leaked};
use crate::types::{LKey, RKey};
use rdma_sys as sys;
use std::ptr::NonNull;
use std::sync::Arc;

bitflags::bitflags! {
    /// What may be done to registered memory, and by whom (`ibv_access_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The device may write: receives, RDMA read results.
        const LOCAL_WRITE = sys::IBV_ACCESS_LOCAL_WRITE;
        /// Peers may write; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = sys::IBV_ACCESS_REMOTE_WRITE;
        /// Peers may read.
        const REMOTE_READ = sys::IBV_ACCESS_REMOTE_READ;
        /// Peers may do atomics; needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = sys::IBV_ACCESS_REMOTE_ATOMIC;
    }
}

/// A protection domain: keys and queue pairs of one do not work with those of another.
#[derive(Debug)]
pub struct Pd {
    context: Arc<Context>,
    raw: NonNull<sys::ibv_pd>,
}

// SAFETY: verbs objects may be used from every thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// Allocates one.
    ///
    /// # Errors
    /// The device has no more.
    pub fn alloc(context: &Arc<Context>) -> Result<Arc<Pd>, Error> {
        // SAFETY: an open context.
        let raw = unsafe { (context.table().alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_pd", context.name()))?;
        Ok(Arc::new(Pd { context: context.clone(), raw }))
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: every object of the domain holds it, so there is none left.
        let code = unsafe { (self.context.table().dealloc_pd)(self.raw()) };
        leaked("ibv_dealloc_pd", code, &self.context.name());
    }
}

/// A registration.
#[derive(Debug)]
pub struct Mr {
    pd: Arc<Pd>,
    raw: NonNull<sys::ibv_mr>,
    lkey: LKey,
    rkey: RKey,
}

// SAFETY: verbs objects may be used from every thread.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers `len` bytes at `addr`. From now on the device, and with remote access peers, may touch them.
    ///
    /// # Errors
    /// Too much is locked, the memory is not there, or the device has no more registrations.
    ///
    /// # Safety
    /// The memory stays mapped as long as the registration lives, and nothing relies on its contents where `access`
    /// lets others write.
    pub unsafe fn register(pd: &Arc<Pd>, addr: *mut u8, len: usize, access: Access) -> Result<Mr, Error> {
        let bits = access.bits().cast_signed();
        // SAFETY: a live domain; the caller vouches for the memory.
        let raw = unsafe { (pd.context.table().reg_mr)(pd.raw(), addr.cast(), len, bits) };
        let object = || format!("{len} bytes at {addr:p} on {}", pd.context.name());
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_reg_mr", object()))?;
        // SAFETY: a live registration.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        Ok(Mr { pd: pd.clone(), raw, lkey: LKey(lkey), rkey: RKey(rkey) })
    }

    /// Key for our own work requests.
    pub fn lkey(&self) -> LKey {
        self.lkey
    }

    /// Key for a peer's RDMA operations.
    pub fn rkey(&self) -> RKey {
        self.rkey
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: a live registration, given back once.
        let code = unsafe { (self.pd.context.table().dereg_mr)(self.raw.as_ptr()) };
        leaked("ibv_dereg_mr", code, &self.lkey);
    }
}
