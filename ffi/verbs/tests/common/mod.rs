//! Two queue pairs of the software device, for tests of what is posted to them.

#![allow(dead_code, missing_debug_implementations, reason = "each test uses a part of it")]

use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::*;

/// Bytes of a buffer.
pub const BUF_LEN: u32 = 1024;

/// Two queue pairs, connected to each other; `depth` requests in each queue.
pub struct Pair {
    pub pd: Arc<Pd>,
    pub send_cq: Arc<Cq>,
    pub recv_cq: Arc<Cq>,
    pub pool: Pool,
    pub from: Arc<Qp>,
    pub to: Arc<Qp>,
}

impl Pair {
    pub fn connected(depth: u32) -> Pair {
        Pair::with(depth, true)
    }

    pub fn with(depth: u32, sig_all: bool) -> Pair {
        let driver = Driver::from_table(softib::driver_table());
        let context = driver.devices().unwrap()[0].open().unwrap();
        let (lid, pd) = (context.query_port(1).unwrap().lid, Pd::alloc(&context).unwrap());
        let cq = || Cq::create(&context, 64, None).unwrap();
        let (send_cq, recv_cq) = (cq(), cq());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let pool = Pool::new(&pd, PoolConfig { buf_len: BUF_LEN, align: 64, grow_by: 32, max: 0, access });
        let make = || {
            let cap = QpCap {
                max_send_wr: depth,
                max_recv_wr: depth,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 16,
            };
            let (send_cq, recv_cq) = (send_cq.clone(), recv_cq.clone());
            let init = QpInit { kind: QpKind::Rc, send_cq, recv_cq, srq: None, cap, sig_all };
            Qp::create(&pd, &init).unwrap()
        };
        let (from, to) = (make(), make());
        connect(&from, to.num(), lid, access);
        connect(&to, from.num(), lid, access);
        Pair { pd, send_cq, recv_cq, pool, from, to }
    }

    pub fn buf(&mut self, text: &[u8]) -> Buf {
        let mut buf = self.pool.take().unwrap();
        buf.as_mut_slice()[..text.len()].copy_from_slice(text);
        buf
    }
}

fn connect(qp: &Qp, dest_qpn: Qpn, lid: Lid, access: Access) {
    qp.to_init(&InitAttr { port: 1, pkey_index: 0, access, qkey: QKey(0) }).unwrap();
    let path = AhAttr { port: 1, dlid: lid, sl: 0, gid: None };
    let (rq_psn, max_dest_rd_atomic, min_rnr_timer) = (Psn(0), 1, 1);
    qp.to_rtr(&RtrAttr { mtu: Mtu::B4096, dest_qpn, rq_psn, max_dest_rd_atomic, min_rnr_timer, path })
        .unwrap();
    qp.to_rts(&RtsAttr { sq_psn: Psn(0), timeout: 8, retry_cnt: 1, rnr_retry: 7, max_rd_atomic: 1 }).unwrap();
}

pub fn wait(cq: &Cq) -> Completion {
    let end = Instant::now() + Duration::from_secs(20);
    let mut batch = Completions::<1>::new();
    while cq.poll(&mut batch).unwrap() == 0 {
        assert!(Instant::now() < end, "no completion came");
        std::thread::yield_now();
    }
    batch.take().unwrap()
}

/// Receives with a buffer each, under these ids.
pub fn held(pair: &mut Pair, ids: std::ops::Range<u64>) -> Vec<Recv> {
    let held = ids.map(|wr_id| {
        let mut recv = Recv::new(wr_id);
        recv.hold(pair.buf(b"")).unwrap();
        recv
    });
    held.collect()
}
