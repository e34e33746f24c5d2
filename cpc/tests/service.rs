//! The real thing: services with their helper threads, UD and RC queue pairs of the software device, real messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cpc::{
    Choice, Config, CtsRecv, EndpointKey, EndpointPlan, Event, PortPlan, ProcessName, QpPlan, QueuePlan,
    Service,
};
use verbs::{Access, Context, Cq, Driver, Pd, Pool, PoolConfig, Posted, Qp, QpCap, Qpn, SendFlags, Srq, Wc};

const QUEUES: usize = 3;
const CTS: u64 = 0xc75;
/// No step here takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A transport as small as can be: one port, a few queues, one buffer pool, endpoints by key.
struct Side {
    name: ProcessName,
    service: Service,
    cq: Arc<Cq>,
    pool: Pool,
    ends: HashMap<EndpointKey, End>,
    by_qpn: HashMap<Qpn, EndpointKey>,
    failures: Vec<String>,
    unknown: Vec<ProcessName>,
    _srq: Option<Arc<Srq>>,
    _srq_posted: Vec<Posted>,
}

#[derive(Default)]
struct End {
    qps: Vec<Arc<Qp>>,
    cts: Option<Posted>,
    sent: Vec<Posted>,
    connected: bool,
    disconnected: bool,
    received: Option<Vec<u8>>,
}

fn context() -> Arc<Context> {
    let driver = Driver::from_table(softib::driver_table());
    driver.devices().unwrap()[0].open().unwrap()
}

fn port(ctx: &Arc<Context>) -> PortPlan {
    let attr = ctx.query_port(1).unwrap();
    PortPlan {
        ctx: ctx.clone(),
        num: 1,
        gid_index: 0,
        gid: ctx.query_gid(1, 0).unwrap(),
        lid: attr.lid,
        mtu: attr.active_mtu,
        pkey_index: 0,
        link_layer: attr.link_layer,
    }
}

fn queue(cq: &Arc<Cq>, srq: Option<&Arc<Srq>>) -> QueuePlan {
    let cap = QpCap {
        max_send_wr: 16,
        max_recv_wr: if srq.is_some() { 0 } else { 16 },
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 64,
    };
    QueuePlan { send_cq: cq.clone(), recv_cq: cq.clone(), srq: srq.cloned(), cap, rnr_retry: 7 }
}

impl Side {
    /// `shared`: all queues draw from one shared receive queue, which is filled before anybody can connect.
    fn open(ctx: &Arc<Context>, rank: u64, shared: bool, config: &Config) -> Side {
        Side::with_queues(ctx, rank, shared, QUEUES, config)
    }

    fn with_queues(ctx: &Arc<Context>, rank: u64, shared: bool, queues: usize, config: &Config) -> Side {
        let pd = Pd::alloc(ctx).unwrap();
        let cq = Cq::create(ctx, 1024, None).unwrap();
        let access = Access::LOCAL_WRITE;
        let mut pool = Pool::new(&pd, PoolConfig { buf_len: 64, align: 64, grow_by: 64, max: 0, access });
        let srq = shared.then(|| Srq::create(&pd, 64, 1).unwrap());
        let posted = srq
            .iter()
            .flat_map(|srq| {
                (0..32)
                    .map(|i| {
                        srq.post_recv(CTS, pool.take().unwrap()).unwrap_or_else(|(_, e)| panic!("{i}: {e}"))
                    })
                    .collect::<Vec<_>>()
            })
            .collect();
        let plan = QpPlan {
            pd,
            queues: (0..queues).map(|_| queue(&cq, srq.as_ref())).collect(),
            port: port(ctx),
            access,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            sl: 0,
        };
        let name = ProcessName(7 << 32 | rank);
        let service = Service::open(Arc::new(plan), name, config).unwrap();
        Side {
            name,
            service,
            cq,
            pool,
            ends: HashMap::new(),
            by_qpn: HashMap::new(),
            failures: Vec::new(),
            unknown: Vec::new(),
            _srq: srq,
            _srq_posted: posted,
        }
    }

    fn choice(&self, theirs: &[cpc::Advert]) -> Choice {
        self.service.choose(theirs).unwrap()
    }

    /// Adds the peer with this name and these adverts.
    fn add(&mut self, peer: ProcessName, theirs: &[cpc::Advert], cts: bool) -> EndpointKey {
        let key = EndpointKey { index: peer.0 as u32, generation: self.ends.len() as u32 };
        let cts = cts.then(|| CtsRecv { queue: 1, buf: self.pool.take().unwrap(), wr_id: CTS });
        self.ends.insert(key, End::default());
        let choice = self.choice(theirs);
        self.service.add_endpoint(choice, EndpointPlan { key, peer, peer_blob: Vec::new(), cts });
        key
    }

    fn progress(&mut self) {
        while self.service.pending() {
            match self.service.next_event() {
                Some(event) => self.hear(event),
                None => break,
            }
        }
        let mut wcs = [Wc::default(); 8];
        let count = self.cq.poll(&mut wcs).unwrap();
        for wc in &wcs[..count] {
            // A message may come on a QPN whose event is still in the queue.
            while let Some(event) = self.service.next_event() {
                self.hear(event);
            }
            self.complete(wc);
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::QpsCreated { key, qps, cts } => {
                self.by_qpn.extend(qps.iter().map(|qp| (qp.num(), key)));
                if let Some(end) = self.ends.get_mut(&key) {
                    (end.qps, end.cts) = (qps, cts);
                }
            }
            Event::Connected { key } => self.connected(key),
            Event::Failed { error, .. } => self.failures.push(error.to_string()),
            Event::Disconnected { key } => {
                if let Some(end) = self.ends.get_mut(&key) {
                    end.disconnected = true;
                }
            }
            Event::UnknownPeer { peer } => self.unknown.push(peer),
        }
    }

    fn connected(&mut self, key: EndpointKey) {
        let Some(end) = self.ends.get_mut(&key) else { return };
        assert!(!end.connected, "connected is said once");
        end.connected = true;
        let mut buf = self.pool.take().unwrap();
        buf.as_mut_slice()[..8].copy_from_slice(&self.name.0.to_be_bytes());
        let posted = end.qps[1].post_send(1, buf, 8, SendFlags::SIGNALED);
        end.sent.push(posted.unwrap_or_else(|(_, error)| panic!("{error}")));
    }

    fn complete(&mut self, wc: &Wc) {
        if !wc.is_ok() {
            return;
        }
        let key = self.by_qpn[&wc.qp_num()];
        let Some(end) = self.ends.get_mut(&key) else { return };
        if wc.wr_id() != CTS {
            return drop(end.sent.pop().map(Posted::completed));
        }
        if !end.connected {
            self.service.first_data(key);
        }
        let bytes = match end.cts.take() {
            Some(posted) => posted.completed().as_slice()[..wc.byte_len() as usize].to_vec(),
            None => vec![0; wc.byte_len() as usize],
        };
        end.received = Some(bytes);
    }

    fn is_done(&self, key: EndpointKey) -> bool {
        let end = &self.ends[&key];
        end.connected && end.received.is_some()
    }
}

/// Lets all sides progress until `done`; fails, naming `what`, when that takes too long.
fn until(sides: &mut [Side], what: &str, done: impl Fn(&[Side]) -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !done(sides) {
        assert!(
            Instant::now() < limit,
            "{what}: {:?} {:?}",
            sides.iter().map(|s| &s.failures).collect::<Vec<_>>(),
            sides.iter().map(|s| s.service.counters()).collect::<Vec<_>>()
        );
        sides.iter_mut().for_each(Side::progress);
        std::thread::yield_now();
    }
}

fn pair(shared: bool) -> ([Side; 2], [EndpointKey; 2]) {
    let ctx = context();
    let config = Config::default();
    let mut sides = [0, 1].map(|rank| Side::open(&ctx, rank, shared, &config));
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

#[test]
fn a_removed_endpoint_disconnects_its_peer_and_close_is_quick() {
    let (mut sides, keys) = pair(false);
    sides[0].service.connect(keys[0]);
    until(&mut sides, "message", |s| (0..2).all(|i| s[i].is_done(keys[i])));
    sides[0].service.remove_endpoint(keys[0]);
    until(&mut sides, "disconnect", |s| s[1].ends[&keys[1]].disconnected);
    let start = Instant::now();
    sides.iter().for_each(|s| s.service.close(Duration::from_secs(10)));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
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
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
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
            port: port(&ctx),
            access: Access::LOCAL_WRITE,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            sl: 0,
        };
        Service::open(Arc::new(plan), ProcessName(1), config).unwrap_err().to_string()
    };
    let text = open(&Config { exclude: vec!["ibcm".to_owned()], ..Config::default() });
    assert!(text.contains("softib0 port 1: all are excluded"), "{text}");
    let text = open(&Config { include: vec!["rdmacm".to_owned()], ..Config::default() });
    assert!(text.contains("\"rdmacm\"; known are: ibcm"), "{text}");
}
