//! ibcm in the simulated world: its machine speaks datagrams itself.

use std::time::{Duration, Instant};

use cpc::ibcm::Params;
use cpc::ibcm::machine::{Call, Local, Machine, Terms};
use cpc::wire::listener::Address;
use cpc::wire::{Depth, Incarnation, Layout, MAD_LEN, Queues, Source};
use cpc::{EndpointKey, ProcessName};
use verbs::{Gid, Lid, Qpn};

use super::pairs::{Data, Pair, Pairwise};
use super::protocol::{Identity, Protocol, Spawned};
use super::{NetOf, World};

pub struct Ibcm;

/// A datagram, and the LID that it came from.
#[derive(Clone)]
pub struct Mad {
    pub lid: Lid,
    pub bytes: Box<[u8; MAD_LEN]>,
}

impl Mad {
    pub fn new(lid: Lid, emit: impl FnOnce(&mut [u8; MAD_LEN])) -> Mad {
        let mut bytes = Box::new([0; MAD_LEN]);
        emit(&mut bytes);
        Mad { lid, bytes }
    }

    pub fn source(&self, qpn: Qpn) -> Source {
        Source { qpn, lid: self.lid, gid: None, our_gid: None }
    }
}

pub const TERMS: Terms = Terms {
    depth: Depth { responder_resources: 4, initiator_depth: 4 },
    pkey: 0xffff,
    sl: 0,
    ack_timeout: 20,
    retry_count: 7,
    rnr_retry: 7,
};

/// The address of a process on this node.
pub fn listener(id: &Identity, node: usize) -> Address {
    Address {
        port: 1,
        mtu: 5,
        ethernet: false,
        lid: Lid(u16::try_from(node + 1).unwrap()),
        qpn: id.qpn,
        incarnation: Incarnation(id.incarnation),
        gid: Gid([7; 16]),
    }
}

/// As the plugin has them: a text, and a fingerprint of it.
fn queues(layout: Layout) -> Queues {
    let text = layout.to_string();
    Queues::new(text.bytes().fold(0, |sum, byte| sum * 3 + u32::from(byte)), &text)
}

impl Protocol for Ibcm {
    type Machine = Machine;
    type Params = Params;
    type Address = Address;
    type Datagram = Mad;
    type Message = Data;
    type End = Pair;
    type Shared = ();
    const NAME: &'static str = "ibcm";
    const SHIFT: u32 = 33;

    fn spawn(id: &Identity, params: &Params, net: &mut NetOf<Ibcm>) -> Spawned<Ibcm> {
        let (name, layout, address) = (id.name, id.layout, listener(id, id.index));
        let local = Local { name, address, layout, queues: queues(layout), terms: TERMS, srq: true };
        (Machine::new(local, params.clone(), net.random()), Ibcm, address)
    }

    fn reach(address: &Address) -> Qpn {
        address.qpn
    }

    fn room(params: &Params) -> u32 {
        params.recv_count
    }

    fn bytes(mad: &mut Mad) -> &mut [u8] {
        &mut mad.bytes[..]
    }

    fn add(machine: &mut Machine, key: EndpointKey, name: ProcessName, at: Address, now: Instant) {
        machine.add_endpoint(key, name, at, now);
    }

    fn call(world: &mut World<Ibcm>, me: usize, call: Call) {
        match call {
            Call::CreateQps { key } => world.create_qps(me, key),
            Call::BringUp { key, remote, psn, .. } => {
                world.bring_up(me, key, (remote.qpns, remote.psn), psn);
            }
            Call::Send { to, datagram } => {
                let lid = world.processes[me].address.lid;
                world.transmit(me, to.qpn, Mad::new(lid, |bytes| datagram.emit(bytes)));
            }
        }
    }

    fn datagram(world: &mut World<Ibcm>, me: usize, from: Qpn, mad: &Mad) {
        world.processes[me].machine.datagram(mad.source(from), &mad.bytes[..], world.net.now);
    }

    fn message(world: &mut World<Ibcm>, data: Data) {
        world.deliver_data(data);
    }

    fn connected(world: &mut World<Ibcm>, me: usize, key: EndpointKey) {
        world.clear_to_send(me, key);
    }

    fn has_endpoint_for(world: &World<Ibcm>, me: usize, peer: usize) -> bool {
        world.has_usable_end(me, peer)
    }
}

impl Pairwise for Ibcm {
    const BOUND: Duration = Duration::from_secs(100);
    const HEALS: bool = true;

    fn defaults() -> Vec<Params> {
        let of_plugin = Params { timeout: Duration::from_millis(500), max_retries: 25, ..Params::default() };
        vec![Params::default(), of_plugin]
    }
}
