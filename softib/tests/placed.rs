//! Messages that are read where they lie in a ring: what the program sees, and that nothing takes their place meanwhile.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The other process; does nothing when the test runner calls it.
#[test]
fn child_main() {
    if role().as_deref() == Some("sender") {
        sender();
    }
}

const LEN: usize = 16_000;
/// The longest message that goes in one piece to a process that reads in place.
const LONGEST: usize = 65 << 10;
/// What a receive takes.
const ROOM: usize = LONGEST + 1;
const LEAST: usize = 500;

/// One message of a process can be read in place: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queue leaves messages where they are from [`LEAST`] bytes on.
fn place(cq: *mut ibv_cq) -> &'static Placed {
    let enable = table().place_messages.expect("the linked-in device has it");
    unsafe { enable(cq, LEAST as u32).as_ref() }.expect("a queue of ours")
}

/// Enough polls for a program to become the owner of progress and of the lock.
fn settle(cq: *mut ibv_cq) {
    (0..600).for_each(|_| assert!(poll(cq).is_none()));
}

fn is_placed(wc: &ibv_wc) -> bool {
    wc.wc_flags & IBV_WC_PLACED != 0
}

fn read(at: *mut u8, len: usize) -> Vec<u8> {
    unsafe { std::slice::from_raw_parts(at, len) }.to_vec()
}

/// Two queue pairs of this process, and buffers to send from and to receive into.
struct Sides {
    a: Qp,
    b: Qp,
    out: Buf,
    into: Buf,
    word: &'static Placed,
}

/// Receives that fit into the buffer.
const SLOTS: usize = 127;

impl Sides {
    fn new() -> Sides {
        let dev = Dev::open();
        let (a, b) = loopback(&dev, &Path::default());
        let (out, into) = (dev.buf(ROOM), dev.buf(SLOTS * ROOM));
        let word = place(b.cq);
        let sides = Sides { a, b, out, into, word };
        (0..SLOTS).for_each(|slot| sides.receive(slot));
        sides
    }

    /// A message of `len` bytes that stays where it is, and where. The device copies one with which more of the ring comes to be used, and
    /// those that come when the program has not had the processor for a few milliseconds: then another one is sent.
    fn placed(&mut self, seed: u64, len: usize) -> *mut u8 {
        let begin = Instant::now();
        loop {
            settle(self.b.cq);
            let wc = self.transfer(seed, len);
            if is_placed(&wc) {
                let at = self.word.at();
                assert_eq!((wc.byte_len as usize, read(at, len)), (len, pattern(seed, len)));
                let slot = wc.wr_id as usize;
                assert!(self.buffer(slot, len).iter().all(|byte| *byte == 0), "its buffer is not touched");
                self.receive(slot);
                return at;
            }
            assert!(begin.elapsed() < PATIENCE, "none stays");
            self.take(wc, seed, len);
        }
    }

    /// The message was copied into its buffer, which is posted again.
    fn take(&mut self, wc: ibv_wc, seed: u64, len: usize) {
        assert!(!is_placed(&wc));
        let slot = wc.wr_id as usize;
        assert_eq!((wc.byte_len as usize, self.buffer(slot, len)), (len, &pattern(seed, len)[..]));
        self.into.data[slot * ROOM..][..len].fill(0);
        self.receive(slot);
    }

    fn receive(&self, slot: usize) {
        assert_eq!(self.b.recv(slot as u64, &[self.into.sge(slot * ROOM, ROOM)]), 0);
    }

    /// A message of `len` bytes that depend on `seed`; its completion.
    fn transfer(&mut self, seed: u64, len: usize) -> ibv_wc {
        self.post(seed, len);
        let wc = self.b.wait();
        assert_eq!((wc.status, self.a.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
        wc
    }

    fn post(&mut self, seed: u64, len: usize) {
        self.out.data[..len].copy_from_slice(&pattern(seed, len));
        assert_eq!(self.a.send(seed, &[self.out.sge(0, len)]), 0);
    }

    fn buffer(&self, slot: usize, len: usize) -> &[u8] {
        &self.into.data[slot * ROOM..][..len]
    }
}

#[test]
fn a_long_message_stays_where_it_is_and_the_next_ones_are_copied_until_it_is_released() {
    let _alone = alone();
    let mut sides = Sides::new();
    let at = sides.placed(0, 1000);
    for seed in 1..4 {
        let wc = sides.transfer(seed, 1000);
        sides.take(wc, seed, 1000);
    }
    assert_eq!((sides.word.at(), read(at, 1000)), (at, pattern(0, 1000)));
    assert!(sides.word.release(at) && !sides.word.release(at), "once");
    let at = sides.placed(4, LEN);
    assert!(sides.word.release(at));
    assert!(softib::stats().placed >= 2);
}

#[test]
fn a_poll_of_another_queue_leaves_it_where_it_is_but_not_for_ever() {
    let _alone = alone();
    let mut sides = Sides::new();
    let polled = |sides: &mut Sides, seed: u64, times: usize| {
        let at = sides.placed(seed, LEN);
        assert!(sides.word.release(at));
        settle(sides.b.cq);
        sides.post(seed, LEN);
        assert_eq!(sides.a.wait().status, IBV_WC_SUCCESS);
        (0..times).for_each(|_| assert!(poll(sides.a.cq).is_none()));
        sides.b.wait()
    };
    // Where the program has not had the processor for some milliseconds the device thread copies it.
    let begin = Instant::now();
    let mut seed = 0;
    let left = loop {
        let wc = polled(&mut sides, seed, 20);
        if is_placed(&wc) {
            break wc;
        }
        assert!(begin.elapsed() < PATIENCE, "none is left");
        sides.take(wc, seed, LEN);
        seed += 1;
    };
    let at = sides.word.at();
    assert_eq!(read(at, LEN), pattern(seed, LEN));
    sides.receive(left.wr_id as usize);
    assert!(sides.word.release(at));
    let wc = polled(&mut sides, seed + 1, 200);
    sides.take(wc, seed + 1, LEN);
}

#[test]
fn a_short_message_is_copied() {
    let _alone = alone();
    let mut sides = Sides::new();
    let at = sides.placed(0, LEAST);
    assert!(sides.word.release(at));
    for (seed, len) in [(0, 0), (1, 8), (2, 96), (3, LEAST - 1)] {
        let wc = sides.transfer(seed, len);
        sides.take(wc, seed, len);
        assert!(sides.word.at().is_null());
    }
}

#[test]
fn a_message_in_several_pieces_is_copied() {
    let _alone = alone();
    let mut sides = Sides::new();
    for (seed, len) in [(0, 24 << 10), (1, (24 << 10) + 1), (2, LONGEST)] {
        let at = sides.placed(seed, len);
        assert!(sides.word.release(at));
    }
    for seed in 3..9 {
        settle(sides.b.cq);
        let wc = sides.transfer(seed, LONGEST + 1);
        sides.take(wc, seed, LONGEST + 1);
    }
}

#[test]
fn a_full_ring_waits_for_the_message_that_is_read_and_goes_on_when_it_is_released() {
    const MESSAGES: u64 = 200;
    let _alone = alone();
    let mut sides = Sides::new();
    let at = sides.placed(0, LEN);
    // More than a ring holds, each posted when the one before is out.
    let (mut sent, mut got) = (1, 1);
    let mut send_next = |sides: &mut Sides| {
        if sent < MESSAGES && (sent == 1 || poll(sides.a.cq).is_some()) {
            sides.post(sent, LEN);
            sent += 1;
        }
        sent
    };
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(300) {
        send_next(&mut sides);
        if let Some(wc) = poll(sides.b.cq) {
            sides.take(wc, got, LEN);
            got += 1;
        }
    }
    assert!(got > 1 && got < MESSAGES / 2, "{got} came beside it: the ring is full");
    assert_eq!((sides.word.at(), read(at, LEN)), (at, pattern(0, LEN)));
    assert!(sides.word.release(at));
    while got < MESSAGES {
        let sent = send_next(&mut sides);
        let Some(wc) = poll(sides.b.cq) else {
            assert!(begin.elapsed() < PATIENCE, "{got} of {sent} came");
            continue;
        };
        if is_placed(&wc) {
            assert_eq!(read(sides.word.at(), LEN), pattern(got, LEN));
            assert!(sides.word.release(sides.word.at()));
            sides.receive(wc.wr_id as usize);
        } else {
            sides.take(wc, got, LEN);
        }
        got += 1;
    }
}

#[test]
fn a_queue_that_is_destroyed_takes_back_what_it_gave() {
    let _alone = alone();
    let mut sides = Sides::new();
    sides.placed(0, 1000);
    let Sides { a, b, word, .. } = sides;
    let cq = b.cq;
    a.destroy();
    b.destroy();
    assert!(!word.at().is_null());
    assert_eq!(unsafe { (table().destroy_cq)(cq) }, 0);
    assert!(word.at().is_null());
}

/// Sends a message of 1000 bytes on each word of the parent's, and tells when it is out.
fn sender() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let mut out = dev.buf(1000);
    say(&[qp.num().into()]);
    let theirs = listen().unwrap()[0] as u32;
    qp.connect(theirs, &Path::default());
    say(&[0]);
    while let Some(seed) = listen() {
        out.data.copy_from_slice(&pattern(seed[0], 1000));
        assert_eq!(qp.send(0, &[out.sge(0, 1000)]), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
        say(&[0]);
    }
}

/// A sending process, and our queue pair with `receives` posted.
fn of_a_process(dev: &Dev, into: &Buf, receives: usize) -> (Child, Qp) {
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let mut child = Child::start("sender");
    let theirs = child.hear()[0] as u32;
    qp.init(ALL_ACCESS);
    for slot in 0..receives {
        assert_eq!(qp.recv(slot as u64, &[into.sge(slot * 1000, 1000)]), 0);
    }
    qp.rtr(theirs, &Path::default());
    qp.rts(&Path::default());
    child.tell(&[qp.num().into()]);
    child.hear();
    (child, qp)
}

/// A message that stays where it is, and its seed. The first one is announced, with the next ones the ring comes to be used as far as it will be.
fn placed_of(child: &mut Child, qp: &Qp, into: &Buf, word: &Placed) -> (*mut u8, u64) {
    for seed in 0.. {
        settle(qp.cq);
        child.tell(&[seed]);
        let wc = qp.wait();
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        child.hear();
        let slot = wc.wr_id as usize;
        assert_eq!(qp.recv(wc.wr_id, &[into.sge(slot * 1000, 1000)]), 0);
        if is_placed(&wc) {
            assert_eq!(read(word.at(), 1000), pattern(seed, 1000));
            return (word.at(), seed);
        }
        assert!(seed < 10_000, "none stays");
    }
    unreachable!()
}

#[test]
fn the_ring_of_a_killed_sender_stays_until_its_message_has_been_read() {
    let _alone = alone();
    let dev = Dev::open();
    let into = dev.buf(9000);
    let (mut child, qp) = of_a_process(&dev, &into, 9);
    let word = place(qp.cq);
    let (at, seed) = placed_of(&mut child, &qp, &into, word);
    child.kill();
    // The device looks for dead senders every half second.
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(read(at, 1000), pattern(seed, 1000));
    assert!(word.release(at));
    std::thread::sleep(Duration::from_millis(1200));
    assert!(read(at, 1000) != pattern(seed, 1000), "its space is the file system's again");
}

#[test]
fn what_comes_while_nobody_polls_is_copied_and_its_ring_told_of_when_the_message_has_been_read() {
    let _alone = alone();
    let dev = Dev::open();
    let into = dev.buf(80_000);
    let (mut child, qp) = of_a_process(&dev, &into, 80);
    let word = place(qp.cq);
    let (at, _) = placed_of(&mut child, &qp, &into, word);
    assert!(word.release(at));
    // The device thread is in charge now, and reads the ring for us: more than what a ring has at first.
    std::thread::sleep(Duration::from_millis(50));
    for seed in 2..64 {
        child.tell(&[seed]);
        child.hear();
    }
    std::thread::sleep(Duration::from_millis(50));
    for seed in 2..64 {
        let wc = qp.wait();
        assert!(!is_placed(&wc), "it had been copied before the first poll");
        assert_eq!(into.data[wc.wr_id as usize * 1000..][..1000], pattern(seed, 1000));
    }
    assert!(softib::stats().takeovers > 0);
}
