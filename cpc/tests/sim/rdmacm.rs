//! rdmacm in the simulated world: its machine, over a model of the kernel's connection manager (`manager`).

use std::time::{Duration, Instant};

use cpc::rdmacm::Params;
use cpc::rdmacm::machine::{Action, Call, IdEvent, Local, Machine, Refused, StateKind};
use cpc::wire::ip::Address;
use cpc::wire::refusal::Refusal;
use cpc::wire::{HELLO_LEN, Hello, Qpns};
use cpc::{EndpointCommand, EndpointKey, ProcessName};
use verbs::Qpn;
use verbs::cm::Token;

use super::manager::{Mad, Manager, News};
use super::protocol::{Birth, Peer, Protocol, Wish};

/// The least node has this address; a node's datagrams arrive at its manager, whatever process runs there.
const NETWORK: u32 = 0x0a00_0000;

pub struct RdmaCm {
    pub machine: Machine,
    manager: Manager,
}

/// Where the manager of a node is reached.
fn manager_of(address: &Address) -> Qpn {
    match address.socket.ip() {
        std::net::IpAddr::V4(ip) => Qpn(0x80_0000 + u32::from(ip) - NETWORK),
        std::net::IpAddr::V6(_) => unreachable!("the simulated network is one of IPv4"),
    }
}

fn private_data(hello: &Hello) -> Vec<u8> {
    let mut data = vec![0; HELLO_LEN];
    hello.emit(&mut data);
    data
}

impl RdmaCm {
    /// Feeds the machine what its manager has to say.
    fn hear(&mut self, now: Instant) -> bool {
        let Some((id, news)) = self.manager.next_news() else { return false };
        let event = match &news {
            News::Request(connection, data) => {
                let id = self.machine.draw_id();
                self.manager.name(*connection, id);
                self.machine.request(id, data, now);
                return true;
            }
            News::AddrResolved => IdEvent::AddrResolved,
            News::RouteResolved => IdEvent::RouteResolved,
            News::Response(data) => IdEvent::Response(data),
            News::Established => IdEvent::Established,
            News::Refused(data) => {
                IdEvent::Refused(Refusal::parse(data).map_or(Refused::Other(28), Refused::ByPeer))
            }
            News::NotListening => IdEvent::Refused(Refused::NotListening),
            News::Unreachable => IdEvent::Broken("it does not answer"),
            News::Disconnected => IdEvent::Disconnected,
        };
        self.machine.event(id, event, now);
        true
    }

    fn perform(&mut self, action: Action, now: Instant) -> Option<Wish<Mad>> {
        let manager = &mut self.manager;
        match action {
            Action::Call(Call::Resolve { id, to }) => manager.resolve(id, manager_of(&to), to.socket.port()),
            Action::Call(Call::Route { id }) => manager.route(id),
            Action::Call(Call::Connect { id, hello }) => manager.connect(id, private_data(&hello), now),
            Action::Call(Call::Accept { id, hello }) => manager.accept(id, private_data(&hello), now),
            Action::Call(Call::Establish { id }) => manager.establish(id),
            Action::Call(Call::Notify { id }) => manager.notify(id),
            Action::Call(Call::Refuse { id, why }) => manager.refuse(id, why.emit().to_vec()),
            Action::Call(Call::Disconnect { id }) => manager.disconnect(id, now),
            Action::Call(Call::Close { id }) => manager.close(id),
            Action::Call(Call::CreateQps { key }) => return Some(Wish::CreateQps { key }),
            Action::Call(Call::BringUp { key, id, remote }) => return Some(self.bring_up(key, id, &remote)),
            Action::Connected { key } => return Some(Wish::Connected { key }),
            Action::Failed { key, error } => return Some(Wish::Failed { key, error }),
            Action::Disconnected { key } => return Some(Wish::Disconnected { key }),
            Action::UnknownPeer { peer } => return Some(Wish::UnknownPeer { peer }),
            // tests/rdmacm_simulator.rs has iWARP.
            Action::Call(Call::Join { .. })
            | Action::Call(Call::AcceptJoin { .. })
            | Action::Call(Call::Order { .. }) => {
                unreachable!("the simulated network is no iWARP one")
            }
        }
        None
    }

    fn bring_up(&self, key: EndpointKey, id: Token, remote: &Qpns) -> Wish<Mad> {
        let (psn, theirs) = self.manager.psns(id).expect("queue pairs go up with the id of an open exchange");
        Wish::BringUp { key, remote: Peer { qpns: remote.as_slice().to_vec(), psn: theirs }, psn }
    }
}

impl Protocol for RdmaCm {
    type Params = Params;
    type Address = Address;
    type Datagram = Mad;
    type State = StateKind;
    /// Eight tries of 20 s each, and the pauses between them.
    const BOUND: Duration = Duration::from_secs(180);
    const HEALS: bool = false;
    const NAME: &'static str = "rdmacm";
    const UP: StateKind = StateKind::Connected;

    fn born(birth: Birth, params: &Params) -> (RdmaCm, Address) {
        let ip = std::net::Ipv4Addr::from(NETWORK + u32::try_from(birth.node).unwrap());
        let port = u16::try_from(1024 + birth.number % 60_000).unwrap();
        let address = Address { socket: (ip, port).into(), incarnation: birth.incarnation };
        let local = Local { name: birth.name, address, layout: birth.layout, id_per_qp: false };
        let manager = Manager::new(manager_of(&address), port, birth.number);
        (RdmaCm { machine: Machine::new(local, params.clone(), birth.seed), manager }, address)
    }

    fn reach(&self) -> Qpn {
        self.manager.reach()
    }

    /// The kernel posts as many receives on the queue pair of its manager.
    fn room(_: &Params) -> u32 {
        512
    }

    fn killed(&mut self) -> Vec<(Qpn, Mad)> {
        self.manager.close_all();
        std::iter::from_fn(|| self.manager.next_datagram()).collect()
    }

    fn add_endpoint(&mut self, key: EndpointKey, name: ProcessName, address: Address, now: Instant) {
        self.machine.add_endpoint(key, name, address, now);
    }

    fn connect(&mut self, key: EndpointKey, now: Instant) {
        self.machine.command(key, EndpointCommand::Connect, now);
    }

    fn remove_endpoint(&mut self, key: EndpointKey, now: Instant) {
        self.machine.command(key, EndpointCommand::Remove, now);
    }

    fn first_data(&mut self, key: EndpointKey, now: Instant) {
        self.machine.command(key, EndpointCommand::FirstData, now);
    }

    fn qps_created(&mut self, key: EndpointKey, qpns: Qpns, now: Instant) {
        self.machine.qps_created(key, Ok(qpns), now);
    }

    fn qps_up(&mut self, key: EndpointKey, now: Instant) {
        self.machine.qps_up(key, Ok(()), now);
    }

    fn datagram(&mut self, from: Qpn, mad: &Mad, now: Instant) {
        self.manager.datagram(from, mad, now);
    }

    fn wish(&mut self, now: Instant) -> Option<Wish<Mad>> {
        loop {
            if let Some((to, datagram)) = self.manager.next_datagram() {
                return Some(Wish::Send { to, datagram });
            }
            match self.machine.poll_action() {
                Some(action) => {
                    if let Some(wish) = self.perform(action, now) {
                        return Some(wish);
                    }
                }
                None if self.hear(now) => {}
                None => return None,
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.machine.poll_timeout().into_iter().chain(self.manager.poll_timeout()).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.manager.handle_timeout(now);
        self.machine.handle_timeout(now);
    }

    fn state(&self, key: EndpointKey) -> Option<StateKind> {
        self.machine.state(key)
    }

    fn is_spent(state: StateKind) -> bool {
        matches!(state, StateKind::Disconnected | StateKind::Failed)
    }

    fn corrupt(mad: &mut Mad, bit: usize) {
        if let Some(data) = mad.private_data_mut().filter(|data| !data.is_empty()) {
            let bit = bit % (data.len() * 8);
            data[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
