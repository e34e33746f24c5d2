//! What the machine wants done, and what it counts.

use verbs::Qpn;
use verbs::cm::Token;

use crate::wire::ip::Address;
use crate::wire::join::Join;
use crate::wire::refusal::Refusal;
use crate::wire::{Hello, Qpns};
use crate::{ConnectError, EndpointKey, ProcessName};

pub use crate::event::First;

/// What the driver has to do, in this order. A call that fails is answered with `broken`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make an id and resolve the peer's address.
    Resolve {
        /// The id's name.
        id: Token,
        /// Where to.
        to: Address,
    },
    /// Resolve the route.
    Route {
        /// Which id.
        id: Token,
    },
    /// Make the endpoint's QPs, in INIT, and answer with `qps_created`. On iWARP new ones for each try.
    CreateQps {
        /// Which endpoint.
        key: EndpointKey,
    },
    /// Ask the peer.
    Connect {
        /// Which id.
        id: Token,
        /// The private data.
        hello: Hello,
    },
    /// Take the QPs to RTS with the attributes of the id, and answer with `qps_up`. On iWARP, where the device does that: tell the main
    /// thread which QPs they are.
    BringUp {
        /// Which endpoint.
        key: EndpointKey,
        /// Its id.
        id: Token,
        /// The peer's QPs, in queue order.
        remote: Qpns,
    },
    /// Agree to the request.
    Accept {
        /// Which id.
        id: Token,
        /// The private data.
        hello: Hello,
    },
    /// iWARP: ask the peer for the connection of one more queue.
    Join {
        /// Which id.
        id: Token,
        /// The private data.
        join: Join,
    },
    /// iWARP: agree to such a request.
    AcceptJoin {
        /// Which id.
        id: Token,
        /// Our queue pair.
        qpn: Qpn,
    },
    /// Our QPs are up: tell the peer.
    Establish {
        /// Which id.
        id: Token,
    },
    /// Data have come: tell the connection manager.
    Notify {
        /// Which id.
        id: Token,
    },
    /// Refuse the request, or the reply, and destroy the id.
    Refuse {
        /// Which id.
        id: Token,
        /// Why.
        why: Refusal,
    },
    /// Take the connection down, or agree to that.
    Disconnect {
        /// Which id.
        id: Token,
    },
    /// Destroy the id.
    Close {
        /// Which id.
        id: Token,
    },
    /// iWARP: tell the main thread who has to send first.
    Order {
        /// Which endpoint.
        key: EndpointKey,
        /// Who.
        first: First,
    },
    /// Both sides are up: tell the main thread.
    Connected {
        /// Which endpoint.
        key: EndpointKey,
    },
    /// The connection did not come up: tell the main thread.
    Failed {
        /// Which endpoint.
        key: EndpointKey,
        /// Why, and what to do.
        error: ConnectError,
    },
    /// The peer has left: tell the main thread.
    Disconnected {
        /// Which endpoint.
        key: EndpointKey,
    },
    /// A process that we have no usable endpoint for wants to connect: tell the main thread.
    UnknownPeer {
        /// Who.
        peer: ProcessName,
    },
}

/// What the machine counts. "Should stay 0" is said where it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests sent.
    pub asked: u64,
    /// Requests taken in.
    pub requests: u64,
    /// New tries after a failure. Should stay 0.
    pub retried: u64,
    /// Requests and replies with private data that make no sense. Should stay 0.
    pub malformed: u64,
    /// Requests that came after their sender had answered ours.
    pub late: u64,
    /// Events that say nothing new.
    pub ignored: u64,
    /// Crossing requests.
    pub raced: u64,
    /// Requests refused because the peer's queues differ. Should stay 0.
    pub layout_refused: u64,
    /// Requests of processes that we had no endpoint for.
    pub parked: u64,
    /// Connections that came up.
    pub connected: u64,
    /// Connections given up. Should stay 0.
    pub failed: u64,
    /// Confirmations that data stood in for.
    pub first_data: u64,
}

impl Stats {
    /// The counters by name.
    pub fn rows(&self) -> [(&'static str, u64); 12] {
        [
            ("rdmacm_asked", self.asked),
            ("rdmacm_requests", self.requests),
            ("rdmacm_retried", self.retried),
            ("rdmacm_malformed", self.malformed),
            ("rdmacm_late", self.late),
            ("rdmacm_ignored", self.ignored),
            ("rdmacm_raced", self.raced),
            ("rdmacm_layout_refused", self.layout_refused),
            ("rdmacm_parked", self.parked),
            ("rdmacm_connected", self.connected),
            ("rdmacm_failed", self.failed),
            ("rdmacm_first_data", self.first_data),
        ]
    }
}
