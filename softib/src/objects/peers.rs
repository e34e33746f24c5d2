//! All processes that this one sends to: found by the slot in a QPN, attached on first use, and kept while they live.

use super::peer::{Link, Peer, attach};
use crate::errno::Errno;
use crate::shm::barrier::Barrier;
use crate::shm::card::{self, Card};
use crate::shm::folder;
use crate::shm::layout::*;
use crate::shm::liveness::is_locked;
use crate::shm::map::Map;
use crate::shm::parts::Inlets;
use crate::shm::segment::{self, Segment};
use crate::shm::shortage::is_shortage;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Why a connected queue pair has no peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// No process was at that address when it connected: it is as if the other side kept silent.
    Never,
    /// The process is dead, or its slot has another owner by now.
    Gone,
}

/// All peers.
#[derive(Debug)]
pub struct Peers {
    /// By slot, up to the highest one that has been looked for.
    table: Vec<Option<Box<Peer>>>,
    dir: PathBuf,
    me: (usize, u64),
    inlets: Arc<Inlets>,
    barrier: Arc<Barrier>,
    /// Our program has polled since the device thread took over, or looks at its rings itself: what comes through them is found soon.
    pub polls: bool,
    /// It polls until what it writes to peers is there.
    pub awaits_writes: bool,
    /// So many processes can look at their rings at the same time.
    processors: usize,
    /// So many others lived when one was attached last.
    known: usize,
}

impl Peers {
    /// No peer attached yet.
    pub fn new(dir: PathBuf, segment: &Segment, barrier: Arc<Barrier>, processors: usize) -> Peers {
        let table = Vec::new();
        let (me, inlets) = ((segment.slot, segment.incarnation), segment.inlets.clone());
        Peers { table, dir, me, inlets, barrier, polls: false, awaits_writes: false, processors, known: 0 }
    }

    /// The process in `slot` if it lives, attached if need be.
    pub fn reach(&mut self, slot: usize) -> Result<&mut Peer, Errno> {
        if slot >= SLOTS {
            return Err(Errno::INVAL);
        }
        if slot >= self.table.len() {
            self.table.resize_with(slot + 1, || None);
        }
        let known = &mut self.table[slot];
        if !known.as_mut().is_some_and(|peer| peer.alive()) {
            *known = None;
            // What it sends to us needs a ring of ours, before it gets to know us by the ring that we claim.
            let attached = self.table.iter().flatten().count();
            self.inlets.expect(attached + 1)?;
            self.table[slot] = Some(Box::new(attach(&self.dir, slot, self.me, &self.barrier)?));
            self.count_known();
        }
        self.table[slot].as_deref_mut().ok_or(Errno::NODEV)
    }

    /// Counts the others that live.
    #[cold]
    fn count_known(&mut self) {
        let others = self.table.iter_mut().flatten().filter(|peer| !peer.is_self());
        self.known = others.map(|peer| usize::from(peer.alive())).sum();
    }

    /// Where segments are.
    pub fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// The incarnation and the ports of the process in `slot`, if it lives; it is not attached for that.
    pub fn identify(&self, slot: usize) -> Result<(u64, Vec<Card>), Errno> {
        let map = self.glance(slot, FIXED_LEN)?;
        Ok((map.u64(H_NONCE).load(Ordering::Relaxed), card::read(&map)?))
    }

    /// The first `len` bytes of the segment of the process in `slot`, if it lives; it is not attached for that.
    pub fn glance(&self, slot: usize, len: usize) -> Result<Map, Errno> {
        let file = segment::open_slot(&self.dir, slot)?;
        let metadata = file.metadata()?;
        if metadata.len() != SEGMENT_LEN as u64 || metadata.uid() != folder::uid() {
            return Err(Errno::PROTO);
        }
        let map = Map::new(&file, len)?;
        segment::check_header(&map, MAGIC, slot)?;
        if is_locked(&file) { Ok(map) } else { Err(Errno(libc::ECONNREFUSED)) }
    }

    /// Wakes the device thread of the process in `slot`, which need not be attached.
    pub fn wake(&mut self, slot: usize) {
        let ring = |map: &Map| {
            if map.u32(BELL).swap(0, Ordering::AcqRel) != 0 {
                crate::shm::futex::ring_bell(map);
            }
        };
        match self.attached(slot) {
            Some(peer) => ring(&peer.map),
            None => {
                let whole = |file: &File| file.metadata().is_ok_and(|data| data.len() == SEGMENT_LEN as u64);
                let file = segment::open_slot(&self.dir, slot).ok().filter(whole);
                file.and_then(|file| Map::new(&file, HEADER_LEN).ok()).iter().for_each(ring);
            }
        }
    }

    /// The process a queue pair is connected to, if one load says that it lives. None: [`Self::connected`] finds out.
    #[inline(always)]
    pub fn at_hand(&mut self, link: &Link) -> Option<&mut Peer> {
        let peer = self.table.get_mut(link.slot)?.as_deref_mut()?;
        let same = peer.incarnation == link.incarnation;
        (same && (peer.is_self() || peer.live.is_as_seen(&peer.map))).then_some(peer)
    }

    /// The process a queue pair is connected to, if it lives.
    #[inline(always)]
    pub fn connected(&mut self, link: &Link) -> Result<&mut Peer, Absent> {
        let peer = self.table.get_mut(link.slot).and_then(Option::as_deref_mut);
        if let Some(peer) = peer
            && peer.incarnation == link.incarnation
            && peer.alive()
        {
            return Ok(peer);
        }
        Err(if link.incarnation == 0 { Absent::Never } else { Absent::Gone })
    }

    /// There are more processes than can look at their rings at the same time, as far as this one knows any.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.known >= self.processors
    }

    /// Whether the process that had `slot` as `incarnation` is no more.
    pub fn is_gone(&mut self, slot: usize, incarnation: u64) -> bool {
        if slot == self.me.0 {
            return false;
        }
        if let Some(peer) = self.attached(slot)
            && peer.incarnation == incarnation
        {
            return !peer.alive();
        }
        match segment::open_slot(&self.dir, slot) {
            Ok(file) => !is_locked(&file) || incarnation != 0 && nonce_of(&file) != Some(incarnation),
            // What is no file of ours is not that process.
            Err(error) => !is_shortage(error),
        }
    }

    /// Those attached, dead or alive.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.table.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// The attached process in `slot`, dead or alive.
    #[inline]
    pub fn attached(&mut self, slot: usize) -> Option<&mut Peer> {
        self.table.get_mut(slot)?.as_deref_mut()
    }
}

fn nonce_of(file: &File) -> Option<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, H_NONCE as u64).ok()?;
    Some(u64::from_ne_bytes(bytes))
}
