//! Requests for little of a peer that polls: READs, WRITEs that are given to it, and atomics, of every length that a cell holds and more.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::time::Duration;

/// The other processes; does nothing when the test runner calls it.
#[test]
fn child_main() {
    match role().as_deref() {
        Some("owner") => owner(),
        Some("asker") => asker(),
        other => assert_eq!(other, None, "no such role"),
    }
}

const LEN: usize = 1 << 16;
/// Bytes of the memory that nothing is written to, and where the words for atomics are, and what is written.
const UNTOUCHED: usize = 1 << 15;
const WORDS: usize = UNTOUCHED + 64;
const WRITTEN: usize = UNTOUCHED + 128;
/// Where our own buffer is read into.
const LOCAL: usize = 1 << 15;
/// What the memory's last byte is when its owner is to end.
const ENDS: u8 = 77;
/// Queue pairs.
const PAIRS: usize = 5;
const EVERY_ACCESS: u32 = ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC;

/// Everything is allowed.
fn path() -> Path {
    Path { access: EVERY_ACCESS, ..Path::default() }
}

/// Offers memory, and polls.
fn owner() {
    let dev = Dev::open();
    let qps = [(); PAIRS].map(|()| dev.qp(IBV_QPT_RC, dev.cq(64)));
    let mut buf = Buf::new(&dev, LEN, EVERY_ACCESS);
    buf.data.copy_from_slice(&pattern(3, LEN));
    buf.data[WORDS..WRITTEN].fill(0);
    buf.data[LEN - 1] = 0;
    let numbers = qps.iter().map(|qp| qp.num().into());
    say(&[buf.addr(), buf.key().into()].into_iter().chain(numbers).collect::<Vec<u64>>());
    let hello = listen().unwrap();
    qps.iter().zip(&hello).for_each(|(qp, dest)| qp.connect(*dest as u32, &path()));
    assert_eq!(qps[0].recv(5, &[buf.sge(LEN - 64, 8)]), 0);
    say(&[0]);
    let began = std::time::Instant::now();
    while unsafe { buf.data.as_ptr().add(LEN - 1).read_volatile() } != ENDS {
        assert!(began.elapsed() < 4 * PATIENCE);
        qps.iter().for_each(|qp| assert!(poll(qp.cq).is_none_or(|wc| wc.wr_id == 5)));
    }
}

/// A queue pair whose sends complete elsewhere than its receives, both of which are polled.
struct Asker {
    qp: Qp,
    receives: *mut ibv_cq,
    at: (u64, u32),
}

impl Asker {
    fn waits(&self) -> ibv_wc {
        let began = std::time::Instant::now();
        loop {
            assert!(poll(self.receives).is_none());
            if let Some(wc) = poll(self.qp.cq) {
                return wc;
            }
            assert!(began.elapsed() < PATIENCE, "{:?}", softib::stats());
        }
    }

    fn moves(&self, opcode: u32, sge: ibv_sge, at: usize) -> (u32, u32, u32) {
        assert_eq!(self.qp.rdma(1, opcode, sge, self.at.0 + at as u64, self.at.1), 0);
        let wc = self.waits();
        (wc.status, wc.opcode, wc.byte_len)
    }

    /// Posts an addition to the word there.
    fn adds(&self, wr_id: u64, sge: ibv_sge, at: usize, add: u64) {
        let remote_addr = self.at.0 + at as u64;
        let word = ibv_send_wr_atomic { remote_addr, compare_add: add, swap: 0, rkey: self.at.1 };
        let posted = self.qp.post(wr_id, IBV_WR_ATOMIC_FETCH_AND_ADD, &[sge], |wr| wr.wr.atomic = word);
        assert_eq!(posted, 0);
    }

    fn operates(&self, opcode: u32, sge: ibv_sge, at: usize, (compare_add, swap): (u64, u64)) -> (u32, u32) {
        let word =
            ibv_send_wr_atomic { remote_addr: self.at.0 + at as u64, compare_add, swap, rkey: self.at.1 };
        assert_eq!(self.qp.post(2, opcode, &[sge], |wr| wr.wr.atomic = word), 0);
        let wc = self.waits();
        (wc.status, wc.opcode)
    }
}

#[test]
fn what_little_is_asked_of_a_polling_peer_is_what_it_has() {
    // Processes of other tests do not count.
    Child::start_with("asker", &[("SOFTIB_PROCESSORS", "64")]).finish();
}

fn asker() {
    let dev = Dev::open();
    unsafe { (softib::driver_table().await_writes.unwrap())() };
    let mut child = Child::start("owner");
    let hello = child.hear();
    let askers = [(); PAIRS].map(|()| {
        let receives = dev.cq(64);
        let qp = dev.qp_with(IBV_QPT_RC, dev.cq(64), std::ptr::null_mut(), |init| init.recv_cq = receives);
        Asker { qp, receives, at: (hello[0], hello[1] as u32) }
    });
    askers.iter().zip(&hello[2..]).for_each(|(asker, dest)| asker.qp.connect(*dest as u32, &path()));
    child.tell(&askers.iter().map(|asker| asker.qp.num().into()).collect::<Vec<u64>>());
    child.hear();
    let mut buf = dev.buf(LEN);
    // From now on the owner has a ring of ours, and polls.
    assert_eq!(askers[0].qp.send(8, &[buf.sge(0, 8)]), 0);
    assert_eq!(askers[0].waits().status, IBV_WC_SUCCESS);
    let lengths = (1..=520).chain([1000, 2047, 4096, 16383, 16384, 16385, 20000]);
    let (began, mut round) = (std::time::Instant::now(), 0);
    // Where other programs want the processors the owner is often late, and not asked for a while.
    while round < 2 || softib::stats().rdma_ring < 300 && began.elapsed() < PATIENCE / 2 {
        lengths.clone().for_each(|len| reads_and_writes(&askers[0], &mut buf, len));
        round += 1;
    }
    counts(&askers[0], &buf);
    queued(&askers[0], &mut buf);
    without_its_owner(&askers[0], &buf, &child);
    refusals(&askers, &buf);
    buf.data[0] = ENDS;
    assert_eq!(askers[0].moves(IBV_WR_RDMA_WRITE, buf.sge(0, 1), LEN - 1).0, IBV_WC_SUCCESS);
    child.finish();
}

/// Writes so many bytes and reads them back; what is beside them stays.
fn reads_and_writes(asker: &Asker, buf: &mut Buf, len: usize) {
    let (there, seed) = (WRITTEN + len % 64, len as u64);
    buf.data[..len].copy_from_slice(&pattern(seed, len));
    let wrote = asker.moves(IBV_WR_RDMA_WRITE, buf.sge(0, len), there);
    assert_eq!((wrote.0, wrote.1), (IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE));
    for (from, expected) in
        [(there, pattern(seed, len)), (len % 100, pattern(3, LEN)[len % 100..][..len].to_vec())]
    {
        buf.data[LOCAL - 64..].fill(0xaa);
        let read = asker.moves(IBV_WR_RDMA_READ, buf.sge(LOCAL, len), from);
        assert_eq!(read, (IBV_WC_SUCCESS, IBV_WC_RDMA_READ, len as u32));
        assert!(buf.data[LOCAL..LOCAL + len] == expected, "{len} bytes from {from}");
        let mut beside = buf.data[LOCAL - 64..LOCAL].iter().chain(&buf.data[LOCAL + len..]);
        assert!(beside.all(|byte| *byte == 0xaa));
    }
}

/// The word says what it was before each operation, and so does what has been fetched.
fn counts(asker: &Asker, buf: &Buf) {
    let fetched = |buf: &Buf| u64::from_ne_bytes(buf.data[8..16].try_into().unwrap());
    let mut value = 0_u64;
    for round in 0..2000_u64 {
        let sge = buf.sge(8, 8);
        let added = asker.operates(IBV_WR_ATOMIC_FETCH_AND_ADD, sge, WORDS, (round, 0));
        assert_eq!((added, fetched(buf)), ((IBV_WC_SUCCESS, IBV_WC_FETCH_ADD), value));
        value += round;
        let (compare, swap) = (value + round % 2, value + 5);
        let swapped = asker.operates(IBV_WR_ATOMIC_CMP_AND_SWP, sge, WORDS, (compare, swap));
        assert_eq!((swapped, fetched(buf)), ((IBV_WC_SUCCESS, IBV_WC_COMP_SWAP), value));
        value = if compare == value { swap } else { value };
    }
}

/// What is posted behind another request goes out when that is over, and says what it finds then.
fn queued(asker: &Asker, buf: &mut Buf) {
    const AT_ONCE: usize = 16;
    let there = asker.at.0 + (WORDS + 8) as u64;
    for round in 0..200_u64 {
        for at in 0..AT_ONCE as u64 {
            let sge = buf.sge(LOCAL + 8 * at as usize, 8);
            match at % 4 {
                3 => assert_eq!(asker.qp.rdma(at, IBV_WR_RDMA_READ, sge, there, asker.at.1), 0),
                _ => asker.adds(at, sge, WORDS + 8, 1),
            }
        }
        for at in 0..AT_ONCE as u64 {
            let wc = asker.waits();
            assert_eq!((wc.wr_id, wc.status), (at, IBV_WC_SUCCESS), "round {round}");
            let found = &buf.data[LOCAL + 8 * at as usize..][..8];
            let added = round * (AT_ONCE as u64 * 3 / 4) + at - at / 4;
            assert_eq!(u64::from_ne_bytes(found.try_into().unwrap()), added, "request {at} of round {round}");
        }
    }
    buf.data[LOCAL..].fill(0);
}

/// A program that polls now and then hears of a READ that its owner does not answer as soon as the owner's time is up.
fn without_its_owner(asker: &Asker, buf: &Buf, child: &Child) {
    const AT_MOST: u32 = 8;
    let pause = |time| {
        let began = std::time::Instant::now();
        while began.elapsed() < time {}
    };
    let reads = || asker.qp.rdma(1, IBV_WR_RDMA_READ, buf.sge(0, 8), asker.at.0, asker.at.1);
    let asked = || softib::stats().rdma_ring;
    for _ in 0..1000 {
        assert_eq!(asker.moves(IBV_WR_RDMA_READ, buf.sge(0, 8), 0).0, IBV_WC_SUCCESS);
        // It polls, and works on nothing.
        pause(Duration::from_millis(1));
        child.stop();
        let before = asked();
        assert_eq!(reads(), 0);
        let is_asked = asked() > before;
        let mut polls = 0;
        let ended = loop {
            pause(Duration::from_micros(10));
            polls += 1;
            if let Some(wc) = poll(asker.qp.cq) {
                break wc.status;
            }
        };
        child.signal(libc::SIGCONT);
        assert_eq!(ended, IBV_WC_SUCCESS);
        assert!(polls <= AT_MOST, "{polls} polls of 10 us each");
        if is_asked {
            return;
        }
    }
    panic!("its owner was never asked: {:?}", softib::stats());
}

/// What is not granted fails, and only that.
fn refusals(askers: &[Asker; PAIRS], buf: &Buf) {
    let [_, beyond, aside, written, behind] = askers;
    // Behind one that succeeds, and before one that does not go out any more.
    behind.adds(1, buf.sge(0, 8), WORDS + 16, 1);
    assert_eq!(behind.qp.rdma(2, IBV_WR_RDMA_READ, buf.sge(0, 8), behind.at.0 + LEN as u64, behind.at.1), 0);
    behind.adds(3, buf.sge(0, 8), WORDS + 16, 1);
    let ends = [(); 3].map(|()| behind.waits()).map(|wc| (wc.wr_id, wc.status));
    assert_eq!(ends, [(1, IBV_WC_SUCCESS), (2, IBV_WC_REM_ACCESS_ERR), (3, IBV_WC_WR_FLUSH_ERR)]);
    let sge = buf.sge(0, 8);
    assert_eq!(beyond.moves(IBV_WR_RDMA_READ, sge, LEN - 4).0, IBV_WC_REM_ACCESS_ERR);
    assert_eq!(aside.operates(IBV_WR_ATOMIC_FETCH_AND_ADD, sge, WORDS + 4, (1, 0)).0, IBV_WC_REM_INV_REQ_ERR);
    assert_eq!(written.moves(IBV_WR_RDMA_WRITE, sge, LEN - 4).0, IBV_WC_REM_ACCESS_ERR);
}
