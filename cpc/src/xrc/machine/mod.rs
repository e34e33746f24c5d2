//! The xrc protocol as a sans-I/O machine: events and `now` go in, [`Action`]s come out. See `xrc` for the protocol,
//! `core::machine` for what every manager's machine does.
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
//! `table.rs` holds the decision for every pair of state and input; `routing.rs` finds the link that a REQ belongs to; `restart.rs` knows
//! what it means that a peer has begun anew.
#![forbid(unsafe_code)]

mod action;
mod closing;
mod path;
mod receiver;
mod restart;
mod routing;
mod sender;
mod state;
mod table;

pub use crate::exchange::Terms;
pub use action::{Call, JoinError, PathId};
pub use state::{Direction, InputKind, Remote, StateKind};

use std::collections::HashMap;
use std::time::Instant;

use verbs::Qpn;

use self::path::{Node, Path, Stage};
use self::state::{Endpoint, Input, Own, State};
use crate::config::datagram::Params;
use crate::core::action as core_action;
use crate::core::kinds::Kinds;
use crate::core::machine::{Core, Hooks, Protocol};
use crate::core::stats::rows;
use crate::exchange::{self, DatagramProtocol, Exchange, Ids, Received, message_inputs};
use crate::wire::domain::{Address, Place};
use crate::wire::listener::Facing;
use crate::wire::xrc::{Req, SrqNums};
use crate::wire::{CommId, Layout, Reason};
use crate::{EndpointCommand, EndpointKey, ProcessName};

/// What the machine knows of its own process. It goes into each REQ and REP, and what peers send is held against it.
#[derive(Clone, Debug)]
pub struct Local {
    /// Its name.
    pub name: ProcessName,
    /// Where it listens, and its domain.
    pub address: Address,
    /// Number and kinds of its queues.
    pub layout: Layout,
    /// Their shared receive queues, in queue order.
    pub srqs: SrqNums,
    /// What it says of its queue pairs in every exchange.
    pub terms: Terms,
}

/// The last exchange that a peer has opened here, and where it was: older incarnations and, of this one, older ids are stale.
#[derive(Clone, Copy, Debug)]
struct Seen {
    address: Facing<Address>,
    last: CommId,
    epoch: u32,
}

/// What xrc's driver has to do: its own calls, and those of every manager.
pub type Action = core_action::Action<Call>;

/// What xrc keeps beside its links (protocol.md 8): the send queue pairs, one to each node, and what each peer's exchanges have come to.
#[derive(Debug, Default)]
pub struct Xrc {
    ids: Ids,
    last_path: u32,
    last_epoch: u32,
    paths: HashMap<PathId, Path>,
    nodes: HashMap<Place, Node>,
    /// Links to each peer that wait for the answer to their DREQ: a new endpoint of it waits for that, too.
    leaving: HashMap<ProcessName, u32>,
    /// Of peers that never answered our DREQ: the last exchange with them that is over.
    unanswered: HashMap<ProcessName, CommId>,
    seen: HashMap<ProcessName, Seen>,
}

/// xrc as a sans-I/O machine.
pub type Machine = Core<Xrc>;

impl Protocol for Xrc {
    type Params = Params;
    type Local = Local;
    type Endpoint = Endpoint;
    type Link = Exchange<Own>;
    type Request = Received<Req>;
    type Call = Call;

    const HOOKS: Hooks<Xrc> = Hooks {
        new: |rng| Xrc { ids: Ids::new(rng), ..Xrc::default() },
        basics: |local, params| (local.name, params.window),
        command: Machine::command_links,
        start: Machine::begin,
        release: Machine::detach,
        forgotten: Machine::link_gone,
        refuse_parked: |core, received, _| core.reject_req(&received, Reason::UnknownPeer),
        counters: |stats| {
            rows!(stats, "xrc":
                received sent repeated foreign malformed stale relearned ignored layout_refused
                parked senders joined gone connected failed)
        },
    };
}

impl DatagramProtocol for Xrc {
    type Req = Req;
    type Own = Own;

    const NAME: &'static str = "xrc";

    // There are no RTUs: the receiver has nothing to wait for.
    message_inputs!(Req: Mra Rej Rep Dreq);

    const EXCHANGE: exchange::Hooks<Xrc> = exchange::Hooks {
        our_listener: |local| &local.address.listener,
        terms: |local| &local.terms,
        ids: |own| &mut own.ids,
        listener: |own| own.address.listener(),
        remote: |link| link.state.remote().map(|remote| (remote.id, remote.qpn)),
        is_meant: Machine::ids_agree,
        route_req: Machine::route_known_req,
        // A REQ is not withdrawn: the DREQ of what it leads to ends it.
        withdrawn: |_, _, _, _| false,
        send: |to, datagram| Call::Send { to, datagram },
    };
}

impl Machine {
    /// Makes a peer known: from now on it may connect. If its request waits already, it is served at once. `label` is what its
    /// messages to us have to call themselves.
    pub fn add_endpoint(
        &mut self,
        key: EndpointKey,
        peer: ProcessName,
        address: impl Into<Facing<Address>>,
        label: u32,
        now: Instant,
    ) {
        if !self.admits(key, peer) {
            return;
        }
        let address = self.latest(peer, address.into());
        self.drop_stale_links(peer, address.listener.incarnation, now);
        self.list(key, peer, Endpoint::new(address, label));
        self.serve_parked(peer, now);
    }

    /// Send queue pairs that are not given back. For tests.
    pub fn paths(&self) -> usize {
        self.own.paths.len()
    }

    /// Where the endpoint's link in this direction stands; `None` if there is none. For logs and tests.
    pub fn link_state(&self, key: EndpointKey, direction: Direction) -> Option<StateKind> {
        let slot = self.endpoints.get(&key)?.links()[direction as usize];
        slot.map(|slot| self.links[slot].state.kind())
    }

    fn command_links(&mut self, key: EndpointKey, command: EndpointCommand, now: Instant) {
        let Some(endpoint) = self.endpoints.get(&key) else { return self.stats.ignored += 1 };
        let (outgoing, links) = (endpoint.outgoing, endpoint.links());
        match command {
            EndpointCommand::Connect if endpoint.is_idle() => self.start_link(key, now),
            EndpointCommand::Connect => self.stats.ignored += 1,
            EndpointCommand::Renew => match outgoing {
                Some(slot) => self.input(slot, &Input::Renew, now),
                None => self.stats.ignored += 1,
            },
            EndpointCommand::Remove => self.remove_links(key, links, now),
            EndpointCommand::Unlist => self.unlist_links(key, links, now),
            EndpointCommand::Abandon => self.abandon_links(key, links, now),
            // Directions are independent: what comes in says nothing about what goes out.
            EndpointCommand::FirstData => {}
        }
    }

    fn start_link(&mut self, key: EndpointKey, now: Instant) {
        if let Some(slot) = self.open_link(key, Direction::Out, now) {
            self.line_up(slot, now);
        }
    }

    fn remove_links(&mut self, key: EndpointKey, links: [Option<usize>; 2], now: Instant) {
        if let Some(endpoint) = self.endpoints.remove(&key) {
            self.by_peer.remove(&endpoint.peer);
        }
        links.into_iter().flatten().for_each(|slot| self.input(slot, &Input::Remove, now));
    }

    /// Unlist is Remove, and reported, where the peer has neither asked nor answered. One that has asked may send.
    fn unlist_links(&mut self, key: EndpointKey, links: [Option<usize>; 2], now: Instant) {
        let [outgoing, incoming] = links;
        let is_answered = outgoing.is_some_and(|slot| self.links[slot].remote().is_some());
        if incoming.is_some() {
            if let Some(endpoint) = self.endpoints.get_mut(&key) {
                endpoint.told_asked = true;
            }
            self.actions.push_back(core_action::Action::Asked { key });
        } else if is_answered {
            self.stats.ignored += 1;
        } else {
            self.remove_links(key, links, now);
            self.actions.push_back(core_action::Action::Unlisted { key });
        }
    }

    fn abandon_links(&mut self, key: EndpointKey, links: [Option<usize>; 2], now: Instant) {
        if let Some(endpoint) = self.endpoints.get_mut(&key) {
            endpoint.abandoned = true;
        }
        for slot in links.into_iter().flatten() {
            self.links[slot].failed = true;
            if self.links[slot].state.kind() != StateKind::Disconnected {
                self.input(slot, &Input::Remove, now);
            }
        }
    }

    /// The answer to [`Call::MakeSender`]: the send queue pair's number, or why there is none.
    pub fn sender_made(&mut self, path: PathId, made: Result<Qpn, String>, now: Instant) {
        let Some(known) = self.own.paths.get_mut(&path) else { return self.stats.ignored += 1 };
        let slot = known.carrier;
        if let Ok(qpn) = made {
            (known.qpn, known.stage) = (qpn, Stage::SenderCreated);
        }
        self.input(slot, &made.map_or_else(Input::SenderFailed, |_| Input::SenderCreated), now);
    }

    /// The answer to [`Call::RaiseSender`].
    pub fn sender_raised(&mut self, path: PathId, outcome: Result<(), String>, now: Instant) {
        let Some(known) = self.own.paths.get(&path) else { return self.stats.ignored += 1 };
        self.input(known.carrier, &outcome.map_or_else(Input::SenderDown, |()| Input::SenderUp), now);
    }

    /// The answer to [`Call::Join`]. Where the peer has made another epoch meanwhile, another answer is to come.
    pub fn joined(&mut self, link: CommId, epoch: u32, outcome: Result<Qpn, JoinError>, now: Instant) {
        let slot = self.own.ids.links.get(&link).copied();
        let expects = |slot: &usize| self.links[*slot].state.remote().is_some_and(|r| r.epoch == epoch);
        let Some(slot) = slot.filter(expects) else { return self.stats.ignored += 1 };
        self.input(slot, &outcome.map_or_else(Input::NoReceiverHeld, Input::ReceiverHeld), now);
    }

    /// A link of the endpoint, not yet begun.
    fn open_link(&mut self, key: EndpointKey, direction: Direction, now: Instant) -> Option<usize> {
        let local = self.own.ids.draw();
        let endpoint = self.endpoints.get(&key)?;
        let own = Own::new(endpoint, direction);
        let link = Exchange::new(local, endpoint.response, own);
        let slot = self.add_link(key, endpoint.peer, State::Queued, link, now);
        if let Some(endpoint) = self.endpoints.get_mut(&key) {
            *endpoint.link_mut(direction) = Some(slot);
        }
        self.own.ids.links.insert(local, slot);
        Some(slot)
    }

    fn note_seen(&mut self, slot: usize, last: CommId, epoch: u32) {
        let link = &self.links[slot];
        self.own.seen.insert(link.peer, Seen { address: link.address, last, epoch });
    }
}
