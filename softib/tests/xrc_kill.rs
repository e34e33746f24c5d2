//! kill -9 at any moment in an XRC domain, on a fabric that is slow and finds no receives at times.
//!
//! ```text
//!   referee   starts three holders and two senders, connects them, kills one in mid-stream, and replaces it
//!   holder    has an SRQ in the domain, and a handle of every receive queue pair; takes in what comes and checks each byte
//!   sender    streams to the SRQs of all holders through one receive queue pair, which the first holder has made
//! ```
//!
//! A receive queue pair survives its creator and its sender, as long as anybody has a handle. The death of a holder fails what was sent
//! to its SRQ, and with it the senders' queue pairs; each request completes once. On new queue pairs, to the same receive queue pairs,
//! everything arrives at the living. The death of a sender is nothing to the others. In the end no file is left.
//!
//! Usually 24 rounds. For more, with a seed to repeat a run:
//!
//!     SOFTIB_KILL_ROUNDS=1000 SOFTIB_SEED=1 cargo test -p softib --test xrc_kill -- --nocapture

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/xrc.rs"]
mod xrc;
use common::*;
use rdma_sys::*;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};
use xrc::*;

const HOLDERS: usize = 3;
const SENDERS: usize = 2;
/// Messages of a stream; more than a sender gets through before a process is killed.
const STREAM: u64 = 3000;
/// Messages of a stream that has to end.
const SHORT: u64 = 300;
const DEPTH: u64 = 32;
const RECEIVES: usize = 128;
const SIZE: usize = 32;

// What a holder is told.
const MAKE: u64 = 1;
const OPEN: u64 = 2;
const AGAIN: u64 = 3;
const COUNT: u64 = 4;
// What a sender is told.
const BEGIN: u64 = 1;
const GO: u64 = 2;

#[test]
fn child_main() {
    match role().as_deref() {
        Some("holder") => Holder::run(),
        Some("sender") => send_streams(),
        other => assert_eq!(other, None, "no such role"),
    }
}

/// A payload says for which SRQ it is.
fn payload(number: u64, srqn: u32) -> Vec<u8> {
    let mut data = number.to_ne_bytes().to_vec();
    data.extend(pattern(number ^ u64::from(srqn) << 40, SIZE - 8));
    data
}

struct Holder {
    dev: Dev,
    xrcd: *mut ibv_xrcd,
    srq: Srq,
    buf: Buf,
    handles: HashMap<u32, Qp>,
    received: u64,
}

impl Holder {
    fn run() {
        let dev = Dev::open();
        let xrcd = domain_of_parent(&dev);
        let srq = Srq::new(&dev, xrcd, RECEIVES as u32);
        let buf = Buf::new(&dev, RECEIVES * SIZE, XRC_ACCESS);
        let mut holder = Holder { dev, xrcd, srq, buf, handles: HashMap::new(), received: 0 };
        (0..RECEIVES).for_each(|slot| holder.post(slot));
        say(&[srq.num.into()]);
        let (tell, told) = channel();
        std::thread::spawn(move || while listen().is_some_and(|words| tell.send(words).is_ok()) {});
        holder.serve(&told);
    }

    fn post(&self, slot: usize) {
        assert_eq!(srq_recv(self.srq.srq, slot as u64, self.buf.sge(slot * SIZE, SIZE)), 0);
    }

    /// Takes in messages until the referee has no more to say.
    fn serve(&mut self, told: &Receiver<Vec<u64>>) {
        loop {
            self.take_in();
            match told.try_recv() {
                Ok(words) => self.answer(&words),
                Err(TryRecvError::Empty) => std::thread::yield_now(),
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }

    fn take_in(&mut self) {
        while let Some(wc) = poll(self.srq.cq) {
            assert_eq!((wc.status, wc.byte_len as usize), (IBV_WC_SUCCESS, SIZE));
            assert!(self.handles.contains_key(&wc.qp_num), "came through qp {:#x}", wc.qp_num);
            let slot = wc.wr_id as usize;
            let data = &self.buf.data[slot * SIZE..][..SIZE];
            let number = u64::from_ne_bytes(data[..8].try_into().unwrap());
            assert_eq!(data, payload(number, self.srq.num), "message {number:#x}");
            self.received += 1;
            self.post(slot);
        }
    }

    fn answer(&mut self, words: &[u64]) {
        let number = |at: usize| words[at] as u32;
        match words[0] {
            MAKE => {
                let qp = receiver(&self.dev, self.xrcd);
                expect(qp, number(1), &patient());
                self.handles.insert(qp.num(), qp);
                say(&[qp.num().into()]);
            }
            OPEN => {
                let qp = open_qp(&self.dev, self.xrcd, number(1)).unwrap();
                self.handles.insert(number(1), qp);
                say(&[1]);
            }
            AGAIN => {
                let qp = self.handles[&number(1)];
                assert_eq!(qp.to_state(IBV_QPS_RESET), 0);
                expect(qp, number(2), &patient());
                say(&[1]);
            }
            COUNT => {
                let end = Instant::now() + PATIENCE;
                while self.received < words[1] && Instant::now() < end {
                    self.take_in();
                    std::thread::yield_now();
                }
                say(&[self.received]);
            }
            other => panic!("a holder is told {other}"),
        }
    }
}

/// Begins with a new queue pair, then streams; says how it ended, how much was posted, and how much succeeded to each SRQ.
fn send_streams() {
    let dev = Dev::open();
    let mut from = sender(&dev);
    let mut buf = Buf::new(&dev, DEPTH as usize * SIZE, XRC_ACCESS);
    let mut next = u64::from(std::process::id()) << 24;
    while let Some(words) = listen() {
        if words[0] == BEGIN {
            from = sender(&dev);
            say(&[from.num().into()]);
            continue;
        }
        assert_eq!(words[0], GO);
        if from.state() == IBV_QPS_RESET {
            from.connect(words[1] as u32, &patient());
        }
        let srqs: Vec<u32> = words[3..].iter().map(|&word| word as u32).collect();
        say(&stream(from, &mut buf, &mut next, words[2], &srqs));
    }
}

fn stream(from: Qp, buf: &mut Buf, next: &mut u64, count: u64, srqs: &[u32]) -> Vec<u64> {
    let (mut posted, mut done, mut status) = (0, 0, u64::from(IBV_WC_SUCCESS));
    let mut succeeded = vec![0; srqs.len()];
    // A request that is posted to a queue pair in the error state is flushed: it completes as well.
    while done < posted || (posted < count && status == u64::from(IBV_WC_SUCCESS)) {
        if posted < count && posted - done < DEPTH && status == u64::from(IBV_WC_SUCCESS) {
            let (slot, srqn) = ((posted % DEPTH) as usize, srqs[posted as usize % srqs.len()]);
            buf.data[slot * SIZE..][..SIZE].copy_from_slice(&payload(*next, srqn));
            let code = from.post(posted, IBV_WR_SEND, &[buf.sge(slot * SIZE, SIZE)], |wr| {
                wr.qp_type.xrc = ibv_send_wr_xrc { remote_srqn: srqn };
            });
            assert_eq!(code, 0);
            (posted, *next) = (posted + 1, *next + 1);
        }
        while let Some(wc) = poll(from.cq) {
            assert_eq!(wc.wr_id, done, "completions come in order, one each");
            if wc.status == IBV_WC_SUCCESS {
                assert_eq!(status, u64::from(IBV_WC_SUCCESS), "nothing succeeds after a failure");
                succeeded[done as usize % srqs.len()] += 1;
            } else if status == u64::from(IBV_WC_SUCCESS) {
                status = wc.status.into();
            } else {
                assert_eq!(wc.status, IBV_WC_WR_FLUSH_ERR);
            }
            done += 1;
        }
    }
    assert!(poll(from.cq).is_none(), "a completion too many");
    let mut report = vec![status, posted];
    report.extend(succeeded);
    report
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    /// A holder: the first has made the receive queue pairs, at least at the beginning.
    Holder(usize),
    Sender(usize),
}

struct Referee<'a> {
    folder: &'a Folder,
    name: &'a Name,
    plan: String,
    random: Random,
    holders: Vec<Child>,
    srqs: Vec<u32>,
    /// Messages that each holder has to have received.
    due: Vec<u64>,
    senders: Vec<Child>,
    /// The receive queue pair of each sender.
    numbers: Vec<u32>,
    /// Streams that a death has ended.
    broken: u32,
}

impl<'a> Referee<'a> {
    fn new(folder: &'a Folder, name: &'a Name) -> Referee<'a> {
        let random = Random::from_environment();
        let plan = format!("seed={},rnr=every:40:300us,delay=20us", random.0);
        let mut referee = Referee {
            folder,
            name,
            plan,
            random,
            holders: Vec::new(),
            srqs: Vec::new(),
            due: vec![0; HOLDERS],
            senders: Vec::new(),
            numbers: Vec::new(),
            broken: 0,
        };
        for _ in 0..HOLDERS {
            let (holder, srqn) = referee.holder();
            referee.holders.push(holder);
            referee.srqs.push(srqn);
        }
        for _ in 0..SENDERS {
            let mut sender = referee.start("sender");
            let qpn = asked(&mut sender, &[BEGIN]);
            let number = asked(&mut referee.holders[0], &[MAKE, qpn]);
            for holder in &mut referee.holders[1..] {
                asked(holder, &[OPEN, number]);
            }
            referee.senders.push(sender);
            referee.numbers.push(number as u32);
        }
        referee
    }

    fn start(&self, role: &str) -> Child {
        let faults = if role == "sender" { &self.plan[..] } else { "" };
        let env = [self.name.env(), ("SOFTIB_DIR", self.folder.path()), ("SOFTIB_FAULTS", faults)];
        Child::start_with(role, &env)
    }

    fn holder(&self) -> (Child, u32) {
        let mut holder = self.start("holder");
        let srqn = holder.hear()[0] as u32;
        (holder, srqn)
    }

    /// One round: all processes stream, one is killed, the others go on, the dead one is replaced.
    fn round(&mut self) -> Victim {
        let at = self.random.below((HOLDERS + SENDERS) as u64) as usize;
        let victim = if at < HOLDERS { Victim::Holder(at) } else { Victim::Sender(at - HOLDERS) };
        let all = self.srqs.clone();
        for sender in 0..SENDERS {
            self.go(sender, STREAM, &all);
        }
        std::thread::sleep(Duration::from_micros(self.random.below(6000)));
        match victim {
            Victim::Holder(dead) => self.without_holder(dead, &all),
            Victim::Sender(dead) => self.without_sender(dead, &all),
        }
        self.check_received();
        victim
    }

    fn go(&mut self, sender: usize, count: u64, srqs: &[u32]) {
        let mut words = vec![GO, self.numbers[sender].into(), count];
        words.extend(srqs.iter().map(|&srqn| u64::from(srqn)));
        self.senders[sender].tell(&words);
    }

    /// Hears how a stream ended, and notes what each living holder has got of it.
    fn heard(&mut self, sender: usize, srqs: &[u32]) -> u32 {
        let report = self.senders[sender].hear();
        for (srqn, succeeded) in srqs.iter().zip(&report[2..]) {
            if let Some(holder) = self.srqs.iter().position(|own| own == srqn) {
                self.due[holder] += succeeded;
            }
        }
        report[0] as u32
    }

    fn without_holder(&mut self, dead: usize, all: &[u32]) {
        self.holders[dead].kill();
        let (gone, living) =
            (all[dead], all.iter().copied().filter(|&srqn| srqn != all[dead]).collect::<Vec<_>>());
        let another = (dead + 1) % HOLDERS;
        for sender in 0..SENDERS {
            let status = self.heard(sender, all);
            let fits = [IBV_WC_SUCCESS, IBV_WC_REM_INV_REQ_ERR].contains(&status);
            assert!(fits, "sender {sender} ended with {status}, srq {gone:#x} is gone");
            if status != IBV_WC_SUCCESS {
                self.broken += 1;
                self.renew(sender, another);
            }
            // The receive queue pair is there, whichever process made it.
            self.go(sender, SHORT, &living);
            assert_eq!(self.heard(sender, &living), IBV_WC_SUCCESS);
        }
        let (mut holder, srqn) = self.holder();
        for number in &self.numbers {
            asked(&mut holder, &[OPEN, (*number).into()]);
        }
        self.holders[dead] = holder;
        (self.srqs[dead], self.due[dead]) = (srqn, 0);
    }

    /// A new send queue pair to the same receive queue pair.
    fn renew(&mut self, sender: usize, holder: usize) {
        let qpn = asked(&mut self.senders[sender], &[BEGIN]);
        asked(&mut self.holders[holder], &[AGAIN, self.numbers[sender].into(), qpn]);
    }

    fn without_sender(&mut self, dead: usize, all: &[u32]) {
        self.senders[dead].kill();
        for sender in (0..SENDERS).filter(|&sender| sender != dead) {
            assert_eq!(
                self.heard(sender, all),
                IBV_WC_SUCCESS,
                "the death of another sender is nothing to it"
            );
        }
        self.senders[dead] = self.start("sender");
        let holder = self.random.below(HOLDERS as u64) as usize;
        self.renew(dead, holder);
        self.go(dead, SHORT, all);
        assert_eq!(self.heard(dead, all), IBV_WC_SUCCESS);
    }

    /// What a sender was told to have been delivered has arrived; of a killed one more may have.
    fn check_received(&mut self) {
        for at in 0..HOLDERS {
            let due = self.due[at];
            let received = asked(&mut self.holders[at], &[COUNT, due]);
            assert!(received >= due, "holder {at} has received {received} of {due}");
            self.due[at] = received;
        }
    }

    fn close(self) {
        self.senders.into_iter().chain(self.holders).for_each(Child::finish);
        assert_eq!(self.folder.files(), [] as [std::path::PathBuf; 0]);
    }
}

fn asked(child: &mut Child, words: &[u64]) -> u64 {
    child.tell(words);
    child.hear()[0]
}

#[test]
fn a_receive_queue_pair_serves_the_living_whoever_is_killed_and_nothing_is_left() {
    let (folder, name) = (Folder::new("xrc-kill"), Name::new());
    let mut referee = Referee::new(&folder, &name);
    let mut deaths: HashMap<String, u32> = HashMap::new();
    for _ in 0..rounds("SOFTIB_KILL_ROUNDS", 24) {
        *deaths.entry(format!("{:?}", referee.round())).or_default() += 1;
    }
    let struck = deaths.iter().any(|(victim, _)| victim.starts_with("Holder"));
    println!("{deaths:?}, {} streams broken", referee.broken);
    assert_eq!(referee.broken > 0, struck, "a holder was killed in mid-stream, and its senders heard of it");
    referee.close();
}

/// All of a domain die at once; the next process finds nothing that hinders it, and sweeps.
#[test]
fn the_next_process_sweeps_a_domain_whose_processes_were_all_killed() {
    let (folder, name) = (Folder::new("xrc-all-killed"), Name::new());
    for _ in 0..3 {
        let mut referee = Referee::new(&folder, &name);
        let all = referee.srqs.clone();
        (0..SENDERS).for_each(|sender| referee.go(sender, STREAM, &all));
        std::thread::sleep(Duration::from_micros(referee.random.below(3000)));
        let Referee { holders, senders, .. } = referee;
        holders.into_iter().chain(senders).for_each(|mut child| child.kill());
    }
    Referee::new(&folder, &name).close();
}
