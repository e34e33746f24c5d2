//! The rdmacm machine's decision for every state and every input.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod matrix;

use std::time::{Duration, Instant};

use cpc::rdmacm::Params;
use cpc::rdmacm::machine::{Action, Call, IdEvent, Local, Machine, Refused, StateKind};
use cpc::wire::ip::Address;
use cpc::wire::join::Join;
use cpc::wire::refusal::Refusal;
use cpc::wire::{HELLO_LEN, Hello, Layout, Qpns};
use cpc::{EndpointCommand, EndpointKey, ProcessName, StreamNum};
use verbs::Qpn;
use verbs::cm::Token;

const KEY: EndpointKey = EndpointKey { index: 1, generation: 0 };
const OTHER: EndpointKey = EndpointKey { index: 2, generation: 0 };
const ME: ProcessName = ProcessName(1);
const PEER: ProcessName = ProcessName(2);

fn address(last: u8) -> Address {
    Address { socket: ([10, 0, 0, last], 7).into(), incarnation: 5 }
}

fn layout() -> Layout {
    Layout::new([false, true]).unwrap()
}

fn qpns(first: u32) -> Qpns {
    Qpns::new(&[Qpn(first), Qpn(first + 1)]).unwrap()
}

fn bytes(name: ProcessName, layout: Layout, qpns: Qpns) -> [u8; HELLO_LEN] {
    let mut bytes = [0; HELLO_LEN];
    Hello { layout, name, qpns, stream: StreamNum::NONE }.emit(&mut bytes);
    bytes
}

/// A machine, an endpoint in it, and the id that its events come with.
struct Bench {
    machine: Machine,
    id: Token,
    /// iWARP: that of the second queue.
    stream: Token,
    /// Ids that the driver has and that are not closed.
    open: Vec<Token>,
    now: Instant,
}

impl Bench {
    /// `lower`: our address is the lower one, so our request stands.
    fn new(lower: bool) -> Bench {
        Bench::with(lower, false)
    }

    /// `id_per_qp`: iWARP.
    fn with(lower: bool, id_per_qp: bool) -> Bench {
        let (ours, theirs) = if lower { (1, 9) } else { (9, 1) };
        let local = Local { name: ME, address: address(ours), layout: layout(), id_per_qp };
        let params = Params { window: 1, max_retries: 2, ..Params::default() };
        let (mut machine, now) = (Machine::new(local, params, 1), Instant::now());
        machine.add_endpoint(KEY, PEER, address(theirs), now);
        Bench { machine, id: Token(0), stream: Token(0), open: Vec::new(), now }
    }

    /// Without the agreements, which come with each "bring QPs up".
    fn actions(&mut self) -> Vec<Action> {
        let actions = std::iter::from_fn(|| self.machine.poll_action());
        let actions: Vec<Action> =
            actions.filter(|action| !matches!(action, Action::Agreed { .. })).collect();
        for action in &actions {
            match action {
                Action::Call(Call::Close { id }) | Action::Call(Call::Refuse { id, .. }) => {
                    self.open.retain(|other| other != id)
                }
                Action::Call(Call::Resolve { id, .. }) => self.open.push(*id),
                _ => {}
            }
            match action {
                Action::Call(Call::Resolve { id, .. })
                    if self.machine.state(KEY) == Some(StateKind::Joining) =>
                {
                    self.stream = *id;
                }
                Action::Call(Call::Resolve { id, .. }) => self.id = *id,
                Action::Call(Call::AcceptJoin { id, .. }) => self.stream = *id,
                _ => {}
            }
        }
        actions
    }

    fn event(&mut self, event: IdEvent<'_>) -> Vec<Action> {
        self.machine.event(self.id, event, self.now);
        self.actions()
    }

    /// The id of a request that has come in.
    fn drawn(&mut self) -> Token {
        let id = self.machine.draw_id();
        self.open.push(id);
        id
    }

    fn request(&mut self, first: u32) -> Vec<Action> {
        let id = self.drawn();
        self.machine.request(id, &bytes(PEER, layout(), qpns(first)), self.now);
        self.actions()
    }

    fn stream_event(&mut self, event: IdEvent<'_>) -> Vec<Action> {
        self.machine.event(self.stream, event, self.now);
        self.actions()
    }

    /// The peer, whose queue pairs begin with `first`, asks for the second queue's connection.
    fn join(&mut self, first: u32) -> Vec<Action> {
        let id = self.drawn();
        let join = Join::new(1, PEER, &qpns(first), &qpns(10)).unwrap();
        self.machine.request(id, &join.emit(), self.now);
        self.actions()
    }

    fn response(&mut self) -> Vec<Action> {
        self.event(IdEvent::Response(&bytes(PEER, layout(), qpns(50))))
    }

    /// Takes the endpoint to a state.
    fn reach(mut self, state: StateKind) -> Bench {
        use StateKind::*;
        match state {
            Idle => {}
            Queued => {
                self.machine.add_endpoint(OTHER, ProcessName(3), address(5), self.now);
                self.machine.command(OTHER, EndpointCommand::Connect, self.now);
                self.machine.command(KEY, EndpointCommand::Connect, self.now);
                self.actions();
                // That id is the other's; a queued endpoint has none.
                self.id = Token(0);
            }
            RepSent => {
                self.request(50);
                self.machine.qps_created(KEY, Ok(qpns(10)), self.now);
                let actions = self.actions();
                let Some(Action::Call(Call::BringUp { id, .. })) = actions.first() else {
                    panic!("{actions:?}")
                };
                self.id = *id;
                self.machine.qps_up(KEY, Ok(()), self.now);
            }
            Resolving => self.machine.command(KEY, EndpointCommand::Connect, self.now),
            Routing => {
                self = self.reach(Resolving);
                self.event(IdEvent::AddrResolved);
            }
            Creating => {
                self = self.reach(Routing);
                self.event(IdEvent::RouteResolved);
            }
            ReqSent => {
                self = self.reach(Creating);
                self.machine.qps_created(KEY, Ok(qpns(10)), self.now);
            }
            Yielding => {
                self = self.reach(ReqSent);
                self.event(IdEvent::Refused(Refused::ByPeer(Refusal::Crossing)));
            }
            Pausing => {
                self = self.reach(ReqSent);
                self.event(IdEvent::Broken("test"));
            }
            ToRts => {
                self = self.reach(ReqSent);
                self.response();
            }
            Joining => {
                self = self.reach(ToRts);
                self.machine.qps_up(KEY, Ok(()), self.now);
            }
            Connected => {
                self = self.reach(ToRts);
                self.machine.qps_up(KEY, Ok(()), self.now);
                self.actions();
                self.stream_event(IdEvent::Response(&[]));
            }
            DreqSent => {
                self = self.reach(Connected);
                self.machine.command(KEY, EndpointCommand::Remove, self.now);
            }
            Failed => {
                self = self.reach(ReqSent);
                self.event(IdEvent::Refused(Refused::ByPeer(Refusal::UnknownPeer)));
            }
            Disconnected => {
                self = self.reach(Connected);
                self.event(IdEvent::Disconnected);
            }
        }
        self.actions();
        assert_eq!(self.kind(), Some(state));
        self
    }

    /// The endpoint's state; a removed one is leaving, or gone (`None`).
    fn kind(&self) -> Option<StateKind> {
        let leaving = (self.machine.leaving() > 0).then_some(StateKind::DreqSent);
        self.machine.state(KEY).or(leaving)
    }

    fn apply(&mut self, input: &str) -> Vec<Action> {
        let now = self.now;
        match input {
            "connect" => self.machine.command(KEY, EndpointCommand::Connect, now),
            "remove" => self.machine.command(KEY, EndpointCommand::Remove, now),
            "unlist" => self.machine.command(KEY, EndpointCommand::Unlist, now),
            "abandon" => self.machine.command(KEY, EndpointCommand::Abandon, now),
            "first data" => self.machine.command(KEY, EndpointCommand::FirstData, now),
            "address" => drop(self.event(IdEvent::AddrResolved)),
            "route" => drop(self.event(IdEvent::RouteResolved)),
            "qps made" => self.machine.qps_created(KEY, Ok(qpns(10)), now),
            "qps failed" => self.machine.qps_created(KEY, Err("test".to_owned()), now),
            "qps up" => self.machine.qps_up(KEY, Ok(()), now),
            "qps down" => self.machine.qps_up(KEY, Err("test".to_owned()), now),
            "request" => return self.request(70),
            "response" => return self.response(),
            "nonsense" => return self.event(IdEvent::Response(&[0; 56])),
            "established" => return self.event(IdEvent::Established),
            "refused" => return self.event(IdEvent::Refused(Refused::ByPeer(Refusal::Failed))),
            "broken" => return self.event(IdEvent::Broken("test")),
            "unconfirmed" => return self.event(IdEvent::Unconfirmed("test")),
            "disconnected" => return self.event(IdEvent::Disconnected),
            "join" => return self.join(50),
            "stream up" => return self.stream_event(IdEvent::Response(&[])),
            "stream lost" => return self.stream_event(IdEvent::Broken("test")),
            "timeout" => {
                if let Some(at) = self.machine.poll_timeout() {
                    self.now = at;
                    self.machine.handle_timeout(at);
                }
            }
            other => panic!("{other}"),
        }
        self.actions()
    }
}

const INPUTS: [&str; 23] = [
    "connect",
    "remove",
    "unlist",
    "abandon",
    "first data",
    "address",
    "route",
    "qps made",
    "qps failed",
    "qps up",
    "qps down",
    "request",
    "response",
    "nonsense",
    "established",
    "refused",
    "broken",
    "unconfirmed",
    "disconnected",
    "timeout",
    "join",
    "stream up",
    "stream lost",
];

/// States that differ on iWARP, where one is of iWARP only.
const IWARP: [StateKind; 4] =
    [StateKind::ToRts, StateKind::RepSent, StateKind::Joining, StateKind::Connected];

fn describe(action: &Action) -> String {
    match action {
        Action::Call(Call::Resolve { .. }) => "resolve".to_owned(),
        Action::Call(Call::Route { .. }) => "route".to_owned(),
        Action::Call(Call::CreateQps { .. }) => "make QPs".to_owned(),
        Action::Call(Call::Connect { .. }) => "REQ".to_owned(),
        Action::Call(Call::BringUp { remote, .. }) => format!("bring QPs up to {}", remote.first().0),
        Action::Call(Call::Accept { .. }) => "REP".to_owned(),
        Action::Call(Call::Join { .. }) => "JOIN".to_owned(),
        Action::Call(Call::AcceptJoin { .. }) => "accept JOIN".to_owned(),
        Action::Call(Call::Establish { .. }) => "RTU".to_owned(),
        Action::Call(Call::Notify { .. }) => "notify".to_owned(),
        Action::Call(Call::Refuse { why, .. }) => format!("REJ({why:?})"),
        Action::Call(Call::Disconnect { .. }) => "disconnect".to_owned(),
        Action::Call(Call::Close { .. }) => "close".to_owned(),
        Action::Call(Call::Order { first, .. }) => format!("first: {first:?}"),
        Action::Agreed { stream, .. } => format!("agree upon {}", stream.0),
        Action::Connected { .. } => "CONNECTED".to_owned(),
        Action::Failed { .. } => "FAILED".to_owned(),
        Action::Disconnected { .. } => "DISCONNECTED".to_owned(),
        Action::Unlisted { .. } => "UNLISTED".to_owned(),
        Action::Asked { .. } | Action::Retracted { .. } => unreachable!("of X queues"),
        Action::UnknownPeer { .. } => "UNKNOWN PEER".to_owned(),
    }
}

fn cell(state: StateKind, iwarp: bool, input: &str) -> String {
    let mut bench = Bench::with(true, iwarp).reach(state);
    let counters = bench.machine.counters();
    let said: Vec<String> = bench.apply(input).iter().map(describe).collect();
    let counted = matrix::counted(&counters, &bench.machine.counters());
    let after = bench.kind().map_or("gone".to_owned(), |kind| format!("{kind:?}"));
    let row = if iwarp { format!("{state:?} (iWARP)") } else { format!("{state:?}") };
    let change = (format!("{state:?}"), after);
    matrix::line((20, 14, 52), (&row, input), (&change.0, &change.1), &said, counted.as_deref())
}

#[test]
fn every_state_and_input_leads_where_the_table_says() {
    let plain = StateKind::ALL.into_iter().filter(|state| *state != StateKind::Joining);
    let rows = plain.map(|state| (state, false)).chain(IWARP.map(|state| (state, true)));
    let cells = rows.flat_map(|(state, iwarp)| INPUTS.map(|input| cell(state, iwarp, input)));
    matrix::check(include_str!("rdmacm_matrix.txt"), &cells.collect::<Vec<_>>());
}

#[test]
fn left_and_leaving_are_told_apart() {
    // The golden file shows DreqSent for an endpoint that is there still, and for one that is not.
    for state in [StateKind::ToRts, StateKind::RepSent, StateKind::Connected] {
        let mut bench = Bench::new(true).reach(state);
        bench.apply("remove");
        assert_eq!(bench.machine.state(KEY), None);
        for input in ["request", "disconnected"] {
            let mut bench = Bench::new(true).reach(state);
            let actions = bench.apply(input);
            assert_eq!(bench.machine.state(KEY), Some(StateKind::Disconnected), "{state:?} {input}");
            assert!(actions.contains(&Action::Disconnected { key: KEY }), "{actions:?}");
        }
    }
}

/// Every id that the driver made is closed, refused or kept by an endpoint: none is forgotten.
#[test]
fn no_id_is_forgotten_whatever_happens() {
    let cases = [(false, true), (true, true), (true, false)].into_iter().flat_map(|(iwarp, lower)| {
        let cells = StateKind::ALL.into_iter().flat_map(|state| INPUTS.map(|input| (state, input)));
        cells.map(move |(state, input)| (iwarp, lower, state, input))
    });
    for (iwarp, lower, state, input) in cases {
        if state == StateKind::Joining && !iwarp {
            continue;
        }
        let mut bench = Bench::with(lower, iwarp).reach(state);
        bench.apply(input);
        bench.machine.close(bench.now);
        bench.actions();
        while let Some(at) = bench.machine.poll_timeout() {
            bench.machine.handle_timeout(at);
            bench.actions();
        }
        assert!(bench.open.is_empty(), "{state:?} and {input} leave {:?}", bench.open);
    }
}

#[test]
fn of_two_crossing_requests_the_lower_addresss_stands() {
    let mut lower = Bench::new(true).reach(StateKind::ReqSent);
    let actions = lower.request(70);
    assert!(
        matches!(actions[..], [Action::Call(Call::Refuse { why: Refusal::Crossing, .. })]),
        "{actions:?}"
    );
    let mut higher = Bench::new(false).reach(StateKind::ReqSent);
    let own = higher.id;
    let actions = higher.request(70);
    assert_eq!(actions[0], Action::Call(Call::Close { id: own }));
    assert!(
        matches!(actions[1], Action::Call(Call::BringUp { remote, .. }) if remote == qpns(70)),
        "{actions:?}"
    );
    assert_eq!(lower.machine.stats().raced + higher.machine.stats().raced, 2);
}

#[test]
fn a_request_that_crossed_and_comes_late_does_not_end_the_connection() {
    let mut bench = Bench::new(true).reach(StateKind::Connected);
    let actions = bench.request(50);
    assert!(matches!(actions[..], [Action::Call(Call::Refuse { why: Refusal::Late, .. })]), "{actions:?}");
    assert_eq!((bench.kind(), bench.machine.stats().late), (Some(StateKind::Connected), 1));
}

#[test]
fn a_new_start_of_the_peer_waits_for_a_new_endpoint_and_is_served_there() {
    let mut bench = Bench::new(true).reach(StateKind::Connected);
    let actions = bench.request(90);
    assert!(actions.contains(&Action::UnknownPeer { peer: PEER }), "{actions:?}");
    bench.machine.command(KEY, EndpointCommand::Remove, bench.now);
    bench.actions();
    let again = EndpointKey { index: 1, generation: 1 };
    bench.machine.add_endpoint(again, PEER, address(9), bench.now);
    assert_eq!(bench.actions(), [Action::Call(Call::CreateQps { key: again })]);
}

#[test]
fn tries_are_bounded_and_the_report_says_what_the_last_met_with() {
    let mut bench = Bench::new(true).reach(StateKind::ReqSent);
    for _ in 0..2 {
        bench.event(IdEvent::Refused(Refused::NotListening));
        bench.apply("timeout");
        bench.event(IdEvent::AddrResolved);
        bench.event(IdEvent::RouteResolved);
    }
    let actions = bench.event(IdEvent::Refused(Refused::NotListening));
    let Some(Action::Failed { error, .. }) = actions.last() else { panic!("{actions:?}") };
    let text = error.to_string();
    assert!(text.contains("no process listens") && text.contains("3 tries"), "{text}");
}

#[test]
fn the_queue_pairs_of_a_failed_try_serve_the_next() {
    let mut bench = Bench::new(true).reach(StateKind::Pausing);
    bench.apply("timeout");
    bench.event(IdEvent::AddrResolved);
    let actions = bench.event(IdEvent::RouteResolved);
    assert!(
        matches!(&actions[..], [Action::Call(Call::Connect { hello, .. })] if hello.qpns == qpns(10)),
        "{actions:?}"
    );
}

#[test]
fn a_stranger_at_the_peers_address_is_refused_and_named() {
    let mut bench = Bench::new(true).reach(StateKind::ReqSent);
    let actions = bench.event(IdEvent::Response(&bytes(ProcessName(77), layout(), qpns(50))));
    assert!(matches!(actions[0], Action::Call(Call::Refuse { .. })), "{actions:?}");
    let Some(Action::Failed { error, .. }) = actions.last() else { panic!("{actions:?}") };
    assert!(error.to_string().contains("[0,77]"), "{error}");
}

#[test]
fn unlike_layouts_are_refused_on_both_ways_and_both_are_named() {
    let theirs = Layout::new([true, true]).unwrap();
    let mut bench = Bench::new(true).reach(StateKind::Idle);
    let id = bench.machine.draw_id();
    bench.machine.request(id, &bytes(PEER, theirs, qpns(50)), bench.now);
    assert_eq!(bench.actions(), [Action::Call(Call::Refuse { id, why: Refusal::Layout(layout()) })]);
    let mut bench = Bench::new(true).reach(StateKind::ReqSent);
    let actions = bench.event(IdEvent::Refused(Refused::ByPeer(Refusal::Layout(theirs))));
    let Some(Action::Failed { error, .. }) = actions.last() else { panic!("{actions:?}") };
    assert!(error.to_string().contains("SS") && error.to_string().contains("PS"), "{error}");
    assert_eq!(bench.machine.stats().layout_refused, 1);
}

#[test]
fn requests_are_counted_for_what_they_are() {
    let mut bench = Bench::new(true);
    let ours = |name| bytes(name, layout(), qpns(50));
    let unlike = bytes(PEER, Layout::new([true, true]).unwrap(), qpns(50));
    let join = Join::new(1, PEER, &qpns(70), &qpns(10)).unwrap().emit();
    let mut count = |data: &[u8]| {
        let id = bench.machine.draw_id();
        bench.machine.request(id, data, bench.now);
        let refused = bench.actions().into_iter().find_map(|action| match action {
            Action::Call(Call::Refuse { why, .. }) => Some(why),
            _ => None,
        });
        let stats = bench.machine.stats();
        (refused, stats.requests, stats.malformed, stats.layout_refused, stats.parked)
    };
    assert_eq!(count(&[]), (Some(Refusal::Malformed), 1, 1, 0, 0));
    assert_eq!(count(&ours(ME)), (Some(Refusal::Malformed), 2, 2, 0, 0), "ourselves");
    assert_eq!(count(&join), (Some(Refusal::Malformed), 3, 3, 0, 0), "InfiniBand has one connection a peer");
    assert_eq!(count(&unlike), (Some(Refusal::Layout(layout())), 4, 3, 1, 0));
    assert_eq!(count(&unlike), (Some(Refusal::Layout(layout())), 5, 3, 2, 0));
    assert_eq!(count(&ours(ProcessName(9))), (None, 6, 3, 2, 1));
    assert_eq!(count(&ours(ProcessName(9))), (Some(Refusal::Late), 7, 3, 2, 1), "a newer one of the process");
    assert_eq!(count(&ours(PEER)), (None, 8, 3, 2, 1));
}

#[test]
fn a_response_with_other_queues_is_refused_and_counted() {
    let mut bench = Bench::new(true).reach(StateKind::ReqSent);
    let theirs = Layout::new([true, true]).unwrap();
    let actions = bench.event(IdEvent::Response(&bytes(PEER, theirs, qpns(50))));
    assert!(actions.contains(&Action::Call(Call::Refuse { id: bench.id, why: Refusal::Layout(layout()) })));
    assert_eq!((bench.kind(), bench.machine.stats().layout_refused), (Some(StateKind::Failed), 1));
}

/// What each state waits for is bounded by the parameter that is meant for it.
#[test]
fn every_wait_lasts_as_long_as_its_parameter_says() {
    let params = Params::default();
    for (state, iwarp, wait) in [
        (StateKind::Resolving, false, params.resolve_timeout),
        (StateKind::Routing, false, params.resolve_timeout),
        (StateKind::ReqSent, false, params.connect_timeout),
        (StateKind::Yielding, false, params.connect_timeout),
        (StateKind::RepSent, false, params.connect_timeout),
        (StateKind::Joining, true, params.connect_timeout),
        (StateKind::DreqSent, false, params.disconnect_timeout),
    ] {
        let bench = Bench::with(true, iwarp).reach(state);
        assert_eq!(bench.machine.poll_timeout(), Some(bench.now + wait), "{state:?}");
    }
}

/// The address of a further connection's peer resolves after all has come up, or after it has failed.
#[test]
fn a_step_of_a_further_connection_that_is_not_waited_for_is_ignored() {
    for event in [IdEvent::AddrResolved, IdEvent::RouteResolved] {
        let mut bench = Bench::with(true, true).reach(StateKind::Connected);
        let ignored = bench.machine.stats().ignored;
        assert_eq!(bench.stream_event(event), []);
        assert_eq!(bench.machine.stats().ignored, ignored + 1);
    }
}

#[test]
fn a_further_connection_that_is_refused_is_reported_with_the_reason() {
    for (refused, text) in [
        (Refused::ByPeer(Refusal::Late), Refusal::Late.to_string()),
        (Refused::NotListening, "no process listens at its address".to_owned()),
        (Refused::Other(28), "the connection manager's reason is 28".to_owned()),
    ] {
        let mut bench = Bench::with(true, true).reach(StateKind::Joining);
        let actions = bench.stream_event(IdEvent::Refused(refused));
        let error = actions.iter().find_map(|action| match action {
            Action::Failed { error, .. } => Some(error.to_string()),
            _ => None,
        });
        let error = error.unwrap_or_default();
        assert!(error.contains("connection 2 of its queues") && error.contains(&text), "{error}");
    }
}

/// The first pause is `retry_pause`, and each is twice the one before, with a jitter of a quarter.
#[test]
fn pauses_between_tries_double() {
    let mut bench = Bench::new(true).reach(StateKind::ReqSent);
    for factor in [1, 2] {
        bench.event(IdEvent::Refused(Refused::NotListening));
        let (pause, mean) =
            (bench.machine.poll_timeout().unwrap() - bench.now, Params::default().retry_pause * factor);
        assert!(pause >= mean * 3 / 4 && pause <= mean * 5 / 4, "{pause:?}, not {mean:?}");
        bench.apply("timeout");
        bench.event(IdEvent::AddrResolved);
        bench.event(IdEvent::RouteResolved);
    }
}

#[test]
fn an_unknown_process_is_refused_after_a_while_or_forgotten_when_it_goes() {
    let mut bench = Bench::new(true);
    let stranger = ProcessName(9);
    let ask = |bench: &mut Bench| {
        let id = bench.machine.draw_id();
        bench.machine.request(id, &bytes(stranger, layout(), qpns(50)), bench.now);
        assert_eq!(bench.actions(), [Action::UnknownPeer { peer: stranger }]);
        id
    };
    let id = ask(&mut bench);
    bench.now += Duration::from_secs(61);
    bench.machine.handle_timeout(bench.now);
    assert_eq!(bench.actions(), [Action::Call(Call::Refuse { id, why: Refusal::UnknownPeer })]);
    let id = ask(&mut bench);
    bench.machine.event(id, IdEvent::Broken("gone"), bench.now);
    assert_eq!(bench.actions(), [Action::Call(Call::Close { id })]);
    assert_eq!(bench.machine.poll_timeout(), None);
}

#[test]
fn a_device_that_is_removed_takes_every_connection_with_it() {
    let mut bench = Bench::new(true).reach(StateKind::Connected);
    bench.machine.device_removed(bench.now);
    assert!(bench.actions().contains(&Action::Disconnected { key: KEY }));
    let mut bench = Bench::new(true).reach(StateKind::ReqSent);
    bench.machine.device_removed(bench.now);
    let actions = bench.actions();
    assert!(matches!(actions.last(), Some(Action::Failed { .. })), "{actions:?}");
}

#[test]
fn data_before_the_confirmation_stand_in_for_it_and_the_manager_is_told() {
    let mut bench = Bench::new(true).reach(StateKind::RepSent);
    let id = bench.id;
    let actions = bench.apply("first data");
    assert_eq!(actions, [Action::Call(Call::Notify { id }), Action::Connected { key: KEY }]);
}

/// The transport has found its queue pairs in the error state: the peer must not wait for the endpoint's removal, nor connect to it again.
#[test]
fn an_endpoint_that_has_failed_lets_its_peer_know_and_refuses_it_until_it_is_removed() {
    let refused = |actions: &[Action]| {
        actions.iter().any(|action| matches!(action, Action::Call(Call::Refuse { why: Refusal::Failed, .. })))
    };
    for state in [StateKind::RepSent, StateKind::Connected] {
        let mut bench = Bench::new(true).reach(state);
        let id = bench.id;
        assert_eq!(bench.apply("abandon"), [Action::Call(Call::Disconnect { id })], "{state:?}");
        assert!(refused(&bench.request(70)), "{state:?}: while the peer has not agreed");
        bench.apply("disconnected");
        assert_eq!(bench.kind(), Some(StateKind::Failed), "{state:?}");
        assert!(refused(&bench.request(80)), "{state:?}: and after");
        bench.apply("remove");
        assert_eq!((bench.kind(), bench.open.len()), (None, 0), "{state:?}");
    }
    let mut bench = Bench::new(true).reach(StateKind::ToRts);
    assert!(refused(&bench.apply("abandon")), "a reply that is not confirmed yet is refused");
}

/// Its removal does not wait for the peer either.
#[test]
fn an_abandoned_endpoint_that_is_removed_makes_room_for_a_new_one_at_once() {
    let mut bench = Bench::new(true).reach(StateKind::Connected);
    bench.apply("abandon");
    bench.apply("remove");
    assert_eq!((bench.machine.state(KEY), bench.machine.leaving()), (None, 1));
    bench.machine.add_endpoint(KEY, PEER, address(9), bench.now);
    assert_eq!(bench.machine.state(KEY), Some(StateKind::Idle));
    bench.apply("timeout");
    assert_eq!((bench.machine.state(KEY), bench.machine.leaving()), (Some(StateKind::Idle), 0));
}
