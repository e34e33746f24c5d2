//! Messages that are held back while too many answers to their sender wait (`protocol::hold`).
#![forbid(unsafe_code)]

use super::Rx;
use crate::transport::{Delivery, Transport, Upcall};

/// After so many looks in a row that have found nothing, while no answer has gone out, one message
/// is executed all the same.
const IDLE_TURNS: u32 = 16;

impl Rx {
    /// A look around has `found` messages or not, and so many answers wait.
    #[cold]
    pub(super) fn note_turn(&mut self, found: bool, answers: u32) {
        let moved = found || answers < self.answers;
        self.idle = if moved { 0 } else { self.idle + 1 };
        self.answers = answers;
    }

    /// A message that stays with us for a while: its bytes are in its own buffer.
    pub(super) fn kept(&self, delivery: Delivery) -> Delivery {
        if delivery.has_landed() {
            return delivery;
        }
        delivery.settled(|slot, buf| self.slots.settle(slot, buf))
    }

    /// Nothing has moved for long; not again before as long.
    fn is_stuck(&mut self) -> bool {
        let stuck = self.idle >= IDLE_TURNS;
        if stuck {
            self.idle = 0;
        }
        stuck
    }
}

impl<C> Transport<C> {
    /// A message may have to be held back.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.tx.answers > self.tx.most_answers || !self.rx.hold.is_empty()
    }

    /// Messages of the endpoint at this position may be executed.
    fn may_execute(&self, index: u32) -> bool {
        let to_peer = self.endpoints.get(index).map_or(0, |ep| ep.answers);
        self.port.config.hold.permits(to_peer, self.tx.answers)
    }

    /// A message that may be executed now comes back.
    #[cold]
    pub(super) fn hold_back(&mut self, delivery: Delivery) -> Option<Delivery> {
        let index = delivery.endpoint().index;
        if !self.rx.hold.has(index) && self.may_execute(index) {
            return Some(delivery);
        }
        self.stats.held += 1;
        let delivery = self.rx.kept(delivery);
        self.rx.hold.put(index, delivery);
        self.rx.chores = true;
        self.stats.held_high = self.stats.held_high.max(self.rx.hold.len() as u64);
        None
    }

    /// The next message that has been held back and is not any more.
    #[inline]
    pub(super) fn take_held(&mut self) -> Option<Upcall<C>> {
        if self.rx.hold.is_empty() { None } else { self.take_permitted() }
    }

    #[cold]
    fn take_permitted(&mut self) -> Option<Upcall<C>> {
        let mut hold = std::mem::take(&mut self.rx.hold);
        let mut next = hold.next(|index| self.may_execute(index));
        if next.is_none() && self.rx.is_stuck() {
            next = hold.next(|_| true);
            self.stats.trickled += 1;
        }
        self.rx.hold = hold;
        next.map(Upcall::Deliver)
    }

    /// The endpoint of this position is gone: its held messages have no receiver any more.
    pub(crate) fn drop_held(&mut self, index: u32) {
        for delivery in self.rx.hold.take_all(index) {
            self.delivered(delivery);
        }
    }
}
