//! The ibcm protocol as a sans-I/O machine: events and `now` go in, [`Action`]s come out.
//!
//! One machine serves all endpoints of a port. Its driver (`driver::ibcm`) turns datagrams, commands of the main thread
//! and the clock into calls, then performs what [`Machine::poll_action`] hands out, in order, and sleeps until
//! [`Machine::poll_timeout`] at most. Randomness comes in as one seed. See `ibcm` for the protocol.
//!
//! ```text
//!            connect             QPs made            REP                QPs up, RTU sent
//!   Idle ------------> Queued ------> Creating -> ReqSent -------> ToRts ---------------> Connected  (active)
//!    |                                   |          | crossing REQ that wins
//!    | REQ                               v          v
//!    +-----------------------------> Creating ---> ToRts ---> RepSent ------------------> Connected  (passive)
//!                                                  QPs up, REP sent    RTU or first data
//!   ToRts, RepSent, Connected -- remove --> DreqSent -- DREP --> TimeWait --> gone
//!                       -- DREQ, REJ, new REQ --> Disconnected  (reported, waits for remove)
//!   any before Connected       -- retries used up, REJ, verbs error --> Failed  (reported, waits for remove)
//!   ToRts, RepSent, Connected -- abandon --> DreqSent -- DREP --> Failed (the peer has been told)
//! ```
//! `table.rs` holds the decision for every pair of state and input; `routing.rs` finds the endpoint that a datagram belongs to
//! and sorts out what belongs to none.
#![forbid(unsafe_code)]

mod action;
mod active;
mod closing;
mod parking;
mod passive;
mod routing;
mod state;
mod table;

pub use action::{Action, Stats};
pub use state::{InputKind, Remote, Role, StateKind};

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use slab::Slab;
use verbs::{Psn, Qpn};

use self::state::{Endpoint, Far, Input, State};
use crate::config::datagram::Params;
use crate::core::parking::Parking;
use crate::core::rng::Rng;
use crate::core::timers::{Timer, Timers};
use crate::core::window::Window;
use crate::exchange::received::Received;
use crate::wire::listener::Address;
use crate::wire::{
    CommId, Datagram, Depth, Hello, Incarnation, Layout, Message, Qpns, Queues, Reason, Rej, Req, Source,
};
use crate::{ConnectCause, ConnectError, EndpointKey, ProcessName, Step, Timeline};

/// What this side brings into every exchange.
#[derive(Clone, Debug)]
pub struct Local {
    /// This process.
    pub name: ProcessName,
    /// Where it listens.
    pub address: Address,
    /// Number and kinds of its queues.
    pub layout: Layout,
    /// Its queues in full.
    pub queues: Queues,
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
    /// True if any queue is shared.
    pub srq: bool,
}

/// The last exchange that a peer's incarnation has opened here: older ids of it are stale.
#[derive(Clone, Copy, Debug)]
struct Seen {
    incarnation: Incarnation,
    last: CommId,
}

/// The machine. See the module's description.
#[derive(Debug)]
pub struct Machine {
    local: Local,
    params: Params,
    rng: Rng,
    last_id: CommId,
    endpoints: Slab<Endpoint>,
    by_key: HashMap<EndpointKey, usize>,
    by_peer: HashMap<ProcessName, usize>,
    by_id: HashMap<CommId, usize>,
    /// Whose connections the peers' queue pairs are.
    far: HashMap<Far, usize>,
    seen: HashMap<ProcessName, Seen>,
    parked: Parking<Received<Req>>,
    /// Incarnations that have asked with other queues before they had an endpoint here.
    misfits: HashMap<ProcessName, (Incarnation, Queues)>,
    timers: Timers,
    window: Window<EndpointKey>,
    actions: VecDeque<Action>,
    stats: Stats,
}

impl Machine {
    /// A machine without endpoints. `seed` decides ids, PSNs and jitter.
    pub fn new(local: Local, params: Params, seed: u64) -> Machine {
        let mut rng = Rng::new(seed);
        Machine {
            last_id: CommId(rng.next_u32()),
            rng,
            local,
            window: Window::new(params.window),
            params,
            endpoints: Slab::new(),
            by_key: HashMap::new(),
            by_peer: HashMap::new(),
            by_id: HashMap::new(),
            far: HashMap::new(),
            seen: HashMap::new(),
            parked: Parking::new(),
            misfits: HashMap::new(),
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

    /// How many removed endpoints still wait for the peer's answer to their DREQ.
    pub fn leaving(&self) -> usize {
        self.endpoints.iter().filter(|(_, e)| e.state.kind() == StateKind::DreqSent).count()
    }

    /// True if something of this side is still on its way up or down. For tests.
    pub fn is_busy(&self) -> bool {
        self.endpoints.iter().any(|(_, e)| {
            matches!(
                e.state.kind(),
                StateKind::Queued
                    | StateKind::Creating
                    | StateKind::ReqSent
                    | StateKind::ToRts
                    | StateKind::RepSent
                    | StateKind::DreqSent
            )
        })
    }

    /// Where the endpoint stands; `None` once it is removed. For logs and tests.
    pub fn state(&self, key: EndpointKey) -> Option<StateKind> {
        self.by_key.get(&key).map(|&slot| self.endpoints[slot].state.kind())
    }

    /// When the steps of the endpoint's connection happened; `None` once it is removed.
    pub fn timeline(&self, key: EndpointKey) -> Option<&Timeline> {
        self.by_key.get(&key).map(|&slot| &self.endpoints[slot].steps)
    }

    /// Makes a peer known: from now on it may connect. If its request waits already, it is served at once.
    pub fn add_endpoint(&mut self, key: EndpointKey, peer: ProcessName, address: Address, now: Instant) {
        if let Some(cause) = self.misuse(key, peer) {
            return self.report_failure(key, peer, ConnectCause::Misuse(cause));
        }
        let (local, psn) = (self.draw_id(), Psn(self.rng.next_u32() & 0xff_ffff));
        let slot = self.endpoints.insert(Endpoint {
            key,
            peer,
            address,
            local,
            psn,
            qpns: None,
            state: State::Idle,
            deadline: None,
            response: Duration::ZERO,
            far: None,
            in_window: false,
            abandoned: false,
            renewals: 0,
            since: now,
            steps: Timeline::default(),
        });
        self.by_key.insert(key, slot);
        self.by_peer.insert(peer, slot);
        self.by_id.insert(local, slot);
        match self.known_misfit(slot) {
            Some(theirs) => self.fail(slot, self.misfit_cause(&theirs), now),
            None => self.serve_parked(slot, now),
        }
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

    /// The endpoint has failed on this side: the peer is told that it has, and the endpoint waits for its removal.
    pub fn abandon_endpoint(&mut self, key: EndpointKey, now: Instant) {
        self.input_by_key(key, &Input::Abandon, now);
    }

    /// Removes every endpoint and refuses the requests that waited for one.
    pub fn close(&mut self, now: Instant) {
        let keys: Vec<EndpointKey> = self.by_key.keys().copied().collect();
        keys.into_iter().for_each(|key| self.remove_endpoint(key, now));
        self.dismiss_parked();
    }

    /// Data have come in on one of the endpoint's QPs: the peer is up, whether its RTU arrived or not.
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

    /// Acts on everything that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.timers.take_due(now) {
            match timer {
                Timer::Endpoint(slot) => self.endpoint_due(slot, now),
                Timer::Parked(peer) => self.parked_due(peer),
            }
        }
    }

    fn endpoint_due(&mut self, slot: usize, now: Instant) {
        self.endpoints[slot].deadline = None;
        self.input(slot, &Input::Timeout, now);
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

    /// A fresh id.
    fn draw_id(&mut self) -> CommId {
        self.last_id = self.last_id.following();
        self.last_id
    }

    fn mark(&mut self, slot: usize, step: Step, now: Instant) {
        self.endpoints[slot].steps.mark(step, now);
    }

    fn set_deadline(&mut self, slot: usize, at: Option<Instant>) {
        let endpoint = &mut self.endpoints[slot];
        self.timers.move_to(Timer::Endpoint(slot), endpoint.deadline, at);
        endpoint.deadline = at;
    }

    /// Waits for an answer to the `tries`-th repetition (0 = the first sending).
    fn arm(&mut self, slot: usize, tries: u32, now: Instant) {
        let wait = self.rng.jitter(self.params.wait_for(self.endpoints[slot].response, tries));
        self.set_deadline(slot, Some(now + wait));
    }

    /// Sends `message` to the endpoint's peer.
    fn send(&mut self, slot: usize, message: Message) {
        let address = self.endpoints[slot].address;
        self.send_to(Source::from(&address), address.incarnation, message);
    }

    fn send_to(&mut self, to: Source, incarnation: Incarnation, message: Message) {
        self.stats.sent += 1;
        let datagram = Datagram { from: self.local.address.incarnation, to: incarnation, message };
        self.actions.push_back(Action::Send { to, datagram });
    }

    fn reject(&mut self, slot: usize, rej: Rej) {
        self.send(slot, Message::Rej(rej));
    }

    /// Gives the connection up and reports why.
    fn fail(&mut self, slot: usize, cause: ConnectCause, now: Instant) {
        self.set_deadline(slot, None);
        self.leave_window(slot, now);
        self.forget_far(slot);
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
    fn connected(&mut self, slot: usize, remote: Remote, role: Role) {
        self.set_deadline(slot, None);
        self.stats.connected += 1;
        let endpoint = &mut self.endpoints[slot];
        endpoint.state = State::Connected { remote, role };
        self.actions.push_back(Action::Connected { key: endpoint.key });
    }

    /// Both sides' values are known: takes the QPs up.
    fn bring_up(&mut self, slot: usize, remote: Remote, role: Role, now: Instant) {
        self.set_deadline(slot, None);
        self.leave_window(slot, now);
        self.note_seen(slot, remote.id);
        self.note_far(slot, remote.qpns.first(), now);
        let endpoint = &mut self.endpoints[slot];
        endpoint.state = State::ToRts { remote, role, early: false };
        let (key, address, psn) = (endpoint.key, endpoint.address, endpoint.psn);
        self.actions.push_back(Action::BringUp { key, remote, address, psn });
    }

    /// True if the sender's queues are not ours.
    fn is_unlike(&self, hello: &Hello, queues: &Queues) -> bool {
        hello.layout != self.local.layout || *queues != self.local.queues
    }

    /// Why a peer with other queues is refused: ours are these.
    fn misfit_reason(&self) -> Reason {
        Reason::Queues(self.local.queues)
    }

    /// What is reported of a peer with other queues.
    fn misfit_cause(&self, theirs: &Queues) -> ConnectCause {
        ConnectCause::Queues { ours: self.local.queues.to_string(), theirs: theirs.to_string() }
    }

    /// The peer's first queue pair is this endpoint's from now on; an endpoint that had it before has lost it.
    fn note_far(&mut self, slot: usize, qpn: Qpn, now: Instant) {
        self.forget_far(slot);
        let far = Far::of(&self.endpoints[slot].address, qpn);
        if let Some(&holder) = self.far.get(&far) {
            self.input(holder, &Input::Displaced, now);
        }
        self.endpoints[slot].far = Some(far);
        self.far.insert(far, slot);
    }

    fn forget_far(&mut self, slot: usize) {
        if let Some(far) = self.endpoints[slot].far.take()
            && self.far.get(&far) == Some(&slot)
        {
            self.far.remove(&far);
        }
    }

    fn note_seen(&mut self, slot: usize, id: CommId) {
        let endpoint = &self.endpoints[slot];
        self.seen.insert(endpoint.peer, Seen { incarnation: endpoint.address.incarnation, last: id });
    }
}
