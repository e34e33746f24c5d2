//! The ibcm protocol as a sans-I/O machine: events and `now` go in, [`Action`]s come out. See `ibcm` for the protocol, `core::machine` for
//! what every manager's machine does.
//!
//! ```text
//!            connect             QPs made            REP                QPs up, RTU sent
//!   Idle ------------> Queued -----> Creating -> ReqSent -------> ToRts ---------> Connected  (active)
//!    |                                   |          | crossing REQ that wins
//!    | REQ                               v          v
//!    +----------------------------> Creating ---> ToRts ---> RepSent ------------> Connected  (passive)
//!                                                  QPs up, REP sent    RTU or first data
//!   ToRts, RepSent, Connected -- remove --> DreqSent -- DREP --> TimeWait --> gone
//!                             -- DREQ, REJ, new REQ --> Disconnected  (reported, waits for remove)
//!   any before Connected      -- retries used up, REJ, verbs error --> Failed  (reported, waits for remove)
//!   ToRts, RepSent, Connected -- abandon --> DreqSent -- DREP --> Failed (the peer has heard of it)
//! ```
//! `table.rs` holds the decision for every pair of state and input; `routing.rs` finds the endpoint that a REQ belongs to.
#![forbid(unsafe_code)]

mod active;
mod closing;
mod passive;
mod routing;
mod state;
mod table;

pub use crate::exchange::Terms;
pub use state::{InputKind, Remote, StateKind};

use std::collections::HashMap;
use std::time::{Duration, Instant};

use verbs::{Psn, Qpn};

use self::state::{Input, Own, RemoteQp, State};
use crate::config::datagram::Params;
use crate::core::action;
use crate::core::kinds::Kinds;
use crate::core::machine::{Core, Hooks, PeerHooks, PeerProtocol, Protocol, Role};
use crate::core::stats::rows;
use crate::exchange::{self, DatagramProtocol, Exchange, Ids, Received, message_inputs};
use crate::wire::listener::{Address, Facing};
use crate::wire::{CommId, Datagram, Hello, Incarnation, Layout, Message, Queues, Reason, Req, Source};
use crate::{ConnectCause, EndpointKey, ProcessName};

/// What the machine knows of its own process. It goes into each REQ and REP, and what peers send is held against it.
#[derive(Clone, Debug)]
pub struct Local {
    /// Its name.
    pub name: ProcessName,
    /// Where it listens.
    pub address: Address,
    /// Number and kinds of its queues.
    pub layout: Layout,
    /// Its queues in full.
    pub queues: Queues,
    /// What it says of its queue pairs in every exchange.
    pub terms: Terms,
    /// True if any queue is shared.
    pub srq: bool,
}

/// What the driver of ibcm does for the machine, besides what all managers ask for. An answer, where one is named, is due whether the call
/// works or fails.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "on the connection path only")]
pub enum Call {
    /// Make the endpoint's QPs, in INIT, and answer with `qps_created`.
    CreateQps { key: EndpointKey },
    /// Take the QPs to RTS, starting with `psn` and connected to those of the peer at `address`; answer with `qps_up`.
    BringUp { key: EndpointKey, remote: Remote, address: Facing<Address>, psn: Psn },
    /// Send a datagram. It may be lost, the machine repeats it.
    Send { to: Source, datagram: Datagram },
}

/// What ibcm's driver has to do: its own calls, and those of every manager.
pub type Action = action::Action<Call>;

/// The last exchange that a peer's incarnation has opened here: older ids of it are stale.
#[derive(Clone, Copy, Debug)]
struct Seen {
    incarnation: Incarnation,
    last: CommId,
}

/// What ibcm keeps beside its links (protocol.md 5): the exchanges that peers have opened, so that a late datagram of an older one is known.
#[derive(Debug, Default)]
pub struct Ibcm {
    ids: Ids,
    /// The links that the peers' queue pairs are connected to.
    remote_qps: HashMap<RemoteQp, usize>,
    seen: HashMap<ProcessName, Seen>,
    /// Incarnations that have asked with other queues before they had an endpoint here.
    misfits: HashMap<ProcessName, (Incarnation, Queues)>,
}

/// ibcm as a sans-I/O machine.
pub type Machine = Core<Ibcm>;

impl Protocol for Ibcm {
    type Params = Params;
    type Local = Local;
    type Endpoint = usize;
    type Link = Exchange<Own>;
    type Request = Received<Req>;
    type Call = Call;

    const HOOKS: Hooks<Ibcm> = Hooks {
        new: |rng| Ibcm { ids: Ids::new(rng), ..Ibcm::default() },
        basics: |local, params| (local.name, params.window),
        command: Machine::command_link,
        start: Machine::start_creating,
        release: |core, slot, _| core.release_remote_qp(slot),
        forgotten: |core, slot, link| {
            core.unlist(slot, link.key);
            core.own.ids.links.remove(&link.local);
        },
        refuse_parked: |core, received, _| core.reject_req(&received, Reason::UnknownPeer),
        counters: |stats| {
            rows!(stats, "ibcm":
                received sent repeated foreign malformed stale ignored relearned raced
                layout_refused parked connected failed first_data)
        },
    };
}

impl PeerProtocol for Ibcm {
    const PEER_HOOKS: PeerHooks<Ibcm> = PeerHooks {
        layout: |local| local.layout,
        take_qps: Machine::take_qps,
        start_disconnect: Machine::begin_disconnect,
    };
}

impl DatagramProtocol for Ibcm {
    type Req = Req;
    type Own = Own;

    const NAME: &'static str = "ibcm";

    message_inputs!(Req: Mra Rej Rep Rtu Dreq);

    const EXCHANGE: exchange::Hooks<Ibcm> = exchange::Hooks {
        our_listener: |local| &local.address,
        terms: |local| &local.terms,
        ids: |own| &mut own.ids,
        listener: |own| own.address,
        remote: |link| link.state.remote().map(|remote| (remote.id, remote.qpns.first())),
        is_meant: |core, slot, message| match message {
            // A REP says for itself: a twin of an old one is disowned.
            Message::Rep(_) => true,
            Message::Dreq(dreq) => core.ids_agree(slot, message) && core.is_ours(slot, dreq),
            _ => core.ids_agree(slot, message),
        },
        route_req: Machine::route_known_req,
        withdrawn: Machine::take_withdrawal,
        send: |to, datagram| Call::Send { to, datagram },
    };
}

impl Machine {
    /// Makes a peer known: from now on it may connect. If its request waits already, it is served at once.
    pub fn add_endpoint(
        &mut self,
        key: EndpointKey,
        peer: ProcessName,
        address: impl Into<Facing<Address>>,
        now: Instant,
    ) {
        if !self.admits(key, peer) {
            return;
        }
        let (local, psn) = (self.own.ids.draw(), Psn(self.rng.next_u32() & 0xff_ffff));
        let own = Exchange::new(local, Duration::ZERO, Own::new(address.into(), psn));
        let slot = self.add_link(key, peer, State::Idle, own, now);
        self.list(key, peer, slot);
        self.own.ids.links.insert(local, slot);
        match self.known_misfit(slot) {
            Some(theirs) => {
                self.refuse_parked_misfit(peer);
                self.fail(slot, self.misfit_cause(&theirs), now);
            }
            None => self.serve_parked(peer, now),
        }
    }

    /// A request that waits for an endpoint, of a process whose queues are known to be others than ours: kept, it would be told anew with
    /// each endpoint that fails for that.
    fn refuse_parked_misfit(&mut self, peer: ProcessName) {
        if let Some(received) = self.parked.take(peer, &mut self.timers) {
            self.reject_req(&received, self.misfit_reason());
        }
    }

    /// True if something of this side is still on its way up or down. For tests.
    pub fn is_busy(&self) -> bool {
        use StateKind::{Creating, DreqSent, Queued, RepSent, ReqSent, ToRts};
        let busy = [Queued, Creating, ReqSent, ToRts, RepSent, DreqSent];
        self.links.iter().any(|(_, link)| busy.contains(&link.state.kind()))
    }

    /// Both sides' values are known: takes the QPs up.
    fn bring_up(&mut self, slot: usize, remote: Remote, role: Role, now: Instant) {
        self.set_deadline(slot, None);
        self.leave_window(slot, now);
        self.note_seen(slot, remote.id);
        self.take_remote_qp(slot, remote.qpns.first(), now);
        self.agree(slot, role, remote.stream);
        let link = &mut self.links[slot];
        link.state = State::ToRts { remote, role, early: false };
        let (key, address, psn) = (link.key, link.address, link.psn);
        self.call(Call::BringUp { key, remote, address, psn });
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

    /// The peer's first queue pair is this link's from now on; a link that had it before has lost it.
    fn take_remote_qp(&mut self, slot: usize, qpn: Qpn, now: Instant) {
        self.release_remote_qp(slot);
        let qp = RemoteQp::of(&self.links[slot].address, qpn);
        if let Some(&holder) = self.own.remote_qps.get(&qp) {
            self.input(holder, &Input::Displaced, now);
        }
        self.links[slot].remote_qp = Some(qp);
        self.own.remote_qps.insert(qp, slot);
    }

    fn release_remote_qp(&mut self, slot: usize) {
        if let Some(qp) = self.links[slot].remote_qp.take()
            && self.own.remote_qps.get(&qp) == Some(&slot)
        {
            self.own.remote_qps.remove(&qp);
        }
    }

    fn note_seen(&mut self, slot: usize, id: CommId) {
        let link = &self.links[slot];
        let seen = Seen { incarnation: link.address.incarnation, last: id };
        self.own.seen.insert(link.peer, seen);
    }
}
