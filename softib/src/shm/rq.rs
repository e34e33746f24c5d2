//! Receive queues that the initiator consumes with its own hand, in the target's segment.
//!
//! ```text
//!   +0     posted   u32, written by the target (queues with one sender)
//!   +4     asked    u32: what is known of the receives' buffers (`super::buffers`), or is asked for
//!   +8     told     u32: where in the segment that is
//!   +64    head     u32, next position to claim (queues with many senders)
//!   +128   lens     u32 each (queues with one sender): bytes that fit, upper bit: a bad work request
//!   +128   entries  16 bytes each (queues with many senders): position:32 owner:16 state:16 | length, as above:32 | 0:32
//! ```
//!
//! A queue with one sender (RC without SRQ): the initiator counts what it has consumed and looks at `posted` when its
//! copy is used up; it writes nothing. A queue with many senders (SRQ, UD): the initiator claims the slot at
//! `head` by compare-and-swap from POSTED to CLAIMED, with its ring index as the owner, and then helps `head`
//! forward. The owner lets the target take back what a dead initiator claimed and did not deliver.
//! Positions are 32 bits and never repeat within 4 billion receives, so a slot's position serves as its lap.
//!
//! Addresses and wr_ids stay private to the target, see `objects::recvq`.

use super::cells::prefetch;
use super::claims;
use super::map::Map;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use super::claims::Claim;

const ASKED: usize = 4;
const TOLD: usize = 8;
const HEAD: usize = 64;

/// An initiator asks where the buffers are. What the target has to do something about is odd.
const ASKS: u32 = 1;
/// It has been told, or can't be.
const ANSWERED: u32 = 2;
/// It does not want to know any more.
const DECLINES: u32 = 3;
/// The target knows that.
const OVER: u32 = 4;
const LENS: usize = 128;

/// Upper bit of a length: the target found the work request invalid.
pub const BAD: u32 = 1 << 31;

/// How large a queue is, and how many may send to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Receives that it holds; a power of two.
    pub size: u32,
    /// Many senders claim (SRQ, UD), or one counts (RC, UC).
    pub shared: bool,
}

impl Shape {
    /// Bytes that such a queue takes.
    pub const fn bytes(self) -> usize {
        LENS + self.size as usize * if self.shared { size_of::<Entry>() } else { 4 }
    }
}

/// One position of a queue with many senders: in one cache line, and in one page.
#[repr(C, align(16))]
struct Entry {
    slot: AtomicU64,
    len: AtomicU32,
}

const ENTRIES_A_LINE: u32 = 64 / size_of::<Entry>() as u32;

/// The place of a queue in a mapped segment; its bounds are checked once.
#[derive(Debug, Clone)]
pub struct Place {
    map: Arc<Map>,
    /// Where it begins in the mapping.
    within: usize,
    /// Where it begins in the segment: peers find it by that.
    pub offset: usize,
    /// Slots.
    pub size: u32,
    /// It has entries, which many senders claim.
    shared: bool,
    at: NonNull<u8>,
}

// SAFETY: the memory belongs to the mapping, which may be used from any thread and lives as long as this value.
unsafe impl Send for Place {}
// SAFETY: every access through a shared reference is to atomics of the mapping, which lives as long as this value.
unsafe impl Sync for Place {}

/// What many senders claim of a place.
struct Entries<'a> {
    head: &'a AtomicU32,
    first: NonNull<Entry>,
    /// One less than there are.
    mask: u32,
}

impl Entries<'_> {
    /// What is said of position `pos`.
    #[inline(always)]
    fn at(&self, pos: u32) -> &Entry {
        // SAFETY: there is one more than `mask`; the place that they are of lives as long as self.
        unsafe { self.first.add((pos & self.mask) as usize).as_ref() }
    }
}

impl claims::Queue for Entries<'_> {
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    #[inline(always)]
    fn head(&self) -> &AtomicU32 {
        self.head
    }

    #[inline(always)]
    fn slot(&self, pos: u32) -> &AtomicU64 {
        &self.at(pos).slot
    }

    #[inline(always)]
    fn length(&self, pos: u32) -> &AtomicU32 {
        &self.at(pos).len
    }
}

impl Place {
    /// The place of a queue at `offset` of its segment, and `within` a mapping.
    pub fn new(map: &Arc<Map>, within: usize, offset: usize, shape: Shape) -> Place {
        let Shape { size, shared } = shape;
        Place { at: map.place(within, shape.bytes()), map: map.clone(), within, offset, size, shared }
    }

    /// Maps the pages of its first positions for writing. A first read would map those around it, too: they
    /// belong to the queues of others.
    pub fn map_pages(&self) {
        self.map.populate(self.within, LENS);
    }

    /// How many receives have been posted in all (queues with one sender).
    #[inline(always)]
    fn count(&self) -> &AtomicU32 {
        // SAFETY: the first word of the place, which is 64-byte aligned; atomics tolerate other processes.
        unsafe { self.at.cast::<AtomicU32>().as_ref() }
    }

    #[inline(always)]
    fn asked(&self) -> &AtomicU32 {
        // SAFETY: the second word of the place, which is 64-byte aligned; atomics tolerate other processes.
        unsafe { self.at.add(ASKED).cast::<AtomicU32>().as_ref() }
    }

    fn told(&self) -> &AtomicU32 {
        // SAFETY: the third word of the place, which is 64-byte aligned; atomics tolerate other processes.
        unsafe { self.at.add(TOLD).cast::<AtomicU32>().as_ref() }
    }

    /// An initiator asks where the buffers of receives are, and has not been [told](Self::tell), or does not want to know any more (target).
    #[inline(always)]
    pub fn is_asked(&self) -> bool {
        self.asked().load(Ordering::Relaxed) & 1 != 0
    }

    /// Entries of receives that are posted from now on are at this place of the segment; 0: there are none (target).
    pub fn tell(&self, offset: usize) {
        self.told().store(u32::try_from(offset).unwrap_or(0), Ordering::Relaxed);
        self.asked().store(ANSWERED, Ordering::Release);
    }

    /// No initiator wants to know any more; this is said once (target).
    pub fn takes_decline(&self) -> bool {
        let word = self.asked();
        word.compare_exchange(DECLINES, OVER, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Asks where the buffers of receives are (initiator).
    pub fn ask(&self) {
        // Another one may have asked before.
        let _ = self.asked().compare_exchange(0, ASKS, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Where in the segment the target says that their entries are, if it has answered; 0: there are none (initiator).
    pub fn answer(&self) -> Option<usize> {
        let has_answered = self.asked().load(Ordering::Acquire) == ANSWERED;
        has_answered.then(|| self.told().load(Ordering::Relaxed) as usize)
    }

    /// Wants to know no more; of a queue with many senders another one may (initiator).
    pub fn decline(&self) {
        if !self.shared {
            self.asked().store(DECLINES, Ordering::Relaxed);
        }
    }

    /// The length word of position `pos` (queues with one sender).
    #[inline(always)]
    fn length(&self, pos: u32) -> &AtomicU32 {
        let at = LENS + (pos & (self.size - 1)) as usize * 4;
        // SAFETY: one of `size` words behind LENS, all inside the place (checked by new) and aligned; atomics tolerate other processes.
        unsafe { self.at.add(at).cast::<AtomicU32>().as_ref() }
    }

    /// The entries of a queue with many senders.
    #[inline(always)]
    fn entries(&self) -> Option<Entries<'_>> {
        if !self.shared {
            return None;
        }
        // SAFETY: a queue with many senders (checked above) has a head, and `size` entries behind LENS, all inside the place (checked by
        // new), which begins at a multiple of 64 and lives as long as self; atomics tolerate other processes.
        let (head, first) =
            unsafe { (self.at.add(HEAD).cast::<AtomicU32>().as_ref(), self.at.add(LENS).cast::<Entry>()) };
        Some(Entries { head, first, mask: self.size - 1 })
    }

    /// Empties the queue so that the next receive posted has position 0 (target).
    pub fn reset(&self) {
        if let Some(entries) = self.entries() {
            (0..self.size).for_each(|pos| entries.at(pos).slot.store(0, Ordering::Relaxed));
            entries.head.store(0, Ordering::Relaxed);
        }
        self.asked().store(0, Ordering::Relaxed);
        self.count().store(0, Ordering::Release);
    }

    /// Makes `pos` the next one to be claimed of a queue with many senders, in which nothing is posted (target).
    pub fn start_at(&self, pos: u32) {
        if let Some(entries) = self.entries() {
            entries.head.store(pos, Ordering::Release);
        }
    }

    /// The position that is claimed next in a queue with many senders, as these say (target).
    pub fn next_claim(&self) -> Option<u32> {
        self.entries().map(|entries| entries.head.load(Ordering::Relaxed))
    }

    /// Posts position `pos` in a queue with one sender (target).
    #[inline]
    pub fn post(&self, pos: u32, len: u32) {
        self.prepare(pos, len);
        self.show(pos.wrapping_add(1));
    }

    /// Writes down what fits position `pos` of a queue with one sender, who does not see it yet (target).
    #[inline(always)]
    pub fn prepare(&self, pos: u32, len: u32) {
        self.length(pos).store(len, Ordering::Relaxed);
    }

    /// All positions before this one of a queue with one sender are posted (target).
    #[inline(always)]
    pub fn show(&self, tail: u32) {
        self.count().store(tail, Ordering::Release);
    }

    /// Posts position `pos` in a queue with many senders (target).
    #[inline(always)]
    pub fn post_shared(&self, pos: u32, len: u32) {
        if let Some(entries) = self.entries() {
            claims::post(&entries, pos, len);
        }
    }

    /// The owner of the claim on `pos`, whose place is about to be used again before it is delivered (target).
    pub fn displace(&self, pos: u32) -> Option<usize> {
        claims::displace(&self.entries()?, pos)
    }

    /// The owner of the claim on `pos`, if it is claimed and not yet displaced (target).
    pub fn claimant(&self, pos: u32) -> Option<usize> {
        claims::claimant(&self.entries()?, pos)
    }

    /// Takes position `pos` back for its owner, so that no initiator can claim it. False: it is claimed (target).
    pub fn withdraw(&self, pos: u32) -> bool {
        self.entries().is_none_or(|entries| claims::withdraw(&entries, pos))
    }

    /// How many receives have been posted in all (initiator, queue with one sender).
    #[inline]
    pub fn posted(&self) -> u32 {
        self.count().load(Ordering::Acquire)
    }

    /// The length word of a posted position (initiator, queue with one sender).
    #[inline]
    pub fn len(&self, pos: u32) -> u32 {
        self.length(pos).load(Ordering::Relaxed)
    }

    /// Asks for the length word of a position that will be wanted.
    #[inline]
    pub fn expect(&self, pos: u32) {
        prefetch(self.length(pos));
    }

    /// Changes the length word of a posted position; an initiator that has read it already goes by the old one (target).
    pub fn change_len(&self, pos: u32, change: impl Fn(u32) -> u32) {
        let entries = self.entries();
        let length = entries.as_ref().map_or_else(|| self.length(pos), |entries| &entries.at(pos).len);
        length.store(change(length.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Claims the next receive for ring `owner` if it can be had at once and holds `len` bytes (initiator, queue with many senders).
    #[inline(always)]
    pub fn claim_fitting(&self, owner: usize, len: u32) -> Option<u32> {
        let entries = self.entries()?;
        let pos = claims::claim_fitting(&entries, owner, len)?;
        // The target writes the next line when it posts what is in it: it has until then to come.
        prefetch(entries.at(pos.wrapping_add(ENTRIES_A_LINE)));
        Some(pos)
    }

    /// Claims the next receive for ring `owner` (initiator, queue with many senders).
    pub fn claim(&self, owner: usize) -> Claim {
        self.entries().map_or(Claim::Empty, |entries| claims::claim(&entries, owner))
    }
}
