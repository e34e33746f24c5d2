//! The real thing: services with their helper threads, UD and RC queue pairs of the software device, real messages.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod side;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cpc::wire::listener::Address;
use cpc::{Config, EndpointKey, Event, ProcessName, QpPlan, Service, Step};
use side::{PATIENCE, QUEUES, Side, context, port, queue, until};
use verbs::{
    Access, Ah, AhAttr, Completions, Context, Cq, InitAttr, Pd, Pool, PoolConfig, Psn, QKey, Qp, QpCap,
    QpInit, QpKind, SendFlags,
};

fn pair(shared: bool) -> ([Side; 2], [EndpointKey; 2]) {
    pair_on(&context(), shared)
}

fn pair_on(ctx: &Arc<Context>, shared: bool) -> ([Side; 2], [EndpointKey; 2]) {
    let config = Config::default();
    let mut sides = [0, 1].map(|rank| Side::open(ctx, rank, shared, &config));
    let adverts = [0, 1].map(|i: usize| sides[i].service.adverts().to_vec());
    let names = [0, 1].map(|i: usize| sides[i].name);
    sides.iter().for_each(|s| s.service.start().unwrap());
    let keys = [0, 1].map(|i: usize| sides[i].add(names[1 - i], &adverts[1 - i], !shared));
    (sides, keys)
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
    assert_eq!(sides[0].ends[&keys[0]].qps.len(), QUEUES);
    sides.iter().for_each(|s| s.service.close(Duration::from_secs(2)));
}

#[test]
fn each_side_tells_when_its_steps_happened() {
    let (mut sides, keys) = pair(false);
    sides[0].service.connect(keys[0]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
    let names = |side: usize| -> Vec<_> {
        sides[side].ends[&keys[side]].steps.rows().into_iter().map(|(step, _)| step).collect()
    };
    assert_eq!(names(0), [Step::QpsCreated, Step::ReqSent, Step::RepReceived, Step::QpsUp, Step::RtuSent]);
    // The peer's first data may stand in for its RTU.
    assert_eq!(names(1)[..4], [Step::ReqReceived, Step::QpsCreated, Step::QpsUp, Step::RepSent]);
}

#[test]
fn services_that_connect_to_each_other_at_once_get_one_connection() {
    for _ in 0..10 {
        let (mut sides, keys) = pair(false);
        sides.iter().zip(keys).for_each(|(s, key)| s.service.connect(key));
        until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
        check_messages(&sides, keys);
        assert!(sides.iter().all(|s| s.failures.is_empty()));
    }
}

#[test]
fn shared_queues_need_no_posted_receive() {
    let (mut sides, keys) = pair(true);
    sides[1].service.connect(keys[1]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
    assert!(sides.iter().zip(keys).all(|(s, k)| s.ends[&k].cts.is_none()));
}

/// One that is about to be removed: its peer's request comes as that of an unknown process, and is served when it is added again.
#[test]
fn an_unlisted_endpoint_takes_no_request_until_it_is_added_again() {
    let (mut sides, keys) = pair(true);
    sides[0].service.unlist(keys[0]);
    until(&mut sides, "the answer", |s| s[0].unlisted == [keys[0]]);
    sides[1].service.connect(keys[1]);
    until(&mut sides, "the request", |s| s[0].unknown == [s[1].name]);
    assert!(sides[0].ends.get(&keys[0]).is_none_or(|end| end.qps.is_empty()));
    let (name, adverts) = (sides[1].name, sides[1].service.adverts().to_vec());
    let again = sides[0].add(name, &adverts, false);
    until(&mut sides, "message", |s| s[0].is_done(again) && s[1].is_done(keys[1]));
    sides[0].service.unlist(again);
    sides[0].service.remove_endpoint(again);
    until(&mut sides, "disconnect", |s| s[1].ends[&keys[1]].disconnected);
    assert_eq!(sides[0].unlisted, [keys[0]], "one that is connected is not unlisted");
}

/// Its request has found no endpoint, and waits there. The withdrawal takes it away; an endpoint that was added before the withdrawal
/// arrived, and so has taken the request up, is disconnected by it, and the next one connects.
#[test]
fn an_endpoint_whose_request_has_no_answer_is_unlisted() {
    let ctx = context();
    let mut sides = [0, 1].map(|rank| Side::open(&ctx, rank, true, &Config::default()));
    sides.iter().for_each(|s| s.service.start().unwrap());
    let adverts = [0, 1].map(|i: usize| sides[i].service.adverts().to_vec());
    let names = [0, 1].map(|i: usize| sides[i].name);
    let mine = sides[0].add(names[1], &adverts[1], false);
    sides[0].service.connect(mine);
    until(&mut sides, "news of the unknown peer", |s| s[1].unknown == [names[0]]);
    sides[0].service.unlist(mine);
    until(&mut sides, "the answer", |s| s[0].unlisted == [mine]);
    let again = sides[0].add(names[1], &adverts[1], false);
    let mut theirs = sides[1].add(names[0], &adverts[0], false);
    sides[1].service.connect(theirs);
    let over = |s: &[Side], key| s[0].is_done(again) && s[1].is_done(key);
    until(&mut sides, "message, or withdrawal", |s| over(s, theirs) || s[1].ends[&theirs].disconnected);
    if sides[1].ends[&theirs].disconnected {
        sides[1].service.remove_endpoint(theirs);
        theirs = sides[1].add(names[0], &adverts[0], false);
        sides[1].service.connect(theirs);
    }
    until(&mut sides, "message", |s| over(s, theirs));
    assert!(sides.iter().all(|s| s.failures.is_empty()));
}

#[test]
fn a_removed_endpoint_disconnects_its_peer_and_close_is_quick() {
    let (mut sides, keys) = pair(false);
    sides[0].service.connect(keys[0]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
    sides[0].service.remove_endpoint(keys[0]);
    until(&mut sides, "disconnect", |s| s[1].ends[&keys[1]].disconnected);
    let start = Instant::now();
    sides.iter().for_each(|s| s.service.close(Duration::from_secs(60)));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn a_request_of_an_unknown_process_waits_until_it_is_added() {
    let ctx = context();
    let mut sides = [0, 1].map(|rank| Side::open(&ctx, rank, false, &Config::default()));
    sides.iter().for_each(|s| s.service.start().unwrap());
    let adverts = [0, 1].map(|i: usize| sides[i].service.adverts().to_vec());
    let names = [0, 1].map(|i: usize| sides[i].name);
    let mine = sides[0].add(names[1], &adverts[1], true);
    sides[0].service.connect(mine);
    until(&mut sides, "news of the unknown peer", |s| s[1].unknown == [names[0]]);
    let theirs = sides[1].add(names[0], &adverts[0], true);
    until(&mut sides, "message", |s| s[0].is_done(mine) && s[1].is_done(theirs));
}

#[test]
fn unlike_numbers_of_queues_are_refused_with_both_layouts_named() {
    let ctx = context();
    let config = Config::default();
    let mut sides = [Side::open(&ctx, 0, false, &config), Side::with_queues(&ctx, 1, false, 2, &config)];
    sides.iter().for_each(|s| s.service.start().unwrap());
    let adverts = [0, 1].map(|i: usize| sides[i].service.adverts().to_vec());
    let names = [0, 1].map(|i: usize| sides[i].name);
    let key = sides[0].add(names[1], &adverts[1], true);
    sides[1].add(names[0], &adverts[0], true);
    sides[0].service.connect(key);
    until(&mut sides, "refusal", |s| !s[0].failures.is_empty());
    assert!(sides[0].failures[0].contains("queues are PP, ours are PPP"), "{}", sides[0].failures[0]);
}

/// The software device refuses an address without a global routing header on an Ethernet port, for a datagram and for a queue pair.
#[test]
fn all_of_this_works_over_roce_ports() {
    let again = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--skip", "all_of_this_works_over_roce_ports"])
        .env("SOFTIB_LINK_LAYER", "ethernet")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && said.contains(" passed; 0 failed"), "{said}");
    assert!(said.contains("the_ports_are_of_the_kind_that_was_asked_for ... ok"), "{said}");
}

#[test]
fn the_ports_are_of_the_kind_that_was_asked_for() {
    let port = port(&context());
    let roce = std::env::var_os("SOFTIB_LINK_LAYER").is_some();
    let expected = if roce { verbs::LinkLayer::Ethernet } else { verbs::LinkLayer::InfiniBand };
    assert_eq!((port.link_layer, port.lid.0 == 0), (expected, roce));
}

#[test]
fn an_endpoint_with_a_damaged_address_fails_alone() {
    let (mut sides, keys) = pair(false);
    let mut adverts = sides[1].service.adverts().to_vec();
    adverts[0].blob.truncate(20);
    sides[0].add(ProcessName(99), &adverts, true);
    until(&mut sides, "failure", |s| !s[0].failures.is_empty());
    assert!(
        sides[0].failures[0].contains("20 bytes where an ibcm address has 32"),
        "{}",
        sides[0].failures[0]
    );
    sides[0].service.connect(keys[0]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
}

#[test]
fn many_services_connect_all_to_all() {
    const N: usize = 8;
    let ctx = context();
    let mut sides: Vec<Side> =
        (0..N as u64).map(|rank| Side::open(&ctx, rank, false, &Config::default())).collect();
    sides.iter().for_each(|s| s.service.start().unwrap());
    let published: Vec<_> = sides.iter().map(|s| (s.name, s.service.adverts().to_vec())).collect();
    for side in &mut sides {
        let me = side.name;
        for (name, adverts) in published.iter().filter(|(name, _)| *name != me) {
            let key = side.add(*name, adverts, true);
            side.service.connect(key);
        }
    }
    until(&mut sides, "all to all", |s| s.iter().all(|side| side.ends.keys().all(|&key| side.is_done(key))));
    assert!(sides.iter().all(|s| s.ends.len() == N - 1 && s.failures.is_empty()));
}

#[test]
fn a_service_that_never_started_closes_and_refuses_to_start_again() {
    let service = Side::open(&context(), 0, false, &Config::default()).service;
    service.close(Duration::from_secs(1));
    assert!(matches!(service.start(), Err(cpc::Error::Closed)));
}

#[test]
fn a_peer_that_is_gone_does_not_hold_up_the_close() {
    let ([a, b], keys) = pair(false);
    let mut sides = [a, b];
    sides[0].service.connect(keys[0]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
    let [a, b] = sides;
    drop(b.ends);
    b.service.close(Duration::ZERO);
    let start = Instant::now();
    a.service.close(Duration::from_millis(300));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn an_excluded_or_unknown_component_is_an_error_with_its_reason() {
    let ctx = context();
    let open = |config: &Config| {
        let pd = Pd::alloc(&ctx).unwrap();
        let cq = Cq::create(&ctx, 16, None).unwrap();
        let plan = QpPlan {
            pd,
            queues: vec![queue(&cq, None)],
            receive_queues: cpc::ReceiveQueues::default(),
            port: port(&ctx),
            access: Access::LOCAL_WRITE,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            sl: 0,
            xrc: None,
        };
        Service::open(Arc::new(plan), ProcessName(1), config).unwrap_err().to_string()
    };
    let text =
        open(&Config { exclude: ["ibcm", "rdmacm", "xrc"].map(str::to_owned).to_vec(), ..Config::default() });
    assert!(text.contains("softib0 port 1: all are excluded"), "{text}");
    let text = open(&Config { include: vec!["udcm".to_owned()], ..Config::default() });
    assert!(text.contains("\"udcm\"; known are: ibcm, rdmacm, xrc"), "{text}");
}

fn counter(side: &Side, name: &str) -> u64 {
    side.service.counters().iter().find(|(n, _)| *n == name).map_or(0, |&(_, value)| value)
}

#[test]
fn a_connection_comes_up_while_the_main_thread_does_something_else() {
    let (sides, keys) = pair(false);
    sides[0].service.connect(keys[0]);
    let limit = Instant::now() + PATIENCE;
    while sides.iter().any(|s| counter(s, "ibcm_connected") == 0) {
        assert!(Instant::now() < limit, "{:?}", sides[0].service.counters());
        std::thread::yield_now();
    }
    for side in &sides {
        assert!(side.service.pending());
        // A request that arrives while its endpoint is being added may be told of as an unknown peer's.
        let known = |event: &Event| !matches!(event, Event::UnknownPeer { .. });
        let mut events = std::iter::from_fn(|| side.service.next_event()).filter(known);
        assert!(matches!(events.next(), Some(Event::QpsCreated { cts: Some(_), .. })));
        assert!(matches!(events.next(), Some(Event::Agreed { .. })));
        assert!(matches!(events.next(), Some(Event::Timeline { .. })));
        assert!(matches!(events.next(), Some(Event::Connected { .. })));
        assert!(events.next().is_none() && !side.service.pending());
    }
}

#[test]
fn the_helper_thread_takes_no_signals() {
    let (sides, keys) = pair(false);
    // Its name is set by the thread itself: once it has worked, it is there.
    sides[0].service.connect(keys[0]);
    let limit = Instant::now() + PATIENCE;
    while !sides[0].service.pending() {
        assert!(Instant::now() < limit);
        std::thread::yield_now();
    }
    let masks: Vec<u64> = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok())
        .filter(|status| status.starts_with("Name:\toxib-connect\n"))
        .filter_map(|status| {
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        })
        .collect();
    assert!(!masks.is_empty());
    // All but SIGKILL (9), SIGSTOP (19) and the two that the C library keeps for itself (32, 33).
    let blockable = !(1 << 8 | 1 << 18 | 1 << 31 | 1 << 32);
    assert!(masks.iter().all(|mask| mask & blockable == blockable), "{masks:x?}");
}

#[test]
fn nothing_is_left_of_closed_services() {
    let ctx = context();
    let (mut sides, keys) = pair_on(&ctx, false);
    sides[0].service.connect(keys[0]);
    until(&mut sides, "message", |s| {
        (0..2).all(|i| s[i].is_done(keys[i]) && s[i].ends[&keys[i]].sent.is_empty())
    });
    sides.iter().for_each(|s| s.service.close(Duration::from_secs(2)));
    drop(sides);
    assert_eq!(Arc::strong_count(&ctx), 1, "something still holds the device");
}

/// Sends `bytes` from a UD queue pair of no connection manager to the one at `to`, and waits for
/// the completion.
fn send_raw(ctx: &Arc<Context>, to: &Address, key: QKey, bytes: &[u8]) {
    let pd = Pd::alloc(ctx).unwrap();
    let cq = Cq::create(ctx, 4, None).unwrap();
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let (send_cq, recv_cq) = (cq.clone(), cq.clone());
    let qp = Qp::create(&pd, &QpInit { kind: QpKind::Ud, send_cq, recv_cq, srq: None, cap, sig_all: false })
        .unwrap();
    qp.to_init(&InitAttr { port: 1, pkey_index: 0, access: Access::empty(), qkey: key }).unwrap();
    qp.to_rtr_ud().unwrap();
    qp.to_rts_ud(Psn(0)).unwrap();
    let access = Access::LOCAL_WRITE;
    let mut pool = Pool::new(&pd, PoolConfig { buf_len: 512, align: 64, grow_by: 1, max: 1, access });
    let mut buf = pool.take().unwrap();
    buf.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    let gid = to.ethernet.then_some((to.gid, 0, 64));
    let ah = Ah::create(&pd, &AhAttr { port: 1, dlid: to.lid, sl: 0, gid }).unwrap();
    let len = u32::try_from(bytes.len()).unwrap();
    let posted = qp
        .post_send_ud(1, buf, len, &ah, to.qpn, key, SendFlags::SIGNALED)
        .unwrap_or_else(|(_, e)| panic!("{e}"));
    let mut wc = Completions::<1>::new();
    while cq.poll(&mut wc).unwrap() == 0 {
        std::thread::yield_now();
    }
    assert!(posted.completed(wc.take().unwrap()).is_ok());
}

#[test]
fn foreign_datagrams_are_counted_and_hurt_nobody() {
    let ctx = context();
    let (mut sides, keys) = pair_on(&ctx, false);
    let to = Address::parse(&sides[0].service.adverts()[0].blob).unwrap();
    let mut mad = [0_u8; 256];
    send_raw(&ctx, &to, cpc::ibcm::Q_KEY, &mad);
    send_raw(&ctx, &to, cpc::ibcm::Q_KEY, &mad[..17]);
    send_raw(&ctx, &to, cpc::ibcm::Q_KEY, &[]);
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[20..24].copy_from_slice(b"oxc\x63");
    send_raw(&ctx, &to, cpc::ibcm::Q_KEY, &mad);
    until(&mut sides, "count", |s| {
        counter(&s[0], "ibcm_foreign") == 3 && counter(&s[0], "ibcm_malformed") == 1
    });
    sides[1].service.connect(keys[1]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
}

/// Commands given before the start rang no waker; they must not wait for one.
#[test]
fn what_is_asked_before_the_start_is_done_at_the_start() {
    let ctx = context();
    let mut sides = [0, 1].map(|rank| Side::open(&ctx, rank, false, &Config::default()));
    let adverts = [0, 1].map(|i: usize| sides[i].service.adverts().to_vec());
    let names = [0, 1].map(|i: usize| sides[i].name);
    let keys = [0, 1].map(|i: usize| sides[i].add(names[1 - i], &adverts[1 - i], true));
    sides[0].service.connect(keys[0]);
    sides.iter().for_each(|s| s.service.start().unwrap());
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
}
