//! Answers to requests for memory that have come through a ring, as they wait for room (`datapath::responder::rdma`).

use super::arrival::Arrival;
use super::peer::Link;
use crate::shm::cell::Found;

/// The fixed part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Address, as requests call it.
    pub addr: u64,
    /// Key of the region or window.
    pub rkey: u32,
    /// Bytes.
    pub len: u32,
}

impl Target {
    /// Its bytes in a cell.
    pub fn emit(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.addr.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.len.to_ne_bytes());
        bytes
    }

    /// What a request says.
    pub fn parse(found: &Found) -> Target {
        let mut bytes = [0u8; 16];
        // SAFETY: the fixed part of a cell has more than 16 readable bytes.
        unsafe { std::ptr::copy_nonoverlapping(found.fixed, bytes.as_mut_ptr(), bytes.len()) };
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let addr = u64::from(word(0)) | u64::from(word(4)) << 32;
        Target {
            addr: if cfg!(target_endian = "little") { addr } else { addr.rotate_left(32) },
            rkey: word(8),
            len: word(12),
        }
    }
}

/// An answer on its way (target).
#[derive(Debug)]
pub struct Reply {
    /// Who was asked.
    pub asked: Asked,
    /// What it says.
    pub answer: Answer,
}

/// What it says.
#[derive(Debug, Default)]
pub struct Answer {
    /// Which request of the initiator this answers.
    pub number: u32,
    /// Completion status that the request is to have.
    pub status: u32,
    /// RDMA READ: what is to be sent.
    pub read: Option<Target>,
    /// The number of an ASK: its requester can fetch the data itself. If it is not granted, nothing is wrong.
    pub ask: Option<u32>,
    /// Bytes of that which are in the ring.
    pub sent: u32,
    /// Atomics: what was there before.
    pub value: Option<u64>,
}

/// Who was asked.
#[derive(Debug)]
pub enum Asked {
    /// A queue pair of ours.
    Qp { index: usize, generation: u32 },
    /// One of a domain, for an SRQ of ours; and the way back.
    Shared { to: Box<Arrival>, back: Box<Link> },
}
