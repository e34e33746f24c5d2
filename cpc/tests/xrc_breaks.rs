//! xrc's machines when send queue pairs break, processes die and endpoints are made anew, with a stand-in for the transport that does what
//! the transport does then. (`xrc_simulator` tries every order and fault of a start.) Everything follows from one seed, which a
//! failing test prints.
//!
//! What must hold whenever an endpoint is said to be connected: its send queue pair is in RTS, the receive queue pair at the other
//! end exists and is connected to it, and the peer has a handle of it. At the end, with the network quiet: everybody who wanted
//! to is connected to everybody alive, in bounded time, and nobody has failed but those whose peer is dead.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use cpc::ibcm::Params;
use cpc::ibcm::address::Address as Listener;
use cpc::ibcm::machine::Source;
use cpc::ibcm::wire::{CommId, Depth, Layout, MAD_LEN, Nonce};
use cpc::xrc::DomainId;
use cpc::xrc::address::Address;
use cpc::xrc::machine::{Action, JoinError, Local, Machine, PathId};
use cpc::xrc::wire::SrqNums;
use cpc::{EndpointKey, ProcessName};
use verbs::{Gid, Lid, Qpn, SrqNum};

const HOP: Duration = Duration::from_micros(10);
/// After so long everything has come to its end: a request to the dead is given up after some 19 s, a DREQ as well.
const BOUND: Duration = Duration::from_secs(100);
const DEPTH: Depth = Depth { responder_resources: 4, initiator_depth: 4 };

/// What may happen to a datagram, in percent.
#[derive(Clone, Copy, Default)]
struct Odds {
    drop: u64,
    twice: u64,
    late: u64,
}

struct End {
    peer: usize,
    /// Path and label, once it is connected.
    way: Option<(PathId, u32)>,
}

struct Process {
    machine: Machine,
    name: ProcessName,
    address: Address,
    node: usize,
    alive: bool,
    senders: HashMap<PathId, (Qpn, Option<Qpn>)>,
    /// Send queue pairs that are in the error state.
    broken: HashSet<PathId>,
    ends: HashMap<EndpointKey, End>,
    current: HashMap<usize, EndpointKey>,
    wants: HashSet<usize>,
    generation: u32,
    failures: Vec<(usize, String)>,
}

/// A receive queue pair: where, for which send queue pair, and who has handles of it.
struct Receiver {
    node: usize,
    sender: Qpn,
    handles: HashSet<(usize, CommId)>,
}

struct Packet {
    from: Qpn,
    to: Qpn,
    bytes: Box<[u8; MAD_LEN]>,
}

struct World {
    processes: Vec<Process>,
    receivers: HashMap<Qpn, Receiver>,
    net: BTreeMap<(Instant, u64), Packet>,
    now: Instant,
    start: Instant,
    odds: Odds,
    next_qpn: u32,
    first_seed: u64,
    seed: u64,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}, {:?} after the start", self.first_seed, self.now - self.start);
        }
    }
}

impl World {
    /// `nodes[i]` is the node of process i.
    fn new(nodes: &[usize], seed: u64) -> World {
        let now = Instant::now();
        let mut world = World {
            processes: Vec::new(),
            receivers: HashMap::new(),
            net: BTreeMap::new(),
            now,
            start: now,
            odds: Odds::default(),
            next_qpn: 100,
            first_seed: seed,
            seed,
        };
        for (index, &node) in nodes.iter().enumerate() {
            world.born(index, node);
        }
        world
    }

    fn born(&mut self, index: usize, node: usize) {
        let name = ProcessName(0x5_0000_0000 + index as u64);
        let listener = Listener {
            port: 1,
            mtu: 5,
            ethernet: false,
            lid: Lid(node as u16 + 1),
            qpn: self.qpn(),
            nonce: Nonce(self.random() as u32),
            gid: Gid([node as u8 + 1; 16]),
        };
        let address = Address { listener, domain: DomainId::new(1, node as u64) };
        let local = Local {
            name,
            address,
            layout: Layout::new([true, true]).unwrap(),
            srqs: SrqNums::new(&srqs(index)).unwrap(),
            depth: DEPTH,
            pkey: 0xffff,
            sl: 0,
            ack_timeout: 20,
            retry_count: 7,
            rnr_retry: 7,
        };
        let machine = Machine::new(local, Params::default(), self.random());
        self.processes.push(Process {
            machine,
            name,
            address,
            node,
            alive: true,
            senders: HashMap::new(),
            broken: HashSet::new(),
            ends: HashMap::new(),
            current: HashMap::new(),
            wants: HashSet::new(),
            generation: 0,
            failures: Vec::new(),
        });
    }

    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.seed ^ self.seed >> 29;
        (x.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ x >> 32) >> 16
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random() % 100 < percent
    }

    fn qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn(self.next_qpn)
    }

    fn add(&mut self, me: usize, peer: usize) {
        let (name, address, now) = (self.processes[peer].name, self.processes[peer].address, self.now);
        let process = &mut self.processes[me];
        process.generation += 1;
        let key = EndpointKey { index: peer as u32, generation: process.generation };
        process.ends.insert(key, End { peer, way: None });
        process.current.insert(peer, key);
        process.machine.add_endpoint(key, name, address, label(key), now);
        self.perform_all(me);
        if self.processes[me].wants.contains(&peer) {
            self.connect(me, peer);
        }
    }

    fn all_know_all(&mut self) {
        for me in 0..self.processes.len() {
            (0..self.processes.len()).filter(|peer| *peer != me).for_each(|peer| self.add(me, peer));
        }
    }

    fn connect(&mut self, me: usize, peer: usize) {
        let now = self.now;
        let process = &mut self.processes[me];
        process.wants.insert(peer);
        if let Some(&key) = process.current.get(&peer) {
            process.machine.connect(key, now);
        }
        self.perform_all(me);
    }

    fn remove(&mut self, me: usize, peer: usize) {
        let now = self.now;
        let process = &mut self.processes[me];
        if let Some(key) = process.current.remove(&peer) {
            process.ends.remove(&key);
            process.machine.remove_endpoint(key, now);
        }
        self.perform_all(me);
    }

    /// The process is gone, and its handles. Whoever sends to it notices, and goes on with the others of its node.
    fn kill(&mut self, victim: usize) {
        self.processes[victim].alive = false;
        for receiver in self.receivers.values_mut() {
            receiver.handles.retain(|(process, _)| *process != victim);
        }
        self.receivers.retain(|_, receiver| !receiver.handles.is_empty());
        for me in (0..self.processes.len()).filter(|me| self.processes[*me].alive).collect::<Vec<_>>() {
            let Some(&key) = self.processes[me].current.get(&victim) else { continue };
            if let Some((path, _)) = self.processes[me].ends[&key].way {
                self.processes[me].failures.push((victim, "no answer".to_owned()));
                self.breaks(me, path, key);
            }
        }
    }

    /// A work request of the endpoint `culprit` has failed: the endpoint is lost, the others of its path are to go on.
    fn breaks(&mut self, me: usize, path: PathId, culprit: EndpointKey) {
        let now = self.now;
        let process = &mut self.processes[me];
        process.broken.insert(path);
        let on_path = |end: &End| end.way.is_some_and(|(other, _)| other == path);
        let mut keys: Vec<EndpointKey> =
            process.ends.iter().filter(|(_, end)| on_path(end)).map(|(key, _)| *key).collect();
        keys.sort_unstable();
        for key in keys.into_iter().filter(|key| *key != culprit) {
            process.ends.get_mut(&key).unwrap().way = None;
            process.machine.renew(key, now);
        }
        let peer = process.ends[&culprit].peer;
        self.perform_all(me);
        self.remove(me, peer);
    }

    fn perform_all(&mut self, me: usize) {
        while let Some(action) = self.processes[me].machine.poll_action() {
            self.perform(me, action);
        }
    }

    fn perform(&mut self, me: usize, action: Action) {
        let now = self.now;
        match action {
            Action::MakeSender { path } => {
                let qpn = self.qpn();
                self.processes[me].senders.insert(path, (qpn, None));
                self.processes[me].machine.sender_made(path, Ok(qpn), now);
            }
            Action::RaiseSender { path, receiver, .. } => {
                self.processes[me].senders.get_mut(&path).expect("it was made").1 = Some(receiver);
                self.processes[me].machine.sender_raised(path, Ok(()), now);
            }
            Action::DropSender { path } => drop(self.processes[me].senders.remove(&path).expect("once")),
            Action::Join { link, attempt, receiver, sender, .. } => {
                let outcome = self.join(me, link, receiver, sender);
                self.processes[me].machine.joined(link, attempt, outcome, now);
            }
            Action::Release { link } => {
                for receiver in self.receivers.values_mut() {
                    receiver.handles.remove(&(me, link));
                }
                self.receivers.retain(|_, receiver| !receiver.handles.is_empty());
            }
            Action::Send { to, datagram } => {
                let mut bytes = Box::new([0; MAD_LEN]);
                datagram.emit(&mut bytes);
                self.send(Packet { from: self.processes[me].address.listener.qpn, to: to.qpn, bytes });
            }
            Action::Connected { key, path, srqs, label } => {
                self.connected(me, key, path, srqs.as_slice(), label)
            }
            Action::Failed { key, error } => {
                let peer = self.processes[me].ends[&key].peer;
                self.processes[me].failures.push((peer, error.to_string()));
                self.remove(me, peer);
            }
            Action::Disconnected { key } => {
                let peer = self.processes[me].ends[&key].peer;
                self.remove(me, peer);
                self.add(me, peer);
            }
            Action::UnknownPeer { .. } => {}
        }
    }

    fn connected(&mut self, me: usize, key: EndpointKey, path: PathId, srqs: &[SrqNum], label: u32) {
        let now = self.now;
        let process = &mut self.processes[me];
        if process.broken.contains(&path) {
            // It broke before this endpoint heard of it.
            return process.machine.renew(key, now);
        }
        let end = process.ends.get_mut(&key).expect("an endpoint");
        end.way = Some((path, label));
        let peer = end.peer;
        self.check_connected(me, key, path, srqs);
        if !self.processes[peer].alive {
            // It had told, and died; the first message shows that.
            self.processes[me].failures.push((peer, "no answer".to_owned()));
            self.breaks(me, path, key);
        }
    }

    fn join(
        &mut self,
        me: usize,
        link: CommId,
        receiver: Option<Qpn>,
        sender: Qpn,
    ) -> Result<Qpn, JoinError> {
        let node = self.processes[me].node;
        let qpn = match receiver {
            Some(qpn) => qpn,
            None => {
                let qpn = self.qpn();
                self.receivers.insert(qpn, Receiver { node, sender, handles: HashSet::new() });
                qpn
            }
        };
        // A handle that this one takes the place of goes afterwards.
        let there = self.receivers.get_mut(&qpn).ok_or(JoinError::Gone)?;
        assert_eq!((there.node, there.sender), (node, sender), "a handle of somebody else's queue pair");
        there.handles.insert((me, link));
        self.receivers.iter_mut().filter(|(other, _)| **other != qpn).for_each(|(_, other)| {
            other.handles.remove(&(me, link));
        });
        self.receivers.retain(|_, receiver| !receiver.handles.is_empty());
        Ok(qpn)
    }

    fn check_connected(&self, me: usize, key: EndpointKey, path: PathId, told: &[SrqNum]) {
        let peer = self.processes[me].ends[&key].peer;
        let (sender, receiver) = self.processes[me].senders[&path];
        assert_eq!(told, srqs(peer), "these are not its queues");
        if self.processes[peer].alive {
            let receiver = &self.receivers[&receiver.expect("it is up")];
            assert_eq!((receiver.node, receiver.sender), (self.processes[peer].node, sender));
            assert!(receiver.handles.iter().any(|(holder, _)| *holder == peer), "{peer} holds no handle");
        }
    }

    fn send(&mut self, packet: Packet) {
        let Odds { drop, twice, late } = self.odds;
        if self.chance(drop) {
            return;
        }
        if self.chance(twice) {
            let again = Packet { bytes: packet.bytes.clone(), ..packet };
            self.deliver_after(HOP * 3, again);
        }
        let wait = if self.chance(late) { HOP * (2 + self.random() as u32 % 30_000) } else { HOP };
        self.deliver_after(wait, packet);
    }

    fn deliver_after(&mut self, wait: Duration, packet: Packet) {
        let order = self.random();
        self.net.insert((self.now + wait, order), packet);
    }

    /// The next thing that happens; false if nothing will.
    fn step(&mut self) -> bool {
        let living = self.processes.iter().enumerate().filter(|(_, process)| process.alive);
        let due = living.filter_map(|(i, process)| Some((process.machine.poll_timeout()?, i))).min();
        let packet = self.net.first_key_value().map(|(key, _)| *key);
        match (packet, due) {
            (Some((at, order)), due) if due.is_none_or(|(time, _)| at <= time) => {
                self.now = self.now.max(at);
                let packet = self.net.remove(&(at, order)).unwrap();
                self.arrives(&packet);
            }
            (_, Some((time, me))) => {
                self.now = self.now.max(time);
                let now = self.now;
                self.processes[me].machine.handle_timeout(now);
                self.perform_all(me);
            }
            _ => return false,
        }
        true
    }

    fn arrives(&mut self, packet: &Packet) {
        let qpn = |process: &Process| process.address.listener.qpn;
        let Some(me) = self.processes.iter().position(|p| p.alive && qpn(p) == packet.to) else { return };
        let sender = self.processes.iter().find(|p| qpn(p) == packet.from).expect("somebody");
        let from = Source { qpn: packet.from, lid: sender.address.listener.lid, gid: None };
        let now = self.now;
        self.processes[me].machine.datagram(from, &packet.bytes[..], now);
        self.perform_all(me);
    }

    /// Until nothing happens any more.
    fn rest(&mut self) {
        let begin = self.now;
        while self.step() {
            assert!(self.now - begin < BOUND, "it does not come to an end");
        }
    }

    /// Everybody alive who wants to is connected, over one send queue pair for each node.
    fn check(&self) {
        for (me, process) in self.processes.iter().enumerate().filter(|(_, process)| process.alive) {
            let mut nodes = HashSet::new();
            for &peer in process.wants.iter().filter(|peer| self.processes[**peer].alive) {
                let key = process.current[&peer];
                let Some((path, label_there)) = process.ends[&key].way else {
                    panic!("{me} is not connected to {peer}: {:?}", process.failures)
                };
                self.check_connected(me, key, path, &srqs(peer));
                let theirs = self.processes[peer].current[&me];
                assert_eq!(label_there, label(theirs), "{me} calls itself wrongly at {peer}");
                nodes.insert(self.processes[peer].node);
            }
            let ways: Vec<_> = process.ends.values().map(|end| (end.peer, end.way)).collect();
            assert_eq!(process.senders.len(), nodes.len(), "{me}: send queue pairs and nodes; {ways:?}");
            assert_eq!(process.machine.paths(), nodes.len());
            let innocent = |(peer, _): &&(usize, String)| self.processes[*peer].alive;
            assert_eq!(process.failures.iter().find(innocent), None, "{me} has failed");
        }
    }

    /// Everybody leaves: nothing is left.
    fn close(mut self) {
        self.odds = Odds::default();
        let now = self.now;
        for me in 0..self.processes.len() {
            self.processes[me].current.clear();
            self.processes[me].machine.close(now);
            self.perform_all(me);
        }
        self.rest();
        for process in self.processes.iter().filter(|process| process.alive) {
            assert!(process.senders.is_empty() && process.machine.leaving() == 0);
        }
        let held = self.receivers.values().flat_map(|receiver| &receiver.handles).count();
        assert_eq!(held, 0, "handles are left");
    }
}

fn srqs(process: usize) -> Vec<SrqNum> {
    vec![SrqNum(process as u32 * 2), SrqNum(process as u32 * 2 + 1)]
}

fn label(key: EndpointKey) -> u32 {
    key.index | key.generation << 16
}

/// Also those who have made the receive queue pairs of the others.
#[test]
fn the_living_stay_connected_when_processes_of_their_nodes_die() {
    for seed in 0..60 {
        let mut world = World::new(&[0, 0, 1, 1, 1, 2], seed);
        world.odds = Odds { drop: seed % 3 * 10, twice: 10, late: 10 };
        world.all_know_all();
        for me in 0..6 {
            (0..6).filter(|peer| *peer != me).for_each(|peer| world.connect(me, peer));
        }
        for victim in [2, 0] {
            for _ in 0..world.random() % 80 {
                world.step();
            }
            world.kill(victim);
        }
        world.rest();
        world.check();
        world.close();
    }
}

#[test]
fn endpoints_that_are_removed_and_made_again_at_any_moment_connect_again() {
    for seed in 0..120 {
        let mut world = World::new(&[0, 0, 1, 1], seed);
        world.odds = Odds { drop: seed % 3 * 10, twice: 10, late: 10 };
        world.all_know_all();
        for me in 0..4 {
            (0..4).filter(|peer| *peer != me).for_each(|peer| world.connect(me, peer));
        }
        for _ in 0..12 {
            for _ in 0..world.random() % 30 {
                world.step();
            }
            let me = (world.random() % 4) as usize;
            let peer = (me + 1 + (world.random() % 3) as usize) % 4;
            world.remove(me, peer);
            world.add(me, peer);
        }
        world.rest();
        world.check();
        world.close();
    }
}

#[test]
fn a_send_queue_pair_that_breaks_is_replaced_for_all_who_used_it() {
    for seed in 0..60 {
        let mut world = World::new(&[0, 1, 1, 1], seed);
        world.odds = Odds { drop: seed % 3 * 10, twice: 10, late: 10 };
        world.all_know_all();
        (1..4).for_each(|peer| world.connect(0, peer));
        world.rest();
        // The culprit is alive all the same: it is removed and made again.
        let key = world.processes[0].current[&1];
        let (path, _) = world.processes[0].ends[&key].way.unwrap();
        world.breaks(0, path, key);
        world.add(0, 1);
        world.rest();
        world.check();
        world.close();
    }
}

/// Its endpoint is lost after all repetitions; the other one of its node is asked after the first.
#[test]
fn a_process_that_does_not_answer_does_not_hold_up_the_others_of_its_node() {
    let mut world = World::new(&[0, 1, 1], 7);
    world.all_know_all();
    world.processes[1].alive = false;
    world.connect(0, 1);
    world.connect(0, 2);
    let key = world.processes[0].current[&2];
    while world.processes[0].ends[&key].way.is_none() {
        assert!(world.step(), "no connection");
    }
    assert!(world.now - world.start < Duration::from_millis(200), "{:?}", world.now - world.start);
    world.rest();
    assert_eq!(world.processes[0].failures.iter().map(|(peer, _)| *peer).collect::<Vec<_>>(), [1]);
    world.check();
    world.close();
}

#[test]
fn an_endpoint_that_has_failed_fails_at_its_peer_too_and_is_no_longer_asked() {
    let mut world = World::new(&[0, 1, 1], 3);
    world.all_know_all();
    (1..3).for_each(|peer| world.connect(0, peer));
    world.connect(1, 0);
    world.rest();
    let (key, now) = (world.processes[0].current[&1], world.now);
    world.processes[0].machine.abandon_endpoint(key, now);
    world.perform_all(0);
    world.rest();
    let reasons: Vec<_> =
        world.processes[1].failures.iter().map(|(peer, why)| (*peer, why.as_str())).collect();
    assert!(reasons.len() == 1 && reasons[0].0 == 0 && reasons[0].1.contains("has failed"), "{reasons:?}");
    // A new endpoint there is refused as long as the failed one is here, and welcome afterwards.
    world.add(1, 0);
    world.rest();
    assert_eq!(world.processes[1].failures.len(), 2);
    world.processes[1].failures.clear();
    world.remove(0, 1);
    world.add(0, 1);
    world.add(1, 0);
    world.rest();
    world.check();
    world.close();
}
