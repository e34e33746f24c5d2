//! What only xrc asks of its driver.

use verbs::{Psn, Qpn};

use crate::EndpointKey;
use crate::wire::Source;
use crate::wire::domain::Address;
use crate::wire::xrc::{Datagram, SrqNums};
use crate::wire::{CommId, Depth};

/// Names a send queue pair of this process, once and for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);

/// What only xrc asks of its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "on the connection path only")]
pub enum Call {
    /// Make a send queue pair, in INIT, and answer with `sender_made`.
    MakeSender {
        /// What it is known by from now on.
        path: PathId,
    },
    /// Take the send queue pair to RTS and answer with `sender_raised`.
    RaiseSender {
        /// Its name.
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
        /// Its name.
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
        /// Its name.
        link: CommId,
    },
    /// Send a datagram. It may be lost, the machine repeats it.
    Send {
        /// Its receiver.
        to: Source,
        /// What it says.
        datagram: Datagram,
    },
    /// Messages may go: tell the main thread.
    Route {
        /// The endpoint.
        key: EndpointKey,
        /// Over which send queue pair.
        path: PathId,
        /// To which shared receive queues.
        srqs: SrqNums,
        /// What they have to call themselves.
        label: u32,
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
