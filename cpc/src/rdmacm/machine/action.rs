//! What only rdmacm asks of its driver.

use verbs::Qpn;
use verbs::cm::Token;

use crate::EndpointKey;
use crate::wire::ip::Address;
use crate::wire::join::Join;
use crate::wire::refusal::Refusal;
use crate::wire::{Hello, Qpns};

pub use crate::event::First;

/// What only rdmacm asks of its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Make an id and resolve the peer's address.
    Resolve {
        /// The id's name.
        id: Token,
        /// Where to.
        to: Address,
    },
    /// Resolve the route.
    Route {
        /// The id.
        id: Token,
    },
    /// Make the endpoint's QPs, in INIT, and answer with `qps_created`. On iWARP new ones for each try.
    CreateQps {
        /// The endpoint.
        key: EndpointKey,
    },
    /// Ask the peer.
    Connect {
        /// The id.
        id: Token,
        /// The private data.
        hello: Hello,
    },
    /// Take the QPs to RTS with the attributes of the id, and answer with `qps_up`. On iWARP, where the device does that: tell the main
    /// thread which QPs they are.
    BringUp {
        /// The endpoint.
        key: EndpointKey,
        /// Its id.
        id: Token,
        /// The peer's QPs, in queue order.
        remote: Qpns,
    },
    /// Agree to the request.
    Accept {
        /// The id.
        id: Token,
        /// The private data.
        hello: Hello,
    },
    /// iWARP: ask the peer for the connection of one more queue.
    Join {
        /// The id.
        id: Token,
        /// The private data.
        join: Join,
    },
    /// iWARP: agree to such a request.
    AcceptJoin {
        /// The id.
        id: Token,
        /// Our queue pair.
        qpn: Qpn,
    },
    /// Our QPs are up: tell the peer.
    Establish {
        /// The id.
        id: Token,
    },
    /// Data have come: tell the connection manager.
    Notify {
        /// The id.
        id: Token,
    },
    /// Refuse the request, or the reply, and destroy the id.
    Refuse {
        /// The id.
        id: Token,
        /// Why.
        why: Refusal,
    },
    /// Take the connection down, or agree to that.
    Disconnect {
        /// The id.
        id: Token,
    },
    /// Destroy the id.
    Close {
        /// The id.
        id: Token,
    },
    /// iWARP: tell the main thread who has to send first.
    Order {
        /// The endpoint.
        key: EndpointKey,
        /// The side.
        first: First,
    },
}
