//! What the machine keeps of an endpoint, and what can happen to it.

use std::time::{Duration, Instant};

use verbs::{Gid, Lid, Psn, Qpn};

use super::Source;
use crate::core::table::kinds;
use crate::wire::listener::Address;
use crate::wire::{CommId, Depth, Dreq, Hello, Incarnation, Mra, Qpns, Rej, Rep, Req, Rtu};
use crate::{EndpointKey, ProcessName, Timeline};

/// The peer's side of a connection, as its REQ or REP told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its id of the exchange.
    pub id: CommId,
    /// Its queue pairs, in queue order.
    pub qpns: Qpns,
    /// The PSN its QPs start with.
    pub psn: Psn,
    /// Its RDMA read depth.
    pub depth: Depth,
}

impl Remote {
    pub(super) fn new(id: CommId, hello: &Hello, psn: Psn, depth: Depth) -> Remote {
        Remote { id, qpns: hello.qpns, psn, depth }
    }
}

/// A queue pair of a peer: its port and number. No two processes have the same at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Far {
    pub(super) lid: Lid,
    pub(super) gid: Gid,
    pub(super) qpn: Qpn,
}

impl Far {
    pub(super) fn of(address: &Address, qpn: Qpn) -> Far {
        Far { lid: address.lid, gid: address.gid, qpn }
    }

    pub(super) fn of_req(req: &Req) -> Far {
        Far { lid: req.path.local_lid, gid: req.path.local_gid, qpn: req.hello.qpns.first() }
    }
}

/// Who opened the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This side: it sent the REQ that counts.
    Active,
    /// The peer.
    Passive,
}

/// Where an endpoint stands. Names in brackets are the specification's (IBTA 12.9.7).
#[derive(Clone, Debug)]
pub(super) enum State {
    /// Known, nothing under way. [Idle / Listen]
    Idle,
    /// Wants to connect, waits for its turn.
    Queued,
    /// Its QPs are being made; for the peer's request if there is one, else for ours.
    Creating { request: Option<Remote> },
    /// Our REQ is out. [REQ Sent]
    ReqSent {
        tries: u32,
        /// The incarnation that it went to.
        asked: Incarnation,
    },
    /// Both sides' values are known, the QPs are on their way to RTS. `early`: data have come already.
    ToRts { remote: Remote, role: Role, early: bool },
    /// QPs are RTS, our REP is out. [REP Sent]
    RepSent { remote: Remote, tries: u32 },
    /// Both sides are up. [Established]
    Connected { remote: Remote, role: Role },
    /// Removed or abandoned, our DREQ is out. [DREQ Sent]
    DreqSent { remote: Remote, tries: u32 },
    /// Gone, but late datagrams are answered. [Timewait]
    TimeWait { remote: Remote },
    /// Given up and reported; waits for its removal.
    Failed,
    /// The peer has left and that is reported; waits for its removal.
    Disconnected,
}

kinds! {
    /// `State` without its data: the rows of the table.
    pub enum StateKind: State {
        Idle, Queued, Creating, ReqSent, ToRts, RepSent, Connected, DreqSent, TimeWait, Failed, Disconnected
    }
}

impl State {
    /// The peer's side, where it is known.
    pub(super) fn remote(&self) -> Option<&Remote> {
        match self {
            State::Creating { request } => request.as_ref(),
            State::ToRts { remote, .. }
            | State::RepSent { remote, .. }
            | State::Connected { remote, .. }
            | State::DreqSent { remote, .. }
            | State::TimeWait { remote } => Some(remote),
            State::Idle | State::Queued | State::ReqSent { .. } | State::Failed | State::Disconnected => None,
        }
    }
}

/// What can happen to an endpoint: the columns of the table.
#[derive(Debug)]
pub(super) enum Input<'a> {
    Connect,
    Remove,
    /// Our end has failed.
    Abandon,
    FirstData,
    QpsMade(Qpns),
    QpsFailed(String),
    QpsUp,
    QpsDown(String),
    /// A request of the peer that has not been seen before.
    ReqNew(&'a Req, Source),
    /// The request that is being answered, again.
    ReqDup,
    /// A request of the peer whose queues are not ours.
    ReqUnlike(&'a Req),
    Rep(&'a Rep),
    Rtu(&'a Rtu),
    Mra(&'a Mra),
    Rej(&'a Rej),
    Dreq(&'a Dreq),
    Drep,
    /// Another process has the queue pair that this one is connected to.
    Displaced,
    Timeout,
}

kinds! {
    /// `Input` without its data: the columns of the table.
    pub enum InputKind: Input<'_> {
        Connect, Remove, Abandon, FirstData, QpsMade, QpsFailed, QpsUp, QpsDown, ReqNew, ReqDup,
        ReqUnlike, Rep, Rtu, Mra, Rej, Dreq, Drep, Displaced, Timeout
    }
}

/// An endpoint, as the machine knows it.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) key: EndpointKey,
    pub(super) peer: ProcessName,
    pub(super) address: Address,
    /// Our id of the exchange.
    pub(super) local: CommId,
    /// The PSN our QPs start with.
    pub(super) psn: Psn,
    /// Our QPs, once they are made.
    pub(super) qpns: Option<Qpns>,
    pub(super) state: State,
    pub(super) deadline: Option<Instant>,
    /// How long the peer says that it takes for an answer.
    pub(super) response: Duration,
    /// Where `Machine::far` has it, once it is connected.
    pub(super) far: Option<Far>,
    /// Holds one of the places for requests that wait for their first answer.
    pub(super) in_window: bool,
    /// Our end has failed, and the peer is to be told so; then the endpoint waits for its removal.
    pub(super) abandoned: bool,
    /// How often our request was begun anew because the peer had started anew.
    pub(super) renewals: u32,
    /// When the exchange began.
    pub(super) since: Instant,
    /// When its steps happened.
    pub(super) steps: Timeline,
}

impl Endpoint {
    /// True if the endpoint deals with the peer's exchange `id`.
    pub(super) fn is_with(&self, id: CommId) -> bool {
        self.state.remote().is_some_and(|remote| remote.id == id)
    }
}
