//! XRC through the safe layer, over the software device: what a connection manager does with it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::os::fd::AsFd;
use std::sync::Arc;
use verbs::*;

/// Everything that one side of a connection has.
struct Side {
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    pool: Pool,
    lid: Lid,
}

impl Side {
    fn open() -> Side {
        let driver = Driver::from_table(softib::driver_table());
        let context = driver.devices().unwrap()[0].open().unwrap();
        let (lid, pd) = (context.query_port(1).unwrap().lid, Pd::alloc(&context).unwrap());
        let cq = Cq::create(&context, 64, None).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let config = PoolConfig { buf_len: 256, align: 64, grow_by: 8, max: 0, access };
        let pool = Pool::new(&pd, config);
        Side { pd, cq, pool, lid }
    }

    fn init(&self) -> InitAttr {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        InitAttr { port: 1, pkey_index: 0, access, qkey: QKey(0) }
    }

    fn rtr(&self, dest_qpn: Qpn) -> RtrAttr {
        let path = AhAttr { port: 1, dlid: self.lid, sl: 0, gid: None };
        let (rq_psn, max_dest_rd_atomic, min_rnr_timer) = (Psn(0), 1, 1);
        RtrAttr { mtu: Mtu::B4096, dest_qpn, rq_psn, max_dest_rd_atomic, min_rnr_timer, path }
    }

    fn sender(&self) -> Arc<Qp> {
        let cap = QpCap { max_send_wr: 16, max_send_sge: 2, max_inline: 64, ..Default::default() };
        let (send_cq, recv_cq) = (self.cq.clone(), self.cq.clone());
        let init = QpInit { kind: QpKind::XrcSend, send_cq, recv_cq, srq: None, cap, sig_all: true };
        Qp::create(&self.pd, &init).unwrap()
    }

    /// A pair of queue pairs, connected.
    fn pair(&self, xrcd: &Arc<Xrcd>) -> (Arc<Qp>, Arc<XrcRecvQp>) {
        let (from, to) = (self.sender(), XrcRecvQp::create(xrcd).unwrap());
        to.to_init(&self.init()).unwrap();
        to.to_rtr(&self.rtr(from.num())).unwrap();
        from.to_init(&self.init()).unwrap();
        from.to_rtr(&self.rtr(to.num())).unwrap();
        let rts = RtsAttr { sq_psn: Psn(0), timeout: 8, retry_cnt: 1, rnr_retry: 7, max_rd_atomic: 1 };
        from.to_rts(&rts).unwrap();
        (from, to)
    }

    fn wait(&self, cq: &Cq) -> Completion {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let mut wcs = Completions::<1>::new();
        while cq.poll(&mut wcs).unwrap() == 0 {
            assert!(std::time::Instant::now() < end, "no completion came");
            std::thread::yield_now();
        }
        wcs.take().unwrap()
    }
}

#[test]
fn sends_reach_the_srq_that_they_name() {
    let mut side = Side::open();
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let xrcd = Xrcd::open(side.pd.context(), file.as_fd(), XrcdOpen::OrCreate).unwrap();
    let taken = Xrcd::open(side.pd.context(), file.as_fd(), XrcdOpen::CreateNew).unwrap_err();
    assert_eq!((taken.call(), taken.errno()), ("ibv_open_xrcd", libc::EINVAL));
    let recv_cq = Cq::create(side.pd.context(), 64, None).unwrap();
    let srqs: Vec<_> = (0..2).map(|_| Srq::create_xrc(&side.pd, &xrcd, &recv_cq, 8, 1).unwrap()).collect();
    let (from, to) = side.pair(&xrcd);
    for (i, srq) in srqs.iter().enumerate() {
        let posted =
            srq.post_recv(i as u64, side.pool.take().unwrap()).unwrap_or_else(|(_, error)| panic!("{error}"));
        let number = srq.number().unwrap();
        from.towards(number).post_send_inline(7, b"hello, srq", SendFlags::empty()).unwrap();
        assert!(side.wait(&side.cq).is_ok());
        let got = side.wait(&recv_cq);
        assert_eq!((got.wr_id(), got.byte_len(), got.qp_num()), (i as u64, 10, to.num()));
        assert_eq!(&posted.completed(got).unwrap().as_slice()[..10], b"hello, srq");
    }
    let (target, mut source) = (side.pool.take().unwrap(), side.pool.take().unwrap());
    source.as_mut_slice()[..4].copy_from_slice(b"data");
    let local = Sge { addr: source.addr(), len: 4, lkey: source.lkey() };
    let remote = Remote { addr: target.addr(), rkey: RKey(target.lkey().0) };
    let towards = from.towards(srqs[0].number().unwrap());
    towards.post_rdma(RdmaOp::Write, 8, local, remote, SendFlags::empty()).unwrap();
    assert!(side.wait(&side.cq).is_ok());
    assert_eq!(&target.as_slice()[..4], b"data");
    let posted =
        towards.post_send(9, source, 4, SendFlags::empty()).unwrap_or_else(|(_, error)| panic!("{error}"));
    let receive = srqs[0].post_recv(10, target).unwrap_or_else(|(_, error)| panic!("{error}"));
    let (sent, received) = (side.wait(&side.cq), side.wait(&recv_cq));
    assert!(sent.is_ok() && received.is_ok());
    assert!(posted.completed(sent).is_ok() && receive.completed(received).is_ok());
}

#[test]
fn the_last_handle_takes_the_queue_pair_along() {
    let side = Side::open();
    let xrcd = Xrcd::private(side.pd.context()).unwrap();
    let recv_cq = Cq::create(side.pd.context(), 64, None).unwrap();
    let srq = Srq::create_xrc(&side.pd, &xrcd, &recv_cq, 8, 1).unwrap();
    let (from, to) = side.pair(&xrcd);
    let (number, other) = (to.num(), XrcRecvQp::open(&xrcd, to.num()).unwrap());
    drop(to);
    assert_eq!((other.num(), other.state().unwrap()), (number, QpState::Rtr));
    drop(other);
    from.towards(srq.number().unwrap()).post_send_inline(1, b"no SRQ", SendFlags::empty()).unwrap();
    assert_eq!(side.wait(&side.cq).status(), WcStatus::RetryExc);
    let gone = XrcRecvQp::open(&xrcd, number).unwrap_err();
    assert_eq!((gone.call(), gone.errno()), ("ibv_open_qp", libc::EINVAL));
}

#[test]
fn an_srq_of_no_domain_has_no_number() {
    let side = Side::open();
    let srq = Srq::create(&side.pd, 8, 1).unwrap();
    assert_eq!(srq.number().unwrap_err().errno(), libc::EOPNOTSUPP);
}
