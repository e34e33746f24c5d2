//! Memory windows: a part of a region with rights and a key of its own, given and taken back by work requests.
//!
//! ```text
//!   alloc_mw ──> free ── bind ──> bound ── bind to nothing (type 1), invalidate (type 2) ──> free ── dealloc_mw
//! ```
//!
//! A window has an entry in the key table from the start, so that its index stays; the lower 8 bits of its key change with each
//! bind: the device counts them up for type 1, the program chooses them for type 2. Type 1 belongs to a protection domain;
//! type 2 (the kind 2B) to one queue pair as well, and must be free before it is bound again (IBTA 10.6.7).

use super::CBox;
use crate::shm::mrtable::Exposed;
use rdma_sys::*;

/// Rights that a window gives.
pub const WINDOW_ACCESS: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// A window as its owner knows it.
#[derive(Debug)]
pub struct Window {
    /// What programs know it by.
    pub c: CBox<ibv_mw>,
    /// Type 1 or type 2.
    pub kind: ibv_mw_type,
    /// Its protection domain.
    pub pd: u32,
    pub(super) bound: Option<Bound>,
}

/// What a window is bound to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) exposed: Exposed,
    /// Key of the region.
    pub(super) mr: u32,
}

/// What a bind asks for. No region: the window becomes free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// The key that the window is to have.
    pub rkey: u32,
    /// Key of the region.
    pub mr: u32,
    /// Rights that the window gives.
    pub access: u32,
    /// Its first byte.
    pub addr: u64,
    /// Its bytes; 0 with type 1: the window becomes free.
    pub len: u64,
}

/// A bind that has been checked.
#[derive(Debug)]
pub struct Plan {
    /// The window's place in the key table.
    pub index: usize,
    pub(super) key: u32,
    pub(super) bound: Option<Bound>,
}

impl Window {
    /// A window that is not bound.
    pub fn new(c: CBox<ibv_mw>, kind: ibv_mw_type, pd: u32) -> Window {
        Window { c, kind, pd, bound: None }
    }

    /// What peers may use; None while it is free.
    pub fn exposed(&self) -> Option<Exposed> {
        self.bound.map(|bound| bound.exposed)
    }
}
