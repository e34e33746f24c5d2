//! Callbacks that the upper layer is owed. The transport is handed a key for each, which it hands back when the time of the callback has come.

use super::Operation;
use opal_sys::{mca_btl_base_descriptor_t, mca_btl_base_endpoint_t};
use slab::Slab;

/// A callback of the upper layer that waits for its time.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "foreign pointers have nothing to print")]
pub enum Owed {
    /// Of a put, get or atomic.
    Operation(Operation),
    /// Of a descriptor that was sent, which stays the upper layer's.
    Sent { endpoint: *mut mca_btl_base_endpoint_t, desc: *mut mca_btl_base_descriptor_t, ticket: u64 },
}

/// Names one of them.
#[derive(Clone, Copy, Debug)]
pub struct Cookie(u32);

/// Those whose time has not come.
#[derive(Default)]
#[allow(missing_debug_implementations, reason = "foreign pointers have nothing to print")]
pub struct Debts(Slab<Owed>);

impl Debts {
    /// One more.
    #[inline]
    pub fn add(&mut self, owed: Owed) -> Cookie {
        // Each takes more than 64 bytes: there is no memory for 2^32 of them.
        Cookie(self.0.insert(owed) as u32)
    }

    /// The time of an operation's has come. None: it is not one of an operation, and is still there.
    #[inline]
    pub fn take_operation(&mut self, cookie: Cookie) -> Option<Operation> {
        match self.0.get(cookie.0 as usize)? {
            Owed::Sent { .. } => None,
            Owed::Operation(operation) => {
                let operation = *operation;
                self.0.try_remove(cookie.0 as usize);
                Some(operation)
            }
        }
    }

    /// The time of one has come, or it will not be called. None: it has been taken before.
    #[inline]
    pub fn take(&mut self, cookie: Cookie) -> Option<Owed> {
        self.0.try_remove(cookie.0 as usize)
    }
}
