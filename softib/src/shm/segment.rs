//! Our own segment: claim a slot, grow it, close it; sweep what the dead left.
//!
//! A segment is a sparse file `softib-<uid>-<slot>` of mode 0600 in the user's folder
//! (`super::folder`). It is made without a name, locked and filled, and then linked to the first
//! free name: it appears complete and locked. Only the holder of a file's lock unlinks it, so the
//! file of a living process stays.

use super::files::{link_name, open_again, open_path, sweep_one, unlink_if_same, unnamed};
use super::folder::{self, uid};
use super::layout::*;
use super::map::Map;
use super::parts::{Heaps, Inlets};
use super::shortage::{self, take_space};
use super::space::{allocate, free_space};
use super::{liveness, ports};
use crate::errno::Errno;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// The segment of this process.
#[derive(Debug)]
pub struct Segment {
    /// Its tables.
    pub map: Arc<Map>,
    /// Its file, which is mapped.
    pub file: Arc<File>,
    /// The same once more, locked as long as it is open. It is never mapped: mappings would hold the lock beyond the end of
    /// our process, for as long as another process reads about it in /proc.
    lock: File,
    /// Its heap, as far as it is mapped.
    pub heaps: Heaps,
    /// Its inbound rings, as far as they are mapped.
    pub inlets: Arc<Inlets>,
    /// Its slot: the upper bits of our QPNs.
    pub slot: usize,
    /// Random, never 0: tells two processes apart that had the same slot one after the other.
    pub incarnation: u64,
    path: PathBuf,
    /// Entries of the QP and MR tables that have space; the header has copies, which a peer could
    /// change.
    limits: [AtomicU32; 2],
    /// What H_PROBE points to.
    _probe: Box<[u8; 16]>,
}

/// What a peer is expected to take of the heap, and of the tables of queue pairs and of keys.
const HEAP_SHARE: usize = 64 << 10;
const QP_SHARE: usize = 8 * QP_ENTRY;
const MR_SHARE: usize = 64 * MR_ENTRY;
/// What is mapped for each peer: of its segment the tables, an arena and our ring in it, and its ring in ours.
const MAPPED_PER_PEER: usize = TABLES_LEN + ARENA + 2 * RING_LEN;

/// Where this user's segments live.
pub fn directory() -> PathBuf {
    folder::of_user()
}

fn file_name(slot: usize) -> String {
    format!("softib-{}-{slot}", uid())
}

static BOOT: OnceLock<[u8; 16]> = OnceLock::new();

/// The kernel's boot id; two hosts (or boots) that share a directory differ in it. Zeroes before [`learn_boot_id`] has had it.
pub fn boot_id() -> [u8; 16] {
    learn_boot_id().unwrap_or_default()
}

/// The same, read once: a process that took a failure for another boot would know no peer's segment. Zeroes where the kernel has none.
pub fn learn_boot_id() -> std::io::Result<[u8; 16]> {
    if let Some(id) = BOOT.get() {
        return Ok(*id);
    }
    let text = match std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        text => text.unwrap_or_default(),
    };
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (pair[0] << 4 | pair[1]) as u8;
    }
    Ok(*BOOT.get_or_init(|| id))
}

/// Checks that a mapped file is what it is named: of the kind that `magic` stands for, of this version, user and boot, and of `slot`.
/// PROTO: it is not.
pub fn check_header(map: &Map, magic: u64, slot: usize) -> Result<(), Errno> {
    let word = |offset: usize| map.u32(offset).load(Ordering::Relaxed);
    let same = map.u64(H_MAGIC).load(Ordering::Acquire) == magic
        && word(H_VERSION) == VERSION
        && word(H_UID) == uid()
        && word(H_SLOT) == slot as u32
        && map.read::<16>(H_BOOT) == boot_id();
    if same { Ok(()) } else { Err(Errno::PROTO) }
}

/// Sixteen random bytes.
pub fn random() -> Result<[u8; 16], Errno> {
    let mut bytes = [0u8; 16];
    // SAFETY: the buffer is ours and as long as said.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 16 { Ok(bytes) } else { Err(Errno::last()) }
}

impl Segment {
    /// Sweeps, then makes, locks, fills and publishes a segment for this process. `fill` writes what else peers may know from the start.
    pub fn claim(dir: &Path, can_barrier: bool, fill: impl FnOnce(&Map)) -> Result<Segment, Errno> {
        sweep(dir);
        Segment::make(dir, can_barrier, fill).inspect_err(|_| folder::leave(dir))
    }

    fn make(dir: &Path, can_barrier: bool, fill: impl FnOnce(&Map)) -> Result<Segment, Errno> {
        let file = unnamed(dir)?;
        let lock = open_again(&file)?;
        if !liveness::try_lock(&lock)? {
            return Err(Errno::BUSY);
        }
        shortage::set_len(&file, SEGMENT_LEN, "a segment")?;
        take_space(&file, 0, FIXED_LEN, "a segment")?;
        let map = Arc::new(Map::new(&file, TABLES_LEN)?);
        let mut nonce = random()?;
        nonce[0] |= 1;
        let probe = Box::new(nonce);
        fill_header(&map, &nonce, probe.as_ptr() as u64, can_barrier);
        fill(&map);
        let (slot, path) = link(&file, &map, dir)?;
        let incarnation = map.u64(H_NONCE).load(Ordering::Relaxed);
        let (limits, file) = (Default::default(), Arc::new(file));
        let (heaps, inlets) = (Heaps::new(&map, &file), Arc::new(Inlets::new(&map, &file)));
        Ok(Segment { map, file, lock, heaps, inlets, slot, incarnation, path, limits, _probe: probe })
    }

    /// Its descriptors, for the fork child.
    pub fn descriptors(&self) -> [RawFd; 2] {
        [self.lock.as_raw_fd(), self.file.as_raw_fd()]
    }

    /// Makes QP table entry `index` safe to touch for us and for peers.
    pub fn open_qp_entry(&self, index: usize) -> Result<(), Errno> {
        self.raise(&self.limits[0], H_QP_LIMIT, (QP_TABLE, QP_ENTRY), index)
    }

    /// Makes MR table entry `index` safe to touch for us and for peers.
    pub fn open_mr_entry(&self, index: usize) -> Result<(), Errno> {
        self.raise(&self.limits[1], H_MR_LIMIT, (MR_TABLE, MR_ENTRY), index)
    }

    /// Takes space for the rings of so many peers, for their receive queues from `heap` on, and for rows
    /// of the tables, unless the folder has plenty for every one of them.
    pub fn reserve(&self, peers: usize, heap: usize) -> Result<(), Errno> {
        let peers = peers.min(RINGS);
        let rings = (0..peers).map(|index| (ring_data(index) + RING_FIRST, RING_MIN - RING_FIRST));
        let heap_len = (peers * HEAP_SHARE).min(HEAP + HEAP_LEN - heap);
        let rest = [(heap, heap_len), (QP_TABLE, peers * QP_SHARE), (MR_TABLE, peers * MR_SHARE)];
        let parts: Vec<(usize, usize)> = rings.chain(rest).filter(|(_, len)| *len > 0).collect();
        let needed: usize = parts.iter().map(|(_, len)| len).sum();
        let free = free_space(&self.file);
        if free / 2 >= needed as u64 * (peers as u64 + 1) {
            return Ok(());
        }
        let missing = |error| shortage::space(&self.file, error, needed, "what its peers send to a process");
        if free < needed as u64 {
            return Err(missing(Errno(libc::ENOSPC)));
        }
        parts.into_iter().try_for_each(|(at, len)| allocate(&self.file, at, len)).map_err(missing)
    }

    fn raise(
        &self,
        limit: &AtomicU32,
        copy: usize,
        (table, entry): (usize, usize),
        index: usize,
    ) -> Result<(), Errno> {
        let have = limit.load(Ordering::Relaxed) as usize;
        if index < have {
            return Ok(());
        }
        let per_page = 4096 / entry;
        let want = (index + 1).next_multiple_of(per_page);
        take_space(&self.file, table + have * entry, (want - have) * entry, "a table")?;
        limit.store(want as u32, Ordering::Relaxed);
        self.map.u32(copy).store(want as u32, Ordering::Release);
        Ok(())
    }

    /// Takes our name away, and those of the dead; peers that have us mapped are not disturbed.
    pub fn unlink(&self) {
        unlink_if_same(&self.path, &self.file);
        self.sweep_others();
        self.path.parent().iter().for_each(|dir| folder::leave(dir));
    }

    /// Removes what dead processes have left beside us.
    pub fn sweep_others(&self) {
        if let Some(dir) = self.path.parent() {
            sweep(dir);
        }
    }
}

/// Whether what is used of the segments of `peers` processes can be mapped, and `besides` bytes are left then.
pub fn check_address_space(peers: usize, besides: usize) -> Result<(), Errno> {
    shortage::check_address_space(peers.min(SLOTS) * MAPPED_PER_PEER, besides)
}

fn fill_header(map: &Map, nonce: &[u8; 16], probe: u64, can_barrier: bool) {
    map.write(H_BOOT, &boot_id());
    map.write(H_NONCE, nonce);
    map.u32(H_VERSION).store(VERSION, Ordering::Relaxed);
    map.u32(H_UID).store(uid(), Ordering::Relaxed);
    map.u32(H_PID).store(std::process::id(), Ordering::Relaxed);
    map.u64(H_PROBE).store(probe, Ordering::Relaxed);
    map.u32(H_BARRIER).store(can_barrier.into(), Ordering::Relaxed);
    map.u64(H_MAGIC).store(MAGIC, Ordering::Release);
}

/// Gives the unnamed file the first free name, starting at a place that differs between processes.
fn link(file: &File, map: &Map, dir: &Path) -> Result<(usize, PathBuf), Errno> {
    let start = std::process::id() as usize;
    for slot in (0..DOMAIN_SLOTS).map(|i| (start + i) % DOMAIN_SLOTS) {
        map.u32(H_SLOT).store(slot as u32, Ordering::Relaxed);
        let path = slot_path(dir, slot);
        if folder::fill(dir, || link_name(file, &path))? {
            return Ok((slot, path));
        }
    }
    Err(shortage::full(format_args!(
        "all {DOMAIN_SLOTS} names of segments of user {} in {}",
        uid(),
        dir.display()
    )))
}

/// Opens the segment file of `slot`, if there is one.
pub fn open_slot(dir: &Path, slot: usize) -> Result<File, Errno> {
    open_path(&slot_path(dir, slot)).map_err(shortage::descriptors)
}

/// Where the segment file of `slot` is.
pub fn slot_path(dir: &Path, slot: usize) -> PathBuf {
    dir.join(file_name(slot))
}

/// The slots of this user that have a segment file.
pub fn slots(dir: &Path) -> Vec<usize> {
    let prefix = format!("softib-{}-", uid());
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let slot = |name: &str| name.strip_prefix(&prefix)?.parse().ok();
    entries.flatten().filter_map(|entry| slot(entry.file_name().to_str()?)).collect()
}

/// Removes the segments, and the connection manager's sockets, of this user whose owners are dead. Errors are not ours to report.
pub fn sweep(dir: &Path) {
    let prefix = format!("softib-{}-", uid());
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.as_bytes().starts_with(prefix.as_bytes()) && !ports::sweep(&entry.path(), &name) {
            sweep_one(&entry.path());
        }
    }
}
