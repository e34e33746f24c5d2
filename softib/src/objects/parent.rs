//! Parent domains and thread domains (`abi::extras::domain`).

use super::CBox;
use rdma_sys::*;

/// A parent domain.
#[derive(Debug)]
pub struct Parent {
    /// What programs know it by.
    pub c: CBox<ibv_pd>,
    /// Its thread domain, if it has one.
    pub td: Option<*mut Td>,
}

// SAFETY: the thread domain is only touched under the engine's lock.
unsafe impl Send for Parent {}

/// A thread domain, and the parent domains that have it.
#[repr(C)]
#[derive(Debug)]
pub struct Td {
    /// Its context, as in `ibv_td`.
    pub context: *mut ibv_context,
    /// Parent domains that have it.
    pub users: u32,
}

const _: () = assert!(std::mem::offset_of!(Td, context) == std::mem::offset_of!(ibv_td, context));
