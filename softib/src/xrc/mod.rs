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
//! No process stands for the receive queue pair: the initiator reads in the domain's segment
//! whether it takes messages, and goes to the process whose SRQ the request names. So that process
//! is the only one whose death fails a request, and the receive queue pair lives as long as any
//! process has a handle of it.
//!
//! What is in the ring names the receive queue pair (`shm::cell::Via`), and the target looks at the domain itself before it believes it.

pub mod events;
pub mod send;
pub mod target;

/// The P_Key that every SRQ is known by: it is in no partition of its own.
pub const FULL_PKEY: u16 = 0xffff;
