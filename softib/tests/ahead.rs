//! Several READs, or WRITEs, of a queue pair that are under way at once: what they move, in which order they end, and what becomes of the others
//! when one fails, is late, or the owner of the memory ends.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The other processes; does nothing when the test runner calls it.
#[test]
fn child_main() {
    match role().as_deref() {
        Some("owner") => owner(),
        Some("reader") => reader(),
        other => assert_eq!(other, None, "no such role"),
    }
}

/// Bytes of the owner's memory that are read, of each part of ours that is read into, and of the part of its memory that a queue pair writes to.
const LEN: usize = 1 << 18;
/// The owner's memory: what is read, what two queue pairs write to, and two words that count.
const ALL: usize = 3 * LEN + 128;
const COUNTS: [usize; 2] = [3 * LEN, 3 * LEN + 64];
/// READs under way at most, of two kinds of queue pairs, and posted at most.
const UNDER_WAY: [u8; 2] = [6, 16];
const AT_ONCE: usize = 16;
/// Queue pairs; the last ones fail.
const PAIRS: usize = 8;
/// Where the owner's memory is written to.
const WRITTEN: usize = LEN - 4096;

const ACCESS: u32 = ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC;

/// The way of a queue pair; that of the third one has room for more.
fn path(pair: usize) -> Path {
    let most = UNDER_WAY[usize::from(pair == 2)];
    Path { access: ACCESS, rd_atomic: (most, most), ..Path::default() }
}

/// Offers memory, and polls until it is killed.
fn owner() {
    let dev = Dev::open();
    let qps = [(); PAIRS].map(|()| dev.qp(IBV_QPT_RC, dev.cq(64)));
    let mut buf = Buf::new(&dev, ALL, ACCESS);
    buf.data[..LEN].copy_from_slice(&pattern(3, LEN));
    let counts = COUNTS.map(|at| unsafe { &*buf.data.as_ptr().add(at).cast::<AtomicU64>() });
    let numbers = qps.iter().map(|qp| qp.num().into());
    say(&[buf.addr(), buf.key().into()].into_iter().chain(numbers).collect::<Vec<u64>>());
    let hello = listen().unwrap();
    qps.iter().zip(&hello).enumerate().for_each(|(pair, (qp, dest))| qp.connect(*dest as u32, &path(pair)));
    assert_eq!(qps[0].recv(5, &[buf.sge(WRITTEN, 8)]), 0);
    say(&[0]);
    let began = Instant::now();
    // The reader ends it.
    while began.elapsed() < 4 * PATIENCE {
        // The second count is written behind the first.
        let second = counts[1].load(Ordering::Acquire);
        let first = counts[0].load(Ordering::Acquire);
        assert!(first >= second, "{second} before {first}");
        qps.iter().for_each(|qp| assert!(poll(qp.cq).is_none_or(|wc| wc.wr_id == 5)));
    }
}

/// Our end of a queue pair, where the owner's memory is, and our own.
struct Reader {
    qp: Qp,
    buf: Buf,
    at: (u64, u32),
    /// Completions that are to come, and those that have been polled.
    expected: usize,
    ended: RefCell<VecDeque<(usize, u32)>>,
}

/// A READ: of how many bytes, from where, to which part of our memory.
#[derive(Debug, Clone, Copy)]
struct Read {
    len: usize,
    from: usize,
    part: usize,
}

impl Reader {
    fn posts(&self, wr_id: usize, read: Read, flags: u32) {
        let sge = self.buf.sge(read.part * LEN, read.len);
        let (remote_addr, rkey) = (self.at.0 + read.from as u64, self.at.1);
        let posted = self.qp.post(wr_id as u64, IBV_WR_RDMA_READ, &[sge], |wr| {
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
            wr.send_flags |= flags;
        });
        assert_eq!(posted, 0);
    }

    fn ends(&self) -> (usize, u32) {
        let began = Instant::now();
        loop {
            if let Some(first) = self.ended.borrow_mut().pop_front() {
                return first;
            }
            assert!(began.elapsed() < PATIENCE, "{:?}", softib::stats());
            self.polls();
        }
    }

    fn polls(&self) {
        let mut wcs = [ibv_wc::default(); 5];
        let count = unsafe { ibv_poll_cq(self.qp.cq, wcs.len() as i32, wcs.as_mut_ptr()) };
        let ended = wcs[..usize::try_from(count).unwrap()].iter().map(|wc| (wc.wr_id as usize, wc.status));
        self.ended.borrow_mut().extend(ended);
    }

    fn writes(&self, wr_id: u64, sge: ibv_sge, there: usize) {
        assert_eq!(self.qp.rdma(wr_id, IBV_WR_RDMA_WRITE, sge, self.at.0 + there as u64, self.at.1), 0);
    }

    /// All of these end in their order and have succeeded.
    fn succeed(&self, count: usize) {
        (0..count).for_each(|wr_id| assert_eq!(self.ends(), (wr_id, IBV_WC_SUCCESS)));
    }

    /// The last READ into a part of our memory is what is there.
    fn holds(&self, reads: &[Read], whole: &[u8]) {
        for (at, read) in reads.iter().enumerate() {
            let is_last = reads[at + 1..].iter().all(|later| later.part != read.part);
            let there = &self.buf.data[read.part * LEN..][..read.len];
            assert!(!is_last || there == &whole[read.from..][..read.len], "{at} of {reads:?}");
        }
    }
}

#[test]
fn requests_behind_others_move_what_they_name_whatever_the_memorys_owner_does() {
    // Processes of other tests do not count.
    Child::start_with("reader", &[("SOFTIB_PROCESSORS", "64"), ("SOFTIB_CMA", "late")]).finish();
}

fn reader() {
    let dev = Dev::open();
    unsafe { (softib::driver_table().await_writes.unwrap())() };
    let mut child = Child::start("owner");
    let hello = child.hear();
    let mut readers = [(); PAIRS].map(|()| Reader {
        qp: dev.qp(IBV_QPT_RC, dev.cq(64)),
        buf: dev.buf(AT_ONCE * LEN),
        at: (hello[0], hello[1] as u32),
        expected: 0,
        ended: RefCell::default(),
    });
    for (pair, (reader, dest)) in readers.iter().zip(&hello[2..]).enumerate() {
        reader.qp.connect(*dest as u32, &path(pair));
    }
    child.tell(&readers.iter().map(|reader| reader.qp.num().into()).collect::<Vec<u64>>());
    child.hear();
    // From now on the owner has a ring of ours, and polls.
    assert_eq!(readers[0].qp.send(0, &[readers[0].buf.sge(0, 8)]), 0);
    readers[0].succeed(1);
    let mut random = Random::from_environment();
    at_random(&mut readers, &child, &mut random);
    let first = &readers[0];
    goes_through_the_ring(first, |at| first.posts(at, Read { len: 100, from: at, part: at }, 0));
    writes_at_random(&mut readers, &child, &mut random);
    counts_in_order(&mut readers, &child);
    let first = &readers[0];
    goes_through_the_ring(first, |at| first.writes(at as u64, first.buf.sge(0, 100), LEN));
    is_owed_all(&readers[2], &child);
    before_and_behind_writes(&mut readers[0]);
    let [reads, .., written, local, refused, first, dead] = &mut readers;
    refusals(refused, first);
    refused_write(written, reads);
    // Those behind the refused one are over, too: one of several pieces is given when no other is.
    goes_through_the_ring(reads, |at| reads.writes(at as u64, reads.buf.sge(0, 20_000), LEN));
    without_its_buffer(&dev, local);
    without_its_owner(dead, child);
}

/// READs of any length, of two queue pairs, whose owner stands still for a while in some rounds.
fn at_random(readers: &mut [Reader; PAIRS], child: &Child, random: &mut Random) {
    let whole = pattern(3, LEN);
    for round in 0..rounds("SOFTIB_ROUNDS", 160) {
        let all = [(); 2].map(|()| any_reads(random));
        let stands_still = round % 8 == 0;
        if stands_still && round % 16 == 0 {
            child.stop();
        }
        let (began, lasts) = (Instant::now(), Duration::from_micros(random.below(300)));
        for (reader, reads) in readers.iter_mut().zip(&all) {
            reader.buf.data.chunks_mut(LEN).for_each(|part| part[..64].fill(0xaa));
            for (at, read) in reads.iter().enumerate() {
                reader.posts(at, *read, if random.below(8) == 0 { IBV_SEND_FENCE } else { 0 });
            }
        }
        if stands_still && round % 16 == 8 {
            child.stop();
        }
        if stands_still {
            while began.elapsed() < lasts {
                readers[0].polls();
            }
        }
        if stands_still {
            child.signal(libc::SIGCONT);
        }
        for (reader, reads) in readers.iter().zip(&all) {
            reader.succeed(reads.len());
            reader.holds(reads, &whole);
        }
    }
}

fn any_reads(random: &mut Random) -> Vec<Read> {
    let most = [64, 4096, 20_000, 200_000][random.below(4) as usize];
    let count = 1 + random.below(AT_ONCE as u64);
    let any = |random: &mut Random| {
        let len = 1 + random.below(most) as usize;
        let from = random.below((WRITTEN - len) as u64) as usize;
        Read { len, from, part: random.below(AT_ONCE as u64) as usize }
    };
    (0..count).map(|_| any(random)).collect()
}

/// No answer is thought to be owed for ever: after a while the owner is asked as before, and so it is given.
fn goes_through_the_ring(reader: &Reader, posts: impl Fn(usize)) {
    // So few that other programs seldom have the owner's processor meanwhile.
    const FEW: usize = 4;
    let (began, counts) = (Instant::now(), || (softib::stats().rdma_ring, softib::stats().rdma_direct));
    loop {
        let before = counts();
        (0..FEW).for_each(&posts);
        reader.succeed(FEW);
        if counts() == (before.0 + FEW as u64, before.1) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{:?}", softib::stats());
    }
}

/// WRITEs of any length, of two queue pairs, whose target stands still for a while in some rounds: all of them are there, in their order.
fn writes_at_random(readers: &mut [Reader; PAIRS], child: &Child, random: &mut Random) {
    let mut models = [vec![0; LEN], vec![0; LEN]];
    for round in 0..rounds("SOFTIB_ROUNDS", 160) {
        let stands_still = round % 16 < 2;
        if stands_still && round % 2 == 0 {
            child.stop();
        }
        for (at, (reader, model)) in readers.iter_mut().zip(&mut models).enumerate() {
            reader.buf.data[..LEN].copy_from_slice(&pattern(2 * round + at as u64, LEN));
            let writes = any_reads(random);
            for (wr_id, write) in writes.iter().enumerate() {
                let from = random.below((LEN - write.len) as u64) as usize;
                let (sge, there) = (reader.buf.sge(from, write.len), (1 + at) * LEN + write.from);
                model[write.from..][..write.len].copy_from_slice(&reader.buf.data[from..][..write.len]);
                reader.writes(wr_id as u64, sge, there);
            }
            reader.expected = writes.len();
        }
        if stands_still && round % 2 == 1 {
            child.stop();
        }
        if stands_still {
            let (began, lasts) = (Instant::now(), Duration::from_micros(random.below(300)));
            while began.elapsed() < lasts {
                readers[0].polls();
            }
            child.signal(libc::SIGCONT);
        }
        for (at, (reader, model)) in readers.iter().zip(&models).enumerate() {
            reader.succeed(reader.expected);
            reader.posts(0, Read { len: LEN, from: (1 + at) * LEN, part: 1 }, 0);
            reader.succeed(1);
            assert!(&reader.buf.data[LEN..2 * LEN] == model, "round {round}");
        }
    }
}

/// The target sees WRITEs in the order in which they have been posted, even if another queue pair takes back what it has given.
fn counts_in_order(readers: &mut [Reader; PAIRS], child: &Child) {
    let [other, counter, ..] = readers;
    let mut count = 0_u64;
    for round in 0..160 {
        if round % 4 == 0 {
            child.stop();
            (0..4).for_each(|at| other.writes(at, other.buf.sge(0, 100), LEN));
        }
        for at in 0..AT_ONCE / 2 {
            count += 1;
            counter.buf.data[8 * at..][..8].copy_from_slice(&count.to_ne_bytes());
            for (word, there) in COUNTS.into_iter().enumerate() {
                counter.writes((2 * at + word) as u64, counter.buf.sge(8 * at, 8), there);
            }
        }
        if round % 4 == 0 {
            let (began, lasts) = (Instant::now(), Duration::from_micros(round % 60));
            while began.elapsed() < lasts {
                other.polls();
            }
            child.signal(libc::SIGCONT);
            other.succeed(4);
        }
        counter.succeed(AT_ONCE);
    }
}

/// A peer that owes as many answers as may be under way, none of which is waited for any more, takes another request.
fn is_owed_all(reader: &Reader, child: &Child) {
    let (remote_addr, rkey) = (reader.at.0 + LEN as u64, reader.at.1);
    for round in 0..20 {
        goes_through_the_ring(reader, |at| reader.posts(at, Read { len: 100, from: at, part: at }, 0));
        child.stop();
        (0..AT_ONCE).for_each(|at| reader.posts(at, Read { len: 100, from: at, part: at }, 0));
        reader.succeed(AT_ONCE);
        let word = ibv_send_wr_atomic { remote_addr, compare_add: 1, swap: 0, rkey };
        let sge = reader.buf.sge(0, 8);
        let posted = reader.qp.post(0, IBV_WR_ATOMIC_FETCH_AND_ADD, &[sge], |wr| wr.wr.atomic = word);
        child.signal(libc::SIGCONT);
        assert_eq!((posted, reader.ends()), (0, (0, IBV_WC_SUCCESS)), "round {round}");
    }
}

/// A READ finds what a WRITE before it has written, and not what one behind it writes.
fn before_and_behind_writes(reader: &mut Reader) {
    const WRITTEN_FROM: usize = 15 * LEN;
    let read = |at: usize| Read { len: 8, from: WRITTEN, part: at };
    let word =
        |reader: &Reader, at: usize| u64::from_ne_bytes(reader.buf.data[at..at + 8].try_into().unwrap());
    for round in 1..60_u64 {
        let mut wr_id = 0;
        for turn in 0..3_usize {
            let from = WRITTEN_FROM + 8 * turn;
            let value = 3 * round + turn as u64;
            reader.buf.data[from..from + 8].copy_from_slice(&value.to_ne_bytes());
            let (sge, there) = (reader.buf.sge(from, 8), reader.at.0 + WRITTEN as u64);
            assert_eq!(reader.qp.rdma(wr_id, IBV_WR_RDMA_WRITE, sge, there, reader.at.1), 0);
            (0..4).for_each(|at| reader.posts(wr_id as usize + 1 + at, read(4 * turn + at), 0));
            wr_id += 5;
        }
        reader.succeed(wr_id as usize);
        for part in 0..12 {
            assert_eq!(word(reader, part * LEN), 3 * round + part as u64 / 4, "READ {part} of round {round}");
        }
    }
}

/// Of several READs the one that is not granted fails; what is before it succeeds, and what is behind it does not.
fn refusals(behind: &Reader, first: &Reader) {
    for (reader, fails) in [(behind, 2), (first, 0)] {
        let reads = |at| Read { len: 8, from: if at == fails { ALL } else { 0 }, part: at };
        (0..5).for_each(|at| reader.posts(at, reads(at), 0));
        for at in 0..5 {
            let status = match at.cmp(&fails) {
                std::cmp::Ordering::Less => IBV_WC_SUCCESS,
                std::cmp::Ordering::Equal => IBV_WC_REM_ACCESS_ERR,
                std::cmp::Ordering::Greater => IBV_WC_WR_FLUSH_ERR,
            };
            assert_eq!(reader.ends(), (at, status));
        }
    }
}

/// Of several WRITEs the one that is not granted fails; what is before it has been written, and what is behind it has not.
fn refused_write(writer: &mut Reader, reads: &Reader) {
    writer.buf.data[..40].copy_from_slice(&pattern(99, 40));
    reads.posts(0, Read { len: 40, from: LEN, part: 1 }, 0);
    reads.succeed(1);
    let before = reads.buf.data[LEN..LEN + 40].to_vec();
    for at in 0..5 {
        writer.writes(at as u64, writer.buf.sge(8 * at, 8), if at == 2 { ALL } else { LEN + 8 * at });
    }
    let ends: Vec<_> = (0..5).map(|_| writer.ends()).collect();
    let flushed = (3..5).map(|at| (at, IBV_WC_WR_FLUSH_ERR));
    let first = [(0, IBV_WC_SUCCESS), (1, IBV_WC_SUCCESS), (2, IBV_WC_REM_ACCESS_ERR)];
    assert_eq!(ends, first.into_iter().chain(flushed).collect::<Vec<_>>());
    reads.posts(0, Read { len: 40, from: LEN, part: 1 }, 0);
    reads.succeed(1);
    let (new, old) = reads.buf.data[LEN..LEN + 40].split_at(16);
    assert_eq!((new, old), (&writer.buf.data[..16], &before[16..]));
}

/// A READ whose buffer has been deregistered meanwhile fails, and what its owner has sent for those behind it is dropped.
fn without_its_buffer(dev: &Dev, reader: &mut Reader) {
    let mut gone = Buf::new(dev, 64, ALL_ACCESS);
    let kept = std::mem::replace(&mut reader.buf, gone);
    let read = |part| Read { len: 8, from: 0, part };
    reader.posts(0, read(0), 0);
    gone = std::mem::replace(&mut reader.buf, kept);
    (1..5).for_each(|at| reader.posts(at, read(at), 0));
    // Most often all of them have been answered by then.
    let began = Instant::now();
    while began.elapsed() < Duration::from_micros(20) {}
    gone.dereg();
    let ends: Vec<_> = (0..5).map(|_| reader.ends()).collect();
    let flushed = (1..5).map(|at| (at, IBV_WC_WR_FLUSH_ERR));
    let failed: Vec<_> = [(0, IBV_WC_LOC_PROT_ERR)].into_iter().chain(flushed).collect();
    assert_eq!(ends, failed);
}

/// Every READ ends when its owner has ended.
fn without_its_owner(reader: &Reader, mut child: Child) {
    child.stop();
    (0..AT_ONCE).for_each(|at| reader.posts(at, Read { len: 200_000, from: 0, part: at }, 0));
    child.kill();
    let ends: Vec<_> = (0..AT_ONCE).map(|_| reader.ends()).collect();
    let in_order = ends.iter().enumerate().all(|(at, end)| end.0 == at);
    let failed = ends.iter().position(|end| end.1 != IBV_WC_SUCCESS).unwrap_or(AT_ONCE);
    let flushed = ends.iter().skip(failed + 1).all(|end| end.1 == IBV_WC_WR_FLUSH_ERR);
    assert!(in_order && flushed, "{ends:?}");
}
