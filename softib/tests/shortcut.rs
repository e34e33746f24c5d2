//! The shortcut from a ring to the poller, mixed with everything that has to go the general way.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::collections::VecDeque;
use std::time::Instant;

/// The other process; does nothing when the test runner calls it.
#[test]
fn child_main() {
    match role().as_deref() {
        Some("stream") => stream(),
        Some("trickle") => trickle(),
        Some("pair") => rings_cool(),
        Some("several") => several_are_found(),
        other => assert_eq!(other, None, "no such role"),
    }
}

/// Enough polls for a program to become the owner of progress and of the lock.
fn settle(cq: *mut ibv_cq) {
    (0..600).for_each(|_| assert!(poll(cq).is_none()));
}

/// Polls into an array of `room`.
fn poll_many(cq: *mut ibv_cq, room: usize) -> Vec<ibv_wc> {
    let mut out = vec![ibv_wc::default(); room];
    let got = unsafe { ibv_poll_cq(cq, room as i32, out.as_mut_ptr()) };
    out.truncate(usize::try_from(got).expect("poll_cq"));
    out
}

/// Whatever a queue has after polls that found nothing is found by the next poll.
#[test]
fn what_comes_after_polls_that_found_nothing_is_found_by_the_next() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path::default());
    let (out, into) = (dev.buf(64), dev.buf(64));
    settle(b.cq);
    let (other, empties) = (dev.cq(8), |cq| (0..3).for_each(|_| assert!(poll(cq).is_none())));
    for wr_id in 0..100 {
        assert_eq!(b.recv(wr_id, &[into.sge(0, 64)]), 0);
        let first = if wr_id % 2 == 0 { [&a, &b] } else { [&b, &a] };
        first.iter().for_each(|qp| empties(qp.cq));
        assert_eq!(a.send(wr_id, &[out.sge(0, 8)]), 0);
        first.iter().rev().for_each(|qp| assert_eq!(poll(qp.cq).expect("a completion").wr_id, wr_id));
        [b.cq, a.cq, other].into_iter().for_each(empties);
    }
    assert_eq!(b.recv(100, &[into.sge(0, 64)]), 0);
    empties(b.cq);
    assert_eq!(b.to_state(IBV_QPS_ERR), 0);
    assert_eq!(poll(b.cq).expect("the receive, flushed").status, IBV_WC_WR_FLUSH_ERR);
}

const LEN: usize = 20_000;
/// Receives that are posted.
const AHEAD: u64 = 32;

/// A message on its way: what its completion must say, and where it must be.
struct Sent {
    wr_id: u64,
    len: usize,
    imm: Option<u32>,
    seed: u64,
}

#[test]
fn messages_of_all_kinds_come_in_order_however_they_are_polled() {
    let mut random = Random::from_environment();
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path::default());
    let (mut out, into) = (dev.buf(LEN), dev.buf(AHEAD as usize * LEN));
    let receive = |wr_id: u64, split: bool| {
        let at = (wr_id % AHEAD) as usize * LEN;
        let (one, two) = (into.sge(at, 100), into.sge(at + 100, LEN - 100));
        let list = if split { vec![one, two] } else { vec![into.sge(at, LEN)] };
        assert_eq!(b.recv(wr_id, &list), 0);
    };
    (0..AHEAD).for_each(|wr_id| receive(wr_id, false));
    settle(b.cq);
    let mut flying = VecDeque::new();
    let (mut next, mut posted) = (0, AHEAD);
    for _ in 0..3000 {
        for _ in 0..random.below(5) {
            if flying.len() as u64 == AHEAD {
                break;
            }
            let len = [0, 1, 3, 8, 33, 64, 96, 97, 1000, LEN][random.below(10) as usize];
            let (seed, imm) = (random.next(), (random.below(4) == 0).then_some(next as u32));
            out.data[..len].copy_from_slice(&pattern(seed, len));
            let half = len / 2;
            let split = random.below(4) == 0;
            let list =
                if split { vec![out.sge(0, half), out.sge(half, len - half)] } else { vec![out.sge(0, len)] };
            let opcode = if imm.is_some() { IBV_WR_SEND_WITH_IMM } else { IBV_WR_SEND };
            assert_eq!(a.post(next, opcode, &list, |wr| wr.imm.imm_data = imm.unwrap_or(0)), 0);
            assert_eq!(a.wait().wr_id, next);
            flying.push_back(Sent { wr_id: next, len, imm, seed });
            next += 1;
        }
        for wc in poll_many(b.cq, random.below(6) as usize) {
            let sent: Sent = flying.pop_front().expect("nothing is on its way");
            assert_eq!((wc.wr_id, wc.status, wc.opcode), (sent.wr_id, IBV_WC_SUCCESS, IBV_WC_RECV));
            assert_eq!((wc.byte_len as usize, wc.qp_num, wc.src_qp), (sent.len, b.num(), a.num()));
            assert_eq!((wc.wc_flags & IBV_WC_WITH_IMM != 0).then_some(unsafe { wc.imm.imm_data }), sent.imm);
            let at = (sent.wr_id % AHEAD) as usize * LEN;
            assert!(into.data[at..at + sent.len] == pattern(sent.seed, sent.len), "message {}", sent.wr_id);
            receive(posted, random.below(4) == 0);
            posted += 1;
        }
    }
    let left: usize = (0..AHEAD).map(|_| poll_many(b.cq, 1).len()).sum();
    assert_eq!(left, flying.len());
}

/// Takes a key away while a message for it is on its way. Another thread may bring it in before: the other tests poll, too. Whether it was
/// noticed.
fn withdraw_under_a_message(dev: &Dev) -> bool {
    let (a, b) = loopback(dev, &Path::default());
    let (out, mut into) = (dev.buf(64), dev.buf(64));
    (0..2).for_each(|wr_id| assert_eq!(b.recv(wr_id, &[into.sge(0, 64)]), 0));
    settle(b.cq);
    assert_eq!(a.send(0, &[out.sge(0, 8)]), 0);
    assert_eq!(b.wait().status, IBV_WC_SUCCESS);
    assert_eq!(a.send(1, &[out.sge(0, 8)]), 0);
    into.dereg();
    into.data.fill(9);
    let status = b.wait().status;
    assert!(into.data.iter().all(|byte| *byte == 9), "written to after it was withdrawn");
    assert!([IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR].contains(&status), "status {status}");
    let noticed = status == IBV_WC_LOC_PROT_ERR;
    assert_eq!(b.state() == IBV_QPS_ERR, noticed);
    noticed
}

#[test]
fn a_key_that_goes_away_is_noticed_by_a_message_for_it() {
    let dev = Dev::open();
    assert!((0..100).any(|_| withdraw_under_a_message(&dev)));
}

#[test]
fn another_key_that_goes_away_leaves_posted_receives_as_they_are() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path::default());
    let (mut out, into) = (dev.buf(64), dev.buf(64));
    settle(b.cq);
    for round in 0..3 {
        let mut other = dev.buf(64);
        (0..4).for_each(|wr_id| assert_eq!(b.recv(wr_id, &[into.sge(8 * wr_id as usize, 8)]), 0));
        for wr_id in 0..4 {
            if wr_id == 2 {
                other.dereg();
            }
            out.data[..8].copy_from_slice(&pattern(round * 4 + wr_id, 8));
            assert_eq!(a.send(wr_id, &[out.sge(0, 8)]), 0);
            let (sent, came) = (a.wait(), b.wait());
            assert_eq!((sent.status, came.status, came.wr_id), (IBV_WC_SUCCESS, IBV_WC_SUCCESS, wr_id));
            let at = 8 * wr_id as usize;
            assert_eq!(into.data[at..at + 8], pattern(round * 4 + wr_id, 8));
        }
    }
}

/// Messages of each sender.
const EACH: u64 = 2000;

/// A queue pair of the other process, connected to one of the test's.
fn connected(dev: &Dev) -> Qp {
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    say(&[qp.num().into()]);
    qp.connect(listen().unwrap()[0] as u32, &Path::default());
    say(&[0]);
    qp
}

/// The test's part of that.
fn connect(qp: &Qp, child: &mut Child) {
    let theirs = child.hear()[0] as u32;
    child.tell(&[qp.num().into()]);
    child.hear();
    qp.connect(theirs, &Path::default());
}

/// Sends numbers as fast as they are taken.
fn stream() {
    let dev = Dev::open();
    let (qp, mut buf) = (connected(&dev), dev.buf(8));
    listen();
    for number in 0..EACH {
        buf.data.copy_from_slice(&number.to_ne_bytes());
        assert_eq!(qp.send(number, &[buf.sge(0, 8)]), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    }
    say(&[1]);
    listen();
}

#[test]
fn one_sender_does_not_keep_others_from_being_heard() {
    const SENDERS: usize = 3;
    const SLOTS: u64 = 16;
    let dev = Dev::open();
    let cq = dev.cq(256);
    let buf = dev.buf(SENDERS * SLOTS as usize * 8);
    let qps: Vec<Qp> = (0..SENDERS).map(|_| dev.qp(IBV_QPT_RC, cq)).collect();
    let mut children: Vec<Child> = (0..SENDERS).map(|_| Child::start("stream")).collect();
    qps.iter().zip(&mut children).for_each(|(qp, child)| connect(qp, child));
    let receive = |wr_id: u64| {
        let sge = buf.sge(wr_id as usize * 8, 8);
        assert_eq!(qps[(wr_id / SLOTS) as usize].recv(wr_id, &[sge]), 0);
    };
    (0..SENDERS as u64 * SLOTS).for_each(receive);
    settle(cq);
    children.iter_mut().for_each(|child| child.tell(&[0]));
    let mut heard = [0; SENDERS];
    let end = Instant::now() + PATIENCE;
    while heard.iter().sum::<u64>() < SENDERS as u64 * EACH {
        for wc in poll_many(cq, 1) {
            assert_eq!(wc.status, IBV_WC_SUCCESS);
            let (sender, at) = ((wc.wr_id / SLOTS) as usize, wc.wr_id as usize * 8);
            assert_eq!(buf.data[at..at + 8], u64::to_ne_bytes(heard[sender]));
            heard[sender] += 1;
            receive(wc.wr_id);
        }
        assert!(Instant::now() < end, "heard {heard:?} of {EACH} each");
    }
    for mut child in children {
        child.hear();
        child.finish();
    }
}

/// Sends a number each time it is told one, and says when it has gone.
fn trickle() {
    let dev = Dev::open();
    let (qp, mut buf) = (connected(&dev), dev.buf(8));
    while let Some(number) = listen() {
        buf.data.copy_from_slice(&number[0].to_ne_bytes());
        assert_eq!(qp.send(0, &[buf.sge(0, 8)]), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
        say(&number);
    }
}

/// In a process of its own, where no other test polls.
#[test]
fn what_one_of_several_sends_after_polls_that_found_nothing_is_found_by_the_next() {
    Child::start("several").finish();
}

fn several_are_found() {
    const SENDERS: usize = 4;
    let dev = Dev::open();
    let (cq, other) = (dev.cq(256), dev.cq(8));
    let buf = dev.buf(8);
    let mut senders = [(); SENDERS].map(|()| (dev.qp(IBV_QPT_RC, cq), Child::start("trickle")));
    senders.iter_mut().for_each(|(qp, child)| connect(qp, child));
    settle(cq);
    for round in 0..300 {
        let (qp, child) = &mut senders[(round * (round + 1) / 2) as usize % SENDERS];
        assert_eq!(qp.recv(round, &[buf.sge(0, 8)]), 0);
        (0..round % 5).for_each(|_| assert!(poll(cq).is_none()));
        child.tell(&[round]);
        let came = if round % 8 == 7 {
            child.hear();
            (0..round % 3).for_each(|_| assert!(poll(other).is_none()));
            poll(cq).expect("what has been sent")
        } else {
            let came = wait(cq);
            child.hear();
            came
        };
        assert_eq!((came.status, came.wr_id), (IBV_WC_SUCCESS, round));
        assert_eq!(buf.data[..], round.to_ne_bytes());
    }
    for (_, child) in senders {
        child.finish();
    }
}

/// In a process of its own, where no other test polls.
#[test]
fn a_ring_that_is_silent_for_long_is_no_longer_looked_at_and_heard_all_the_same() {
    Child::start("pair").finish();
}

fn rings_cool() {
    const ROUNDS: u64 = 6;
    let dev = Dev::open();
    let cq = dev.cq(256);
    let buf = dev.buf(8);
    let mut senders = [(); 2].map(|()| (dev.qp(IBV_QPT_RC, cq), Child::start("trickle")));
    senders.iter_mut().for_each(|(qp, child)| connect(qp, child));
    settle(cq);
    for round in 0..ROUNDS {
        let (qp, child) = &mut senders[round as usize % 2];
        assert_eq!(qp.recv(round, &[buf.sge(0, 8)]), 0);
        child.tell(&[round]);
        child.hear();
        let came = wait(cq);
        assert_eq!((came.status, came.wr_id), (IBV_WC_SUCCESS, round));
        assert_eq!(buf.data[..], round.to_ne_bytes());
        // Each round but the first, the other's. How many polls it takes depends on how many of them are glances. A poller that is kept from the processor
        // for long loses all rings at once.
        let is_cooled = |seen: softib::Stats| seen.cooled >= round || seen.takeovers > 0;
        let mut polls = 0;
        while !is_cooled(softib::stats()) {
            (0..1000).for_each(|_| assert!(poll(cq).is_none()));
            polls += 1000;
            assert!(polls < 8_000_000, "round {round}: {:?}", softib::stats());
        }
    }
    for (_, child) in senders {
        child.finish();
    }
}
