//! The rdmacm machine on iWARP: a connection for each queue pair, the first of which settles everything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use std::time::{Duration, Instant};

use cpc::rdmacm::Params;
use cpc::rdmacm::machine::{Action, Call, First, IdEvent, Local, Machine, Refused, StateKind};
use cpc::wire::ip::Address;
use cpc::wire::join::Join;
use cpc::wire::refusal::Refusal;
use cpc::wire::{HELLO_LEN, Hello, Layout, Qpns};
use cpc::{EndpointCommand, EndpointKey, ProcessName, StreamNum};
use verbs::Qpn;
use verbs::cm::Token;

const KEY: EndpointKey = EndpointKey { index: 1, generation: 0 };
const ME: ProcessName = ProcessName(1);
const PEER: ProcessName = ProcessName(2);
const OURS: u32 = 10;
const THEIRS: u32 = 50;

fn address(last: u8) -> Address {
    Address { socket: ([10, 0, 0, last], 7).into(), incarnation: 5 }
}

fn layout() -> Layout {
    Layout::new([false; 3]).unwrap()
}

fn qpns(first: u32) -> Qpns {
    Qpns::new(&[Qpn(first), Qpn(first + 1), Qpn(first + 2)]).unwrap()
}

fn hello(first: u32) -> [u8; HELLO_LEN] {
    let mut bytes = [0; HELLO_LEN];
    Hello { layout: layout(), name: PEER, qpns: qpns(first), stream: StreamNum::NONE }.emit(&mut bytes);
    bytes
}

struct Bench {
    machine: Machine,
    now: Instant,
}

impl Bench {
    /// `lower`: our address is the lower one, so our request stands.
    fn new(lower: bool) -> Bench {
        let (ours, theirs) = if lower { (1, 9) } else { (9, 1) };
        let local = Local { name: ME, address: address(ours), layout: layout(), id_per_qp: true };
        let (mut machine, now) = (Machine::new(local, Params::default(), 1), Instant::now());
        machine.add_endpoint(KEY, PEER, address(theirs), now);
        Bench { machine, now }
    }

    /// Without the agreements, which come with each `BringUp`.
    fn actions(&mut self) -> Vec<Action> {
        let actions = std::iter::from_fn(|| self.machine.poll_action());
        actions.filter(|action| !matches!(action, Action::Agreed { .. })).collect()
    }

    fn event(&mut self, id: Token, event: IdEvent<'_>) -> Vec<Action> {
        self.machine.event(id, event, self.now);
        self.actions()
    }

    /// Asks; the id.
    fn ask(&mut self) -> Token {
        self.machine.command(KEY, EndpointCommand::Connect, self.now);
        let [Action::Call(Call::Resolve { id, .. })] = self.actions()[..] else { panic!("one id") };
        assert_eq!(self.event(id, IdEvent::AddrResolved), [Action::Call(Call::Route { id })]);
        assert_eq!(self.event(id, IdEvent::RouteResolved), [Action::Call(Call::CreateQps { key: KEY })]);
        self.machine.qps_created(KEY, Ok(qpns(OURS)), self.now);
        assert!(matches!(self.actions()[..], [Action::Call(Call::Connect { .. })]));
        id
    }

    /// The first connection is made, by us; the ids of the others.
    fn first_up(&mut self) -> Vec<Token> {
        let id = self.ask();
        let actions = self.event(id, IdEvent::Response(&hello(THEIRS)));
        assert!(matches!(actions[..], [Action::Call(Call::BringUp { .. })]), "{actions:?}");
        self.machine.qps_up(KEY, Ok(()), self.now);
        let resolve = |action| match action {
            Action::Call(Call::Resolve { id, .. }) => id,
            other => panic!("{other:?}"),
        };
        self.actions().into_iter().map(resolve).collect()
    }

    /// A request with these data; its id.
    fn request(&mut self, data: &[u8]) -> (Token, Vec<Action>) {
        let id = self.machine.draw_id();
        self.machine.request(id, data, self.now);
        (id, self.actions())
    }

    fn join(&mut self, queue: usize, first: u32) -> (Token, Vec<Action>) {
        self.request(&Join::new(queue, PEER, &qpns(first), &qpns(OURS)).unwrap().emit())
    }

    /// The peer has asked and we have accepted its first connection, which is not up yet; its id.
    fn replied(&mut self) -> Token {
        let (id, actions) = self.request(&hello(THEIRS));
        assert_eq!(actions, [Action::Call(Call::CreateQps { key: KEY })]);
        self.machine.qps_created(KEY, Ok(qpns(OURS)), self.now);
        self.actions();
        self.machine.qps_up(KEY, Ok(()), self.now);
        assert!(matches!(self.actions()[..], [Action::Call(Call::Accept { .. })]));
        id
    }

    fn kind(&self) -> Option<StateKind> {
        self.machine.state(KEY)
    }
}

#[test]
fn the_active_side_asks_for_every_further_queue_and_sends_first_when_all_are_up() {
    let mut bench = Bench::new(true);
    let ids = bench.first_up();
    assert_eq!((ids.len(), bench.kind()), (2, Some(StateKind::Joining)));
    for (queue, &id) in (1..).zip(&ids) {
        assert_eq!(bench.event(id, IdEvent::AddrResolved), [Action::Call(Call::Route { id })]);
        let join = Join::new(queue, ME, &qpns(OURS), &qpns(THEIRS)).unwrap();
        assert_eq!(bench.event(id, IdEvent::RouteResolved), [Action::Call(Call::Join { id, join })]);
    }
    assert_eq!(bench.event(ids[1], IdEvent::Response(&[])), []);
    let done = bench.event(ids[0], IdEvent::Response(&[]));
    assert_eq!(
        done,
        [Action::Call(Call::Order { key: KEY, first: First::Us }), Action::Connected { key: KEY }]
    );
    assert_eq!(bench.kind(), Some(StateKind::Connected));
}

#[test]
fn the_passive_side_takes_each_queue_once_and_waits_for_the_peers_first_message() {
    let mut bench = Bench::new(true);
    let first = bench.replied();
    assert_eq!(bench.event(first, IdEvent::Established), []);
    let (second, actions) = bench.join(2, THEIRS);
    assert_eq!(actions, [Action::Call(Call::AcceptJoin { id: second, qpn: Qpn(OURS + 2) })]);
    let (twice, actions) = bench.join(2, THEIRS);
    assert_eq!(actions, [Action::Call(Call::Refuse { id: twice, why: Refusal::Late })]);
    let (third, _) = bench.join(1, THEIRS);
    assert_eq!(bench.event(third, IdEvent::Established), []);
    let done = bench.event(second, IdEvent::Established);
    assert_eq!(
        done,
        [Action::Call(Call::Order { key: KEY, first: First::Peer }), Action::Connected { key: KEY }]
    );
}

#[test]
fn requests_of_another_time_queue_or_process_are_refused_and_change_nothing() {
    let mut bench = Bench::new(true);
    let first = bench.replied();
    bench.event(first, IdEvent::Established);
    let stranger = Join { name: ProcessName(9), ..Join::new(1, PEER, &qpns(THEIRS), &qpns(OURS)).unwrap() };
    let old = Join::new(1, PEER, &qpns(THEIRS), &qpns(90)).unwrap();
    let beyond = Join { queue: 3, ..old };
    for (data, why) in [(stranger, Refusal::UnknownPeer), (old, Refusal::Late), (beyond, Refusal::Late)] {
        let (id, actions) = bench.request(&data.emit());
        assert_eq!(actions, [Action::Call(Call::Refuse { id, why })]);
    }
    let (id, actions) = bench.join(1, 70);
    assert_eq!(actions, [Action::Call(Call::Refuse { id, why: Refusal::Late })]);
    assert_eq!(bench.kind(), Some(StateKind::Joining));
}

#[test]
fn a_request_that_overtakes_the_first_connections_last_word_stands_for_it() {
    let mut bench = Bench::new(true);
    bench.replied();
    let (id, actions) = bench.join(1, THEIRS);
    assert_eq!(actions, [Action::Call(Call::AcceptJoin { id, qpn: Qpn(OURS + 1) })]);
    assert_eq!(bench.kind(), Some(StateKind::Joining));
}

#[test]
fn one_that_is_refused_broken_or_lost_fails_the_endpoint_and_every_id_is_closed() {
    let refused = IdEvent::Refused(Refused::ByPeer(Refusal::NoResources));
    for event in [refused, IdEvent::Broken("no route"), IdEvent::Disconnected] {
        let mut bench = Bench::new(true);
        let ids = bench.first_up();
        bench.event(ids[0], IdEvent::Response(&[]));
        let actions = bench.event(ids[1], event);
        let closed =
            actions.iter().filter(|action| matches!(action, Action::Call(Call::Close { .. }))).count();
        assert_eq!(closed, 3, "{actions:?}");
        let Some(Action::Failed { error, .. }) = actions.last() else { panic!("{actions:?}") };
        assert!(error.to_string().contains("connection 3 of its queues"), "{error}");
        assert_eq!(bench.kind(), Some(StateKind::Failed));
    }
}

#[test]
fn a_connection_that_is_lost_later_takes_the_others_down() {
    let mut bench = Bench::new(true);
    let ids = bench.first_up();
    ids.iter().for_each(|&id| drop(bench.event(id, IdEvent::Response(&[]))));
    let actions = bench.event(ids[1], IdEvent::Disconnected);
    let count = |wanted: fn(&Action) -> bool| actions.iter().filter(|action| wanted(action)).count();
    assert_eq!(count(|action| matches!(action, Action::Call(Call::Disconnect { .. }))), 3, "{actions:?}");
    assert_eq!(count(|action| matches!(action, Action::Call(Call::Close { .. }))), 3, "{actions:?}");
    assert_eq!(actions.last(), Some(&Action::Disconnected { key: KEY }));
}

#[test]
fn connections_that_do_not_come_are_not_waited_for_for_ever() {
    let mut bench = Bench::new(true);
    let first = bench.replied();
    bench.event(first, IdEvent::Established);
    bench.now += Duration::from_secs(21);
    bench.machine.handle_timeout(bench.now);
    let actions = bench.actions();
    let Some(Action::Failed { error, .. }) = actions.last() else { panic!("{actions:?}") };
    assert!(error.to_string().contains("only 1 of 3 connections came up"), "{error}");
}

#[test]
fn a_removed_endpoint_takes_all_its_connections_down() {
    let mut bench = Bench::new(true);
    let ids = bench.first_up();
    ids.iter().for_each(|&id| drop(bench.event(id, IdEvent::Response(&[]))));
    bench.machine.command(KEY, EndpointCommand::Remove, bench.now);
    let actions = bench.actions();
    assert_eq!(actions.len(), 3);
    assert!(
        actions.iter().all(|action| matches!(action, Action::Call(Call::Disconnect { .. }))),
        "{actions:?}"
    );
}

#[test]
fn of_two_crossing_requests_the_one_that_stands_is_answered_when_the_other_is_refused() {
    let mut lower = Bench::new(true);
    lower.ask();
    let (id, actions) = lower.request(&hello(THEIRS));
    assert_eq!(actions, [Action::Call(Call::Refuse { id, why: Refusal::Crossing })]);
    let mut higher = Bench::new(false);
    let own = higher.ask();
    let (theirs, actions) = higher.request(&hello(THEIRS));
    assert_eq!(actions, []);
    let actions = higher.event(own, IdEvent::Refused(Refused::ByPeer(Refusal::Crossing)));
    // With queue pairs of its own: those that were refused are spent.
    assert_eq!(actions, [Action::Call(Call::Close { id: own }), Action::Call(Call::CreateQps { key: KEY })]);
    higher.machine.qps_created(KEY, Ok(qpns(90)), higher.now);
    let actions = higher.actions();
    assert!(matches!(actions[..], [Action::Call(Call::BringUp { id, .. })] if id == theirs), "{actions:?}");
}

#[test]
fn each_try_has_queue_pairs_of_its_own() {
    let mut bench = Bench::new(true);
    let own = bench.ask();
    bench.event(own, IdEvent::Broken("unreachable"));
    bench.now = bench.machine.poll_timeout().unwrap();
    bench.machine.handle_timeout(bench.now);
    let [Action::Call(Call::Resolve { id, .. })] = bench.actions()[..] else { panic!("another try") };
    bench.event(id, IdEvent::AddrResolved);
    assert_eq!(bench.event(id, IdEvent::RouteResolved), [Action::Call(Call::CreateQps { key: KEY })]);
}

#[test]
fn queue_pairs_may_be_numbered_from_one() {
    let mut bench = Bench::new(true);
    let (_, actions) = bench.request(&hello(1));
    assert_eq!(actions, [Action::Call(Call::CreateQps { key: KEY })]);
}

#[test]
fn a_crossing_request_whose_sender_lets_go_is_closed_and_ours_goes_on() {
    let mut bench = Bench::new(false);
    let own = bench.ask();
    let (theirs, _) = bench.request(&hello(THEIRS));
    assert_eq!(bench.event(theirs, IdEvent::Disconnected), [Action::Call(Call::Close { id: theirs })]);
    let actions = bench.event(own, IdEvent::Response(&hello(THEIRS)));
    assert!(matches!(actions[..], [Action::Call(Call::BringUp { .. })]), "{actions:?}");
}

#[test]
fn a_layout_of_one_queue_needs_one_connection() {
    let layout = Layout::new([false]).unwrap();
    let local = Local { name: ME, address: address(1), layout, id_per_qp: true };
    let (mut machine, now) = (Machine::new(local, Params::default(), 1), Instant::now());
    machine.add_endpoint(KEY, PEER, address(9), now);
    let mut bytes = [0; HELLO_LEN];
    Hello { layout, name: PEER, qpns: Qpns::new(&[Qpn(THEIRS)]).unwrap(), stream: StreamNum::NONE }
        .emit(&mut bytes);
    let id = machine.draw_id();
    machine.request(id, &bytes, now);
    machine.qps_created(KEY, Ok(Qpns::new(&[Qpn(OURS)]).unwrap()), now);
    machine.qps_up(KEY, Ok(()), now);
    machine.event(id, IdEvent::Established, now);
    let actions: Vec<Action> = std::iter::from_fn(|| machine.poll_action()).collect();
    let end = [Action::Call(Call::Order { key: KEY, first: First::Peer }), Action::Connected { key: KEY }];
    assert_eq!(actions[actions.len() - 2..], end);
}
