//! A process that exchanges requests with a partner and expects nothing of them but that each one ends, once.
//!
//! PREPARE answers with a card; the partner's card connects, plays for a moment, takes everything down again (memory keys, too), and says how
//! many requests there were. Around the registered memory lie margins that must stay as they are.

use super::common::*;
use rdma_sys::*;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

pub const PREPARE: u64 = 1;

const WATCHDOG: u32 = 60;
const MOMENT: Duration = Duration::from_millis(8);
const QKEY: u32 = 77;
const ATOMIC: u32 = ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC;
const MARGIN: usize = 64 << 10;
const LEN: usize = 256 << 10;
const UNTOUCHED: u8 = 0xa5;
const RECEIVES: usize = 16;
const LONGEST: usize = 12_000;
const OPCODES: [u32; 5] = [
    IBV_WR_SEND,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_RDMA_READ,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
];

/// Says that it is there, and then what it is asked to.
pub fn run() {
    let dev = Dev::open();
    say(&[0]);
    while let Some(words) = listen() {
        assert_eq!(words[0], PREPARE);
        unsafe { libc::alarm(WATCHDOG) };
        let mut session = Session::new(&dev, words[1]);
        say(&session.card());
        let Some(card) = listen() else { return };
        session.play(&card);
        say(&[session.end()]);
        unsafe { libc::alarm(0) };
    }
}

struct Session<'a> {
    dev: &'a Dev,
    cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    ah: *mut ibv_ah,
    data: Memory,
    mr: *mut ibv_mr,
    /// RC, RC with a shared receive queue, UC, UD.
    qps: [Qp; 4],
    /// Requests posted and not completed, for each QP.
    waiting: [usize; 4],
    asked: u64,
    random: Random,
}

impl<'a> Session<'a> {
    fn new(dev: &'a Dev, seed: u64) -> Session<'a> {
        let mut data = Memory::new(LEN + 2 * MARGIN);
        data.fill(UNTOUCHED);
        let start = data[MARGIN..].as_mut_ptr();
        let mr = unsafe { (table().reg_mr)(dev.pd, start.cast(), LEN, ATOMIC as i32) };
        assert!(!mr.is_null());
        let (cq, srq) = (dev.cq(1024), dev.srq(RECEIVES as u32));
        let kinds = [IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD];
        let queues = [null_mut(), srq, null_mut(), null_mut()];
        let qps = std::array::from_fn(|i| dev.qp_with(kinds[i], cq, queues[i], |_| ()));
        let ah = dev.ah();
        let random = Random(seed);
        let session = Session { dev, cq, srq, ah, data, mr, qps, waiting: [0; 4], asked: 0, random };
        session.qps[..3].iter().for_each(|qp| qp.init(ATOMIC));
        session.qps[3].ready_ud(QKEY);
        (0..RECEIVES).for_each(|_| (0..4).for_each(|link| session.receive(link)));
        session
    }

    fn card(&self) -> Vec<u64> {
        let mut card: Vec<u64> = self.qps.iter().map(|qp| qp.num().into()).collect();
        card.extend([self.address(0), u64::from(unsafe { (*self.mr).rkey })]);
        card
    }

    fn address(&self, offset: usize) -> u64 {
        self.data[MARGIN + offset..].as_ptr() as u64
    }

    fn sge(&self, offset: usize, len: usize) -> ibv_sge {
        ibv_sge { addr: self.address(offset), length: len as u32, lkey: unsafe { (*self.mr).lkey } }
    }

    /// A receive may be refused: its queue is full, or its QP has ended.
    fn receive(&self, link: usize) {
        let sge = self.sge(link * LONGEST, LONGEST);
        match link {
            1 => srq_recv(self.srq, u64::MAX, sge),
            _ => self.qps[link].recv(u64::MAX, &[sge]),
        };
    }

    fn play(&mut self, card: &[u64]) {
        // Finite patience everywhere: 4 ms twice, and 7 times no receive.
        let path = Path {
            timeout: 10,
            retry_cnt: 1,
            rnr_retry: 6,
            access: ATOMIC,
            rd_atomic: (4, 4),
            ..Path::default()
        };
        for (qp, number) in self.qps.iter().zip(card).take(3) {
            qp.rtr(*number as u32, &path);
            // Refused if the partner was faster and has asked for a region that is damaged: that ends the queue pair.
            assert!([0, libc::EINVAL].contains(&qp.try_rts(&path)));
        }
        let end = Instant::now() + MOMENT;
        while Instant::now() < end {
            let link = self.random.below(4) as usize;
            if self.waiting[link] < 32 {
                self.request(link, card);
            }
            self.drain();
        }
    }

    fn request(&mut self, link: usize, card: &[u64]) {
        let opcode = if link < 2 { OPCODES[self.random.below(5) as usize] } else { IBV_WR_SEND };
        let opcode = if link == 2 { OPCODES[self.random.below(3) as usize] } else { opcode };
        let len = [0, 8, 90, 1000, LONGEST][self.random.below(5) as usize];
        let len = if opcode == IBV_WR_ATOMIC_FETCH_AND_ADD { 8 } else { len };
        let len = if link == 3 { len.min(4000) } else { len };
        let (addr, rkey) = (card[4] + self.random.below(8) * 8192, card[5] as u32);
        let (sges, ah, qpn) = ([self.sge(128 << 10, len)], self.ah, card[3] as u32);
        let posted = self.qps[link].post(1, opcode, &sges, |wr| match opcode {
            IBV_WR_SEND if link == 3 => {
                wr.wr.ud = ibv_send_wr_ud { ah, remote_qpn: qpn, remote_qkey: QKEY };
            }
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                wr.wr.atomic = ibv_send_wr_atomic { remote_addr: addr, compare_add: 1, swap: 0, rkey };
            }
            _ => wr.wr.rdma = ibv_send_wr_rdma { remote_addr: addr, rkey },
        });
        if posted == 0 {
            self.waiting[link] += 1;
            self.asked += 1;
        }
    }

    fn drain(&mut self) {
        while let Some(wc) = poll(self.cq) {
            let link = self.qps.iter().position(|qp| qp.num() == wc.qp_num).unwrap();
            match wc.wr_id {
                1 => self.waiting[link] -= 1,
                _ if wc.status == IBV_WC_SUCCESS => self.receive(link),
                _ => {}
            }
        }
    }

    /// Every request has ended; everything can be taken down; nothing was written where it may not be.
    fn end(mut self) -> u64 {
        self.qps.iter().for_each(|qp| assert_eq!(qp.to_state(IBV_QPS_ERR), 0));
        let end = Instant::now() + PATIENCE;
        while self.waiting != [0; 4] {
            self.drain_flushed();
            assert!(Instant::now() < end, "requests without an end: {:?}", self.waiting);
        }
        while event(self.dev).is_some() {}
        self.qps.iter().for_each(|qp| qp.destroy());
        unsafe {
            assert_eq!((table().destroy_srq)(self.srq), 0);
            assert_eq!((table().destroy_cq)(self.cq), 0);
            assert_eq!((table().destroy_ah)(self.ah), 0);
            assert_eq!((table().dereg_mr)(self.mr), 0);
        }
        let untouched = |part: &[u8]| part.iter().all(|byte| *byte == UNTOUCHED);
        assert!(untouched(&self.data[..MARGIN]) && untouched(&self.data[MARGIN + LEN..]));
        self.asked
    }

    fn drain_flushed(&mut self) {
        while let Some(wc) = poll(self.cq) {
            let link = self.qps.iter().position(|qp| qp.num() == wc.qp_num).unwrap();
            self.waiting[link] -= usize::from(wc.wr_id == 1);
        }
    }
}
