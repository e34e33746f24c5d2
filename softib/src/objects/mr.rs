//! Memory regions and protection domains: the private, authoritative side of keys.
//!
//! One key serves as lkey and rkey: index in the upper 24 bits, generation in the lower 8. What peers may use
//! is published in the segment (`shm::mrtable`); local work requests are checked here.

use super::CBox;
use crate::errno::Errno;
use crate::shm::layout::MRS;
use crate::shm::mrtable::{self, Region};
use crate::shm::segment::Segment;
use rdma_sys::{IBV_ACCESS_LOCAL_WRITE, ibv_mr, ibv_pd, ibv_sge};
use std::collections::VecDeque;

#[derive(Debug)]
pub struct Pd {
    /// Kept alive for the program.
    pub _c: CBox<ibv_pd>,
    pub context: usize,
    /// Objects that belong to it.
    pub users: u32,
}

#[derive(Debug, Default)]
struct Entry {
    region: Region,
    c: Option<CBox<ibv_mr>>,
}

/// All memory regions of the process.
#[derive(Debug)]
pub struct Mrs {
    entries: Vec<Entry>,
    free: VecDeque<usize>,
}

impl Mrs {
    pub fn new() -> Mrs {
        // Index 0 is never used, so that no valid key is small.
        Mrs { entries: vec![Entry::default()], free: VecDeque::new() }
    }

    /// Registers `region` (its key is chosen here) and publishes it.
    pub fn register(&mut self, segment: &Segment, mut region: Region) -> Result<u32, Errno> {
        let index = self.free.pop_front().unwrap_or(self.entries.len());
        if index >= MRS {
            return Err(Errno::NOMEM);
        }
        segment.open_mr_entry(index)?;
        if index == self.entries.len() {
            self.entries.push(Entry::default());
        }
        let entry = &mut self.entries[index];
        let generation = (entry.region.key as u8).wrapping_add(1);
        region.key = (index as u32) << 8 | u32::from(generation);
        entry.region = region;
        mrtable::publish(&segment.map, &region);
        Ok(region.key)
    }

    pub fn set_c(&mut self, key: u32, c: CBox<ibv_mr>) {
        if let Some(entry) = self.entries.get_mut(mrtable::index_of(key)) {
            entry.c = Some(c);
        }
    }

    /// Makes a key invalid, here and for lookups of peers that start later. Its index is not reused before [`Self::free`].
    pub fn invalidate(&mut self, segment: &Segment, key: u32) -> Result<Region, Errno> {
        let region = *self.find(key).ok_or(Errno::INVAL)?;
        mrtable::withdraw(&segment.map, key);
        let entry = &mut self.entries[mrtable::index_of(key)];
        (entry.region.len, entry.region.addr, entry.region.pd) = (0, 0, u32::MAX);
        entry.region.access = u32::MAX;
        Ok(region)
    }

    /// Makes an invalidated key valid again, for another region.
    pub fn replace(&mut self, segment: &Segment, region: Region) {
        self.entries[mrtable::index_of(region.key)].region = region;
        mrtable::publish(&segment.map, &region);
    }

    /// Gives an invalidated key's index back.
    pub fn free(&mut self, key: u32) {
        let index = mrtable::index_of(key);
        self.entries[index].c = None;
        self.free.push_back(index);
    }

    #[inline]
    fn find(&self, key: u32) -> Option<&Region> {
        let region = &self.entries.get(mrtable::index_of(key))?.region;
        (region.key == key && key != 0 && region.access != u32::MAX).then_some(region)
    }

    /// The region that a peer's key names, for requests that arrive through a ring.
    pub fn region(&self, key: u32) -> Option<Region> {
        self.find(key).copied()
    }

    /// Whether a local buffer may be read (or written, if `write`) by work requests of `pd`.
    #[inline]
    pub fn allows(&self, sge: &ibv_sge, pd: u32, write: bool) -> bool {
        if sge.length == 0 {
            return true;
        }
        let Some(region) = self.find(sge.lkey) else { return false };
        let access = !write || region.access & IBV_ACCESS_LOCAL_WRITE != 0;
        access && region.pd == pd && region.covers(sge.addr, sge.length.into())
    }
}
