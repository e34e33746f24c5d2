//! What every connection manager's machine does, written once: endpoints and their links, the
//! table's dispatch, deadlines, the window of requests, parked requests, what goes to the driver,
//! counters.
//!
//! ```text
//!   endpoint  what the main thread adds and removes; found by key and by the peer's name
//!   link      an exchange with a peer and the state it is in; it may outlive its endpoint, until the peer has let go
//!   input     what happens to a link; the manager's table has a handler for each pair of state and input
//!   action    what the driver has to do
//! ```
//! ibcm and rdmacm have one link an endpoint, xrc one for each direction. What a manager adds is
//! its [`Protocol`]; its handlers are methods of `Core<Ibcm>`, `Core<RdmaCm>` or `Core<Xrc>`.
//! Events and `now` go in, [`Action`]s come out: no I/O, no clock. Randomness comes in as one seed.

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Debug};
use std::time::Instant;

use slab::Slab;

use super::action::Action;
use super::kinds::Kinds;
use super::parking::Parking;
use super::rng::Rng;
use super::stats::Stats;
use super::timers::Timers;
use super::window::Window;
use crate::wire::{Layout, Qpns};
use crate::{EndpointCommand, EndpointKey, ProcessName, StreamNum, Timeline};

/// A link that waits for a place in the window: its slot, and its endpoint's key, in case the slot
/// has another link by then.
pub(crate) type Ticket = (usize, EndpointKey);

/// Which side opened the exchange that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This side.
    Active,
    /// The peer.
    Passive,
}

/// Why a parked request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissal {
    /// Its peer was not added in time.
    Late,
    /// This side closes.
    Closing,
}

/// The handler of one cell of a manager's table.
pub type Handler<P> = for<'a> fn(&mut Core<P>, usize, &<P as Table>::Input<'a>, Instant);

/// A manager's table, made by the macro `transitions`. The core knows five of its values.
pub trait Table: Sized {
    /// Where a link stands: the rows of the table.
    type State: Debug + Kinds;
    /// What can happen to a link: the columns of the table.
    type Input<'a>;

    /// The state of a link that waits for a place in the window.
    const QUEUED: <Self::State as Kinds>::Kind;
    /// The state of a link that has been given up.
    const FAILED: Self::State;
    /// The state of a link whose peer has left.
    const LEFT: Self::State;
    /// The state of a link whose peer is asked to let go.
    const LEAVING: <Self::State as Kinds>::Kind;
    /// What happens to a link when its deadline passes.
    const TIMEOUT: Self::Input<'static>;

    /// The handler of one cell.
    fn handler(state: &Self::State, input: &Self::Input<'_>) -> Handler<Self>
    where
        Self: Protocol;
}

/// A connection manager's protocol. The value holds its tables beside those of the core.
pub trait Protocol: Debug + Table {
    /// Its parameters.
    type Params: Debug;
    /// What this side brings into every exchange.
    type Local: Debug;
    /// What it keeps of an endpoint: the slot of its link, where it has one.
    type Endpoint: Debug;
    /// What it keeps of a link.
    type Link: Debug;
    /// A request that waits for its endpoint.
    type Request: Debug;
    /// What only this manager asks of its driver.
    type Call: Debug;

    /// What the core has it do.
    const HOOKS: Hooks<Self>;
}

/// What the core has a manager do.
#[derive(Debug)]
pub struct Hooks<P: Protocol> {
    /// Its tables, before there is an endpoint.
    pub new: fn(&mut Rng) -> P,
    /// The name of this process, and how many links may wait for their first answer at a time.
    pub basics: fn(&P::Local, &P::Params) -> (ProcessName, u32),
    /// A command of the main thread for the endpoint.
    pub command: fn(&mut Core<P>, EndpointKey, EndpointCommand, Instant),
    /// A queued link's turn has come.
    pub start: fn(&mut Core<P>, usize, Instant),
    /// The link's exchange is over: gives back what it holds, without a word about it.
    pub release: fn(&mut Core<P>, usize, Instant),
    /// The link is gone.
    pub forgotten: fn(&mut Core<P>, usize, &Link<P>),
    /// A parked request is given up.
    pub refuse_parked: fn(&mut Core<P>, P::Request, Dismissal),
    /// The counters that it uses, by name.
    pub counters: fn(&Stats) -> Vec<(&'static str, u64)>,
}

/// A protocol with one link an endpoint, for both directions, that has queue pairs of its own: ibcm
/// and rdmacm.
pub trait PeerProtocol: Protocol<Endpoint = usize> {
    /// What the core has it do besides.
    const PEER_HOOKS: PeerHooks<Self>;
}

/// What the core has a manager do whose links have queue pairs.
#[derive(Debug)]
pub struct PeerHooks<P: Protocol> {
    /// Number and kinds of the queues of this side.
    pub layout: fn(&P::Local) -> Layout,
    /// The link's queue pairs are made, and as many as there are queues: keeps their numbers, and goes on.
    pub take_qps: fn(&mut Core<P>, usize, Qpns, Instant),
    /// The link's connection is to be taken down: asks the peer to let go.
    pub start_disconnect: fn(&mut Core<P>, usize, Instant),
}

/// An endpoint, from its adding to its removal. What the manager keeps of it is read as its own
/// fields.
#[derive(Debug)]
pub struct Endpoint<E> {
    pub(crate) peer: ProcessName,
    /// When the steps of its connection happened.
    pub(crate) steps: Timeline,
    pub(crate) own: E,
}

/// What a manager keeps of something is read as its own fields.
macro_rules! reads_as_own {
    ([$($generic:tt)*] $Type:ty => $Own:ty) => {
        impl<$($generic)*> std::ops::Deref for $Type {
            type Target = $Own;

            fn deref(&self) -> &$Own {
                &self.own
            }
        }

        impl<$($generic)*> std::ops::DerefMut for $Type {
            fn deref_mut(&mut self) -> &mut $Own {
                &mut self.own
            }
        }
    };
}

reads_as_own!([E] Endpoint<E> => E);
reads_as_own!([P: Protocol] Link<P> => P::Link);

pub(crate) use reads_as_own;

/// An exchange with a peer. What the manager keeps of it is read as its own fields.
pub struct Link<P: Protocol> {
    pub(crate) key: EndpointKey,
    pub(crate) peer: ProcessName,
    pub(crate) state: P::State,
    pub(super) deadline: Option<Instant>,
    /// It has one of the places for requests that wait for their first answer.
    pub(super) in_window: bool,
    /// When the exchange began.
    pub(crate) since: Instant,
    /// How often it was tried again, or its last message repeated.
    pub(crate) tries: u32,
    /// Our end has failed, and the peer is told so.
    pub(crate) failed: bool,
    /// P and S queues: the stream that our endpoint goes on with; once both sides' values are known, the one they have agreed upon.
    pub(crate) stream: StreamNum,
    pub(super) own: P::Link,
}

impl<P: Protocol> fmt::Debug for Link<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link of {:?} to {}: {:?}, {:?}", self.key, self.peer, self.state, self.own)
    }
}

/// The machine of a connection manager. See the module's description.
pub struct Core<P: Protocol> {
    /// This process.
    pub(crate) me: ProcessName,
    pub(crate) local: P::Local,
    pub(crate) params: P::Params,
    pub(crate) rng: Rng,
    pub(crate) endpoints: HashMap<EndpointKey, Endpoint<P::Endpoint>>,
    pub(crate) by_peer: HashMap<ProcessName, EndpointKey>,
    pub(crate) links: Slab<Link<P>>,
    pub(crate) parked: Parking<P::Request>,
    pub(crate) timers: Timers,
    pub(crate) window: Window<Ticket>,
    pub(crate) actions: VecDeque<Action<P::Call>>,
    pub(crate) stats: Stats,
    /// The manager's own tables.
    pub(crate) own: P,
}

impl<P: Protocol> fmt::Debug for Core<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("links", &self.links).field("own", &self.own).finish_non_exhaustive()
    }
}
