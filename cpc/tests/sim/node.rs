//! A process of the simulated world: its connection manager, and its transport's endpoints.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use cpc::{ConnectError, EndpointKey, ProcessName};
use verbs::{Psn, Qpn};

use super::protocol::{Peer, Protocol};

pub(super) enum RepSent {
    Disconnected(EndpointKey),
    Unknown(ProcessName),
}

/// An endpoint as the transport has it.
pub struct End<A> {
    pub peer: usize,
    pub address: A,
    pub asked_at: Option<Duration>,
    pub psn: Option<Psn>,
    pub qpns: Vec<Qpn>,
    pub remote: Option<Peer>,
    pub connected_at: Option<Duration>,
    /// When the peer's clear-to-send came.
    pub data_at: Option<Duration>,
    pub failed: Option<ConnectError>,
    /// The device has reported that what is sent here is not acknowledged.
    pub broken: bool,
}

impl<A> End<A> {
    pub(super) fn new(peer: usize, address: A) -> End<A> {
        End {
            peer,
            address,
            asked_at: None,
            psn: None,
            qpns: Vec::new(),
            remote: None,
            connected_at: None,
            data_at: None,
            failed: None,
            broken: false,
        }
    }

    /// When the first fragment was posted: connected, and the peer's clear-to-send is in.
    pub fn first_fragment_at(&self) -> Option<Duration> {
        Some(self.connected_at?.max(self.data_at?))
    }
}

pub struct Node<P: Protocol> {
    /// The connection manager; for ibcm and rdmacm its `machine` is the one that is on trial.
    pub manager: P,
    pub name: ProcessName,
    pub address: P::Address,
    /// Where peers get to know that it is.
    pub published: P::Address,
    pub ends: HashMap<EndpointKey, End<P::Address>>,
    /// The present endpoint of each peer.
    pub current: BTreeMap<usize, EndpointKey>,
    /// Peers that this node has something to send to.
    pub wants: Vec<usize>,
    pub failures: Vec<ConnectError>,
    pub disconnects: u32,
    pub unknown: Vec<ProcessName>,
    pub(super) events: VecDeque<RepSent>,
    pub(super) generation: u32,
    /// Adds unknown peers when told of them.
    pub welcoming: bool,
    /// Puts a new endpoint in the place of a disconnected one.
    pub persistent: bool,
    pub deaf: bool,
    /// Time that one datagram takes; while it does, others wait in the receive queue, as many as it holds.
    pub service: Duration,
    pub(super) busy_until: Instant,
    /// Datagrams that found the receive queue full.
    pub overrun: u64,
    /// When its machine wants to be called; as it stands in the world's table.
    pub(super) due: Option<Instant>,
}
