//! The transport's protocol logic: pure values and arithmetic, no I/O, no clock, no allocation on
//! hot paths.
//!
//! ```text
//!   receive_queues string ──> layout ──> window (rd_num, rd_win, rd_rsv)
//!                               │            │
//!   peer's modex ──> modex ─────┘         credits ── grants ──> wire header ──> the queue pair
//!                      └── ports ──> pairing ──> roce: who talks, over which GIDs
//!                                            │
//!   fragments that cannot go yet ──> pending ┘      budget: send WQEs and CQEs never overrun
//!                                       └── too many answers among them ──> hold: messages that wait
//! ```
//!
//! Everything here is `#![forbid(unsafe_code)]`: it is what property tests, the exhaustive search
//! of the credit protocol and the fuzzers drive. The driver that owns verbs objects lives in
//! `transport`.

#![forbid(unsafe_code)]

/// Atomic changes of a word of a peer's.
pub mod atomic;
/// Work requests and completions never overrun.
pub mod budget;
/// The credits of a per-peer queue.
pub mod credits;
/// Files of device parameters.
pub mod device_ini;
/// Rings that short messages are written into.
pub mod eager;
/// Tables by a number.
pub mod hash;
/// Messages that are held back.
pub mod hold;
/// `receive_queues`.
pub mod layout;
/// What processes publish about themselves.
pub mod modex;
/// Which ports of two processes talk.
pub mod pairing;
/// Fragments that cannot go yet.
pub mod pending;
/// Registrations of user memory that are kept for the next transfer.
pub mod regcache;
/// Which rows of two RoCE ports' GID tables a connection uses.
pub mod roce;
/// The message header and control messages.
pub mod wire;

mod bytes;
