//! RC, UD and one-sided operations between two processes.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;

/// The other process; does nothing when the test runner calls it.
#[test]
fn child_main() {
    match role().as_deref() {
        Some("echo") => echo(),
        Some("datagrams") => datagrams(),
        Some("memory") => memory(),
        Some("shared") => shared(),
        Some("without_process_vm") => {
            read_and_write(&[]);
            assert_eq!(softib::stats().rdma_direct, 0);
            assert!(softib::stats().rdma_ring > 0);
        }
        Some("owner") => owner(),
        Some("reader") => reader(),
        Some("giver") => giver(),
        Some("crowded") => crowded(),
        Some("chooser") => chooser(),
        Some("alone with one") => alone_with_one(),
        Some("writer") => writer(),
        other => assert_eq!(other, None, "no such role"),
    }
}

const SLOTS: usize = 16;
const LEN: usize = 1 << 20;

/// Sends back every message it receives, until the parent closes.
fn echo() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let buf = dev.buf(SLOTS * LEN);
    say(&[qp.num().into()]);
    let hello = listen().unwrap();
    qp.init(ALL_ACCESS);
    for slot in 0..SLOTS {
        assert_eq!(qp.recv(slot as u64, &[buf.sge(slot * LEN, LEN)]), 0);
    }
    qp.rtr(hello[0] as u32, &Path::default());
    qp.rts(&Path::default());
    say(&[0]);
    for _ in 0..hello[1] {
        let wc = qp.wait();
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        let slot = wc.wr_id as usize;
        assert_eq!(qp.send(0, &[buf.sge(slot * LEN, wc.byte_len as usize)]), 0);
        while qp.wait().opcode != IBV_WC_SEND {}
        assert_eq!(qp.recv(slot as u64, &[buf.sge(slot * LEN, LEN)]), 0);
    }
    listen();
}

#[test]
fn messages_of_all_sizes_come_back_unchanged() {
    let sizes = [0, 1, 8, 40, 41, 64, 104, 105, 128, 1000, 4096, 16384, 16385, 40000, 65536, 300_000, LEN];
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let (mut out, back) = (dev.buf(LEN), dev.buf(LEN));
    let mut child = Child::start("echo");
    let theirs = child.hear()[0] as u32;
    qp.init(ALL_ACCESS);
    child.tell(&[qp.num().into(), 4 * sizes.len() as u64]);
    child.hear();
    qp.rtr(theirs, &Path::default());
    qp.rts(&Path::default());
    for round in 0..4 {
        for size in sizes {
            out.data[..size].copy_from_slice(&pattern(round * 100 + size as u64, size));
            assert_eq!(qp.recv(7, &[back.sge(0, LEN)]), 0);
            assert_eq!(qp.send(8, &[out.sge(0, size)]), 0);
            let (one, two) = (qp.wait(), qp.wait());
            let got = if one.wr_id == 7 { one } else { two };
            assert_eq!((one.status, two.status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
            assert_eq!(got.byte_len as usize, size);
            assert!(back.data[..size] == out.data[..size], "size {size}");
        }
    }
    child.finish();
}

const QKEY: u32 = 0x1234_5678;

/// Answers each datagram, sleeping on a completion channel in between.
fn datagrams() {
    let dev = Dev::open();
    let channel = unsafe { (table().create_comp_channel)(dev.ctx) };
    let cq = dev.cq_on(64, channel);
    let qp = dev.qp(IBV_QPT_UD, cq);
    let (buf, ah) = (dev.buf(4096), dev.ah());
    qp.ready_ud(QKEY);
    say(&[qp.num().into()]);
    for _ in 0..listen().unwrap()[0] {
        assert_eq!(qp.recv(1, &[buf.sge(0, 2048)]), 0);
        assert_eq!(unsafe { ibv_req_notify_cq(cq, 0) }, 0);
        say(&[1]);
        let wc = sleep_for_completion(channel, cq);
        assert_eq!((wc.status, wc.wc_flags & IBV_WC_GRH), (IBV_WC_SUCCESS, 0));
        let len = wc.byte_len as usize - 40;
        assert_eq!(qp.datagram(2, &[buf.sge(40, len)], ah, (wc.src_qp, QKEY)), 0);
        assert_eq!(qp.wait().opcode, IBV_WC_SEND);
    }
    listen();
}

/// Blocks on the channel until the armed CQ has fired, and takes its completion.
fn sleep_for_completion(channel: *mut ibv_comp_channel, cq: *mut ibv_cq) -> ibv_wc {
    let (mut fired, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
    assert_eq!(unsafe { (table().get_cq_event)(channel, &mut fired, &mut context) }, 0);
    assert_eq!(fired, cq);
    unsafe { (table().ack_cq_events)(cq, 1) };
    poll(cq).expect("the event came with its completion")
}

#[test]
fn datagrams_wake_a_sleeper_and_come_back() {
    const ROUNDS: u64 = 200;
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_UD, dev.cq(64));
    let (mut buf, ah) = (dev.buf(8192), dev.ah());
    qp.ready_ud(QKEY);
    let mut child = Child::start("datagrams");
    let theirs = child.hear()[0] as u32;
    child.tell(&[ROUNDS]);
    for round in 0..ROUNDS {
        let len = (round * 37 % 1500) as usize;
        buf.data[..len].copy_from_slice(&pattern(round, len));
        assert_eq!(qp.recv(9, &[buf.sge(4096, 4096)]), 0);
        child.hear();
        assert_eq!(qp.datagram(8, &[buf.sge(0, len)], ah, (theirs, QKEY)), 0);
        assert_eq!(qp.wait().wr_id, 8);
        let wc = qp.wait();
        assert_eq!((wc.wr_id, wc.src_qp, wc.slid), (9, theirs, 1));
        assert_eq!(wc.byte_len as usize, 40 + len);
        assert!(buf.data[4136..4136 + len] == buf.data[..len]);
    }
    child.finish();
}

/// Offers a buffer, sleeps while the parent works on it, and tells what is in it.
fn memory() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let mut buf = dev.buf(LEN);
    buf.data.copy_from_slice(&pattern(1, LEN));
    say(&[qp.num().into(), buf.addr(), buf.key().into()]);
    let hello = listen().unwrap();
    qp.init(ALL_ACCESS);
    assert_eq!(qp.recv(5, &[]), 0);
    qp.rtr(hello[0] as u32, &Path::default());
    qp.rts(&Path::default());
    say(&[0]);
    let wc = qp.wait();
    assert_eq!(
        (wc.status, wc.opcode, wc.wc_flags),
        (IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM)
    );
    assert_eq!(unsafe { wc.imm.imm_data }, 77);
    say(&[wc.byte_len.into(), u64::from(buf.data[..] == pattern(2, LEN)[..])]);
    listen();
}

fn read_and_write(env: &[(&str, &str)]) {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let mut buf = dev.buf(LEN);
    let mut child = Child::start_with("memory", env);
    let hello = child.hear();
    let (theirs, addr, key) = (hello[0] as u32, hello[1], hello[2] as u32);
    qp.init(ALL_ACCESS);
    child.tell(&[qp.num().into()]);
    child.hear();
    qp.rtr(theirs, &Path::default());
    qp.rts(&Path::default());
    for (at, len) in [(0, LEN), (LEN / 2, 100), (17, 0), (LEN - 1, 1)] {
        buf.data.fill(0);
        assert_eq!(qp.rdma(1, IBV_WR_RDMA_READ, buf.sge(at, len), addr + at as u64, key), 0);
        let wc = qp.wait();
        assert_eq!((wc.status, wc.opcode), (IBV_WC_SUCCESS, IBV_WC_RDMA_READ));
        assert!(buf.data[at..at + len] == pattern(1, LEN)[at..at + len]);
    }
    buf.data.copy_from_slice(&pattern(2, LEN));
    assert_eq!(qp.rdma(2, IBV_WR_RDMA_WRITE, buf.sge(0, LEN / 2), addr, key), 0);
    assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    let half = LEN / 2;
    let posted = qp.post(
        3,
        IBV_WR_RDMA_WRITE_WITH_IMM,
        &[buf.sge(half, 100), buf.sge(half + 100, half - 100)],
        |wr| {
            wr.imm.imm_data = 77;
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr: addr + half as u64, rkey: key };
        },
    );
    assert_eq!(posted, 0);
    assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    assert_eq!(child.hear(), [half as u64, 1]);
    // One byte past the end is refused.
    assert_eq!(qp.rdma(4, IBV_WR_RDMA_READ, buf.sge(0, 2), addr + LEN as u64 - 1, key), 0);
    assert_eq!(qp.wait().status, IBV_WC_REM_ACCESS_ERR);
    child.finish();
}

#[test]
fn rdma_reads_and_writes_the_memory_of_a_sleeping_peer() {
    read_and_write(&[]);
}

/// Both processes are started so that neither may reach into the other's memory.
#[test]
fn without_process_vm_the_rings_carry_reads_and_writes() {
    let this = Child::start_with("without_process_vm", &[("SOFTIB_CMA", "0")]);
    this.finish();
}

/// What the owner of a memory does, as its first byte says.
const POLLS: u8 = 1;
const COMPUTES: u8 = 2;
/// It polls, and the pages of its other buffer are gone, though that is registered: a cache of registrations may leave it so for a while.
const FORGETS: u8 = 3;
const ENDS: u8 = 4;
/// It polls between pieces of a computation.
const TESTS: u8 = 5;
/// Processes of other tests do not count, and a polling owner is asked whatever takes less time.
const ENOUGH_PROCESSORS: &[(&str, &str)] = &[("SOFTIB_PROCESSORS", "64"), ("SOFTIB_CMA", "late")];

/// How long a piece is.
const PIECE: std::time::Duration = std::time::Duration::from_micros(20);

/// Where both programs happen to look at the same time, what is read comes in so many looks; else there is a ring's room in each.
const AT_ONCE: u32 = 4;

/// A READ that takes no longer has been served by programs, not by device threads in their place.
const UNDISTURBED: std::time::Duration = std::time::Duration::from_millis(2);

fn compute(time: std::time::Duration) {
    let end = std::time::Instant::now() + time;
    while std::time::Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Offers two buffers with a pattern, and polls or does not, as the first byte of the first one tells. It has a queue pair, or two.
fn owner() {
    let dev = Dev::open();
    let [qp, second] = [(); 2].map(|()| dev.qp(IBV_QPT_RC, dev.cq(64)));
    let mut buf = dev.buf(LEN);
    buf.data.copy_from_slice(&pattern(3, LEN));
    buf.data[0] = POLLS;
    let mut other = Some(dev.buf(LEN)).map(|mut other| {
        other.data.copy_from_slice(&pattern(3, LEN));
        other
    });
    let there = other.as_ref().map_or([0; 2], |other| [other.addr(), other.key().into()]);
    say(&[qp.num().into(), buf.addr(), buf.key().into(), there[0], there[1], second.num().into()]);
    let hello = listen().unwrap();
    [qp, second].iter().zip(&hello).for_each(|(qp, dest)| qp.connect(*dest as u32, &Path::default()));
    assert_eq!(qp.recv(5, &[buf.sge(LEN - 8, 8)]), 0);
    say(&[0]);
    let began = std::time::Instant::now();
    while began.elapsed() < 2 * PATIENCE {
        match unsafe { buf.data.as_ptr().read_volatile() } {
            POLLS => drop(poll(qp.cq)),
            COMPUTES => std::hint::spin_loop(),
            TESTS => {
                compute(PIECE);
                poll(qp.cq);
            }
            FORGETS => {
                if let Some(other) = other.take() {
                    let start = other.addr().next_multiple_of(4096) as *mut _;
                    assert_eq!(unsafe { libc::munmap(start, LEN - 8192) }, 0);
                    std::mem::forget(other);
                }
                poll(qp.cq);
            }
            _ => break,
        }
    }
}

/// Of the owner's pattern: a part that is sent in pieces, one that is fetched in a few microseconds, and one that is in one or two.
const SOME: usize = 200_000;
const MIDDLE: usize = 60_000;
const FEW: usize = 8;

/// Reads so many bytes of the owner's pattern until `enough` of what softib has counted.
fn read_until(
    qp: &Qp,
    buf: &mut Buf,
    (at, len): ((u64, u32), usize),
    enough: impl Fn(softib::Stats) -> bool,
) {
    let (began, expected) = (std::time::Instant::now(), pattern(3, LEN));
    while !enough(softib::stats()) {
        assert!(began.elapsed() < PATIENCE, "{:?}", softib::stats());
        // Who polls in vain a few times looks at its rings itself.
        (0..100).for_each(|_| assert!(poll(qp.cq).is_none()));
        buf.data[..len].fill(0);
        assert_eq!(qp.rdma(1, IBV_WR_RDMA_READ, buf.sge(0, len), at.0 + 1, at.1), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS, "{:?}", softib::stats());
        assert!(buf.data[..len] == expected[1..=len]);
    }
}

/// How long an owner is waited for that fetches from us, and does not end (`AGAIN` times `SOON`).
const WAITED_FOR: std::time::Duration = std::time::Duration::from_millis(2);

/// Makes it look as if the process of `their_qpn` worked on our memory by its own hand, or no longer.
fn it_seems_to_fetch(our_qpn: u32, their_qpn: u32) -> impl Fn(bool) {
    use softib::shm::layout::{QP_BITS, R_HAZARD, RINGS, TABLES_LEN, ring_entry};
    let file =
        softib::shm::segment::open_slot(&softib::shm::segment::directory(), (our_qpn >> QP_BITS) as usize);
    let map = softib::shm::map::Map::new(&file.unwrap(), TABLES_LEN).unwrap();
    let is_theirs = |row: &usize| {
        softib::shm::ring::sender(&map, *row).is_some_and(|(slot, _)| slot == (their_qpn >> QP_BITS) as usize)
    };
    let row = (0..RINGS).find(is_theirs).expect("it has sent something");
    let set = move |fetches: bool| {
        map.u32(ring_entry(row) + R_HAZARD).store(fetches.into(), std::sync::atomic::Ordering::SeqCst);
    };
    set(true);
    set
}

/// Longer READs may be fetched, as they cross what their owner seems to fetch.
const UNCROSSED: usize = 100_000;

/// A READ goes through the rings while both sides poll, and not when the owner has stopped.
#[test]
fn what_a_polling_owner_sends_is_not_fetched_and_what_a_busy_one_does_not_send_is() {
    Child::start_with("reader", ENOUGH_PROCESSORS).finish();
}

fn reader() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(64));
    let mut buf = dev.buf(LEN);
    let mut child = Child::start("owner");
    let hello = child.hear();
    let memory = (hello[1], hello[2] as u32);
    qp.connect(hello[0] as u32, &Path::default());
    child.tell(&[qp.num().into()]);
    child.hear();
    assert_eq!(qp.send(8, &[buf.sge(0, 8)]), 0);
    assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    let order = |buf: &mut Buf, what: u8| {
        buf.data[LEN - 1] = what;
        assert_eq!(qp.rdma(2, IBV_WR_RDMA_WRITE, buf.sge(LEN - 1, 1), memory.0, memory.1), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    };
    let began = std::time::Instant::now();
    for round in 0usize.. {
        if round >= 20 && softib::stats().rdma_late > 0 {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "the owner was never late: {:?}", softib::stats());
        let before = softib::stats();
        let len = [SOME, FEW][round % 2];
        read_until(&qp, &mut buf, (memory, len), |now| now.rdma_ring >= before.rdma_ring + 5);
        order(&mut buf, COMPUTES);
        read_until(&qp, &mut buf, (memory, len), |now| now.rdma_direct >= before.rdma_direct + 5);
        order(&mut buf, POLLS);
    }
    // Behind a while without polls, in which the device thread has taken over, one poll is enough.
    loop {
        let before = softib::stats();
        (0..100).for_each(|_| assert!(poll(qp.cq).is_none()));
        while softib::stats().takeovers == before.takeovers {
            assert!(began.elapsed() < 2 * PATIENCE, "the device thread does not take over: {before:?}");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(poll(qp.cq).is_none());
        assert_eq!(qp.rdma(1, IBV_WR_RDMA_READ, buf.sge(0, LEN), memory.0, memory.1), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
        let now = softib::stats();
        if (now.rdma_ring, now.rdma_late) != (before.rdma_ring, before.rdma_late) {
            break;
        }
    }
    // What was not waited for is not looked for in memory that is gone: nothing is wrong.
    let other = (hello[3], hello[4] as u32);
    loop {
        let before = softib::stats();
        read_until(&qp, &mut buf, (other, SOME), |now| now.rdma_ring >= before.rdma_ring + 5);
        order(&mut buf, COMPUTES);
        let before = softib::stats();
        read_until(&qp, &mut buf, (other, SOME), |now| now.rdma_direct > before.rdma_direct);
        if softib::stats().rdma_late > before.rdma_late {
            break;
        }
        assert!(began.elapsed() < 2 * PATIENCE, "the owner was never late: {:?}", softib::stats());
        order(&mut buf, POLLS);
    }
    order(&mut buf, POLLS);
    // What would come by and by is fetched: both programs look around now and then only.
    order(&mut buf, TESTS);
    let (mut fetched, mut sent) = (0, 0);
    while fetched < 10 {
        let before = softib::stats();
        (0..100).for_each(|_| assert!(poll(qp.cq).is_none()));
        let posted = std::time::Instant::now();
        assert_eq!(qp.rdma(1, IBV_WR_RDMA_READ, buf.sge(0, LEN), memory.0, memory.1), 0);
        let mut looks = 0;
        let wc = loop {
            compute(PIECE);
            looks += 1;
            match poll(qp.cq) {
                Some(wc) => break wc,
                None => assert!(began.elapsed() < 2 * PATIENCE, "{before:?} {:?}", softib::stats()),
            }
        };
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        let now = softib::stats();
        match (now.rdma_ring - before.rdma_ring, now.rdma_direct - before.rdma_direct) {
            (1, 1) => fetched += 1,
            (1, 0) => sent += u64::from(looks > AT_ONCE && posted.elapsed() < UNDISTURBED),
            _ => {}
        }
    }
    assert!(sent <= 10 + 3 * fetched, "{sent} of {fetched} READs came by and by");
    order(&mut buf, POLLS);
    let it_fetches = it_seems_to_fetch(qp.num(), hello[0] as u32);
    let mut late = 0;
    while late < 5 {
        let before = softib::stats();
        read_until(&qp, &mut buf, (memory, UNCROSSED), |now| now.rdma_ring >= before.rdma_ring + 5);
        order(&mut buf, COMPUTES);
        let (before, asked) = (softib::stats(), std::time::Instant::now());
        assert_eq!(qp.rdma(1, IBV_WR_RDMA_READ, buf.sge(0, UNCROSSED), memory.0, memory.1), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
        if softib::stats().rdma_late > before.rdma_late {
            assert!(asked.elapsed() >= WAITED_FOR, "an owner with a reason to be late is not waited for");
            late += 1;
        }
        assert!(began.elapsed() < 2 * PATIENCE, "the owner was never late: {:?}", softib::stats());
        order(&mut buf, POLLS);
    }
    it_fetches(false);
    order(&mut buf, FORGETS);
    let before = softib::stats();
    read_until(&qp, &mut buf, (memory, SOME), |now| now.rdma_ring >= before.rdma_ring + 5);
    order(&mut buf, ENDS);
    child.finish();
}

/// A short WRITE of a program that polls until it is over is placed by its target, if that polls; else it is the initiator's own, and nothing
/// is placed later.
#[test]
fn what_a_polling_owner_is_given_is_written_once() {
    Child::start_with("giver", ENOUGH_PROCESSORS).finish();
}

/// While both sides poll, either way is taken now and then, by what is posted and by what is to be over at once, and what is moved is the same.
#[test]
fn what_goes_by_hand_now_and_then_is_what_goes_through_the_rings() {
    Child::start_with("chooser", &[("SOFTIB_PROCESSORS", "64")]).finish();
}

fn chooser() {
    let dev = Dev::open();
    unsafe { (softib::driver_table().await_writes.unwrap())() };
    let (qp, mut buf, child, at) = with_owner(&dev);
    const LENGTHS: [usize; 4] = [3000, 16_000, MIDDLE, SOME];
    for len in LENGTHS {
        let (before, began, mut value) = (softib::stats(), std::time::Instant::now(), 0u8);
        let (beyond, at_once) = ((at.0 + SOME as u64, at.1), std::cell::Cell::new(0));
        let moved = |opcode, sge, tries: bool| {
            if tries && qp.rdma_at_once(opcode, sge, beyond, false) {
                return at_once.set(at_once.get() + 1);
            }
            assert_eq!(qp.rdma(1, opcode, sge, beyond.0, beyond.1), 0);
            assert_eq!(qp.wait().status, IBV_WC_SUCCESS, "{:?}", softib::stats());
        };
        while softib::stats().rdma_direct < before.rdma_direct + 5
            || softib::stats().rdma_ring < before.rdma_ring + 5
            || at_once.get() < 5
        {
            assert!(began.elapsed() < PATIENCE, "{len} bytes: {} {:?}", at_once.get(), softib::stats());
            (0..100).for_each(|_| assert!(poll(qp.cq).is_none()));
            value = value.wrapping_add(1);
            buf.data[..len].fill(value);
            buf.data[len..2 * len].fill(!value);
            moved(IBV_WR_RDMA_WRITE, buf.sge(0, len), !value.is_multiple_of(4));
            moved(IBV_WR_RDMA_READ, buf.sge(len, len), !value.is_multiple_of(4));
            assert!(buf.data[len..2 * len].iter().all(|byte| *byte == value), "{:?}", softib::stats());
        }
        assert!(poll(qp.cq).is_none(), "what is over at once has no completion");
    }
    buf.data[0] = ENDS;
    assert_eq!(qp.rdma(1, IBV_WR_RDMA_WRITE, buf.sge(0, 1), at.0, at.1), 0);
    assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    child.finish();
}

/// Where there are more processes than processors the peer may not be running: what is moved in a few microseconds is not left to it.
#[test]
fn a_peer_that_may_not_be_running_is_not_asked_for_little() {
    Child::start_with("crowded", &[("SOFTIB_PROCESSORS", "1")]).finish();
}

fn crowded() {
    let dev = Dev::open();
    unsafe { (softib::driver_table().await_writes.unwrap())() };
    let (qp, mut buf, child, at) = with_owner(&dev);
    let beyond = at.0 + 2 * SOME as u64;
    for value in 0..100 {
        (0..100).for_each(|_| assert!(poll(qp.cq).is_none()));
        buf.data[..FEW].fill(value);
        assert_eq!(qp.rdma(1, IBV_WR_RDMA_WRITE, buf.sge(0, FEW), beyond, at.1), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
        assert_eq!(qp.rdma(1, IBV_WR_RDMA_READ, buf.sge(FEW, FEW), beyond, at.1), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
        assert!(buf.data[FEW..2 * FEW].iter().all(|byte| *byte == value));
        assert_eq!(qp.rdma(1, IBV_WR_RDMA_READ, buf.sge(FEW, MIDDLE), beyond, at.1), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    }
    let stats = softib::stats();
    assert_eq!((stats.rdma_ring, stats.rdma_direct), (0, 300));
    read_until(&qp, &mut buf, (at, SOME), |now| now.rdma_ring >= 5);
    buf.data[0] = ENDS;
    assert_eq!(qp.rdma(1, IBV_WR_RDMA_WRITE, buf.sge(0, 1), at.0, at.1), 0);
    assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    child.finish();
}

/// Two processes on two processors: that one of them talks to itself as well makes no third, and one that it has talked to and that has ended does not either.
#[test]
fn a_process_counts_neither_itself_nor_the_dead_among_its_peers() {
    Child::start_with("alone with one", &[("SOFTIB_PROCESSORS", "2")]).finish();
}

fn alone_with_one() {
    let dev = Dev::open();
    let (one, other) = loopback(&dev, &Path::default());
    let mut buf = dev.buf(LEN);
    assert_eq!(other.recv(1, &[buf.sge(8, 8)]) | one.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(one.wait().status, IBV_WC_SUCCESS);
    for _ in 0..3 {
        let (qp, _, child, at) = with_owner(&dev);
        let before = softib::stats();
        read_until(&qp, &mut buf, (at, FEW), |now| now.rdma_ring >= before.rdma_ring + 5);
        buf.data[0] = ENDS;
        assert_eq!(qp.rdma(1, IBV_WR_RDMA_WRITE, buf.sge(0, 1), at.0, at.1), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
        child.finish();
    }
}

/// A queue pair that is connected to an owner, with a buffer for it, and where the owner's memory is.
fn with_owner(dev: &Dev) -> (Qp, Buf, Child, (u64, u32)) {
    let ([qp, _], buf, child, at) = twice_with_owner(dev);
    (qp, buf, child, at)
}

/// The same with two queue pairs.
fn twice_with_owner(dev: &Dev) -> ([Qp; 2], Buf, Child, (u64, u32)) {
    let qps = [(); 2].map(|()| dev.qp(IBV_QPT_RC, dev.cq(64)));
    let buf = dev.buf(LEN);
    let mut child = Child::start("owner");
    let hello = child.hear();
    qps.iter().zip([hello[0], hello[5]]).for_each(|(qp, dest)| qp.connect(dest as u32, &Path::default()));
    child.tell(&qps.map(|qp| qp.num().into()));
    child.hear();
    assert_eq!(qps[0].send(8, &[buf.sge(0, 8)]), 0);
    assert_eq!(qps[0].wait().status, IBV_WC_SUCCESS);
    (qps, buf, child, (hello[1], hello[2] as u32))
}

fn giver() {
    let dev = Dev::open();
    unsafe { (softib::driver_table().await_writes.unwrap())() };
    let ([qp, second], mut buf, child, (addr, key)) = twice_with_owner(&dev);
    let carry_out = |opcode: u32, sge: ibv_sge, at: u64| {
        assert_eq!(qp.rdma(1, opcode, sge, addr + at, key), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS, "{:?}", softib::stats());
    };
    let order = |buf: &mut Buf, what: u8| {
        buf.data[LEN - 1] = what;
        carry_out(IBV_WR_RDMA_WRITE, buf.sge(LEN - 1, 1), 0);
    };
    const AT: u64 = 67;
    let holds = |buf: &mut Buf, value: u8, len: usize| {
        buf.data[LEN / 2..LEN / 2 + len].fill(!value);
        carry_out(IBV_WR_RDMA_READ, buf.sge(LEN / 2, len), AT);
        assert!(buf.data[LEN / 2..LEN / 2 + len].iter().all(|byte| *byte == value), "{:?}", softib::stats());
    };
    let (began, mut value) = (std::time::Instant::now(), 0u8);
    let mut write_until = |buf: &mut Buf, len: usize, enough: &dyn Fn(softib::Stats) -> bool| {
        while !enough(softib::stats()) {
            assert!(began.elapsed() < 2 * PATIENCE, "{:?}", softib::stats());
            (0..100).for_each(|_| assert!(poll(qp.cq).is_none()));
            value = value.wrapping_add(1);
            buf.data[..len].fill(value);
            carry_out(IBV_WR_RDMA_WRITE, buf.sge(0, len), AT);
            holds(buf, value, len);
        }
        value
    };
    for round in 0usize.. {
        if round >= 30 && softib::stats().rdma_late > 3 {
            break;
        }
        let (len, before) = ([8, 4096, 16 << 10, 200_000][round % 4], softib::stats());
        write_until(&mut buf, len, &|now| now.rdma_ring >= before.rdma_ring + 10);
        order(&mut buf, COMPUTES);
        let last = write_until(&mut buf, len, &|now| now.rdma_direct >= before.rdma_direct + 10);
        order(&mut buf, POLLS);
        // Who is asked again has answered what it was too late with.
        let before = softib::stats();
        while softib::stats().rdma_ring == before.rdma_ring {
            assert!(began.elapsed() < 2 * PATIENCE, "{:?}", softib::stats());
            (0..100).for_each(|_| assert!(poll(qp.cq).is_none()));
            holds(&mut buf, last, len);
        }
    }
    // A queue pair that ends meanwhile takes nothing from the others.
    order(&mut buf, COMPUTES);
    (0..100).for_each(|_| assert!(poll(qp.cq).is_none()));
    let before = softib::stats().rdma_ring;
    assert_eq!(second.rdma(1, IBV_WR_RDMA_WRITE, buf.sge(0, FEW), addr + AT, key), 0);
    assert_eq!(second.to_state(IBV_QPS_ERR), 0);
    let (status, is_given) = (second.wait().status, softib::stats().rdma_ring > before);
    assert!(is_given && status == IBV_WC_WR_FLUSH_ERR || status == IBV_WC_SUCCESS, "{status}, {is_given}");
    order(&mut buf, POLLS);
    let mut given = 0;
    while given < 10 {
        assert!(began.elapsed() < 2 * PATIENCE, "nothing is given any more: {:?}", softib::stats());
        (0..100).for_each(|_| assert!(poll(qp.cq).is_none()));
        let before = softib::stats().rdma_ring;
        carry_out(IBV_WR_RDMA_WRITE, buf.sge(0, FEW), AT);
        given += softib::stats().rdma_ring - before;
    }
    order(&mut buf, ENDS);
    child.finish();
}

/// Receives on an SRQ that two QPs share; tells how often each came.
fn shared() {
    let dev = Dev::open();
    let cq = dev.cq(1024);
    let srq = dev.srq(64);
    let buf = dev.buf(64 * 256);
    let qps = [dev.qp_with(IBV_QPT_RC, cq, srq, |_| ()), dev.qp_with(IBV_QPT_RC, cq, srq, |_| ())];
    for slot in 0..64 {
        assert_eq!(srq_recv(srq, slot as u64, buf.sge(slot * 256, 256)), 0);
    }
    say(&[qps[0].num().into(), qps[1].num().into()]);
    let hello = listen().unwrap();
    for (qp, dest) in qps.iter().zip(&hello) {
        qp.connect(*dest as u32, &Path::default());
    }
    say(&[0]);
    let mut next = [0u64; 2];
    while next[0] + next[1] < hello[2] {
        let wc = wait(cq);
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        let from = usize::from(wc.qp_num == qps[1].num());
        let slot = wc.wr_id as usize;
        assert!(buf.data[slot * 256..][..200] == pattern(next[from] * 2 + from as u64, 200)[..]);
        next[from] += 1;
        assert_eq!(srq_recv(srq, wc.wr_id, buf.sge(slot * 256, 256)), 0);
    }
    say(&next);
    listen();
}

#[test]
fn two_qps_share_an_srq_and_keep_their_orders() {
    const EACH: u64 = 5000;
    let dev = Dev::open();
    let cq = dev.cq(1024);
    let qps = [dev.qp(IBV_QPT_RC, cq), dev.qp(IBV_QPT_RC, cq)];
    let mut buf = dev.buf(256);
    let mut child = Child::start("shared");
    let theirs = child.hear();
    child.tell(&[qps[0].num().into(), qps[1].num().into(), 2 * EACH]);
    child.hear();
    for (qp, dest) in qps.iter().zip(&theirs) {
        qp.connect(*dest as u32, &Path::default());
    }
    for i in 0..EACH {
        for (which, qp) in qps.iter().enumerate() {
            buf.data[..200].copy_from_slice(&pattern(i * 2 + which as u64, 200));
            assert_eq!(qp.send(i, &[buf.sge(0, 200)]), 0);
            let wc = wait(cq);
            assert_eq!((wc.status, wc.wr_id), (IBV_WC_SUCCESS, i));
        }
    }
    assert_eq!(child.hear(), [EACH, EACH]);
    child.finish();
}

/// Bytes of a write whose receiver polls its last one.
const POLLED: usize = 4096 + 24;
const POLLED_ROUNDS: u64 = 3000;

/// Writes the number of the round into all bytes, each round when it is told to.
fn writer() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(64));
    let mut buf = dev.buf(POLLED);
    say(&[qp.num().into()]);
    let hello = listen().unwrap();
    qp.connect(hello[0] as u32, &Path::default());
    say(&[0]);
    while let Some(round) = listen() {
        buf.data.fill(round[0] as u8);
        assert_eq!(qp.rdma(1, IBV_WR_RDMA_WRITE, buf.sge(0, POLLED), hello[1], hello[2] as u32), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    }
}

/// openib's eager RDMA and DAPL's dtest poll the last byte of a message, and read all of it when it has changed.
fn last_byte_is_written_last(cma: &str) {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(64));
    let buf = dev.buf(POLLED);
    let mut child = Child::start_with("writer", &[("SOFTIB_CMA", cma)]);
    let theirs = child.hear()[0] as u32;
    qp.connect(theirs, &Path::default());
    child.tell(&[qp.num().into(), buf.data.as_ptr() as u64, unsafe { (*buf.mr).rkey }.into()]);
    child.hear();
    let last = unsafe { buf.data.as_ptr().add(POLLED - 1) };
    for round in (1..=POLLED_ROUNDS).map(|round| round % 255 + 1) {
        child.tell(&[round]);
        let began = std::time::Instant::now();
        while unsafe { last.read_volatile() } != round as u8 {
            assert!(began.elapsed() < PATIENCE, "nothing was written");
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        let stale =
            (0..POLLED).find(|at| unsafe { buf.data.as_ptr().add(*at).read_volatile() } != round as u8);
        assert_eq!(stale, None, "a byte is older than the last one");
    }
    child.finish();
}

#[test]
fn who_sees_the_last_byte_of_an_rdma_write_sees_all_of_it() {
    last_byte_is_written_last("1");
}

#[test]
fn who_sees_the_last_byte_of_an_rdma_write_through_the_rings_sees_all_of_it() {
    last_byte_is_written_last("0");
}
