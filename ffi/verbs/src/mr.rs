//! Protection domains and registered memory.

use crate::context::Context;
use crate::error::{Error, leaked};
use crate::types::{LKey, RKey};
use rdma_sys as sys;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

bitflags::bitflags! {
    /// What the device and peers may do with registered memory (`ibv_access_flags`).
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
// SAFETY: the fields never change, and threads may call verbs of one protection domain at the same
// time.
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
    len: usize,
    lkey: LKey,
    rkey: RKey,
}

// SAFETY: verbs objects may be used from every thread.
unsafe impl Send for Mr {}
// SAFETY: a shared `Mr` only reads its keys, which are copies; only `drop` passes the pointer to a
// verb.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers `len` bytes at `addr`. From now on the device, and with remote access peers, may touch them.
    ///
    /// # Errors
    /// Too much is locked, the memory is not there, or the device has no more registrations.
    ///
    /// # Safety
    /// The memory stays mapped as long as work requests or peers use the keys of the registration, and nothing relies on
    /// its contents meanwhile where `access` lets others write.
    pub unsafe fn register(pd: &Arc<Pd>, addr: *mut u8, len: usize, access: Access) -> Result<Mr, Error> {
        // SAFETY: a live domain; the caller vouches for the memory.
        let raw =
            unsafe { (pd.context.table().reg_mr)(pd.raw(), addr.cast(), len, access.bits().cast_signed()) };
        Mr::of(pd, raw, len)
    }

    /// Registers all memory of the process, whatever is mapped when a request of its own names it; peers may not use it ("implicit ODP",
    /// ibv_reg_mr(3)).
    ///
    /// # Errors
    /// The device cannot do that, or has no more registrations.
    pub fn of_all_memory(pd: &Arc<Pd>) -> Result<Mr, Error> {
        let bits = (sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_ON_DEMAND).cast_signed();
        // SAFETY: a live domain. Only requests of ours use the key, and who posts one vouches for its memory.
        let raw = unsafe { (pd.context.table().reg_mr)(pd.raw(), std::ptr::null_mut(), usize::MAX, bits) };
        // No memory is held by it.
        Mr::of(pd, raw, 0)
    }

    /// A registration that holds so many bytes, if the device has made it.
    fn of(pd: &Arc<Pd>, raw: *mut sys::ibv_mr, len: usize) -> Result<Mr, Error> {
        let raw = NonNull::new(raw).ok_or_else(|| refused(pd, len))?;
        pd.context.registrations.fetch_add(1, Ordering::Relaxed);
        pd.context.registered.add(len);
        // SAFETY: a live registration.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        Ok(Mr { pd: pd.clone(), raw, len, lkey: LKey(lkey), rkey: RKey(rkey) })
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
        self.pd.context.registrations.fetch_sub(1, Ordering::Relaxed);
        self.pd.context.registered.remove(self.len);
    }
}

/// A registration that the device refused. It has two limits, and answers both with ENOMEM: how many registrations there may be,
/// and how much memory may be locked.
#[cold]
fn refused(pd: &Pd, len: usize) -> Error {
    let context = &pd.context;
    let error = Error::last("ibv_reg_mr", format!("{len} bytes on {}", context.name()));
    if error.errno() != libc::ENOMEM {
        return error;
    }
    let held = context.registrations.load(Ordering::Relaxed);
    let most = context.query_device().map_or(0, |attr| attr.max_mr);
    let error = error.note(format!("this process holds {held} of the device's {most} registrations"));
    match locked_memory() {
        _ if is_nearly(held, most) => {
            error.remedy("let fewer transfers of large messages be under way at a time")
        }
        // The software device locks none.
        Some(bytes) if !context.driver().is_software() => {
            error.note(format!("it may lock {bytes} bytes of memory"))
        }
        _ => error.remedy("the device or the machine is out of memory for registrations"),
    }
}

/// Others of the process, or of the device, hold some as well.
fn is_nearly(held: u32, most: u32) -> bool {
    most != 0 && held >= most - most / 16
}

/// How much memory the process may lock, if there is a limit.
pub fn locked_memory() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for the answer.
    let code = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (code == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_registrations_counts_as_full_when_others_may_have_the_rest() {
        assert!(is_nearly(65_535, 65_535) && is_nearly(61_440, 65_535));
        assert!(!is_nearly(1000, 65_535) && !is_nearly(1000, 0));
    }
}
