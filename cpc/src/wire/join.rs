//! The private data of an endpoint's further connections on iWARP, where each queue pair has one: whose it is. 28 bytes, big-endian.
//!
//! ```text
//!    0  "oxj", version    4  queue (8)    5  0 (24)
//!    8  name of the asking process (64)
//!   16  its QPNs: first queue's (24), this one's (24)    22  the asked process's: first (24), this (24)
//! ```
//! The first connection has exchanged all QPNs already ([`Hello`](crate::wire::Hello)). Repeated here, they tell a request of this
//! endpoint from one of its predecessors.
#![forbid(unsafe_code)]

use verbs::Qpn;

use super::ip::VERSION;
use crate::ProcessName;
use crate::wire::{MAX_QUEUES, Qpns};

/// Bytes of the private data in use (protocol.md 7.6).
pub const JOIN_LEN: usize = 28;
const MAGIC: [u8; 4] = [b'o', b'x', b'j', VERSION];

/// Which queue pair asks which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// Index of the queue, from 1: the first one's connection carries a Hello.
    pub queue: u8,
    /// The asking process.
    pub name: ProcessName,
    /// Its queue pairs of the first queue and of this one.
    pub from: [Qpn; 2],
    /// Those of the asked process.
    pub to: [Qpn; 2],
}

impl Join {
    /// The data of queue `queue` between queue pairs `from` and `to`, which are all of an endpoint's.
    pub fn new(queue: usize, name: ProcessName, from: &Qpns, to: &Qpns) -> Option<Join> {
        let ends = |qpns: &Qpns| Some([qpns.first(), *qpns.as_slice().get(queue)?]);
        Some(Join { queue: u8::try_from(queue).ok()?, name, from: ends(from)?, to: ends(to)? })
    }

    /// The private data of the request for a further queue pair on iWARP.
    pub fn emit(&self) -> [u8; JOIN_LEN] {
        let mut out = [0_u8; JOIN_LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = self.queue;
        out[8..16].copy_from_slice(&self.name.0.to_be_bytes());
        let ends = self.from.iter().chain(&self.to);
        for (field, qpn) in out[16..].chunks_exact_mut(3).zip(ends) {
            field.copy_from_slice(&qpn.0.to_be_bytes()[1..]);
        }
        out
    }

    /// Reads private data, which may be padded; `None` if they are none of these.
    pub fn parse(data: &[u8]) -> Option<Join> {
        let data: &[u8; JOIN_LEN] = data.first_chunk()?;
        let queue = data[4];
        let known = data[..4] == MAGIC && data[5..8] == [0; 3];
        if !known || !(1..MAX_QUEUES).contains(&usize::from(queue)) {
            return None;
        }
        let name = ProcessName(u64::from_be_bytes(*data[8..].first_chunk()?));
        let qpn = |at: usize| Qpn(u32::from_be_bytes([0, data[at], data[at + 1], data[at + 2]]));
        Some(Join { queue, name, from: [qpn(16), qpn(19)], to: [qpn(22), qpn(25)] })
    }
}
