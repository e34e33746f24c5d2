//! Long READs of two processes from each other: each fetches its own as long as they cross, and is sent what it reads when they no longer do.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::time::Instant;

/// Both processes; does nothing when the test runner calls it. One that counts what it has done is alone in its process.
#[test]
fn child_main() {
    match role().as_deref() {
        Some("one") => one(),
        Some("other") => other(),
        other => assert_eq!(other, None, "no such role"),
    }
}

/// Bytes of a READ.
const LEN: usize = 1 << 20;
/// What is read, what is read into, and words: one that goes out and two that come.
const INTO: usize = LEN;
const WORDS: usize = 2 * LEN;

/// What the first process says of a round: the other one reads as well, or does not; or it was the last one.
const BOTH: u64 = 1;
const ONE: u64 = 2;
const END: u64 = 3;

const SENT: u64 = 10;
const READ: u64 = 11;

/// A process' end of it.
struct Side {
    _dev: Dev,
    qp: Qp,
    buf: Buf,
    /// The other one's memory.
    theirs: (u64, u32),
    /// Words that have come, and those that have been taken.
    came: u64,
    taken: u64,
}

impl Side {
    fn new() -> Side {
        let dev = Dev::open();
        let (qp, buf) = (dev.qp(IBV_QPT_RC, dev.cq(16)), dev.buf(WORDS + 24));
        Side { _dev: dev, qp, buf, theirs: (0, 0), came: 0, taken: 0 }
    }

    fn name(&self) -> [u64; 3] {
        [self.qp.num().into(), self.buf.addr(), self.buf.key().into()]
    }

    fn connect(&mut self, name: &[u64]) {
        self.qp.init(ALL_ACCESS);
        (0..2).for_each(|number| self.receive(number));
        self.qp.rtr(name[0] as u32, &Path::default());
        self.qp.rts(&Path::default());
        self.theirs = (name[1], name[2] as u32);
    }

    fn receive(&self, number: u64) {
        assert_eq!(self.qp.recv(0, &[self.buf.sge(WORDS + 8 + 8 * (number % 2) as usize, 8)]), 0);
    }

    /// Polls for the completion of a request of ours.
    fn finish(&mut self, wr_id: u64) {
        while self.next() != wr_id {}
    }

    fn next(&mut self) -> u64 {
        let wc = self.qp.wait();
        assert_eq!(wc.status, IBV_WC_SUCCESS, "{:?}", softib::stats());
        self.came += u64::from(wc.wr_id == 0);
        wc.wr_id
    }

    /// Says a word, and takes one.
    fn exchange(&mut self, word: u64) -> u64 {
        self.buf.data[WORDS..WORDS + 8].copy_from_slice(&word.to_ne_bytes());
        assert_eq!(self.qp.send(SENT, &[self.buf.sge(WORDS, 8)]), 0);
        self.finish(SENT);
        while self.came == self.taken {
            self.next();
        }
        let at = WORDS + 8 + 8 * (self.taken % 2) as usize;
        let word = u64::from_ne_bytes(self.buf.data[at..at + 8].try_into().unwrap());
        self.receive(self.taken);
        self.taken += 1;
        word
    }

    /// Reads what the other one has, which is to be the pattern of this round.
    fn reads(&mut self, seed: u64) {
        let (addr, key) = self.theirs;
        assert_eq!(self.qp.rdma(READ, IBV_WR_RDMA_READ, self.buf.sge(INTO, LEN), addr, key), 0);
        self.finish(READ);
        assert_eq!(self.buf.data[INTO..WORDS], pattern(seed, LEN), "{:?}", softib::stats());
    }

    /// A round; what the other one has said of it. `reads`: whether this process reads as the first one has it.
    fn round(&mut self, seed: u64, what: u64, reads: impl FnOnce(u64) -> bool) -> u64 {
        self.buf.data[..LEN].copy_from_slice(&pattern(seed, LEN));
        let said = self.exchange(what);
        if reads(said) {
            self.reads(seed);
        }
        // Until both have read.
        self.exchange(0);
        said
    }
}

fn other() {
    let mut side = Side::new();
    say(&side.name());
    side.connect(&listen().unwrap());
    say(&[0]);
    let mut seed = 0;
    while side.round(seed, 0, |said| said == BOTH) != END {
        seed += 1;
    }
}

fn one() {
    let mut side = Side::new();
    let mut child = Child::start("other");
    side.connect(&child.hear());
    child.tell(&side.name());
    child.hear();
    let (began, mut seed) = (Instant::now(), 0);
    // Those that cross are fetched; then those that do not are sent.
    for what in [BOTH, ONE] {
        let counts = || match what {
            BOTH => softib::stats().rdma_direct,
            _ => softib::stats().rdma_ring,
        };
        let mut in_a_row = 0;
        while in_a_row < 5 {
            assert!(began.elapsed() < PATIENCE, "{what}: {:?}", softib::stats());
            let before = counts();
            side.round(seed, what, |_| true);
            in_a_row = if counts() > before { in_a_row + 1 } else { 0 };
            seed += 1;
        }
    }
    side.round(seed, END, |_| false);
    child.finish();
}

#[test]
fn long_reads_that_cross_are_fetched_and_others_are_sent() {
    Child::start_with("one", &[("SOFTIB_PROCESSORS", "2"), ("SOFTIB_CMA", "late")]).finish();
}
