//! What a peer may know of a memory region or a bound memory window: one 64-byte entry per key, in the owner's segment.
//!
//! `key` is stored last when an entry is published and zeroed first when it is withdrawn; a reader
//! takes the fields only between two loads of the key it was given. The upper 24 bits of a key are
//! the index, the lower 8 a generation, so a stale key is recognised.
//!
//! A peer that copies by itself (`datapath::initiator::direct`) goes by the entry alone, and would write to another place of the owner's
//! memory if the entry was damaged. So it ends with a checksum of its words ([`Exposed::seal`]), and a damaged entry is no region.

use super::keyed;
use super::layout::{H_MR_LIMIT, MR_ENTRY, MR_TABLE, MRS};
use super::map::{Map, Word, Words};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const KEY: usize = 0;
const ACCESS: usize = 4;
const PD: usize = 8;
const ADDR: usize = 16;
const LEN: usize = 24;
const BASE: usize = 32;
const QPN: usize = 40;
const SHARED: usize = 44;
const SEAL: usize = 48;

/// Any odd number makes each step of [`checksum`] reversible; this one (2^64 over the golden ratio) spreads bits well.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
/// So that an entry of zeroes does not have the checksum zero.
const SEED: u64 = 0x736f_6674_6962_6d72;

/// A memory region as its owner registered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Region {
    /// Key of the region, lkey and rkey in one.
    pub key: u32,
    /// IBV_ACCESS_* flags.
    pub access: u32,
    /// Its protection domain.
    pub pd: u32,
    /// Its first byte.
    pub addr: u64,
    /// Its bytes.
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
    /// Where that byte is in the owner's segment, so that peers map it; 0: it is in no segment.
    pub shared: u32,
}

impl Exposed {
    /// A region that peers know by the owner's own addresses.
    pub fn plain(region: Region) -> Exposed {
        Exposed { region, base: region.addr, qpn: 0, shared: 0 }
    }

    /// The checksum of its words: a change of any one of them changes it, for each step maps different sums, and different words, to
    /// different sums. It guards against stray writes, not against a process that computes it (which could call process_vm_writev).
    #[inline]
    fn seal(&self) -> u64 {
        let Exposed { region: Region { key, access, pd, addr, len }, base, qpn, shared } = *self;
        let words = [
            u64::from(key) << 32 | u64::from(access),
            u64::from(pd) << 32 | u64::from(qpn),
            addr,
            len,
            base,
            u64::from(shared),
        ];
        checksum(&words)
    }

    /// Where, in the owner's memory, the byte is that requests call `addr`.
    #[inline]
    pub fn place(&self, addr: u64) -> u64 {
        addr.wrapping_sub(self.region.addr).wrapping_add(self.base)
    }
}

/// A checksum of words: a change of any one of them changes it.
#[inline]
pub fn checksum(words: &[u64]) -> u64 {
    words.iter().fold(SEED, |sum, word| (sum ^ word).wrapping_mul(ODD).rotate_left(29))
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
    keyed::show(map.u32(at + KEY), region.key, || {
        map.u32(at + ACCESS).store(region.access, Ordering::Relaxed);
        map.u32(at + PD).store(region.pd, Ordering::Relaxed);
        map.u64(at + ADDR).store(region.addr, Ordering::Relaxed);
        map.u64(at + LEN).store(region.len, Ordering::Relaxed);
        map.u64(at + BASE).store(exposed.base, Ordering::Relaxed);
        map.u32(at + QPN).store(exposed.qpn, Ordering::Relaxed);
        map.u32(at + SHARED).store(exposed.shared, Ordering::Relaxed);
        map.u64(at + SEAL).store(exposed.seal(), Ordering::Relaxed);
    });
}

/// Makes the region behind `key` invisible for lookups that start later.
pub fn withdraw(map: &Map, key: u32) {
    keyed::hide(map.u32(entry(index_of(key)) + KEY));
}

/// What a key of ours that has been withdrawn named lay in our segment, so that peers may have mapped it. Its row says so until there is
/// another key in it.
pub fn was_shared(map: &Map, key: u32) -> bool {
    map.u32(entry(index_of(key)) + SHARED).load(Ordering::Relaxed) != 0
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

/// What `key` names in a peer's segment, if it is valid now and whole.
pub fn look_up(map: &Map, key: u32) -> Option<Exposed> {
    if !in_use(map, key) {
        return None;
    }
    let at = entry(index_of(key));
    let (exposed, seal) = keyed::copy(map.u32(at + KEY), key, || words(map, at, key))?;
    (exposed.seal() == seal).then_some(exposed)
}

/// The words of an entry, and their checksum, which belong to the key if the entry has it before and afterwards.
fn words(map: &Map, at: usize, key: u32) -> (Exposed, u64) {
    let region = Region {
        key,
        access: map.u32(at + ACCESS).load(Ordering::Relaxed),
        pd: map.u32(at + PD).load(Ordering::Relaxed),
        addr: map.u64(at + ADDR).load(Ordering::Relaxed),
        len: map.u64(at + LEN).load(Ordering::Relaxed),
    };
    let base = map.u64(at + BASE).load(Ordering::Relaxed);
    let qpn = map.u32(at + QPN).load(Ordering::Relaxed);
    let shared = map.u32(at + SHARED).load(Ordering::Relaxed);
    let seal = map.u64(at + SEAL).load(Ordering::Relaxed);
    (Exposed { region, base, qpn, shared }, seal)
}

/// An entry that is looked at often: whether it is still as it was when it was [looked up](look_up).
#[derive(Debug)]
pub struct Watched {
    key: (u32, Word),
    seal: (u64, Words<1>),
}

impl Watched {
    /// The entry of what `key` names, which has been looked up.
    pub fn of(map: &Arc<Map>, exposed: &Exposed) -> Watched {
        let key = exposed.region.key;
        let at = entry(index_of(key));
        Watched { key: (key, map.word(at + KEY)), seal: (exposed.seal(), map.words(at + SEAL)) }
    }

    /// The key that it was found by.
    #[inline(always)]
    pub fn key(&self) -> u32 {
        self.key.0
    }

    /// It is valid, and the same: another one of the same key has another checksum.
    #[inline(always)]
    pub fn holds(&self) -> bool {
        let (key, (seal, now)) = (&self.key, &self.seal);
        key.1.load(Ordering::Acquire) == key.0 && now[0].load(Ordering::Relaxed) == *seal
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::TABLES_LEN;
    use super::*;

    #[test]
    fn an_entry_with_any_bit_changed_is_no_region() {
        let path = std::env::temp_dir().join(format!("softib-mrtable-{}", std::process::id()));
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.expect("a new file in the folder of temporary files");
        std::fs::remove_file(&path).expect("a file of ours");
        file.set_len(TABLES_LEN as u64).expect("a sparse file");
        let map = Map::new(&file, TABLES_LEN).expect("a mapping");
        map.u32(H_MR_LIMIT).store(8, Ordering::Relaxed);
        let region = Region { key: 5 << 8 | 3, access: 7, pd: 2, addr: 0x7f00_1234_5678, len: 262_144 };
        let exposed = Exposed { region, base: 0x7f00_0000_1000, qpn: 9, shared: 0x80_0000 };
        publish(&map, &exposed);
        assert_eq!(look_up(&map, region.key), Some(exposed));
        // The bytes from 12 to 16 are spare.
        for at in (0..SEAL + 8).step_by(4).filter(|at| *at != 12) {
            for bit in 0..32 {
                map.u32(entry(5) + at).fetch_xor(1 << bit, Ordering::Relaxed);
                assert_eq!(look_up(&map, region.key), None);
                map.u32(entry(5) + at).fetch_xor(1 << bit, Ordering::Relaxed);
            }
        }
        assert_eq!(look_up(&map, region.key), Some(exposed));
    }
}
