//! What the simulated world asks of a connection manager, whatever its protocol.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use cpc::wire::{Layout, Qpns};
use cpc::{ConnectError, EndpointKey, ProcessName};
use verbs::{Psn, Qpn};

/// The other side's queue pairs, as one side has learnt of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub qpns: Vec<Qpn>,
    pub psn: Psn,
}

/// What a machine wants done by the world: by the transport above it, or by the network below.
pub enum Wish<D> {
    CreateQps { key: EndpointKey },
    BringUp { key: EndpointKey, remote: Peer, psn: Psn },
    Send { to: Qpn, datagram: D },
    Connected { key: EndpointKey },
    Failed { key: EndpointKey, error: ConnectError },
    Disconnected { key: EndpointKey },
    UnknownPeer { peer: ProcessName },
}

/// Where a machine comes into the world, and with what identity.
pub struct Birth {
    /// Number of its node; stays the same when the process starts anew.
    pub node: usize,
    /// A queue pair number that no one else has.
    pub qpn: Qpn,
    /// How many were born before it.
    pub number: u32,
    pub incarnation: u32,
    pub name: ProcessName,
    pub layout: Layout,
    pub seed: u64,
}

/// A connection manager's machine, with what is below it if it does not speak datagrams itself.
pub trait Protocol: Sized {
    type Params: Clone + Default;
    type Address: Copy + PartialEq + Debug;
    type Datagram: Clone;
    type State: Copy + PartialEq + Debug;
    /// After so long, every connection is up or has been reported as failed.
    const BOUND: Duration;
    /// An endpoint that its process replaces is connected anew whatever is lost. A kernel's manager says only once that an id is gone:
    /// where that word is lost, the device has to tell.
    const HEALS: bool;
    /// Its name in messages.
    const NAME: &'static str;

    /// Its defaults, and those that the plugin registers (btl/src/mca/params/table.rs), where they differ.
    fn defaults() -> Vec<Self::Params> {
        vec![Self::Params::default()]
    }
    fn born(birth: Birth, params: &Self::Params) -> (Self, Self::Address);
    /// Where its datagrams arrive.
    fn reach(&self) -> Qpn;
    /// Datagrams that wait in the receive queue of a busy node, at most.
    fn room(params: &Self::Params) -> u32;
    /// Its process is killed: what the operating system says for it.
    fn killed(&mut self) -> Vec<(Qpn, Self::Datagram)>;

    fn add_endpoint(&mut self, key: EndpointKey, name: ProcessName, address: Self::Address, now: Instant);
    fn connect(&mut self, key: EndpointKey, now: Instant);
    fn remove_endpoint(&mut self, key: EndpointKey, now: Instant);
    fn first_data(&mut self, key: EndpointKey, now: Instant);
    fn qps_created(&mut self, key: EndpointKey, qpns: Qpns, now: Instant);
    fn qps_up(&mut self, key: EndpointKey, now: Instant);
    fn datagram(&mut self, from: Qpn, datagram: &Self::Datagram, now: Instant);
    fn wish(&mut self, now: Instant) -> Option<Wish<Self::Datagram>>;
    fn poll_timeout(&self) -> Option<Instant>;
    fn handle_timeout(&mut self, now: Instant);

    fn state(&self, key: EndpointKey) -> Option<Self::State>;
    /// The state of a connection that is up.
    const UP: Self::State;
    /// True if an endpoint in this state waits for nothing but its removal.
    fn is_spent(state: Self::State) -> bool;
    /// Flips one bit, counted from anywhere.
    fn corrupt(datagram: &mut Self::Datagram, bit: usize);
}
