//! A peer process that is killed in mid-traffic: its endpoint fails soon, what was queued comes
//! back, others go on, and no segment is left.
//!
//! ```text
//!   test ──starts──> survivor ──starts──> victim (SIGKILL)
//!                        └─────starts──> friend (goes on)          all with their segments in a directory of the test
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::child::{Child, TempDir, advert_word, listen, parse_advert, role, say};
use btl_testing::watchdog::Watchdog;
use btl_testing::{PATIENCE, config, open};
use mca_btl_oxib::protocol::layout::DEFAULT;
use mca_btl_oxib::transport::config::Config;
use mca_btl_oxib::transport::{EpId, Transport, Upcall};
use std::collections::HashMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use verbs::{Access, Mr, RKey, RdmaOp, Sge};

const SURVIVOR: u64 = 0x77 << 32;
const BYTES: usize = 1 << 16;
/// "Within a few seconds", on a machine that may be thirty times too busy.
const SOON: Duration = Duration::from_secs(30);

#[test]
fn child_main() {
    match role().as_deref() {
        Some("peer") => peer(),
        Some("survivor") => survivor(),
        Some("waiter") => waiter(),
        Some("sweeper") => drop(open(settings(DEFAULT), 1 << 40)),
        _ => {}
    }
}

/// The processes of a test share their XRC domain.
fn settings(layout: &str) -> Config {
    let dir = std::env::var_os("SOFTIB_DIR").unwrap();
    Config { xrc_domain: Path::new(&dir).join("xrc"), ..config(layout) }
}

/// What came of polling.
#[derive(Default)]
struct Seen {
    /// By sender.
    messages: HashMap<EpId, u64>,
    failed: Vec<(u64, String)>,
    rdma: Vec<(u64, bool)>,
}

impl Seen {
    fn of(&self, id: EpId) -> u64 {
        self.messages.get(&id).copied().unwrap_or(0)
    }
}

fn poll(
    transport: &mut Transport<u64>,
    seen: &mut Seen,
    mut on_message: impl FnMut(&mut Transport<u64>, EpId),
) {
    let mut upcall = if transport.poll() { transport.take_upcall() } else { None };
    while let Some(what) = upcall {
        match what {
            Upcall::Deliver(delivery) => {
                *seen.messages.entry(delivery.endpoint()).or_default() += 1;
                on_message(transport, delivery.endpoint());
                transport.delivered(delivery);
            }
            Upcall::Completed { cookie, ok } => seen.rdma.push((cookie, ok)),
            // A request that came before its sender was added waits for that.
            Upcall::UnknownPeer { .. } => {}
            Upcall::Fetched { .. } => unreachable!("an atomic that none has begun"),
            Upcall::Failed { peer, reason, .. } => seen.failed.push((peer, reason)),
        }
        upcall = transport.take_upcall();
    }
}

fn send(transport: &mut Transport<u64>, id: EpId, len: usize, can_wait: bool) -> bool {
    let Some(mut buf) = transport.take(id, len, can_wait) else { return false };
    buf.payload()[..len].fill(0x5a);
    transport.send(id, 1, buf, len)
}

/// Answers every message with one of the same kind until the survivor closes our input.
fn peer() {
    let _watchdog = Watchdog::new("peer", PATIENCE);
    let [name, layout, theirs] = [listen(), listen(), listen()];
    let mut transport = open(settings(&layout), name.parse().unwrap());
    say(&advert_word(transport.adverts()));
    let id = transport.add(SURVIVOR, &parse_advert(&theirs)).unwrap();
    let mut memory = vec![7u8; BYTES];
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    // SAFETY: the memory lives to the end of this function, longer than its registration.
    let mr = unsafe { Mr::register(transport.pd(), memory.as_mut_ptr(), BYTES, access) }.unwrap();
    say(&format!("{} {}", memory.as_ptr() as u64, mr.rkey().0));
    let over = input_ends();
    let mut seen = Seen::default();
    while over.try_recv().is_err() {
        poll(&mut transport, &mut seen, |t, from| {
            send(t, from, 1000, false);
        });
        std::thread::yield_now();
    }
    transport.remove(&[id]);
    drop(mr);
    transport.close();
}

/// Tells when the parent has closed our input, or is gone.
fn input_ends() -> Receiver<()> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        let _ = sender.send(());
    });
    receiver
}

struct Peer {
    child: Child,
    name: u64,
    id: EpId,
    remote: (u64, RKey),
}

fn start_peer(transport: &mut Transport<u64>, layout: &str, name: u64) -> Peer {
    let dir = std::env::var_os("SOFTIB_DIR").unwrap();
    let mut child = Child::start("peer", Path::new(&dir));
    let ours = advert_word(transport.adverts());
    for line in [&name.to_string(), layout, &ours] {
        child.tell(line);
    }
    let adverts = parse_advert(&child.hear());
    let id = transport.add(name, &adverts).unwrap();
    let memory = child.hear();
    let (addr, key) = memory.split_once(' ').unwrap();
    Peer { child, name, id, remote: (addr.parse().unwrap(), RKey(key.parse().unwrap())) }
}

fn survivor() {
    let _watchdog = Watchdog::new("survivor", PATIENCE);
    let [layout, moment] = [listen(), listen()];
    let mut transport = open(settings(&layout), SURVIVOR);
    let mut victim = start_peer(&mut transport, &layout, SURVIVOR + 1);
    let friend = start_peer(&mut transport, &layout, SURVIVOR + 2);
    let mut memory = vec![1u8; BYTES];
    // SAFETY: the memory lives to the end of this function, longer than its registration.
    let mr =
        unsafe { Mr::register(transport.pd(), memory.as_mut_ptr(), BYTES, Access::LOCAL_WRITE) }.unwrap();
    let local = Sge { addr: memory.as_ptr() as u64, len: BYTES as u32, lkey: mr.lkey() };
    let mut seen = Seen::default();
    let traffic = |transport: &mut Transport<u64>, seen: &mut Seen| {
        for id in [victim.id, friend.id] {
            send(transport, id, 1000, true);
        }
        poll(transport, seen, |_, _| {});
    };
    let enough = moment.parse().unwrap();
    let begin = Instant::now();
    // Of both: a peer that is killed before it is connected is another story, told by the
    // connection manager's tests.
    while seen.of(victim.id).min(seen.of(friend.id)) < enough {
        traffic(&mut transport, &mut seen);
        assert!(begin.elapsed() < SOON, "no traffic: {:?}", transport.audit());
    }
    for cookie in 0..30 {
        transport.rdma(victim.id, RdmaOp::Read, local, victim.remote, cookie).unwrap();
    }
    victim.child.kill();
    for cookie in 30..60 {
        let _ = transport
            .rdma(victim.id, RdmaOp::Write, local, victim.remote, cookie)
            .map_err(|c| seen.rdma.push((c, false)));
    }
    let killed = Instant::now();
    while seen.failed.is_empty() || seen.rdma.len() < 60 {
        traffic(&mut transport, &mut seen);
        assert!(killed.elapsed() < SOON, "not noticed: {:?}, {:?}", seen.rdma, transport.audit());
    }
    let noticed = killed.elapsed().as_millis();
    let (name, reason) = seen.failed[0].clone();
    assert_eq!((name, seen.failed.len()), (victim.name, 1), "{:?}", seen.failed);
    assert!(
        seen.rdma.iter().filter(|(cookie, _)| *cookie >= 30).all(|(_, ok)| !ok),
        "a put to the dead worked"
    );
    assert!(!transport.busy(victim.id));
    let before = seen.of(friend.id);
    while seen.of(friend.id) < before + 200 {
        traffic(&mut transport, &mut seen);
        assert!(killed.elapsed() < SOON * 2, "the friend was held up: {:?}", transport.audit());
    }
    transport.remove(&[victim.id]);
    while transport.busy(friend.id) || transport.audit().pending != 0 {
        poll(&mut transport, &mut seen, |_, _| {});
    }
    let audit = transport.audit();
    assert_eq!((audit.outstanding, audit.inflight, audit.pending), (0, 0, 0), "{audit:?}");
    assert_eq!(seen.failed.len(), 1, "{:?}", seen.failed);
    drop(mr);
    transport.close();
    friend.child.finish();
    say(&format!("noticed in {noticed} ms: {reason}"));
}

fn kill_after(test: &str, layout: &str, messages: u64) {
    let dir = TempDir::new(test);
    let mut child = Child::start("survivor", &dir.0);
    for line in [layout, &messages.to_string()] {
        child.tell(line);
    }
    let verdict = child.hear();
    child.finish();
    println!("{layout}: {verdict}");
    // The next process that opens the device sweeps the victim's segment, if the survivors have
    // not.
    Child::start("sweeper", &dir.0).finish();
    assert_eq!(dir.entries(), [""; 0], "segments were left");
    let reasons = ["retr", "answer", "shared receive queue is gone"];
    assert!(reasons.iter().any(|reason| verdict.contains(reason)), "{verdict}");
}

#[test]
fn a_killed_peer_fails_its_endpoint_only_and_leaves_nothing() {
    for (layout, messages) in [(DEFAULT, 2000), (DEFAULT, 1), ("P,4096,4", 500), ("S,4096,8,6,4", 500)] {
        kill_after("killed", layout, messages);
    }
}

/// Victim and friend are behind one send queue pair, and one receive queue pair that the victim has
/// made.
#[test]
fn a_killed_process_of_a_node_does_not_take_the_others_of_it_along() {
    for (layout, messages) in [("X,4096,64,48,16", 2000), ("X,128,8,6,4:X,4096,8,6,4", 500), ("X,4096,64", 1)]
    {
        kill_after("killed-xrc", layout, messages);
    }
}

/// Talks with victim and friend, then only waits for a message of the victim, as in MPI_Recv. `moment` says what happens meanwhile.
fn waiter() {
    let _watchdog = Watchdog::new("waiter", PATIENCE);
    let [layout, moment] = [listen(), listen()];
    let settings = Config { keepalive: Duration::from_millis(20), ..settings(&layout) };
    let mut transport = open(settings, SURVIVOR);
    let mut victim = start_peer(&mut transport, &layout, SURVIVOR + 1);
    let friend = start_peer(&mut transport, &layout, SURVIVOR + 2);
    let mut seen = Seen::default();
    for id in [victim.id, friend.id] {
        talk(&mut transport, &mut seen, id);
    }
    match moment.as_str() {
        "killed" => {
            victim.child.kill();
            let killed = Instant::now();
            while seen.failed.is_empty() {
                poll(&mut transport, &mut seen, |_, _| {});
                assert!(killed.elapsed() < SOON, "not noticed: {:?}", transport.stats);
            }
            assert_eq!((seen.failed.len(), seen.failed[0].0), (1, victim.name), "{:?}", seen.failed);
            transport.remove(&[victim.id]);
        }
        _ => {
            signal(&victim.child, "STOP");
            let before = transport.stats.keepalives;
            while transport.stats.keepalives < before + 40 {
                poll(&mut transport, &mut seen, |_, _| {});
            }
            assert!(seen.failed.is_empty(), "{:?}", seen.failed);
            signal(&victim.child, "CONT");
            talk(&mut transport, &mut seen, victim.id);
            while transport.drain(victim.id) {
                poll(&mut transport, &mut seen, |_, _| {});
            }
            victim.child.finish();
        }
    }
    talk(&mut transport, &mut seen, friend.id);
    transport.close();
    friend.child.finish();
    say(&format!("{:?}", seen.failed));
}

/// One message and its answer. That it has arrived has no completion.
fn talk(transport: &mut Transport<u64>, seen: &mut Seen, id: EpId) {
    let before = seen.of(id);
    while !send(transport, id, 1000, true) {
        poll(transport, seen, |_, _| {});
    }
    while seen.of(id) == before {
        poll(transport, seen, |_, _| {});
    }
}

fn signal(child: &Child, name: &str) {
    let sent = std::process::Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

fn wait_through(moment: &str, layout: &str) -> String {
    let dir = TempDir::new(&format!("waited-{moment}"));
    let mut child = Child::start("waiter", &dir.0);
    for line in [layout, moment] {
        child.tell(line);
    }
    let verdict = child.hear();
    child.finish();
    verdict
}

const WAITED: [&str; 4] = [DEFAULT, "P,4096,4", "S,4096,8,6,4", "X,4096,64,48,16"];

/// No request is under way to the one that is killed.
#[test]
fn a_killed_peer_that_a_message_is_awaited_of_is_found_by_the_keepalive() {
    for layout in WAITED {
        let verdict = wait_through("killed", layout);
        println!("{layout}: {verdict}");
    }
}

#[test]
fn a_stopped_peer_is_not_taken_for_a_dead_one() {
    for layout in WAITED {
        assert_eq!(wait_through("stopped", layout), "[]", "{layout}");
    }
}
