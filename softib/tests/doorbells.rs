//! A message to a program that polls wakes no device thread (docs/softib.md, 1.4).
//!
//! ```text
//!   the device thread has control     a message rings the doorbell       until the program has polled 64 times
//!   the program has control           no message rings it                until it has not polled for 4 ms
//!   the thread stands in for it       no whole message rings it          until the program polls, or for 300 ms (`absent.rs`)
//! ```
//!
//! How often a process is descheduled for 4 ms is the machine's business. So each process counts the pauses between its polls that it
//! has seen itself, and must not lose control more often than that; and it gets control back before it lets its peer send, so
//! that each loss costs one doorbell at most. Both hold under any load.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::time::{Duration, Instant};

/// How long a program may not poll before its thread stands in for it (`NAP` in `engine/thread.rs`).
const PAUSE: Duration = Duration::from_millis(4);
/// Polls in vain after which it has control (`STREAK` in `engine/progress.rs`).
const STREAK: u32 = 64;
/// Polls in vain after which a processor is given to others: the peer may have none.
const TURN: u32 = 1000;
const ROUNDS: u64 = 5000;

/// The other process; does nothing when the test runner calls it.
#[test]
fn child_main() {
    match role().as_deref() {
        Some("ping") => ping(),
        Some("pong") => pong(),
        Some("woken") => woken(),
        other => assert_eq!(other, None, "no such role"),
    }
}

/// A program that polls, and watches itself do so.
struct Poller {
    cq: *mut ibv_cq,
    /// Before the last poll.
    last: Instant,
    /// Pauses between two polls in which it may have lost control. One that falls into a poll counts twice.
    pauses: u64,
    /// The takeovers after which it has got control back.
    regained: Option<u64>,
}

impl Poller {
    fn new(cq: *mut ibv_cq) -> Poller {
        Poller { cq, last: Instant::now(), pauses: 0, regained: None }
    }

    fn poll(&mut self) -> Option<ibv_wc> {
        let began = Instant::now();
        let wc = poll(self.cq);
        self.pauses += u64::from(self.last.elapsed() >= PAUSE);
        self.last = began;
        wc
    }

    /// The next completion, which must come.
    fn wait(&mut self) -> ibv_wc {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(wc) = (0..TURN).find_map(|_| self.poll()) {
                assert_eq!(wc.status, IBV_WC_SUCCESS);
                return wc;
            }
            assert!(Instant::now() < end, "no completion came");
            std::thread::yield_now();
        }
    }

    /// Polls until the program has control, if the device thread has taken over since the last call. Nothing is to come meanwhile.
    fn regain_control(&mut self) {
        while self.regained != Some(softib::stats().takeovers) {
            let takeovers = softib::stats().takeovers;
            (0..STREAK).for_each(|_| assert!(self.poll().is_none()));
            self.regained = Some(takeovers);
        }
    }

    /// The device thread has taken over so often, and there have been so many pauses in which it may.
    fn takeovers(&mut self) -> (u64, u64) {
        let takeovers = softib::stats().takeovers;
        // Ends the pause in which the last of them was.
        assert!(self.poll().is_none());
        (takeovers, self.pauses)
    }
}

/// In processes of their own, where no other test arms or polls anything.
#[test]
fn two_polling_processes_ring_no_doorbell_per_message() {
    Child::start("ping").finish();
}

fn ping() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let buf = dev.buf(64);
    let mut child = Child::start("pong");
    let theirs = child.hear()[0] as u32;
    qp.init(ALL_ACCESS);
    child.tell(&[qp.num().into()]);
    child.hear();
    qp.rtr(theirs, &Path::default());
    qp.rts(&Path::default());
    let before = softib::stats().doorbells;
    let mut poller = Poller::new(qp.cq);
    for _ in 0..ROUNDS {
        poller.regain_control();
        assert_eq!(qp.recv(0, &[buf.sge(0, 64)]), 0);
        assert_eq!(qp.send(1, &[buf.sge(0, 8)]), 0);
        poller.wait();
        poller.wait();
    }
    // Polls in vain count as well.
    let end = Instant::now() + 10 * PAUSE;
    while Instant::now() < end {
        assert!(poller.poll().is_none());
    }
    let ours = (softib::stats().doorbells - before, poller.takeovers());
    let said = child.hear();
    let theirs = (said[0], (said[1], said[2]));
    for ((doorbells, _), (_, (takeovers, pauses))) in [(ours, theirs), (theirs, ours)] {
        let found =
            format!("{doorbells} doorbells, {takeovers} takeovers of the peer, {pauses} pauses of it");
        // It has the one message more that comes before its program has polled, or before it knows the sender's ring.
        assert!(doorbells <= takeovers + 1, "a message to a program with control rang: {found}");
        assert!(takeovers <= pauses, "a program that polled lost control: {found}");
    }
    child.finish();
}

/// Answers by polling only, as MPI ranks do.
fn pong() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let buf = dev.buf(64);
    say(&[qp.num().into()]);
    let hello = listen().unwrap();
    qp.init(ALL_ACCESS);
    assert_eq!(qp.recv(0, &[buf.sge(0, 64)]), 0);
    qp.rtr(hello[0] as u32, &Path::default());
    qp.rts(&Path::default());
    say(&[0]);
    let mut poller = Poller::new(qp.cq);
    for _ in 0..ROUNDS {
        assert_eq!(poller.wait().opcode, IBV_WC_RECV);
        poller.regain_control();
        assert_eq!(qp.recv(0, &[buf.sge(0, 64)]), 0);
        assert_eq!(qp.send(1, &[buf.sge(0, 8)]), 0);
        assert_eq!(poller.wait().opcode, IBV_WC_SEND);
    }
    let (takeovers, pauses) = poller.takeovers();
    say(&[softib::stats().doorbells, takeovers, pauses]);
    listen();
}

/// Whatever wakes the device thread while the program has control: that the nap is over early tells nothing of the program.
#[test]
fn a_program_that_polls_keeps_control_when_its_device_thread_is_woken() {
    Child::start("woken").finish();
}

fn woken() {
    let dev = Dev::open();
    let mut poller = Poller::new(dev.cq(16));
    for _ in 0..200 {
        poller.regain_control();
        until_the_device_thread_sleeps();
        // The ports are up: this wakes the thread, and changes nothing.
        softib::faults::set_port(true).unwrap();
        until_the_device_thread_sleeps();
    }
    let (takeovers, pauses) = poller.takeovers();
    assert!(takeovers <= pauses, "{takeovers} takeovers, {pauses} pauses");
}

fn until_the_device_thread_sleeps() {
    while !device_thread_sleeps() {
        std::thread::yield_now();
    }
}

fn device_thread_sleeps() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let read = |task: &std::path::Path, name| std::fs::read_to_string(task.join(name)).unwrap_or_default();
    let mut paths = tasks.flatten().map(|task| task.path());
    paths.any(|task| read(&task, "comm") == "softib\n" && read(&task, "stat").contains(") S "))
}
