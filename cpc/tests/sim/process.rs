//! A process of the simulated world: its connection manager, and its transport's endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use cpc::{ConnectError, EndpointKey, ProcessName, StreamNum};
use verbs::Qpn;

use super::protocol::{Protocol, Spawned};

/// What a machine has reported to the transport.
pub(super) enum Event {
    Failed(EndpointKey),
    Disconnected(EndpointKey),
    Unknown(ProcessName),
}

/// An endpoint as the transport has it. What it keeps for the manager is read as its own fields.
pub struct End<P: Protocol> {
    pub peer: usize,
    pub address: P::Address,
    pub asked_at: Option<Duration>,
    own: P::End,
}

impl<P: Protocol> End<P> {
    pub(super) fn new(peer: usize, address: P::Address) -> End<P> {
        End { peer, address, asked_at: None, own: P::End::default() }
    }
}

impl<P: Protocol> Deref for End<P> {
    type Target = P::End;

    fn deref(&self) -> &P::End {
        &self.own
    }
}

impl<P: Protocol> DerefMut for End<P> {
    fn deref_mut(&mut self) -> &mut P::End {
        &mut self.own
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Here,
    /// It does nothing, and what arrives waits.
    Stopped,
    /// It does nothing, and what arrives is lost.
    Away,
    Dead,
}

pub struct Process<P: Protocol> {
    /// The machine that is on trial.
    pub machine: P::Machine,
    /// What its manager has besides.
    pub own: P,
    pub name: ProcessName,
    pub address: P::Address,
    /// Where peers get to know that it is.
    pub published: P::Address,
    pub ends: BTreeMap<EndpointKey, End<P>>,
    /// The present endpoint of each peer.
    pub current: BTreeMap<usize, EndpointKey>,
    /// Peers that this process has something to send to.
    pub wants: BTreeSet<usize>,
    /// What its endpoints have agreed upon.
    pub streams: BTreeMap<EndpointKey, StreamNum>,
    pub failures: Vec<ConnectError>,
    pub disconnects: u32,
    /// Endpoints that came up.
    pub up: BTreeSet<EndpointKey>,
    /// Disconnects of connections that were up. A peer that gets no answer in time takes its request back and asks again: that loses
    /// nothing.
    pub lost: u32,
    pub unknown: Vec<ProcessName>,
    /// Adds unknown peers when told of them.
    pub welcoming: bool,
    /// Puts a new endpoint in the place of a disconnected one.
    pub persistent: bool,
    pub presence: Presence,
    pub(super) inbox: Vec<(Qpn, P::Datagram)>,
    /// Time that one datagram takes; while it does, others wait in the receive queue, as many as it
    /// holds.
    pub service: Duration,
    pub(super) busy_until: Instant,
    /// Datagrams that found the receive queue full.
    pub overrun: u64,
    /// When its machine wants to be called; as it stands in the world's table.
    pub(super) due: Option<Instant>,
}

impl<P: Protocol> Process<P> {
    pub(super) fn new((machine, own, address): Spawned<P>, name: ProcessName, now: Instant) -> Process<P> {
        Process {
            machine,
            own,
            name,
            address,
            published: address,
            ends: BTreeMap::new(),
            current: BTreeMap::new(),
            wants: BTreeSet::new(),
            streams: BTreeMap::new(),
            failures: Vec::new(),
            disconnects: 0,
            up: BTreeSet::new(),
            lost: 0,
            unknown: Vec::new(),
            welcoming: true,
            persistent: true,
            presence: Presence::Here,
            inbox: Vec::new(),
            service: Duration::ZERO,
            busy_until: now,
            overrun: 0,
            due: None,
        }
    }

    pub fn is_alive(&self) -> bool {
        self.presence != Presence::Dead
    }

    pub fn is_here(&self) -> bool {
        self.presence == Presence::Here
    }
}
