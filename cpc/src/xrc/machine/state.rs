//! What the machine keeps of an endpoint and of its two links, and what can happen to a link.

use std::time::{Duration, Instant};

use verbs::Qpn;

use super::Xrc;
use super::action::{JoinError, PathId};
use crate::core::machine::Link;
use crate::core::table::kinds;
use crate::wire::domain::Address;
use crate::wire::listener::Facing;
use crate::wire::xrc::{Rep, Req};
use crate::wire::{CommId, Depth, Dreq, Mra, Rej};

/// The peer's side of a link, as its REQ or REP told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its id of the exchange.
    pub id: CommId,
    /// The queue pair at its end: the send queue pair of a REQ, the receive queue pair of a REP.
    pub qpn: Qpn,
    /// RDMA READs and atomics of that queue pair.
    pub depth: Depth,
    /// Which of the requester's epochs this is of.
    pub epoch: u32,
}

/// What the REP said when the link came up; it stays while the link looks for another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub(super) remote: Remote,
    /// Names the peer's endpoint: another one has not had our messages.
    pub(super) label: u32,
}

/// Which way a link's messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From us: we ask.
    Out,
    /// To us: we are asked.
    In,
}

kinds! {
    /// Where a link stands: the rows of the table. A link has one direction, so an endpoint has up to two.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(clippy::large_enum_variant, reason = "one a connection")]
    pub enum State, StateKind {
        /// Out: wants to connect; waits for its turn, or for the connection to the node.
        Queued,
        /// Out: the send queue pair to the node is being made for it.
        Creating,
        /// Out: our REQ is out.
        ReqSent,
        /// Out: the REP is in, the send queue pair is on its way to RTS.
        ToRts { rep: Rep },
        /// Out: messages may go.
        Connected { remote: Remote },
        /// In: asked; a handle of the receive queue pair is on its way.
        Joining { remote: Remote },
        /// In: our REP is out.
        RepSent { remote: Remote, receiver: Qpn },
        /// Removed, our DREQ is out.
        DreqSent { remote: Remote },
        /// Gone, but late datagrams are answered.
        TimeWait { remote: Remote },
        /// Out: given up and reported; waits for its removal.
        Failed,
        /// Out: the peer has left and that is reported; waits for its removal.
        Disconnected,
    }
}

impl State {
    /// The peer's side, where it is known.
    pub(super) fn remote(&self) -> Option<Remote> {
        match self {
            State::ToRts { rep } => Some(Remote::from(rep)),
            State::Connected { remote }
            | State::Joining { remote }
            | State::RepSent { remote, .. }
            | State::DreqSent { remote, .. }
            | State::TimeWait { remote } => Some(*remote),
            State::Queued | State::Creating | State::ReqSent | State::Failed | State::Disconnected => None,
        }
    }
}

impl Link<Xrc> {
    /// The peer's side, where it is known or has been.
    pub(super) fn remote(&self) -> Option<Remote> {
        self.state.remote().or(self.known.map(|known| known.remote))
    }
}

impl From<&Rep> for Remote {
    fn from(rep: &Rep) -> Remote {
        Remote { id: rep.local, qpn: rep.receiver, depth: rep.depth, epoch: rep.epoch }
    }
}

impl From<&Req> for Remote {
    fn from(req: &Req) -> Remote {
        Remote { id: req.head.local, qpn: req.sender, depth: req.head.depth, epoch: req.epoch }
    }
}

kinds! {
    /// What can happen to a link: the columns of the table. A datagram has been found to be this link's, and of the exchange at hand, before.
    #[derive(Debug)]
    pub enum Input<'a>, InputKind {
        /// The send queue pair exists.
        SenderCreated,
        /// The send queue pair cannot be had, and why.
        SenderFailed(String),
        /// The send queue pair is in RTS.
        SenderUp,
        /// The send queue pair does not get there, and why.
        SenderDown(String),
        /// We have a handle of the receive queue pair.
        ReceiverHeld(Qpn),
        /// We have no handle of a receive queue pair, and why.
        NoReceiverHeld(JoinError),
        /// The main thread has found the send queue pair broken, and the endpoint is to go on.
        Renew,
        /// The main thread has removed the endpoint.
        Remove,
        /// A request of the peer that has not been seen before.
        ReqNew(&'a Req),
        /// The request that is being answered, again.
        ReqDup,
        /// The peer has agreed.
        Rep(&'a Rep),
        /// The peer asks for more time.
        Mra(&'a Mra),
        /// The peer has refused, or has given up.
        Rej(&'a Rej),
        /// The peer lets go of the link.
        Dreq(&'a Dreq),
        /// The answer to our DREQ.
        Drep,
        /// Its deadline has passed.
        Timeout,
    }
}

/// What xrc keeps of a link: one direction between us and a peer. It outlives its endpoint until the peer has let go.
#[derive(Debug)]
pub struct Own {
    pub(super) address: Facing<Address>,
    pub(super) label: u32,
    pub(super) direction: Direction,
    /// Out: has been up.
    pub(super) known: Option<Known>,
    /// Out: the connection to the node that it uses.
    pub(super) path: Option<PathId>,
    /// Out: counts the paths that it has begun over, and those of all others.
    pub(super) epoch: u32,
    /// Out: the peer has asked us not to repeat our REQ before then.
    pub(super) quiet_until: Option<Instant>,
}

impl Own {
    pub(super) fn new(endpoint: &Endpoint, direction: Direction) -> Own {
        let (address, label) = (endpoint.address, endpoint.label);
        Own { address, label, direction, known: None, path: None, epoch: 0, quiet_until: None }
    }
}

/// One peer: its links in both directions, and what is known of its exchanges.
#[derive(Debug)]
pub struct Endpoint {
    pub(super) address: Facing<Address>,
    pub(super) label: u32,
    pub(super) outgoing: Option<usize>,
    pub(super) incoming: Option<usize>,
    /// The last exchange of the peer that we have sent a REP in: its messages may have come.
    pub(super) replied: Option<CommId>,
    /// The peer has left, and that is reported.
    pub(super) left: bool,
    /// The main thread has been told that the peer has asked.
    pub(super) told_asked: bool,
    /// The peer's end has failed: that is no leaving.
    pub(super) peer_failed: bool,
    /// It has failed here.
    pub(super) abandoned: bool,
    /// How long the peer says that it takes for an answer; zero before it has asked.
    pub(super) response: Duration,
}

impl Endpoint {
    pub(super) fn new(address: Facing<Address>, label: u32) -> Endpoint {
        Endpoint {
            address,
            label,
            outgoing: None,
            incoming: None,
            replied: None,
            left: false,
            told_asked: false,
            peer_failed: false,
            abandoned: false,
            response: Duration::ZERO,
        }
    }

    /// True if nothing is under way from us.
    pub(super) fn is_idle(&self) -> bool {
        self.outgoing.is_none() && !self.left && !self.abandoned
    }

    /// Its links, in the order of [`Direction`].
    pub(super) fn links(&self) -> [Option<usize>; 2] {
        [self.outgoing, self.incoming]
    }

    pub(super) fn link_mut(&mut self, direction: Direction) -> &mut Option<usize> {
        match direction {
            Direction::Out => &mut self.outgoing,
            Direction::In => &mut self.incoming,
        }
    }
}
