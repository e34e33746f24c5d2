//! Every state of an endpoint and every input: what follows and what is said. The expectations are in `matrix.txt`, one line per
//! cell, written to be read; a change of the protocol shows as a change of that file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod heads;
mod matrix;

use std::time::{Duration, Instant};

use cpc::ibcm::Params;
use cpc::ibcm::machine::{Action, Call, InputKind, Local, Machine, StateKind, Terms};
use cpc::wire::Source;
use cpc::wire::listener::Address;
use cpc::wire::*;
use cpc::{EndpointCommand, EndpointKey, ProcessName};
use heads::req_head;
use verbs::{Gid, Lid, Psn, Qpn};

const KEY: EndpointKey = EndpointKey { index: 1, generation: 1 };
const OTHER: EndpointKey = EndpointKey { index: 2, generation: 1 };
const ME: ProcessName = ProcessName(0x1_0000_0000);
const PEER: ProcessName = ProcessName(0x1_0000_0001);
/// Id of the peer's exchange.
const P: CommId = CommId(0x500);
/// Id of an earlier one.
const P_OLD: CommId = CommId(0x4ff);
/// Id of a later one.
const P_NEW: CommId = CommId(0x501);
const SEED: u64 = 42;

const ROWS: [&str; 15] = [
    "Idle",
    "Queued",
    "Creating",
    "Creating (passive)",
    "ReqSent",
    "ToRts",
    "ToRts (passive)",
    "RepSent",
    "Connected",
    "Connected (passive)",
    "DreqSent",
    "DreqSent (failed)",
    "TimeWait",
    "Failed",
    "Disconnected",
];

const COLUMNS: [&str; 28] = [
    "Connect",
    "Remove",
    "Unlist",
    "Abandon",
    "FirstData",
    "QpsMade",
    "QpsFailed",
    "QpsUp",
    "QpsDown",
    "new REQ",
    "same REQ",
    "old REQ",
    "odd REQ",
    "REP",
    "REP of P+1",
    "RTU",
    "MRA(REQ)",
    "MRA(REP)",
    "REJ",
    "REJ gone",
    "REJ of REQ",
    "REJ of REP",
    "DREQ",
    "DREQ(bad)",
    "DREQ(qpn)",
    "DREP",
    "displaced",
    "Timeout",
];

/// Which columns show what follows from an input of the table.
fn columns_of(input: InputKind) -> &'static [&'static str] {
    match input {
        InputKind::Connect => &["Connect"],
        InputKind::Remove => &["Remove"],
        InputKind::Unlist => &["Unlist"],
        InputKind::Abandon => &["Abandon"],
        InputKind::FirstData => &["FirstData"],
        InputKind::QpsMade => &["QpsMade"],
        InputKind::QpsFailed => &["QpsFailed"],
        InputKind::QpsUp => &["QpsUp"],
        InputKind::QpsDown => &["QpsDown"],
        InputKind::ReqNew => &["new REQ"],
        InputKind::ReqDup => &["same REQ"],
        InputKind::ReqUnlike => &["odd REQ"],
        InputKind::Rep => &["REP", "REP of P+1"],
        InputKind::Rtu => &["RTU"],
        InputKind::Mra => &["MRA(REQ)", "MRA(REP)"],
        InputKind::Rej => &["REJ", "REJ gone", "REJ of REQ", "REJ of REP"],
        InputKind::Dreq => &["DREQ", "DREQ(bad)", "DREQ(qpn)"],
        InputKind::Drep => &["DREP"],
        InputKind::Displaced => &["displaced"],
        InputKind::Timeout => &["Timeout"],
    }
}

fn address(qpn: u32) -> Address {
    let lid = Lid(u16::try_from(qpn).unwrap());
    Address {
        port: 1,
        mtu: 5,
        ethernet: false,
        lid,
        qpn: Qpn(qpn),
        incarnation: Incarnation(qpn * 7),
        gid: Gid([1; 16]),
    }
}

/// Ours is the higher address: of crossing requests the peer's wins.
fn mine() -> Address {
    address(20)
}

fn theirs() -> Address {
    address(10)
}

fn layout() -> Layout {
    Layout::new([false, true]).unwrap()
}

fn queues() -> Queues {
    Queues::new(1, "P,128,8:S,4096,8")
}

fn qpns(first: u32) -> Qpns {
    Qpns::new(&[Qpn(first), Qpn(first + 1)]).unwrap()
}

const DEPTH: Depth = Depth { responder_resources: 1, initiator_depth: 1 };

/// A machine with one endpoint to put through its states.
struct Bench {
    machine: Machine,
    me: Address,
    now: Instant,
    id: CommId,
}

impl Bench {
    fn new(id: CommId) -> Bench {
        Bench::at(mine(), id, SEED)
    }

    fn seeded(seed: u64) -> Bench {
        Bench::at(mine(), CommId(0), seed)
    }

    fn at(me: Address, id: CommId, seed: u64) -> Bench {
        let local = Local {
            name: ME,
            address: me,
            layout: layout(),
            queues: queues(),
            terms: Terms { depth: DEPTH, pkey: 0xffff, sl: 0, ack_timeout: 20, retry_count: 7, rnr_retry: 7 },
            srq: true,
        };
        let params = Params { window: 1, max_retries: 0, ..Params::default() };
        let now = Instant::now();
        let mut machine = Machine::new(local, params, seed);
        machine.add_endpoint(KEY, PEER, theirs(), now);
        machine.add_endpoint(OTHER, ProcessName(9), address(11), now);
        Bench { machine, me, now, id }
    }

    /// The id that the machine gives its endpoint, seen in the REQ of a machine with the same seed.
    fn find_id() -> CommId {
        let mut bench = Bench::new(CommId(0));
        bench.apply("Connect");
        bench.apply("QpsMade");
        let sent = std::iter::from_fn(|| bench.machine.poll_action()).find_map(|a| match a {
            Action::Call(Call::Send { datagram, .. }) => Some(datagram.message.local()),
            _ => None,
        });
        sent.unwrap()
    }

    fn datagram(&mut self, message: Message) {
        self.datagram_of(theirs(), self.me.incarnation, message);
    }

    fn datagram_of(&mut self, from: Address, to: Incarnation, message: Message) {
        let mut mad = [0; MAD_LEN];
        Datagram { from: from.incarnation, to, message }.emit(&mut mad);
        let from = Source { qpn: from.qpn, lid: from.lid, gid: None, our_gid: None };
        self.machine.datagram(from, &mad, self.now);
    }

    fn req(&mut self, id: CommId) {
        self.datagram(request(id));
    }

    fn apply(&mut self, input: &str) {
        let (now, id) = (self.now, self.id);
        match input {
            "Connect" => self.machine.command(KEY, EndpointCommand::Connect, now),
            "Remove" => self.machine.command(KEY, EndpointCommand::Remove, now),
            "Unlist" => self.machine.command(KEY, EndpointCommand::Unlist, now),
            "Abandon" => self.machine.command(KEY, EndpointCommand::Abandon, now),
            "FirstData" => self.machine.command(KEY, EndpointCommand::FirstData, now),
            "QpsMade" => self.machine.qps_created(KEY, Ok(qpns(0x200)), now),
            "QpsFailed" => self.machine.qps_created(KEY, Err("no memory".to_owned()), now),
            "QpsUp" => self.machine.qps_up(KEY, Ok(()), now),
            "QpsDown" => self.machine.qps_up(KEY, Err("no path".to_owned()), now),
            "new REQ" => self.req(P_NEW),
            "same REQ" => self.req(P),
            "old REQ" => self.req(P_OLD),
            "odd REQ" => self.datagram(odd_request()),
            "REP" => self.rep(P),
            "REP of P+1" => self.rep(P_NEW),
            "RTU" => self.datagram(Message::Rtu(Rtu { local: P, remote: id })),
            "MRA(REQ)" => self.mra(Stage::Req),
            "MRA(REP)" => self.mra(Stage::Rep),
            "REJ" => self.rej(P, Stage::Other, Reason::Refused),
            "REJ gone" => self.rej(P, Stage::Other, Reason::Stale),
            "REJ of REQ" => self.rej(CommId::NONE, Stage::Req, Reason::Refused),
            "REJ of REP" => self.rej(CommId::NONE, Stage::Rep, Reason::InvalidCommId),
            "DREQ" => self.dreq(Qpn(0x200), false),
            "DREQ(bad)" => self.dreq(Qpn(0x200), true),
            "DREQ(qpn)" => self.dreq(Qpn(0x999), false),
            "displaced" => self.displace(),
            "DREP" => self.datagram(Message::Drep(Drep { local: P, remote: id })),
            "Timeout" => self.time_out(),
            other => panic!("no input {other}"),
        }
    }

    fn rep(&mut self, id: CommId) {
        self.datagram(Message::Rep(Rep {
            local: id,
            remote: self.id,
            hello: Hello { layout: layout(), name: PEER, qpns: qpns(0x100), stream: cpc::StreamNum::NONE },
            queues: queues(),
            psn: Psn(7),
            depth: DEPTH,
            rnr_retry: 7,
            srq: true,
        }));
    }

    fn mra(&mut self, stage: Stage) {
        let mra = Mra { local: CommId::NONE, remote: self.id, stage, service_timeout: 20 };
        self.datagram(Message::Mra(mra));
    }

    fn rej(&mut self, local: CommId, stage: Stage, reason: Reason) {
        self.datagram(Message::Rej(Rej { local, remote: self.id, stage, reason }));
    }

    fn dreq(&mut self, remote_qpn: Qpn, failed: bool) {
        self.datagram(Message::Dreq(Dreq { local: P, remote: self.id, remote_qpn, failed }));
    }

    /// An unknown process, at the peer's port, names the peer's queue pair as its own.
    fn displace(&mut self) {
        let Message::Req(mut req) = request(P_NEW) else { return };
        req.hello.name = ProcessName(0x77);
        self.datagram_of(address(12), self.me.incarnation, Message::Req(req));
    }

    fn time_out(&mut self) {
        if let Some(at) = self.machine.poll_timeout() {
            self.now = at + Duration::from_nanos(1);
        }
        self.machine.handle_timeout(self.now);
    }

    fn bring_to(&mut self, row: &str) {
        if row == "Queued" {
            self.machine.command(OTHER, EndpointCommand::Connect, self.now);
        }
        let way: &[&str] = match row {
            "Idle" => &[],
            "Queued" | "Creating" => &["Connect"],
            "Creating (passive)" => &["same REQ"],
            "ReqSent" => &["Connect", "QpsMade"],
            "ToRts" => &["Connect", "QpsMade", "REP"],
            "ToRts (passive)" => &["same REQ", "QpsMade"],
            "RepSent" => &["same REQ", "QpsMade", "QpsUp"],
            "Connected" => &["Connect", "QpsMade", "REP", "QpsUp"],
            "Connected (passive)" => &["same REQ", "QpsMade", "QpsUp", "RTU"],
            "DreqSent" => &["Connect", "QpsMade", "REP", "QpsUp", "Remove"],
            "DreqSent (failed)" => &["Connect", "QpsMade", "REP", "QpsUp", "Abandon"],
            "TimeWait" => &["Connect", "QpsMade", "REP", "QpsUp", "Remove", "DREP"],
            "Failed" => &["Connect", "QpsMade", "REJ"],
            "Disconnected" => &["Connect", "QpsMade", "REP", "QpsUp", "DREQ"],
            other => panic!("no state {other}"),
        };
        way.iter().for_each(|input| self.apply(input));
        while self.machine.poll_action().is_some() {}
    }

    fn state(&self) -> String {
        match self.machine.state(KEY) {
            Some(state) => format!("{state:?}"),
            None if self.machine.leaving() > 0 => "DreqSent".to_owned(),
            None => "gone".to_owned(),
        }
    }

    /// Without the agreements, which come with each "bring QPs up".
    fn said(&mut self) -> Vec<String> {
        let actions = std::iter::from_fn(|| self.machine.poll_action());
        actions
            .filter(|action| !matches!(action, Action::Agreed { .. }))
            .map(|action| describe(&action))
            .collect()
    }
}

/// The peer's REQ, if it had other queues of the same number and kinds.
fn odd_request() -> Message {
    let Message::Req(mut req) = request(P_NEW) else { panic!("it is a REQ") };
    req.queues = Queues::new(2, "P,128,8:S,8192,8");
    Message::Req(req)
}

/// The peer's REQ.
fn request(id: CommId) -> Message {
    let path = Path {
        local_lid: Lid(10),
        remote_lid: Lid(20),
        local_gid: Gid([1; 16]),
        remote_gid: Gid([1; 16]),
        sl: 0,
        ack_timeout: 20,
    };
    Message::Req(Req {
        head: req_head(id, ME, DEPTH, path),
        hello: Hello { layout: layout(), name: PEER, qpns: qpns(0x100), stream: cpc::StreamNum::NONE },
        queues: queues(),
        srq: true,
    })
}

fn describe(action: &Action) -> String {
    match action {
        Action::Call(Call::CreateQps { .. }) => "make QPs".to_owned(),
        Action::Call(Call::BringUp { remote, .. }) => format!("bring QPs up to {}", whose(remote.id)),
        Action::Agreed { stream, .. } => format!("agree upon {}", stream.0),
        Action::Connected { .. } => "CONNECTED".to_owned(),
        Action::Failed { .. } => "FAILED".to_owned(),
        Action::Disconnected { .. } => "DISCONNECTED".to_owned(),
        Action::Unlisted { .. } => "UNLISTED".to_owned(),
        Action::Asked { .. } | Action::Retracted { .. } => unreachable!("of X queues"),
        Action::UnknownPeer { .. } => "UNKNOWN PEER".to_owned(),
        Action::Call(Call::Send { datagram, .. }) => match &datagram.message {
            Message::Req(_) => "REQ".to_owned(),
            Message::Mra(mra) => format!("MRA({:?})", mra.stage),
            Message::Rej(rej) => match rej.reason {
                Reason::Queues(_) => "REJ(Queues)".to_owned(),
                reason => format!("REJ({reason:?})"),
            },
            Message::Rep(_) => "REP".to_owned(),
            Message::Rtu(_) => "RTU".to_owned(),
            Message::Dreq(dreq) if dreq.failed => "DREQ(bad)".to_owned(),
            Message::Dreq(_) => "DREQ".to_owned(),
            Message::Drep(_) => "DREP".to_owned(),
        },
    }
}

fn whose(id: CommId) -> &'static str {
    match id {
        P => "P",
        P_OLD => "P-1",
        _ => "P+1",
    }
}

fn cell(id: CommId, row: &str, column: &str) -> String {
    let mut bench = Bench::new(id);
    bench.bring_to(row);
    let (before, counters) = (bench.state(), bench.machine.counters());
    bench.apply(column);
    let (after, counted) = (bench.state(), matrix::counted(&counters, &bench.machine.counters()));
    matrix::line((20, 11, 48), (row, column), (&before, &after), &bench.said(), counted.as_deref())
}

fn cells() -> Vec<String> {
    let id = Bench::find_id();
    ROWS.iter().flat_map(|row| COLUMNS.iter().map(move |column| cell(id, row, column))).collect()
}

#[test]
fn every_cell_of_the_table_is_as_decided() {
    let found = cells();
    matrix::check(include_str!("matrix.txt"), &found);
    assert_eq!(found.len(), ROWS.len() * COLUMNS.len());
}

/// A new state or input needs rows or columns here.
#[test]
fn no_state_and_no_input_of_the_table_is_left_out() {
    for state in StateKind::ALL {
        let name = format!("{state:?}");
        assert!(ROWS.iter().any(|row| row.split(' ').next() == Some(&name)), "{name} has no row");
    }
    let shown: Vec<&str> = InputKind::ALL.into_iter().flat_map(columns_of).copied().collect();
    for column in COLUMNS {
        // A REQ with an id before the last one is rejected before the table is asked.
        assert!(shown.contains(&column) || column == "old REQ", "{column} is no input");
    }
    assert_eq!(shown.len() + 1, COLUMNS.len());
}

/// The rows above are really the states that their names say.
#[test]
fn every_state_is_reached() {
    let id = Bench::find_id();
    for row in ROWS {
        let mut bench = Bench::new(id);
        bench.bring_to(row);
        let expected = if row == "TimeWait" { "gone" } else { row.split(' ').next().unwrap() };
        assert_eq!(bench.state(), expected, "{row}");
    }
}

#[test]
fn the_winner_of_crossing_requests_ignores_the_other() {
    let mut bench = Bench::at(address(1), CommId(0), SEED);
    bench.apply("Connect");
    bench.apply("QpsMade");
    assert_eq!(bench.said(), ["make QPs", "REQ"]);
    bench.apply("same REQ");
    assert_eq!(bench.said(), [""; 0]);
    assert_eq!(bench.machine.state(KEY), Some(StateKind::ReqSent));
    assert_eq!(bench.machine.stats().raced, 1);
}

#[test]
fn a_datagram_to_a_former_incarnation_of_ours_is_stale() {
    let id = Bench::find_id();
    let mut bench = Bench::new(id);
    bench.bring_to("RepSent");
    bench.datagram_of(theirs(), Incarnation(99), Message::Rtu(Rtu { local: P, remote: id }));
    assert_eq!((bench.state().as_str(), bench.machine.stats().stale), ("RepSent", 1));
    assert_eq!(bench.said(), [""; 0]);
}

/// Two requests come before there are queue pairs: the later one is the peer's.
#[test]
fn while_queue_pairs_are_made_a_newer_request_replaces_the_older() {
    let mut bench = Bench::new(Bench::find_id());
    ["same REQ", "new REQ", "QpsMade"].iter().for_each(|input| bench.apply(input));
    assert_eq!(bench.said(), ["make QPs", "bring QPs up to P+1"]);
    let mut bench = Bench::new(Bench::find_id());
    ["Connect", "new REQ", "QpsMade"].iter().for_each(|input| bench.apply(input));
    assert_eq!(bench.said(), ["make QPs", "bring QPs up to P+1"], "and our own, which has not gone out");
}

#[test]
fn every_datagram_is_counted_for_what_it_is() {
    let id = Bench::find_id();
    let mut bench = Bench::new(id);
    bench.bring_to("RepSent");
    let stats = bench.machine.stats();
    assert_eq!((stats.received, stats.sent), (1, 1), "REQ and REP");
    bench.apply("same REQ");
    bench.apply("RTU");
    assert_eq!(bench.said(), ["REP", "CONNECTED"]);
    let stats = bench.machine.stats();
    assert_eq!((stats.received, stats.sent, stats.connected), (3, 2, 1));
    let mut mad = [0; MAD_LEN];
    let message = Message::Rtu(Rtu { local: P, remote: id });
    Datagram { from: theirs().incarnation, to: mine().incarnation, message }.emit(&mut mad);
    let peer = Source { qpn: theirs().qpn, lid: theirs().lid, gid: None, our_gid: None };
    let mut counted = |bytes: &[u8]| {
        bench.machine.datagram(peer, bytes, bench.now);
        let stats = bench.machine.stats();
        (stats.received, stats.foreign, stats.malformed)
    };
    assert_eq!(counted(&mad[1..]), (4, 1, 0), "too short");
    let class = 1;
    mad[class] ^= 1;
    assert_eq!(counted(&mad), (5, 2, 0), "of another class");
    mad[class] ^= 1;
    let version = 23;
    mad[version] ^= 1;
    assert_eq!(counted(&mad), (6, 2, 1), "of another version");
    assert_eq!(counted(&mad), (7, 2, 2), "of another version");
}

#[test]
fn a_datagram_from_anyone_but_the_peers_incarnation_is_foreign() {
    let id = Bench::find_id();
    let imposters =
        [Address { incarnation: Incarnation(99), ..theirs() }, Address { qpn: Qpn(99), ..theirs() }];
    for imposter in imposters {
        let mut bench = Bench::new(id);
        bench.bring_to("RepSent");
        bench.datagram_of(imposter, mine().incarnation, Message::Rtu(Rtu { local: P, remote: id }));
        bench.datagram_of(
            imposter,
            mine().incarnation,
            Message::Dreq(Dreq { local: P, remote: id, remote_qpn: Qpn(2), failed: false }),
        );
        assert_eq!((bench.state().as_str(), bench.machine.stats().foreign), ("RepSent", 2));
        assert_eq!(bench.said(), [""; 0]);
    }
}

#[test]
fn a_request_of_an_earlier_incarnation_is_stale_and_one_of_another_queue_pair_foreign() {
    let id = Bench::find_id();
    let mut bench = Bench::new(id);
    bench.bring_to("RepSent");
    let before = bench.machine.stats();
    let earlier = Address { incarnation: Incarnation(theirs().incarnation.0 - 1), ..theirs() };
    let elsewhere = Address { qpn: Qpn(99), ..theirs() };
    for count in 1..=2 {
        bench.datagram_of(earlier, mine().incarnation, request(P_NEW));
        bench.datagram_of(elsewhere, mine().incarnation, request(P_NEW));
        let stats = bench.machine.stats();
        assert_eq!((stats.stale, stats.foreign), (before.stale + count, before.foreign + count));
        assert_eq!((bench.state().as_str(), bench.said()), ("RepSent", Vec::new()));
    }
}

#[test]
fn a_message_of_another_exchange_with_the_same_peer_changes_nothing_and_is_answered() {
    let id = Bench::find_id();
    let mut bench = Bench::new(id);
    bench.bring_to("RepSent");
    bench.datagram(Message::Rtu(Rtu { local: P_NEW, remote: id }));
    assert_eq!((bench.state().as_str(), bench.said()), ("RepSent", vec!["REJ(Stale)".to_owned()]));
    bench.apply("RTU");
    assert_eq!(bench.said(), ["CONNECTED"]);
    bench.datagram(Message::Dreq(Dreq { local: P_NEW, remote: id, remote_qpn: Qpn(0x200), failed: false }));
    assert_eq!((bench.state().as_str(), bench.said()), ("Connected", vec!["DREP".to_owned()]));
}

#[test]
fn an_older_request_never_replaces_a_newer_one() {
    let mut bench = Bench::new(Bench::find_id());
    bench.apply("new REQ");
    bench.apply("same REQ");
    bench.apply("QpsMade");
    assert_eq!(bench.said(), ["make QPs", "REJ(Stale)", "bring QPs up to P+1"]);
}

/// Its peer hears that it has failed, not that it has left; its requests are refused until the endpoint is removed.
#[test]
fn an_abandoned_endpoint_refuses_its_peer_until_it_is_removed() {
    let mut bench = Bench::new(Bench::find_id());
    bench.bring_to("Connected (passive)");
    bench.apply("Abandon");
    bench.apply("new REQ");
    assert_eq!(bench.said(), ["DREQ(bad)", "REJ(Refused)"]);
    bench.apply("DREP");
    assert_eq!(bench.state(), "Failed");
    bench.apply("new REQ");
    assert_eq!(bench.said(), ["REJ(Refused)"]);
    bench.apply("Remove");
    assert_eq!((bench.state().as_str(), bench.said().len()), ("gone", 0));
}

/// A removal while the peer has not answered yet makes it one like any other.
#[test]
fn an_abandoned_endpoint_that_is_removed_at_once_leaves_its_peer_free_for_another() {
    let mut bench = Bench::new(Bench::find_id());
    bench.bring_to("Connected (passive)");
    bench.apply("Abandon");
    bench.apply("Remove");
    assert_eq!(bench.said(), ["DREQ(bad)"]);
    bench.apply("new REQ");
    bench.apply("DREP");
    assert_eq!(bench.said(), ["UNKNOWN PEER", "MRA(Req)"]);
    bench.machine.add_endpoint(KEY, PEER, theirs(), bench.now);
    assert_eq!((bench.state().as_str(), bench.said()), ("Creating", vec!["make QPs".to_owned()]));
}

/// Of two addresses that a process had, the later one counts, whether the modex or its request tells it.
#[test]
fn a_request_of_a_later_incarnation_than_the_modex_names_is_answered_and_an_earlier_one_is_not() {
    let (earlier, later) = (Incarnation(theirs().incarnation.0 - 1), Incarnation(theirs().incarnation.0 + 1));
    let ways = [("Idle", "Creating"), ("Queued", "Creating"), ("Creating", "Creating"), ("ReqSent", "ToRts")];
    for (before, after) in ways {
        // Ours is the lower address: had the requests crossed, ours would stand.
        let mut bench = Bench::at(address(1), CommId(0), SEED);
        bench.bring_to(before);
        let me = bench.me.incarnation;
        bench.datagram_of(Address { incarnation: earlier, qpn: Qpn(99), ..theirs() }, me, request(P));
        assert_eq!((bench.state().as_str(), bench.said().len()), (before, 0), "an earlier one");
        bench.datagram_of(Address { incarnation: later, qpn: Qpn(99), ..theirs() }, me, request(P));
        assert_eq!((bench.state().as_str(), bench.machine.stats().relearned), (after, 1), "{before}");
    }
}

#[test]
fn a_request_that_waited_is_not_served_to_another_incarnation_of_its_sender() {
    let mut bench = Bench::new(CommId(0));
    bench.machine.command(KEY, EndpointCommand::Remove, bench.now);
    bench.apply("same REQ");
    assert_eq!(bench.said(), ["UNKNOWN PEER", "MRA(Req)"]);
    let reborn = Address { incarnation: Incarnation(99), ..theirs() };
    bench.machine.add_endpoint(KEY, PEER, reborn, bench.now);
    assert_eq!((bench.state().as_str(), bench.said().len()), ("Idle", 0));
}

/// Peers that lost together must not repeat together.
#[test]
fn repetitions_of_different_processes_spread() {
    let due = |seed: u64| {
        let mut bench = Bench::seeded(seed);
        bench.bring_to("ReqSent");
        bench.machine.poll_timeout().unwrap() - bench.now
    };
    let waits: std::collections::BTreeSet<Duration> = (0..20).map(due).collect();
    assert!(waits.len() > 10, "{waits:?}");
    let base = Params::default().timeout;
    assert!(waits.iter().all(|&w| w >= base * 3 / 4 && w <= base * 5 / 4), "{waits:?}");
}
