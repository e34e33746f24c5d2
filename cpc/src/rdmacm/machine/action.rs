//! What only rdmacm asks of its driver.

use verbs::Qpn;
use verbs::cm::Token;

use crate::EndpointKey;
use crate::wire::ip::Address;
use crate::wire::join::Join;
use crate::wire::refusal::Refusal;
use crate::wire::{Hello, Qpns};

pub use crate::event::First;

/// What the driver of rdmacm does for the machine: calls of `librdmacm` on the ids that it keeps by `Token`. Their outcome comes as an
/// `IdEvent`, a failed call as `IdEvent::Broken`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Make an id of this name and resolve the address of the endpoint's peer.
    Resolve { key: EndpointKey, id: Token, to: Address },
    /// Resolve the route.
    Route { id: Token },
    /// Make the endpoint's QPs, in INIT, and answer with `qps_created`. On iWARP new ones for each try.
    CreateQps { key: EndpointKey },
    /// Ask the peer, with `hello` as private data.
    Connect { id: Token, hello: Hello },
    /// Take the QPs to RTS with the attributes of the id, connected to the peer's, and answer with `qps_up`. On iWARP, where the
    /// device does that: tell the main thread which QPs they are.
    BringUp { key: EndpointKey, id: Token, remote: Qpns },
    /// Agree to the request, with `hello` as private data.
    Accept { id: Token, hello: Hello },
    /// iWARP: ask the peer for the connection of one more queue, with `join` as private data.
    Join { id: Token, join: Join },
    /// iWARP: agree to such a request, with this queue pair of ours.
    AcceptJoin { id: Token, qpn: Qpn },
    /// Our QPs are up: tell the peer.
    Establish { id: Token },
    /// Data have come: tell the connection manager.
    Notify { id: Token },
    /// Refuse the request, or the reply, with `why` as private data, and destroy the id.
    Refuse { id: Token, why: Refusal },
    /// Take the connection down, or agree to that.
    Disconnect { id: Token },
    /// Destroy the id.
    Close { id: Token },
    /// iWARP: tell the main thread who has to send first.
    Order { key: EndpointKey, first: First },
}
