//! The rdmacm protocol as a sans-I/O machine: events and `now` go in, [`Action`]s come out.
//!
//! One machine serves all endpoints of a port. Its driver (`rdmacm::module`) turns events of ids, commands of the main thread
//! and the clock into calls, then performs what [`Machine::poll_action`] hands out, in order, and sleeps until
//! [`Machine::poll_timeout`] at most. Randomness comes in as one seed. See `rdmacm` for the protocol.
//!
//! ```text
//!            connect             address, route, QPs       reply             QPs up, established
//!   Idle ------------> Queued --> Resolving, Routing, Creating --> ReqSent --> ToRts --------> Connected  (active)
//!    |                   ^                  |                       | refused: crossing --> Yielding
//!    |                   +--- Pausing <-----+-- nothing came of it -+
//!    | request, from any of these: QPs made             QPs up, accepted      established, or first data
//!    +----------------------> Creating -----------> ToRts ---------> RepSent --------------> Connected  (passive)
//!   ToRts, RepSent, Connected -- remove --> DreqSent -- disconnected, or deadline --> gone
//!                       -- disconnected, new request --> Disconnected  (reported, waits for remove)
//!   any before Connected       -- tries used up, refused, verbs error --> Failed  (reported, waits for remove)
//! ```
//! iWARP: between ToRts or RepSent and Connected lies Joining, see `streams`.
//! `table.rs` holds the decision for every pair of state and input.
#![forbid(unsafe_code)]

mod action;
mod active;
mod closing;
mod passive;
mod state;
mod streams;
mod table;

pub use action::{Action, First, Stats};
pub use state::{InputKind, StateKind};

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::Instant;

use slab::Slab;
use verbs::cm::Token;

use self::state::{Endpoint, Incoming, Input, State};
use crate::config::rdmacm::Params;
use crate::core::parking::Parking;
use crate::core::rng::Rng;
use crate::core::timers::{Timer, Timers};
use crate::core::window::Window;
use crate::wire::ip::Address;
use crate::wire::join::Join;
use crate::wire::refusal::Refusal;
use crate::wire::{Hello, Layout, Qpns, WireError};
use crate::{ConnectCause, ConnectError, EndpointKey, ProcessName, Step, Timeline};

/// What this side brings into every exchange.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// This process.
    pub name: ProcessName,
    /// Where it listens.
    pub address: Address,
    /// Its queues.
    pub layout: Layout,
    /// iWARP: a connection ends at one queue pair, so each needs an id of its own.
    pub id_per_qp: bool,
}

/// How a request or reply was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// By the peer's machine, which says why.
    ByPeer(Refusal),
    /// No process listens there.
    NotListening,
    /// By the connection manager, or by another program: its reason.
    Other(i32),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::ByPeer(why) => why.fmt(f),
            Refused::NotListening => f.write_str("nobody listens at its address"),
            Refused::Other(reason) => write!(f, "the connection manager's reason is {reason}"),
        }
    }
}

/// What happened to an id.
#[derive(Clone, Copy, Debug)]
pub enum IdEvent<'a> {
    /// Its address is resolved.
    AddrResolved,
    /// Its route is.
    RouteResolved,
    /// The peer agreed, with these private data.
    Response(&'a [u8]),
    /// Both sides are up.
    Established,
    /// It was refused.
    Refused(Refused),
    /// Nothing comes of it, or comes over it any more, and why.
    Broken(&'a str),
    /// The peer has taken it down, or has agreed to that.
    Disconnected,
}

/// Whose an id is.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Endpoint(usize),
    /// iWARP: of an endpoint, for this queue.
    Stream(usize, usize),
    /// iWARP: of a peer's request that waits until ours is refused.
    Crossing(usize),
    Parked(ProcessName),
}

/// The machine. See the module's description.
#[derive(Debug)]
pub struct Machine {
    local: Local,
    params: Params,
    rng: Rng,
    last_id: usize,
    endpoints: Slab<Endpoint>,
    by_key: HashMap<EndpointKey, usize>,
    by_peer: HashMap<ProcessName, usize>,
    by_id: HashMap<Token, Owner>,
    parked: Parking<Incoming>,
    timers: Timers,
    window: Window<EndpointKey>,
    actions: VecDeque<Action>,
    stats: Stats,
}

impl Machine {
    /// A machine without endpoints. `seed` decides the jitter.
    pub fn new(local: Local, params: Params, seed: u64) -> Machine {
        Machine {
            local,
            window: Window::new(params.window),
            params,
            rng: Rng::new(seed),
            last_id: 0,
            endpoints: Slab::new(),
            by_key: HashMap::new(),
            by_peer: HashMap::new(),
            by_id: HashMap::new(),
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

    /// How many removed endpoints still wait for the peer to agree.
    pub fn leaving(&self) -> usize {
        self.endpoints.iter().filter(|(_, e)| e.state.kind() == StateKind::DreqSent).count()
    }

    /// Where the endpoint stands; `None` once it is removed. For logs and tests.
    pub fn state(&self, key: EndpointKey) -> Option<StateKind> {
        self.by_key.get(&key).map(|&slot| self.endpoints[slot].state.kind())
    }

    /// When the steps of the endpoint's connection happened; `None` once it is removed.
    pub fn timeline(&self, key: EndpointKey) -> Option<&Timeline> {
        self.by_key.get(&key).map(|&slot| &self.endpoints[slot].steps)
    }

    /// A name for an id; never 0, which is the listener's.
    pub fn draw_id(&mut self) -> Token {
        self.last_id = self.last_id.wrapping_add(1).max(1);
        Token(self.last_id)
    }

    /// Makes a peer known: from now on it may connect. If its request waits already, it is served at once.
    pub fn add_endpoint(&mut self, key: EndpointKey, peer: ProcessName, address: Address, now: Instant) {
        if let Some(cause) = self.misuse(key, peer) {
            return self.report_failure(key, peer, ConnectCause::Misuse(cause));
        }
        let slot = self.endpoints.insert(Endpoint {
            key,
            peer,
            address,
            id: None,
            streams: Vec::new(),
            crossing: None,
            qpns: None,
            state: State::Idle,
            deadline: None,
            in_window: false,
            wanted: false,
            crossed: false,
            tries: 0,
            since: now,
            steps: Timeline::default(),
        });
        self.by_key.insert(key, slot);
        self.by_peer.insert(peer, slot);
        self.serve_parked(slot, now);
    }

    fn misuse(&self, key: EndpointKey, peer: ProcessName) -> Option<&'static str> {
        if peer == self.local.name {
            Some("it is this process itself")
        } else if self.by_peer.contains_key(&peer) || self.by_key.contains_key(&key) {
            Some("it has an endpoint already")
        } else {
            None
        }
    }

    /// There is something to send: connect, if nothing is under way yet.
    pub fn connect(&mut self, key: EndpointKey, now: Instant) {
        self.input_by_key(key, &Input::Connect, now);
    }

    /// The endpoint is no longer wanted. Its key is free at once; its connection is taken down in the background.
    pub fn remove_endpoint(&mut self, key: EndpointKey, now: Instant) {
        self.input_by_key(key, &Input::Remove, now);
    }

    /// The endpoint has failed on this side: its peer is told, as well as RDMA-CM can say it, and the endpoint stays, to refuse, until it is
    /// removed.
    pub fn abandon_endpoint(&mut self, key: EndpointKey, now: Instant) {
        self.input_by_key(key, &Input::Abandon, now);
    }

    /// Removes every endpoint and refuses the requests that waited for one.
    pub fn close(&mut self, now: Instant) {
        let keys: Vec<EndpointKey> = self.by_key.keys().copied().collect();
        keys.into_iter().for_each(|key| self.remove_endpoint(key, now));
        self.dismiss_parked();
    }

    /// Data have come in on one of the endpoint's QPs: the peer is up, whether that was confirmed or not.
    pub fn first_data(&mut self, key: EndpointKey, now: Instant) {
        self.input_by_key(key, &Input::FirstData, now);
    }

    /// The answer to [`Action::CreateQps`]: the QPs' numbers, or why there are none.
    pub fn qps_created(&mut self, key: EndpointKey, qpns: Result<Qpns, String>, now: Instant) {
        self.input_by_key(key, &qpns.map_or_else(Input::QpsFailed, Input::QpsMade), now);
    }

    /// The answer to [`Action::BringUp`].
    pub fn qps_up(&mut self, key: EndpointKey, outcome: Result<(), String>, now: Instant) {
        self.input_by_key(key, &outcome.map_or_else(Input::QpsDown, |()| Input::QpsUp), now);
    }

    /// A request has come in; `id` is its id's new name.
    pub fn request(&mut self, id: Token, private_data: &[u8], now: Instant) {
        self.stats.requests += 1;
        if let Some(join) = Join::parse(private_data).filter(|_| self.local.id_per_qp) {
            return self.join_request(id, join, now);
        }
        let hello = match self.parse(private_data) {
            Ok(hello) if hello.name != self.local.name => hello,
            _ => {
                self.stats.malformed += 1;
                return self.refuse(id, Refusal::Malformed);
            }
        };
        if hello.layout != self.local.layout {
            self.stats.layout_refused += 1;
            return self.refuse(id, Refusal::Layout(self.local.layout));
        }
        let request = Incoming { id, qpns: hello.qpns };
        match self.by_peer.get(&hello.name) {
            Some(&slot) => self.input(slot, &Input::Request(request), now),
            None => self.park(hello.name, request, now),
        }
    }

    fn parse(&self, private_data: &[u8]) -> Result<Hello, WireError> {
        if self.local.id_per_qp { Hello::parse_any(private_data) } else { Hello::parse(private_data) }
    }

    /// Something happened to an id.
    pub fn event(&mut self, id: Token, event: IdEvent<'_>, now: Instant) {
        match (self.by_id.get(&id).copied(), event) {
            (Some(Owner::Endpoint(slot)), event) => self.endpoint_event(slot, event, now),
            (Some(Owner::Stream(slot, queue)), event) => self.stream_event(slot, queue, event, now),
            (
                Some(Owner::Crossing(slot)),
                IdEvent::Refused(_) | IdEvent::Broken(_) | IdEvent::Disconnected,
            ) => {
                self.crossing_gone(slot);
            }
            (Some(Owner::Parked(peer)), IdEvent::Refused(_) | IdEvent::Broken(_) | IdEvent::Disconnected) => {
                self.parked_gone(peer);
            }
            _ => self.stats.ignored += 1,
        }
    }

    fn endpoint_event(&mut self, slot: usize, event: IdEvent<'_>, now: Instant) {
        match event {
            IdEvent::AddrResolved => self.input(slot, &Input::AddrResolved, now),
            IdEvent::RouteResolved => self.input(slot, &Input::RouteResolved, now),
            IdEvent::Response(data) => match self.parse(data) {
                Ok(hello) => self.input(slot, &Input::Response(&hello), now),
                Err(_) => {
                    self.stats.malformed += 1;
                    self.input(slot, &Input::Malformed, now);
                }
            },
            IdEvent::Established => self.input(slot, &Input::Established, now),
            IdEvent::Refused(refused) => self.input(slot, &Input::Refused(&refused), now),
            IdEvent::Broken(why) => self.input(slot, &Input::Broken(why), now),
            IdEvent::Disconnected => self.input(slot, &Input::Disconnected, now),
        }
    }

    /// The device is gone: nothing comes up any more, and nothing stays.
    pub fn device_removed(&mut self, now: Instant) {
        let slots: Vec<usize> = self.by_key.values().copied().collect();
        for slot in slots {
            match self.endpoints[slot].state {
                State::Connected { .. } => self.peer_left(slot, now),
                State::Failed | State::Disconnected | State::DreqSent { .. } => {}
                _ => self.fail(slot, ConnectCause::Verbs("the RDMA device was removed".to_owned()), now),
            }
        }
    }

    /// Acts on everything that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.timers.take_due(now) {
            match timer {
                Timer::Endpoint(slot) => {
                    self.endpoints[slot].deadline = None;
                    self.input(slot, &Input::Timeout, now);
                }
                Timer::Parked(peer) => self.parked_due(peer, Refusal::UnknownPeer),
            }
        }
    }

    fn input_by_key(&mut self, key: EndpointKey, input: &Input<'_>, now: Instant) {
        match self.by_key.get(&key) {
            Some(&slot) => self.input(slot, input, now),
            None => self.stats.ignored += 1,
        }
    }

    fn input(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        let handler = table::handler(self.endpoints[slot].state.kind(), input.kind());
        handler(self, slot, input, now);
    }

    /// The handler of cells where nothing is to be done.
    fn ignore(&mut self, _slot: usize, _input: &Input<'_>, _now: Instant) {
        self.stats.ignored += 1;
    }

    fn mark(&mut self, slot: usize, step: Step, now: Instant) {
        self.endpoints[slot].steps.mark(step, now);
    }

    fn set_deadline(&mut self, slot: usize, at: Option<Instant>) {
        let endpoint = &mut self.endpoints[slot];
        self.timers.move_to(Timer::Endpoint(slot), endpoint.deadline, at);
        endpoint.deadline = at;
    }

    /// What we say of ourselves; `None` before the QPs are made.
    fn hello(&self, slot: usize) -> Option<Hello> {
        let qpns = self.endpoints[slot].qpns?;
        Some(Hello { layout: self.local.layout, name: self.local.name, qpns })
    }

    fn take_id(&mut self, slot: usize, id: Token) {
        self.endpoints[slot].id = Some(id);
        self.by_id.insert(id, Owner::Endpoint(slot));
    }

    fn close_id(&mut self, slot: usize) {
        if let Some(id) = self.endpoints[slot].id.take() {
            self.by_id.remove(&id);
            self.actions.push_back(Action::Close { id });
        }
        self.close_streams(slot);
    }

    fn refuse(&mut self, id: Token, why: Refusal) {
        self.by_id.remove(&id);
        self.actions.push_back(Action::Refuse { id, why });
    }

    /// Gives the connection up and reports why.
    fn fail(&mut self, slot: usize, cause: ConnectCause, now: Instant) {
        self.end(slot, now);
        let endpoint = &mut self.endpoints[slot];
        endpoint.state = State::Failed;
        let (key, peer) = (endpoint.key, endpoint.peer);
        self.report_failure(key, peer, cause);
    }

    fn report_failure(&mut self, key: EndpointKey, peer: ProcessName, cause: ConnectCause) {
        self.stats.failed += 1;
        self.actions.push_back(Action::Failed { key, error: ConnectError { peer, cause } });
    }

    /// Both sides are up.
    fn connected(&mut self, slot: usize, remote: Qpns) {
        self.set_deadline(slot, None);
        self.stats.connected += 1;
        let endpoint = &mut self.endpoints[slot];
        endpoint.state = State::Connected { remote };
        self.actions.push_back(Action::Connected { key: endpoint.key });
    }
}
