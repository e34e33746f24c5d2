//! The rdmacm protocol as a sans-I/O machine: events of ids and `now` go in, [`Action`]s come out. See `rdmacm` for the protocol,
//! `core::machine` for what every manager's machine does.
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

pub use action::{Call, First};
pub use state::{InputKind, Refused, StateKind};

use std::collections::HashMap;
use std::time::Instant;

use verbs::cm::Token;

use self::state::{Incoming, Input, Own, State};
use crate::config::rdmacm::Params;
use crate::core::action as core_action;
use crate::core::machine::{Core, Dismissal, Hooks, PeerHooks, PeerProtocol, Protocol};
use crate::core::stats::rows;
use crate::wire::ip::Address;
use crate::wire::join::Join;
use crate::wire::refusal::Refusal;
use crate::wire::{Hello, Layout, WireError};
use crate::{ConnectCause, EndpointKey, ProcessName};

/// What the machine knows of its own process. It goes into the private data, and what peers send is held against it.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// Its name.
    pub name: ProcessName,
    /// Where it listens.
    pub address: Address,
    /// Number and kinds of its queues.
    pub layout: Layout,
    /// iWARP: a connection ends at one queue pair, so each needs an id of its own.
    pub id_per_qp: bool,
}

/// What happened to an id.
#[derive(Clone, Copy, Debug)]
pub enum IdEvent<'a> {
    /// The peer's address is resolved: the id is bound to a device and a port.
    AddrResolved,
    /// The route to the peer is known.
    RouteResolved,
    /// The peer agreed, with these private data.
    Response(&'a [u8]),
    /// Both sides are up.
    Established,
    /// The peer, or its connection manager, has refused our request or reply.
    Refused(Refused),
    /// Nothing comes of it, or comes over it any more, and why.
    Broken(&'a str),
    /// The connection manager did not take our confirmation, and why.
    Unconfirmed(&'a str),
    /// The peer has taken it down, or has agreed to that.
    Disconnected,
}

/// Whose an id is.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Link(usize),
    /// iWARP: of an endpoint, for this queue.
    Stream(usize, usize),
    /// iWARP: of a peer's request that waits until ours is refused.
    Crossing(usize),
    Parked(ProcessName),
}

/// What the driver has to do. A call that fails is answered with [`IdEvent::Broken`].
pub type Action = core_action::Action<Call>;

/// What rdmacm keeps beside its links (protocol.md 7): whose each id of the kernel's manager is.
#[derive(Debug, Default)]
pub struct RdmaCm {
    last_id: usize,
    by_id: HashMap<Token, Owner>,
}

/// rdmacm as a sans-I/O machine.
pub type Machine = Core<RdmaCm>;

impl Protocol for RdmaCm {
    type Params = Params;
    type Local = Local;
    type Endpoint = usize;
    type Link = Own;
    type Request = Incoming;
    type Call = Call;

    const HOOKS: Hooks<RdmaCm> = Hooks {
        new: |_| RdmaCm::default(),
        basics: |local, params| (local.name, params.window),
        command: Machine::command_link,
        start: Machine::resolve,
        release: |core, slot, _| {
            core.close_id(slot);
            core.refuse_crossing(slot, Refusal::Failed);
        },
        forgotten: |core, slot, link| core.unlist(slot, link.key),
        refuse_parked: |core, request, why| match why {
            Dismissal::Late => core.refuse(request.id, Refusal::UnknownPeer),
            Dismissal::Closing => core.refuse(request.id, Refusal::Closing),
        },
        counters: |stats| {
            rows!(stats, "rdmacm":
                asked requests retried malformed late ignored raced layout_refused parked
                connected failed first_data)
        },
    };
}

impl PeerProtocol for RdmaCm {
    const PEER_HOOKS: PeerHooks<RdmaCm> = PeerHooks {
        layout: |local| local.layout,
        take_qps: Machine::take_qps,
        start_disconnect: Machine::begin_disconnect,
    };
}

impl Machine {
    /// Makes a peer known: from now on it may connect. If its request waits already, it is served at once.
    pub fn add_endpoint(&mut self, key: EndpointKey, peer: ProcessName, address: Address, now: Instant) {
        if self.admits(key, peer) {
            let slot = self.add_link(key, peer, State::Idle, Own::new(address), now);
            self.list(key, peer, slot);
            self.serve_parked(slot, now);
        }
    }

    /// A name for an id; never 0, which is the listener's.
    pub fn draw_id(&mut self) -> Token {
        self.own.last_id = self.own.last_id.wrapping_add(1).max(1);
        Token(self.own.last_id)
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
        let request = Incoming { id, qpns: hello.qpns, stream: hello.stream };
        match self.slot_of_peer(hello.name) {
            Some(slot) => self.input(slot, &Input::Request(request), now),
            None => self.park(hello.name, request, now),
        }
    }

    fn parse(&self, private_data: &[u8]) -> Result<Hello, WireError> {
        if self.local.id_per_qp { Hello::parse_any(private_data) } else { Hello::parse(private_data) }
    }

    /// Something happened to an id.
    pub fn event(&mut self, id: Token, event: IdEvent<'_>, now: Instant) {
        match (self.own.by_id.get(&id).copied(), event) {
            (Some(Owner::Link(slot)), event) => self.endpoint_event(slot, event, now),
            (Some(Owner::Stream(slot, queue)), event) => self.stream_event(slot, queue, event, now),
            // The peer has let go of a request that waits: for the refusal of ours, or for an endpoint.
            (Some(owner), IdEvent::Refused(_) | IdEvent::Broken(_) | IdEvent::Disconnected) => {
                let request = match owner {
                    Owner::Crossing(slot) => self.links[slot].crossing.take(),
                    Owner::Parked(peer) => self.unpark(peer),
                    Owner::Link(_) | Owner::Stream(..) => None,
                };
                request.into_iter().for_each(|request| self.close_one(request.id));
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
            IdEvent::Unconfirmed(why) => self.input(slot, &Input::Unconfirmed(why), now),
            IdEvent::Disconnected => self.input(slot, &Input::Disconnected, now),
        }
    }

    /// The device is gone: nothing comes up any more, and nothing stays.
    pub fn device_removed(&mut self, now: Instant) {
        for slot in self.slots() {
            match self.links[slot].state {
                State::Connected { .. } => self.dreq_received(slot, now),
                _ => self.lose(slot, "the RDMA device was removed", now),
            }
        }
    }

    /// The connection manager does not tell any more what happens: nothing comes up, what is up stays.
    pub fn events_lost(&mut self, why: &str, now: Instant) {
        for slot in self.slots() {
            match self.links[slot].state {
                State::Connected { .. } => {}
                _ => self.lose(slot, why, now),
            }
        }
    }

    fn slots(&self) -> Vec<usize> {
        self.endpoints.values().map(|endpoint| endpoint.own).collect()
    }

    fn lose(&mut self, slot: usize, why: &str, now: Instant) {
        match self.links[slot].state {
            State::Failed | State::Disconnected | State::DreqSent => {}
            _ => self.fail(slot, ConnectCause::Verbs(why.to_owned()), now),
        }
    }

    /// What we say of ourselves; `None` before the QPs are made.
    fn hello(&self, slot: usize) -> Option<Hello> {
        let qpns = self.links[slot].qpns?;
        Some(Hello {
            layout: self.local.layout,
            name: self.local.name,
            qpns,
            stream: self.links[slot].stream,
        })
    }

    fn take_id(&mut self, slot: usize, id: Token) {
        self.links[slot].id = Some(id);
        self.own.by_id.insert(id, Owner::Link(slot));
    }

    fn close_id(&mut self, slot: usize) {
        if let Some(id) = self.links[slot].id.take() {
            self.close_one(id);
        }
        self.close_streams(slot);
    }

    fn close_one(&mut self, id: Token) {
        self.own.by_id.remove(&id);
        self.call(Call::Close { id });
    }

    fn refuse(&mut self, id: Token, why: Refusal) {
        self.own.by_id.remove(&id);
        self.call(Call::Refuse { id, why });
    }
}
