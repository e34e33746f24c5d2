//! Address handles: where datagrams go.

use crate::error::{Error, leaked};
use crate::mr::Pd;
use crate::qp_attr::AhAttr;
use rdma_sys as sys;
use std::ptr::NonNull;
use std::sync::Arc;

/// The way to a port, made ready for datagrams.
#[derive(Debug)]
pub struct Ah {
    pd: Arc<Pd>,
    raw: NonNull<sys::ibv_ah>,
}

// SAFETY: verbs objects may be used from every thread.
unsafe impl Send for Ah {}
// SAFETY: an address handle does not change between create and destroy, and only `drop` destroys
// it.
unsafe impl Sync for Ah {}

impl Ah {
    /// Makes one.
    ///
    /// # Errors
    /// The port cannot be addressed so.
    pub fn create(pd: &Arc<Pd>, attr: &AhAttr) -> Result<Ah, Error> {
        let mut raw_attr = attr.to_sys();
        // SAFETY: a live domain and attributes.
        let raw = unsafe { (pd.context().table().create_ah)(pd.raw(), &mut raw_attr) };
        let object = || format!("{:?} on {}", attr, pd.context().name());
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_ah", object()))?;
        Ok(Ah { pd: pd.clone(), raw })
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: a live handle, given back once; datagrams that use it have completed or are lost.
        let code = unsafe { (self.pd.context().table().destroy_ah)(self.raw.as_ptr()) };
        leaked("ibv_destroy_ah", code, &self.pd.context().name());
    }
}
