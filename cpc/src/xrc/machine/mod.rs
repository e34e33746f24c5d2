//! The xrc protocol as a sans-I/O machine: events and `now` go in, [`Action`]s come out. See `xrc` for the protocol.
//!
//! An endpoint has two links, one for each direction; they have nothing to do with each other but their end. Links to the
//! processes of one node share a path: the send queue pair that leads there (`path`).
//!
//! ```text
//!   Out:  Queued --> Creating --> ReqSent --> ToRts --> Connected        the first to a node
//!         Queued ----> (path is up) ReqSent -----------> Connected       the others
//!            ^________ renew: the send queue pair broke ___|     gone receive queue pair: from ReqSent
//!   In:   Joining --> RepSent                                       a new REQ: Joining again
//!   both: Connected, RepSent -- remove --> DreqSent -- DREP --> TimeWait --> gone
//! ```
//! `table.rs` holds the decision for every pair of state and input; `routing.rs` finds the link that a datagram belongs to; `restart.rs` knows
//! what it means that a peer has begun anew.
#![forbid(unsafe_code)]

mod action;
mod closing;
mod parking;
mod path;
mod receiver;
mod restart;
mod routing;
mod sender;
mod state;
mod table;

pub use action::{Action, JoinError, Stats};
pub use path::PathId;
pub use state::{Direction, InputKind, Remote, StateKind};

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use slab::Slab;
use verbs::Qpn;

use self::path::{Node, Path, Stage};
use self::state::{Endpoint, Input, Link, State};
use crate::config::datagram::Params;
use crate::core::parking::Parking;
use crate::core::rng::Rng;
use crate::core::timers::{Timer, Timers};
use crate::core::window::Window;
use crate::exchange::received::Received;
use crate::wire::Source;
use crate::wire::domain::{Address, Place};
use crate::wire::xrc::{Datagram, Message, Req, SrqNums};
use crate::wire::{CommId, Depth, Incarnation, Layout};
use crate::{ConnectCause, ConnectError, EndpointKey, ProcessName, Step, Timeline};

/// What this side brings into every exchange.
#[derive(Clone, Debug)]
pub struct Local {
    /// This process.
    pub name: ProcessName,
    /// Where it listens, and its domain.
    pub address: Address,
    /// Its queues.
    pub layout: Layout,
    /// The numbers of their SRQs.
    pub srqs: SrqNums,
    /// Its RDMA read depth.
    pub depth: Depth,
    /// Partition key.
    pub pkey: u16,
    /// Service level.
    pub sl: u8,
    /// Local ACK timeout of its QPs, 4.096 µs * 2^n.
    pub ack_timeout: u8,
    /// Transport retries of its QPs.
    pub retry_count: u8,
    /// RNR retries of its QPs.
    pub rnr_retry: u8,
}

/// The last exchange that a peer has opened here, and where it was: older incarnations and, of this one, older ids are stale.
#[derive(Clone, Copy, Debug)]
struct Seen {
    address: Address,
    last: CommId,
    epoch: u32,
}

/// The machine. See the module's description.
#[derive(Debug)]
pub struct Machine {
    local: Local,
    params: Params,
    rng: Rng,
    last_id: CommId,
    last_path: u32,
    last_epoch: u32,
    endpoints: HashMap<EndpointKey, Endpoint>,
    by_peer: HashMap<ProcessName, EndpointKey>,
    links: Slab<Link>,
    by_id: HashMap<CommId, usize>,
    paths: HashMap<PathId, Path>,
    nodes: HashMap<Place, Node>,
    /// Links to each peer that wait for the answer to their DREQ: a new endpoint of it waits for that, too.
    leaving: HashMap<ProcessName, u32>,
    /// Of peers that never answered our DREQ: the last exchange with them that is over.
    unheard: HashMap<ProcessName, CommId>,
    seen: HashMap<ProcessName, Seen>,
    parked: Parking<Received<Req>>,
    timers: Timers,
    /// Links that may begin when there is a place.
    window: Window<CommId>,
    actions: VecDeque<Action>,
    stats: Stats,
}

impl Machine {
    /// A machine without endpoints. `seed` decides ids, PSNs and jitter.
    pub fn new(local: Local, params: Params, seed: u64) -> Machine {
        let mut rng = Rng::new(seed);
        Machine {
            last_id: CommId(rng.next_u32()),
            last_path: 0,
            last_epoch: 0,
            rng,
            local,
            window: Window::new(params.window),
            params,
            endpoints: HashMap::new(),
            by_peer: HashMap::new(),
            links: Slab::new(),
            by_id: HashMap::new(),
            paths: HashMap::new(),
            nodes: HashMap::new(),
            leaving: HashMap::new(),
            unheard: HashMap::new(),
            seen: HashMap::new(),
            parked: Parking::new(),
            timers: Timers::default(),
            actions: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// The next thing to do; call until `None` after every other call.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Machine::handle_timeout`] wants to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// How many links of removed endpoints still wait for the peer's answer to their DREQ.
    pub fn leaving(&self) -> usize {
        self.leaving.values().map(|count| *count as usize).sum()
    }

    /// Send queue pairs that are not given back. For tests.
    pub fn paths(&self) -> usize {
        self.paths.len()
    }

    /// Where the endpoint's link in this direction stands; `None` if there is none. For logs and tests.
    pub fn state(&self, key: EndpointKey, direction: Direction) -> Option<StateKind> {
        let endpoint = self.endpoints.get(&key)?;
        let slot = match direction {
            Direction::Out => endpoint.outgoing,
            Direction::In => endpoint.incoming,
        };
        slot.map(|slot| self.links[slot].state.kind())
    }

    /// When the steps of the endpoint's connection happened; `None` once it is removed.
    pub fn timeline(&self, key: EndpointKey) -> Option<&Timeline> {
        self.endpoints.get(&key).map(|endpoint| &endpoint.steps)
    }

    /// Makes a peer known: from now on it may connect. If its request waits already, it is served at once. `label` is what its
    /// messages to us have to call themselves.
    pub fn add_endpoint(
        &mut self,
        key: EndpointKey,
        peer: ProcessName,
        address: Address,
        label: u32,
        now: Instant,
    ) {
        if let Some(cause) = self.misuse(key, peer) {
            return self.report_failure(key, peer, ConnectCause::Misuse(cause));
        }
        let address = self.latest(peer, address);
        self.drop_stale_links(peer, address.listener.incarnation, now);
        let steps = Timeline::default();
        let endpoint = Endpoint {
            peer,
            address,
            label,
            outgoing: None,
            incoming: None,
            replied: None,
            left: false,
            peer_failed: false,
            abandoned: false,
            response: Duration::ZERO,
            steps,
        };
        self.endpoints.insert(key, endpoint);
        self.by_peer.insert(peer, key);
        self.serve_parked(peer, now);
    }

    fn misuse(&self, key: EndpointKey, peer: ProcessName) -> Option<&'static str> {
        if peer == self.local.name {
            Some("it is this process itself")
        } else if self.by_peer.contains_key(&peer) || self.endpoints.contains_key(&key) {
            Some("it has an endpoint already")
        } else {
            None
        }
    }

    /// There is something to send: connect, if nothing is under way yet.
    pub fn connect(&mut self, key: EndpointKey, now: Instant) {
        let idle = self.endpoints.get(&key).is_some_and(|e| e.outgoing.is_none() && !e.left && !e.abandoned);
        if !idle {
            self.stats.ignored += 1;
        } else if let Some(slot) = self.open_link(key, Direction::Out, now) {
            self.line_up(slot, now);
        }
    }

    /// The endpoint's send queue pair is broken: connect over another one.
    pub fn renew(&mut self, key: EndpointKey, now: Instant) {
        match self.endpoints.get(&key).and_then(|endpoint| endpoint.outgoing) {
            Some(slot) => self.input(slot, &Input::Renew, now),
            None => self.stats.ignored += 1,
        }
    }

    /// The endpoint is no longer wanted. Its key is free at once; its links are taken down in the background.
    pub fn remove_endpoint(&mut self, key: EndpointKey, now: Instant) {
        let Some(endpoint) = self.endpoints.remove(&key) else { return self.stats.ignored += 1 };
        self.by_peer.remove(&endpoint.peer);
        for slot in [endpoint.outgoing, endpoint.incoming].into_iter().flatten() {
            self.input(slot, &Input::Remove, now);
        }
    }

    /// The endpoint has failed on this side: the peer is told, so that it does not wait. It still has to be removed.
    pub fn abandon_endpoint(&mut self, key: EndpointKey, now: Instant) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else { return self.stats.ignored += 1 };
        endpoint.abandoned = true;
        for slot in [endpoint.outgoing, endpoint.incoming].into_iter().flatten() {
            self.links[slot].failed = true;
            if self.links[slot].state.kind() != StateKind::Disconnected {
                self.input(slot, &Input::Remove, now);
            }
        }
    }

    /// Removes every endpoint and refuses the requests that waited for one.
    pub fn close(&mut self, now: Instant) {
        let keys: Vec<EndpointKey> = self.endpoints.keys().copied().collect();
        keys.into_iter().for_each(|key| self.remove_endpoint(key, now));
        self.dismiss_parked();
    }

    /// The answer to [`Action::MakeSender`]: the send queue pair's number, or why there is none.
    pub fn sender_made(&mut self, path: PathId, made: Result<Qpn, String>, now: Instant) {
        let Some(known) = self.paths.get_mut(&path) else { return self.stats.ignored += 1 };
        let slot = known.carrier;
        if let Ok(qpn) = made {
            (known.qpn, known.stage) = (qpn, Stage::SenderCreated);
        }
        self.input(slot, &made.map_or_else(Input::SenderFailed, |_| Input::SenderCreated), now);
    }

    /// The answer to [`Action::RaiseSender`].
    pub fn sender_raised(&mut self, path: PathId, outcome: Result<(), String>, now: Instant) {
        let Some(known) = self.paths.get(&path) else { return self.stats.ignored += 1 };
        self.input(known.carrier, &outcome.map_or_else(Input::SenderDown, |()| Input::SenderUp), now);
    }

    /// The answer to [`Action::Join`]. Where the peer has made another epoch meanwhile, another answer is to come.
    pub fn joined(&mut self, link: CommId, epoch: u32, outcome: Result<Qpn, JoinError>, now: Instant) {
        let slot = self.by_id.get(&link).copied();
        let expects = |slot: &usize| self.links[*slot].state.remote().is_some_and(|r| r.epoch == epoch);
        let Some(slot) = slot.filter(expects) else { return self.stats.ignored += 1 };
        self.input(slot, &outcome.map_or_else(Input::NoReceiverHeld, Input::ReceiverHeld), now);
    }

    /// Acts on everything that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.timers.take_due(now) {
            match timer {
                Timer::Endpoint(slot) => {
                    self.links[slot].deadline = None;
                    self.input(slot, &Input::Timeout, now);
                }
                Timer::Parked(peer) => self.parked_due(peer),
            }
        }
    }

    fn input(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        let handler = table::handler(self.links[slot].state.kind(), input.kind());
        handler(self, slot, input, now);
    }

    /// The handler of cells where nothing is to be done.
    fn ignore(&mut self, _slot: usize, _input: &Input<'_>, _now: Instant) {
        self.stats.ignored += 1;
    }

    /// A link of the endpoint, not yet begun.
    fn open_link(&mut self, key: EndpointKey, direction: Direction, now: Instant) -> Option<usize> {
        let local = self.draw_id();
        let endpoint = self.endpoints.get_mut(&key)?;
        let slot = self.links.insert(Link {
            key,
            peer: endpoint.peer,
            address: endpoint.address,
            label: endpoint.label,
            direction,
            local,
            state: State::Queued,
            known: None,
            path: None,
            epoch: 0,
            deadline: None,
            quiet_until: None,
            in_window: false,
            failed: false,
            renewals: 0,
            response: endpoint.response,
            since: now,
        });
        match direction {
            Direction::Out => endpoint.outgoing = Some(slot),
            Direction::In => endpoint.incoming = Some(slot),
        }
        self.by_id.insert(local, slot);
        Some(slot)
    }

    /// A fresh id.
    fn draw_id(&mut self) -> CommId {
        self.last_id = self.last_id.following();
        self.last_id
    }

    fn mark(&mut self, slot: usize, step: Step, now: Instant) {
        let key = self.links[slot].key;
        if let Some(endpoint) = self.endpoints.get_mut(&key) {
            endpoint.steps.mark(step, now);
        }
    }

    fn set_deadline(&mut self, slot: usize, at: Option<Instant>) {
        let link = &mut self.links[slot];
        self.timers.move_to(Timer::Endpoint(slot), link.deadline, at);
        link.deadline = at;
    }

    /// Waits for an answer to the `tries`-th repetition (0 = the first sending).
    fn arm(&mut self, slot: usize, tries: u32, now: Instant) {
        let wait = self.rng.jitter(self.params.wait_for(self.links[slot].response, tries));
        self.set_deadline(slot, Some(now + wait));
    }

    /// Sends `message` to the link's peer.
    fn send(&mut self, slot: usize, message: Message) {
        let listener = self.links[slot].address.listener;
        self.send_to(Source::from(&listener), listener.incarnation, message);
    }

    fn send_to(&mut self, to: Source, incarnation: Incarnation, message: Message) {
        self.stats.sent += 1;
        let datagram = Datagram { from: self.local.address.listener.incarnation, to: incarnation, message };
        self.actions.push_back(Action::Send { to, datagram });
    }

    /// Gives a link up and reports why.
    fn fail(&mut self, slot: usize, cause: ConnectCause, now: Instant) {
        self.set_deadline(slot, None);
        self.links[slot].state = State::Failed;
        self.detach(slot, now);
        self.leave_window(slot, now);
        let (key, peer) = (self.links[slot].key, self.links[slot].peer);
        self.report_failure(key, peer, cause);
    }

    fn report_failure(&mut self, key: EndpointKey, peer: ProcessName, cause: ConnectCause) {
        self.stats.failed += 1;
        self.actions.push_back(Action::Failed { key, error: ConnectError { peer, cause } });
    }

    fn note_seen(&mut self, slot: usize, last: CommId, epoch: u32) {
        let link = &self.links[slot];
        self.seen.insert(link.peer, Seen { address: link.address, last, epoch });
    }
}
