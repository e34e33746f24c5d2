//! Binding memory windows to regions, in the table of keys that both have rows of.

use super::mr::{Mrs, Special};
use super::mw::{Binding, Bound, Plan, WINDOW_ACCESS, Window};
use crate::shm::mrtable::{self, Exposed, Region};
use crate::shm::segment::Segment;
use rdma_sys::*;

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
        let exposed = Exposed { region: window, base: mr.place(wanted.addr), qpn, shared: 0 };
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
