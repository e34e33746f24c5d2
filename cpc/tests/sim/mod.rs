//! A small world of ibcm machines in virtual time: a lossy network, and a stand-in for the transport on every node.
//!
//! The network takes the real bytes of every datagram. The transport does what the BTL does: it adds peers, connects when
//! it has something to send, sends data once connected, reports first data, and replaces endpoints that were disconnected.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use cpc::ibcm::Params;
use cpc::ibcm::address::Address;
use cpc::ibcm::machine::{Action, Local, Machine, Remote, Source, StateKind};
use cpc::ibcm::wire::{Depth, Layout, MAD_LEN, Nonce, Qpns};
use cpc::{ConnectError, EndpointKey, ProcessName};
use verbs::{Gid, Lid, Psn, Qpn};

pub const QUEUES: usize = 3;
/// One way through the network without a fault.
pub const HOP: Duration = Duration::from_micros(10);

/// What happens to one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Drop,
    Duplicate,
    /// Arrives this many hops later: behind others, or behind a repetition.
    Delay(u32),
}

/// Chances in percent, for datagrams that no planned fault hits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odds {
    pub drop: u64,
    pub duplicate: u64,
    pub delay: u64,
    /// One bit of a datagram flips. A real fabric's CRC lets none of these through.
    pub corrupt: u64,
}

enum Packet {
    /// A datagram that waited in the receive queue of a busy node until it was its turn.
    Served {
        node: usize,
        from: Source,
        bytes: Box<[u8; MAD_LEN]>,
    },
    Datagram {
        from: Source,
        to: Qpn,
        bytes: Box<[u8; MAD_LEN]>,
    },
    Data {
        from: Qpn,
        to: Qpn,
        tries: u32,
    },
}

enum Told {
    Disconnected(EndpointKey),
    Unknown(ProcessName),
}

/// An endpoint as the transport has it.
pub struct End {
    pub peer: usize,
    pub address: Address,
    pub psn: Option<Psn>,
    pub qpns: Vec<Qpn>,
    pub remote: Option<Remote>,
    pub connected_at: Option<Duration>,
    pub data_at: Option<Duration>,
    pub failed: Option<ConnectError>,
}

pub struct Node {
    pub machine: Machine,
    pub name: ProcessName,
    pub address: Address,
    pub ends: HashMap<EndpointKey, End>,
    /// The present endpoint of each peer.
    pub current: HashMap<usize, EndpointKey>,
    /// Peers that this node has something to send to.
    pub wants: Vec<usize>,
    pub failures: Vec<ConnectError>,
    pub disconnects: u32,
    pub unknown: Vec<ProcessName>,
    events: VecDeque<Told>,
    generation: u32,
    /// Adds unknown peers when told of them.
    pub welcoming: bool,
    /// Puts a new endpoint in the place of a disconnected one.
    pub persistent: bool,
    pub deaf: bool,
    /// Time that one datagram takes; while it does, others wait in the receive queue, as many as it holds.
    pub service: Duration,
    busy_until: Instant,
    /// Datagrams that found the receive queue full.
    pub overrun: u64,
}

pub struct World {
    pub nodes: Vec<Node>,
    pub now: Instant,
    pub start: Instant,
    pub odds: Odds,
    pub plan: HashMap<u64, Fault>,
    pub sent: u64,
    pub steps: u64,
    net: BTreeMap<(Instant, u64), Packet>,
    sequence: u64,
    seed: u64,
    next_qpn: u32,
    params: Params,
}

impl World {
    pub fn new(nodes: usize, seed: u64, params: &Params) -> World {
        let start = Instant::now();
        let mut world = World {
            nodes: Vec::new(),
            now: start,
            start,
            odds: Odds::default(),
            plan: HashMap::new(),
            sent: 0,
            steps: 0,
            net: BTreeMap::new(),
            sequence: 0,
            seed,
            next_qpn: 100,
            params: params.clone(),
        };
        for index in 0..nodes {
            let node = world.birth(index, Layout::new([false, true, true]).unwrap());
            world.nodes.push(node);
        }
        world
    }

    fn birth(&mut self, index: usize, layout: Layout) -> Node {
        let seed = self.random();
        let qpn = self.qpn();
        let address = Address {
            port: 1,
            mtu: 5,
            ethernet: false,
            lid: Lid(u16::try_from(index + 1).unwrap()),
            qpn,
            nonce: Nonce(u32::try_from(self.random() >> 32).unwrap()),
            gid: Gid([7; 16]),
        };
        let name = ProcessName(0x5_0000_0000 + index as u64);
        let depth = Depth { responder_resources: 4, initiator_depth: 4 };
        let local = Local {
            name,
            address,
            layout,
            depth,
            pkey: 0xffff,
            sl: 0,
            ack_timeout: 20,
            retry_count: 7,
            rnr_retry: 7,
            srq: true,
        };
        Node {
            machine: Machine::new(local, self.params.clone(), seed),
            name,
            address,
            ends: HashMap::new(),
            current: HashMap::new(),
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
            busy_until: self.start,
            overrun: 0,
        }
    }

    pub fn set_layout(&mut self, node: usize, layout: Layout) {
        self.nodes[node] = self.birth(node, layout);
    }

    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.seed ^ self.seed >> 29;
        x.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ x >> 32
    }

    fn chance(&mut self, percent: u64) -> bool {
        percent > 0 && (self.random() >> 33) % 100 < percent
    }

    fn qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn(self.next_qpn)
    }

    pub fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    // What the transport does.

    pub fn add(&mut self, node: usize, peer: usize) -> EndpointKey {
        let (name, address, now) = (self.nodes[peer].name, self.nodes[peer].address, self.now);
        let me = &mut self.nodes[node];
        me.generation += 1;
        let key = EndpointKey { index: u32::try_from(peer).unwrap(), generation: me.generation };
        let (psn, qpns, remote) = (None, Vec::new(), None);
        let end = End { peer, address, psn, qpns, remote, connected_at: None, data_at: None, failed: None };
        me.ends.insert(key, end);
        me.current.insert(peer, key);
        me.machine.add_endpoint(key, name, address, now);
        self.drain(node);
        key
    }

    pub fn connect(&mut self, node: usize, peer: usize) {
        let now = self.now;
        let me = &mut self.nodes[node];
        if !me.wants.contains(&peer) {
            me.wants.push(peer);
        }
        if let Some(&key) = me.current.get(&peer) {
            me.machine.connect(key, now);
        }
        self.drain(node);
    }

    pub fn remove(&mut self, node: usize, peer: usize) {
        let now = self.now;
        let me = &mut self.nodes[node];
        if let Some(key) = me.current.remove(&peer) {
            me.ends.remove(&key);
            me.machine.remove_endpoint(key, now);
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
        let wants = self.nodes[node].wants.clone();
        let peers: Vec<usize> = self.nodes[node].current.keys().copied().collect();
        self.nodes[node] = self.birth(node, Layout::new([false, true, true]).unwrap());
        self.nodes[node].wants = wants;
        for peer in peers {
            self.replace(node, peer);
        }
    }

    // The network.

    fn drain(&mut self, node: usize) {
        while let Some(action) = self.nodes[node].machine.poll_action() {
            self.perform(node, action);
        }
    }

    /// The transport hears of events later than the machine acts, as through the helper thread's queue.
    fn hear(&mut self, node: usize) {
        while let Some(event) = self.nodes[node].events.pop_front() {
            match event {
                Told::Disconnected(key) => self.on_disconnected(node, key),
                Told::Unknown(peer) => self.on_unknown(node, peer),
            }
        }
    }

    fn perform(&mut self, node: usize, action: Action) {
        let now = self.now;
        match action {
            Action::CreateQps { key } => {
                let qpns: Vec<Qpn> = (0..QUEUES).map(|_| self.qpn()).collect();
                let me = &mut self.nodes[node];
                me.ends.get_mut(&key).unwrap().qpns = qpns.clone();
                me.machine.qps_created(key, Ok(Qpns::new(&qpns).unwrap()), now);
            }
            Action::BringUp { key, remote, psn, .. } => {
                let me = &mut self.nodes[node];
                let end = me.ends.get_mut(&key).unwrap();
                assert!(end.remote.is_none(), "queue pairs go up once");
                (end.remote, end.psn) = (Some(remote), Some(psn));
                me.machine.qps_up(key, Ok(()), now);
            }
            Action::Send { to, datagram } => {
                let mut bytes = Box::new([0; MAD_LEN]);
                datagram.emit(&mut bytes);
                let address = self.nodes[node].address;
                let from = Source { qpn: address.qpn, lid: address.lid, gid: None };
                self.transmit(from, to.qpn, bytes);
            }
            Action::Connected { key } => self.on_connected(node, key),
            Action::Failed { key, error } => {
                let me = &mut self.nodes[node];
                me.failures.push(error.clone());
                if let Some(end) = me.ends.get_mut(&key) {
                    end.failed = Some(error);
                }
            }
            Action::Disconnected { key } => self.nodes[node].events.push_back(Told::Disconnected(key)),
            Action::UnknownPeer { peer } => self.nodes[node].events.push_back(Told::Unknown(peer)),
        }
    }

    fn on_connected(&mut self, node: usize, key: EndpointKey) {
        let at = self.elapsed();
        let end = self.nodes[node].ends.get_mut(&key).expect("connected endpoints are present");
        assert!(end.connected_at.is_none(), "connected is said once");
        end.connected_at = Some(at);
        let (from, to) = (end.qpns[0], end.remote.unwrap().qpns.first());
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
        let Some(index) = self.nodes.iter().position(|n| n.name == peer) else { return };
        // An endpoint for that very incarnation is in place already, if a Disconnected came first.
        let fresh = self.end(node, index).is_some_and(|e| e.address == self.nodes[index].address);
        let usable = fresh && !matches!(self.state(node, index), Some(StateKind::Left | StateKind::Failed));
        if self.nodes[node].welcoming && !usable {
            self.replace(node, index);
        }
    }

    fn schedule(&mut self, after: Duration, packet: Packet) {
        self.sequence += 1;
        self.net.insert((self.now + after, self.sequence), packet);
    }

    fn transmit(&mut self, from: Source, to: Qpn, mut bytes: Box<[u8; MAD_LEN]>) {
        if self.chance(self.odds.corrupt) {
            let bit = usize::try_from(self.random() >> 40).unwrap() % (MAD_LEN * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let number = self.sent;
        self.sent += 1;
        let fault = match self.plan.remove(&number) {
            Some(fault) => Some(fault),
            None => self.draw_fault(),
        };
        let copy = |bytes: &[u8; MAD_LEN]| Packet::Datagram { from, to, bytes: Box::new(*bytes) };
        match fault {
            Some(Fault::Drop) => {}
            Some(Fault::Duplicate) => {
                self.schedule(HOP, copy(&bytes));
                self.schedule(HOP * 3, copy(&bytes));
            }
            Some(Fault::Delay(hops)) => self.schedule(HOP * (hops + 1), copy(&bytes)),
            None => self.schedule(HOP, copy(&bytes)),
        }
    }

    fn draw_fault(&mut self) -> Option<Fault> {
        let odds = self.odds;
        if self.chance(odds.drop) {
            Some(Fault::Drop)
        } else if self.chance(odds.duplicate) {
            Some(Fault::Duplicate)
        } else if self.chance(odds.delay) {
            let hops = u32::try_from(self.random() >> 33).unwrap() % 30_000;
            Some(Fault::Delay(hops))
        } else {
            None
        }
    }

    /// When something happens next; `None` when all is quiet.
    pub fn next_time(&self) -> Option<Instant> {
        let packet = self.net.keys().next().map(|&(at, _)| at);
        self.nodes.iter().filter_map(|n| n.machine.poll_timeout()).chain(packet).min()
    }

    /// Does what happens next; false when all is quiet.
    pub fn step(&mut self) -> bool {
        let Some(at) = self.next_time() else { return false };
        self.steps += 1;
        self.now = self.now.max(at);
        if let Some(entry) = self.net.first_entry()
            && entry.key().0 <= self.now
        {
            let packet = entry.remove();
            self.deliver(packet);
        }
        for node in 0..self.nodes.len() {
            let now = self.now;
            if self.nodes[node].machine.poll_timeout().is_some_and(|t| t <= now) {
                self.nodes[node].machine.handle_timeout(now);
                self.drain(node);
            }
            self.hear(node);
        }
        true
    }

    /// Runs until all is quiet. Panics when that takes more steps or time than `limit` allows: a livelock.
    pub fn run(&mut self, limit: u64) {
        while self.step() {
            assert!(self.steps < limit, "livelock: {} steps, {:?}", self.steps, self.elapsed());
            assert!(self.elapsed() < Duration::from_secs(600), "not quiet after {:?}", self.elapsed());
        }
    }

    /// Runs until `time` has passed since the start.
    pub fn run_until(&mut self, time: Duration) {
        while self.next_time().is_some_and(|at| at <= self.start + time) {
            self.step();
        }
        self.now = self.now.max(self.start + time);
    }

    fn deliver(&mut self, packet: Packet) {
        match packet {
            Packet::Datagram { from, to, bytes } => {
                let node = self.nodes.iter().position(|n| n.address.qpn == to && !n.deaf);
                match node {
                    Some(node) if self.nodes[node].service.is_zero() => self.serve(node, from, &bytes),
                    Some(node) => self.queue(node, from, bytes),
                    None => {}
                }
            }
            Packet::Served { node, from, bytes } => self.serve(node, from, &bytes),
            Packet::Data { from, to, tries } => self.deliver_data(from, to, tries),
        }
    }

    fn serve(&mut self, node: usize, from: Source, bytes: &[u8; MAD_LEN]) {
        let now = self.now;
        self.nodes[node].machine.datagram(from, bytes, now);
        self.drain(node);
    }

    fn queue(&mut self, node: usize, from: Source, bytes: Box<[u8; MAD_LEN]>) {
        let (now, room) = (self.now, self.params.recv_count);
        let me = &mut self.nodes[node];
        let free_at = me.busy_until.max(now);
        if free_at - now >= me.service * room {
            me.overrun += 1;
            return;
        }
        me.busy_until = free_at + me.service;
        let after = me.busy_until - now;
        self.schedule(after, Packet::Served { node, from, bytes });
    }

    /// Data reach a QP that is up towards the sender's; else the hardware repeats them a few times.
    fn deliver_data(&mut self, from: Qpn, to: Qpn, tries: u32) {
        let found = self.nodes.iter().enumerate().find_map(|(i, n)| {
            let hit = n.ends.iter().find(|(_, e)| {
                e.qpns.first() == Some(&to) && e.remote.is_some_and(|r| r.qpns.first() == from)
            });
            hit.map(|(&key, _)| (i, key))
        });
        let (now, elapsed) = (self.now, self.elapsed());
        if let Some((node, key)) = found {
            let me = &mut self.nodes[node];
            me.ends.get_mut(&key).unwrap().data_at.get_or_insert(elapsed);
            me.machine.first_data(key, now);
            self.drain(node);
        } else if tries < 3 {
            self.schedule(HOP * 10, Packet::Data { from, to, tries: tries + 1 });
        }
    }

    // What must hold.

    pub fn end(&self, node: usize, peer: usize) -> Option<&End> {
        let me = &self.nodes[node];
        me.current.get(&peer).and_then(|key| me.ends.get(key))
    }

    pub fn state(&self, node: usize, peer: usize) -> Option<StateKind> {
        let me = &self.nodes[node];
        me.current.get(&peer).and_then(|&key| me.machine.state(key))
    }

    /// Both ends are up, to each other, with the same numbers at both ends.
    pub fn is_connected(&self, a: usize, b: usize) -> bool {
        let (Some(x), Some(y)) = (self.end(a, b), self.end(b, a)) else { return false };
        let up = x.connected_at.is_some() && y.connected_at.is_some();
        let states = [self.state(a, b), self.state(b, a)];
        up && states == [Some(StateKind::Up); 2] && agrees(x, y) && agrees(y, x)
    }

    /// One usable connection, or a failure that somebody was told of.
    pub fn check_pair(&self, a: usize, b: usize) {
        let reported = [(a, b), (b, a)].iter().any(|&(x, y)| {
            let peer = self.nodes[y].name;
            self.nodes[x].failures.iter().any(|f| f.peer == peer)
        });
        assert!(
            self.is_connected(a, b) || reported,
            "pair {a}-{b}: {:?} {:?}, nobody was told; {:?} {:?}",
            self.state(a, b),
            self.state(b, a),
            self.nodes[a].machine.stats(),
            self.nodes[b].machine.stats()
        );
    }
}

/// `y` is what `x` thinks it is connected to.
fn agrees(x: &End, y: &End) -> bool {
    x.remote.is_some_and(|r| r.qpns.as_slice() == y.qpns && Some(r.psn) == y.psn)
}
