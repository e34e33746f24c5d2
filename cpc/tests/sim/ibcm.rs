//! ibcm in the simulated world: its machine speaks datagrams itself.

use std::time::{Duration, Instant};

use cpc::ibcm::Params;
use cpc::ibcm::machine::{Action, Call, Local, Machine, StateKind, Terms};
use cpc::wire::Source;
use cpc::wire::listener::Address;
use cpc::wire::{Depth, Incarnation, Layout, MAD_LEN, Qpns, Queues};
use cpc::{EndpointCommand, EndpointKey, ProcessName};
use verbs::{Gid, Lid, Qpn};

use super::protocol::{Birth, Peer, Protocol, Wish};

/// A datagram, and the LID that it came from.
#[derive(Clone)]
pub struct Mad {
    lid: Lid,
    bytes: Box<[u8; MAD_LEN]>,
}

/// The machine, and where it is.
pub struct Ibcm {
    pub machine: Machine,
    address: Address,
}

/// As the plugin has them: a text, and a fingerprint of it.
fn queues(layout: Layout) -> Queues {
    let text = layout.to_string();
    Queues::new(text.bytes().fold(0, |sum, byte| sum * 3 + u32::from(byte)), &text)
}

impl Protocol for Ibcm {
    type Params = Params;
    type Address = Address;
    type Datagram = Mad;
    type State = StateKind;
    const BOUND: Duration = Duration::from_secs(100);
    const HEALS: bool = true;
    const NAME: &'static str = "ibcm";
    const UP: StateKind = StateKind::Connected;

    fn defaults() -> Vec<Params> {
        let of_plugin = Params { timeout: Duration::from_millis(500), max_retries: 25, ..Params::default() };
        vec![Params::default(), of_plugin]
    }

    fn born(birth: Birth, params: &Params) -> (Ibcm, Address) {
        let address = Address {
            port: 1,
            mtu: 5,
            ethernet: false,
            lid: Lid(u16::try_from(birth.node + 1).unwrap()),
            qpn: birth.qpn,
            incarnation: Incarnation(birth.incarnation),
            gid: Gid([7; 16]),
        };
        let local = Local {
            name: birth.name,
            address,
            layout: birth.layout,
            queues: queues(birth.layout),
            terms: Terms {
                depth: Depth { responder_resources: 4, initiator_depth: 4 },
                pkey: 0xffff,
                sl: 0,
                ack_timeout: 20,
                retry_count: 7,
                rnr_retry: 7,
            },
            srq: true,
        };
        (Ibcm { machine: Machine::new(local, params.clone(), birth.seed), address }, address)
    }

    fn reach(&self) -> Qpn {
        self.address.qpn
    }

    fn room(params: &Params) -> u32 {
        params.recv_count
    }

    /// The UD queue pair goes with its process, without a word.
    fn killed(&mut self) -> Vec<(Qpn, Mad)> {
        Vec::new()
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
        let from = Source { qpn: from, lid: mad.lid, gid: None };
        self.machine.datagram(from, &mad.bytes[..], now);
    }

    fn wish(&mut self, _: Instant) -> Option<Wish<Mad>> {
        Some(match self.machine.poll_action()? {
            Action::Call(Call::CreateQps { key }) => Wish::CreateQps { key },
            Action::Call(Call::BringUp { key, remote, psn, .. }) => {
                let remote = Peer { qpns: remote.qpns.as_slice().to_vec(), psn: remote.psn };
                Wish::BringUp { key, remote, psn }
            }
            Action::Call(Call::Send { to, datagram }) => {
                let mut bytes = Box::new([0; MAD_LEN]);
                datagram.emit(&mut bytes);
                Wish::Send { to: to.qpn, datagram: Mad { lid: self.address.lid, bytes } }
            }
            Action::Connected { key } => Wish::Connected { key },
            Action::Failed { key, error } => Wish::Failed { key, error },
            Action::Disconnected { key } => Wish::Disconnected { key },
            Action::UnknownPeer { peer } => Wish::UnknownPeer { peer },
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.machine.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.machine.handle_timeout(now);
    }

    fn state(&self, key: EndpointKey) -> Option<StateKind> {
        self.machine.state(key)
    }

    fn is_spent(state: StateKind) -> bool {
        matches!(state, StateKind::Disconnected | StateKind::Failed)
    }

    fn corrupt(mad: &mut Mad, bit: usize) {
        let bit = bit % (MAD_LEN * 8);
        mad.bytes[bit / 8] ^= 1 << (bit % 8);
    }
}
