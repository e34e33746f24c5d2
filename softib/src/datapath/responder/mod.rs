//! The responder: what happens to what arrives.
//!
//! ```text
//! cell      what a cell is, and whether it is believed      short    the short way: from the ring to the poller
//! receive   messages, for a queue pair or an SRQ of XRC     datagram UD
//! window    SEND with invalidation                          rdma     requests for memory, and their answers
//! xrc       what has come through a queue pair of a domain  events   asynchronous events of receive queue pairs
//! receiver  what sets those two apart                       placing  where bytes and completions go
//! short_rdma  the short way of requests for memory
//! ```

mod cell;
mod datagram;
/// Events of shared receive queue pairs.
pub mod events;
mod placing;
/// RDMA operations and atomics that come through a ring.
pub mod rdma;
mod receive;
mod receiver;
mod short;
mod short_rdma;
mod short_xrc;
mod window;
/// Messages for XRC SRQs.
pub mod xrc;

pub use cell::cell;
pub use placing::{From, tell_limit_before_posts};
pub use short::{Short, Way, meaning, take_filled, take_short};
pub use short_rdma::answer_short;
pub use short_xrc::take_over_xrc;
