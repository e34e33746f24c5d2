//! What the machine keeps of an endpoint, and what can happen to it.

use verbs::{Gid, Lid, Psn, Qpn};

use super::Ibcm;
use crate::StreamNum;
use crate::core::machine::{Link, Role};
use crate::core::table::{kinds, qp_inputs};
use crate::exchange::Received;
use crate::wire::listener::{Address, Facing};
use crate::wire::{CommId, Depth, Dreq, Hello, Incarnation, Mra, Qpns, Rej, Rep, Req, Rtu};

/// The peer's side of a connection, as its REQ or REP told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its id of the exchange.
    pub id: CommId,
    /// Its queue pairs, in queue order.
    pub qpns: Qpns,
    /// The PSN that they start with.
    pub psn: Psn,
    /// RDMA READs and atomics that they serve and issue at a time.
    pub depth: Depth,
    /// The stream that it goes on with (REQ), or that both sides have agreed upon (REP).
    pub stream: StreamNum,
}

impl Remote {
    pub(super) fn new(id: CommId, hello: &Hello, psn: Psn, depth: Depth) -> Remote {
        Remote { id, qpns: hello.qpns, psn, depth, stream: hello.stream }
    }
}

/// A queue pair of a peer: its port and number. No two processes have the same at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteQp {
    pub(super) lid: Lid,
    pub(super) gid: Gid,
    pub(super) qpn: Qpn,
}

impl RemoteQp {
    pub(super) fn of(address: &Address, qpn: Qpn) -> RemoteQp {
        RemoteQp { lid: address.lid, gid: address.gid, qpn }
    }

    pub(super) fn of_req(req: &Req) -> RemoteQp {
        RemoteQp { lid: req.head.path.local_lid, gid: req.head.path.local_gid, qpn: req.hello.qpns.first() }
    }
}

kinds! {
    /// Where an endpoint stands. Names in brackets are the specification's (IBTA 12.9.7).
    #[derive(Clone, Debug)]
    pub enum State, StateKind {
        /// Known, nothing under way. [Idle / Listen]
        Idle,
        /// Wants to connect, waits for its turn.
        Queued,
        /// Its QPs are being made; for the peer's request if there is one, else for ours.
        Creating { request: Option<Remote> },
        /// Our REQ is out; it went to this incarnation. [REQ Sent]
        ReqSent { asked: Incarnation },
        /// Both sides' values are known, the QPs are on their way to RTS. `early`: data have come already.
        ToRts { remote: Remote, role: Role, early: bool },
        /// QPs are RTS, our REP is out. [REP Sent]
        RepSent { remote: Remote },
        /// Both sides are up. [Established]
        Connected { remote: Remote, role: Role },
        /// Removed or abandoned, our DREQ is out. [DREQ Sent]
        DreqSent { remote: Remote },
        /// Gone, but late datagrams are answered. [Timewait]
        TimeWait { remote: Remote },
        /// Given up and reported; waits for its removal.
        Failed,
        /// The peer has left and that is reported; waits for its removal.
        Disconnected,
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

kinds! {
    /// What can happen to a link: the columns of the table. A datagram has been found to be this link's, and of the exchange at hand, before.
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
        /// Its QPs exist, in INIT.
        QpsMade(Qpns),
        /// Its QPs cannot be had, and why.
        QpsFailed(String),
        /// Its QPs are in RTS.
        QpsUp,
        /// Its QPs do not get there, and why.
        QpsDown(String),
        /// A request of the peer that has not been seen before.
        ReqNew(&'a Received<Req>),
        /// The request that is being answered, again.
        ReqDup,
        /// A request of the peer whose queues are not ours.
        ReqUnlike(&'a Req),
        /// The peer has agreed.
        Rep(&'a Rep),
        /// The peer has our REP and is up.
        Rtu(&'a Rtu),
        /// The peer asks for more time.
        Mra(&'a Mra),
        /// The peer has refused, or has given up.
        Rej(&'a Rej),
        /// The peer takes the connection down.
        Dreq(&'a Dreq),
        /// The answer to our DREQ.
        Drep,
        /// Another process has the queue pair that this one is connected to.
        Displaced,
        /// Its deadline has passed.
        Timeout,
    }
}

qp_inputs!(Input<'_>);

/// What a link of ibcm has beside the exchange that it shares with xrc.
#[derive(Debug)]
pub struct Own {
    pub(super) address: Facing<Address>,
    /// The PSN our QPs start with.
    pub(super) psn: Psn,
    /// Our QPs, once they are made.
    pub(super) qpns: Option<Qpns>,
    /// Where `Ibcm::remote_qps` has it, once it is connected.
    pub(super) remote_qp: Option<RemoteQp>,
}

impl Own {
    pub(super) fn new(address: Facing<Address>, psn: Psn) -> Own {
        Own { address, psn, qpns: None, remote_qp: None }
    }
}

impl Link<Ibcm> {
    /// True if the link deals with the peer's exchange `id`.
    pub(super) fn is_with(&self, id: CommId) -> bool {
        self.state.remote().is_some_and(|remote| remote.id == id)
    }
}
