//! What the last poll has found nothing at, so that the next one has two words to look at.
//!
//! ```text
//!   poll finds nothing ──> note: this queue, the tag of the ring's next cell, the word that says whether other rings are announced
//!   next poll          ──> both words as they were? ── yes ──> nothing
//!                                                   └─ no ──> everything is looked at
//!   anything else that takes the lock ──> forgotten
//! ```
//!
//! Only what is under the lock could make another answer right, and memory that other processes write. So what was found holds until another call
//! takes the lock, or one of the two words changes.

use super::inbound::Inbound;
use crate::shm::cells::prefetch_second;
use crate::shm::handover;
use crate::shm::layout::MARKED;
use crate::shm::map::Word;
use rdma_sys::ibv_cq;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// Both words, and the queue that is empty as long as they do not change.
#[derive(Debug)]
pub struct Still {
    /// Null: nothing is known.
    cq: *mut ibv_cq,
    /// Tag of the next cell of the ring whose turn it is.
    tag: NonNull<AtomicU32>,
    /// Number of that cell.
    seq: u32,
    /// The word that says that another ring may have something ([`handover::is_marked`]).
    marked: Word,
}

// SAFETY: `cq` is compared only; the words belong to mappings, which may be used from any thread.
unsafe impl Send for Still {}

impl Still {
    /// Nothing is known; `inbound` are the rings of the same state.
    pub fn new(inbound: &Inbound) -> Still {
        let marked = inbound.inlets.tables().word(MARKED);
        Still { cq: std::ptr::null_mut(), tag: NonNull::dangling(), seq: 0, marked }
    }

    /// The state may be changed from now on.
    #[inline(always)]
    pub fn forget(&mut self) {
        self.cq = std::ptr::null_mut();
    }

    /// A poll of this queue has found nothing. There is no other ring to look at than the one with this cell, and nothing to prepare there.
    #[inline(always)]
    pub fn note(&mut self, cq: *mut ibv_cq, (tag, seq): (&AtomicU32, u32)) {
        (self.cq, self.tag, self.seq) = (cq, NonNull::from(tag), seq);
    }

    /// A poll of this queue would find nothing again.
    #[inline(always)]
    pub fn holds(&self, cq: *mut ibv_cq) -> bool {
        if self.cq != cq {
            return false;
        }
        // SAFETY: `note` has set it together with `cq`, which no program's queue is null; and only a caller that has taken the lock, which makes
        // `cq` null, unmaps the ring.
        let tag = unsafe { self.tag.as_ref() };
        prefetch_second(tag);
        !handover::is_filled(tag, self.seq) && !handover::is_marked(&*self.marked)
    }
}
