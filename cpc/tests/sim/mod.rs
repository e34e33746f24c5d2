//! A small world of connection managers in virtual time: a network that misbehaves, and a stand-in
//! for the transport of every process.
//!
//! Any manager's sans-I/O machine fits; what the world has to know of it is its `protocol`. The
//! transport does what the BTL does: it adds peers, connects when it has something to send, and
//! replaces endpoints that were disconnected.
//!
//! ```text
//!   net, faults                 virtual time, packets on their way, what goes wrong
//!   protocol, machine           what the world asks of a manager, and of its machine
//!   process, transport          a process with its endpoints; what it does, and what befalls it
//!   pairs, checks               endpoints with queue pairs of their own, and what must hold of two
//!   ibcm                        speaks datagrams itself
//!   rdmacm, manager             speaks to a model of the kernel's manager, which sends datagrams
//!   xrc                         many endpoints over one send queue pair; what must hold of them
//! ```
//! `rdmacm_simulator` has one more: rdmacm over a manager that is slow and may be iWARP's.
//! Everything follows from one seed; a world that is dropped by a failing test prints it, and
//! `OXIB_SIM_SEED` sets it.
#![allow(dead_code, unused_macros, reason = "each test binary uses a part")]

mod checks;
pub mod faults;
pub mod ibcm;
pub mod machine;
mod manager;
pub mod net;
pub mod pairs;
pub mod process;
pub mod protocol;
pub mod rdmacm;
mod transport;
pub mod xrc;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use cpc::wire::Layout;
use cpc::{EndpointKey, ProcessName};
use verbs::Qpn;

pub use self::faults::{Fault, Odds};
use self::machine::Action;
pub use self::net::{HOP, Net};
use self::process::{Event, Presence, Process};
use self::protocol::{Call, Identity, Protocol};

/// Steps for each pair of processes that no world needs: the livelock detector.
const STEPS: u64 = 3_000;

/// What crosses the network: datagrams, and messages of the manager's own.
#[derive(Clone)]
pub enum Packet<D, M> {
    /// A datagram that waited in the receive queue of a busy process until it was its turn.
    Served {
        me: usize,
        from: Qpn,
        datagram: D,
    },
    Datagram {
        from: Qpn,
        to: Qpn,
        datagram: D,
    },
    Message(M),
}

/// Runs a test for every manager with a queue pair for each endpoint.
macro_rules! for_each_manager {
    ($($name:ident)*) => {
        mod ibcm { $(#[test] fn $name() { super::$name::<super::sim::ibcm::Ibcm>(); })* }
        mod rdmacm { $(#[test] fn $name() { super::$name::<super::sim::rdmacm::RdmaCm>(); })* }
    };
}

pub type NetOf<P> = Net<Packet<<P as Protocol>::Datagram, <P as Protocol>::Message>>;

pub struct World<P: Protocol> {
    pub processes: Vec<Process<P>>,
    pub shared: P::Shared,
    pub params: P::Params,
    net: NetOf<P>,
    due: BTreeSet<(Instant, usize)>,
    /// What machines have reported to the transports, in order.
    events: VecDeque<(usize, Event)>,
    by_reach: HashMap<Qpn, usize>,
    by_name: HashMap<ProcessName, usize>,
    /// By the first queue pair of an endpoint.
    owners: HashMap<Qpn, (usize, EndpointKey)>,
    spawned: u32,
    last_number: u32,
}

/// The seed of a test's worlds: `OXIB_SIM_SEED`, or the one given. It is printed; cargo shows that
/// when the test fails.
pub fn seed(default: u64) -> u64 {
    let seed = from_environment("OXIB_SIM_SEED").unwrap_or(default);
    println!("seed {seed}");
    seed
}

/// As many seeds from there on as `OXIB_SIM_ROUNDS` says, or the number given.
pub fn seeds(default: u64, rounds: u64) -> std::ops::Range<u64> {
    let first = seed(default);
    first..first + from_environment("OXIB_SIM_ROUNDS").unwrap_or(rounds)
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

pub fn layout() -> Layout {
    Layout::new([false, true, true]).unwrap()
}

/// Time, the network, and what is to go wrong.
impl<P: Protocol> Deref for World<P> {
    type Target = NetOf<P>;

    fn deref(&self) -> &NetOf<P> {
        &self.net
    }
}

impl<P: Protocol> DerefMut for World<P> {
    fn deref_mut(&mut self) -> &mut NetOf<P> {
        &mut self.net
    }
}

impl<P: Protocol> World<P> {
    pub fn new(count: usize, seed: u64, params: &P::Params) -> World<P> {
        let mut world = World {
            processes: Vec::new(),
            shared: P::Shared::default(),
            params: params.clone(),
            net: Net::new(P::NAME, seed, P::SHIFT),
            due: BTreeSet::new(),
            events: VecDeque::new(),
            by_reach: HashMap::new(),
            by_name: HashMap::new(),
            owners: HashMap::new(),
            spawned: 0,
            last_number: 100,
        };
        for index in 0..count {
            let process = world.spawn(index, layout());
            world.processes.push(process);
        }
        world
    }

    fn spawn(&mut self, index: usize, layout: Layout) -> Process<P> {
        self.spawned += 1;
        let id = Identity {
            index,
            number: self.spawned,
            qpn: Qpn(self.number()),
            // Later processes have higher ones, wherever the count begins.
            incarnation: (self.net.first_seed as u32).wrapping_sub(3).wrapping_add(self.spawned),
            name: ProcessName(0x5_0000_0000 + index as u64),
            layout,
        };
        let spawned = P::spawn(&id, &self.params, &mut self.net);
        let process = Process::new(spawned, id.name, self.net.start);
        self.by_reach.insert(P::reach(&process.address), index);
        self.by_name.insert(process.name, index);
        process
    }

    /// Another process takes the place of the one that was there.
    pub fn respawn(&mut self, me: usize, layout: Layout) -> Process<P> {
        let old = &self.processes[me];
        self.by_reach.remove(&P::reach(&old.address));
        old.due.map(|at| self.due.remove(&(at, me)));
        self.events.retain(|&(of, _)| of != me);
        let new = self.spawn(me, layout);
        std::mem::replace(&mut self.processes[me], new)
    }

    /// A number that nothing else has.
    fn number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    // What machines have done.

    pub fn drain(&mut self, me: usize) {
        while let Some(action) = P::next_action(&mut self.processes[me], self.net.now) {
            self.handle_action(me, action);
        }
        let process = &mut self.processes[me];
        let due = if process.is_here() { P::poll_timeout(process) } else { None };
        let old = std::mem::replace(&mut process.due, due);
        if due != old {
            old.map(|at| self.due.remove(&(at, me)));
            due.map(|at| self.due.insert((at, me)));
        }
    }

    fn handle_action(&mut self, me: usize, action: Action<Call<P>>) {
        match action {
            Action::Call(call) => P::call(self, me, call),
            Action::Agreed { key, stream } => drop(self.processes[me].streams.insert(key, stream)),
            Action::Connected { key } => {
                self.processes[me].up.insert(key);
                P::connected(self, me, key);
            }
            Action::Failed { key, error } => {
                self.processes[me].failures.push(error);
                self.events.push_back((me, Event::Failed(key)));
            }
            Action::Disconnected { key } => self.events.push_back((me, Event::Disconnected(key))),
            Action::Unlisted { .. } | Action::Asked { .. } | Action::Retracted { .. } => {
                unreachable!("it is not asked for")
            }
            Action::UnknownPeer { peer } => self.events.push_back((me, Event::Unknown(peer))),
        }
    }

    /// Sends a datagram.
    pub fn transmit(&mut self, me: usize, to: Qpn, mut datagram: P::Datagram) {
        if self.net.chance(self.net.odds.corrupt) {
            let bit = usize::try_from(self.net.random() >> 40).unwrap();
            let bytes = P::bytes(&mut datagram);
            if !bytes.is_empty() {
                bytes[bit / 8 % bytes.len()] ^= 1 << (bit % 8);
            }
        }
        let from = P::reach(&self.processes[me].address);
        self.net.send(Packet::Datagram { from, to, datagram }, P::draw_fault);
    }

    // What happens in time.

    /// When something happens next, once pending events and restarts are handled; `None` when all is
    /// quiet.
    fn next_time(&mut self) -> Option<Instant> {
        while !self.net.restarts.is_empty() || !self.events.is_empty() {
            match self.net.restarts.pop_front() {
                Some(me) => self.restart(me),
                None => self.handle_events(),
            }
        }
        let due = self.due.first().map(|&(at, _)| at);
        self.net.next_arrival().into_iter().chain(due).min()
    }

    /// Does what happens next; false when all is quiet.
    pub fn step(&mut self) -> bool {
        let Some(at) = self.next_time() else { return false };
        self.net.steps += 1;
        self.net.now = self.net.now.max(at);
        if let Some(packet) = self.net.arrived() {
            self.deliver(packet);
        }
        while let Some(&(at, me)) = self.due.first()
            && at <= self.net.now
        {
            P::handle_timeout(self, me);
            self.drain(me);
        }
        self.handle_events();
        true
    }

    /// Runs until all is quiet. Panics when that takes more steps than `limit` or ten minutes: a
    /// livelock.
    pub fn run(&mut self, limit: u64) {
        while self.step() {
            assert!(self.net.steps < limit, "livelock: {} steps, {:?}", self.net.steps, self.elapsed());
            assert!(self.elapsed() < Duration::from_secs(600), "not quiet after {:?}", self.elapsed());
        }
    }

    /// Runs until all is quiet, in no more steps than any world of so many processes needs.
    pub fn run_until_quiet(&mut self) {
        self.run(self.net.steps + STEPS * (self.processes.len() * self.processes.len()) as u64);
    }

    /// Runs until `time` has passed since the start.
    pub fn run_until(&mut self, time: Duration) {
        let end = self.net.start + time;
        while self.next_time().is_some_and(|at| at <= end) {
            self.step();
        }
        self.net.now = self.net.now.max(end);
    }

    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.elapsed() + time);
    }

    fn deliver(&mut self, packet: Packet<P::Datagram, P::Message>) {
        match packet {
            Packet::Datagram { from, to, datagram } => {
                if let Some(&me) = self.by_reach.get(&to) {
                    self.receive(me, from, datagram);
                }
            }
            Packet::Served { me, from, datagram } => self.serve(me, from, &datagram),
            Packet::Message(message) => P::message(self, message),
        }
    }

    fn receive(&mut self, me: usize, from: Qpn, datagram: P::Datagram) {
        let process = &mut self.processes[me];
        match process.presence {
            Presence::Here if process.service.is_zero() => self.serve(me, from, &datagram),
            Presence::Here => self.queue(me, from, datagram),
            Presence::Stopped => process.inbox.push((from, datagram)),
            Presence::Away | Presence::Dead => {}
        }
    }

    fn serve(&mut self, me: usize, from: Qpn, datagram: &P::Datagram) {
        P::datagram(self, me, from, datagram);
        self.drain(me);
    }

    fn queue(&mut self, me: usize, from: Qpn, datagram: P::Datagram) {
        let (now, room) = (self.net.now, P::room(&self.params));
        let process = &mut self.processes[me];
        let free_at = process.busy_until.max(now);
        if free_at - now >= process.service * room {
            process.overrun += 1;
            return;
        }
        process.busy_until = free_at + process.service;
        self.net.schedule_at(process.busy_until, Packet::Served { me, from, datagram });
    }
}
