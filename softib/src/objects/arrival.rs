//! The way of an XRC message to a process: through which receive queue pair, to which SRQ.

use super::grant::Grant;
use super::peer::{Link, Route};
use crate::shm::cell::Via;
use crate::shm::domain::DomainFile;
use std::sync::Arc;

/// A message's way to us, all of it checked.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Our SRQ.
    pub srq: usize,
    /// The domain that the receive queue pair belongs to.
    pub domain: Arc<DomainFile>,
    /// The receive queue pair, and its index in the domain.
    pub via: Via,
    pub index: usize,
    /// Where receives of the SRQ complete.
    pub cq: usize,
    /// Protection domain of the SRQ.
    pub pd: usize,
    /// Who sends: incarnation of its process, and its queue pair.
    pub sender: (u64, u32),
    /// What the receive queue pair lets its peer do.
    pub access: u32,
    /// Its partition.
    pub pkey: u16,
    /// Its port on its device, and the sender's among those of its process.
    pub ports: (u8, u8),
}

impl Arrival {
    /// Rights and protection domain for one-sided operations.
    pub fn grant(&self) -> Grant {
        Grant { access: self.access, pd: self.pd as u32, qpn: self.via.qpn }
    }

    /// What the sender knows the receive queue pair by.
    pub fn end(&self) -> (u32, u64) {
        (self.via.qpn, self.domain.incarnation)
    }

    /// The way back to the sender.
    pub fn back(&self) -> Link {
        let ((incarnation, qpn), (ours, theirs)) = (self.sender, self.ports);
        Link::new(qpn, Route { incarnation, ours, theirs, pkey: self.pkey })
    }
}
