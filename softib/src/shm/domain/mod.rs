//! The segment of an XRC domain: what belongs to the domain and not to any one process.
//!
//! ```text
//! 0        header     magic, version, boot id, nonce, slot; the file that names the domain; a count of events
//! 4 KiB    holders    1024 x 16 B: the processes that have the domain open
//! 32 KiB   qp table   4096 x 512 B: receive queue pairs, each with the set of processes that have handles of it
//! ```
//!
//! The number of such a queue pair is the domain's slot and an index, like any other's; the slots
//! of domains are the last of the range. A sender reads an entry as it reads a process's `qptable`:
//! a sequence number, odd while the entry is written, makes its copy consistent and tells when it
//! is old. A process that changes something holds the mutex of the file ([`DomainFile::lock`]); the
//! kernel takes that from the dead, and the next holder mends a sequence number that was left odd.
//!
//! Handles are counted in each process and kept here as one bit a process, so that no death makes a count wrong.

mod attr;
mod change;

pub use change::Locked;

use super::filelock::{self, Kind, Range};
use super::folder;
use super::layout::{
    H_BOOT, H_MAGIC, H_NONCE, H_PORTS, H_RINGS, H_UID, H_VERSION, MORE_PORTS, MORE_PORTS_LEN, P_GUID, VERSION,
};
use super::map::Map;
use super::segment;
use super::seqlock;
use crate::errno::Errno;
use crate::shm::card::{self, Card};
use rdma_sys::{IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, ibv_qp_attr};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

/// The first word of a domain's file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"softibX\x01");
/// Receive queue pairs of one domain.
pub const QPS: usize = super::layout::QPS;
/// Processes that can have one domain open.
pub const HOLDERS: usize = 1024;

// Behind the cards of the ports (`port::card`).
const D_DEV: usize = 3072;
const D_INO: usize = 3080;
const D_PRIVATE: usize = 3088;
const D_QP_LIMIT: usize = 3092;
const D_NEXT: usize = 3096;
/// Rises with every event of any of the queue pairs.
const D_EVENTS: usize = 3136;

const HOLDER_TABLE: usize = 0x1000;
const HOLDER: usize = 16;
// Behind the cards of the ports, again.
const QP_TABLE: usize = 0xa000;
const QP: usize = 512;
/// Bytes of the file.
pub const LEN: usize = QP_TABLE + QPS * QP;
/// What is allocated before the segment is published.
pub const FIXED_LEN: usize = QP_TABLE;

const Q_SEQ: usize = 0;
const Q_GENERATION: usize = 4;
const Q_USED: usize = 8;
const Q_ESTABLISHED: usize = 12;
const Q_DEST_INCARNATION: usize = 16;
const Q_PKEY: usize = 24;
const Q_DEST_PORT: usize = 28;
const Q_EVENTS: usize = 32;
const Q_ATTR: usize = 64;
const Q_HOLDERS: usize = 256;

/// Kinds of events that are counted for each queue pair.
pub const EVENTS: usize = 8;

const _: () = {
    assert!(H_RINGS <= D_DEV);
    assert!(HOLDER_TABLE + HOLDERS * HOLDER <= MORE_PORTS);
    assert!(MORE_PORTS + MORE_PORTS_LEN <= QP_TABLE);
    assert!(Q_EVENTS + EVENTS * 4 <= Q_ATTR);
    assert!(Q_ATTR + attr::WORDS * 4 <= Q_HOLDERS);
    assert!(Q_HOLDERS + HOLDERS / 8 <= QP);
};

/// The byte that every process that has the domain open read-locks, and the one that is the mutex.
pub const HELD: Range = Range::Byte(0);
const MUTEX: Range = Range::Byte(1);

/// The file that names a domain, on one device of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// None: no other process can open it.
    Private,
    Inode {
        dev: u64,
        ino: u64,
        /// GUID of the device's first port.
        node: [u8; 8],
    },
}

/// A process: its slot, and which of those that had the slot.
pub type Process = (usize, u64);

/// A receive queue pair as all see it.
#[derive(Clone, Copy)]
pub struct SharedQp {
    /// Rises with every reset and every new queue pair of this number.
    pub generation: u32,
    /// Incarnation of the process that `attr.dest_qp_num` is of; 0 when not connected.
    pub dest_incarnation: u64,
    /// Which of that process' ports its address leads to.
    pub dest_port: u8,
    /// The partition that it is in.
    pub pkey: u16,
    /// With the state, in `qp_state`.
    pub attr: ibv_qp_attr,
}

impl SharedQp {
    /// What its peer may ask for; without responder resources neither READs nor atomics (IBTA 9.4.4).
    pub fn offers(&self) -> u32 {
        offers(self.attr.qp_access_flags, self.attr.max_dest_rd_atomic.into())
    }
}

fn offers(access: u32, responder_resources: u32) -> u32 {
    let answered = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    access & if responder_resources > 0 { u32::MAX } else { !answered }
}

/// What a message that says that it came through a receive queue pair is compared with, and what that gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Generation of the receive queue pair.
    pub generation: u32,
    /// `ibv_qp_state` of the receive queue pair.
    pub state: u32,
    /// Who may send: queue pair and incarnation of its process.
    pub sender: (u32, u64),
    /// As [`SharedQp::offers`].
    pub offers: u32,
    /// Its partition.
    pub pkey: u16,
    /// The receive queue pair's port, and the one of its sender's process.
    pub ports: (u8, u8),
}

impl std::fmt::Debug for SharedQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedQp(generation {}, state {})", self.generation, self.attr.qp_state)
    }
}

/// A mapped domain segment.
#[derive(Debug)]
pub struct DomainFile {
    map: Map,
    file: File,
    /// Slot of the segment.
    pub slot: usize,
    /// The first eight bytes of its nonce.
    pub incarnation: u64,
}

fn entry(index: usize) -> usize {
    QP_TABLE + index * QP
}

impl DomainFile {
    /// Maps a domain's segment and checks that it is one, of this user and boot, and the one of `slot`.
    pub fn map(file: File, slot: usize) -> Result<DomainFile, Errno> {
        let metadata = file.metadata()?;
        // Any user can make a file of this name where all users' segments live.
        if metadata.len() != LEN as u64 || metadata.uid() != folder::uid() {
            return Err(Errno::PROTO);
        }
        let map = Map::new(&file, LEN)?;
        segment::check_header(&map, MAGIC, slot)?;
        let incarnation = map.u64(H_NONCE).load(Ordering::Relaxed);
        Ok(DomainFile { map, file, slot, incarnation })
    }

    /// Fills the header of a new segment, but for the slot.
    pub fn fill(map: &Map, identity: Identity, ports: &[Card]) -> Result<(), Errno> {
        let mut nonce = segment::random()?;
        nonce[0] |= 1;
        map.write(H_BOOT, &segment::boot_id());
        map.write(H_NONCE, &nonce);
        map.u32(H_VERSION).store(VERSION, Ordering::Relaxed);
        map.u32(H_UID).store(folder::uid(), Ordering::Relaxed);
        card::publish(map, ports);
        match identity {
            Identity::Private => map.u32(D_PRIVATE).store(1, Ordering::Relaxed),
            Identity::Inode { dev, ino, .. } => {
                map.u64(D_DEV).store(dev, Ordering::Relaxed);
                map.u64(D_INO).store(ino, Ordering::Relaxed);
            }
        }
        map.u64(H_MAGIC).store(MAGIC, Ordering::Release);
        Ok(())
    }

    /// The file, open.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Which file of the program's it stands for.
    pub fn identity(&self) -> Identity {
        if self.map.u32(D_PRIVATE).load(Ordering::Relaxed) != 0 {
            return Identity::Private;
        }
        let word = |at: usize| self.map.u64(at).load(Ordering::Relaxed);
        Identity::Inode { dev: word(D_DEV), ino: word(D_INO), node: self.map.read(H_PORTS + P_GUID) }
    }

    /// The ports of the device that the domain is on.
    pub fn cards(&self) -> Result<Vec<Card>, Errno> {
        card::read(&self.map)
    }

    /// The right to change something; no other process changes anything meanwhile. Threads of this
    /// process exclude each other by the engine's lock.
    pub fn lock(&self) -> Result<Locked<'_>, Errno> {
        filelock::take(&self.file, Kind::Exclusive, MUTEX)?;
        Ok(Locked::new(self))
    }

    /// Whether there is an entry `index` that can be touched.
    pub fn exists(&self, index: usize) -> bool {
        index < QPS && index < self.map.u32(D_QP_LIMIT).load(Ordering::Acquire) as usize
    }

    /// The sequence number of an entry that exists.
    #[inline]
    pub fn sequence(&self, index: usize) -> u32 {
        self.map.u32(entry(index) + Q_SEQ).load(Ordering::Acquire)
    }

    /// A consistent copy of a queue pair, with its sequence number; None: there is none, or it is being written.
    pub fn look_up(&self, index: usize) -> Option<(u32, SharedQp)> {
        self.copied(index, |at| self.words(at))
    }

    /// The same of what each message asks for.
    pub fn passage(&self, index: usize) -> Option<Passage> {
        self.copied(index, |at| self.passage_words(at)).map(|(_, passage)| passage)
    }

    fn copied<T>(&self, index: usize, words: impl FnOnce(usize) -> Option<T>) -> Option<(u32, T)> {
        if !self.exists(index) {
            return None;
        }
        let at = entry(index);
        let (seq, copy) = seqlock::copy(self.map.u32(at + Q_SEQ), || words(at))?;
        copy.map(|copy| (seq, copy))
    }

    fn passage_words(&self, at: usize) -> Option<Passage> {
        let word = |offset: usize| self.map.u32(at + offset).load(Ordering::Relaxed);
        let attr = |i: usize| word(Q_ATTR + 4 * i);
        let incarnation = self.map.u64(at + Q_DEST_INCARNATION).load(Ordering::Relaxed);
        let passage = Passage {
            generation: word(Q_GENERATION),
            state: attr(attr::STATE),
            sender: (attr(attr::DEST_QP_NUM), incarnation),
            offers: offers(attr(attr::ACCESS), attr(attr::RESPONDER_RESOURCES)),
            pkey: word(Q_PKEY) as u16,
            ports: ((attr(attr::PORT_NUM) as u8).wrapping_sub(1), word(Q_DEST_PORT) as u8),
        };
        (word(Q_USED) != 0).then_some(passage)
    }

    /// What an entry says, if it is in use and does not change meanwhile.
    fn words(&self, at: usize) -> Option<SharedQp> {
        let word = |offset: usize| self.map.u32(at + offset).load(Ordering::Relaxed);
        let used = word(Q_USED) != 0;
        let copy = SharedQp {
            generation: word(Q_GENERATION),
            dest_incarnation: self.map.u64(at + Q_DEST_INCARNATION).load(Ordering::Relaxed),
            pkey: word(Q_PKEY) as u16,
            dest_port: word(Q_DEST_PORT) as u8,
            attr: attr::parse(|i| word(Q_ATTR + 4 * i)),
        };
        used.then_some(copy)
    }

    /// The processes that have handles of queue pair `index`.
    pub fn holders(&self, index: usize) -> impl Iterator<Item = Process> {
        let at = entry(index) + Q_HOLDERS;
        let word = move |i: usize| self.map.u64(at + 8 * i).load(Ordering::Acquire);
        let bits = (0..HOLDERS / 64).map(move |i| (i, word(i))).filter(|&(_, bits)| bits != 0);
        let set =
            bits.flat_map(|(i, bits)| (0..64).filter(move |b| bits >> b & 1 != 0).map(move |b| 64 * i + b));
        set.filter_map(|holder| self.holder(holder))
    }

    /// Whether the process with place `holder` has a handle of queue pair `index`.
    pub fn holds(&self, index: usize, holder: usize) -> bool {
        self.map.u64(entry(index) + Q_HOLDERS + holder / 64 * 8).load(Ordering::Acquire) >> (holder % 64) & 1
            != 0
    }

    /// The process with place `holder`, if there is one.
    fn holder(&self, holder: usize) -> Option<Process> {
        let at = HOLDER_TABLE + holder * HOLDER;
        let incarnation = self.map.u64(at).load(Ordering::Acquire);
        let slot = self.map.u32(at + 8).load(Ordering::Relaxed) as usize;
        (incarnation != 0 && slot < super::layout::DOMAIN_SLOTS).then_some((slot, incarnation))
    }

    /// There is a queue pair, and a message has come on it.
    #[inline]
    pub fn is_established(&self, index: usize) -> bool {
        self.exists(index) && self.map.u32(entry(index) + Q_ESTABLISHED).load(Ordering::Relaxed) != 0
    }

    /// Notes that the first message on a queue pair has come. True: it was the first.
    pub fn establish(&self, index: usize) -> bool {
        let established = self.map.u32(entry(index) + Q_ESTABLISHED);
        // Every later message finds it so, and leaves the line to all processes of the node.
        established.load(Ordering::Relaxed) == 0 && established.swap(1, Ordering::AcqRel) == 0
    }

    /// Counts an event of a queue pair. Its holders find it with [`Self::events`]; they have to be woken.
    pub fn count_event(&self, index: usize, kind: usize) {
        self.map.u32(entry(index) + Q_EVENTS + kind % EVENTS * 4).fetch_add(1, Ordering::AcqRel);
        self.map.u32(D_EVENTS).fetch_add(1, Ordering::AcqRel);
    }

    /// How many events there have been in all.
    #[inline]
    pub fn event_count(&self) -> u32 {
        self.map.u32(D_EVENTS).load(Ordering::Acquire)
    }

    /// How many events of each kind a queue pair has had.
    pub fn events(&self, index: usize) -> [u32; EVENTS] {
        let at = entry(index) + Q_EVENTS;
        std::array::from_fn(|kind| self.map.u32(at + 4 * kind).load(Ordering::Acquire))
    }
}
