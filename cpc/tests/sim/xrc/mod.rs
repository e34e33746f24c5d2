//! xrc in the simulated world: machines on several nodes, with a model of the XRC domains that they
//! share.
//!
//! Here the transport also numbers its messages and renews what breaks (`transport`). What the
//! driver does, and the domains, are in `domain`, what must hold in `checks`.

mod checks;
mod domain;
mod transport;

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use cpc::ibcm::Params;
use cpc::wire::Layout;
use cpc::wire::domain::Address;
use cpc::wire::xrc::SrqNums;
use cpc::xrc::DomainId;
use cpc::xrc::machine::{Call, Local, Machine, PathId};
use cpc::{EndpointKey, ProcessName};
use verbs::{Qpn, SrqNum};

use super::ibcm::{Mad, TERMS, listener};
use super::protocol::{Identity, Protocol, Spawned};
use super::{Fault, NetOf};
use domain::{Receiver, Sender};
pub use transport::Heard;

/// After so long everything has come to its end: a silent peer is given up after some 19 s, as is a
/// DREQ; a request to a process without an endpoint for it after 60 s.
pub const BOUND: Duration = Duration::from_secs(100);

pub type World = super::World<Xrc>;

pub struct Xrc {
    pub node: usize,
    pub srqs: SrqNums,
    pub senders: HashMap<PathId, Sender>,
}

/// What a process was told when it was connected.
#[derive(Clone, Copy)]
pub struct Route {
    pub path: PathId,
    pub srqs: SrqNums,
    pub label: u32,
}

/// What the transport keeps of an endpoint.
#[derive(Default)]
pub struct Numbered {
    pub route: Option<Route>,
    /// The numbers of the next message to the peer and of the next one from it.
    pub next: u64,
    pub expected: u64,
}

impl World {
    /// `nodes[i]` is the node of process i.
    pub fn on_nodes(nodes: &[usize], seed: u64) -> World {
        let places: Vec<_> = nodes.iter().map(|&node| (node, DomainId::new(1, node as u64))).collect();
        World::new(places.len(), seed, &places)
    }

    /// So many nodes with so many processes each, which know each other.
    pub fn grid(nodes: usize, per_node: usize, seed: u64) -> World {
        let nodes: Vec<usize> = (0..nodes * per_node).map(|index| index / per_node).collect();
        let mut world = World::on_nodes(&nodes, seed);
        world.meet_all();
        world
    }
}

impl Protocol for Xrc {
    type Machine = Machine;
    /// The node and the domain of each process.
    type Params = Vec<(usize, DomainId)>;
    type Address = Address;
    type Datagram = Mad;
    type Message = Infallible;
    type End = Numbered;
    /// The receive queue pairs of all domains.
    type Shared = HashMap<Qpn, Receiver>;
    const NAME: &'static str = "xrc";
    const SHIFT: u32 = 16;

    fn spawn(id: &Identity, places: &Self::Params, net: &mut NetOf<Xrc>) -> Spawned<Xrc> {
        let (name, (node, domain)) = (id.name, places[id.index]);
        let address = Address { listener: listener(id, node), domain };
        let srqs = SrqNums::new(&[0, 1].map(|queue| SrqNum(id.number * 2 + queue))).unwrap();
        let layout = Layout::new([true, true]).unwrap();
        let local = Local { name, address, layout, srqs, terms: TERMS };
        let own = Xrc { node, srqs, senders: HashMap::new() };
        (Machine::new(local, Params::default(), net.draw()), own, address)
    }

    fn reach(address: &Address) -> Qpn {
        address.listener.qpn
    }

    fn bytes(mad: &mut Mad) -> &mut [u8] {
        &mut mad.bytes[..]
    }

    /// Draws once in all.
    fn draw_fault(net: &mut NetOf<Xrc>) -> Option<Fault> {
        let (odds, draw) = (net.odds, net.below(100) as u64);
        match draw {
            _ if draw < odds.drop => Some(Fault::Drop),
            _ if draw < odds.drop + odds.duplicate => Some(Fault::Duplicate),
            _ if draw < odds.drop + odds.duplicate + odds.delay => {
                Some(Fault::Delay(1 + net.below(30_000) as u32))
            }
            _ => None,
        }
    }

    /// The endpoint's key is what it is called by its peer.
    fn add(machine: &mut Machine, key: EndpointKey, name: ProcessName, at: Address, now: Instant) {
        machine.add_endpoint(key, name, at, key.index, now);
    }

    fn call(world: &mut World, me: usize, call: Call) {
        world.perform(me, call);
    }

    fn datagram(world: &mut World, me: usize, from: Qpn, mad: &Mad) {
        world.processes[me].machine.datagram(mad.source(from), &mad.bytes[..], world.net.now);
    }

    fn message(_: &mut World, never: Infallible) {
        match never {}
    }

    fn connected(_: &mut World, _: usize, _: EndpointKey) {
        unreachable!("xrc says Route")
    }

    fn failed(world: &mut World, me: usize, key: EndpointKey) {
        if let Some(peer) = world.peer_of(me, key) {
            world.remove(me, peer);
        }
    }

    fn has_endpoint_for(world: &World, me: usize, peer: usize) -> bool {
        world.processes[me].current.contains_key(&peer)
    }

    fn killed(world: &mut World, me: usize) {
        world.release(|(holder, _)| holder == me);
    }

    fn before_move(world: &mut World, me: usize) {
        world.params[me].1 = DomainId::new(2, u64::from(world.number()));
    }
}
