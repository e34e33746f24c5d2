//! Memory regions and protection domains: the private, authoritative side of keys.
//!
//! One key serves as lkey and rkey: index in the upper 24 bits, generation in the lower 8. What peers may use
//! is published in the segment (`shm::mrtable`); local work requests are checked here.
//!
//! The check of a plain region is one look at one entry. Keys whose memory is not where requests say it is ([`Special`]) have
//! an entry that fails this check, and a caller whose request fails it asks [`Mrs::resolve`] before giving up.

use super::CBox;
use super::mw::Window;
use crate::errno::Errno;
use crate::extras::mappings;
use crate::reason::{Cause, because};
use crate::shm::layout::MRS;
use crate::shm::mrtable::{self, Exposed, Region};
use crate::shm::segment::Segment;
use rdma_sys::{IBV_ACCESS_LOCAL_WRITE, ibv_mr, ibv_pd, ibv_sge};
use std::collections::{HashMap, VecDeque};

/// What stands for the protection domain in an entry of a [`Special`] key: no real one has this index.
pub const SPECIAL: u32 = u32::MAX - 1;

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    /// What programs know it by.
    pub c: CBox<ibv_pd>,
    /// Index of its context.
    pub context: usize,
    /// Objects that belong to it.
    pub users: u32,
}

/// A row of the table of regions and windows.
#[derive(Debug, Default)]
pub struct Entry {
    /// What peers see of it; key 0 while the row is free.
    pub region: Region,
    c: Option<CBox<ibv_mr>>,
}

/// What is behind a key that is no plain region.
#[derive(Debug)]
pub enum Special {
    /// A region that requests address otherwise than its memory. `alias` is the memory itself, for this process only; `dm` the
    /// device memory that it is part of.
    Mapped {
        exposed: Exposed,
        alias: u32,
        dm: Option<u32>,
    },
    /// Reads as zeroes and swallows what is written: two aliases, of which each request gets the one it needs.
    Null {
        zeroes: u32,
        sink: u32,
    },
    Window(Window),
}

#[cold]
fn full() -> Errno {
    let sentence = format_args!(
        "all {} memory keys of this process are in use: register fewer regions at a time",
        MRS - 1
    );
    because(Errno::NOMEM, Cause::Full, sentence)
}

/// All memory regions of the process.
#[derive(Debug)]
pub struct Mrs {
    /// By the index in their keys.
    pub entries: Vec<Entry>,
    /// What is behind those that are no plain regions, by index.
    pub special: HashMap<usize, Special>,
    /// How many regions have been withdrawn: as long as this stays, what has been allowed is allowed.
    pub withdrawn: u32,
    free: VecDeque<usize>,
}

impl Mrs {
    /// An empty table.
    pub fn new() -> Mrs {
        // Index 0 is never used, so that no valid key is small.
        let entries = vec![Entry::default()];
        Mrs { entries, special: HashMap::new(), withdrawn: 0, free: VecDeque::new() }
    }

    /// Bytes of all regions.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().fold(0, |all, entry| all.saturating_add(entry.region.len))
    }

    /// Registers `region` (its key is chosen here), which peers map at `shared` of the segment, if that is not 0, and publishes it.
    pub fn register(&mut self, segment: &Segment, region: Region, shared: u32) -> Result<u32, Errno> {
        let key = self.hide(segment, region)?;
        let exposed = Exposed { shared, ..Exposed::plain(Region { key, ..region }) };
        mrtable::publish(&segment.map, &exposed);
        Ok(key)
    }

    /// Registers `region` for this process only.
    fn hide(&mut self, segment: &Segment, region: Region) -> Result<u32, Errno> {
        let index = self.free.front().copied().unwrap_or(self.entries.len());
        if index >= MRS {
            return Err(full());
        }
        segment.open_mr_entry(index)?;
        self.free.pop_front();
        if index == self.entries.len() {
            self.entries.push(Entry::default());
        }
        let entry = &mut self.entries[index];
        let generation = (entry.region.key as u8).wrapping_add(1);
        let key = (index as u32) << 8 | u32::from(generation);
        entry.region = Region { key, ..region };
        Ok(key)
    }

    /// Registers `region`, whose first byte is at `base`, and publishes it.
    pub fn register_mapped(
        &mut self,
        segment: &Segment,
        region: Region,
        base: u64,
        dm: Option<u32>,
    ) -> Result<u32, Errno> {
        let access = region.access & IBV_ACCESS_LOCAL_WRITE;
        let alias = self.hide(segment, Region { access, addr: base, ..region })?;
        let key = self.add_special(segment, |key| {
            let exposed = Exposed { region: Region { key, ..region }, base, qpn: 0, shared: 0 };
            mrtable::publish(&segment.map, &exposed);
            Special::Mapped { exposed, alias, dm }
        });
        key.inspect_err(|_| drop(self.free(alias)))
    }

    /// Registers a region of `pd` that reads as the memory `zeroes` and swallows what is written into `sink`.
    pub fn register_null(
        &mut self,
        segment: &Segment,
        pd: u32,
        len: u64,
        zeroes: u64,
        sink: u64,
    ) -> Result<u32, Errno> {
        let region = Region { key: 0, access: 0, pd, addr: zeroes, len };
        let zeroes = self.hide(segment, region)?;
        let access = IBV_ACCESS_LOCAL_WRITE;
        let sink = self.hide(segment, Region { access, addr: sink, ..region });
        let sink = sink.inspect_err(|_| drop(self.free(zeroes)))?;
        let key = self.add_special(segment, |_| Special::Null { zeroes, sink });
        key.inspect_err(|_| [zeroes, sink].into_iter().for_each(|key| drop(self.free(key))))
    }

    /// A key that no buffer can be in by itself.
    pub fn add_special(
        &mut self,
        segment: &Segment,
        make: impl FnOnce(u32) -> Special,
    ) -> Result<u32, Errno> {
        let key = self.hide(segment, Region { pd: SPECIAL, ..Region::default() })?;
        self.special.insert(mrtable::index_of(key), make(key));
        Ok(key)
    }

    /// Keeps the C struct of the region behind `key`.
    pub fn set_c(&mut self, key: u32, c: CBox<ibv_mr>) {
        if let Some(entry) = self.entries.get_mut(mrtable::index_of(key)) {
            entry.c = Some(c);
        }
    }

    /// Makes a key invalid, here and for lookups of peers that start later. Its index is not reused before [`Self::free`].
    pub fn invalidate(&mut self, segment: &Segment, key: u32) -> Result<Region, Errno> {
        let region = *self.find(key).ok_or(Errno::INVAL)?;
        mrtable::withdraw(&segment.map, key);
        self.disable(key);
        for alias in self.aliases(key).into_iter().flatten() {
            self.disable(alias);
        }
        Ok(region)
    }

    /// Notes how memory is mapped that is about to be registered, if that is checked. Regions of what was mapped there before
    /// end here: the new mark would make them good again.
    pub fn note_mappings(&mut self, segment: &Segment, addr: u64, len: u64) {
        if !mappings::are_checked() {
            return;
        }
        let remapped = |region: &Region| {
            let start = region.addr.max(addr);
            let both = (region.addr + region.len).min(addr + len).saturating_sub(start);
            both > 0 && !mappings::ours_are_as_registered(region, start, both)
        };
        let plain = |region: &&Region| region.access != u32::MAX && region.pd != SPECIAL;
        let regions = self.entries.iter().map(|entry| &entry.region).filter(plain);
        let stale: Vec<u32> = regions.filter(|region| remapped(region)).map(|region| region.key).collect();
        for key in stale {
            let _valid = self.invalidate(segment, key);
        }
        mappings::mark(addr, len);
    }

    /// Whether a key has been invalidated and not given back yet.
    pub fn is_retiring(&self, key: u32) -> bool {
        let entry = self.entries.get(mrtable::index_of(key));
        entry.is_some_and(|entry| {
            entry.region.key == key && entry.region.access == u32::MAX && entry.c.is_some()
        })
    }

    fn disable(&mut self, key: u32) {
        let entry = &mut self.entries[mrtable::index_of(key)];
        (entry.region.len, entry.region.addr, entry.region.pd) = (0, 0, u32::MAX);
        entry.region.access = u32::MAX;
        self.withdrawn = self.withdrawn.wrapping_add(1);
    }

    fn aliases(&self, key: u32) -> [Option<u32>; 2] {
        match self.special.get(&mrtable::index_of(key)) {
            Some(&Special::Mapped { alias, .. }) => [Some(alias), None],
            Some(&Special::Null { zeroes, sink }) => [Some(zeroes), Some(sink)],
            _ => [None, None],
        }
    }

    /// Makes an invalidated key valid again, for another region.
    pub fn replace(&mut self, segment: &Segment, region: Region) {
        self.entries[mrtable::index_of(region.key)].region = region;
        mrtable::publish(&segment.map, &Exposed::plain(region));
    }

    /// Gives a key's index back, and what it stood for if it was special.
    pub fn free(&mut self, key: u32) -> Option<Special> {
        for key in self.aliases(key).into_iter().flatten().chain([key]) {
            self.disable(key);
            self.entries[mrtable::index_of(key)].c = None;
            self.free.push_back(mrtable::index_of(key));
        }
        self.special.remove(&mrtable::index_of(key))
    }

    /// Whether a region begins in the `len` bytes at `addr`.
    pub fn has_regions_in(&self, addr: u64, len: u64) -> bool {
        self.entries.iter().any(|entry| entry.c.is_some() && entry.region.addr.wrapping_sub(addr) < len)
    }

    /// Whether a region or window was made with this very protection domain.
    pub fn is_used(&self, pd: *mut ibv_pd) -> bool {
        // SAFETY: C structs that their entries own.
        let region = |entry: &Entry| entry.c.as_ref().is_some_and(|c| unsafe { (*c.as_ptr()).pd } == pd);
        let window = |special: &Special| match special {
            // SAFETY: the window owns its C struct, which lives as long as the window is in the table.
            Special::Window(window) => unsafe { (*window.c.as_ptr()).pd == pd },
            _ => false,
        };
        self.entries.iter().any(region) || self.special.values().any(window)
    }

    /// The region behind a key that is valid now.
    #[inline]
    pub fn find(&self, key: u32) -> Option<&Region> {
        let region = &self.entries.get(mrtable::index_of(key))?.region;
        (region.key == key && key != 0 && region.access != u32::MAX).then_some(region)
    }

    /// What a key names, as peers see it.
    #[inline(always)] // what it finds stays in registers
    pub fn exposed(&self, key: u32) -> Option<Exposed> {
        let region = self.find(key)?;
        if region.pd != SPECIAL { Some(Exposed::plain(*region)) } else { self.exposed_otherwise(key) }
    }

    #[cold]
    fn exposed_otherwise(&self, key: u32) -> Option<Exposed> {
        match self.special.get(&mrtable::index_of(key))? {
            Special::Mapped { exposed, .. } => Some(*exposed),
            Special::Null { .. } => None,
            Special::Window(window) => window.exposed(),
        }
    }

    /// Whether a key stands for a plain region, which can be changed.
    pub fn is_plain(&self, key: u32) -> bool {
        self.find(key).is_some_and(|region| region.pd != SPECIAL)
    }

    /// Whether a local buffer may be read (or written, if `write`) by work requests of `pd`.
    #[inline(always)]
    pub fn allows(&self, sge: &ibv_sge, pd: u32, write: bool) -> bool {
        if sge.length == 0 {
            return true;
        }
        let Some(Entry { region, .. }) = self.entries.get(mrtable::index_of(sge.lkey)) else { return false };
        let access = !write || region.access & IBV_ACCESS_LOCAL_WRITE != 0;
        // A key that is not valid belongs to no protection domain, or to a region without a byte.
        access && region.key == sge.lkey && region.pd == pd && region.covers(sge.addr, sge.length.into())
    }

    /// The same for one of several buffers, most of which are in the same region: `last` is the one before's.
    #[inline(always)]
    pub fn allows_as_before<'a>(
        &'a self,
        last: &mut Option<&'a Region>,
        sge: &ibv_sge,
        pd: u32,
        write: bool,
    ) -> bool {
        let covers = |region: &Region| region.key == sge.lkey && region.covers(sge.addr, sge.length.into());
        if last.is_some_and(covers) {
            return true;
        }
        let allows = self.allows(sge, pd, write);
        // Of no bytes a key is not looked at.
        if allows && sge.length != 0 {
            *last = self.entries.get(mrtable::index_of(sge.lkey)).map(|entry| &entry.region);
        }
        allows
    }

    /// The same for all buffers of a list.
    #[inline(always)]
    pub fn allow(&self, sges: &[ibv_sge], pd: u32, write: bool) -> bool {
        for sge in sges {
            if !self.allows(sge, pd, write) {
                return false;
            }
        }
        true
    }

    /// Whether the region of a local key lets peers write to it.
    pub fn takes_remote_writes(&self, lkey: u32) -> bool {
        self.find(lkey).is_some_and(|region| region.access & rdma_sys::IBV_ACCESS_REMOTE_WRITE != 0)
    }

    /// For buffers of which one is not allowed as it stands: the same buffers where their memory really is. None: not allowed
    /// at all.
    #[cold]
    pub fn resolve(&self, sges: &[ibv_sge], pd: u32, write: bool) -> Option<Vec<ibv_sge>> {
        sges.iter().map(|sge| self.resolve_one(sge, pd, write)).collect()
    }

    fn resolve_one(&self, sge: &ibv_sge, pd: u32, write: bool) -> Option<ibv_sge> {
        if self.allows(sge, pd, write) {
            return Some(*sge);
        }
        self.find(sge.lkey)?;
        let real = match self.special.get(&mrtable::index_of(sge.lkey))? {
            Special::Mapped { exposed, alias, .. } => {
                let inside = exposed.region.covers(sge.addr, sge.length.into());
                let addr = exposed.place(sge.addr);
                inside.then_some(ibv_sge { addr, lkey: *alias, ..*sge })?
            }
            Special::Null { zeroes, sink } => {
                let lkey = if write { *sink } else { *zeroes };
                let memory = self.find(lkey)?;
                // No message is longer than the memory behind a null region.
                let length = u64::from(sge.length).min(memory.len) as u32;
                ibv_sge { addr: memory.addr, length, lkey }
            }
            Special::Window(_) => return None,
        };
        self.allows(&real, pd, write).then_some(real)
    }
}
