//! What the machine keeps of an endpoint, and what can happen to it.

use std::fmt;

use verbs::cm::Token;

use crate::StreamNum;
use crate::core::machine::Role;
use crate::core::table::{kinds, qp_inputs};
use crate::wire::ip::Address;
use crate::wire::join::Join;
use crate::wire::refusal::Refusal;
use crate::wire::{Hello, Qpns};

/// A peer's request that is being answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    pub(super) id: Token,
    pub(super) qpns: Qpns,
    pub(super) stream: StreamNum,
}

/// A peer's request for one of an endpoint's further connections.
#[derive(Clone, Copy, Debug)]
pub struct JoinRequest {
    pub(super) id: Token,
    pub(super) join: Join,
}

kinds! {
    /// Where a link stands: the rows of the table.
    #[derive(Clone, Debug)]
    pub enum State, StateKind {
        /// Known, nothing under way.
        Idle,
        /// Wants to connect, waits for its turn.
        Queued,
        /// The peer's address is being resolved.
        Resolving,
        /// The route is.
        Routing,
        /// Its QPs are being made; for the peer's request if there is one, else for ours.
        Creating { request: Option<Incoming> },
        /// Our request is out.
        ReqSent,
        /// The peer has refused, because its own request stands: waits for that.
        Yielding,
        /// A try has failed; waits for the next.
        Pausing,
        /// Both sides' values are known, the QPs are on their way to RTS. `early`: data have come already.
        ToRts { remote: Qpns, role: Role, early: bool },
        /// QPs are RTS, we have accepted.
        RepSent { remote: Qpns },
        /// iWARP: the first queue's connection is up, the others are on their way.
        Joining { remote: Qpns, role: Role },
        /// Both sides are up.
        Connected { remote: Qpns },
        /// Removed, or abandoned and then kept, to refuse; waits for the peer to agree.
        DreqSent,
        /// Given up and reported; waits for its removal.
        Failed,
        /// The peer has left and that is reported; waits for its removal.
        Disconnected,
    }
}

impl State {
    /// The QPs that ours are connected to, or are about to be.
    pub(super) fn remote(&self) -> Option<&Qpns> {
        match self {
            State::Creating { request } => request.as_ref().map(|request| &request.qpns),
            State::ToRts { remote, .. }
            | State::RepSent { remote }
            | State::Joining { remote, .. }
            | State::Connected { remote } => Some(remote),
            _ => None,
        }
    }
}

kinds! {
    /// What can happen to a link: the columns of the table. An event of an id has been found to be this link's before.
    #[derive(Debug)]
    pub enum Input<'a>, InputKind {
        /// There is something to send.
        Connect,
        /// The main thread has removed the endpoint.
        Remove,
        /// It is about to be removed.
        Unlist,
        /// Our end has failed.
        Abandon,
        /// Data have come in on its QPs.
        FirstData,
        /// The peer's address is resolved.
        AddrResolved,
        /// The route to the peer is known.
        RouteResolved,
        /// Its QPs exist, in INIT.
        QpsMade(Qpns),
        /// Its QPs cannot be had, and why.
        QpsFailed(String),
        /// Its QPs are in RTS.
        QpsUp,
        /// Its QPs do not get there, and why.
        QpsDown(String),
        /// The peer asks.
        Request(Incoming),
        /// The peer has agreed.
        Response(&'a Hello),
        /// What the peer said makes no sense.
        Malformed,
        /// The connection manager reports the connection established.
        Established,
        /// Our request or reply was refused.
        Refused(&'a Refused),
        /// The exchange, or the connection, is broken, and why.
        Broken(&'a str),
        /// Our confirmation has not gone to the peer, and why.
        Unconfirmed(&'a str),
        /// The peer has taken the connection down, or has agreed to that.
        Disconnected,
        /// Its deadline has passed.
        Timeout,
        /// The peer asks for the connection of a further queue.
        Join(JoinRequest),
        /// The connection of this queue is up.
        StreamUp(usize),
        /// That of one is not to be had, or lost, and why.
        StreamLost(String),
    }
}

qp_inputs!(Input<'_>);

/// What a link of rdmacm has beside its state.
#[derive(Debug)]
pub struct Own {
    pub(super) address: Address,
    /// The id of the exchange, or of the connection.
    pub(super) id: Option<Token>,
    /// iWARP: the connections of the queues behind the first.
    pub(super) streams: Vec<Stream>,
    /// iWARP: the peer's request, which stands, until ours is refused.
    pub(super) crossing: Option<Incoming>,
    /// Our QPs, once they are made.
    pub(super) qpns: Option<Qpns>,
    /// This side wants the connection, so a request of the peer that comes to nothing is not the end.
    pub(super) wanted: bool,
    /// A request of the peer's was refused, because ours stands.
    pub(super) crossed: bool,
}

impl Own {
    pub(super) fn new(address: Address) -> Own {
        Own {
            address,
            id: None,
            streams: Vec::new(),
            crossing: None,
            qpns: None,
            wanted: false,
            crossed: false,
        }
    }
}

/// iWARP: the connection of a queue behind the first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stream {
    pub(super) id: Option<Token>,
    pub(super) up: bool,
}

/// How a request or reply was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// By the peer's machine, which says why.
    ByPeer(Refusal),
    /// No process listens there.
    NotListening,
    /// By the connection manager, or by another program: its reason.
    Other(i32),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::ByPeer(why) => why.fmt(f),
            Refused::NotListening => f.write_str("no process listens at its address"),
            Refused::Other(reason) => write!(f, "the connection manager's reason is {reason}"),
        }
    }
}
