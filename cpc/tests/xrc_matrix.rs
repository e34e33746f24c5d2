//! xrc: every state of an endpoint's two links and every input: what follows and what is said. The expectations are in
//! `xrc_matrix.txt`, written to be read: a line for each cell in which something happens, and nothing may happen in any other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod heads;
mod matrix;

use std::time::{Duration, Instant};

use cpc::ibcm::Params;
use cpc::wire::Source;
use cpc::wire::domain::Address;
use cpc::wire::listener::Address as Listener;
use cpc::wire::xrc::{Datagram, Message, Rep, Req, SrqNums};
use cpc::wire::{CommId, Depth, Drep, Dreq, Incarnation, Layout, MAD_LEN, Mra, Path, Reason, Rej, Stage};
use cpc::xrc::DomainId;
use cpc::xrc::machine::{Action, Call, Direction, JoinError, Local, Machine, PathId, Terms};
use cpc::{EndpointCommand, EndpointKey, ProcessName};
use heads::req_head;
use verbs::{Gid, Lid, Qpn, SrqNum};

const KEY: EndpointKey = EndpointKey { index: 1, generation: 1 };
/// An endpoint of another node, and one of the peer's.
const FAR: EndpointKey = EndpointKey { index: 2, generation: 1 };
const NEAR: EndpointKey = EndpointKey { index: 3, generation: 1 };
const ME: ProcessName = ProcessName(0x1_0000_0000);
const PEER: ProcessName = ProcessName(0x1_0000_0001);
const NEIGHBOUR: ProcessName = ProcessName(0x1_0000_0003);
/// Id of the peer's exchange; the one before is an earlier one, the one after a later one.
const P: CommId = CommId(0x500);
const DEPTH: Depth = Depth { responder_resources: 1, initiator_depth: 1 };
const RECEIVER: Qpn = Qpn(0x300);
const LABEL: u32 = 77;
const SEED: u64 = 42;

/// The states, as "outgoing/incoming", and the inputs that lead there.
const ROWS: [(&str, &[&str]); 26] = [
    ("-/-", &[]),
    ("Queued/-", &["busy", "Connect"]),
    ("Queued/- (node)", &["node asks", "Connect"]),
    ("Creating/-", &["Connect"]),
    ("ReqSent/-", &["Connect", "SenderCreated"]),
    ("ReqSent/- (MRA)", &["Connect", "SenderCreated", "MRA"]),
    ("ReqSent/- (again)", &["Connect", "SenderCreated", "Timeout"]),
    ("ReqSent/- (node)", &["node up", "Connect"]),
    ("ReqSent/- (broken)", &["Connect", "SenderCreated", "REP", "SenderUp", "Renew", "SenderCreated"]),
    ("ReqSent/RepSent", &["Connect", "SenderCreated", "REQ", "ReceiverHeld"]),
    ("ToRts/-", &["Connect", "SenderCreated", "REP"]),
    ("Connected/-", &["Connect", "SenderCreated", "REP", "SenderUp"]),
    ("Connected/RepSent", &["Connect", "SenderCreated", "REP", "SenderUp", "REQ", "ReceiverHeld"]),
    ("Failed/-", &["Connect", "SenderFailed"]),
    ("Failed/RepSent", &["REQ", "ReceiverHeld", "Connect", "SenderCreated", "REJ"]),
    ("Disconnected/-", &["Connect", "SenderCreated", "REP", "SenderUp", "DREQ"]),
    ("-/Joining", &["REQ"]),
    ("-/RepSent", &["REQ", "ReceiverHeld"]),
    ("-/RepSent (told)", &["REQ", "ReceiverHeld", "Unlist"]),
    ("abandoned", &["Connect", "SenderCreated", "REP", "SenderUp", "Abandon"]),
    ("DreqSent out", &["Connect", "SenderCreated", "REP", "SenderUp", "Remove"]),
    ("DreqSent out (again)", &["Connect", "SenderCreated", "REP", "SenderUp", "Remove", "Timeout"]),
    ("TimeWait out", &["Connect", "SenderCreated", "REP", "SenderUp", "Remove", "DREP"]),
    ("DreqSent in", &["REQ", "ReceiverHeld", "Remove"]),
    ("TimeWait in", &["REQ", "ReceiverHeld", "Remove", "DREP"]),
    ("gone", &["Remove"]),
];

const COLUMNS: [&str; 35] = [
    "Add",
    "Connect",
    "Renew",
    "Remove",
    "Unlist",
    "Abandon",
    "SenderCreated",
    "SenderFailed",
    "SenderUp",
    "SenderDown",
    "ReceiverHeld",
    "NoReceiverHeld",
    "no receiver",
    "REQ",
    "REQ anew",
    "REQ later",
    "REQ earlier",
    "REQ over",
    "REQ reborn",
    "REQ former",
    "REQ unlike",
    "REP",
    "REP stale",
    "REP other",
    "REP unlike",
    "MRA",
    "REJ",
    "REJ stale",
    "REJ gone",
    "REJ layout",
    "REJ of REP",
    "DREQ",
    "DREQ bad",
    "DREP",
    "Timeout",
];

fn address(lid: u16, qpn: u32) -> Address {
    let (lid, qpn, incarnation) = (Lid(lid), Qpn(qpn), Incarnation(5000 + qpn));
    let listener = Listener { port: 1, mtu: 5, ethernet: false, lid, qpn, incarnation, gid: Gid([1; 16]) };
    Address { listener, domain: DomainId::new(1, u64::from(lid.0)) }
}

fn mine() -> Address {
    address(20, 20)
}

fn theirs() -> Address {
    address(10, 10)
}

/// The peer's process, so many lives later.
fn life(number: i32) -> Address {
    let mut address = theirs();
    address.listener.incarnation = Incarnation(address.listener.incarnation.0.wrapping_add_signed(number));
    address.listener.qpn = Qpn(address.listener.qpn.0 + number.unsigned_abs());
    address.domain = DomainId::new(9, 9);
    address
}

fn layout() -> Layout {
    Layout::new([true, true]).unwrap()
}

fn other_layout() -> Layout {
    Layout::new([true]).unwrap()
}

fn srqs() -> SrqNums {
    SrqNums::new(&[SrqNum(5), SrqNum(6)]).unwrap()
}

/// A machine with three endpoints, of which one is put through its states.
struct Bench {
    machine: Machine,
    now: Instant,
    /// Our id of the endpoint's first link, drawn or not.
    id: CommId,
    /// Of what the machine last asked for or said on the endpoint's behalf.
    path: PathId,
    epoch: u32,
    join: (CommId, u32),
    said: Vec<String>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with_ack_timeout(20)
    }

    fn with_ack_timeout(ack_timeout: u8) -> Bench {
        let local = Local {
            name: ME,
            address: mine(),
            layout: layout(),
            srqs: srqs(),
            terms: Terms { depth: DEPTH, pkey: 0xffff, sl: 0, ack_timeout, retry_count: 7, rnr_retry: 7 },
        };
        let params = Params { window: 2, max_retries: 1, ..Params::default() };
        let now = Instant::now();
        let mut machine = Machine::new(local, params, SEED);
        machine.add_endpoint(KEY, PEER, theirs(), 1, now);
        machine.add_endpoint(FAR, ProcessName(9), address(11, 11), 2, now);
        machine.add_endpoint(NEAR, NEIGHBOUR, address(10, 12), 3, now);
        let path = PathId(99);
        let said = Vec::new();
        Bench { machine, now, id: CommId::NONE, path, epoch: 1, join: (CommId::NONE, 0), said }
    }

    /// A bench in this state. Ids come from a counter that the seed starts: the first is seen in the REQ of another machine.
    fn at(way: &[&str]) -> Bench {
        let mut first = Bench::new();
        ["Connect", "SenderCreated"].iter().for_each(|input| first.apply(input));
        let mut bench = Bench::new();
        bench.id = first.id;
        way.iter().for_each(|input| bench.apply(input));
        bench.said.clear();
        bench
    }

    fn datagram(&mut self, message: Message) {
        self.datagram_of(theirs(), message);
    }

    fn datagram_of(&mut self, from: Address, message: Message) {
        let mut mad = [0; MAD_LEN];
        Datagram { from: from.listener.incarnation, to: mine().listener.incarnation, message }.emit(&mut mad);
        let from = Source { qpn: from.listener.qpn, lid: from.listener.lid, gid: None, our_gid: None };
        self.machine.datagram(from, &mad, self.now);
    }

    fn send_req(&mut self, from: Address, change: impl FnOnce(&mut Req)) {
        let mut req = request(from);
        change(&mut req);
        self.datagram_of(from, Message::Req(req));
    }

    fn send_rep(&mut self, change: impl FnOnce(&mut Rep)) {
        let mut rep = Rep {
            local: P,
            remote: self.id,
            name: PEER,
            layout: layout(),
            receiver: RECEIVER,
            depth: DEPTH,
            srqs: srqs(),
            label: LABEL,
            epoch: self.epoch,
        };
        change(&mut rep);
        self.datagram(Message::Rep(rep));
    }

    fn reject(&mut self, stage: Stage, local: CommId, reason: Reason) {
        let remote = self.id;
        self.datagram(Message::Rej(Rej { local, remote, stage, reason }));
    }

    fn apply(&mut self, input: &str) {
        let now = self.now;
        match input {
            "busy" => self.busy(),
            "node asks" => self.node_asks(),
            "node up" => self.node_up(),
            "Add" => self.machine.add_endpoint(KEY, PEER, theirs(), 1, now),
            "Connect" => self.machine.command(KEY, EndpointCommand::Connect, now),
            "Renew" => self.machine.command(KEY, EndpointCommand::Renew, now),
            "Remove" => self.machine.command(KEY, EndpointCommand::Remove, now),
            "Unlist" => self.machine.command(KEY, EndpointCommand::Unlist, now),
            "Abandon" => self.machine.command(KEY, EndpointCommand::Abandon, now),
            "SenderCreated" => self.machine.sender_made(self.path, Ok(Qpn(0x200)), now),
            "SenderFailed" => self.machine.sender_made(self.path, Err("no memory".to_owned()), now),
            "SenderUp" => self.machine.sender_raised(self.path, Ok(()), now),
            "SenderDown" => self.machine.sender_raised(self.path, Err("no path".to_owned()), now),
            "ReceiverHeld" => self.machine.joined(self.join.0, self.join.1, Ok(RECEIVER), now),
            "NoReceiverHeld" => {
                let error = JoinError::Verbs("no memory".to_owned());
                self.machine.joined(self.join.0, self.join.1, Err(error), now);
            }
            "no receiver" => self.machine.joined(self.join.0, self.join.1, Err(JoinError::Gone), now),
            "MRA" => self.datagram(Message::Mra(Mra {
                local: CommId::NONE,
                remote: self.id,
                stage: Stage::Req,
                service_timeout: 20,
            })),
            "DREP" => self.datagram(Message::Drep(Drep { local: P, remote: self.id })),
            "Timeout" => self.time_out(),
            _ => self.apply_message(input),
        }
        self.note();
    }

    fn apply_message(&mut self, input: &str) {
        let id = self.id;
        match input {
            "REQ" => self.send_req(theirs(), |_| {}),
            "REQ anew" => self.send_req(theirs(), |req| {
                (req.epoch, req.receiver, req.sender) = (2, Some(RECEIVER), Qpn(0x101));
            }),
            "REQ later" => self.send_req(theirs(), |req| req.head.local = CommId(P.0 + 1)),
            "REQ earlier" => self.send_req(theirs(), |req| req.head.local = CommId(P.0 - 1)),
            "REQ over" => self.send_req(theirs(), |req| (req.head.local, req.ended) = (CommId(P.0 + 2), P)),
            "REQ reborn" => self.send_req(life(1), |req| req.head.local = CommId(7)),
            "REQ former" => self.send_req(life(-1), |_| {}),
            "REQ unlike" => self.send_req(theirs(), |req| req.layout = other_layout()),
            "REP" => self.send_rep(|_| {}),
            "REP stale" => self.send_rep(|rep| rep.epoch = 99),
            "REP other" => self.send_rep(|rep| rep.label = LABEL + 1),
            "REP unlike" => self.send_rep(|rep| rep.layout = other_layout()),
            "REJ" => self.reject(Stage::Req, CommId::NONE, Reason::Refused),
            "REJ stale" => self.reject(Stage::Req, CommId::NONE, Reason::Stale),
            "REJ gone" => self.reject(Stage::Req, CommId::NONE, Reason::NoReceiver(self.epoch)),
            "REJ layout" => self.reject(Stage::Req, CommId::NONE, Reason::Layout(other_layout())),
            "REJ of REP" => self.reject(Stage::Rep, P, Reason::InvalidCommId),
            "DREQ" | "DREQ bad" => {
                let failed = input == "DREQ bad";
                self.datagram(Message::Dreq(Dreq { local: P, remote: id, remote_qpn: RECEIVER, failed }));
            }
            other => panic!("no input {other}"),
        }
    }

    fn time_out(&mut self) {
        if let Some(at) = self.machine.poll_timeout() {
            self.now = at + Duration::from_nanos(1);
        }
        self.machine.handle_timeout(self.now);
    }

    /// All places for requests without an answer are taken.
    fn busy(&mut self) {
        self.machine.command(FAR, EndpointCommand::Connect, self.now);
        self.machine.command(NEAR, EndpointCommand::Connect, self.now);
        self.not_ours(2);
    }

    /// The peer's node is being asked already.
    fn node_asks(&mut self) {
        self.machine.command(NEAR, EndpointCommand::Connect, self.now);
        self.note();
        self.apply("SenderCreated");
        self.not_ours(1);
    }

    fn node_up(&mut self) {
        self.machine.command(NEAR, EndpointCommand::Connect, self.now);
        self.note();
        self.apply("SenderCreated");
        let neighbour = address(10, 12);
        let rep = Rep {
            local: CommId(0x900),
            remote: self.id,
            name: NEIGHBOUR,
            layout: layout(),
            receiver: RECEIVER,
            depth: DEPTH,
            srqs: srqs(),
            label: 5,
            epoch: self.epoch,
        };
        self.datagram_of(neighbour, Message::Rep(rep));
        self.note();
        self.apply("SenderUp");
        self.not_ours(1);
    }

    /// What has been so far was about others, which have drawn so many ids.
    fn not_ours(&mut self, drawn: u32) {
        while self.machine.poll_action().is_some() {}
        (self.id, self.path) = (CommId(self.id.0.wrapping_add(drawn)), PathId(99));
    }

    /// Takes down what the machine says and wants, and what names it has given.
    fn note(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            match &action {
                Action::Call(Call::MakeSender { path }) => self.path = *path,
                Action::Call(Call::Join { link, epoch, .. }) => self.join = (*link, *epoch),
                Action::Call(Call::Send { datagram, .. }) => self.note_ids(&datagram.message),
                _ => {}
            }
            self.said.push(describe(&action));
        }
    }

    fn note_ids(&mut self, message: &Message) {
        match message {
            Message::Req(req) => (self.id, self.epoch) = (req.head.local, req.epoch),
            Message::Rep(rep) => self.id = rep.local,
            _ => {}
        }
    }

    fn state(&self) -> String {
        let side = |direction| self.machine.link_state(KEY, direction).map(|state| format!("{state:?}"));
        let side = |direction| side(direction).unwrap_or_else(|| "-".to_owned());
        match self.machine.timeline(KEY) {
            Some(_) => format!("{}/{}", side(Direction::Out), side(Direction::In)),
            None if self.machine.leaving() > 0 => format!("{} leave", self.machine.leaving()),
            None => "gone".to_owned(),
        }
    }
}

/// The first request of a process that sends to us.
fn request(from: Address) -> Req {
    let (ours, theirs) = (mine().listener, from.listener);
    Req {
        head: req_head(
            P,
            ME,
            DEPTH,
            Path {
                local_lid: theirs.lid,
                remote_lid: ours.lid,
                local_gid: theirs.gid,
                remote_gid: ours.gid,
                sl: 0,
                ack_timeout: 20,
            },
        ),
        name: PEER,
        layout: layout(),
        sender: Qpn(0x100),
        receiver: None,
        epoch: 1,
        ended: CommId::NONE,
        domain: from.domain,
    }
}

fn describe(action: &Action) -> String {
    match action {
        Action::Call(Call::MakeSender { .. }) => "make S".to_owned(),
        Action::Call(Call::RaiseSender { .. }) => "raise S".to_owned(),
        Action::Call(Call::DropSender { .. }) => "drop S".to_owned(),
        Action::Call(Call::Join { receiver: None, .. }) => "make R".to_owned(),
        Action::Call(Call::Join { receiver: Some(_), .. }) => "open R".to_owned(),
        Action::Call(Call::Release { .. }) => "close R".to_owned(),
        Action::Call(Call::Route { .. }) => "CONNECTED".to_owned(),
        Action::Agreed { .. } | Action::Connected { .. } => unreachable!("xrc says Route"),
        Action::Failed { .. } => "FAILED".to_owned(),
        Action::Disconnected { .. } => "DISCONNECTED".to_owned(),
        Action::Unlisted { .. } => "UNLISTED".to_owned(),
        Action::Asked { .. } => "ASKED".to_owned(),
        Action::Retracted { .. } => "RETRACTED".to_owned(),
        Action::UnknownPeer { .. } => "UNKNOWN PEER".to_owned(),
        Action::Call(Call::Send { to, datagram }) => format!("{}{}", message(&datagram.message), whom(to)),
    }
}

fn message(message: &Message) -> String {
    match message {
        Message::Req(Req { receiver: None, .. }) => "REQ(R?)".to_owned(),
        Message::Req(_) => "REQ(R)".to_owned(),
        Message::Rep(_) => "REP".to_owned(),
        Message::Mra(_) => "MRA".to_owned(),
        Message::Rej(rej) => format!("REJ({})", reason(rej.reason)),
        Message::Dreq(dreq) if dreq.failed => "DREQ(bad)".to_owned(),
        Message::Dreq(_) => "DREQ".to_owned(),
        Message::Drep(_) => "DREP".to_owned(),
        Message::Rtu(_) => unreachable!("xrc has no RTU"),
    }
}

fn reason(reason: Reason) -> String {
    match reason {
        Reason::Layout(_) => "Layout".to_owned(),
        Reason::NoReceiver(_) => "NoReceiver".to_owned(),
        other => format!("{other:?}"),
    }
}

/// A later or former life of the peer, or its neighbour.
fn whom(to: &Source) -> &'static str {
    match to.qpn {
        qpn if qpn == theirs().listener.qpn => "",
        qpn if qpn == life(1).listener.qpn => " to another life",
        _ => " to another process",
    }
}

/// The cell's line; `None` if the input is ignored in it, and counted as that.
fn cell((row, way): (&str, &[&str]), column: &str) -> Option<String> {
    let mut bench = Bench::at(way);
    let (before, counters) = (bench.state(), bench.machine.counters());
    bench.apply(column);
    let (after, counted) = (bench.state(), matrix::counted(&counters, &bench.machine.counters()));
    let happens = before != after || !bench.said.is_empty() || counted.as_deref() != Some("[ignored]");
    let change = (before.as_str(), after.as_str());
    happens.then(|| matrix::line((21, 15, 57), (row, column), change, &bench.said, counted.as_deref()))
}

#[test]
fn every_cell_of_the_table_is_as_decided() {
    let cells = ROWS.iter().flat_map(|row| COLUMNS.iter().map(move |column| (*row, *column)));
    let found: Vec<String> = cells.filter_map(|(row, column)| cell(row, column)).collect();
    matrix::check(include_str!("xrc_matrix.txt"), &found);
}

/// The rows above are really the states that their names say.
#[test]
fn every_state_is_reached() {
    for (row, way) in ROWS {
        let bench = Bench::at(way);
        let expected = match row {
            "abandoned" => "DreqSent/-",
            "TimeWait out" | "TimeWait in" => "gone",
            _ if row.starts_with("DreqSent") => "1 leave",
            _ => row.split(" (").next().unwrap(),
        };
        assert_eq!(bench.state(), expected, "{row}");
    }
}

/// Twice the lifetime of a packet, as the ACK timeout of the path has it (IBTA 12.7); no longer than the parameter allows.
#[test]
fn time_wait_of_a_link_lasts_for_the_ack_timeout_of_the_path() {
    let limit = Params::default().time_wait;
    for (code, expected) in [(14, Duration::from_nanos(4096 << 14)), (31, limit), (0, limit)] {
        let mut bench = Bench::with_ack_timeout(code);
        ["REQ", "ReceiverHeld", "Remove", "DREP"].iter().for_each(|input| bench.apply(input));
        let wait = bench.machine.poll_timeout().map(|at| at - bench.now);
        assert_eq!(wait, Some(expected), "code {code}");
    }
}

/// A request says how long its sender takes for an answer (IBTA 12.7.22): a DREQ to it is not repeated before that.
#[test]
fn a_peer_is_given_the_time_for_an_answer_that_its_request_has_named() {
    // Code 16 is 268 ms, the parameter 100 ms, with a jitter of a quarter.
    let named = Duration::from_nanos(4096 << 16);
    let mut bench = Bench::new();
    bench.send_req(theirs(), |req| req.head.response_timeout = 16);
    bench.note();
    ["ReceiverHeld", "Remove"].iter().for_each(|input| bench.apply(input));
    let wait = bench.machine.poll_timeout().expect("a DREQ is out") - bench.now;
    assert!(wait >= named * 3 / 4 && wait <= named * 5 / 4, "{wait:?}");
}

/// The peer's next endpoint may answer the request: it is told that there is none any more, so the removal of
/// ours ends no connection.
#[test]
fn a_request_without_an_answer_is_given_up_when_the_peers_endpoint_leaves() {
    for way in [&["busy", "Connect"][..], &["Connect"], &["Connect", "SenderCreated"]] {
        let mut bench = Bench::at(way);
        let request = bench.id;
        ["REQ", "ReceiverHeld", "DREQ"].iter().for_each(|input| bench.apply(input));
        assert_eq!(bench.state(), "Disconnected/-", "{way:?}");
        assert!(bench.said.ends_with(&["DISCONNECTED".to_owned(), "close R".to_owned()]), "{:?}", bench.said);
        bench.said.clear();
        bench.id = request;
        bench.send_rep(|rep| rep.local = CommId(P.0 + 1));
        bench.note();
        assert_eq!(bench.said, ["REJ(InvalidCommId)"], "{way:?}");
        bench.apply("Remove");
        assert_eq!(bench.state(), "gone", "{way:?}: a DREQ has gone out");
    }
}

/// The main thread hears of it once, for it has been told of the peer's request. Two sides that each gave up their own request then, which the other
/// had answered, would have each other do so for ever.
#[test]
fn a_request_stands_when_the_peer_gives_up_its_own() {
    let mut bench = Bench::at(&["REQ", "ReceiverHeld", "Unlist"]);
    let answer = bench.id;
    ["Connect", "SenderCreated"].iter().for_each(|input| bench.apply(input));
    let request = std::mem::replace(&mut bench.id, answer);
    bench.apply("REJ of REP");
    assert_eq!(bench.state(), "ReqSent/-");
    assert!(bench.said.ends_with(&["close R".to_owned(), "RETRACTED".to_owned()]), "{:?}", bench.said);
    bench.id = request;
    ["REP", "SenderUp"].iter().for_each(|input| bench.apply(input));
    assert_eq!(bench.state(), "Connected/-");
}

#[test]
fn a_request_from_another_queue_pair_than_the_peers_is_foreign_and_changes_nothing() {
    let mut bench = Bench::at(&["REQ", "ReceiverHeld"]);
    let (state, before) = (bench.state(), bench.machine.counters());
    let mut elsewhere = theirs();
    elsewhere.listener.qpn = Qpn(99);
    bench.send_req(elsewhere, |_| {});
    bench.note();
    let counted = matrix::counted(&before, &bench.machine.counters());
    assert_eq!((bench.state(), bench.said, counted.as_deref()), (state, Vec::new(), Some("[foreign]")));
}

/// A later life of a process may be behind another port of its node: what goes to it goes where its request says.
#[test]
fn what_goes_to_a_later_incarnation_goes_where_its_request_comes_from() {
    let (lid, gid, ours) = (Lid(33), Gid([7; 16]), Gid([8; 16]));
    let mut bench = Bench::at(&[]);
    bench.send_req(life(1), |req| {
        let path = &mut req.head.path;
        (path.local_lid, path.local_gid, path.remote_gid) = (lid, gid, ours);
    });
    bench.note();
    bench.machine.joined(bench.join.0, bench.join.1, Ok(RECEIVER), bench.now);
    let sent = std::iter::from_fn(|| bench.machine.poll_action()).find_map(|action| match action {
        Action::Call(Call::Send { to, .. }) => Some(to),
        _ => None,
    });
    let expected = Source { qpn: life(1).listener.qpn, lid, gid: Some(gid), our_gid: Some(ours) };
    assert_eq!(sent, Some(expected), "the REP");
}

/// The peer that a node's processes wait for wants more time: after the usual one the next of them is asked, and then it has its time.
#[test]
fn a_peer_that_wants_more_time_holds_others_of_its_node_up_no_longer_than_one_that_says_nothing() {
    let wait = |way: &[&str]| {
        let bench = Bench::at(way);
        bench.machine.poll_timeout().expect("a deadline") - bench.now
    };
    let usual = Params::default().timeout;
    assert_eq!(wait(&["Connect", "SenderCreated", "MRA"]), usual);
    let slow = wait(&["Connect", "SenderCreated", "MRA", "Timeout", "MRA"]);
    assert!(slow > 2 * usual, "{slow:?}");
}
