//! What a machine asks of its driver.

use crate::{ConnectError, EndpointKey, ProcessName, StreamNum};

/// What a driver has to do, in this order. `C` is what only one manager asks for; all else goes to
/// the main thread.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "on the connection path only")]
pub enum Action<C> {
    /// To be carried out by the driver.
    Call(C),
    /// What both sides begin or go on with.
    Agreed { key: EndpointKey, stream: StreamNum },
    /// Both sides are up.
    Connected { key: EndpointKey },
    /// The connection did not come up, or the peer's end has failed.
    Failed { key: EndpointKey, error: ConnectError },
    /// The peer has left.
    Disconnected { key: EndpointKey },
    /// Nothing was under way, and the endpoint is known no more.
    Unlisted { key: EndpointKey },
    /// X queues: the endpoint is not unlisted, for its peer has asked.
    Asked { key: EndpointKey },
    /// X queues: the peer has given up the request that `Asked` told of.
    Retracted { key: EndpointKey },
    /// A process without a usable endpoint here wants to connect.
    UnknownPeer { peer: ProcessName },
}
