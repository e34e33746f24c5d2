//! What an ibcm request says of the path: the terms of our port, and on RoCE ports with several GIDs
//! the ones that datagrams and queue pairs go over.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod heads;

use std::time::Instant;

use cpc::config::datagram::Params;
use cpc::ibcm::machine::{Action, Call, Local, Machine, Terms};
use cpc::wire::listener::{Address, Facing};
use cpc::wire::{
    CommId, Datagram, Depth, Hello, Incarnation, Layout, MAD_LEN, Message, Path, Qpns, Queues, Req, Source,
};
use cpc::{EndpointCommand, EndpointKey, ProcessName, StreamNum};
use heads::req_head;
use verbs::{Gid, Lid, Qpn};

const ME: ProcessName = ProcessName(1);
const PEER: ProcessName = ProcessName(2);
const KEY: EndpointKey = EndpointKey { index: 0, generation: 0 };
const DEPTH: Depth = Depth { responder_resources: 4, initiator_depth: 4 };
/// The two ports' own GIDs, and those of the network that both are on.
const OWN: Gid = Gid([1; 16]);
const ITS: Gid = Gid([2; 16]);
const OURS: Gid = Gid([3; 16]);
const THEIRS: Gid = Gid([4; 16]);

/// Both listen on a queue pair of one number since the same millisecond: only the GIDs tell them apart.
fn address(gid: Gid) -> Address {
    let (lid, qpn, incarnation) = (Lid(0), Qpn(10), Incarnation(10));
    Address { port: 1, mtu: 5, ethernet: true, lid, qpn, incarnation, gid }
}

fn hello(name: ProcessName) -> Hello {
    Hello {
        layout: Layout::new([false]).unwrap(),
        name,
        qpns: Qpns::new(&[Qpn(0x100)]).unwrap(),
        stream: StreamNum::NONE,
    }
}

fn queues() -> Queues {
    Queues::new(1, "P,4096,8")
}

/// A process whose port has the GID `own`.
fn machine(name: ProcessName, own: Gid) -> Machine {
    let terms = Terms { depth: DEPTH, pkey: 0xffff, sl: 0, ack_timeout: 14, retry_count: 7, rnr_retry: 7 };
    let (address, layout) = (address(own), hello(name).layout);
    Machine::new(Local { name, address, layout, queues: queues(), terms, srq: false }, Params::default(), 42)
}

fn meeting(name: ProcessName, own: Gid, peer: ProcessName, its: Gid, ours: Gid, theirs: Gid) -> Machine {
    let mut machine = machine(name, own);
    let address = Address { gid: theirs, ..address(its) };
    machine.add_endpoint(KEY, peer, Facing { address, our_gid: Some(ours) }, Instant::now());
    machine
}

fn calls(machine: &mut Machine) -> Vec<Call> {
    let actions = std::iter::from_fn(|| machine.poll_action());
    actions.filter_map(|action| if let Action::Call(call) = action { Some(call) } else { None }).collect()
}

/// Has it ask; its request, and where that goes.
fn ask(machine: &mut Machine, name: ProcessName, now: Instant) -> (Source, Datagram) {
    machine.command(KEY, EndpointCommand::Connect, now);
    machine.qps_created(KEY, Ok(hello(name).qpns), now);
    let sent = calls(machine).into_iter().find_map(|call| match call {
        Call::Send { to, datagram } => Some((to, datagram)),
        _ => None,
    });
    sent.expect("a request")
}

fn hand(machine: &mut Machine, datagram: &Datagram, from: Source, now: Instant) -> Vec<Call> {
    let mut mad = [0; MAD_LEN];
    datagram.emit(&mut mad);
    machine.datagram(from, &mad, now);
    calls(machine)
}

#[test]
fn a_request_goes_from_our_gid_of_the_pair_to_the_peers_and_says_both() {
    let (mut machine, now) = (meeting(ME, OWN, PEER, ITS, OURS, THEIRS), Instant::now());
    let (to, datagram) = ask(&mut machine, ME, now);
    assert_eq!((to.gid, to.our_gid), (Some(THEIRS), Some(OURS)));
    let Message::Req(req) = datagram.message else { panic!("{datagram:?}") };
    assert_eq!((req.head.path.local_gid, req.head.path.remote_gid), (OURS, THEIRS));
}

/// The ports' own GIDs are in the other order than those of the pair, and both sides must go by the same.
#[test]
fn of_crossing_requests_the_one_of_the_lower_gid_of_the_pair_stands_on_both_sides() {
    for (ours, theirs) in [(OURS, THEIRS), (THEIRS, OURS)] {
        let now = Instant::now();
        let mut one = meeting(ME, OWN, PEER, ITS, ours, theirs);
        let mut other = meeting(PEER, ITS, ME, OWN, theirs, ours);
        let (_, from_one) = ask(&mut one, ME, now);
        let (_, from_other) = ask(&mut other, PEER, now);
        let source =
            |gid, our_gid| Source { qpn: Qpn(10), lid: Lid(0), gid: Some(gid), our_gid: Some(our_gid) };
        let yields = |calls: &[Call]| calls.iter().any(|call| matches!(call, Call::BringUp { .. }));
        let one_yields = yields(&hand(&mut one, &from_other, source(theirs, ours), now));
        let other_yields = yields(&hand(&mut other, &from_one, source(ours, theirs), now));
        assert_eq!((one_yields, other_yields), (ours.0 > theirs.0, theirs.0 > ours.0));
    }
}

#[test]
fn an_unknown_process_is_answered_from_the_gid_that_its_request_came_to() {
    let (mut machine, now) = (machine(ME, OWN), Instant::now());
    let from = Source { qpn: Qpn(10), lid: Lid(0), gid: Some(THEIRS), our_gid: Some(OURS) };
    let path = Path {
        local_lid: Lid(0),
        remote_lid: Lid(0),
        local_gid: THEIRS,
        remote_gid: OURS,
        sl: 0,
        ack_timeout: 14,
    };
    let head = req_head(CommId(77), ME, DEPTH, path);
    let req = Req { head, hello: hello(PEER), queues: queues(), srq: false };
    let (sender, receiver) = (Incarnation(5), Incarnation(10));
    let datagram = Datagram { from: sender, to: receiver, message: Message::Req(req) };
    let calls = hand(&mut machine, &datagram, from, now);
    let [Call::Send { to, .. }] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!(*to, from);
}

/// Its modex told of its former incarnation; the request says where it is now, and to which GID of ours it leads.
#[test]
fn a_peer_that_has_started_anew_is_met_over_the_gids_of_its_request() {
    let (mut machine, now) = (meeting(ME, OWN, PEER, ITS, OWN, ITS), Instant::now());
    let mut peer = meeting(PEER, ITS, ME, OWN, THEIRS, OURS);
    let (_, request) = ask(&mut peer, PEER, now);
    let anew = Datagram { from: Incarnation(11), ..request };
    let from = Source { qpn: Qpn(12), lid: Lid(0), gid: Some(THEIRS), our_gid: Some(OURS) };
    hand(&mut machine, &anew, from, now);
    machine.qps_created(KEY, Ok(hello(ME).qpns), now);
    let calls = calls(&mut machine);
    let [Call::BringUp { address, .. }] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!((address.gid, address.our_gid, address.qpn), (THEIRS, Some(OURS), Qpn(12)));
}

#[test]
fn a_request_says_our_terms_each_cut_to_its_field() {
    let given = Terms { depth: DEPTH, pkey: 0x8123, sl: 2, ack_timeout: 14, retry_count: 5, rnr_retry: 6 };
    let wide = Terms { sl: 0xf2, ack_timeout: 0xee, retry_count: 0xfd, rnr_retry: 0xfe, ..given };
    for (terms, max_retries, said) in
        [(given, 12, 12), (wide, 15, 15), (given, 16, 15), (given, u32::MAX, 15)]
    {
        let (own, now) = (Address { mtu: 4, lid: Lid(3), ..address(OWN) }, Instant::now());
        let layout = hello(ME).layout;
        let local = Local { name: ME, address: own, layout, queues: queues(), terms, srq: false };
        let mut machine = Machine::new(local, Params { max_retries, ..Params::default() }, 42);
        let its = Address { mtu: 5, lid: Lid(4), ..address(ITS) };
        machine.add_endpoint(KEY, PEER, its, now);
        let (_, datagram) = ask(&mut machine, ME, now);
        let Message::Req(Req { head, .. }) = datagram.message else { panic!("{datagram:?}") };
        let (local_lid, remote_lid, local_gid, remote_gid) = (Lid(3), Lid(4), OWN, ITS);
        let path = Path { local_lid, remote_lid, local_gid, remote_gid, sl: 2, ack_timeout: 14 };
        assert_eq!((head.path, head.depth, head.service), (path, DEPTH, PEER));
        assert_eq!((head.pkey, head.mtu), (0x8123, 4), "the smaller of the two MTUs");
        assert_eq!((head.retry_count, head.rnr_retry, head.max_cm_retries), (5, 6, said));
        assert_eq!(head.response_timeout, 15, "100 ms: 4.096 us * 2^15 is 134 ms");
    }
}
