//! Why a connection did not come up.

use std::time::Duration;

use crate::ProcessName;
use crate::wire::{Layout, Reason};

/// Why a connection to `peer` did not come up, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no connection to process {peer}: {cause}")]
pub struct ConnectError {
    /// The process that was to be connected to.
    pub peer: ProcessName,
    /// What went wrong.
    pub cause: ConnectCause,
}

impl ConnectCause {
    /// True if it says no more than that no process is there, or none that knows us: as after a peer has left.
    pub fn finds_no_peer(&self) -> bool {
        let unknown = |reason: &Reason| {
            use Reason::{InvalidCommId, InvalidServiceId, Stale, Timeout, UnknownPeer};
            matches!(reason, InvalidCommId | InvalidServiceId | Stale | Timeout | UnknownPeer)
        };
        match self {
            ConnectCause::Timeout { .. } | ConnectCause::Unreachable { .. } | ConnectCause::Refused(_) => {
                true
            }
            ConnectCause::Rejected(reason) => unknown(reason),
            _ => false,
        }
    }
}

impl ConnectCause {
    /// True if the peer's process is there, and may take a later request.
    pub fn is_refusal_for_now(&self) -> bool {
        use Reason::{InvalidCommId, Stale, Timeout, UnknownPeer};
        matches!(self, ConnectCause::Rejected(UnknownPeer | Stale | InvalidCommId | Timeout))
    }
}

/// Why no connection came about. [`ConnectCause::finds_no_peer`] and [`ConnectCause::is_refusal_for_now`] say what may help: the other port,
/// or another attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectCause {
    /// The peer has not answered, all repetitions included.
    #[error(
        "no answer to {tries} requests in {elapsed:.1?}; the process or its node may be gone, or stopped (raise the connection manager's retries to wait longer)"
    )]
    Timeout {
        /// Datagrams sent in vain.
        tries: u32,
        /// Time since the exchange began.
        elapsed: Duration,
    },
    /// The peer has sent a REJ, for this reason (ibcm and xrc).
    #[error("it refused: {0}")]
    Rejected(Reason),
    /// The peer said no; in words.
    #[error("it refused: {0}")]
    Refused(String),
    /// No way to the peer, or no process there.
    #[error(
        "{why}, {tries} tries in {elapsed:.1?}; the process or its node may be gone, or its address out of reach"
    )]
    Unreachable {
        /// What the last try met with.
        why: String,
        /// Tries in vain.
        tries: u32,
        /// Time since the exchange began.
        elapsed: Duration,
    },
    /// Number or kinds of the two sides' queues differ.
    #[error("its queues are {theirs}, ours are {ours}; receive_queues must be the same in all processes")]
    Layout { ours: Layout, theirs: Layout },
    /// The two sides' queues differ: as `receive_queues` has ours, and as far as the peer has named its.
    #[error("its queues are {theirs}, ours are {ours}; receive_queues must be the same in all processes")]
    Queues { ours: String, theirs: String },
    /// A verbs call of this side has failed, or the device or its connection manager is lost; in
    /// words.
    #[error("{0}")]
    Verbs(String),
    /// The peer's modex blob is not one to connect to; in words.
    #[error("its published address is unusable: {0}")]
    Address(String),
    /// Another process than the peer has answered; in words.
    #[error("{0}")]
    Stranger(String),
    /// The peer has an endpoint already, is this process itself, or the queue pairs made for it do
    /// not match the layout.
    #[error("{0}")]
    Misuse(&'static str),
    /// The component that was chosen for the peer has no module in this process.
    #[error("connection component \"{0}\" is not active in this process")]
    Component(String),
}
