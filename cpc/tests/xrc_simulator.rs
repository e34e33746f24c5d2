//! xrc machines on several nodes in virtual time, over a network that misbehaves, with a model of the XRC domains that they share.
//!
//! What must hold of a process that has something to send to another: it has a send queue pair that leads to a receive queue pair of
//! the other's domain, with one PSN at both ends; the other has a handle of that, so that it stays as long as the other does; it knows
//! the other's SRQs and what the other calls it. Or it has been told of a failure.
//!
//! The faults are those of `simulator`; `OXIB_SIM_SEED` and `OXIB_SIM_ROUNDS` as there and in `simulator_storms`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod sim;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use cpc::ibcm::Params;
use cpc::ibcm::address::Address as Listener;
use cpc::ibcm::machine::Source;
use cpc::ibcm::wire::{Depth, Layout, MAD_LEN, Nonce};
use cpc::xrc::DomainId;
use cpc::xrc::address::Address;
use cpc::xrc::machine::{Action, JoinError, Local, Machine};
use cpc::xrc::wire::SrqNums;
use cpc::{EndpointKey, ProcessName};
use sim::faults::{Fault, Mishap, Odds, Plan, plans};
use sim::xrc::{End, Process, Receiver, Route};
use sim::{HOP, seed};
use verbs::{Gid, Lid, Psn, Qpn, SrqNum};

/// Steps for each pair that no world needs: the livelock detector.
const STEPS: u64 = 2_000;
/// A silent peer is given up after some 19 s; a request that nobody welcomes after 60 s.
const BOUND: Duration = Duration::from_secs(100);

type Bytes = Box<[u8; MAD_LEN]>;

enum Told {
    Disconnected(usize, EndpointKey),
    Unknown(usize, ProcessName),
}

struct World {
    processes: Vec<Process>,
    per_node: usize,
    /// Where each send queue pair leads, once it is up.
    sends: HashMap<Qpn, (Qpn, Psn)>,
    receivers: HashMap<Qpn, Receiver>,
    net: BTreeMap<(Instant, u64), (Source, Qpn, Bytes)>,
    told: VecDeque<Told>,
    restarts: VecDeque<usize>,
    plan: Plan,
    odds: Odds,
    start: Instant,
    now: Instant,
    sent: u64,
    steps: u64,
    sequence: u64,
    number: u32,
    seed: u64,
    first_seed: u64,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("xrc: world of seed {}, {:?} after its start", self.first_seed, self.now - self.start);
        }
    }
}

impl World {
    fn new(nodes: usize, per_node: usize, seed: u64) -> World {
        let start = Instant::now();
        let mut world = World {
            processes: Vec::new(),
            per_node,
            sends: HashMap::new(),
            receivers: HashMap::new(),
            net: BTreeMap::new(),
            told: VecDeque::new(),
            restarts: VecDeque::new(),
            plan: Plan::default(),
            odds: Odds::default(),
            start,
            now: start,
            sent: 0,
            steps: 0,
            sequence: 0,
            number: 100,
            seed,
            first_seed: seed,
        };
        for index in 0..nodes * per_node {
            let process = world.birth(index);
            world.processes.push(process);
        }
        world
    }

    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.seed ^ self.seed >> 29;
        x.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ x >> 32
    }

    fn number(&mut self) -> u32 {
        self.number += 1;
        self.number
    }

    fn birth(&mut self, index: usize) -> Process {
        let node = index / self.per_node;
        let lid = Lid(u16::try_from(node + 1).unwrap());
        let (qpn, nonce) = (Qpn(self.number()), Nonce(self.number()));
        let listener = Listener { port: 1, mtu: 5, ethernet: false, lid, qpn, nonce, gid: Gid([7; 16]) };
        let address = Address { listener, domain: DomainId::new(1, node as u64) };
        let name = ProcessName(0x5_0000_0000 + index as u64);
        let srqs = SrqNums::new(&[SrqNum(self.number()), SrqNum(self.number())]).unwrap();
        let local = Local {
            name,
            address,
            layout: Layout::new([true, true]).unwrap(),
            srqs,
            depth: Depth { responder_resources: 4, initiator_depth: 4 },
            pkey: 0xffff,
            sl: 0,
            ack_timeout: 20,
            retry_count: 7,
            rnr_retry: 7,
        };
        let seed = self.random();
        Process {
            machine: Machine::new(local, Params::default(), seed),
            name,
            node,
            address,
            srqs,
            ends: HashMap::new(),
            current: BTreeMap::new(),
            wants: Vec::new(),
            stopped: false,
            inbox: Vec::new(),
            failures: Vec::new(),
            senders: HashMap::new(),
            handles: HashMap::new(),
        }
    }

    // What the transport does.

    fn add(&mut self, me: usize, peer: usize) {
        let (name, address, now) = (self.processes[peer].name, self.processes[peer].address, self.now);
        let label = self.number();
        let key = EndpointKey { index: label, generation: 1 };
        let process = &mut self.processes[me];
        process.ends.insert(key, End { peer, address, route: None, spent: false });
        process.current.insert(peer, key);
        process.machine.add_endpoint(key, name, address, label, now);
        self.drain(me);
    }

    fn meet_all(&mut self) {
        for me in 0..self.processes.len() {
            (0..self.processes.len()).filter(|&peer| peer != me).for_each(|peer| self.add(me, peer));
        }
    }

    fn connect(&mut self, me: usize, peer: usize) {
        let process = &mut self.processes[me];
        if !process.wants.contains(&peer) {
            process.wants.push(peer);
        }
        let key = process.current[&peer];
        process.machine.connect(key, self.now);
        self.drain(me);
    }

    fn replace(&mut self, me: usize, peer: usize) {
        let process = &mut self.processes[me];
        if let Some(key) = process.current.remove(&peer) {
            process.ends.remove(&key);
            process.machine.remove_endpoint(key, self.now);
        }
        self.add(me, peer);
        if self.processes[me].wants.contains(&peer) {
            self.connect(me, peer);
        }
    }

    /// The process dies, and all that is its own with it; another one takes its name.
    fn restart(&mut self, me: usize) {
        let handles: Vec<Qpn> = self.processes[me].handles.values().copied().collect();
        handles.into_iter().for_each(|receiver| self.release(receiver));
        for sender in self.processes[me].senders.values() {
            self.sends.remove(sender);
        }
        let wants = std::mem::take(&mut self.processes[me].wants);
        let peers: Vec<usize> = self.processes[me].current.keys().copied().collect();
        self.processes[me] = self.birth(me);
        self.processes[me].wants = wants;
        peers.into_iter().for_each(|peer| self.replace(me, peer));
    }

    fn release(&mut self, receiver: Qpn) {
        if let Some(known) = self.receivers.get_mut(&receiver) {
            known.handles -= 1;
            if known.handles == 0 {
                self.receivers.remove(&receiver);
            }
        }
    }

    /// Whoever is connected sends something. Where the device says that it cannot, the connection is renewed.
    fn use_all(&mut self) {
        for me in 0..self.processes.len() {
            let keys: Vec<EndpointKey> = self.processes[me].ends.keys().copied().collect();
            for key in keys {
                let end = &self.processes[me].ends[&key];
                if end.route.is_some() && !self.leads_on(me, end) {
                    self.processes[me].ends.get_mut(&key).unwrap().route = None;
                    self.processes[me].machine.renew(key, self.now);
                    self.drain(me);
                }
            }
        }
    }

    /// The send queue pair is up, and so is what it leads to; the SRQ is there.
    fn leads_on(&self, me: usize, end: &End) -> bool {
        let (process, peer) = (&self.processes[me], &self.processes[end.peer]);
        let Some(route) = &end.route else { return false };
        let Some(sender) = process.senders.get(&route.path) else { return false };
        let Some((receiver, psn)) = self.sends.get(sender) else { return false };
        let Some(known) = self.receivers.get(receiver) else { return false };
        known.sender == *sender && known.psn == *psn && known.node == peer.node && route.srqs == peer.srqs
    }

    fn is_usable(&self, me: usize, peer: usize) -> bool {
        let process = &self.processes[me];
        let Some(end) = process.current.get(&peer).map(|key| &process.ends[key]) else { return false };
        if !self.leads_on(me, end) {
            return false;
        }
        let (route, other) = (end.route.as_ref().unwrap(), &self.processes[peer]);
        let (receiver, _) = self.sends[&process.senders[&route.path]];
        let held = other.handles.values().any(|&handle| handle == receiver);
        held && other.current.get(&me).is_some_and(|key| key.index == route.label)
    }

    fn is_reported(&self, me: usize, peer: usize) -> bool {
        self.processes[me].failures.iter().any(|failure| failure.peer == self.processes[peer].name)
    }

    // What the driver and the network do.

    fn drain(&mut self, me: usize) {
        while let Some(action) = self.processes[me].machine.poll_action() {
            self.perform(me, action);
        }
    }

    fn perform(&mut self, me: usize, action: Action) {
        let now = self.now;
        match action {
            Action::MakeSender { path } => {
                let qpn = Qpn(self.number());
                self.processes[me].senders.insert(path, qpn);
                self.processes[me].machine.sender_made(path, Ok(qpn), now);
            }
            Action::RaiseSender { path, receiver, psn, .. } => {
                let sender = self.processes[me].senders[&path];
                assert!(
                    self.sends.insert(sender, (receiver, psn)).is_none(),
                    "a send queue pair goes up once"
                );
                self.processes[me].machine.sender_raised(path, Ok(()), now);
            }
            Action::DropSender { path } => {
                if let Some(sender) = self.processes[me].senders.remove(&path) {
                    self.sends.remove(&sender);
                }
            }
            Action::Join { link, attempt, receiver, sender, psn, .. } => {
                let outcome = self.join(me, receiver, sender, psn);
                if let Ok(receiver) = outcome
                    && let Some(former) = self.processes[me].handles.insert(link, receiver)
                {
                    self.release(former);
                }
                self.processes[me].machine.joined(link, attempt, outcome, now);
            }
            Action::Release { link } => {
                if let Some(receiver) = self.processes[me].handles.remove(&link) {
                    self.release(receiver);
                }
            }
            Action::Send { to, datagram } => {
                let mut bytes = Box::new([0; MAD_LEN]);
                datagram.emit(&mut bytes);
                self.transmit(me, to.qpn, bytes);
            }
            Action::Connected { key, path, srqs, label } => {
                if let Some(end) = self.processes[me].ends.get_mut(&key) {
                    end.route = Some(Route { path, srqs, label });
                }
            }
            Action::Failed { key, error } => {
                self.processes[me].failures.push(error);
                if let Some(end) = self.processes[me].ends.get_mut(&key) {
                    end.spent = true;
                }
            }
            Action::Disconnected { key } => self.told.push_back(Told::Disconnected(me, key)),
            Action::UnknownPeer { peer } => self.told.push_back(Told::Unknown(me, peer)),
        }
    }

    fn join(&mut self, me: usize, receiver: Option<Qpn>, sender: Qpn, psn: Psn) -> Result<Qpn, JoinError> {
        let node = self.processes[me].node;
        let Some(number) = receiver else {
            let number = Qpn(self.number());
            self.receivers.insert(number, Receiver { node, sender, psn, handles: 1 });
            return Ok(number);
        };
        let known = self.receivers.get_mut(&number).filter(|known| known.node == node);
        known.map(|known| known.handles += 1).ok_or(JoinError::Gone)?;
        Ok(number)
    }

    fn transmit(&mut self, me: usize, to: Qpn, bytes: Bytes) {
        let listener = self.processes[me].address.listener;
        let from = Source { qpn: listener.qpn, lid: listener.lid, gid: None };
        let number = self.sent;
        self.sent += 1;
        let fault = self.plan.faults.remove(&number).or_else(|| self.draw_fault());
        let arrivals: &[u32] = match fault {
            Some(Fault::Drop) => &[],
            Some(Fault::Duplicate) => &[1, 3],
            Some(Fault::Swap) => &[3],
            Some(Fault::Delay(hops)) => &[hops + 1],
            None => &[1],
        };
        for hops in arrivals {
            self.sequence += 1;
            self.net.insert((self.now + HOP * *hops, self.sequence), (from, to, bytes.clone()));
        }
        self.restarts.extend(self.plan.restarts.remove(&number));
    }

    fn draw_fault(&mut self) -> Option<Fault> {
        let (odds, draw) = (self.odds, (self.random() >> 33) % 100);
        match draw {
            _ if draw < odds.drop => Some(Fault::Drop),
            _ if draw < odds.drop + odds.duplicate => Some(Fault::Duplicate),
            _ if draw < odds.drop + odds.duplicate + odds.delay => {
                Some(Fault::Delay((draw as u32 + 1) * 999))
            }
            _ => None,
        }
    }

    fn hear(&mut self) {
        while let Some(told) = self.told.pop_front() {
            match told {
                Told::Disconnected(me, key) => {
                    let peer = self.processes[me].ends.get(&key).map(|end| end.peer);
                    if let Some(peer) = peer.filter(|peer| self.processes[me].current.get(peer) == Some(&key))
                    {
                        self.replace(me, peer);
                    }
                }
                Told::Unknown(me, name) => {
                    let peer = self.processes.iter().position(|process| process.name == name).unwrap();
                    let process = &self.processes[me];
                    let end = process.current.get(&peer).map(|key| &process.ends[key]);
                    if end.is_none_or(|end| end.spent || end.address != self.processes[peer].address) {
                        self.replace(me, peer);
                    }
                }
            }
        }
    }

    /// A stopped process goes on: like the driver, it takes in all that has come before it does anything.
    fn wake(&mut self, me: usize) {
        self.processes[me].stopped = false;
        for (from, bytes) in std::mem::take(&mut self.processes[me].inbox) {
            self.processes[me].machine.datagram(from, &bytes[..], self.now);
        }
        self.drain(me);
    }

    fn next_time(&self) -> Option<Instant> {
        let at_once = (!self.restarts.is_empty()).then_some(self.now);
        let due = self.processes.iter().filter_map(|process| process.machine.poll_timeout());
        due.chain(self.net.keys().next().map(|&(at, _)| at)).chain(at_once).min()
    }

    fn step(&mut self) -> bool {
        while let Some(process) = self.restarts.pop_front() {
            self.restart(process);
        }
        let Some(at) = self.next_time() else { return false };
        self.steps += 1;
        self.now = self.now.max(at);
        if let Some(entry) = self.net.first_entry()
            && entry.key().0 <= self.now
        {
            let (from, to, bytes) = entry.remove();
            let hears = |process: &Process| process.address.listener.qpn == to;
            match self.processes.iter().position(hears) {
                Some(me) if self.processes[me].stopped => self.processes[me].inbox.push((from, bytes)),
                Some(me) => {
                    self.processes[me].machine.datagram(from, &bytes[..], self.now);
                    self.drain(me);
                }
                None => {}
            }
        }
        for me in 0..self.processes.len() {
            if self.processes[me].machine.poll_timeout().is_some_and(|at| at <= self.now) {
                self.processes[me].machine.handle_timeout(self.now);
                self.drain(me);
            }
        }
        self.hear();
        true
    }

    fn run(&mut self) {
        let limit = STEPS * (self.processes.len() * self.processes.len()) as u64;
        while self.step() {
            assert!(self.steps < limit, "livelock");
        }
    }

    fn run_until(&mut self, time: Duration) {
        while self.next_time().is_some_and(|at| at <= self.start + time) {
            self.step();
        }
        self.now = self.now.max(self.start + time);
    }

    /// Everybody who wants to send can, or has been told.
    fn check(&self) {
        for me in 0..self.processes.len() {
            for &peer in &self.processes[me].wants {
                let fine = self.is_usable(me, peer) || self.is_reported(me, peer);
                assert!(fine, "{me} cannot send to {peer}, and was not told");
            }
        }
    }
}

/// When each side begins, in hops.
const STARTS: [[Option<u32>; 2]; 7] = [
    [Some(0), None],
    [None, Some(0)],
    [Some(0), Some(0)],
    [Some(0), Some(1)],
    [Some(1), Some(0)],
    [Some(0), Some(2)],
    [Some(3), Some(0)],
];

fn begin(world: &mut World, start: [Option<u32>; 2]) {
    for hop in 0..4 {
        for (me, at) in start.into_iter().enumerate() {
            if at == Some(hop) {
                world.connect(me, 1 - me);
            }
        }
        world.run_until(HOP * (hop + 1));
    }
}

#[test]
fn up_to_three_mishaps_with_the_first_eight_datagrams_never_leave_a_pair_without_a_connection_or_a_report() {
    let first = seed(1);
    let mut runs = 0;
    for start in STARTS {
        plans(3, &mut |mishaps| {
            runs += 1;
            let mut world = World::new(2, 1, first.wrapping_add(runs));
            world.meet_all();
            world.plan = Plan::of(mishaps);
            begin(&mut world, start);
            world.run();
            assert!(world.now - world.start < BOUND, "{start:?} {mishaps:?}");
            if mishaps.iter().any(|mishap| matches!(mishap, Mishap::Restart(..))) {
                // A planned restart may come only now, and each calls for another look.
                for _ in mishaps {
                    world.use_all();
                    world.run();
                }
            } else {
                let unharmed = world.processes.iter().all(|process| process.failures.is_empty());
                assert!(unharmed, "{start:?} {mishaps:?}: such a network is no reason to give up");
            }
            let fine = |me: usize, peer| world.is_usable(me, peer) || world.is_reported(me, peer);
            let asked = |me: usize| start[me].is_none() || fine(me, 1 - me);
            assert!(asked(0) && asked(1), "{start:?} {mishaps:?}");
            if let [Mishap::Restart(_, node)] = *mishaps
                && start[node].is_some()
            {
                assert!(
                    world.is_usable(node, 1 - node),
                    "{start:?} {mishaps:?}: it asked anew and was not heard"
                );
            }
        });
    }
    println!("{runs} histories");
    assert_eq!(runs, 7 * (1 + 48 + 1072 + 14_784));
}

fn all_to_all(nodes: usize, per_node: usize, seed: u64, odds: Odds) -> World {
    let mut world = World::new(nodes, per_node, seed);
    world.odds = odds;
    world.meet_all();
    let count = world.processes.len();
    for me in 0..count {
        (0..count).filter(|&peer| peer != me).for_each(|peer| world.connect(me, peer));
    }
    world
}

#[test]
fn without_faults_one_send_queue_pair_a_node_serves_all_its_processes() {
    let mut world = all_to_all(4, 4, seed(2), Odds::default());
    world.run();
    world.check();
    for process in &world.processes {
        assert!(process.failures.is_empty());
        assert_eq!(process.machine.stats().senders, 4, "one for each node, its own included");
    }
    assert_eq!(world.receivers.len(), 16 * 4);
    assert_eq!(world.sent, 16 * 15 * 2, "one request and one answer for each direction");
}

fn rounds() -> u64 {
    std::env::var("OXIB_SIM_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4)
}

/// The first process of a node that is asked is stopped: the others of its node are connected after one time-out, and it once it
/// goes on.
#[test]
fn a_stopped_process_holds_up_no_other_of_its_node() {
    let mut world = World::new(2, 4, seed(5));
    world.meet_all();
    for stopped in [4, 5] {
        world.processes[stopped].stopped = true;
    }
    (4..8).for_each(|peer| world.connect(0, peer));
    world.run_until(Params::default().timeout * 4);
    assert!(world.is_usable(0, 6) && world.is_usable(0, 7));
    assert!(!world.is_usable(0, 4) && !world.is_usable(0, 5));
    world.run_until(Duration::from_secs(10));
    (4..6).for_each(|stopped| world.wake(stopped));
    world.run();
    (4..8).for_each(|peer| assert!(world.is_usable(0, peer), "{peer}"));
    assert!(world.processes[0].failures.is_empty());
}

#[test]
fn all_to_all_on_a_bad_network_comes_up_whatever_is_lost() {
    let first = seed(3);
    for seed in first..first + rounds() {
        let mut world = all_to_all(4, 4, seed, Odds { drop: 10, duplicate: 10, delay: 10, corrupt: 0 });
        world.run();
        assert!(world.now - world.start < BOUND);
        world.check();
        assert!(world.processes.iter().all(|process| process.failures.is_empty()));
    }
}

#[test]
fn processes_that_start_anew_leave_nobody_without_a_connection_or_a_report() {
    let first = seed(4);
    for seed in first..first + rounds() {
        let mut world = all_to_all(4, 4, seed, Odds { drop: 5, duplicate: 5, delay: 5, corrupt: 0 });
        for _ in 0..4 {
            let (after, process) = (world.random() % 600, (world.random() % 16) as usize);
            world.plan.restarts.insert(after, process);
        }
        for _ in 0..3 {
            world.run();
            world.use_all();
        }
        world.run();
        world.check();
    }
}
