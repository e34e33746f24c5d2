//! The world of xrc: machines on several nodes in virtual time, over a network that misbehaves, with a model of the XRC domains that they
//! share and a stand-in for the transport.
//!
//! The transport does what the BTL does: it adds peers, connects when it has something to send, numbers its messages, renews what breaks, and
//! replaces endpoints that were disconnected (`transport`). The driver's part and the domains are in `driver`, datagrams and time in
//! `network`, what must hold in `checks`. Everything follows from one seed, which a failing test prints.

mod checks;
mod driver;
mod network;
mod process;
mod transport;

use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use cpc::ibcm::Params;
use cpc::wire::Source;
use cpc::wire::domain::Address;
use cpc::wire::listener::Address as Listener;
use cpc::wire::xrc::SrqNums;
use cpc::wire::{Depth, Incarnation, Layout, MAD_LEN};
use cpc::xrc::DomainId;
use cpc::xrc::machine::{Local, Machine, Terms};
use cpc::{EndpointKey, ProcessName};
use verbs::{Gid, Lid, Qpn, SrqNum};

use super::{Net, Odds};
use process::{End, Receiver};
pub use process::{Heard, Presence, Process};

/// After so long everything has come to its end: a silent peer is given up after some 19 s, as is a
/// DREQ; a request to a process without an endpoint for it after 60 s.
pub const BOUND: Duration = Duration::from_secs(100);
/// Steps for each pair that no world needs: the livelock detector.
const STEPS: u64 = 3_000;

type Bytes = Box<[u8; MAD_LEN]>;
/// A datagram: from where, to which queue pair.
type Packet = (Source, Qpn, Bytes);

enum News {
    Failed(usize, EndpointKey),
    Disconnected(usize, EndpointKey),
    Unknown(usize, ProcessName),
}

pub struct World {
    pub processes: Vec<Process>,
    pub receivers: HashMap<Qpn, Receiver>,
    net: Net<Packet>,
    /// What the machines have said to the transports.
    news: VecDeque<News>,
    /// Processes that have begun anew: what is said of them may be of their former lives.
    pub reborn: u64,
    number: u32,
}

/// Time, the network, and what is to go wrong.
impl Deref for World {
    type Target = Net<Packet>;

    fn deref(&self) -> &Net<Packet> {
        &self.net
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Net<Packet> {
        &mut self.net
    }
}

impl World {
    /// `nodes[i]` is the node of process i.
    pub fn new(nodes: &[usize], seed: u64) -> World {
        let mut world = World {
            processes: Vec::new(),
            receivers: HashMap::new(),
            net: Net::new("xrc", seed),
            news: VecDeque::new(),
            reborn: 0,
            number: 100,
        };
        for (index, &node) in nodes.iter().enumerate() {
            let process = world.birth(index, node, DomainId::new(1, node as u64));
            world.processes.push(process);
        }
        world
    }

    /// So many nodes with so many processes each, which know each other.
    pub fn grid(nodes: usize, per_node: usize, seed: u64) -> World {
        let places: Vec<usize> = (0..nodes * per_node).map(|index| index / per_node).collect();
        let mut world = World::new(&places, seed);
        world.meet_all();
        world
    }

    pub fn random(&mut self) -> u64 {
        self.net.random() >> 16
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.random() % limit as u64) as usize
    }

    fn number(&mut self) -> u32 {
        self.number += 1;
        self.number
    }

    fn birth(&mut self, index: usize, node: usize, domain: DomainId) -> Process {
        let lid = Lid(u16::try_from(node + 1).unwrap());
        let qpn = Qpn(self.number());
        // Later ones are higher, wherever the count begins.
        let incarnation =
            Incarnation((self.net.first_seed as u32).wrapping_sub(3).wrapping_add(self.number()));
        let listener =
            Listener { port: 1, mtu: 5, ethernet: false, lid, qpn, incarnation, gid: Gid([7; 16]) };
        let address = Address { listener, domain };
        let name = ProcessName(0x5_0000_0000 + index as u64);
        let srqs = SrqNums::new(&[SrqNum(self.number()), SrqNum(self.number())]).unwrap();
        let local = Local {
            name,
            address,
            layout: Layout::new([true, true]).unwrap(),
            srqs,
            terms: Terms {
                depth: Depth { responder_resources: 4, initiator_depth: 4 },
                pkey: 0xffff,
                sl: 0,
                ack_timeout: 20,
                retry_count: 7,
                rnr_retry: 7,
            },
        };
        let machine = Machine::new(local, Params::default(), self.random());
        Process::new(machine, name, node, address, srqs)
    }
}
