//! What a peer may know of a memory region or a bound memory window: one 64-byte entry per key, in the owner's segment.
//!
//! `key` is stored last when an entry is published and zeroed first when it is withdrawn; a reader
//! takes the fields only between two loads of the key it was given. The upper 24 bits of a key are
//! the index, the lower 8 a generation, so a stale key is recognised.

use super::layout::{H_MR_LIMIT, MR_ENTRY, MR_TABLE, MRS};
use super::map::Map;
use std::sync::atomic::{Ordering, fence};

const KEY: usize = 0;
const ACCESS: usize = 4;
const PD: usize = 8;
const ADDR: usize = 16;
const LEN: usize = 24;
const BASE: usize = 32;
const QPN: usize = 40;

/// A memory region as its owner registered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Region {
    pub key: u32,
    pub access: u32,
    pub pd: u32,
    pub addr: u64,
    pub len: u64,
}

impl Region {
    /// Whether `addr..addr + len` lies inside.
    #[inline]
    pub fn covers(&self, addr: u64, len: u64) -> bool {
        // In front of the region, this wraps to more than any region's length.
        let skip = addr.wrapping_sub(self.addr);
        skip <= self.len && len <= self.len - skip
    }
}

/// A region, or a bound memory window, as peers use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exposed {
    /// `addr` is what requests call its first byte: 0 when it is zero based.
    pub region: Region,
    /// Where that byte is in the owner's memory.
    pub base: u64,
    /// The only queue pair of the owner that may be asked (type 2 windows); 0: all of its protection domain.
    pub qpn: u32,
}

impl Exposed {
    /// A region that peers know by the owner's own addresses.
    pub fn plain(region: Region) -> Exposed {
        Exposed { region, base: region.addr, qpn: 0 }
    }

    /// Where, in the owner's memory, the byte is that requests call `addr`.
    #[inline]
    pub fn place(&self, addr: u64) -> u64 {
        addr.wrapping_sub(self.region.addr).wrapping_add(self.base)
    }
}

/// The row that a key names; its low byte changes with every use of the row.
#[inline]
pub fn index_of(key: u32) -> usize {
    (key >> 8) as usize
}

fn entry(index: usize) -> usize {
    MR_TABLE + index * MR_ENTRY
}

/// Makes a region visible; its entry must have been opened ([`super::segment::Segment::open_mr_entry`]).
pub fn publish(map: &Map, exposed: &Exposed) {
    let region = &exposed.region;
    let at = entry(index_of(region.key));
    map.u32(at + ACCESS).store(region.access, Ordering::Relaxed);
    map.u32(at + PD).store(region.pd, Ordering::Relaxed);
    map.u64(at + ADDR).store(region.addr, Ordering::Relaxed);
    map.u64(at + LEN).store(region.len, Ordering::Relaxed);
    map.u64(at + BASE).store(exposed.base, Ordering::Relaxed);
    map.u32(at + QPN).store(exposed.qpn, Ordering::Relaxed);
    map.u32(at + KEY).store(region.key, Ordering::Release);
}

/// Makes the region behind `key` invisible for lookups that start later.
pub fn withdraw(map: &Map, key: u32) {
    map.u32(entry(index_of(key)) + KEY).store(0, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// Withdraws `key` in a peer's segment if it is still valid there (SEND with invalidate).
pub fn revoke(map: &Map, key: u32) {
    if in_use(map, key) {
        let word = map.u32(entry(index_of(key)) + KEY);
        // A key that has changed by now is not the one that was meant.
        let _ = word.compare_exchange(key, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

fn in_use(map: &Map, key: u32) -> bool {
    let limit = MRS.min(map.u32(H_MR_LIMIT).load(Ordering::Acquire) as usize);
    key != 0 && index_of(key) < limit
}

/// What `key` names in a peer's segment, if it is valid now.
pub fn look_up(map: &Map, key: u32) -> Option<Exposed> {
    if !in_use(map, key) {
        return None;
    }
    let at = entry(index_of(key));
    let before = map.u32(at + KEY).load(Ordering::Acquire);
    let region = Region {
        key,
        access: map.u32(at + ACCESS).load(Ordering::Relaxed),
        pd: map.u32(at + PD).load(Ordering::Relaxed),
        addr: map.u64(at + ADDR).load(Ordering::Relaxed),
        len: map.u64(at + LEN).load(Ordering::Relaxed),
    };
    let base = map.u64(at + BASE).load(Ordering::Relaxed);
    let qpn = map.u32(at + QPN).load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    let after = map.u32(at + KEY).load(Ordering::Relaxed);
    (before == key && after == key).then_some(Exposed { region, base, qpn })
}
