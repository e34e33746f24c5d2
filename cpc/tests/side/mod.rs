//! A transport as small as can be, for tests with real services: endpoints, completions, one message a connection.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cpc::{
    Choice, Config, CtsRecv, EndpointKey, EndpointPlan, Event, First, PortPlan, ProcessName, QpPlan,
    QueuePlan, ReceiveQueues, Service, StreamNum, Timeline,
};
use verbs::{
    Access, Completion, Completions, Context, Cq, Driver, Pd, Pool, PoolConfig, Posted, Qp, QpCap, Qpn,
    SendFlags, Srq,
};

pub const QUEUES: usize = 3;
pub const CTS: u64 = 0xc75;
/// No step here takes longer, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// One letter for each queue.
fn receive_queues(count: usize, shared: bool) -> ReceiveQueues {
    let text = if shared { "S" } else { "P" }.repeat(count);
    ReceiveQueues { fingerprint: text.bytes().fold(0, |sum, byte| sum * 3 + u32::from(byte)), text }
}

/// A transport as small as can be: one port, a few queues, one buffer pool, endpoints by key.
pub struct Side {
    pub name: ProcessName,
    pub service: Service,
    pub cq: Arc<Cq>,
    pub pool: Pool,
    pub ends: HashMap<EndpointKey, End>,
    pub by_qpn: HashMap<Qpn, EndpointKey>,
    pub failures: Vec<String>,
    pub unknown: Vec<ProcessName>,
    pub unlisted: Vec<EndpointKey>,
    /// What the device has said.
    pub device: Vec<verbs::AsyncEvent>,
    _srq: Option<Arc<Srq>>,
    _srq_posted: Vec<Posted>,
}

#[derive(Default)]
pub struct End {
    pub qps: Vec<Arc<Qp>>,
    pub cts: Option<Posted>,
    pub sent: Vec<Posted>,
    pub connected: bool,
    pub disconnected: bool,
    /// iWARP: who sends first.
    pub first: Option<First>,
    pub received: Option<Vec<u8>>,
    pub steps: Timeline,
}

pub fn context() -> Arc<Context> {
    let driver = Driver::from_table(softib::driver_table());
    driver.devices().unwrap()[0].open().unwrap()
}

pub fn port(ctx: &Arc<Context>) -> PortPlan {
    let attr = ctx.query_port(1).unwrap();
    PortPlan {
        ctx: ctx.clone(),
        num: 1,
        gid_index: 0,
        gid: ctx.query_gid(1, 0).unwrap(),
        further_gids: Vec::new(),
        lid: attr.lid,
        mtu: attr.active_mtu,
        pkey_index: 0,
        link_layer: attr.link_layer,
    }
}

pub fn queue(cq: &Arc<Cq>, srq: Option<&Arc<Srq>>) -> QueuePlan {
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
    /// `shared`: all queues draw from one shared receive queue, which is filled before a peer can
    /// connect.
    pub fn open(ctx: &Arc<Context>, rank: u64, shared: bool, config: &Config) -> Side {
        Side::with_queues(ctx, rank, shared, QUEUES, config)
    }

    pub fn with_queues(ctx: &Arc<Context>, rank: u64, shared: bool, queues: usize, config: &Config) -> Side {
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
            receive_queues: receive_queues(queues, shared),
            port: port(ctx),
            access,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            sl: 0,
            xrc: None,
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
            unlisted: Vec::new(),
            device: Vec::new(),
            _srq: srq,
            _srq_posted: posted,
        }
    }

    pub fn choice(&self, theirs: &[cpc::Advert]) -> Choice {
        self.service.choose(theirs).unwrap()
    }

    /// Adds the peer with this name and these adverts.
    pub fn add(&mut self, peer: ProcessName, theirs: &[cpc::Advert], cts: bool) -> EndpointKey {
        let key = EndpointKey { index: peer.0 as u32, generation: self.ends.len() as u32 };
        let cts = cts.then(|| CtsRecv { queue: 1, buf: self.pool.take().unwrap(), wr_id: CTS });
        self.ends.insert(key, End::default());
        let choice = self.choice(theirs);
        self.service.add_endpoint(
            choice,
            EndpointPlan {
                key,
                peer,
                peer_blob: Vec::new(),
                cts,
                gids: None,
                label: 0,
                stream: StreamNum::NONE,
            },
        );
        key
    }

    pub fn progress(&mut self) {
        while self.service.pending() {
            match self.service.next_event() {
                Some(event) => self.hear(event),
                None => break,
            }
        }
        let mut wcs = Completions::<8>::new();
        self.cq.poll(&mut wcs).unwrap();
        while let Some(wc) = wcs.take() {
            // A message may come on a QPN whose event is still in the queue.
            while let Some(event) = self.service.next_event() {
                self.hear(event);
            }
            self.complete(wc);
        }
    }

    pub fn hear(&mut self, event: Event) {
        match event {
            Event::QpsCreated { key, qps, cts } => {
                self.by_qpn.extend(qps.iter().map(|qp| (qp.num(), key)));
                if let Some(end) = self.ends.get_mut(&key) {
                    (end.qps, end.cts) = (qps, cts);
                }
            }
            Event::Agreed { key, stream } => {
                let in_time = self.ends.get(&key).is_none_or(|end| !end.connected);
                assert!(in_time && stream != StreamNum::NONE, "{key:?} goes on with {stream:?}");
            }
            Event::Order { key, first } => {
                if let Some(end) = self.ends.get_mut(&key) {
                    end.first = Some(first);
                }
            }
            Event::Connected { key } => self.connected(key),
            Event::Routed { .. } | Event::Asked { .. } | Event::Retracted { .. } => {
                panic!("no X queues here")
            }
            Event::Failed { error, .. } => self.failures.push(error.to_string()),
            Event::Disconnected { key } => {
                if let Some(end) = self.ends.get_mut(&key) {
                    end.disconnected = true;
                }
            }
            Event::Unlisted { key } => self.unlisted.push(key),
            Event::UnknownPeer { peer, .. } => self.unknown.push(peer),
            Event::Device { event } => self.device.push(event),
            Event::Receiver { .. } => panic!("no X queues here"),
            Event::Timeline { key, steps } => {
                if let Some(end) = self.ends.get_mut(&key) {
                    end.steps = *steps;
                }
            }
        }
    }

    pub fn connected(&mut self, key: EndpointKey) {
        let Some(end) = self.ends.get_mut(&key) else { return };
        assert!(!end.connected, "connected is said once");
        end.connected = true;
        if end.first != Some(First::Peer) || end.received.is_some() {
            self.greet(key);
        }
    }

    fn greet(&mut self, key: EndpointKey) {
        let Some(end) = self.ends.get_mut(&key) else { return };
        let mut buf = self.pool.take().unwrap();
        buf.as_mut_slice()[..8].copy_from_slice(&self.name.0.to_be_bytes());
        let posted = end.qps[1].post_send(1, buf, 8, SendFlags::SIGNALED);
        end.sent.push(posted.unwrap_or_else(|(_, error)| panic!("{error}")));
    }

    pub fn complete(&mut self, wc: Completion) {
        if !wc.is_ok() {
            return;
        }
        let key = self.by_qpn[&wc.qp_num()];
        let Some(end) = self.ends.get_mut(&key) else { return };
        if wc.wr_id() != CTS {
            return drop(end.sent.pop().map(|sent| sent.completed(wc)));
        }
        if !end.connected {
            self.service.first_data(key);
        }
        let len = wc.byte_len() as usize;
        let bytes = match end.cts.take() {
            Some(posted) => posted.completed(wc).unwrap().as_slice()[..len].to_vec(),
            None => vec![0; len],
        };
        end.received = Some(bytes);
        if end.connected && end.first == Some(First::Peer) {
            self.greet(key);
        }
    }

    pub fn is_done(&self, key: EndpointKey) -> bool {
        let end = &self.ends[&key];
        end.connected && end.received.is_some()
    }
}

/// Lets all sides progress until `done`; fails, naming `what`, when that takes too long.
pub fn until(sides: &mut [Side], what: &str, done: impl Fn(&[Side]) -> bool) {
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
