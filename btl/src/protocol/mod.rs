//! The transport's protocol logic: pure values and arithmetic, no I/O, no clock, no allocation on hot paths.
//!
//! ```text
//!   receive_queues string ──> layout ──> window (rd_num, rd_win, rd_rsv)
//!                               │            │
//!   peer's modex ──> modex ─────┘         credits ── grants ──> wire header ──> the queue pair
//!                                            │
//!   fragments that cannot go yet ──> pending ┘      budget: send WQEs and CQEs never overrun
//! ```
//!
//! Everything here is `#![forbid(unsafe_code)]`: it is what property tests, the exhaustive search of the
//! credit protocol and the fuzzers drive. The driver that owns verbs objects lives in `transport`.

#![forbid(unsafe_code)]

pub mod budget;
pub mod credits;
pub mod layout;
pub mod modex;
pub mod pending;
pub mod wire;

mod bytes;
