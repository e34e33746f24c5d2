//! What the machine keeps of an endpoint and of its two links, and what can happen to a link.

use std::time::{Duration, Instant};

use verbs::Qpn;

use super::action::JoinError;
use super::path::PathId;
use crate::core::table::kinds;
use crate::wire::domain::Address;
use crate::wire::xrc::{Ask, Tell};
use crate::wire::{CommId, Depth, Dreq, Mra, Rej};
use crate::{EndpointKey, ProcessName, Timeline};

/// The peer's side of a link, as its ASK or TELL told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its id of the exchange.
    pub id: CommId,
    /// The queue pair at its end: the send queue pair of an ASK, the receive queue pair of a TELL.
    pub qpn: Qpn,
    /// Its RDMA read depth.
    pub depth: Depth,
    /// Which of the asker's attempts this is of.
    pub attempt: u32,
}

/// What a link that sends has been told when it came up; it stays while the link looks for another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
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

/// Where a link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "one a connection")]
pub(super) enum State {
    /// Out: wants to connect; waits for its turn, or for the connection to the node.
    Queued,
    /// Out: the send queue pair to the node is being made for it.
    Opening,
    /// Out: our ASK is out.
    Asking { tries: u32 },
    /// Out: the peer has told, the send queue pair is on its way to RTS.
    Rising { told: Tell },
    /// Out: messages may go.
    Up { remote: Remote },
    /// In: asked; a handle of the receive queue pair is on its way.
    Joining { remote: Remote },
    /// In: we have told.
    Told { remote: Remote, receiver: Qpn },
    /// Removed, our DREQ is out.
    Leaving { remote: Remote, tries: u32 },
    /// Gone, but late datagrams are answered.
    TimeWait { remote: Remote },
    /// Out: given up and reported; waits for its removal.
    Failed,
    /// Out: the peer has left and that is reported; waits for its removal.
    Left,
}

kinds! {
    /// `State` without its data: the rows of the table.
    pub enum StateKind: State {
        Queued, Opening, Asking, Rising, Up, Joining, Told, Leaving, TimeWait, Failed, Left
    }
}

impl State {
    /// The peer's side, where it is known.
    pub(super) fn remote(&self) -> Option<Remote> {
        match self {
            State::Rising { told } => Some(Remote::from(told)),
            State::Up { remote }
            | State::Joining { remote }
            | State::Told { remote, .. }
            | State::Leaving { remote, .. }
            | State::TimeWait { remote } => Some(*remote),
            State::Queued | State::Opening | State::Asking { .. } | State::Failed | State::Left => None,
        }
    }
}

impl Link {
    /// The peer's side, where it is known or has been.
    pub(super) fn remote(&self) -> Option<Remote> {
        self.state.remote().or(self.known.map(|known| known.remote))
    }
}

impl From<&Tell> for Remote {
    fn from(tell: &Tell) -> Remote {
        Remote { id: tell.local, qpn: tell.receiver, depth: tell.depth, attempt: tell.attempt }
    }
}

impl From<&Ask> for Remote {
    fn from(ask: &Ask) -> Remote {
        Remote { id: ask.local, qpn: ask.sender, depth: ask.depth, attempt: ask.attempt }
    }
}

/// What can happen to a link: the columns of the table.
#[derive(Debug)]
pub(super) enum Input<'a> {
    /// The send queue pair exists.
    Made,
    /// It can't be had.
    Unmade(String),
    /// The send queue pair is in RTS.
    Raised,
    /// It does not get there.
    Unraised(String),
    /// We have a handle of the receive queue pair.
    Joined(Qpn),
    /// We have none.
    Unjoined(JoinError),
    /// The main thread has found the send queue pair broken, and the endpoint is to go on.
    Renew,
    /// The main thread has removed the endpoint.
    Remove,
    /// A request of the peer that has not been seen before.
    AskNew(&'a Ask),
    /// The request that is being answered, again.
    AskDup,
    Tell(&'a Tell),
    Mra(&'a Mra),
    Rej(&'a Rej),
    Dreq(&'a Dreq),
    Drep,
    Timeout,
}

kinds! {
    /// `Input` without its data: the columns of the table.
    pub enum InputKind: Input<'_> {
        Made, Unmade, Raised, Unraised, Joined, Unjoined, Renew, Remove, AskNew, AskDup, Tell, Mra,
        Rej, Dreq, Drep, Timeout
    }
}

/// One direction between us and a peer. It outlives its endpoint until the peer has let go.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) key: EndpointKey,
    pub(super) peer: ProcessName,
    pub(super) address: Address,
    pub(super) label: u32,
    pub(super) direction: Direction,
    /// Our id of the exchange.
    pub(super) local: CommId,
    pub(super) state: State,
    /// Out: has been up.
    pub(super) known: Option<Known>,
    /// Out: the connection to the node that it uses.
    pub(super) path: Option<PathId>,
    /// Out: counts the paths that it has begun over, and those of all others.
    pub(super) attempt: u32,
    pub(super) deadline: Option<Instant>,
    /// Out: the peer has asked us not to repeat our ASK before then.
    pub(super) quiet_until: Option<Instant>,
    /// Holds one of the places for requests that wait for their first answer.
    pub(super) in_window: bool,
    /// Its end is that of a failed endpoint, and the peer is told so.
    pub(super) failed: bool,
    /// How often our request was begun anew.
    pub(super) renewals: u32,
    /// How long the peer says that it takes for an answer.
    pub(super) response: Duration,
    /// When the exchange began.
    pub(super) since: Instant,
}

/// An endpoint, as the machine knows it.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) peer: ProcessName,
    pub(super) address: Address,
    pub(super) label: u32,
    pub(super) outgoing: Option<usize>,
    pub(super) incoming: Option<usize>,
    /// The last exchange of the peer that we have told our queues in: its messages may have come.
    pub(super) told: Option<CommId>,
    /// The peer has left, and that is reported.
    pub(super) left: bool,
    /// The peer's end has failed: that is no leaving.
    pub(super) peer_failed: bool,
    /// It has failed here.
    pub(super) abandoned: bool,
    /// How long the peer says that it takes for an answer; zero before it has asked.
    pub(super) response: Duration,
    pub(super) steps: Timeline,
}
