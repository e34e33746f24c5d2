//! What only xrc asks of its driver.

use verbs::{Psn, Qpn};

use crate::EndpointKey;
use crate::wire::Source;
use crate::wire::domain::Address;
use crate::wire::listener::Facing;
use crate::wire::xrc::{Datagram, SrqNums};
use crate::wire::{CommId, Depth};

/// Names a send queue pair of this process, once and for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);

/// What the driver of xrc does for the machine, besides what all managers ask for. An answer, where one is named, is due whether the call
/// works or fails.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "on the connection path only")]
pub enum Call {
    /// Make a send queue pair, in INIT, and answer with `sender_made`.
    MakeSender { path: PathId },
    /// Take the send queue pair to RTS, starting with `psn` and connected to this receive queue pair of a process at `address`,
    /// which has the `depth`; answer with `sender_raised`.
    RaiseSender { path: PathId, receiver: Qpn, psn: Psn, depth: Depth, address: Facing<Address> },
    /// No link uses the send queue pair any more: destroy it.
    DropSender { path: PathId },
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
        /// The PSN that `sender` starts with.
        psn: Psn,
        /// RDMA READs and atomics of `sender`.
        depth: Depth,
        /// The peer, whose port `sender` is at.
        address: Facing<Address>,
    },
    /// Close the handle of a receive queue pair that [`Call::Join`] has given this name.
    Release { link: CommId },
    /// Send a datagram. It may be lost, the machine repeats it.
    Send { to: Source, datagram: Datagram },
    /// Messages may go: tell the main thread over which send queue pair, to which shared receive queues, and what they have to
    /// call themselves.
    Route { key: EndpointKey, path: PathId, srqs: SrqNums, label: u32 },
}

/// Why there is no handle of a receive queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// There is none of that number, or it takes no messages any more.
    Gone,
    /// A verbs call failed.
    Verbs(String),
}
