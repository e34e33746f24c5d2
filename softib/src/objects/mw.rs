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
use super::mr::{Mrs, Special};
use crate::shm::mrtable::{self, Exposed, Region};
use crate::shm::segment::Segment;
use rdma_sys::*;

/// Rights that a window gives.
pub const WINDOW_ACCESS: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// A window as its owner knows it.
#[derive(Debug)]
pub struct Window {
    /// What programs know it by.
    pub c: CBox<ibv_mw>,
    pub kind: ibv_mw_type,
    pub pd: u32,
    bound: Option<Bound>,
}

#[derive(Debug, Clone, Copy)]
struct Bound {
    exposed: Exposed,
    /// Key of the region.
    mr: u32,
}

/// What a bind asks for. No region: the window becomes free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    pub rkey: u32,
    pub mr: u32,
    pub access: u32,
    pub addr: u64,
    pub len: u64,
}

/// A bind that has been checked.
#[derive(Debug)]
pub struct Plan {
    pub index: usize,
    key: u32,
    bound: Option<Bound>,
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

impl Mrs {
    /// The window in row `index`, if there is one.
    pub fn window(&self, index: usize) -> Option<&Window> {
        match self.special.get(&index)? {
            Special::Window(window) => Some(window),
            _ => None,
        }
    }

    /// Whether a window is bound to the region behind `mr`.
    pub fn has_windows(&self, mr: u32) -> bool {
        let on = |special: &Special| matches!(special, Special::Window(Window { bound: Some(bound), .. }) if bound.mr == mr);
        self.special.values().any(on)
    }

    /// Checks a bind by a queue pair (its PD and number). None: it is to fail (IBTA 10.6.7.2).
    pub fn plan(&self, wanted: &Binding, pd: u32, qpn: u32) -> Option<Plan> {
        let index = mrtable::index_of(wanted.rkey);
        let window = self.window(index).filter(|window| window.pd == pd)?;
        let two = window.kind == IBV_MW_TYPE_2;
        if two && window.bound.is_some() {
            return None;
        }
        if wanted.len == 0 && !two {
            return Some(Plan { index, key: wanted.rkey, bound: None });
        }
        let bound = self.bound(wanted, pd, if two { qpn } else { 0 })?;
        Some(Plan { index, key: wanted.rkey, bound: Some(bound) })
    }

    fn bound(&self, wanted: &Binding, pd: u32, qpn: u32) -> Option<Bound> {
        // A window on a window does not exist, nor one on nothing.
        let mr = self.window(mrtable::index_of(wanted.mr)).is_none().then(|| self.exposed(wanted.mr))??;
        let region = &mr.region;
        let zero_based = wanted.access & IBV_ACCESS_ZERO_BASED != 0;
        let writes = wanted.access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
        let fair = region.pd == pd
            && region.access & IBV_ACCESS_MW_BIND != 0
            && region.access & IBV_ACCESS_ZERO_BASED == 0
            && (!writes || region.access & IBV_ACCESS_LOCAL_WRITE != 0)
            && region.covers(wanted.addr, wanted.len)
            && (qpn != 0 || !zero_based);
        let access = wanted.access & WINDOW_ACCESS | region.access & IBV_ACCESS_ON_DEMAND;
        let addr = if zero_based { 0 } else { wanted.addr };
        let window = Region { key: wanted.rkey, access, pd, addr, len: wanted.len };
        let exposed = Exposed { region: window, base: mr.place(wanted.addr), qpn };
        fair.then_some(Bound { exposed, mr: wanted.mr })
    }

    /// Carries a checked bind out. The window must be free by now.
    pub fn bind(&mut self, segment: &Segment, plan: Plan) {
        let Some(Special::Window(window)) = self.special.get_mut(&plan.index) else { return };
        window.bound = plan.bound;
        self.entries[plan.index].region.key = plan.key;
        if let Some(bound) = plan.bound {
            mrtable::publish(&segment.map, &bound.exposed);
        }
    }

    /// Frees a window, here and for lookups of peers that start later.
    pub fn unbind(&mut self, segment: &Segment, index: usize) {
        let Some(Special::Window(window)) = self.special.get_mut(&index) else { return };
        if let Some(bound) = window.bound.take() {
            mrtable::withdraw(&segment.map, bound.exposed.region.key);
        }
    }

    /// The index of the type 2 window that `key` names and that queue pair `qpn` may invalidate.
    pub fn invalidable(&self, key: u32, qpn: u32) -> Option<usize> {
        let exposed = self.exposed(key)?;
        (exposed.qpn == qpn).then(|| mrtable::index_of(key))
    }

    /// Frees the windows of a queue pair that goes away; returns their keys.
    pub fn unbind_all_of(&mut self, segment: &Segment, qpn: u32) -> Vec<u32> {
        let exposed = self.special.values().filter_map(|special| match special {
            Special::Window(window) => window.exposed(),
            _ => None,
        });
        let keys: Vec<u32> = exposed.filter(|it| it.qpn == qpn).map(|it| it.region.key).collect();
        keys.iter().for_each(|key| self.unbind(segment, mrtable::index_of(*key)));
        keys
    }
}
