//! A small world of connection managers in virtual time: a network that misbehaves, and a stand-in for the transport on every node.
//!
//! Any manager's sans-I/O machine fits (`protocol`): ibcm's speaks datagrams itself (`ibcm`), rdmacm's speaks to a model of the
//! kernel's manager (`rdmacm`, `manager`), whose datagrams cross the same network. The transport does what the BTL does: it adds
//! peers, connects when it has something to send, posts its buffers and sends a clear-to-send once connected, sends its first
//! fragment once it has the peer's, reports first data, and replaces endpoints that were disconnected.
//!
//! Everything follows from one seed; a world that is dropped by a failing test prints it, and `OXIB_SIM_SEED` sets it.
#![allow(dead_code, reason = "each test binary uses a part")]

mod checks;
pub mod faults;
pub mod ibcm;
mod manager;
pub mod net;
mod node;
pub mod protocol;
pub mod rdmacm;
pub mod xrc;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use cpc::wire::{Layout, Qpns};
use cpc::{EndpointKey, ProcessName};
use verbs::Qpn;

pub use self::faults::{Fault, Odds};
pub use self::net::{HOP, Net};
use self::node::{End, Node, RepSent};
use self::protocol::{Birth, Protocol, Wish};

pub const QUEUES: usize = 3;
#[derive(Clone)]
pub enum Packet<D> {
    /// A datagram that waited in the receive queue of a busy node until it was its turn.
    Served {
        node: usize,
        from: Qpn,
        datagram: D,
    },
    Datagram {
        from: Qpn,
        to: Qpn,
        datagram: D,
    },
    Data {
        from: Qpn,
        to: Qpn,
        tries: u32,
    },
}

pub struct World<P: Protocol> {
    pub nodes: Vec<Node<P>>,
    net: Net<Packet<P::Datagram>>,
    due: BTreeSet<(Instant, usize)>,
    /// Nodes that have been told something, in order.
    told: VecDeque<usize>,
    by_reach: HashMap<Qpn, usize>,
    by_name: HashMap<ProcessName, usize>,
    owners: HashMap<Qpn, (usize, EndpointKey)>,
    births: u32,
    next_qpn: u32,
    params: P::Params,
}

/// The seed of a test's worlds: `OXIB_SIM_SEED`, or the one given. It is printed; cargo shows that when the test fails.
pub fn seed(default: u64) -> u64 {
    let seed = std::env::var("OXIB_SIM_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    println!("seed {seed}");
    seed
}

pub fn layout() -> Layout {
    Layout::new([false, true, true]).unwrap()
}

/// Time, the network, and what is to go wrong.
impl<P: Protocol> Deref for World<P> {
    type Target = Net<Packet<P::Datagram>>;

    fn deref(&self) -> &Self::Target {
        &self.net
    }
}

impl<P: Protocol> DerefMut for World<P> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.net
    }
}

impl<P: Protocol> World<P> {
    pub fn new(nodes: usize, seed: u64, params: &P::Params) -> World<P> {
        let mut world = World {
            nodes: Vec::new(),
            net: Net::new(P::NAME, seed),
            due: BTreeSet::new(),
            told: VecDeque::new(),
            by_reach: HashMap::new(),
            by_name: HashMap::new(),
            owners: HashMap::new(),
            births: 0,
            next_qpn: 100,
            params: params.clone(),
        };
        for index in 0..nodes {
            let node = world.birth(index, layout());
            world.nodes.push(node);
        }
        world
    }

    /// Two nodes that know each other.
    pub fn pair(seed: u64) -> World<P> {
        let mut world = World::new(2, seed, &P::Params::default());
        world.add(0, 1);
        world.add(1, 0);
        world
    }

    fn birth(&mut self, index: usize, layout: Layout) -> Node<P> {
        let name = ProcessName(0x5_0000_0000 + index as u64);
        self.births += 1;
        let birth = Birth {
            node: index,
            qpn: self.qpn(),
            number: self.births,
            // Later births have higher ones, wherever the count begins.
            incarnation: u32::try_from(self.net.first_seed & 0xffff_ffff)
                .unwrap()
                .wrapping_sub(3)
                .wrapping_add(self.births),
            name,
            layout,
            seed: self.random(),
        };
        let (manager, address) = P::born(birth, &self.params);
        self.by_reach.insert(manager.reach(), index);
        self.by_name.insert(name, index);
        Node {
            manager,
            name,
            address,
            published: address,
            ends: HashMap::new(),
            current: BTreeMap::new(),
            wants: Vec::new(),
            failures: Vec::new(),
            disconnects: 0,
            unknown: Vec::new(),
            events: VecDeque::new(),
            generation: 0,
            welcoming: true,
            persistent: true,
            deaf: false,
            service: Duration::ZERO,
            busy_until: self.net.start,
            overrun: 0,
            due: None,
        }
    }

    pub fn set_layout(&mut self, node: usize, layout: Layout) {
        self.by_reach.remove(&self.nodes[node].manager.reach());
        self.nodes[node] = self.birth(node, layout);
    }

    fn qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn(self.next_qpn)
    }

    // What the transport does.

    pub fn add(&mut self, node: usize, peer: usize) -> EndpointKey {
        let (name, address, now) = (self.nodes[peer].name, self.nodes[peer].published, self.net.now);
        let me = &mut self.nodes[node];
        me.generation += 1;
        let key = EndpointKey { index: u32::try_from(peer).unwrap(), generation: me.generation };
        me.ends.insert(key, End::new(peer, address));
        me.current.insert(peer, key);
        me.manager.add_endpoint(key, name, address, now);
        self.drain(node);
        key
    }

    pub fn connect(&mut self, node: usize, peer: usize) {
        let (now, elapsed) = (self.net.now, self.elapsed());
        let me = &mut self.nodes[node];
        if !me.wants.contains(&peer) {
            me.wants.push(peer);
        }
        if let Some(&key) = me.current.get(&peer) {
            me.ends.get_mut(&key).unwrap().asked_at.get_or_insert(elapsed);
            me.manager.connect(key, now);
        }
        self.drain(node);
    }

    pub fn remove(&mut self, node: usize, peer: usize) {
        let now = self.net.now;
        let me = &mut self.nodes[node];
        if let Some(key) = me.current.remove(&peer) {
            me.ends.remove(&key);
            me.manager.remove_endpoint(key, now);
        }
        self.drain(node);
    }

    /// Removes the endpoint, puts a new one in its place and connects it if it is wanted.
    pub fn replace(&mut self, node: usize, peer: usize) {
        self.remove(node, peer);
        self.add(node, peer);
        if self.nodes[node].wants.contains(&peer) {
            self.connect(node, peer);
        }
    }

    /// The process dies and another one takes its name; its peers are told when they ask.
    pub fn restart(&mut self, node: usize) {
        let reach = self.nodes[node].manager.reach();
        for (to, datagram) in self.nodes[node].manager.killed() {
            self.transmit(reach, to, datagram);
        }
        self.by_reach.remove(&reach);
        if let Some(at) = self.nodes[node].due {
            self.due.remove(&(at, node));
        }
        let wants = self.nodes[node].wants.clone();
        let peers: Vec<usize> = self.nodes[node].current.keys().copied().collect();
        self.nodes[node] = self.birth(node, layout());
        self.nodes[node].wants = wants;
        for peer in peers {
            self.replace(node, peer);
        }
    }

    /// As `restart`, but what its peers get to know when they ask is still the address of the former life.
    pub fn restart_unheard(&mut self, node: usize) {
        let published = self.nodes[node].published;
        self.restart(node);
        self.nodes[node].published = published;
    }

    /// Every end that is up sends something. Where it is not acknowledged, the device says so.
    pub fn use_all(&mut self) {
        for node in 0..self.nodes.len() {
            let up: Vec<(Qpn, Qpn)> = self.nodes[node]
                .ends
                .values()
                .filter(|end| end.connected_at.is_some())
                .filter_map(|end| Some((*end.qpns.first()?, *end.remote.as_ref()?.qpns.first()?)))
                .collect();
            for (from, to) in up {
                self.schedule(HOP, Packet::Data { from, to, tries: 0 });
            }
        }
    }

    // The network.

    fn drain(&mut self, node: usize) {
        while let Some(wish) = self.nodes[node].manager.wish(self.net.now) {
            self.grant(node, wish);
        }
        let (due, old) = (self.nodes[node].manager.poll_timeout(), self.nodes[node].due);
        if due != old {
            old.map(|at| self.due.remove(&(at, node)));
            due.map(|at| self.due.insert((at, node)));
            self.nodes[node].due = due;
        }
    }

    /// The transport hears of events later than the machine acts, as through the helper thread's queue.
    fn hear(&mut self) {
        while let Some(node) = self.told.pop_front() {
            match self.nodes[node].events.pop_front() {
                Some(RepSent::Disconnected(key)) => self.on_disconnected(node, key),
                Some(RepSent::Unknown(peer)) => self.on_unknown(node, peer),
                // Its process has started anew.
                None => {}
            }
        }
    }

    fn tell(&mut self, node: usize, told: RepSent) {
        self.nodes[node].events.push_back(told);
        self.told.push_back(node);
    }

    fn grant(&mut self, node: usize, wish: Wish<P::Datagram>) {
        let now = self.net.now;
        match wish {
            Wish::CreateQps { key } => {
                let qpns: Vec<Qpn> = (0..QUEUES).map(|_| self.qpn()).collect();
                self.owners.insert(qpns[0], (node, key));
                let me = &mut self.nodes[node];
                me.ends.get_mut(&key).unwrap().qpns = qpns.clone();
                me.manager.qps_created(key, Qpns::new(&qpns).unwrap(), now);
            }
            Wish::BringUp { key, remote, psn } => {
                let me = &mut self.nodes[node];
                let end = me.ends.get_mut(&key).unwrap();
                assert!(end.remote.is_none(), "queue pairs go up once");
                (end.remote, end.psn) = (Some(remote), Some(psn));
                me.manager.qps_up(key, now);
            }
            Wish::Send { to, datagram } => {
                let from = self.nodes[node].manager.reach();
                self.transmit(from, to, datagram);
            }
            Wish::Connected { key } => self.on_connected(node, key),
            Wish::Failed { key, error } => {
                let me = &mut self.nodes[node];
                me.failures.push(error.clone());
                if let Some(end) = me.ends.get_mut(&key) {
                    end.failed = Some(error);
                }
            }
            Wish::Disconnected { key } => self.tell(node, RepSent::Disconnected(key)),
            Wish::UnknownPeer { peer } => self.tell(node, RepSent::Unknown(peer)),
        }
    }

    fn on_connected(&mut self, node: usize, key: EndpointKey) {
        let at = self.elapsed();
        let end = self.nodes[node].ends.get_mut(&key).expect("connected endpoints are present");
        assert!(end.connected_at.is_none(), "connected is said once");
        end.connected_at = Some(at);
        let (from, to) = (end.qpns[0], end.remote.as_ref().unwrap().qpns[0]);
        self.schedule(HOP, Packet::Data { from, to, tries: 0 });
    }

    fn on_disconnected(&mut self, node: usize, key: EndpointKey) {
        let me = &mut self.nodes[node];
        me.disconnects += 1;
        let Some(peer) = me.ends.get(&key).map(|end| end.peer) else { return };
        if me.persistent && me.current.get(&peer) == Some(&key) {
            self.replace(node, peer);
        }
    }

    fn on_unknown(&mut self, node: usize, peer: ProcessName) {
        self.nodes[node].unknown.push(peer);
        let Some(&index) = self.by_name.get(&peer) else { return };
        // An endpoint for that very incarnation is in place already, if a Disconnected came first.
        let fresh = self.end(node, index).is_some_and(|e| e.address == self.nodes[index].published);
        let usable = fresh && !self.state(node, index).is_some_and(P::is_spent);
        if self.nodes[node].welcoming && !usable {
            self.replace(node, index);
        }
    }

    fn transmit(&mut self, from: Qpn, to: Qpn, mut datagram: P::Datagram) {
        if self.net.chance(self.net.odds.corrupt) {
            let bit = usize::try_from(self.random() >> 40).unwrap();
            P::corrupt(&mut datagram, bit);
        }
        self.net.send(Packet::Datagram { from, to, datagram }, draw_fault);
    }

    /// When something happens next; `None` when all is quiet.
    pub fn next_time(&self) -> Option<Instant> {
        let at_once = (!self.net.restarts.is_empty() || !self.told.is_empty()).then_some(self.net.now);
        let due = self.due.first().map(|&(at, _)| at);
        self.net.next_arrival().into_iter().chain(due).chain(at_once).min()
    }

    /// Does what happens next; false when all is quiet.
    pub fn step(&mut self) -> bool {
        while let Some(node) = self.net.restarts.pop_front() {
            self.restart(node);
        }
        let Some(at) = self.next_time() else { return false };
        self.net.steps += 1;
        self.net.now = self.net.now.max(at);
        if let Some(packet) = self.net.arrived() {
            self.deliver(packet);
        }
        while let Some(&(at, node)) = self.due.first()
            && at <= self.net.now
        {
            self.nodes[node].manager.handle_timeout(self.net.now);
            self.drain(node);
        }
        self.hear();
        true
    }

    /// Runs until all is quiet. Panics when that takes more steps or time than `limit` allows: a livelock.
    pub fn run(&mut self, limit: u64) {
        while self.step() {
            assert!(self.net.steps < limit, "livelock: {} steps, {:?}", self.net.steps, self.elapsed());
            assert!(self.elapsed() < Duration::from_secs(600), "not quiet after {:?}", self.elapsed());
        }
    }

    /// Runs until `time` has passed since the start.
    pub fn run_until(&mut self, time: Duration) {
        while self.next_time().is_some_and(|at| at <= self.net.start + time) {
            self.step();
        }
        self.net.now = self.net.now.max(self.net.start + time);
    }

    fn deliver(&mut self, packet: Packet<P::Datagram>) {
        match packet {
            Packet::Datagram { from, to, datagram } => {
                let node = self.by_reach.get(&to).copied().filter(|&node| !self.nodes[node].deaf);
                match node {
                    Some(node) if self.nodes[node].service.is_zero() => self.serve(node, from, &datagram),
                    Some(node) => self.queue(node, from, datagram),
                    None => {}
                }
            }
            Packet::Served { node, from, datagram } => self.serve(node, from, &datagram),
            Packet::Data { from, to, tries } => self.deliver_data(from, to, tries),
        }
    }

    fn serve(&mut self, node: usize, from: Qpn, datagram: &P::Datagram) {
        self.nodes[node].manager.datagram(from, datagram, self.net.now);
        self.drain(node);
    }

    fn queue(&mut self, node: usize, from: Qpn, datagram: P::Datagram) {
        let (now, room) = (self.net.now, P::room(&self.params));
        let me = &mut self.nodes[node];
        let free_at = me.busy_until.max(now);
        if free_at - now >= me.service * room {
            me.overrun += 1;
            return;
        }
        me.busy_until = free_at + me.service;
        let after = me.busy_until - now;
        self.schedule(after, Packet::Served { node, from, datagram });
    }

    /// Data reach a QP that is up towards the sender's; else the hardware repeats them a few times.
    fn deliver_data(&mut self, from: Qpn, to: Qpn, tries: u32) {
        let (now, elapsed) = (self.net.now, self.elapsed());
        if let Some(end) = self.end_of_qp(to)
            && end.remote.as_ref().is_some_and(|remote| remote.qpns[0] == from)
        {
            end.data_at.get_or_insert(elapsed);
            let (node, key) = self.owners[&to];
            self.nodes[node].manager.first_data(key, now);
            self.drain(node);
        } else if tries < 3 {
            self.schedule(HOP * 10, Packet::Data { from, to, tries: tries + 1 });
        } else if let Some(end) = self.end_of_qp(from) {
            end.broken = true;
        }
    }

    /// The endpoint whose first queue pair this is, if it is still there.
    fn end_of_qp(&mut self, qpn: Qpn) -> Option<&mut End<P::Address>> {
        let (node, key) = *self.owners.get(&qpn)?;
        self.nodes[node].ends.get_mut(&key).filter(|end| end.qpns.first() == Some(&qpn))
    }
}

fn draw_fault<T>(net: &mut Net<T>) -> Option<Fault> {
    let odds = net.odds;
    if net.chance(odds.drop) {
        Some(Fault::Drop)
    } else if net.chance(odds.duplicate) {
        Some(Fault::Duplicate)
    } else if net.chance(odds.delay) {
        let hops = u32::try_from(net.random() >> 33).unwrap() % 30_000;
        Some(Fault::Delay(hops))
    } else {
        None
    }
}
