//! Who owns a local queue pair number: the sender of a message that came through a shared receive
//! queue.
#![forbid(unsafe_code)]

use crate::protocol::hash::ByNumber;
use verbs::Qpn;

/// Owner of a queue pair number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// An endpoint's lane.
    Lane { endpoint: u32, queue: u8 },
    /// A queue pair of ours that is gone; late messages of it are dropped.
    Retired,
}

/// The map, with the last answer kept: consecutive messages often have one sender.
#[derive(Debug, Default)]
pub struct Qpns {
    map: ByNumber<Owner>,
    last: Option<(u32, Owner)>,
}

impl Qpns {
    /// `qpn` belongs to this lane from now on.
    pub fn insert(&mut self, qpn: Qpn, endpoint: u32, queue: usize) {
        self.last = None;
        self.map.insert(qpn.0, Owner::Lane { endpoint, queue: queue as u8 });
    }

    /// The queue pair is gone.
    pub fn retire(&mut self, qpn: Qpn) {
        self.last = None;
        self.map.insert(qpn.0, Owner::Retired);
    }

    /// The endpoint that the queue pair is of, if it is there.
    pub fn endpoint(&mut self, qpn: Qpn) -> Option<u32> {
        match self.find(qpn) {
            Some(Owner::Lane { endpoint, .. }) => Some(endpoint),
            _ => None,
        }
    }

    /// The owner, if there ever was one.
    #[inline(always)] // with every message of a shared queue
    pub fn find(&mut self, qpn: Qpn) -> Option<Owner> {
        match self.last {
            Some((last, owner)) if last == qpn.0 => Some(owner),
            _ => self.look_up(qpn),
        }
    }

    #[inline(never)]
    fn look_up(&mut self, qpn: Qpn) -> Option<Owner> {
        let owner = *self.map.get(&qpn.0)?;
        self.last = Some((qpn.0, owner));
        Some(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_number_is_not_an_unknown_one() {
        let mut qpns = Qpns::default();
        let lane = Owner::Lane { endpoint: 3, queue: 1 };
        qpns.insert(Qpn(7), 3, 1);
        assert_eq!((qpns.find(Qpn(7)), qpns.find(Qpn(7)), qpns.find(Qpn(8))), (Some(lane), Some(lane), None));
        qpns.retire(Qpn(7));
        assert_eq!(qpns.find(Qpn(7)), Some(Owner::Retired));
        qpns.insert(Qpn(7), 4, 0);
        assert_eq!(qpns.find(Qpn(7)), Some(Owner::Lane { endpoint: 4, queue: 0 }));
    }
}
