//! Long messages to receives whose buffers are in memory that a program has as a shared mapping of a file: their initiator places them there itself, and
//! nothing else about them changes.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::fs::File;
use std::ptr::null_mut;
use std::slice::from_raw_parts;
use std::time::{Duration, Instant};

/// The other process; does nothing when the test runner calls it. Tests that count what this process did are processes of their own as well.
#[test]
fn child_main() {
    match role().as_deref() {
        Some("receiver") => receiver(),
        Some("sends everything") => sends_everything(),
        Some("sends what does not fit") => sends_what_does_not_fit(),
        Some("sends one") => sends_one(),
        Some("begins anew") => begins_anew(),
        Some("cut short") => cut_short(),
        other => assert_eq!(other, None, "no such role"),
    }
}

/// Bytes of a receive, and of the receiver's memory.
const LEN: usize = 100 << 10;
const RECEIVES: usize = 8;
const LEAST: usize = 2048;

/// Memory of a file without a name, or private memory; it leaks.
fn memory(is_file: bool, len: usize) -> (*mut u8, Option<File>) {
    if !is_file {
        return (Vec::leak(vec![0; len]).as_mut_ptr(), None);
    }
    let file = memory_file(len);
    (mapped(&file, len), Some(file))
}

/// Posts receives and does as it is told: [0, n, pieces, len] posts receive n in so many pieces, [1] waits for the next completion and says what it is,
/// [2, n, len, seed] compares what is there, [3] deregisters the memory, [4, len] cuts the file, [6] ends the queue pair, [7, peer] begins anew, [5] is the
/// end.
fn receiver() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let dev = Dev::open();
    let srq = if variable("TEST_SRQ") == "1" { dev.srq(32) } else { null_mut() };
    let kind = variable("TEST_QP").parse().unwrap();
    let qp = dev.qp_with(kind, dev.cq(64), srq, |_| ());
    let (at, file) = memory(variable("TEST_FILE") == "1", RECEIVES * LEN);
    let access = IBV_ACCESS_LOCAL_WRITE.cast_signed();
    let mr = unsafe { (table().reg_mr)(dev.pd, at.cast(), RECEIVES * LEN, access) };
    let lkey = unsafe { (*mr).lkey };
    qp.init(ALL_ACCESS);
    say(&[qp.num().into()]);
    qp.rtr(listen().unwrap()[0] as u32, &Path::default());
    qp.rts(&Path::default());
    say(&[]);
    while let Some(words) = listen() {
        match words[..] {
            [0, n, pieces, len] => {
                let piece = |at: u64, length: u64| ibv_sge { addr: at, length: length as u32, lkey };
                let start = at as u64 + n * LEN as u64;
                let sges: Vec<ibv_sge> =
                    (0..pieces).map(|i| piece(start + i * (len / pieces), len / pieces)).collect();
                let posted = match sges[..] {
                    [one] if !srq.is_null() => srq_recv(srq, n, one),
                    _ => qp.recv(n, &sges),
                };
                say(&[posted as u64]);
            }
            [1] => {
                let wc = qp.wait();
                let imm = unsafe { wc.imm.imm_data };
                say(&[wc.status, wc.opcode, wc.byte_len, wc.wc_flags, imm].map(u64::from));
            }
            [2, n, len, seed] => {
                let bytes = unsafe { from_raw_parts(at.add(n as usize * LEN), len as usize) };
                assert_eq!(bytes, pattern(seed, len as usize), "{len} bytes, receive {n}");
                say(&[]);
            }
            [3] => say(&[unsafe { (table().dereg_mr)(mr) } as u64]),
            [4, len] => {
                file.as_ref().unwrap().set_len(len).unwrap();
                say(&[]);
            }
            [6] => say(&[qp.to_state(IBV_QPS_ERR) as u64]),
            [7, peer] => {
                assert_eq!(qp.to_state(IBV_QPS_RESET), 0);
                qp.connect(peer as u32, &Path::default());
                say(&[]);
            }
            _ => break,
        }
    }
}

/// One that sends to a receiver.
struct Sender {
    buf: Buf,
    qp: Qp,
    child: Child,
    peer: u32,
    next: u64,
}

impl Sender {
    fn new(qp_kind: u32, is_file: bool, has_srq: bool) -> Sender {
        let dev = Dev::open();
        let (qp, buf) = (dev.qp(qp_kind, dev.cq(64)), dev.buf(LEN + 8));
        let (kind, flags) = (qp_kind.to_string(), [has_srq, is_file].map(|is| if is { "1" } else { "0" }));
        let env = [("TEST_QP", &*kind), ("TEST_SRQ", flags[0]), ("TEST_FILE", flags[1])];
        let mut child = Child::start_with("receiver", &env);
        let peer = child.hear()[0] as u32;
        qp.connect(peer, &Path::default());
        child.tell(&[qp.num().into()]);
        child.hear();
        Sender { buf, qp, child, peer, next: 0 }
    }

    /// One that places its long messages in the receiver's buffers.
    fn that_fills() -> Sender {
        let mut sender = Sender::new(IBV_QPT_RC, true, false);
        sender.warms_up();
        sender
    }

    fn asks(&mut self, words: &[u64]) -> Vec<u64> {
        self.child.tell(words);
        self.child.hear()
    }

    /// Has a receive of so many bytes, in pieces, posted; its number.
    fn has_posted(&mut self, pieces: u64, len: usize) -> u64 {
        let n = self.next % RECEIVES as u64;
        self.next += 1;
        assert_eq!(self.asks(&[0, n, pieces, len as u64]), [0]);
        n
    }

    /// Sends a message, in pieces of the lengths.
    fn sends(&mut self, lens: &[usize], seed: u64, imm: Option<u32>) -> u32 {
        let len = lens.iter().sum();
        self.buf.data[..len].copy_from_slice(&pattern(seed, len));
        let mut at = 0;
        let mut sges = Vec::new();
        for len in lens {
            sges.push(self.buf.sge(at, *len));
            at += len;
        }
        let opcode = if imm.is_some() { IBV_WR_SEND_WITH_IMM } else { IBV_WR_SEND };
        let posted = self.qp.post(7, opcode, &sges, |wr| wr.imm.imm_data = imm.unwrap_or_default());
        assert_eq!(posted, 0);
        self.qp.wait().status
    }

    /// A message arrives in a receive with so many pieces.
    fn delivers(&mut self, lens: &[usize], pieces: u64, seed: u64, imm: Option<u32>) {
        let len: usize = lens.iter().sum();
        let n = self.has_posted(pieces, LEN);
        assert_eq!(self.sends(lens, seed, imm), IBV_WC_SUCCESS);
        let done = self.asks(&[1]);
        let flags = if imm.is_some() { IBV_WC_WITH_IMM } else { 0 };
        let wanted = [IBV_WC_SUCCESS, IBV_WC_RECV, len as u32, flags, imm.unwrap_or_default()];
        assert_eq!(done, wanted.map(u64::from), "{lens:?}");
        self.asks(&[2, n, len as u64, seed]);
    }

    /// Sends long messages until the receiver's buffers are filled from here, if they ever are.
    fn warms_up(&mut self) {
        (0..60).for_each(|seed| self.delivers(&[LEAST], 1, seed, None));
    }

    fn ends(mut self) {
        self.child.tell(&[5]);
        self.child.finish();
    }
}

/// How many messages this process has placed in buffers of others.
fn filled() -> u64 {
    softib::stats().filled
}

#[test]
fn long_messages_are_placed_where_memory_is_a_file_and_all_arrive_everywhere() {
    Child::start("sends everything").finish();
}

fn sends_everything() {
    for qp_kind in [IBV_QPT_RC, IBV_QPT_UC] {
        for (is_file, has_srq) in [(true, false), (true, true), (false, false), (false, true)] {
            if qp_kind == IBV_QPT_UC && has_srq {
                continue;
            }
            let mut sender = Sender::new(qp_kind, is_file, has_srq);
            sender.warms_up();
            // What is posted from now on may be filled.
            let before = filled();
            let mut long = 0;
            for (round, len) in
                [0, 1, 8, 2047, 2048, 2049, 4096, 9000, 24 << 10, 30_000, LEN - 1, LEN].iter().enumerate()
            {
                let seed = 100 + round as u64;
                for (lens, imm) in [
                    (vec![*len], None),
                    (vec![*len], Some(seed as u32)),
                    (vec![len / 3, 0, len - len / 3], None),
                ] {
                    sender.delivers(&lens, 1, seed, imm);
                    long += u64::from(*len >= LEAST);
                }
            }
            assert_eq!(filled() - before, if is_file { long } else { 0 }, "{qp_kind} {is_file} {has_srq}");
            sender.ends();
        }
    }
}

/// What is to go into other receives than those with one buffer, of the same queue, goes through the ring; and so do messages to receives that do not fit.
#[test]
fn receives_in_pieces_and_too_short_ones_are_as_ever() {
    Child::start("sends what does not fit").finish();
}

fn sends_what_does_not_fit() {
    let mut sender = Sender::that_fills();
    let before = filled();
    for round in 0..4 * 128 {
        // All of them come round at each place of the queue.
        let pieces = 1 + round % 3;
        sender.delivers(&[LEAST + 100 * round as usize], pieces, round, None);
    }
    assert_eq!(filled() - before, (4 * 128_u64).div_ceil(3));
    sender.has_posted(1, 5000);
    assert_eq!(sender.sends(&[5001], 1, None), IBV_WC_REM_INV_REQ_ERR);
    assert_eq!(sender.asks(&[1])[0], IBV_WC_LOC_LEN_ERR.into());
    sender.ends();
}

#[test]
fn memory_that_is_registered_no_more_is_not_written_to() {
    let mut sender = Sender::that_fills();
    sender.has_posted(1, LEN);
    assert_eq!(sender.asks(&[3]), [0]);
    sender.sends(&[LEAST], 1, None);
    assert_eq!(sender.asks(&[1])[0], IBV_WC_LOC_PROT_ERR.into());
    sender.ends();
}

/// Whoever has the file can cut it: the sender must not die of that, and the receiver hears of it as it would of its own access.
#[test]
fn a_file_that_is_cut_short_is_not_the_senders_end() {
    Child::start("cut short").finish();
}

fn cut_short() {
    let mut sender = Sender::that_fills();
    let n = sender.has_posted(1, LEN);
    sender.asks(&[4, n * LEN as u64]);
    let before = filled();
    assert_eq!(sender.sends(&[3 * 4096], 1, None), IBV_WC_SUCCESS, "it has consumed a receive");
    assert_eq!(filled(), before, "what is lost has not been placed");
    // The receiver may die of its own mapping, as any program does that has its file cut.
    sender.child.kill();
}

/// The receive has been consumed and the sender has its completion: a queue pair that ends then has the message all the same.
#[test]
fn what_has_been_acknowledged_is_delivered() {
    let mut sender = Sender::that_fills();
    for _ in 0..2 {
        sender.has_posted(1, LEN);
    }
    assert_eq!(sender.sends(&[9000], 5, None), IBV_WC_SUCCESS);
    assert_eq!(sender.asks(&[6]), [0]);
    let n = sender.next - 2;
    assert_eq!(sender.asks(&[1])[..3], [IBV_WC_SUCCESS, IBV_WC_RECV, 9000].map(u64::from));
    sender.asks(&[2, n % RECEIVES as u64, 9000, 5]);
    assert_eq!(sender.asks(&[1])[0], IBV_WC_WR_FLUSH_ERR.into());
    sender.ends();
}

/// Its positions begin anew: what is known of a receive before says nothing of the one that has its position now.
#[test]
fn a_queue_pair_that_begins_anew_is_asked_anew() {
    Child::start("begins anew").finish();
}

fn begins_anew() {
    let mut sender = Sender::new(IBV_QPT_RC, true, false);
    (0..100).for_each(|seed| sender.delivers(&[LEAST], 1, seed, None));
    assert_eq!(sender.qp.to_state(IBV_QPS_RESET), 0);
    let (me, peer) = (sender.qp.num(), sender.peer);
    sender.asks(&[7, me.into()]);
    sender.qp.connect(peer, &Path::default());
    sender.warms_up();
    let before = filled();
    (0..40).for_each(|seed| sender.delivers(&[LEAST + 8], 2, seed, None));
    assert_eq!(filled(), before, "they are in two pieces");
    sender.delivers(&[LEAST], 1, 1, None);
    assert_eq!(filled(), before + 1);
    sender.ends();
}

/// Bytes of a message that takes a while.
const HUGE: usize = 256 << 20;

/// Sends small messages until they are placed by its own hand, and then one that takes a while, over and over.
fn sends_one() {
    let dev = Dev::open();
    let (qp, buf) = (dev.qp(IBV_QPT_RC, dev.cq(64)), dev.buf(HUGE));
    qp.init(ALL_ACCESS);
    say(&[qp.num().into()]);
    qp.rtr(listen().unwrap()[0] as u32, &Path::default());
    qp.rts(&Path::default());
    say(&[]);
    while let Some(words) = listen() {
        let (len, before) = (words[0] as usize, filled());
        assert_eq!(qp.send(1, &[buf.sge(0, len)]), 0);
        let status = qp.wait().status;
        say(&[status.into(), filled() - before]);
    }
}

/// A receiver whose memory a child fills.
struct Filled {
    qp: Qp,
    at: *mut u8,
    lkey: u32,
    child: Child,
    _file: Option<File>,
}

impl Filled {
    fn new() -> Filled {
        let dev = Dev::open();
        let qp = dev.qp(IBV_QPT_RC, dev.cq(64));
        let (at, file) = memory(true, HUGE);
        let access = IBV_ACCESS_LOCAL_WRITE.cast_signed();
        let lkey = unsafe { (*(table().reg_mr)(dev.pd, at.cast(), HUGE, access)).lkey };
        let mut child = Child::start("sends one");
        let number = child.hear()[0];
        qp.connect(number as u32, &Path::default());
        child.tell(&[qp.num().into()]);
        child.hear();
        let mut receiver = Filled { qp, at, lkey, child, _file: file };
        (0..60).for_each(|_| drop(receiver.gets(LEAST)));
        assert_eq!(receiver.gets(LEAST), [IBV_WC_SUCCESS.into(), 1], "the child fills the buffer");
        receiver
    }

    fn posts(&self) {
        let sge = ibv_sge { addr: self.at as u64, length: HUGE as u32, lkey: self.lkey };
        assert_eq!(self.qp.recv(1, &[sge]), 0);
    }

    fn gets(&mut self, len: usize) -> Vec<u64> {
        self.posts();
        self.child.tell(&[len as u64]);
        assert_eq!(self.qp.wait().status, IBV_WC_SUCCESS);
        self.child.hear()
    }

    /// A byte of the memory.
    fn byte(&self, at: usize) -> u8 {
        unsafe { self.at.add(at).read_volatile() }
    }

    /// The child is in the middle of a copy that takes a while: it has written to some places, and not to others. memcpy(3) begins where it likes.
    fn is_filled(&mut self) {
        unsafe { self.at.write_bytes(0xff, HUGE) };
        self.posts();
        self.child.tell(&[HUGE as u64]);
        let began = Instant::now();
        let places = (0..HUGE).step_by(1 << 20).chain([HUGE - 1]);
        let written = |receiver: &Filled| places.clone().filter(|at| receiver.byte(*at) != 0xff).count();
        while written(self) == 0 {
            assert!(began.elapsed() < PATIENCE, "nothing is written");
        }
        assert!(written(self) < places.count(), "the copy is over already");
    }
}

#[test]
fn a_queue_pair_that_ends_waits_for_whoever_fills_its_receives() {
    for to in [IBV_QPS_ERR, IBV_QPS_RESET] {
        let mut receiver = Filled::new();
        receiver.is_filled();
        receiver.child.stop();
        let (process, qp) = (receiver.child.process.id().cast_signed(), receiver.qp);
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(unsafe { libc::kill(process, libc::SIGCONT) }, 0);
        });
        let began = Instant::now();
        assert_eq!(qp.to_state(to), 0);
        assert!(began.elapsed() >= Duration::from_millis(250), "it has not waited");
        // The program may use its memory again.
        unsafe { receiver.at.write_bytes(0xee, HUGE) };
        if to == IBV_QPS_ERR {
            let wc = receiver.qp.wait();
            assert!([IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR].contains(&wc.status), "{}", wc.status);
        }
        later.join().unwrap();
        receiver.child.hear();
        assert!((0..HUGE).step_by(4096).all(|at| receiver.byte(at) == 0xee), "written to afterwards");
        receiver.child.finish();
    }
}

#[test]
fn a_process_that_dies_while_it_fills_a_receive_is_not_waited_for() {
    let mut receiver = Filled::new();
    receiver.is_filled();
    receiver.child.kill();
    let began = Instant::now();
    assert_eq!(receiver.qp.to_state(IBV_QPS_ERR), 0);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(receiver.qp.wait().status, IBV_WC_WR_FLUSH_ERR);
}
