//! rdmacm in the simulated world: its machine, over a model of the kernel's connection manager
//! (`manager`).

use std::time::{Duration, Instant};

use cpc::rdmacm::Params;
use cpc::rdmacm::machine::{Call, IdEvent, Local, Machine, Refused};
use cpc::wire::ip::Address;
use cpc::wire::refusal::Refusal;
use cpc::wire::{HELLO_LEN, Hello};
use cpc::{EndpointKey, ProcessName};
use verbs::Qpn;

use super::machine::{Action, Machine as _};
pub use super::manager::News;
use super::manager::{Mad, Manager};
use super::pairs::{Data, Pair, Pairwise};
use super::process::Process;
use super::protocol::{Identity, Protocol, Spawned};
use super::{NetOf, World};

/// The least process has this address; a process's datagrams arrive at its node's manager, whatever
/// process runs there.
const NETWORK: u32 = 0x0a00_0000;

pub struct RdmaCm {
    manager: Manager,
}

/// Where the manager of a node is reached.
fn manager_of(address: &Address) -> Qpn {
    match address.socket.ip() {
        std::net::IpAddr::V4(ip) => Qpn(0x80_0000 + u32::from(ip) - NETWORK),
        std::net::IpAddr::V6(_) => unreachable!("the simulated network is one of IPv4"),
    }
}

pub fn private_data(hello: &Hello) -> Vec<u8> {
    let mut data = vec![0; HELLO_LEN];
    hello.emit(&mut data);
    data
}

/// What the machine is told of an id.
pub fn event<R>(news: &News<R>) -> IdEvent<'_> {
    match news {
        News::AddrResolved => IdEvent::AddrResolved,
        News::RouteResolved => IdEvent::RouteResolved,
        News::Request(..) => unreachable!("no id has been given to a request"),
        News::Response(data) => IdEvent::Response(data),
        News::Established => IdEvent::Established,
        News::Refused(data) => {
            IdEvent::Refused(Refusal::parse(data).map_or(Refused::Other(28), Refused::ByPeer))
        }
        News::NotListening => IdEvent::Refused(Refused::NotListening),
        News::Unreachable => IdEvent::Broken("it does not answer"),
        News::Disconnected => IdEvent::Disconnected,
    }
}

/// Feeds the machine what its manager has to say.
fn feed_news(process: &mut Process<RdmaCm>, now: Instant) -> bool {
    let (machine, manager) = (&mut process.machine, &mut process.own.manager);
    let Some((id, news)) = manager.next_news() else { return false };
    if let News::Request(connection, data) = &news {
        let id = machine.draw_id();
        manager.name(*connection, id);
        machine.request(id, data, now);
    } else {
        machine.event(id, event(&news), now);
    }
    true
}

/// Sends what the manager has to send.
fn flush(world: &mut World<RdmaCm>, me: usize) {
    while let Some((to, mad)) = world.processes[me].own.manager.next_datagram() {
        world.transmit(me, to, mad);
    }
}

impl Protocol for RdmaCm {
    type Machine = Machine;
    type Params = Params;
    type Address = Address;
    type Datagram = Mad;
    type Message = Data;
    type End = Pair;
    type Shared = ();
    const NAME: &'static str = "rdmacm";
    const SHIFT: u32 = 33;

    fn spawn(id: &Identity, params: &Params, net: &mut NetOf<RdmaCm>) -> Spawned<RdmaCm> {
        let ip = std::net::Ipv4Addr::from(NETWORK + u32::try_from(id.index).unwrap());
        let port = u16::try_from(1024 + id.number % 60_000).unwrap();
        let address = Address { socket: (ip, port).into(), incarnation: id.incarnation };
        let local = Local { name: id.name, address, layout: id.layout, id_per_qp: false };
        let manager = Manager::new(port, id.number);
        (Machine::new(local, params.clone(), net.random()), RdmaCm { manager }, address)
    }

    fn reach(address: &Address) -> Qpn {
        manager_of(address)
    }

    fn bytes(mad: &mut Mad) -> &mut [u8] {
        &mut mad.data
    }

    fn add(machine: &mut Machine, key: EndpointKey, name: ProcessName, at: Address, now: Instant) {
        machine.add_endpoint(key, name, at, now);
    }

    fn next_action(process: &mut Process<RdmaCm>, now: Instant) -> Option<Action<Call>> {
        loop {
            let action = process.machine.next_action();
            if action.is_some() || !feed_news(process, now) {
                return action;
            }
        }
    }

    fn call(world: &mut World<RdmaCm>, me: usize, call: Call) {
        let now = world.net.now;
        let manager = &mut world.processes[me].own.manager;
        match call {
            Call::Resolve { id, to, .. } => manager.resolve(id, manager_of(&to), to.socket.port()),
            Call::Route { id } => manager.route(id),
            Call::Connect { id, hello } => manager.connect(id, private_data(&hello), now),
            Call::Accept { id, hello } => manager.accept(id, private_data(&hello), now),
            Call::Establish { id } => manager.establish(id),
            Call::Notify { id } => manager.notify(id),
            Call::Refuse { id, why } => manager.refuse(id, why.emit().to_vec()),
            Call::Disconnect { id } => manager.disconnect(id, now),
            Call::Close { id } => manager.close(id),
            Call::CreateQps { key } => world.create_qps(me, key),
            Call::BringUp { key, id, remote } => {
                let psns = manager.psns(id);
                let (ours, psn) = psns.expect("queue pairs go up with the id of an open exchange");
                world.bring_up(me, key, (remote, psn), ours);
            }
            // tests/rdmacm_simulator.rs has iWARP.
            Call::Join { .. } | Call::AcceptJoin { .. } | Call::Order { .. } => {
                unreachable!("the simulated network is no iWARP one")
            }
        }
        flush(world, me);
    }

    fn datagram(world: &mut World<RdmaCm>, me: usize, from: Qpn, mad: &Mad) {
        world.processes[me].own.manager.datagram(from, mad);
        flush(world, me);
    }

    fn message(world: &mut World<RdmaCm>, data: Data) {
        world.deliver_data(data);
    }

    fn poll_timeout(process: &Process<RdmaCm>) -> Option<Instant> {
        process.machine.poll_timeout().into_iter().chain(process.own.manager.poll_timeout()).min()
    }

    fn handle_timeout(world: &mut World<RdmaCm>, me: usize) {
        world.processes[me].own.manager.handle_timeout(world.net.now);
        flush(world, me);
        world.processes[me].machine.handle_timeout(world.net.now);
    }

    fn connected(world: &mut World<RdmaCm>, me: usize, key: EndpointKey) {
        world.clear_to_send(me, key);
    }

    fn has_endpoint_for(world: &World<RdmaCm>, me: usize, peer: usize) -> bool {
        world.has_usable_end(me, peer)
    }

    fn killed(world: &mut World<RdmaCm>, me: usize) {
        world.processes[me].own.manager.close_all();
        flush(world, me);
    }
}

impl Pairwise for RdmaCm {
    /// Eight tries of 20 s each, and the pauses between them.
    const BOUND: Duration = Duration::from_secs(180);
    const HEALS: bool = false;
}
