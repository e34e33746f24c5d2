//! Messages over XRC: from a send queue pair, through a receive queue pair of a domain, to a shared receive queue of any process
//! of that domain.
//!
//! ```text
//!   process A               domain D (segment)            process C
//!   XRC_SEND qp ──────────> XRC_RECV qp ────────────────> XRC SRQ, its CQ, its PD
//!      │   state, connection, rights, holders: looked at      ^
//!      └──────────────────────── ring of A in C ──────────────┘
//! ```
//!
//! No process stands for the receive queue pair: the initiator reads in the domain's segment whether it takes messages, and
//! goes to the process whose SRQ the request names. So that process is the only one whose death fails a request, and the
//! receive queue pair lives as long as anybody who has a handle of it.
//!
//! What is in the ring names the receive queue pair ([`Via`]), and the target looks at the domain itself before it believes it.

pub mod events;
pub mod send;
pub mod target;

use crate::shm::ring::Found;

/// Where [`Via`] is in the fixed part of a cell, behind the operands of RDMA and atomics.
const VIA_AT: usize = 32;
/// Bytes of the fixed part of every cell over XRC.
pub const FIXED: usize = VIA_AT + 8;

/// The P_Key that every SRQ is known by: it is in no partition of its own.
pub const FULL_PKEY: u16 = 0xffff;

/// The receive queue pair that a message comes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Via {
    pub qpn: u32,
    pub generation: u32,
}

impl Via {
    /// The fixed part of a cell: `rest` of the request in front.
    pub fn emit(&self, rest: &[u8]) -> [u8; FIXED] {
        let mut bytes = [0; FIXED];
        bytes[..rest.len()].copy_from_slice(rest);
        bytes[VIA_AT..VIA_AT + 4].copy_from_slice(&self.qpn.to_ne_bytes());
        bytes[VIA_AT + 4..].copy_from_slice(&self.generation.to_ne_bytes());
        bytes
    }

    /// From a cell; any bytes make one.
    pub fn parse(found: &Found) -> Via {
        // SAFETY: the fixed part of a cell has more than FIXED readable bytes; no alignment is assumed.
        let [qpn, generation] = unsafe { found.fixed.add(VIA_AT).cast::<[u32; 2]>().read_unaligned() };
        Via { qpn, generation }
    }
}
