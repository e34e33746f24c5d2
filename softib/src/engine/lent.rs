//! The ring of which the program reads a message where it lies (`shm::placed`).

use super::state::State;
use crate::shm::placed;
use std::ptr::null_mut;

impl State {
    /// If the program is done with the message that it was given, the sender of its ring is told how far that has been read. False: it is
    /// not.
    #[inline(never)]
    pub fn settle_lent(&mut self) -> bool {
        let Some((ring, _)) = self.w.lender else { return true };
        if let Some(Some(ring)) = self.inbound.rings.get_mut(ring) {
            if ring.is_lent() {
                return false;
            }
            ring.has_been_read();
            ring.publish_late();
        }
        self.w.lender = None;
        true
    }

    /// The program reads a message of this ring, which must not be freed.
    pub fn is_lent(&mut self, ring: usize) -> bool {
        !self.settle_lent() && self.w.lender.is_some_and(|(lender, _)| lender == ring)
    }

    /// A completion queue goes, and with it what the program was given by it.
    pub fn take_back(&mut self, cq: usize) {
        if self.w.lender.is_some_and(|(_, of)| of == cq) {
            placed::word().set(null_mut());
            self.settle_lent();
        }
    }
}
