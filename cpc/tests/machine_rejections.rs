//! What becomes of each reason of a REJ, how long an MRA makes its receiver wait, how long TimeWait lasts, and whose a queue pair is: the
//! values behind the cells of `matrix.txt`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod heads;

use std::time::{Duration, Instant};

use cpc::ibcm::Params;
use cpc::ibcm::machine::{Action, Call, Local, Machine, StateKind, Terms};
use cpc::wire::Source;
use cpc::wire::listener::Address;
use cpc::wire::*;
use cpc::{EndpointCommand, EndpointKey, ProcessName};
use heads::req_head;
use verbs::{Gid, Lid, Psn, Qpn};

const KEY: EndpointKey = EndpointKey { index: 1, generation: 1 };
const ME: ProcessName = ProcessName(0x1_0000_0000);
const PEER: ProcessName = ProcessName(0x1_0000_0001);
const THIRD: ProcessName = ProcessName(0x1_0000_0002);
/// Id of the peer's exchange.
const P: CommId = CommId(0x500);
const OURS: &str = "P,128,256,192,128,4:S,65536,512,496,32,128,24";
const THEIRS: &str = "P,128,256,192,128,4:S,65536,1024,1008,32,128,48";
const DEPTH: Depth = Depth { responder_resources: 1, initiator_depth: 1 };

fn address(qpn: u32) -> Address {
    let gid = Gid([1; 16]);
    Address {
        port: 1,
        mtu: 5,
        ethernet: false,
        lid: Lid(7),
        qpn: Qpn(qpn),
        incarnation: Incarnation(qpn),
        gid,
    }
}

fn hello(name: ProcessName, first: u32) -> Hello {
    let layout = Layout::new([false, true]).unwrap();
    Hello {
        layout,
        name,
        qpns: Qpns::new(&[Qpn(first), Qpn(first + 1)]).unwrap(),
        stream: cpc::StreamNum::NONE,
    }
}

fn request(name: ProcessName, from: u32, id: CommId, first_qpn: u32) -> Req {
    let (a, b) = (address(from), address(20));
    let path = Path {
        local_lid: a.lid,
        remote_lid: b.lid,
        local_gid: a.gid,
        remote_gid: b.gid,
        sl: 0,
        ack_timeout: 20,
    };
    Req {
        head: req_head(id, ME, DEPTH, path),
        hello: hello(name, first_qpn),
        queues: Queues::new(1, OURS),
        srq: true,
    }
}

/// A machine with one peer, and what it has said last.
struct Bench {
    machine: Machine,
    now: Instant,
    /// Our id, as the last message with one had it.
    id: CommId,
}

impl Bench {
    fn new(ack_timeout: u8) -> Bench {
        let local = Local {
            name: ME,
            address: address(20),
            layout: hello(ME, 2).layout,
            queues: Queues::new(1, OURS),
            terms: Terms { depth: DEPTH, pkey: 0xffff, sl: 0, ack_timeout, retry_count: 7, rnr_retry: 7 },
            srq: true,
        };
        let now = Instant::now();
        let mut machine = Machine::new(local, Params::default(), 42);
        machine.add_endpoint(KEY, PEER, address(10), now);
        Bench { machine, now, id: CommId::NONE }
    }

    /// Our REQ is out.
    fn asking() -> Bench {
        let mut bench = Bench::new(20);
        bench.machine.command(KEY, EndpointCommand::Connect, bench.now);
        bench.machine.qps_created(KEY, Ok(hello(ME, 0x200).qpns), bench.now);
        bench.said();
        bench
    }

    /// Our REP is out.
    fn answering() -> Bench {
        let mut bench = Bench::new(20);
        bench.req(PEER, 10, P, 0x100);
        bench.machine.qps_created(KEY, Ok(hello(ME, 0x200).qpns), bench.now);
        bench.machine.qps_up(KEY, Ok(()), bench.now);
        bench.said();
        bench
    }

    /// Both sides are up; we were asked.
    fn up(ack_timeout: u8) -> Bench {
        let mut bench = Bench::new(ack_timeout);
        bench.req(PEER, 10, P, 0x100);
        bench.machine.qps_created(KEY, Ok(hello(ME, 0x200).qpns), bench.now);
        bench.machine.qps_up(KEY, Ok(()), bench.now);
        bench.machine.command(KEY, EndpointCommand::FirstData, bench.now);
        bench.said();
        bench
    }

    fn datagram(&mut self, from: u32, message: Message) {
        let mut mad = [0; MAD_LEN];
        Datagram { from: Incarnation(from), to: Incarnation(20), message }.emit(&mut mad);
        let from = Source { qpn: Qpn(from), lid: Lid(7), gid: None, our_gid: None };
        self.machine.datagram(from, &mad, self.now);
    }

    fn req(&mut self, name: ProcessName, from: u32, id: CommId, first_qpn: u32) {
        self.datagram(from, Message::Req(request(name, from, id, first_qpn)));
    }

    /// A request of a process whose queues are not ours, but of the same number and kinds.
    fn odd_req(&mut self, from: u32) {
        let req = request(PEER, from, P, 0x100);
        self.datagram(from, Message::Req(Req { queues: Queues::new(2, THEIRS), ..req }));
    }

    fn rej(&mut self, local: CommId, stage: Stage, reason: Reason) {
        let remote = self.id;
        self.datagram(10, Message::Rej(Rej { local, remote, stage, reason }));
    }

    fn mra(&mut self, stage: Stage, service_timeout: u8) {
        let mra = Mra { local: P, remote: self.id, stage, service_timeout };
        self.datagram(10, Message::Mra(mra));
    }

    /// What was said since the last time: messages by name, failures by their text.
    fn said(&mut self) -> Vec<String> {
        let actions: Vec<Action> = std::iter::from_fn(|| self.machine.poll_action()).collect();
        actions.iter().filter_map(|action| self.describe(action)).collect()
    }

    fn describe(&mut self, action: &Action) -> Option<String> {
        Some(match action {
            Action::Agreed { .. } => return None,
            Action::Failed { error, .. } => error.cause.to_string(),
            Action::Disconnected { .. } => "DISCONNECTED".to_owned(),
            Action::Unlisted { .. } => "UNLISTED".to_owned(),
            Action::Asked { .. } | Action::Retracted { .. } => unreachable!("of X queues"),
            Action::Call(Call::Send { datagram, .. }) => {
                if datagram.message.local() != CommId::NONE {
                    self.id = datagram.message.local();
                }
                let text = format!("{:?}", datagram.message);
                match &datagram.message {
                    Message::Rej(rej) => format!("Rej({:?})", rej.reason),
                    _ => text.split('(').next().unwrap_or_default().to_owned(),
                }
            }
            _ => return None,
        })
    }

    fn wait(&self) -> Duration {
        self.machine.poll_timeout().unwrap() - self.now
    }
}

/// Every reason that can come, what its receiver does as the side that asked, and as the side that was asked.
#[test]
fn every_reason_of_a_rejection_is_answered_or_reported_as_decided() {
    let unlike =
        format!("its queues are {THEIRS}, ours are {OURS}; receive_queues must be the same in all processes");
    let refused = |why: &str| format!("it refused: {why}");
    let again = ("Req".to_owned(), "DISCONNECTED".to_owned());
    let both = |text: String| (text.clone(), text);
    let layout = Layout::new([true, true]).unwrap();
    let kinds = "its queues are SS, ours are PS; receive_queues must be the same in all processes";
    let table = [
        (
            Reason::NoResources,
            (refused("it has no resources for another queue pair"), "DISCONNECTED".to_owned()),
        ),
        (Reason::Timeout, (refused("it had given up waiting for us"), "DISCONNECTED".to_owned())),
        (Reason::InvalidCommId, again.clone()),
        (Reason::InvalidServiceId, both(refused("its address belongs to another process now"))),
        (Reason::Stale, again),
        (Reason::Layout(layout), both(kinds.to_owned())),
        (Reason::Queues(Queues::new(2, THEIRS)), both(unlike)),
        (Reason::UnknownPeer, both(refused("it has not been told of this process"))),
        (Reason::Refused, both(refused("its endpoint has failed"))),
        (Reason::NoReceiver(1), both(refused("the receive queue pair of its node is gone"))),
        (Reason::Other(1), both(refused("CM reject reason 1"))),
        (Reason::Other(28), both(refused("CM reject reason 28"))),
        (Reason::Other(u16::MAX), both(refused("CM reject reason 65535"))),
    ];
    for (reason, (asked, answered)) in table {
        let mut bench = Bench::asking();
        bench.rej(CommId::NONE, Stage::Req, reason);
        assert_eq!(bench.said(), [asked], "{reason:?}, to the side that asked");
        for mut bench in [Bench::answering(), Bench::up(20)] {
            bench.rej(P, Stage::Rep, reason);
            assert_eq!(
                bench.said(),
                std::slice::from_ref(&answered),
                "{reason:?}, to the side that was asked"
            );
        }
    }
}

/// A peer that rejects every request as stale is not asked for ever.
#[test]
fn a_request_is_renewed_a_bounded_number_of_times() {
    let mut bench = Bench::asking();
    for _ in 0..8 {
        let old = bench.id;
        bench.rej(CommId::NONE, Stage::Req, Reason::Stale);
        assert_eq!(bench.said(), ["Req"]);
        assert!(bench.id.is_newer_than(old), "the same id again");
    }
    bench.rej(CommId::NONE, Stage::Req, Reason::Stale);
    assert_eq!(bench.said(), ["it refused: the request is from a former connection"]);
}

#[test]
fn a_rejection_of_an_id_that_is_unknown_or_old_is_counted_and_not_answered() {
    let mut bench = Bench::asking();
    let old = bench.id;
    bench.rej(CommId::NONE, Stage::Req, Reason::Stale);
    bench.said();
    let stale = bench.machine.stats().stale;
    for remote in [old, CommId(1), CommId::NONE] {
        let rej = Rej { local: CommId::NONE, remote, stage: Stage::Req, reason: Reason::Refused };
        bench.datagram(10, Message::Rej(rej));
    }
    assert_eq!((bench.said().len(), bench.machine.stats().stale), (0, stale + 3));
    assert_eq!(bench.machine.state(KEY), Some(StateKind::ReqSent));
}

/// Who asked and removes his endpoint before there is an answer has no id of ours: he is known by his own.
#[test]
fn a_request_that_is_withdrawn_ends_its_exchange_wherever_that_stands() {
    let withdrawn = |local| {
        Message::Rej(Rej { local, remote: CommId::NONE, stage: Stage::Other, reason: Reason::Timeout })
    };
    let mut bench = Bench::asking();
    bench.machine.command(KEY, EndpointCommand::Remove, bench.now);
    assert_eq!(bench.said(), ["Rej(Timeout)"]);

    let mut bench = Bench::answering();
    bench.datagram(10, withdrawn(CommId(0x4ff)));
    assert_eq!((bench.said().len(), bench.machine.stats().stale), (0, 1), "another request");
    bench.datagram(11, withdrawn(P));
    assert_eq!((bench.said().len(), bench.machine.stats().stale), (0, 2), "another process");
    bench.datagram(10, withdrawn(P));
    assert_eq!(
        (bench.said(), bench.machine.state(KEY)),
        (vec!["DISCONNECTED".to_owned()], Some(StateKind::Disconnected))
    );

    // One that waits for its endpoint waits no longer.
    let mut bench = Bench::new(20);
    bench.req(THIRD, 12, P, 0x300);
    bench.datagram(12, withdrawn(P));
    bench.said();
    let other = EndpointKey { index: 2, generation: 1 };
    bench.machine.add_endpoint(other, THIRD, address(12), bench.now);
    assert_eq!((bench.said().len(), bench.machine.state(other)), (0, Some(StateKind::Idle)));
}

/// Of a process without an endpoint, the last request counts, but none of an earlier incarnation.
#[test]
fn a_parked_request_is_replaced_by_a_later_one_and_not_by_one_of_an_earlier_incarnation() {
    for (first, second, served) in [(12, 12, 1), (12, 13, 1), (13, 12, 0)] {
        let mut bench = Bench::new(20);
        let ids = [CommId(0x700), CommId(0x701)];
        bench.req(THIRD, first, ids[0], 0x300);
        bench.req(THIRD, second, ids[1], 0x300);
        assert_eq!(bench.machine.stats().parked, 1);
        let other = EndpointKey { index: 2, generation: 1 };
        bench.machine.add_endpoint(other, THIRD, address(first.max(second)), bench.now);
        bench.machine.qps_created(other, Ok(hello(ME, 0x300).qpns), bench.now);
        let raised = std::iter::from_fn(|| bench.machine.poll_action()).find_map(|action| match action {
            Action::Call(Call::BringUp { remote, .. }) => Some(remote.id),
            _ => None,
        });
        assert_eq!(raised, Some(ids[served]), "from {first}, then from {second}");
    }
}

/// The endpoint that the first word of the peer led to may be at the device's other port, where the peer is no more (seed 1035582 of btl's simulation).
#[test]
fn a_parked_request_of_another_exchange_is_told_and_one_that_comes_again_is_not() {
    let mut bench = Bench::new(20);
    let mut told = |id| {
        bench.req(THIRD, 12, CommId(id), 0x300);
        let actions = std::iter::from_fn(|| bench.machine.poll_action());
        actions.filter(|action| matches!(action, Action::UnknownPeer { peer: THIRD })).count()
    };
    assert_eq!([0x700, 0x700, 0x701, 0x701].map(&mut told), [1, 0, 1, 0]);
}

/// 4.096 us * 2^code, on either side of the exchange.
#[test]
fn an_mra_makes_its_receiver_wait_as_long_as_it_says() {
    for code in [10, 15, 18, 21] {
        let asked = Duration::from_nanos(4096 << code);
        for (mut bench, stage) in [(Bench::asking(), Stage::Req), (Bench::answering(), Stage::Rep)] {
            bench.mra(stage, code);
            assert_eq!((bench.wait(), bench.said().len()), (asked, 0), "{stage:?}");
        }
    }
}

#[test]
fn an_mra_never_prolongs_an_exchange_beyond_its_patience() {
    let patience = Params::default().patience;
    for (mut bench, stage) in [(Bench::asking(), Stage::Req), (Bench::answering(), Stage::Rep)] {
        let begin = bench.now;
        while bench.now < begin + patience {
            bench.mra(stage, 31);
            assert!(bench.now + bench.wait() <= begin + patience, "{stage:?}");
            bench.now += Duration::from_secs(1);
        }
        bench.machine.handle_timeout(bench.now);
        assert!(bench.said().iter().any(|said| said.contains("no answer to")), "{stage:?}");
    }
}

#[test]
fn an_mra_of_the_other_stage_changes_nothing() {
    for (mut bench, stage) in [(Bench::asking(), Stage::Rep), (Bench::answering(), Stage::Req)] {
        let before = bench.wait();
        bench.mra(stage, 21);
        bench.mra(Stage::Other, 21);
        assert_eq!(bench.wait(), before, "{stage:?}");
    }
}

/// A peer that says in its REQ that it takes longer to answer is not pressed.
#[test]
fn the_side_that_was_asked_waits_as_long_as_the_request_says() {
    let bench = Bench::answering();
    // Code 15 is 134 ms, the parameter 100 ms, with a jitter of a quarter.
    let said = Duration::from_nanos(4096 << 15);
    assert!(bench.wait() >= said * 3 / 4 && bench.wait() <= said * 5 / 4, "{:?}", bench.wait());
}

/// Twice the lifetime of a packet, as the ACK timeout of the path has it; no longer than the parameter allows.
#[test]
fn time_wait_lasts_for_the_ack_timeout_of_the_path() {
    let limit = Params::default().time_wait;
    for (code, expected) in [
        (14, Duration::from_nanos(4096 << 14)),
        (18, Duration::from_nanos(4096 << 18)),
        (31, limit),
        (0, limit),
    ] {
        let mut bench = Bench::up(code);
        bench.machine.command(KEY, EndpointCommand::Remove, bench.now);
        let drep = Message::Drep(Drep { local: P, remote: bench.id });
        bench.datagram(10, drep);
        assert_eq!((bench.wait(), bench.said()), (expected, vec!["Dreq".to_owned()]), "code {code}");
        bench.now += expected;
        bench.machine.handle_timeout(bench.now);
        assert_eq!(bench.machine.poll_timeout(), None, "nothing is left");
    }
}

/// The peer has died, and a third process has been given its queue pair's number: by the book its request is stale, the old connection
/// is over, and the next request is served.
#[test]
fn a_request_with_the_queue_pair_of_a_connection_ends_that_and_is_rejected_as_stale_once() {
    let mut bench = Bench::up(20);
    let other = EndpointKey { index: 2, generation: 1 };
    bench.machine.add_endpoint(other, THIRD, address(12), bench.now);
    bench.req(THIRD, 12, CommId(0x900), 0x100);
    assert_eq!(bench.said(), ["DISCONNECTED", "Rej(Stale)"]);
    assert_eq!(bench.machine.state(KEY), Some(StateKind::Disconnected));
    assert_eq!(bench.machine.state(other), Some(StateKind::Idle));
    bench.req(THIRD, 12, CommId(0x901), 0x100);
    assert_eq!(bench.machine.state(other), Some(StateKind::Creating));
    assert_eq!(bench.said().len(), 0);
}

/// The same, found in the answer to a request of ours: that connection is wanted and comes up.
#[test]
fn a_reply_with_the_queue_pair_of_a_connection_ends_that_and_is_taken() {
    let mut bench = Bench::up(20);
    let other = EndpointKey { index: 2, generation: 1 };
    bench.machine.add_endpoint(other, THIRD, address(12), bench.now);
    bench.machine.command(other, EndpointCommand::Connect, bench.now);
    bench.machine.qps_created(other, Ok(hello(ME, 0x300).qpns), bench.now);
    assert_eq!(bench.said(), ["Req"]);
    let rep = Rep {
        local: CommId(0x900),
        remote: bench.id,
        hello: hello(THIRD, 0x100),
        queues: Queues::new(1, OURS),
        psn: Psn(7),
        depth: DEPTH,
        rnr_retry: 7,
        srq: true,
    };
    bench.datagram(12, Message::Rep(rep));
    bench.machine.qps_up(other, Ok(()), bench.now);
    assert_eq!(bench.said(), ["DISCONNECTED", "Rtu"]);
    let states = [KEY, other].map(|key| bench.machine.state(key));
    assert_eq!(states, [Some(StateKind::Disconnected), Some(StateKind::Connected)]);
}

/// The number is free again when the connection has been removed, or has ended.
#[test]
fn a_queue_pair_of_a_connection_that_is_over_belongs_to_nobody() {
    for end in ["remove", "dreq"] {
        let mut bench = Bench::up(20);
        match end {
            "remove" => bench.machine.command(KEY, EndpointCommand::Remove, bench.now),
            _ => {
                let dreq = Dreq { local: P, remote: bench.id, remote_qpn: Qpn(0x200), failed: false };
                bench.datagram(10, Message::Dreq(dreq));
            }
        }
        bench.said();
        let other = EndpointKey { index: 2, generation: 1 };
        bench.machine.add_endpoint(other, THIRD, address(12), bench.now);
        bench.req(THIRD, 12, CommId(0x900), 0x100);
        assert_eq!(bench.machine.state(other), Some(StateKind::Creating), "{end}");
    }
}

#[test]
fn a_request_with_other_queues_is_refused_with_ours_and_both_sides_name_both() {
    let mut bench = Bench::new(20);
    bench.odd_req(10);
    let said = bench.said();
    assert_eq!(said[0], format!("Rej(Queues(Queues({OURS}, 0x00000001)))"));
    // The private data of a REQ have room for 28 bytes of the text.
    let beginning = &THEIRS[..28];
    assert!(said[1].starts_with(&format!("its queues are {beginning}..., ours are {OURS};")), "{}", said[1]);
    assert_eq!((said.len(), bench.machine.stats().layout_refused), (2, 1));
}

/// The main thread may be slower than the request: the peer is refused at once, and the endpoint that comes later does not wait for another.
#[test]
fn a_request_with_other_queues_that_comes_before_the_endpoint_is_reported_when_that_is_there() {
    let mut bench = Bench::new(20);
    bench.machine.command(KEY, EndpointCommand::Remove, bench.now);
    bench.odd_req(10);
    assert_eq!(bench.said(), [format!("Rej(Queues(Queues({OURS}, 0x00000001)))")]);
    bench.machine.add_endpoint(KEY, PEER, address(10), bench.now);
    let said = bench.said();
    assert!(said.len() == 1 && said[0].starts_with("its queues are P,128,256"), "{said:?}");
    bench.machine.command(KEY, EndpointCommand::Remove, bench.now);
    // A later incarnation may have others.
    bench.machine.add_endpoint(KEY, PEER, address(11), bench.now);
    assert_eq!((bench.said().len(), bench.machine.state(KEY)), (0, Some(StateKind::Idle)));
}
