//! rdmacm for real: services with their helper threads, the software device's connection manager and queue pairs, real messages.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod side;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cpc::wire::ip::Address;
use cpc::{Advert, Config, EndpointKey, Step};
use side::{PATIENCE, Side, until};
use verbs::cm::{CmId, EventChannel, Token};
use verbs::{Context, Driver};

fn context() -> Arc<Context> {
    let driver = Driver::with_connections(softib::driver_table(), softib::cm_table());
    driver.devices().unwrap()[0].open().unwrap()
}

fn config(address: &str) -> Config {
    let rdmacm = cpc::rdmacm::Params { address: Some(address.parse().unwrap()), ..Default::default() };
    Config { include: vec!["rdmacm".to_owned()], rdmacm, ..Config::default() }
}

fn pair_with(shared: bool, config: &Config) -> ([Side; 2], [EndpointKey; 2]) {
    let ctx = context();
    let mut sides = [0, 1].map(|rank| Side::open(&ctx, rank, shared, config));
    let adverts = [0, 1].map(|i: usize| sides[i].service.adverts().to_vec());
    let names = [0, 1].map(|i: usize| sides[i].name);
    sides.iter().for_each(|s| s.service.start().unwrap());
    let keys = [0, 1].map(|i: usize| sides[i].add(names[1 - i], &adverts[1 - i], !shared));
    (sides, keys)
}

fn pair(shared: bool) -> ([Side; 2], [EndpointKey; 2]) {
    pair_with(shared, &config("127.0.0.1"))
}

fn counter(side: &Side, name: &str) -> u64 {
    side.service.counters().iter().find(|(n, _)| *n == name).unwrap().1
}

fn check_messages(sides: &[Side; 2], keys: [EndpointKey; 2]) {
    for (me, peer) in [(0, 1), (1, 0)] {
        let received = sides[me].ends[&keys[me]].received.as_deref();
        assert_eq!(received, Some(&sides[peer].name.0.to_be_bytes()[..]));
    }
}

#[test]
fn two_services_connect_and_their_clear_to_send_lands_in_the_posted_receive() {
    let (mut sides, keys) = pair(false);
    sides[0].service.connect(keys[0]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
    check_messages(&sides, keys);
    sides.iter().for_each(|s| s.service.close(Duration::from_secs(2)));
}

#[test]
fn ipv6_does_as_well() {
    let (mut sides, keys) = pair_with(false, &config("::1"));
    sides[1].service.connect(keys[1]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
    check_messages(&sides, keys);
    let address = Address::parse(&sides[0].service.adverts()[0].blob).unwrap();
    assert!(address.socket.is_ipv6(), "{address:?}");
}

#[test]
fn without_a_wish_the_address_is_one_of_the_hosts_own() {
    let config = Config { include: vec!["rdmacm".to_owned()], ..Config::default() };
    let (mut sides, keys) = pair_with(true, &config);
    sides[0].service.connect(keys[0]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
}

#[test]
fn each_side_tells_when_its_steps_happened() {
    let (mut sides, keys) = pair(false);
    sides[0].service.connect(keys[0]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
    let names = |side: usize| -> Vec<_> {
        sides[side].ends[&keys[side]].steps.rows().into_iter().map(|(step, _)| step).collect()
    };
    let asks =
        [Step::Resolved, Step::QpsCreated, Step::ReqSent, Step::RepReceived, Step::QpsUp, Step::RtuSent];
    assert_eq!(names(0), asks);
    assert_eq!(names(1)[..4], [Step::ReqReceived, Step::QpsCreated, Step::QpsUp, Step::RepSent]);
}

#[test]
fn services_that_connect_to_each_other_at_once_get_one_connection() {
    for _ in 0..20 {
        let (mut sides, keys) = pair(false);
        sides.iter().zip(keys).for_each(|(s, key)| s.service.connect(key));
        until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
        check_messages(&sides, keys);
        assert!(sides.iter().all(|s| s.failures.is_empty()));
        // The helper publishes its counters before it sleeps, which may be after the message has gone.
        until(&mut sides, "counters", |s| s.iter().all(|s| counter(s, "rdmacm_connected") == 1));
    }
}

#[test]
fn many_peers_connect_to_one_at_once() {
    let (ctx, config) = (context(), config("127.0.0.1"));
    let mut sides: Vec<Side> = (0..12).map(|rank| Side::open(&ctx, rank, true, &config)).collect();
    let adverts: Vec<Vec<Advert>> = sides.iter().map(|s| s.service.adverts().to_vec()).collect();
    let names: Vec<_> = sides.iter().map(|s| s.name).collect();
    sides.iter().for_each(|s| s.service.start().unwrap());
    let at_target: Vec<_> = (1..12).map(|i| sides[0].add(names[i], &adverts[i], false)).collect();
    let keys: Vec<_> = (1..12).map(|i| sides[i].add(names[0], &adverts[0], false)).collect();
    (1..12).for_each(|i| sides[i].service.connect(keys[i - 1]));
    until(&mut sides, "messages", |s| {
        at_target.iter().all(|&key| s[0].is_done(key)) && (1..12).all(|i| s[i].is_done(keys[i - 1]))
    });
    assert!(sides.iter().all(|s| s.failures.is_empty()));
}

#[test]
fn a_request_of_an_unknown_process_waits_for_its_endpoint() {
    let (ctx, config) = (context(), config("127.0.0.1"));
    let mut sides = [0, 1].map(|rank| Side::open(&ctx, rank, false, &config));
    let adverts = [0, 1].map(|i: usize| sides[i].service.adverts().to_vec());
    let names = [0, 1].map(|i: usize| sides[i].name);
    sides.iter().for_each(|s| s.service.start().unwrap());
    let key = sides[0].add(names[1], &adverts[1], true);
    sides[0].service.connect(key);
    until(&mut sides, "a report of the unknown peer", |s| !s[1].unknown.is_empty());
    assert_eq!(sides[1].unknown, [names[0]]);
    let late = sides[1].add(names[0], &adverts[0], true);
    until(&mut sides, "message", |s| s[0].is_done(key) && s[1].is_done(late));
}

#[test]
fn a_removed_endpoint_is_reported_to_the_peer_and_may_come_again() {
    let (mut sides, keys) = pair(false);
    sides[0].service.connect(keys[0]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
    sides[0].service.remove_endpoint(keys[0]);
    until(&mut sides, "disconnected", |s| s[1].ends[&keys[1]].disconnected);
    sides[1].service.remove_endpoint(keys[1]);
    let adverts = [0, 1].map(|i: usize| sides[i].service.adverts().to_vec());
    let names = [0, 1].map(|i: usize| sides[i].name);
    let again = [0, 1].map(|i: usize| sides[i].add(names[1 - i], &adverts[1 - i], true));
    sides[1].service.connect(again[1]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(again[i])));
}

#[test]
fn an_endpoint_that_has_failed_is_reported_to_its_peer_before_it_is_removed_and_is_not_reached_again() {
    let (mut sides, keys) = pair(false);
    sides[0].service.connect(keys[0]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
    sides[0].service.abandon_endpoint(keys[0]);
    until(&mut sides, "disconnected", |s| s[1].ends[&keys[1]].disconnected);
    sides[1].service.remove_endpoint(keys[1]);
    let (name, adverts) = (sides[0].name, sides[0].service.adverts().to_vec());
    let again = sides[1].add(name, &adverts, true);
    sides[1].service.connect(again);
    until(&mut sides, "a failure", |s| !s[1].failures.is_empty());
    let text = &sides[1].failures[0];
    assert!(text.contains("its endpoint has failed"), "{text}");
}

#[test]
fn unlike_layouts_refuse_each_other_and_both_are_named() {
    let (ctx, config) = (context(), config("127.0.0.1"));
    let mut sides =
        [Side::with_queues(&ctx, 0, true, 2, &config), Side::with_queues(&ctx, 1, true, 3, &config)];
    let adverts = [0, 1].map(|i: usize| sides[i].service.adverts().to_vec());
    let names = [0, 1].map(|i: usize| sides[i].name);
    sides.iter().for_each(|s| s.service.start().unwrap());
    let keys = [0, 1].map(|i: usize| sides[i].add(names[1 - i], &adverts[1 - i], false));
    sides[0].service.connect(keys[0]);
    until(&mut sides, "a failure", |s| !s[0].failures.is_empty());
    let text = &sides[0].failures[0];
    assert!(text.contains("SSS") && text.contains("ours are SS;"), "{text}");
}

#[test]
fn a_peer_that_is_gone_is_reported_within_the_bound() {
    let mut config = config("127.0.0.1");
    (config.rdmacm.max_retries, config.rdmacm.retry_pause) = (3, Duration::from_millis(5));
    let (sides, keys) = pair_with(false, &config);
    let [a, b] = sides;
    let address = Address::parse(&b.service.adverts()[0].blob).unwrap().socket;
    drop(b);
    // An id that is bound but does not listen keeps the port from other processes meanwhile.
    let channel = EventChannel::create(context().driver()).unwrap();
    let bound = CmId::create(&channel, Token(1)).unwrap();
    bound.bind(address).unwrap();
    let mut sides = [a];
    sides[0].service.connect(keys[0]);
    until(&mut sides, "a failure", |s| !s[0].failures.is_empty());
    let text = &sides[0].failures[0];
    assert!(text.contains("no process listens at its address") && text.contains("4 tries"), "{text}");
}

#[test]
fn close_takes_connections_down_without_waiting_for_the_deadline() {
    let (mut sides, keys) = pair(false);
    sides[0].service.connect(keys[0]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
    let begun = Instant::now();
    sides[0].service.close(PATIENCE);
    assert!(begun.elapsed() < PATIENCE / 2);
    until(&mut sides, "disconnected", |s| s[1].ends[&keys[1]].disconnected);
}

#[test]
fn a_service_without_peers_starts_no_thread_and_closes_at_once() {
    let side = Side::open(&context(), 0, true, &config("127.0.0.1"));
    side.service.close(PATIENCE);
}

#[test]
fn a_port_that_is_taken_is_an_error_with_its_remedy() {
    let (ctx, mut config) = (context(), config("127.0.0.1"));
    let first = Side::open(&ctx, 0, true, &config);
    config.rdmacm.port = Address::parse(&first.service.adverts()[0].blob).unwrap().socket.port();
    let pd = verbs::Pd::alloc(&ctx).unwrap();
    let cq = verbs::Cq::create(&ctx, 16, None).unwrap();
    let plan = cpc::QpPlan {
        pd,
        queues: vec![side::queue(&cq, None)],
        receive_queues: cpc::ReceiveQueues::default(),
        port: side::port(&ctx),
        access: verbs::Access::LOCAL_WRITE,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        sl: 0,
        xrc: None,
    };
    let error = cpc::Service::open(Arc::new(plan), cpc::ProcessName(9), &config).unwrap_err().to_string();
    for part in ["rdmacm", "rdma_bind_addr", "Address already in use", "choose another port"] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
}

#[test]
fn a_device_without_a_connection_manager_is_served_by_the_other_component() {
    let side = Side::open(&side::context(), 0, true, &Config::default());
    assert_eq!(side.service.adverts().iter().map(|a| a.name.as_str()).collect::<Vec<_>>(), ["ibcm"]);
    let side = Side::open(&context(), 1, true, &Config::default());
    let names: Vec<_> = side.service.adverts().iter().map(|a| (a.name.as_str(), a.priority)).collect();
    assert_eq!(names, [("ibcm", 40), ("rdmacm", 30)]);
}
