//! Registrations of user memory for put, get and atomics, from the module's cache.

use super::Module;
use crate::mca::handle::{Refused, RegHandle, Registered, access};
use opal_sys::{OPAL_SUCCESS, mca_btl_base_registration_handle_t};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use verbs::Access;

type Handle = *mut mca_btl_base_registration_handle_t;

impl Module {
    /// `btl_register_mem`; NULL if the device refuses.
    ///
    /// # Safety
    /// The memory stays mapped until `deregister`.
    pub unsafe fn register(&self, base: *mut c_void, len: usize, flags: u32) -> Handle {
        let start = base as usize;
        let memory = start..start.saturating_add(len);
        let access = access(flags, self.iwarp, self.has_atomics());
        if let Some(handle) = self.registrations.find(&memory, access) {
            return handle.cast_mut().cast();
        }
        loop {
            // SAFETY: the caller promises what this asks for.
            match unsafe { self.register_anew(&memory, access) } {
                Ok(handle) => return handle,
                Err(refused) if refused.is_shortage() && Module::shed_all() => {}
                Err(refused) => {
                    log::warn!("{refused}");
                    return std::ptr::null_mut();
                }
            }
        }
    }

    /// # Safety
    /// As `register`.
    unsafe fn register_anew(&self, memory: &Range<usize>, access: Access) -> Result<Handle, Refused> {
        let Some(lent) = self.transport(None, |t| Some(t.lend().map(|pd| (pd, t.lendable())))) else {
            return Ok(std::ptr::null_mut());
        };
        let (pd, most) = lent?;
        let register = |range: &Range<usize>| {
            // SAFETY: the memory stays mapped until `deregister`. Later the registration is idle in
            // the cache: no request names its keys before `find` has seen that it is still mapped.
            unsafe { Registered::new(&pd, range, access, most) }
        };
        let handle = self.registrations.add(memory, access, register)?;
        Ok(handle.cast_mut().cast())
    }

    /// `btl_deregister_mem`.
    ///
    /// # Safety
    /// `handle` is one that `register` returned, given back once for each time.
    pub unsafe fn deregister(&self, handle: Handle) -> c_int {
        // SAFETY: the caller promises a live handle.
        self.registrations.release(unsafe { RegHandle::key(handle) });
        OPAL_SUCCESS
    }

    /// Every port gives up some registrations that nothing uses; whether there were any. They share
    /// the process's limits, and may share a device's.
    #[cold]
    fn shed_all() -> bool {
        Module::all().filter(|this| this.registrations.shed()).count() != 0
    }
}
