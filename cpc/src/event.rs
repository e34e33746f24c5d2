//! What the helper thread tells the main thread.

use std::sync::Arc;

use verbs::{AsyncEvent, Posted, Qp, SrqNum};

use crate::{ConnectError, EndpointKey, ProcessName, StreamNum, Timeline};

/// Who has to send first on each queue pair of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// This side.
    Us,
    /// The other side.
    Peer,
}

/// News of a connection. For one endpoint they come in the order `QpsCreated`, `Agreed` (on iWARP in front of it), `Connected`, `Disconnected`; `Failed` may
/// come instead of any of them and is the last. Events of an endpoint that was removed meanwhile may still arrive: their key
/// has a generation that is no longer current.
#[derive(Debug)]
pub enum Event {
    /// The QPs exist, in queue order, and are in INIT; the receive for the clear-to-send is posted. Delivered before any of them goes
    /// to RTR, so a thread that drains the queue knows every QPN before a message can come in on it.
    QpsCreated { key: EndpointKey, qps: Vec<Arc<Qp>>, cts: Option<Posted> },
    /// X queues, instead of `QpsCreated` and `Connected`: messages may go. It comes again after each
    /// [`crate::Service::renew`].
    Routed { key: EndpointKey, route: Route },
    /// P and S queues: the stream of the connection, which both sides have agreed upon. It is the one that the endpoint was added with, or another one,
    /// with which both begin. Delivered before any of the QPs goes to RTR. It counts with `Connected`, or when something has come: the
    /// request that it answers may be one that its sender has given up since.
    Agreed { key: EndpointKey, stream: StreamNum },
    /// iWARP only, right before `Connected`: on each queue pair one side has to send first, and the other must not before that has
    /// arrived (MPA, RFC 5044).
    Order { key: EndpointKey, first: First },
    /// Both sides are up: the QPs are in RTS, and so are the peer's.
    Connected { key: EndpointKey },
    /// The connection did not come up, all retries included, or the peer's end of it has failed. Remove the endpoint; a new one may be added.
    Failed { key: EndpointKey, error: ConnectError },
    /// When the connection manager's steps happened; right before `Connected` or `Failed`.
    Timeline { key: EndpointKey, steps: Box<Timeline> },
    /// The peer has taken the connection down, or has started anew. Its QPs lead nowhere: remove the endpoint, and add a new one
    /// if there may be more to say.
    Disconnected { key: EndpointKey },
    /// The answer to [`crate::Service::unlist`], where the peer has neither asked nor answered: the endpoint is as if it had not been added.
    /// A request of its peer comes as [`Event::UnknownPeer`].
    Unlisted { key: EndpointKey },
    /// X queues: the answer to [`crate::Service::unlist`] where the peer has asked. The endpoint stays; messages of the peer may have come, or be
    /// about to.
    Asked { key: EndpointKey },
    /// X queues: the request that [`Event::Asked`] told of has been given up by the peer, which has removed its endpoint. It may ask again,
    /// from another one; nothing has come over the direction that it had asked for. The endpoint stays, and may be unlisted again.
    Retracted { key: EndpointKey },
    /// A process that has no usable endpoint here wants to connect. Its request waits until an endpoint is added or a
    /// deadline passes. To be ignored if an endpoint for that process has been added since. `alternate`: it asks at the alternate port.
    UnknownPeer { peer: ProcessName, alternate: bool },
    /// The device of the port has said something. It comes in the order of the queue: an event of a
    /// queue pair is in front of the `QpsCreated` of a later one that has the same number.
    Device { event: AsyncEvent },
    /// The same of a receive queue pair of an XRC domain. The device tells each handle of it in
    /// each process; this comes once, in the process that made the queue pair.
    Receiver { event: AsyncEvent },
}

/// The way to a process over XRC.
#[derive(Clone, Debug)]
pub struct Route {
    /// Names the send queue pair: routes to processes of one node have the same, until it breaks.
    pub path: u32,
    /// The send queue pair, in RTS.
    pub qp: Arc<Qp>,
    /// The shared receive queue of each queue.
    pub srqs: Vec<SrqNum>,
    /// What our messages have to call themselves there.
    pub label: u32,
}
