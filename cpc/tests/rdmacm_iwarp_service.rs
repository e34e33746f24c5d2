//! rdmacm for real on an iWARP device: services with their helper threads, a connection for each queue pair, messages in MPA's order,
//! which the software device enforces.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod side;

use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use cpc::{Advert, Config, EndpointKey, First};
use side::{PATIENCE, Side, until};
use softib::port::{LinkLayer, Settings, configure};
use verbs::{Context, Driver};

fn context() -> Arc<Context> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        configure(Settings { link_layers: vec![LinkLayer::Iwarp], ..Settings::default() }).unwrap()
    });
    let driver = Driver::with_connections(softib::driver_table(), softib::cm_table());
    driver.devices().unwrap()[0].open().unwrap()
}

fn config() -> Config {
    let rdmacm = cpc::rdmacm::Params { address: Some("127.0.0.1".parse().unwrap()), ..Default::default() };
    Config { rdmacm, ..Config::default() }
}

fn pair() -> ([Side; 2], [EndpointKey; 2]) {
    let ctx = context();
    let mut sides = [0, 1].map(|rank| Side::open(&ctx, rank, false, &config()));
    let adverts = [0, 1].map(|i: usize| sides[i].service.adverts().to_vec());
    let names = [0, 1].map(|i: usize| sides[i].name);
    sides.iter().for_each(|s| s.service.start().unwrap());
    let keys = [0, 1].map(|i: usize| sides[i].add(names[1 - i], &adverts[1 - i], true));
    (sides, keys)
}

#[test]
fn the_device_is_left_to_rdmacm_alone() {
    let side = Side::open(&context(), 0, false, &Config::default());
    let names: Vec<_> = side.service.adverts().iter().map(|a| a.name.as_str()).collect();
    assert_eq!(names, ["rdmacm"]);
}

#[test]
fn every_queue_pair_comes_up_and_the_side_that_asked_sends_first() {
    let (mut sides, keys) = pair();
    sides[0].service.connect(keys[0]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
    let end = |i: usize| &sides[i].ends[&keys[i]];
    assert_eq!([end(0).first, end(1).first], [Some(First::Us), Some(First::Peer)]);
    for i in 0..2 {
        assert_eq!(end(i).received.as_deref(), Some(&sides[1 - i].name.0.to_be_bytes()[..]));
        assert!(end(i).qps.iter().all(|qp| qp.state().unwrap() == verbs::QpState::Rts));
    }
}

#[test]
fn services_that_connect_to_each_other_at_once_get_one_connection() {
    for _ in 0..20 {
        let (mut sides, keys) = pair();
        sides.iter().zip(keys).for_each(|(s, key)| s.service.connect(key));
        until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
        assert!(sides.iter().all(|s| s.failures.is_empty()));
    }
}

#[test]
fn many_peers_connect_to_one_at_once() {
    let (ctx, config) = (context(), config());
    let mut sides: Vec<Side> = (0..8).map(|rank| Side::open(&ctx, rank, false, &config)).collect();
    let adverts: Vec<Vec<Advert>> = sides.iter().map(|s| s.service.adverts().to_vec()).collect();
    let names: Vec<_> = sides.iter().map(|s| s.name).collect();
    sides.iter().for_each(|s| s.service.start().unwrap());
    let at_target: Vec<_> = (1..8).map(|i| sides[0].add(names[i], &adverts[i], true)).collect();
    let keys: Vec<_> = (1..8).map(|i| sides[i].add(names[0], &adverts[0], true)).collect();
    (1..8).for_each(|i| sides[i].service.connect(keys[i - 1]));
    until(&mut sides, "messages", |s| {
        at_target.iter().all(|&key| s[0].is_done(key)) && (1..8).all(|i| s[i].is_done(keys[i - 1]))
    });
    assert!(sides.iter().all(|s| s.failures.is_empty()));
}

#[test]
fn close_takes_every_connection_down_without_waiting_for_the_deadline() {
    let (mut sides, keys) = pair();
    sides[0].service.connect(keys[0]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
    let begun = Instant::now();
    sides[0].service.close(PATIENCE);
    assert!(begun.elapsed() < PATIENCE / 2);
    until(&mut sides, "disconnected", |s| s[1].ends[&keys[1]].disconnected);
    sides[1].service.close(Duration::from_secs(2));
}

#[test]
fn layouts_with_shared_queues_are_refused_with_the_reason() {
    let ctx = context();
    let pd = verbs::Pd::alloc(&ctx).unwrap();
    let cq = verbs::Cq::create(&ctx, 16, None).unwrap();
    let srq = verbs::Srq::create(&pd, 16, 1).unwrap();
    let plan = cpc::QpPlan {
        pd,
        queues: vec![side::queue(&cq, None), side::queue(&cq, Some(&srq))],
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
    let error = cpc::Service::open(Arc::new(plan), cpc::ProcessName(9), &config()).unwrap_err().to_string();
    assert!(error.contains("no RNR") && error.contains("configs/iwarp.conf"), "{error}");
}
