//! The transport: messages between processes over queue pairs.
//!
//! One [`Transport`] drives one port. It is driven from outside and makes no call upwards: the
//! upper layer hands it messages ([`Transport::sendi`], [`Transport::send`]), asks it to look
//! around ([`Transport::poll`]) and takes what came of that, one by one
//! ([`Transport::take_upcall`]). So an upper layer may call back in between.
//!
//! ```text
//!   sendi/send --> lane: connected? credit? entry? --> post  (else: queue; the buffer is ours, the sender is done)
//!   poll       --> helper's events, completions      --> take_upcall: deliver, RDMA done, unknown peer, failure
//! ```
//!
//! It is made of parts. A method that needs one of them belongs to that part, one that combines
//! them to the transport.
//!
//! | part        | has                                                                            |
//! |-------------|--------------------------------------------------------------------------------|
//! | `OpenPort`  | device, connection managers, configuration, reserved completions               |
//! | `Endpoints` | the peers: states, lanes, timelines                                            |
//! | `Rx`        | receive completions, the queues' receiving sides, slots, owners of queue pairs |
//! | `Tx`        | send completions, the queues' sending sides, what is in flight, what waits     |
//! | `Paths`     | send queue pairs of X queues                                                   |
//! | `Upcalls`   | what the upper layer has not taken yet                                         |
//!
//! Rooms, each of which imports only those above it in this list:
//!
//! | room       | holds                                                                                |
//! |------------|--------------------------------------------------------------------------------------|
//! | `port`     | `OpenPort`: the device, its events, the queues that all peers share, depths           |
//! | `channel`  | a queue pair that sends: the one `post()`, and the ledger of what it has posted          |
//! | `endpoint` | one peer: its table of (state, event), lanes, callbacks, numbers, the route of X queues |
//! | `link`     | `connect`, `opening` (iWARP), `renew`, `resume`, `keepalive`, `ending`, `close`: from a peer's name to an endpoint that flows, and back |
//! | `tx`       | `send`, `rdma`, `control`, `complete`, `flush`, `keep`; `path` and `replay` for X queues       |
//! | `rx`       | `recv`, the sources (P, `shared`, `xrc`, `cts`), `slots`, `credit`                     |
//!
//! `upcall` is what comes of all that for the upper layer. `open` puts a transport together from
//! its parts; `wrid`, `stats` and `audit` stand beside them.
#![forbid(unsafe_code)]

/// Where every buffer and credit is.
pub mod audit;
mod channel;
/// One peer.
pub mod endpoint;
mod link;
mod open;
/// The device and what is opened on it.
pub mod port;
mod rx;
/// Counters.
pub mod stats;
/// Sending.
pub mod tx;
mod upcall;
mod wrid;

pub use channel::SHORT;
pub use endpoint::ring::{Landed, Next};
pub use endpoint::{EpId, state, timeline, traffic};
pub use link::{AddError, Removal, Settled};
pub use port::buffer::SendBuf;
pub use port::{config, device, near};
pub use rx::Glance;
pub use tx::{Attempt, NotBegun, flush};
pub use upcall::{Delivery, Upcall};

use endpoint::Endpoints;
use endpoint::rings::Rings;
use port::OpenPort;
use rx::Rx;
use stats::Stats;
use std::collections::BTreeMap;
use std::mem::offset_of;
use tx::Tx;
use tx::path::Paths;
use upcall::Upcalls;

/// Completions taken from a queue at a time.
const BATCH: usize = 16;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The only value of a word. Where a transport may be missing, another value of this word says so, in a cache line that each message reads anyway;
/// without it the compiler would choose the field that has most values to spare, wherever that is.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
enum Here {
    Yes = 1,
}

/// The transport over one port. `C` is what the upper layer wants back when an RDMA operation is
/// over.
///
/// In this order, and its parts likewise: what each message reads and writes is in few cache lines, for a program that computes between two messages has
/// lost them to its own data. Assertions behind the parts say what is in the first lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Transport<C> {
    here: Here,
    /// What the upper layer has not taken yet.
    up: Upcalls<C>,
    endpoints: Endpoints<C>,
    /// What is received, and where.
    rx: Rx,
    /// What is sent, and what waits for that.
    tx: Tx<C>,
    /// Rings that short messages are written into.
    rings: Rings,
    /// What happened.
    pub stats: Stats,
    /// The device, the connection managers, and what both are told.
    port: OpenPort,
    /// Connections that are to be begun anew, because their peers have left before they were up, or
    /// are back.
    renewals: Vec<link::Renewal>,
    /// Processes that have asked for a connection, and have no endpoint or one whose connections go over the other port, and whether they have
    /// asked at the alternate port or at our own.
    asked: BTreeMap<u64, bool>,
    /// Endpoints whose peers are leaving, and have not been told yet that all has come.
    ending: Vec<EpId>,
    /// Peers that say nothing.
    keepalive: link::Keepalive,
    /// The send queue pairs of X queues.
    paths: Paths,
}

const _: () = assert!(
    offset_of!(Transport<u64>, endpoints) + size_of::<Vec<EpId>>() <= LINE,
    "whether there is one, and its endpoints"
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::credits::{Credits, Window};
    use channel::{Channel, Held, Ledger, Line};
    use endpoint::Endpoint;
    use endpoint::lane::Lane;
    use port::buffer::Queued;
    use verbs::{Completion, Posted};

    /// What each message touches, and what there is of each peer. A larger one is a decision: it costs
    /// cache lines, or memory times peers times queues.
    #[test]
    fn hot_objects_grow_by_decision_only() {
        let sizes = [
            ("Line", size_of::<Line>(), 8),
            ("Ledger", size_of::<Ledger>(), 72),
            ("Channel", size_of::<Channel>(), 128),
            ("Credits and Window", size_of::<(Credits, Window)>(), 18),
            ("Lane", size_of::<Lane>(), 200),
            ("Endpoint", size_of::<Endpoint<u64>>(), 384),
            ("Held", size_of::<Held<u64>>(), 64),
            ("Posted", size_of::<Posted>(), 40),
            ("Completion", size_of::<Completion>(), 48),
            ("Queued, a pending fragment", size_of::<Queued>(), 48),
            ("Delivery", size_of::<Delivery>(), 40),
        ];
        let grown: Vec<_> = sizes.iter().filter(|(_, is, was)| is != was).collect();
        assert!(grown.is_empty(), "bytes now and before: {grown:?}");
    }
}
