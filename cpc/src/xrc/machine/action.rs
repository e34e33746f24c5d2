//! What the machine wants done, and what it counts.

use verbs::{Psn, Qpn};

use super::path::PathId;
use crate::wire::Source;
use crate::wire::domain::Address;
use crate::wire::xrc::{Datagram, SrqNums};
use crate::wire::{CommId, Depth};
use crate::{ConnectError, EndpointKey, ProcessName};

/// What the driver has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "on the connection path only")]
pub enum Action {
    /// Make a send queue pair, in INIT, and answer with `sender_made`.
    MakeSender {
        /// What it is known by from now on.
        path: PathId,
    },
    /// Take the send queue pair to RTS and answer with `sender_raised`.
    RaiseSender {
        /// Which.
        path: PathId,
        /// The receive queue pair that it is connected to.
        receiver: Qpn,
        /// The PSN that it starts with.
        psn: Psn,
        /// The depth of the process that made the receive queue pair.
        depth: Depth,
        /// The port that it leads to.
        address: Address,
    },
    /// No link uses the send queue pair any more: destroy it.
    DropSender {
        /// Which.
        path: PathId,
    },
    /// Have a receive queue pair of the domain, and answer with `joined`.
    Join {
        /// Names the handle.
        link: CommId,
        /// For which of the peer's epochs, to be given back with the answer.
        epoch: u32,
        /// The queue pair; `None`: make one, in RTR.
        receiver: Option<Qpn>,
        /// The send queue pair at its other end.
        sender: Qpn,
        /// The PSN that this starts with.
        psn: Psn,
        /// The sender's depth.
        depth: Depth,
        /// The sender's port.
        address: Address,
    },
    /// Close a handle of a receive queue pair.
    Release {
        /// Which.
        link: CommId,
    },
    /// Send a datagram. It may be lost, the machine repeats it.
    Send {
        /// To whom.
        to: Source,
        /// What.
        datagram: Datagram,
    },
    /// Messages may go: tell the main thread.
    Connected {
        /// Which endpoint.
        key: EndpointKey,
        /// Over which send queue pair.
        path: PathId,
        /// To which shared receive queues.
        srqs: SrqNums,
        /// What they have to call themselves.
        label: u32,
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

/// Why there is no handle of a receive queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// There is none of that number, or it takes no messages any more.
    Gone,
    /// A verbs call failed.
    Verbs(String),
}

/// What the machine counts. "Should stay 0" is said where it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams taken in.
    pub received: u64,
    /// Datagrams sent, repetitions included.
    pub sent: u64,
    /// Repetitions sent. Should stay 0 on a fabric that loses nothing.
    pub repeated: u64,
    /// Datagrams that were not ours: wrong length, class, magic, sender. Should stay 0.
    pub foreign: u64,
    /// Datagrams of ours with impossible fields or of another version. Should stay 0.
    pub malformed: u64,
    /// Datagrams of a former incarnation or exchange.
    pub stale: u64,
    /// Requests of a later incarnation of a peer than we had been told of.
    pub relearned: u64,
    /// Inputs that change nothing.
    pub ignored: u64,
    /// Requests refused because the peer's queues differ. Should stay 0.
    pub layout_refused: u64,
    /// Requests of processes that we had no endpoint for.
    pub parked: u64,
    /// Send queue pairs made: one for each node, and one for each time that one broke.
    pub senders: u64,
    /// Receive queue pairs that this process has made, or taken a handle of.
    pub joined: u64,
    /// Requests that named a receive queue pair which was gone.
    pub gone: u64,
    /// Endpoints that came up.
    pub connected: u64,
    /// Endpoints given up. Should stay 0.
    pub failed: u64,
}

impl Stats {
    /// The counters by name.
    pub fn rows(&self) -> [(&'static str, u64); 15] {
        [
            ("xrc_received", self.received),
            ("xrc_sent", self.sent),
            ("xrc_repeated", self.repeated),
            ("xrc_foreign", self.foreign),
            ("xrc_malformed", self.malformed),
            ("xrc_stale", self.stale),
            ("xrc_relearned", self.relearned),
            ("xrc_ignored", self.ignored),
            ("xrc_layout_refused", self.layout_refused),
            ("xrc_parked", self.parked),
            ("xrc_senders", self.senders),
            ("xrc_joined", self.joined),
            ("xrc_gone", self.gone),
            ("xrc_connected", self.connected),
            ("xrc_failed", self.failed),
        ]
    }
}
