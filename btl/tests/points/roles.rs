//! The processes of a point: two survivors, who serve, and a victim, who plays its scene until it is killed.

use btl_testing::child::{advert_word, listen, parse_advert, say};
use btl_testing::memory::Memory;
use btl_testing::watchdog::Watchdog;
use btl_testing::{PATIENCE, config, open};
use mca_btl_oxib::transport::config::Config;
use mca_btl_oxib::transport::{Attempt, EpId, Transport, Upcall};
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};
use verbs::{RKey, RdmaOp};

const NAME: u64 = 0x55 << 32;
const VICTIM: usize = 2;
const BYTES: usize = 1 << 16;
const LEN: usize = 40;

/// Messages that a stream and a sink have, and survivors exchange afterwards.
const STREAM: u64 = 100;
const SINK: u64 = 300;
const AFTERWARDS: u64 = 200;

/// The bound: a peer that is not there is given up after some 2 s by a connection manager (`settings`), and after less by the device. The rest is
/// for a machine that is ten times too busy.
const SOON: Duration = Duration::from_secs(30);

/// A peer that was connected anew so often, and is not there, has left in our eyes: over rdmacm, before its first message.
const RENEWALS: u64 = 3;

/// Tags: asks for an answer; is one; is counted; asks its receiver to leave.
const HELLO: u8 = 1;
const ANSWER: u8 = 2;
const PLAIN: u8 = 3;
const LEAVE: u8 = 4;

fn settings(manager: &str, scene: &str) -> Config {
    let dir = std::env::var_os("SOFTIB_DIR").unwrap();
    let layout = match manager {
        "xrc" => "X,128,32,16,32:X,8192,32,16,32",
        _ => "P,128,32,16,8:S,8192,32,16,32",
    };
    let keepalive = Duration::from_millis(100);
    let mut config = Config { keepalive, xrc_domain: Path::new(&dir).join("xrc"), ..config(layout) };
    for params in [&mut config.cpc.ibcm, &mut config.cpc.xrc] {
        params.timeout = Duration::from_millis(100);
        params.max_timeout = Duration::from_millis(400);
        params.max_retries = 5;
    }
    if scene != "ring" {
        config.eager = None;
    }
    if manager == "rdmacm" {
        config.cpc.include = vec!["rdmacm".to_owned()];
        config.cpc.rdmacm.address = Some("127.0.0.1".parse().unwrap());
        config.cpc.rdmacm.connect_timeout = Duration::from_secs(1);
        config.cpc.rdmacm.max_retries = 3;
    }
    config
}

/// Opens the device, once, so that what the dead have left is swept.
pub fn sweeper() {
    drop(open(config("S,4096,8,6,4"), NAME + 9));
}

/// A process of a point.
struct Process {
    transport: Transport<u64>,
    memory: Memory,
    scene: String,
    is_asked: bool,
    rank: usize,
    /// By rank: our endpoint, its memory, and how many messages of each tag have come.
    to: [Option<EpId>; 3],
    remote: [(u64, RKey); 3],
    heard: [[u64; 5]; 3],
    /// Messages that are still to be sent there.
    owed: [u64; 3],
    failed: [Option<String>; 3],
    outcomes: Vec<bool>,
    _watchdog: Watchdog,
}

impl Process {
    fn start() -> Process {
        let line = listen();
        let words: Vec<&str> = line.split(' ').collect();
        let rank: usize = words[0].parse().unwrap();
        let watchdog = Watchdog::new(&line, PATIENCE);
        let mut transport = open(settings(words[1], words[2]), NAME + rank as u64);
        let memory = Memory::new(&transport, vec![rank as u8; BYTES]);
        say(&advert_word(transport.adverts()));
        let (addr, key) = memory.remote(0);
        say(&format!("{addr} {}", key.0));
        let (mut to, mut remote) = ([None; 3], [(0, RKey(0)); 3]);
        for other in (0..3).filter(|other| *other != rank) {
            to[other] = Some(transport.add(NAME + other as u64, &parse_advert(&listen())).unwrap());
            let line = listen();
            let (addr, key) = line.split_once(' ').unwrap();
            remote[other] = (addr.parse().unwrap(), RKey(key.parse().unwrap()));
        }
        let (scene, is_asked) = (words[2].to_owned(), words[3] == "asked");
        let (heard, owed, failed) = ([[0; 5]; 3], [0; 3], [const { None }; 3]);
        let outcomes = Vec::new();
        Process {
            transport,
            memory,
            scene,
            is_asked,
            rank,
            to,
            remote,
            heard,
            owed,
            failed,
            outcomes,
            _watchdog: watchdog,
        }
    }

    fn id(&self, rank: usize) -> EpId {
        self.to[rank].expect("an endpoint")
    }

    fn try_send(&mut self, to: usize, tag: u8, can_wait: bool) -> bool {
        let id = self.id(to);
        if self.transport.goes_straight(id, LEN)
            && self.transport.sendi_straight(id, tag, [&[tag; LEN], &[]]) == Attempt::Sent
        {
            return true;
        }
        let Some(mut buf) = self.transport.take(id, LEN, can_wait) else { return false };
        buf.payload()[..LEN].fill(tag);
        if can_wait {
            self.transport.send(id, tag, buf, LEN)
        } else {
            self.transport.answer(id, tag, buf, LEN)
        }
    }

    fn send(&mut self, to: usize, tag: u8) {
        let begin = Instant::now();
        while !self.try_send(to, tag, true) {
            self.poll();
            assert!(begin.elapsed() < SOON, "cannot send to {to}: {:?}", self.transport.audit());
        }
    }

    fn poll(&mut self) {
        let mut upcall = if self.transport.poll() { self.transport.take_upcall() } else { None };
        while let Some(what) = upcall {
            match what {
                Upcall::Deliver(mut delivery) => {
                    let from = self
                        .to
                        .iter()
                        .position(|id| *id == Some(delivery.endpoint()))
                        .expect("a peer of ours");
                    let tag = delivery.tag;
                    assert_eq!(delivery.payload(), [tag; LEN]);
                    self.heard[from][usize::from(tag)] += 1;
                    self.react(from, tag);
                    self.transport.delivered(delivery);
                }
                Upcall::Completed { ok, .. } => self.outcomes.push(ok),
                Upcall::Fetched { .. } => unreachable!("an atomic that none has begun"),
                // A request that came before its sender was added waits for that.
                Upcall::UnknownPeer { .. } => {}
                Upcall::Failed { endpoint, reason, .. } => {
                    let rank = self.to.iter().position(|id| *id == Some(endpoint)).expect("a peer of ours");
                    assert!(self.failed[rank].is_none(), "failed twice");
                    self.failed[rank] = Some(reason);
                }
            }
            upcall = self.transport.take_upcall();
        }
        for to in 0..3 {
            while self.owed[to] > 0 && self.failed[to].is_none() && self.try_send(to, PLAIN, true) {
                self.owed[to] -= 1;
            }
        }
        std::thread::yield_now();
    }

    fn react(&mut self, from: usize, tag: u8) {
        if tag == HELLO {
            assert!(self.try_send(from, ANSWER, false), "an answer from a callback was refused");
        }
        if tag == HELLO && from == VICTIM && self.scene == "sink" {
            self.owed[from] = SINK;
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Process) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            self.poll();
            assert!(
                begin.elapsed() < SOON,
                "rank {}: {what} did not come about: {:?}",
                self.rank,
                self.transport.audit()
            );
        }
    }

    /// A message to the peer, and its answer.
    fn greet(&mut self, to: usize) {
        let before = self.heard[to][usize::from(ANSWER)];
        self.send(to, HELLO);
        self.until("an answer", |p| p.heard[to][usize::from(ANSWER)] > before);
    }

    /// Ends the stream to these, and removes them.
    fn part(&mut self, ranks: &[usize]) {
        self.until("the end of a stream", |p| {
            ranks.iter().all(|rank| !p.transport.drain(p.to[*rank].unwrap()))
        });
        let ids: Vec<EpId> = ranks.iter().map(|rank| self.to[*rank].take().unwrap()).collect();
        self.transport.remove(&ids);
    }
}

/// Plays its scene. It does not come to the end.
pub fn victim() {
    let mut p = Process::start();
    assert_eq!(listen(), "go");
    match p.is_asked {
        true => p.until("a message", |p| p.heard[0][usize::from(HELLO)] > 0),
        false => p.greet(0),
    }
    p.greet(1);
    match p.scene.as_str() {
        "ring" => p.until("its end in a stream without one", |p| {
            if p.owed == [0; 3] {
                p.owed = [STREAM, STREAM, 0];
            }
            false
        }),
        "stream" => {
            p.owed = [STREAM, STREAM, 0];
            p.until("room for a stream", |p| p.owed == [0; 3]);
        }
        "sink" => {
            p.until("what others send", |p| (0..2).all(|from| p.heard[from][usize::from(PLAIN)] == SINK))
        }
        "put" => p.rdma(RdmaOp::Write),
        "get" => p.rdma(RdmaOp::Read),
        "part" => p.send(0, LEAVE),
        _ => {}
    }
    if p.scene == "part" {
        let id = p.id(0);
        p.until("the peer's end", |p| p.transport.stats.ends > 0 && !p.transport.busy(id));
    }
    p.part(&[0, 1]);
    let Process { transport, memory, .. } = p;
    drop(memory);
    transport.close();
}

impl Process {
    fn rdma(&mut self, op: RdmaOp) {
        let (id, local, remote) = (self.id(0), self.memory.local(0, BYTES), self.remote[0]);
        self.transport.rdma(id, op, local, remote, 1).expect("the first peer is there");
        self.until("the operation", |p| !p.outcomes.is_empty());
    }
}

/// Lines of the parent.
fn lines() -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        while std::io::stdin().read_line(&mut line).is_ok_and(|len| len > 0) {
            let _ = sender.send(std::mem::take(&mut line).trim().to_owned());
        }
    });
    receiver
}

pub fn survivor() {
    let mut p = Process::start();
    let friend = 1 - p.rank;
    if p.rank == 0 {
        p.greet(friend);
    } else {
        p.until("a message", |p| p.heard[friend][usize::from(HELLO)] > 0);
    }
    say("ready");
    let lines = lines();
    loop {
        match lines.try_recv().as_deref() {
            Ok("ask") => p.send(VICTIM, HELLO),
            Ok("killed") => break,
            Err(TryRecvError::Disconnected) => panic!("the parent has ended"),
            _ => p.poll(),
        }
        if p.to[VICTIM].is_some() && p.heard[VICTIM][usize::from(LEAVE)] > 0 && p.failed[VICTIM].is_none() {
            let id = p.id(VICTIM);
            p.transport.drain(id);
        }
    }
    let verdict = p.find_out();
    p.owed[VICTIM] = 0;
    p.owed[friend] = AFTERWARDS;
    p.until("the friend's messages", |p| {
        let id = p.id(friend);
        p.heard[friend][usize::from(PLAIN)] == AFTERWARDS && p.owed[friend] == 0 && !p.transport.busy(id)
    });
    let id = p.to[VICTIM].take().unwrap();
    p.transport.remove(&[id]);
    assert_eq!(p.failed[friend], None);
    // A look while the victim was removed may have posted something for the friend.
    p.until("what is on its way to the friend", |p| {
        let id = p.id(friend);
        !p.transport.busy(id)
    });
    p.everything_is_back();
    say(&verdict);
    p.until("the end", |_| lines.try_recv().as_deref() == Ok("end"));
    p.part(&[friend]);
    let Process { transport, memory, .. } = p;
    drop(memory);
    transport.close();
}

impl Process {
    /// Sends the victim messages until there is an error, or the word that it has left.
    fn find_out(&mut self) -> String {
        let killed = Instant::now();
        loop {
            self.poll();
            if let Some(reason) = &self.failed[VICTIM] {
                return format!("failed {reason}, {} ms", killed.elapsed().as_millis());
            }
            let id = self.id(VICTIM);
            let refused = match self.transport.take(id, LEN, true) {
                Some(buf) => !self.transport.send(id, PLAIN, buf, LEN),
                None => false,
            };
            if refused {
                self.poll();
                if self.failed[VICTIM].is_none() {
                    return "left".to_owned();
                }
            }
            if self.transport.stats.renewed > RENEWALS {
                return "left, and what is sent is dropped".to_owned();
            }
            assert!(
                killed.elapsed() < SOON,
                "rank {} is not told: {:?}, {:?}",
                self.rank,
                self.transport.stats,
                self.transport.audit()
            );
        }
    }

    fn everything_is_back(&mut self) {
        let audit = self.transport.audit();
        assert_eq!(
            (audit.outstanding, audit.inflight, audit.pending, audit.parked),
            (0, 0, 0, 0),
            "{audit:?}"
        );
        for queue in &audit.queues {
            let ((made, home), (posted, held)) = (queue.recv_buffers, queue.recv_slots);
            assert_eq!(made as usize, home + posted + held, "{queue:?}");
            assert_eq!(queue.send_buffers.0 as usize, queue.send_buffers.1, "{queue:?}");
        }
    }
}
