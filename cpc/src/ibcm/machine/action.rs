//! What the machine wants done, and what it counts.

use verbs::Psn;

use super::state::Remote;
use crate::wire::listener::Address;
use crate::wire::{Datagram, Source};
use crate::{ConnectError, EndpointKey, ProcessName};

/// What the driver has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "on the connection path only")]
pub enum Action {
    /// Make the endpoint's QPs, in INIT, and answer with `qps_created`.
    CreateQps {
        /// Which endpoint.
        key: EndpointKey,
    },
    /// Take the QPs to RTS and answer with `qps_up`.
    BringUp {
        /// Which endpoint.
        key: EndpointKey,
        /// The peer's QPs and PSN.
        remote: Remote,
        /// The peer's port.
        address: Address,
        /// The PSN that our QPs start with.
        psn: Psn,
    },
    /// Send a datagram. It may be lost, the machine repeats it.
    Send {
        /// To whom.
        to: Source,
        /// What.
        datagram: Datagram,
    },
    /// Both sides are up: tell the main thread.
    Connected {
        /// Which endpoint.
        key: EndpointKey,
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
    /// Datagrams that say nothing new.
    pub ignored: u64,
    /// Peers that were found at another address than the modex said, having begun MPI anew.
    pub relearned: u64,
    /// Crossing requests that were merged.
    pub raced: u64,
    /// Requests refused because the peer's queues differ. Should stay 0.
    pub layout_refused: u64,
    /// Requests of processes that we had no endpoint for.
    pub parked: u64,
    /// Connections that came up.
    pub connected: u64,
    /// Connections given up. Should stay 0.
    pub failed: u64,
    /// RTUs that data stood in for.
    pub first_data: u64,
}

impl Stats {
    /// The counters by name.
    pub fn rows(&self) -> [(&'static str, u64); 14] {
        [
            ("ibcm_received", self.received),
            ("ibcm_sent", self.sent),
            ("ibcm_repeated", self.repeated),
            ("ibcm_foreign", self.foreign),
            ("ibcm_malformed", self.malformed),
            ("ibcm_stale", self.stale),
            ("ibcm_ignored", self.ignored),
            ("ibcm_relearned", self.relearned),
            ("ibcm_raced", self.raced),
            ("ibcm_layout_refused", self.layout_refused),
            ("ibcm_parked", self.parked),
            ("ibcm_connected", self.connected),
            ("ibcm_failed", self.failed),
            ("ibcm_first_data", self.first_data),
        ]
    }
}
