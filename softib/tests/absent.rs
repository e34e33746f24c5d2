//! A program that polls, computes for a while, and polls again (docs/softib.md, 1.4).
//!
//! ```text
//!   polls ── 4 ms without ──> its device thread stands in       messages wait for its first poll; no bell is rung for them
//!     ^                            │            │
//!     └──── its first poll ────────┘            └── what is urgent comes ──> the thread has control, and is woken for what comes
//! ```

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::time::{Duration, Instant};

/// Polls in vain after which a program has control (`STREAK` in `engine/progress.rs`).
const STREAK: u32 = 64;
/// The thread stands in for no longer than this (`ABSENCE` there), less what a pause may be longer than it was meant to be.
const LONG: Duration = Duration::from_millis(250);

/// The other process; does nothing when the test runner calls it.
#[test]
fn child_main() {
    match role().as_deref() {
        Some("turns") => turns(),
        Some("partner") => partner(),
        Some("hub") => hub(),
        Some("spoke") => spoke(),
        Some("asks") => asks(),
        Some("floods") => floods(),
        Some("reads") => reads(),
        Some("absent") => absent(),
        Some("sleeps") => sleeps(),
        Some("sleeper") => sleeper(),
        other => assert_eq!(other, None, "no such role"),
    }
}

/// Polls until the program has control.
fn take_control(cq: *mut ibv_cq) {
    (0..2 * STREAK).for_each(|_| assert!(poll(cq).is_none()));
}

/// Does not poll until the device thread has taken over from this program once more.
fn be_absent() {
    let (before, end) = (softib::stats().takeovers, Instant::now() + PATIENCE);
    while softib::stats().takeovers == before {
        assert!(Instant::now() < end, "the device thread does not take over");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Messages and pauses by turns. How many pauses of this side were so long that the thread had full control.
fn exchange_by_turns(qp: &Qp, buf: &Buf, turns: u64) -> u64 {
    let mut long = 0;
    for _ in 0..turns {
        let began = Instant::now();
        std::thread::sleep(PAUSE);
        assert_eq!(qp.send(1, &[buf.sge(0, 8)]), 0);
        let first = qp.wait();
        long += u64::from(began.elapsed() > LONG);
        let second = qp.wait();
        assert_eq!([first.status, second.status], [IBV_WC_SUCCESS; 2]);
        assert_eq!(qp.recv(0, &[buf.sge(0, 64)]), 0);
    }
    long
}

/// In processes of their own, where no other test arms or polls anything.
#[test]
fn a_program_that_computes_and_communicates_by_turns_rings_no_bell() {
    Child::start("turns").finish();
}

const TURNS: u64 = 40;
/// Twice the time in which the device thread notices.
const PAUSE: Duration = Duration::from_millis(16);

fn turns() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let buf = dev.buf(64);
    let mut child = Child::start("partner");
    let theirs = child.hear()[0] as u32;
    qp.init(ALL_ACCESS);
    assert_eq!(qp.recv(0, &[buf.sge(0, 64)]), 0);
    qp.rtr(theirs, &Path::default());
    qp.rts(&Path::default());
    child.tell(&[qp.num().into()]);
    child.hear();
    take_control(qp.cq);
    child.tell(&[0]);
    let long = exchange_by_turns(&qp, &buf, TURNS);
    let (ours, said) = (softib::stats(), child.hear());
    assert!(ours.takeovers > 0, "the device thread has not noticed one of {TURNS} pauses");
    for (doorbells, long, of) in [(ours.doorbells, said[1], "ours"), (said[0], long, "theirs")] {
        // The first message comes before its receiver knows the ring.
        assert!(
            doorbells <= 2 + 2 * long,
            "{of}: {doorbells} doorbells, {long} long pauses of the other side"
        );
    }
    child.finish();
}

fn partner() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let buf = dev.buf(64);
    say(&[qp.num().into()]);
    let hello = listen().unwrap();
    qp.init(ALL_ACCESS);
    assert_eq!(qp.recv(0, &[buf.sge(0, 64)]), 0);
    qp.rtr(hello[0] as u32, &Path::default());
    qp.rts(&Path::default());
    take_control(qp.cq);
    say(&[0]);
    listen();
    let long = exchange_by_turns(&qp, &buf, TURNS);
    say(&[softib::stats().doorbells, long]);
    listen();
}

/// More than the rings that are looked at on every poll.
const MANY: usize = 12;

/// Rings that are not watched, for there are many, are announced, and no bell is rung either.
#[test]
fn many_that_send_to_an_absent_program_ring_no_bell() {
    Child::start("hub").finish();
}

fn hub() {
    let dev = Dev::open();
    let cq = dev.cq(256);
    let buf = dev.buf(64);
    let spokes: Vec<(Child, Qp)> = (0..MANY)
        .map(|_| {
            let qp = dev.qp(IBV_QPT_RC, cq);
            let mut child = Child::start("spoke");
            let theirs = child.hear()[0] as u32;
            qp.init(ALL_ACCESS);
            (0..2).for_each(|_| assert_eq!(qp.recv(0, &[buf.sge(0, 64)]), 0));
            qp.rtr(theirs, &Path::default());
            qp.rts(&Path::default());
            child.tell(&[qp.num().into()]);
            child.hear();
            (child, qp)
        })
        .collect();
    let mut children: Vec<Child> = spokes.into_iter().map(|(child, _)| child).collect();
    let send = |children: &mut Vec<Child>| {
        children.iter_mut().for_each(|child| child.tell(&[0]));
        children.iter_mut().map(|child| child.hear()[0]).sum::<u64>()
    };
    // All of them are known.
    send(&mut children);
    (0..MANY).for_each(|_| assert_eq!(wait(cq).status, IBV_WC_SUCCESS));
    take_control(cq);
    be_absent();
    let began = Instant::now();
    let doorbells = send(&mut children);
    assert!(doorbells == 0 || began.elapsed() > LONG, "{doorbells} doorbells");
    (0..MANY).for_each(|_| assert_eq!(wait(cq).status, IBV_WC_SUCCESS));
    children.into_iter().for_each(Child::finish);
}

/// Sends a message whenever it is told to, and says how many bells that has rung.
fn spoke() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
    let buf = dev.buf(64);
    say(&[qp.num().into()]);
    let hello = listen().unwrap();
    qp.connect(hello[0] as u32, &Path::default());
    say(&[0]);
    for _ in 0..2 {
        listen();
        let before = softib::stats().doorbells;
        assert_eq!(qp.send(1, &[buf.sge(0, 8)]), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
        say(&[softib::stats().doorbells - before]);
    }
}

/// Receives that an absent program has posted, and bytes of each.
const RECEIVES: usize = 128;
const EACH: usize = 16 << 10;

/// Has control, loses it to its device thread, and polls no more.
fn absent() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let buf = Buf::new(&dev, RECEIVES * EACH, ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC);
    say(&[qp.num().into(), buf.addr(), buf.key().into()]);
    let hello = listen().unwrap();
    qp.init(ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC);
    for slot in 0..RECEIVES {
        assert_eq!(qp.recv(slot as u64, &[buf.sge(slot * EACH, EACH)]), 0);
    }
    qp.rtr(hello[0] as u32, &Path::default());
    qp.rts(&Path::default());
    say(&[0]);
    // The ring of its peer is known, and watched.
    assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    take_control(qp.cq);
    be_absent();
    say(&[0]);
    let told = listen().unwrap();
    for _ in 0..told[0] {
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    }
}

/// Connects to a program that is absent then: the queue pair, where its memory is, and that of its key.
fn to_absent(dev: &Dev, buf: &Buf) -> (Child, Qp, (u64, u32)) {
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let mut child = Child::start("absent");
    let hello = child.hear();
    qp.connect(hello[0] as u32, &Path::default());
    child.tell(&[qp.num().into()]);
    child.hear();
    assert_eq!(qp.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    child.hear();
    (child, qp, (hello[1], hello[2] as u32))
}

/// They are urgent: a nap is not waited for.
#[test]
fn atomics_of_an_absent_program_s_memory_are_carried_out_and_wake_its_thread() {
    Child::start("asks").finish();
}

fn asks() {
    let dev = Dev::open();
    // The thread may just be awake, and need no bell, but not each time.
    assert!((0..8).any(|_| rings_with_the_first(&dev)), "a request waits for the thread's nap to end");
}

/// Whether the first of several atomics has rung the bell.
fn rings_with_the_first(dev: &Dev) -> bool {
    let buf = dev.buf(64);
    let (mut child, qp, memory) = to_absent(dev, &buf);
    let before = softib::stats().doorbells;
    let mut rung = false;
    for count in 0..50u64 {
        let wr = ibv_send_wr_atomic { remote_addr: memory.0, compare_add: 1, swap: 0, rkey: memory.1 };
        assert_eq!(qp.post(1, IBV_WR_ATOMIC_FETCH_AND_ADD, &[buf.sge(0, 8)], |to| to.wr.atomic = wr), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
        rung |= count == 0 && softib::stats().doorbells > before;
        assert_eq!(u64::from_ne_bytes(buf.data[..8].try_into().unwrap()), count);
    }
    assert!(softib::stats().doorbells > before, "nothing wakes the thread of a program that does not poll");
    child.tell(&[0]);
    child.finish();
    rung
}

/// Who asks it for data in vain fetches that; its thread goes on standing in.
#[test]
fn a_read_of_an_absent_program_s_memory_wakes_nobody() {
    Child::start("reads").finish();
}

fn reads() {
    let dev = Dev::open();
    let mut buf = dev.buf(RECEIVES * EACH);
    buf.data.fill(1);
    let (mut child, qp, memory) = to_absent(&dev, &buf);
    let (before, began) = (softib::stats(), Instant::now());
    for _ in 0..20 {
        buf.data.fill(1);
        take_control(qp.cq);
        assert_eq!(qp.rdma(2, IBV_WR_RDMA_READ, buf.sge(0, RECEIVES * EACH), memory.0, memory.1), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
        assert!(buf.data[8..].iter().all(|byte| *byte == 0));
    }
    assert_eq!(qp.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    let now = softib::stats();
    assert!(now.rdma_late > before.rdma_late && now.rdma_direct > before.rdma_direct, "{now:?}");
    assert!(now.doorbells == before.doorbells || began.elapsed() > LONG, "{now:?}");
    child.tell(&[1]);
    child.finish();
}

/// A sender does not wait for a nap with each ring that it has filled.
#[test]
fn a_flood_to_an_absent_program_is_taken_in_by_its_thread() {
    Child::start("floods").finish();
}

fn floods() {
    let dev = Dev::open();
    let buf = dev.buf(EACH);
    let (mut child, qp, _) = to_absent(&dev, &buf);
    let before = softib::stats();
    let messages = RECEIVES - 1;
    for _ in 0..messages {
        assert_eq!(qp.send(1, &[buf.sge(0, EACH)]), 0);
    }
    for _ in 0..messages {
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    }
    let now = softib::stats();
    assert!(now.ring_full > before.ring_full && now.doorbells > before.doorbells, "{now:?}");
    child.tell(&[messages as u64]);
    child.finish();
}

/// A program that goes to sleep on a channel while its thread stands in for it is woken.
#[test]
fn a_program_that_arms_a_queue_while_its_thread_stands_in_is_woken() {
    Child::start("sleeps").finish();
}

const NIGHTS: u64 = 20;

fn sleeper() {
    let dev = Dev::open();
    let channel = unsafe { (table().create_comp_channel)(dev.ctx) };
    let cq = dev.cq_on(64, channel);
    let qp = dev.qp(IBV_QPT_RC, cq);
    let buf = dev.buf(64);
    say(&[qp.num().into()]);
    let hello = listen().unwrap();
    qp.init(ALL_ACCESS);
    assert_eq!(qp.recv(0, &[buf.sge(0, 64)]), 0);
    qp.rtr(hello[0] as u32, &Path::default());
    qp.rts(&Path::default());
    say(&[0]);
    assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    for _ in 0..NIGHTS {
        take_control(cq);
        assert_eq!(qp.recv(0, &[buf.sge(0, 64)]), 0);
        be_absent();
        assert_eq!(unsafe { ((*(*cq).context).ops.req_notify_cq.unwrap())(cq, 0) }, 0);
        say(&[0]);
        let (mut fired, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!(unsafe { (table().get_cq_event)(channel, &mut fired, &mut context) }, 0);
        unsafe { (table().ack_cq_events)(cq, 1) };
        assert_eq!(poll(cq).expect("the event came with its completion").status, IBV_WC_SUCCESS);
    }
}

fn sleeps() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(64));
    let buf = dev.buf(64);
    let mut child = Child::start("sleeper");
    let theirs = child.hear()[0] as u32;
    qp.connect(theirs, &Path::default());
    child.tell(&[qp.num().into()]);
    child.hear();
    for night in 0..=NIGHTS {
        if night != 0 {
            child.hear();
        }
        assert_eq!(qp.send(1, &[buf.sge(0, 8)]), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    }
    child.finish();
}
