//! Memory that a process shares with its peers: what they write to it by RDMA they copy by their own hand, in order, as far as they may.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The other process; does nothing when the test runner calls it. Tests that count what this process did, or whose thread has to be
/// the only one to use the device, are processes of their own as well: `cargo test` runs tests as threads of one process.
#[test]
fn child_main() {
    match role().as_deref() {
        Some("owner") => owner(),
        Some("partner") => partner(),
        Some("writer") => writer(),
        Some("every length") => every_length(),
        Some("pieces") => pieces(),
        Some("at once") => at_once(),
        Some("their region") => their_region(),
        Some("counted") => counted(),
        Some("their peer") => their_peer(),
        other => assert_eq!(other, None, "no such role"),
    }
}

const LEN: usize = 16 << 10;

/// Memory that peers map, and its key.
struct Shared {
    at: *mut u8,
    mr: *mut ibv_mr,
}

impl Shared {
    fn new(dev: &Dev, len: usize, access: u32) -> Shared {
        let at = unsafe { (table().share_memory.expect("the linked-in device has it"))(len) };
        assert!(!at.is_null(), "{}", std::io::Error::last_os_error());
        let mr = unsafe { (table().reg_mr)(dev.pd, at, len, access.cast_signed()) };
        assert!(!mr.is_null(), "{}", std::io::Error::last_os_error());
        Shared { at: at.cast(), mr }
    }

    fn name(&self) -> [u64; 2] {
        [self.at as u64, unsafe { (*self.mr).rkey }.into()]
    }

    fn bytes(&self, at: usize, len: usize) -> &'static [u8] {
        unsafe { from_raw_parts(self.at.add(at), len) }
    }

    fn deregister(&self) -> i32 {
        unsafe { (table().dereg_mr)(self.mr) }
    }

    /// The region is of its first `len` bytes only from now on, under the same key.
    fn reduce_to(&self, len: usize) -> i32 {
        let flags = IBV_REREG_MR_CHANGE_TRANSLATION.cast_signed();
        unsafe { softib::rereg_mr(self.mr, flags, std::ptr::null_mut(), self.at.cast(), len, 0) }
    }

    fn unshare(&self) -> i32 {
        unsafe { (table().unshare_memory.expect("the linked-in device has it"))(self.at.cast()) }
    }
}

#[test]
fn it_is_zero_at_first_and_goes_when_no_region_is_in_it() {
    let dev = Dev::open();
    let shared = Shared::new(&dev, 100, ALL_ACCESS);
    assert!(shared.bytes(0, 100).iter().all(|byte| *byte == 0));
    unsafe { from_raw_parts_mut(shared.at, 100) }.fill(0xff);
    assert_eq!(shared.unshare(), libc::EBUSY);
    assert_eq!((shared.deregister(), shared.unshare(), shared.unshare()), (0, 0, libc::EINVAL));
    let again = Shared::new(&dev, 128, ALL_ACCESS);
    assert_eq!(again.at, shared.at, "the first hole");
    assert!(again.bytes(0, 128).iter().all(|byte| *byte == 0));
    let share = table().share_memory.unwrap();
    assert!(unsafe { share(0) }.is_null() && unsafe { share(1 << 30) }.is_null());
    assert_eq!((again.deregister(), again.unshare()), (0, 0));
}

/// Shares memory, and does as it is told: [0, offset, len, seed] compares it, [1] deregisters it, [3] leaves 64 bytes of its region, [2] is the end.
fn owner() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(64));
    let shared = Shared::new(&dev, LEN, ALL_ACCESS);
    say(&[&shared.name()[..], &[qp.num().into()]].concat());
    qp.connect(listen().unwrap()[0] as u32, &Path::default());
    say(&[]);
    while let Some(words) = listen() {
        match words[..] {
            [0, at, len, seed] => {
                let whole = pattern(seed, len as usize);
                assert_eq!(shared.bytes(at as usize, len as usize), whole, "{len} bytes at {at}");
            }
            [1] => assert_eq!((shared.deregister(), shared.unshare()), (0, 0)),
            [3] => assert_eq!(shared.reduce_to(64), 0),
            _ => break,
        }
        say(&[]);
    }
}

struct Writer {
    dev: Dev,
    qp: Qp,
    child: Child,
    addr: u64,
    rkey: u32,
}

impl Writer {
    fn new() -> Writer {
        let dev = Dev::open();
        let qp = dev.qp(IBV_QPT_RC, dev.cq(64));
        let mut child = Child::start("owner");
        let hello = child.hear();
        qp.connect(hello[2] as u32, &Path::default());
        child.tell(&[qp.num().into()]);
        child.hear();
        Writer { dev, qp, child, addr: hello[0], rkey: hello[1] as u32 }
    }

    fn asks(&mut self, words: &[u64]) {
        self.child.tell(words);
        self.child.hear();
    }

    /// Writes two pieces and a word, which goes to `at`, in the device's own way; false: nothing has happened.
    fn writes_short(&self, [head, body]: [&[u8]; 2], last: u64, at: usize) -> bool {
        let (remote_addr, rkey) = (self.addr.wrapping_add(at as u64), self.rkey);
        let (head, head_len, body, body_len) = (head.as_ptr(), head.len(), body.as_ptr(), body.len());
        let pieces = ShortWrite { head, head_len, body, body_len };
        let write = table().write_short.expect("the linked-in device has it");
        match unsafe { write(self.qp.qp, &pieces, last, remote_addr, rkey) } {
            0 => true,
            code => {
                assert_eq!(code, libc::EAGAIN);
                false
            }
        }
    }

    /// Until the lock of the device is biased to this thread, and it knows the peer's memory, such writes have not happened.
    fn warm_up(&self, sge: ibv_sge) {
        let begin = Instant::now();
        while !self.writes_short([&[], &[]], 0, 0) {
            assert_eq!(self.writes(sge, 0, IBV_SEND_SIGNALED).unwrap().status, IBV_WC_SUCCESS);
            assert!(begin.elapsed().as_secs() < 10, "{:?}", softib::stats());
        }
    }

    /// Writes from `sge` to `at`, inline or not; the completion, if there is to be one.
    fn writes(&self, sge: ibv_sge, at: usize, flags: u32) -> Option<ibv_wc> {
        assert_eq!(self.posts(sge, at, flags), 0);
        (flags & IBV_SEND_SIGNALED != 0).then(|| self.qp.wait())
    }

    /// The same without waiting: what ibv_post_send says.
    fn posts(&self, sge: ibv_sge, at: usize, flags: u32) -> i32 {
        self.qp.post(9, IBV_WR_RDMA_WRITE, &[sge], |wr| {
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr: self.addr + at as u64, rkey: self.rkey };
            wr.send_flags = flags;
        })
    }
}

#[test]
fn writes_of_every_length_arrive_where_they_are_to_without_the_owner() {
    Child::start("every length").finish();
}

fn every_length() {
    let mut writer = Writer::new();
    let mut out = writer.dev.buf(LEN);
    let direct = softib::stats().rdma_direct;
    let max_inline = writer.qp.max_inline();
    for (round, len) in (0..300).chain([511, 512, 4096, 10_000]).enumerate() {
        let (seed, at) = (round as u64 + 1, 7 * round % 1000);
        out.data[..len].copy_from_slice(&pattern(seed, len));
        let inline = if len <= max_inline && round % 2 == 0 { IBV_SEND_INLINE } else { 0 };
        let signalled = if round % 3 == 0 { IBV_SEND_SIGNALED } else { 0 };
        if let Some(wc) = writer.writes(out.sge(0, len), at, inline | signalled) {
            assert_eq!((wc.status, wc.opcode, wc.wr_id), (IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 9));
        }
        writer.asks(&[0, at as u64, len as u64, seed]);
    }
    assert!(softib::stats().rdma_direct >= direct + 300);
    // Of several pieces, the last of which is a word, whose end is aligned or not; inline or not.
    for (round, head) in (0..70).enumerate() {
        let (seed, body, end) = (1000 + round as u64, round * 7 % 30, 512 + round % 9);
        let len = head + body + 8;
        out.data[..len].copy_from_slice(&pattern(seed, len));
        let pieces = [out.sge(0, head), out.sge(head, body), out.sge(head + body, 8)];
        let before = softib::stats().rdma_direct;
        let posted = writer.qp.post(1, IBV_WR_RDMA_WRITE, &pieces, |wr| {
            wr.wr.rdma =
                ibv_send_wr_rdma { remote_addr: writer.addr + (end - len) as u64, rkey: writer.rkey };
            wr.send_flags |= if round % 2 == 0 { IBV_SEND_INLINE } else { 0 };
        });
        assert_eq!((posted, writer.qp.wait().status), (0, IBV_WC_SUCCESS));
        assert_eq!(softib::stats().rdma_direct, before + 1);
        writer.asks(&[0, (end - len) as u64, len as u64, seed]);
    }
    // The same by way of the send queue: behind a fence, with an immediate value, of several pieces, and back.
    out.data[..100].copy_from_slice(&pattern(99, 100));
    let pieces = [out.sge(0, 30), out.sge(30, 0), out.sge(30, 70)];
    let posted = writer.qp.post(1, IBV_WR_RDMA_WRITE, &pieces, |wr| {
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr: writer.addr + 5, rkey: writer.rkey };
    });
    assert_eq!((posted, writer.qp.wait().status), (0, IBV_WC_SUCCESS));
    writer.asks(&[0, 5, 100, 99]);
    assert_eq!(writer.qp.rdma(2, IBV_WR_RDMA_READ, out.sge(200, 100), writer.addr + 5, writer.rkey), 0);
    assert_eq!(writer.qp.wait().status, IBV_WC_SUCCESS);
    assert_eq!(out.data[200..300], pattern(99, 100));
    writer.child.tell(&[2]);
    writer.child.finish();
}

#[test]
fn short_writes_go_from_their_pieces_or_have_not_happened() {
    Child::start("pieces").finish();
}

fn pieces() {
    let mut writer = Writer::new();
    let mut out = writer.dev.buf(LEN);
    writer.warm_up(out.sge(0, 8));
    for round in 0..400 {
        // What makes room in the send queue.
        if round % 20 == 0 {
            let wc = writer.writes(out.sge(0, 8), 0, IBV_SEND_SIGNALED).unwrap();
            assert_eq!((wc.status, wc.wr_id), (IBV_WC_SUCCESS, 9));
        }
        let (seed, head) = (5000 + round as u64, round % 71);
        let body = [round * 7 % 60, round * 31 % 1100, round * 401 % 9000][round % 3];
        let (len, end) = (head + body + 8, 12_000 + 8 * (round % 9));
        out.data[..len].copy_from_slice(&pattern(seed, len));
        let (pieces, last) = out.data[..len].split_at(head + body);
        let (last, pieces) = (u64::from_le_bytes(last.try_into().unwrap()), pieces.split_at(head));
        let before = softib::stats().rdma_direct;
        let written = writer.writes_short([pieces.0, pieces.1], last, end - 8);
        assert_eq!((written, softib::stats().rdma_direct - before), (true, 1), "{len} bytes");
        writer.asks(&[0, (end - len) as u64, len as u64, seed]);
    }
    let wc = writer.writes(out.sge(0, 8), 0, IBV_SEND_SIGNALED).unwrap();
    assert_eq!(wc.status, IBV_WC_SUCCESS);
    let none: [&[u8]; 2] = [&[], &[]];
    for (at, key) in [(1, 0), (LEN, 0), (LEN - 4, 0), (usize::MAX - 7, 0), (64, 1), (64, u32::MAX)] {
        let rkey = writer.rkey;
        writer.rkey = rkey.wrapping_add(key);
        assert!(!writer.writes_short(none, 7, at), "a word at {at}, key {rkey:#x} + {key}");
        writer.rkey = rkey;
    }
    assert!(!writer.writes_short([&out.data[..64], &[]], 7, 32), "it would begin before the region");
    for pieces in [[&[0; 129][..], &[]], [&[], &[0; (16 << 10) + 1]]] {
        assert!(!writer.writes_short(pieces, 7, LEN - 8), "longer than such a write may be");
    }
    // Nothing of that has taken an entry of the send queue: it is as long as ever.
    let posted = (0..1000).take_while(|_| writer.posts(out.sge(0, 8), 0, 0) == 0).count();
    assert!((64..=128).contains(&posted), "{posted} entries behind one that has completed");
    // Short writes go although it is full of requests that have had no completion.
    assert!((0..1000).all(|_| writer.writes_short(none, 7, 64)));
    writer.child.tell(&[2]);
    writer.child.finish();
}

#[test]
fn reads_and_writes_at_once_are_over_or_have_not_happened() {
    Child::start("at once").finish();
}

fn at_once() {
    let mut writer = Writer::new();
    let mut out = writer.dev.buf(2 * LEN);
    writer.warm_up(out.sge(0, 8));
    let (addr, rkey) = (writer.addr, writer.rkey);
    for (round, len) in (1..200).chain([511, 512, 4096, 10_000]).enumerate() {
        let (seed, at) = (round as u64 + 1, 7 * round % 1000);
        out.data[..len].copy_from_slice(&pattern(seed, len));
        let place = (addr + at as u64, rkey);
        assert!(writer.qp.rdma_at_once(IBV_WR_RDMA_WRITE, out.sge(0, len), place, round % 2 == 0));
        writer.asks(&[0, at as u64, len as u64, seed]);
        assert!(writer.qp.rdma_at_once(IBV_WR_RDMA_READ, out.sge(LEN, len), place, round % 3 == 0));
        assert_eq!(out.data[LEN..LEN + len], pattern(seed, len), "{len} bytes");
    }
    assert!(poll(writer.qp.cq).is_none(), "there are no completions");
    let goes = |opcode, sge, place| writer.qp.rdma_at_once(opcode, sge, place, false);
    let foreign = ibv_sge { lkey: out.sge(0, 8).lkey ^ 1, ..out.sge(0, 8) };
    let beyond = ibv_sge { length: 4 * LEN as u32, ..out.sge(0, 8) };
    for opcode in [IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE] {
        for place in [(addr + LEN as u64 - 7, rkey), (u64::MAX - 3, rkey), (addr, rkey ^ 1), (addr, 0)] {
            assert!(!goes(opcode, out.sge(0, 8), place), "{opcode} at {place:x?}");
        }
        for sge in [foreign, beyond, out.sge(0, 0)] {
            assert!(!goes(opcode, sge, (addr, rkey)), "{opcode} of {} bytes", sge.length);
        }
    }
    for opcode in [IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_ATOMIC_FETCH_AND_ADD, u32::MAX] {
        assert!(!goes(opcode, out.sge(0, 8), (addr, rkey)), "{opcode}");
    }
    writer.child.kill();
    assert!(!writer.qp.rdma_at_once(IBV_WR_RDMA_WRITE, out.sge(0, 8), (addr, rkey), false));
}

#[test]
fn short_writes_end_with_their_region() {
    Child::start("their region").finish();
}

fn their_region() {
    let mut writer = Writer::new();
    let out = writer.dev.buf(64);
    writer.warm_up(out.sge(0, 8));
    assert!(writer.writes_short([&[1, 2, 3], &[]], 7, 64));
    writer.asks(&[1]);
    assert!(!writer.writes_short([&[1, 2, 3], &[]], 7, 64));
    assert_eq!(writer.writes(out.sge(0, 8), 16, IBV_SEND_SIGNALED).unwrap().status, IBV_WC_REM_ACCESS_ERR);
    assert!(!writer.writes_short([&[1, 2, 3], &[]], 7, 64), "the queue pair is in the error state");
    writer.child.tell(&[2]);
    writer.child.finish();
}

/// A plan that counts WRITEs counts each.
#[test]
fn there_are_no_short_writes_where_a_plan_counts_writes() {
    Child::start_with("counted", &[("SOFTIB_FAULTS", "kill=write:1000000")]).finish();
}

fn counted() {
    let mut writer = Writer::new();
    let out = writer.dev.buf(64);
    for _ in 0..1000 {
        assert_eq!(writer.writes(out.sge(0, 8), 0, IBV_SEND_SIGNALED).unwrap().status, IBV_WC_SUCCESS);
        assert!(!writer.writes_short([&[], &[]], 0, 0));
        let place = (writer.addr, writer.rkey);
        assert!(!writer.qp.rdma_at_once(IBV_WR_RDMA_WRITE, out.sge(0, 8), place, false));
    }
    writer.child.tell(&[2]);
    writer.child.finish();
}

#[test]
fn short_writes_end_with_their_peer() {
    Child::start("their peer").finish();
}

fn their_peer() {
    let mut writer = Writer::new();
    let out = writer.dev.buf(64);
    writer.warm_up(out.sge(0, 8));
    writer.child.kill();
    assert!(!writer.writes_short([&[1, 2, 3], &[]], 7, 64), "the kernel has marked the peer's word of life");
    assert_eq!(writer.writes(out.sge(0, 8), 16, IBV_SEND_SIGNALED).unwrap().status, IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn what_is_not_granted_is_refused_and_a_region_that_is_gone_is_left_alone() {
    for (at, len) in [(LEN, 1), (LEN - 7, 8), (usize::MAX - 10, 20)] {
        let mut writer = Writer::new();
        let mut out = writer.dev.buf(64);
        out.data[..8].copy_from_slice(&pattern(3, 8));
        assert_eq!(writer.writes(out.sge(0, 8), 16, IBV_SEND_SIGNALED).unwrap().status, IBV_WC_SUCCESS);
        let posted = writer.qp.post(9, IBV_WR_RDMA_WRITE, &[out.sge(0, len)], |wr| {
            wr.wr.rdma =
                ibv_send_wr_rdma { remote_addr: writer.addr.wrapping_add(at as u64), rkey: writer.rkey };
        });
        assert_eq!((posted, writer.qp.wait().status), (0, IBV_WC_REM_ACCESS_ERR), "{len} bytes at {at}");
        writer.asks(&[0, 16, 8, 3]);
        writer.child.tell(&[2]);
        writer.child.finish();
    }
    let mut writer = Writer::new();
    let out = writer.dev.buf(64);
    assert_eq!(writer.writes(out.sge(0, 8), 16, IBV_SEND_SIGNALED).unwrap().status, IBV_WC_SUCCESS);
    writer.asks(&[1]);
    assert_eq!(writer.writes(out.sge(0, 8), 16, IBV_SEND_SIGNALED).unwrap().status, IBV_WC_REM_ACCESS_ERR);
    writer.child.tell(&[2]);
    writer.child.finish();
}

#[test]
fn it_is_written_where_processes_may_not_reach_into_each_others_memory() {
    Child::start_with("writer", &[("SOFTIB_CMA", "0")]).finish();
}

fn writer() {
    let mut writer = Writer::new();
    let mut out = writer.dev.buf(64);
    out.data.copy_from_slice(&pattern(4, 64));
    for flags in [0, IBV_SEND_FENCE] {
        let wc = writer.writes(out.sge(0, 64), 0, IBV_SEND_SIGNALED | flags).unwrap();
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        writer.asks(&[0, 0, 64, 4]);
    }
    assert_eq!(writer.qp.rdma(2, IBV_WR_RDMA_READ, out.sge(0, 8), writer.addr + 8, writer.rkey), 0);
    assert_eq!((writer.qp.wait().status, &out.data[..8]), (IBV_WC_SUCCESS, &pattern(4, 64)[8..16]));
    assert_eq!((softib::stats().rdma_direct, softib::stats().rdma_ring), (3, 0));
    writer.child.tell(&[2]);
    writer.child.finish();
}

#[test]
fn a_region_that_has_changed_under_its_key_is_looked_at_again() {
    let mut writer = Writer::new();
    let mut out = writer.dev.buf(64);
    for (seed, change) in [(1, false), (2, true)] {
        if change {
            writer.asks(&[3]);
        }
        out.data[..8].copy_from_slice(&pattern(seed, 8));
        let wc = writer.writes(out.sge(0, 8), 56, IBV_SEND_SIGNALED).unwrap();
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        writer.asks(&[0, 56, 8, seed]);
    }
    let wc = writer.writes(out.sge(0, 8), 64, IBV_SEND_SIGNALED).unwrap();
    assert_eq!(wc.status, IBV_WC_REM_ACCESS_ERR);
    writer.child.tell(&[2]);
    writer.child.finish();
}

/// Rounds of [`a_reader_of_the_last_word_has_the_whole_message`].
const ROUNDS: u64 = 20_000;
/// Bytes of a message.
const MESSAGE: usize = 64;

/// Words of one message: all of them its number.
fn message(number: u64) -> [u64; MESSAGE / 8] {
    [number; MESSAGE / 8]
}

/// One side of an exchange of messages through the memory that each shares, in which the last word is polled.
struct Player {
    qp: Qp,
    mine: Shared,
    theirs: (u64, u32),
}

impl Player {
    fn sends(&self, number: u64) {
        let words = message(number);
        let sge = ibv_sge { addr: words.as_ptr() as u64, length: MESSAGE as u32, lkey: 0 };
        let posted = self.qp.post(1, IBV_WR_RDMA_WRITE, &[sge], |wr| {
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr: self.theirs.0, rkey: self.theirs.1 };
            wr.send_flags = IBV_SEND_INLINE | if number.is_multiple_of(16) { IBV_SEND_SIGNALED } else { 0 };
        });
        assert_eq!(posted, 0, "{number}");
        if number.is_multiple_of(16) {
            assert_eq!(self.qp.wait().status, IBV_WC_SUCCESS);
        }
    }

    fn hears(&self, number: u64) {
        let words = unsafe { from_raw_parts(self.mine.at.cast::<AtomicU64>(), MESSAGE / 8) };
        let began = Instant::now();
        while words[words.len() - 1].load(Ordering::Acquire) != number {
            assert!(began.elapsed() < PATIENCE);
            std::hint::spin_loop();
        }
        let all: Vec<u64> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        assert_eq!(all, message(number));
    }
}

fn partner() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(64));
    let mine = Shared::new(&dev, MESSAGE, ALL_ACCESS);
    say(&[&mine.name()[..], &[qp.num().into()]].concat());
    let hello = listen().unwrap();
    qp.connect(hello[2] as u32, &Path::default());
    say(&[]);
    let player = Player { qp, mine, theirs: (hello[0], hello[1] as u32) };
    (1..=ROUNDS).for_each(|number| {
        player.hears(number);
        player.sends(number);
    });
    say(&[]);
    listen();
}

#[test]
fn a_reader_of_the_last_word_has_the_whole_message() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(64));
    let mine = Shared::new(&dev, MESSAGE, ALL_ACCESS);
    let mut child = Child::start("partner");
    let hello = child.hear();
    qp.connect(hello[2] as u32, &Path::default());
    child.tell(&[&mine.name()[..], &[qp.num().into()]].concat());
    child.hear();
    let player = Player { qp, mine, theirs: (hello[0], hello[1] as u32) };
    (1..=ROUNDS).for_each(|number| {
        player.sends(number);
        player.hears(number);
    });
    child.hear();
    child.tell(&[]);
    child.finish();
}
