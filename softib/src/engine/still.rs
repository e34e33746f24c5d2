//! What the last poll has found nothing at, so that the next one has two words to look at, or one for each hot ring and one more.
//!
//! ```text
//!   poll finds nothing ──> note: this queue, the tag of each hot ring's next cell, the word that says whether other rings are announced
//!   next poll          ──> all words as they were? ── yes ──> nothing
//!                                                  └─ no ──> everything is looked at
//!   anything else that takes the lock ──> forgotten
//! ```
//!
//! Only what is under the lock could make another answer right, and memory that other processes write. So what was found holds until another call
//! takes the lock, or one of the words changes.

use super::inbound::Inbound;
use crate::shm::cells::prefetch_second;
use crate::shm::handover;
use crate::shm::layout::MARKED;
use crate::shm::map::Word;
use rdma_sys::ibv_cq;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// What several hot rings have not brought holds for so many polls in a row: then rings that have had nothing for long are looked for.
const MOST: u32 = 1024;

/// The words, and the queue that is empty as long as they do not change.
#[derive(Debug)]
#[repr(C)] // in this order
pub struct Still {
    /// Null: nothing is known. The address [behind the queue's](behind): it is of several rings.
    cq: *mut ibv_cq,
    /// The next cell of the only hot ring.
    cell: Awaited,
    /// The word that says that another ring may have something ([`handover::is_marked`]).
    marked: Word,
    /// The next cells of several.
    cells: Vec<Awaited>,
    /// Polls for which what was found at several has held since [`Self::take_held`].
    held: u32,
}

/// A cell in which a message is expected: its tag, and its number.
#[derive(Debug, Clone, Copy)]
struct Awaited {
    tag: NonNull<AtomicU32>,
    seq: u32,
}

impl Awaited {
    fn new((tag, seq): (&AtomicU32, u32)) -> Awaited {
        Awaited { tag: NonNull::from(tag), seq }
    }

    /// The message has come. Asks for the rest of the cell.
    ///
    /// # Safety
    /// Its ring is mapped.
    #[inline(always)]
    unsafe fn is_filled(&self) -> bool {
        // SAFETY: a word of the ring, as the caller promises.
        let tag = unsafe { self.tag.as_ref() };
        prefetch_second(tag);
        handover::is_filled(tag, self.seq)
    }
}

/// An address that no queue has, for each queue.
#[inline(always)]
fn behind(cq: *mut ibv_cq) -> *mut ibv_cq {
    cq.wrapping_byte_add(1)
}

// SAFETY: `cq` is compared only; the words belong to mappings, which may be used from any thread.
unsafe impl Send for Still {}

impl Still {
    /// Nothing is known; `inbound` are the rings of the same state.
    pub fn new(inbound: &Inbound) -> Still {
        let marked = inbound.inlets.tables().word(MARKED);
        let cell = Awaited { tag: NonNull::dangling(), seq: 0 };
        Still { cq: std::ptr::null_mut(), cell, cells: Vec::new(), held: 0, marked }
    }

    /// The state may be changed from now on.
    #[inline(always)]
    pub fn forget(&mut self) {
        self.cq = std::ptr::null_mut();
    }

    /// A poll of this queue has found nothing. There is no other ring to look at than the one with this cell, and nothing to prepare there.
    #[inline(always)]
    pub fn note(&mut self, cq: *mut ibv_cq, cell: (&AtomicU32, u32)) {
        (self.cq, self.cell) = (cq, Awaited::new(cell));
    }

    /// The same of several rings, which have these cells.
    pub fn note_several<'a>(&mut self, cq: *mut ibv_cq, cells: impl Iterator<Item = (&'a AtomicU32, u32)>) {
        self.cells.clear();
        self.cells.extend(cells.map(Awaited::new));
        self.cq = behind(cq);
    }

    /// A poll of this queue would find nothing again.
    #[inline(always)]
    pub fn holds(&self, cq: *mut ibv_cq) -> bool {
        if self.cq != cq {
            return false;
        }
        // SAFETY: `note` has set it together with `cq`, for no program's queue is null; and only a caller that has taken the lock, which makes
        // `cq` null, unmaps the ring.
        let filled = unsafe { self.cell.is_filled() };
        !filled && !handover::is_marked(&*self.marked)
    }

    /// A poll of this queue has found nothing at several rings: [`Self::holds_of_several`] may be asked.
    #[inline(always)]
    pub fn is_of_several(&self, cq: *mut ibv_cq) -> bool {
        self.cq == behind(cq)
    }

    /// A poll of this queue would find nothing there again.
    #[inline(always)]
    pub fn holds_of_several(&mut self) -> bool {
        self.held += 1;
        // SAFETY: as of the only ring: `note_several` has set them together with `cq`, which the caller has found.
        let filled = |cell: &Awaited| unsafe { cell.is_filled() };
        !self.held.is_multiple_of(MOST)
            && !self.cells.iter().any(filled)
            && !handover::is_marked(&*self.marked)
    }

    /// For how many polls what was found at several rings has held since this was asked last.
    pub fn take_held(&mut self) -> u32 {
        std::mem::take(&mut self.held)
    }
}
