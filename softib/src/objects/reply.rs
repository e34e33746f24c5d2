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

/// The fixed part of a GIVE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gift {
    /// Where all of it belongs.
    pub target: Target,
    /// Bytes of it that have come before.
    pub from: u32,
}

impl Gift {
    /// Its bytes in a cell.
    pub fn emit(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..16].copy_from_slice(&self.target.emit());
        bytes[16..].copy_from_slice(&self.from.to_ne_bytes());
        bytes
    }

    /// What a GIVE says.
    pub fn parse(found: &Found) -> Gift {
        // SAFETY: the fixed part of a cell has more than 20 readable bytes; no alignment is assumed.
        let from = unsafe { found.fixed.add(16).cast::<u32>().read_unaligned() };
        Gift { target: Target::parse(found), from }
    }

    /// Where the next `len` bytes belong, if all of it begins at `place`. None: they are more than are to come.
    pub fn place_of(&self, place: u64, len: u32) -> Option<u64> {
        let end = self.from.checked_add(len)?;
        (end <= self.target.len).then(|| place.wrapping_add(self.from.into()))
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
    /// The number of an ASK, and the ring of ours that it has come through: its requester can fetch the data itself. If it is not granted,
    /// nothing is wrong.
    pub ask: Option<(u32, usize)>,
    /// It is written past our caches.
    pub streams: bool,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_gift_has_a_place_within_the_whole_only() {
        let part = |from, len| {
            let target = Target { addr: 0, rkey: 0, len: 100 };
            Gift { target, from }.place_of(1000, len)
        };
        assert_eq!((part(0, 100), part(60, 40)), (Some(1000), Some(1060)));
        assert_eq!((part(60, 41), part(101, 0), part(u32::MAX, 2)), (None, None, None));
    }
}
