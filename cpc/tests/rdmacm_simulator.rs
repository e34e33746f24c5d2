//! rdmacm machines against each other in virtual time, over a connection manager that is slow, loses and refuses as a seed says.
//!
//! The manager keeps what the real one keeps: messages of one connection in order, an end told when the other goes. It may be late
//! with everything, give up requests (UNREACHABLE), and lose confirmations (RTU), which data then stand in for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod sim;

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use cpc::rdmacm::Params;
use cpc::rdmacm::machine::{Action, Call, First, IdEvent, Local, Machine, Refused, StateKind};
use cpc::wire::ip::Address;
use cpc::wire::refusal::Refusal;
use cpc::wire::{HELLO_LEN, Hello, Layout, Qpns};
use cpc::{EndpointCommand, EndpointKey, ProcessName};
use sim::net::Net;
use verbs::Qpn;
use verbs::cm::Token;

/// An end of a connection: which machine, which id.
type End = (usize, Token);

#[derive(Clone, Debug)]
enum News {
    AddrResolved,
    RouteResolved,
    Request(End, Vec<u8>),
    Response(Vec<u8>),
    Established,
    Refused(Option<[u8; 8]>),
    Broken,
    Disconnected,
    FirstData(u32),
    Start(u32),
}

/// Which machine, which of its ids, what.
type Due = (usize, Token, News);

struct World {
    machines: Vec<Machine>,
    net: Net<Due>,
    /// The other end of each end.
    peers: HashMap<End, End>,
    /// When the last message of an end arrives: later ones come later.
    last: HashMap<End, Instant>,
    /// QPNs of each endpoint, and those it was brought up with.
    made: HashMap<(usize, u32), Qpns>,
    /// iWARP: who was told to send first.
    order: HashMap<(usize, u32), First>,
    risen: HashMap<(usize, u32), Vec<Qpns>>,
    connected: HashMap<(usize, u32), u32>,
    failures: Vec<String>,
    /// Of 1000 steps of the manager, so many fail; and so many confirmations are lost.
    faults: u64,
    slowest: u64,
    /// Each queue pair has an id of its own.
    iwarp: bool,
    /// iWARP: the id whose connection, or try, a queue pair is or was part of.
    taken: HashMap<(usize, Qpn), Token>,
    /// iWARP: queue pairs of further connections, ours and theirs, that were asked for.
    joined: HashMap<(usize, usize), BTreeSet<(Qpn, Qpn)>>,
    next_qpn: u32,
}

impl World {
    fn new(count: usize, seed: u64, faults: u64) -> World {
        World::of(count, seed, faults, false)
    }

    fn iwarp(count: usize, seed: u64, faults: u64) -> World {
        World::of(count, seed, faults, true)
    }

    fn of(count: usize, seed: u64, faults: u64, iwarp: bool) -> World {
        let layout = Layout::new([false, !iwarp, !iwarp]).unwrap();
        let params = Params { max_retries: 30, ..Params::default() };
        let machine = |rank: usize| {
            let local =
                Local { name: ProcessName(rank as u64), address: address(rank), layout, id_per_qp: iwarp };
            Machine::new(local, params.clone(), seed ^ rank as u64)
        };
        World {
            machines: (0..count).map(machine).collect(),
            net: Net::new("rdmacm", seed),
            peers: HashMap::new(),
            last: HashMap::new(),
            made: HashMap::new(),
            order: HashMap::new(),
            risen: HashMap::new(),
            connected: HashMap::new(),
            failures: Vec::new(),
            faults,
            slowest: 3000,
            iwarp,
            taken: HashMap::new(),
            joined: HashMap::new(),
            next_qpn: 2,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        (self.net.state() >> 33) % below
    }

    fn meet(&mut self, a: usize, b: usize) {
        self.know(a, b);
        self.know(b, a);
    }

    fn know(&mut self, a: usize, b: usize) {
        self.machines[a].add_endpoint(key(b), ProcessName(b as u64), address(b), self.net.now);
    }

    fn start(&mut self, a: usize, b: usize, after: Duration) {
        self.post(self.net.start + after, a, Token(0), News::Start(b as u32));
    }

    fn post(&mut self, at: Instant, machine: usize, id: Token, news: News) {
        self.net.schedule_at(at, (machine, id, news));
    }

    /// News for an end, in order, some time from now.
    fn send(&mut self, to: End, news: News) {
        let delay = Duration::from_micros(1 + self.random(self.slowest));
        let at = self.net.now + delay;
        let at = self.last.get(&to).map_or(at, |&last| at.max(last));
        self.last.insert(to, at);
        self.post(at, to.0, to.1, news);
    }

    fn fails(&mut self) -> bool {
        self.random(1000) < self.faults
    }

    /// Runs until nothing happens any more.
    fn run(&mut self) {
        let mut steps = 0_u64;
        loop {
            let timer = self.machines.iter().filter_map(Machine::poll_timeout).min();
            match (self.net.next_arrival(), timer) {
                (Some(at), timer) if timer.is_none_or(|timer| at <= timer) => self.deliver(),
                (_, Some(at)) => {
                    self.net.now = at;
                    for machine in 0..self.machines.len() {
                        self.machines[machine].handle_timeout(at);
                        self.perform(machine);
                    }
                }
                _ => return,
            }
            steps += 1;
            assert!(steps < 3_000_000, "it does not come to an end");
        }
    }

    fn deliver(&mut self) {
        let Some(now) = self.net.next_arrival() else { return };
        self.net.now = now;
        let Some((machine, id, news)) = self.net.arrived() else { return };
        let m = &mut self.machines[machine];
        match news {
            News::Start(index) => m.command(key(index as usize), EndpointCommand::Connect, now),
            News::AddrResolved => m.event(id, IdEvent::AddrResolved, now),
            News::RouteResolved => m.event(id, IdEvent::RouteResolved, now),
            News::Request(from, data) => {
                let id = m.draw_id();
                if self.peers.contains_key(&from) {
                    self.peers.insert((machine, id), from);
                    self.peers.insert(from, (machine, id));
                    m.request(id, &data, now);
                }
            }
            News::Response(data) => m.event(id, IdEvent::Response(&data), now),
            News::Established => m.event(id, IdEvent::Established, now),
            News::Refused(data) => {
                let why = data.and_then(|d| Refusal::parse(&d)).map_or(Refused::Other(28), Refused::ByPeer);
                m.event(id, IdEvent::Refused(why), now);
            }
            News::Broken => m.event(id, IdEvent::Broken("unreachable"), now),
            News::Disconnected => m.event(id, IdEvent::Disconnected, now),
            News::FirstData(index) => m.command(key(index as usize), EndpointCommand::FirstData, now),
        }
        self.perform(machine);
    }

    fn perform(&mut self, me: usize) {
        while let Some(action) = self.machines[me].poll_action() {
            let now = self.net.now;
            match action {
                Action::Call(Call::Resolve { id, .. }) => self.step(me, id, News::AddrResolved),
                Action::Call(Call::Route { id }) => self.step(me, id, News::RouteResolved),
                Action::Call(Call::CreateQps { key }) => {
                    let qpns = [0, 1, 2].map(|queue| Qpn(self.next_qpn + queue));
                    let qpns = Qpns::new(&qpns).unwrap();
                    self.next_qpn += 3;
                    self.made.insert((me, key.index), qpns);
                    self.machines[me].qps_created(key, Ok(qpns), now);
                }
                Action::Call(Call::Connect { id, hello }) => {
                    self.take(me, hello.qpns.first(), id);
                    let to = self.target(me, hello.qpns.first());
                    self.connect(me, id, to, data(&hello));
                }
                Action::Call(Call::Join { id, join }) => {
                    self.take(me, join.from[1], id);
                    let to = self.target(me, join.from[0]);
                    self.joined.entry((me, to)).or_default().insert((join.from[1], join.to[1]));
                    self.connect(me, id, to, join.emit().to_vec());
                }
                Action::Call(Call::AcceptJoin { id, qpn }) => {
                    self.take(me, qpn, id);
                    self.tell_peer((me, id), News::Response(Vec::new()));
                    self.send((me, id), News::Established);
                }
                Action::Call(Call::Order { key, first }) => {
                    self.order.insert((me, key.index), first);
                }
                Action::Call(Call::BringUp { key, remote, .. }) => {
                    self.risen.entry((me, key.index)).or_default().push(remote);
                    self.machines[me].qps_up(key, Ok(()), now);
                }
                Action::Call(Call::Accept { id, hello }) => {
                    self.take(me, hello.qpns.first(), id);
                    self.tell_peer((me, id), News::Response(data(&hello)));
                    if self.iwarp {
                        self.send((me, id), News::Established);
                    }
                }
                Action::Call(Call::Establish { id }) => {
                    if !self.fails() {
                        self.tell_peer((me, id), News::Established);
                    }
                }
                Action::Call(Call::Refuse { id, why }) => {
                    self.tell_peer((me, id), News::Refused(Some(why.emit())));
                    self.peers.remove(&(me, id));
                }
                Action::Call(Call::Disconnect { id }) => self.tell_peer((me, id), News::Disconnected),
                Action::Call(Call::Close { id }) => {
                    self.tell_peer((me, id), News::Refused(None));
                    self.peers.remove(&(me, id));
                }
                Action::Connected { key } => {
                    *self.connected.entry((me, key.index)).or_default() += 1;
                    // The clear-to-send is on its way, unless the peer has to send first.
                    if self.order.get(&(me, key.index)) == Some(&First::Peer) {
                        continue;
                    }
                    let delay = Duration::from_micros(1 + self.random(self.slowest));
                    self.post(self.net.now + delay, key.index as usize, Token(0), News::FirstData(me as u32));
                }
                Action::Failed { error, .. } => self.failures.push(error.to_string()),
                Action::Call(Call::Notify { .. })
                | Action::Disconnected { .. }
                | Action::UnknownPeer { .. } => {}
            }
        }
    }

    fn step(&mut self, me: usize, id: Token, news: News) {
        let news = if self.fails() { News::Broken } else { news };
        // Which machine an address leads to is found when it is asked; the id has no other end yet.
        self.peers.entry((me, id)).or_insert((usize::MAX, id));
        self.send((me, id), news);
    }

    fn connect(&mut self, me: usize, id: Token, to: usize, data: Vec<u8>) {
        if self.fails() {
            return self.send((me, id), News::Broken);
        }
        let news = News::Request((me, id), data);
        let delay = Duration::from_micros(1 + self.random(self.slowest));
        self.post(self.net.now + delay, to, Token(0), news);
    }

    /// The peer of the endpoint with this first queue pair.
    fn target(&self, me: usize, first: Qpn) -> usize {
        let mine = self.made.iter().find(|((machine, _), qpns)| *machine == me && qpns.first() == first);
        mine.unwrap().0.1 as usize
    }

    /// iWARP: a queue pair is part of one connection, or of one try, and of no other ever.
    fn take(&mut self, me: usize, qpn: Qpn, id: Token) {
        if self.iwarp {
            let other = self.taken.insert((me, qpn), id);
            assert_eq!(other, None, "{qpn} of {me} has been used before");
        }
    }

    fn tell_peer(&mut self, from: End, news: News) {
        if let Some(&to) = self.peers.get(&from)
            && to.0 != usize::MAX
            && self.peers.contains_key(&to)
        {
            self.send(to, news);
        }
    }

    /// Both ends of a pair are up, over each other's queue pairs, and each said so once.
    fn check(&self, a: usize, b: usize) {
        for (me, peer) in [(a, b), (b, a)] {
            let (mine, theirs) = ((me, peer as u32), (peer, me as u32));
            let about = format!("{me} to {peer}: {:?}", self.failures);
            assert_eq!(self.machines[me].state(key(peer)), Some(StateKind::Connected), "{about}");
            assert_eq!(self.risen[&mine], [self.made[&theirs]], "{about}");
            assert_eq!(self.connected[&mine], 1, "{about}");
        }
        if self.iwarp {
            self.check_streams(a, b);
        }
    }

    /// Every further queue pair was joined to the peer's of the same queue, by the side that sends first.
    fn check_streams(&self, a: usize, b: usize) {
        let first = |me: usize, peer: usize| self.order[&(me, peer as u32)];
        let (asks, answers) = if first(a, b) == First::Us { (a, b) } else { (b, a) };
        assert_eq!((first(asks, answers), first(answers, asks)), (First::Us, First::Peer));
        let (from, to) = (self.made[&(asks, answers as u32)], self.made[&(answers, asks as u32)]);
        let pairs: BTreeSet<_> =
            from.as_slice().iter().copied().zip(to.as_slice().iter().copied()).skip(1).collect();
        assert_eq!(self.joined[&(asks, answers)], pairs);
        assert!(!self.joined.contains_key(&(answers, asks)));
    }

    /// Both ends are up as they should be, or one of them has said why not.
    fn check_or_reported(&self, a: usize, b: usize) {
        let state = |me: usize, peer: usize| self.machines[me].state(key(peer));
        if (state(a, b), state(b, a)) == (Some(StateKind::Connected), Some(StateKind::Connected)) {
            return self.check(a, b);
        }
        let over = |state| matches!(state, Some(StateKind::Failed | StateKind::Disconnected));
        assert!(over(state(a, b)) || over(state(b, a)), "{:?} {:?}", state(a, b), state(b, a));
        for state in [state(a, b), state(b, a)] {
            let pending = over(state) || state == Some(StateKind::Idle);
            assert!(pending, "{state:?}, {:?}", self.failures);
        }
    }
}

fn key(index: usize) -> EndpointKey {
    EndpointKey { index: index as u32, generation: 0 }
}

fn address(rank: usize) -> Address {
    // Ranks and addresses in different orders.
    Address { socket: ([10, 0, (rank % 7) as u8, (rank / 7) as u8], 7).into(), incarnation: rank as u32 }
}

fn data(hello: &Hello) -> Vec<u8> {
    let mut data = vec![0; HELLO_LEN];
    hello.emit(&mut data);
    data
}

#[test]
fn two_that_begin_at_any_time_get_one_connection() {
    for seed in 0..4000 {
        let mut world = World::new(2, seed, 0);
        world.meet(0, 1);
        let offset = Duration::from_micros(world.random(12_000));
        world.start(0, 1, Duration::ZERO);
        world.start(1, 0, offset);
        world.run();
        world.check(0, 1);
        assert!(world.failures.is_empty(), "seed {seed}: {:?}", world.failures);
        let retried: u64 = world.machines.iter().map(|m| m.stats().retried).sum();
        assert_eq!(retried, 0, "seed {seed}: nothing is tried again where nothing fails");
    }
}

/// One side begins; the other hears of it before it knows who that is.
fn is_served_later(world: impl Fn(u64) -> World) {
    for mut world in (0..300).map(world) {
        world.know(0, 1);
        world.start(0, 1, Duration::ZERO);
        while world.machines[1].stats().parked == 0 {
            world.deliver();
        }
        world.know(1, 0);
        world.perform(1);
        world.run();
        world.check(0, 1);
    }
}

#[test]
fn one_that_begins_while_the_other_does_not_know_it_yet_is_served_later() {
    is_served_later(|seed| World::new(2, seed, 0));
}

#[test]
fn pairs_come_up_whatever_the_manager_gives_up_or_loses() {
    for seed in 0..400 {
        let mut world = World::new(2, seed, 250);
        world.meet(0, 1);
        let offset = Duration::from_micros(world.random(12_000));
        world.start(0, 1, Duration::ZERO);
        world.start(1, 0, offset);
        world.run();
        world.check(0, 1);
    }
}

#[test]
fn all_to_all_comes_up_with_and_without_faults() {
    for (seed, faults) in [(1, 0), (2, 0), (3, 50), (4, 100), (5, 100)] {
        let count = 24;
        let mut world = World::new(count, seed, faults);
        for a in 0..count {
            (0..count).filter(|b| *b != a).for_each(|b| world.know(a, b));
            for b in (0..count).filter(|b| *b != a) {
                let after = Duration::from_micros(world.random(5000));
                world.start(a, b, after);
            }
        }
        world.run();
        (0..count).for_each(|a| (0..a).for_each(|b| world.check(a, b)));
        assert!(world.failures.is_empty(), "{:?}", world.failures);
    }
}

#[test]
fn a_storm_of_a_thousand_peers_at_one_ends_without_a_failure() {
    let count = 1001;
    let mut world = World::new(count, 7, 0);
    for peer in 1..count {
        world.meet(0, peer);
        world.start(peer, 0, Duration::ZERO);
    }
    world.run();
    (1..count).for_each(|peer| world.check(peer, 0));
    assert_eq!(world.machines[0].stats().requests, 1000);
}

#[test]
fn on_iwarp_two_that_begin_at_any_time_get_one_connection_for_each_queue_pair() {
    for seed in 0..3000 {
        let mut world = World::iwarp(2, seed, 0);
        world.meet(0, 1);
        let offset = Duration::from_micros(world.random(12_000));
        world.start(0, 1, Duration::ZERO);
        world.start(1, 0, offset);
        world.run();
        world.check(0, 1);
        assert!(world.failures.is_empty(), "seed {seed}: {:?}", world.failures);
    }
}

#[test]
fn on_iwarp_one_that_the_other_does_not_know_yet_is_served_later() {
    is_served_later(|seed| World::iwarp(2, seed, 0));
}

#[test]
fn on_iwarp_pairs_come_up_whole_or_say_why_not() {
    let mut up = 0;
    for seed in 0..1000 {
        let mut world = World::iwarp(2, seed, 60);
        world.meet(0, 1);
        let offset = Duration::from_micros(world.random(12_000));
        world.start(0, 1, Duration::ZERO);
        world.start(1, 0, offset);
        world.run();
        world.check_or_reported(0, 1);
        up += u32::from(world.machines[0].state(key(1)) == Some(StateKind::Connected));
    }
    assert!((300..1000).contains(&up), "both outcomes are met with: {up} came up");
}

#[test]
fn on_iwarp_all_to_all_comes_up() {
    let count = 16;
    let mut world = World::iwarp(count, 3, 0);
    for a in 0..count {
        (0..count).filter(|b| *b != a).for_each(|b| world.know(a, b));
        for b in (0..count).filter(|b| *b != a) {
            let after = Duration::from_micros(world.random(5000));
            world.start(a, b, after);
        }
    }
    world.run();
    (0..count).for_each(|a| (0..a).for_each(|b| world.check(a, b)));
}
