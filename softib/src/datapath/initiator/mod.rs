//! The initiator: what happens to a send work request.
//!
//! ```text
//!   post ──> attempt ──┬── done: completion (if asked for)
//!                      └── wait ──> queued in the SQ ──> attempted again by progress ──> ...
//! ```
//!
//! A SEND looks at the peer's life, its QP, a posted receive, that receive's length and the ring's room, in this order, and
//! consumes the receive by its own hand: that is the acknowledgement. What can't go on waits at the head of its own
//! SQ and keeps the order there; other QPs of the pair go on. The waits:
//!
//! * `Room`: the ring is full; the peer has been told. Datagrams, too, but not for ever.
//! * `Rnr`: no receive; waits the responder's min_rnr_timer, rnr_retry times (7: for ever), then RNR_RETRY_EXC_ERR.
//! * `Silent`: the peer's QP does not answer; RETRY_EXC_ERR after timeout x (retry_cnt + 1). A dead peer's at once. So does one that
//!   closes while a message is put into its ring (`engine::ending`).
//!
//! ```text
//! submit     a request is posted                  short      the short way of a SEND, and short_xrc that over XRC
//! queue      what waits, for what, how long       fates      what a plan of faults does to it
//! attempt    one try: which way a request goes    finish     its end
//!
//! message    SEND                                 rdma       RDMA WRITE, READ, atomics
//! xrc        all of these over XRC                window     binds, invalidation
//! unconnected, datagram, multicast                UD
//!
//! path       the two ways to a receiver           transit    the peer, a receive of its, its word that it has arrived
//! direct     memory by our own hand               ring       requests for memory through a ring
//! answer     what comes back of those                short_rdma the short way of READs, atomics, and WRITEs that are given
//! mapped     memory that the peer shares with us     short_write  the short way of a WRITE to it
//! ahead      READs and given WRITEs under way behind another one      filling    SENDs into posted buffers that are mapped here
//! at_once    READs and WRITEs that are over before they would be posted
//! ```

mod ahead;
mod answer;
mod at_once;
mod attempt;
mod datagram;
mod direct;
mod fates;
mod filling;
mod finish;
mod mapped;
mod message;
/// One datagram to all listeners.
pub mod multicast;
mod path;
mod queue;
mod rdma;
mod ring;
mod short;
mod short_rdma;
mod short_write;
mod short_xrc;
mod submit;
mod transit;
mod unconnected;
mod window;
mod xrc;

pub use answer::{answered, response_arrived};
pub use at_once::{AtOnce, rdma_at_once};
pub use queue::{advance, tell_drained};
pub use short::{Rest, SHORT_SGES, Short, finish_short, goes_at_once, send_short};
pub use short_rdma::{ask_short, asks, take_answer};
pub use short_write::{write_mapped, write_short};
pub use short_xrc::send_short as send_short_over_xrc;
pub use submit::submit;
