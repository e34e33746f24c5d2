//! Rings and receive queues, as both of their sides use them.

// Tests may panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use softib::shm::cell::{Head, INLINE_MAX, PAST, flag, op};
use softib::shm::copy::STREAMS;
use softib::shm::heap::Heap;
use softib::shm::layout::{
    ASKS_PAST, ASKS_TIME, BULK, BULK_MAX, BULK_MIN, C_MANNER, CELL, CELLS, CELLS_FIRST, CELLS_LEN, CONTROL,
    RING_LEN,
};
use softib::shm::ring::{FRAGMENT_MAX, RecvRing, SendRing};
use softib::shm::rq::{Claim, Place, Shape};
use softib::shm::segment::Segment;
use softib::shm::shortage::take_space;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

fn segment() -> Segment {
    Segment::claim(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")), false, |_| ()).unwrap()
}

struct Pair {
    segment: Segment,
    to: SendRing,
    from: RecvRing,
}

fn pair(large: bool) -> Pair {
    let segment = segment();
    let to = SendRing::claim(&segment.map, &segment.file, (7, 99), true, large).unwrap();
    let from = RecvRing::adopt(&segment.inlets, to.index()).unwrap();
    Pair { segment, to, from }
}

impl Pair {
    fn send(&mut self, len: usize, number: u32) -> bool {
        if !self.to.has_room(len) {
            return false;
        }
        let head = Head { op: 1, len: len as u32, pos: number, ..Head::default() };
        let fill = |to: *mut u8| {
            // SAFETY: push hands out room for `len` bytes.
            (0..len).for_each(|i| unsafe { to.add(i).write(byte(number, i)) })
        };
        let _ = self.to.push(head, fill);
        true
    }

    fn receive(&mut self) -> Option<(u32, usize)> {
        let found = self.from.peek()?;
        let len = found.head.len as usize;
        for i in 0..len {
            // SAFETY: the payload has head.len readable bytes.
            assert_eq!(unsafe { found.payload.add(i).read() }, byte(found.head.pos, i));
        }
        self.from.consume(&found);
        Some((found.head.pos, len))
    }

    /// As a poller that has the ring's turn.
    fn poll(&mut self) -> Option<(u32, usize)> {
        match self.from.front() {
            Some((head, _))
                if head.len as usize <= INLINE_MAX && ![op::MORE_CELLS, op::LESS_BULK].contains(&head.op) =>
            {
                if self.from.consume_quietly() {
                    self.from.publish_if_due();
                }
                Some((head.pos, head.len as usize))
            }
            Some(_) => self.receive(),
            None => {
                self.from.await_next();
                None
            }
        }
    }
}

fn byte(number: u32, at: usize) -> u8 {
    (number as usize * 31 + at * 7) as u8
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.segment.unlink();
    }
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..130, 0usize..5000, Just(FRAGMENT_MAX), 0..FRAGMENT_MAX]
}

/// A receiver that waits makes the next cell its own: what the sender writes into it at that very moment must come through.
#[test]
fn a_cell_that_is_awaited_while_it_is_written_arrives_whole() {
    const TOTAL: u32 = 300_000;
    let length = |number: u32| (number % (INLINE_MAX as u32 + 1)) as usize;
    let mut pair = pair(false);
    let mut from = RecvRing::adopt(&pair.segment.inlets, pair.to.index()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..TOTAL {
                while !pair.send(length(number), number) {
                    std::thread::yield_now();
                }
            }
        });
        for number in 0..TOTAL {
            let (head, payload) = loop {
                match from.front() {
                    // As a poller does: the general way sees to it.
                    Some((head, _)) if head.op == op::MORE_CELLS => drop(from.peek()),
                    Some(found) => break found,
                    None => {
                        from.await_next();
                        std::thread::yield_now();
                    }
                }
            };
            assert_eq!((head.pos, head.len as usize), (number, length(number)));
            for i in 0..length(number) {
                // SAFETY: the payload has head.len readable bytes.
                assert_eq!(unsafe { payload.add(i).read() }, byte(number, i), "byte {i} of message {number}");
            }
            if from.consume_quietly() {
                from.publish_if_due();
            }
        }
    });
}

/// Bytes of the bulk that have been written, as far as its last byte that is not 0.
fn bulk_used(pair: &Pair) -> usize {
    let ring = pair.segment.inlets.ring(pair.to.index()).unwrap();
    let last = (BULK..RING_LEN).rev().find(|at| ring.read::<1>(*at) != [0]);
    last.map_or(0, |at| at + 1 - BULK)
}

/// Cells that have been written.
fn cells_used(pair: &Pair) -> usize {
    let ring = pair.segment.inlets.ring(pair.to.index()).unwrap();
    let first = (CONTROL - CELLS_LEN..CONTROL).find(|at| ring.read::<1>(*at) != [0]);
    first.map_or(0, |at| (CONTROL - at).div_ceil(CELL))
}

/// What two processes write into a ring that say as much as two ranks do that connect and exchange a message.
#[test]
fn few_messages_stay_on_one_page_of_a_ring() {
    let mut pair = pair(true);
    for (number, len) in [600, 80, 600, 8].into_iter().enumerate() {
        assert!(pair.send(len, number as u32));
        assert_eq!(pair.receive(), Some((number as u32, len)));
    }
    let page = (CONTROL - cells_used(&pair) * CELL) / 4096;
    assert_eq!((BULK + bulk_used(&pair) - 1) / 4096, page);
}

/// Sends and takes a long message, for which the receiver waits or not, and which it reads for so many microseconds if it came through the caches, or
/// past them. Whether it came past them.
fn long_message(pair: &mut Pair, waits: bool, reads: [u64; 2]) -> bool {
    if waits {
        assert!(pair.from.front().is_none());
        pair.from.await_next();
    }
    let past = pair.to.begin(PAST);
    let flags = flag::FIRST | flag::LAST;
    assert!(pair.to.has_room(PAST as usize));
    let _ = pair.to.push(Head { op: op::SEND, flags, len: PAST, ..Head::default() }, |_| ());
    let found = pair.from.peek().unwrap();
    pair.from.time(&found.head, false);
    let begin = std::time::Instant::now();
    while begin.elapsed().as_micros() < reads[usize::from(past)].into() {}
    pair.from.has_been_read();
    pair.from.consume(&found);
    past
}

#[test]
fn long_messages_come_the_way_that_takes_less_time_and_what_was_not_waited_for_says_nothing() {
    let mut pair = pair(true);
    let changes = |pair: &mut Pair, waits, reads, to| {
        let wanted = |_: &usize| {
            long_message(pair, waits, reads) == to && (0..20).all(|_| long_message(pair, waits, reads) == to)
        };
        (0..5000).find(wanted).is_some()
    };
    assert!(changes(&mut pair, true, [40, 40], false), "through the caches at first");
    assert!(!(0..500).any(|_| long_message(&mut pair, false, [40, 0])));
    assert_eq!(changes(&mut pair, true, [200, 0], true), STREAMS, "no processor but x86-64 has another way");
    assert!(changes(&mut pair, true, [0, 200], false));
    pair.segment.unlink();
}

/// How far a ring has been read is told when that is half of it, and sooner by a receiver that waits; the sender looks behind a message.
#[test]
fn a_receiver_that_waits_tells_its_sender_sooner_how_far_it_has_read() {
    let mut pair = pair(false);
    let known = CELLS_FIRST as u32 - 1;
    for (read, waits, told) in [(4, false, false), (0, true, true), (3, true, false), (5, false, true)] {
        while pair.to.fits(8) {
            assert!(pair.send(8, pair.to.sent()));
        }
        let due = (0..read).filter(|_| pair.from.front().is_some() && pair.from.consume_quietly()).count();
        if due != 0 {
            pair.from.publish_if_due();
        }
        if waits {
            pair.from.await_next();
        }
        pair.to.look_ahead(8);
        assert_eq!(pair.to.fits(8), told, "{read} read, waits: {waits}");
    }
    assert!(pair.to.sent() >= known);
    assert_eq!(cells_used(&pair), CELLS_FIRST, "no more of them are used for that");
}

#[test]
fn a_ring_comes_to_use_all_of_its_cells_only_if_they_are_unread() {
    let mut pair = pair(false);
    for number in 0..5000 {
        assert!(pair.send(8, number));
        assert_eq!(pair.receive(), Some((number, 8)));
    }
    assert_eq!(cells_used(&pair), CELLS_FIRST);
    let mut sent = 0;
    while pair.send(8, sent) {
        sent += 1;
    }
    assert_eq!((cells_used(&pair), sent > CELLS as u32 * 3 / 4), (CELLS, true), "{sent} are unread");
    assert!((0..sent).all(|number| pair.receive() == Some((number, 8))));
    assert_eq!(pair.receive(), None);
    for number in 0..5000 {
        assert!(pair.send(8, number));
        assert_eq!(pair.receive(), Some((number, 8)));
    }
}

#[test]
fn a_ring_that_is_read_at_once_goes_on_in_the_same_part_of_its_bulk() {
    let mut pair = pair(true);
    exchange(&mut pair, 4000, 2000);
    assert!(bulk_used(&pair) <= 16 << 10);
    assert!((0..25).all(|number| pair.send(4000, number)), "100,000 bytes are unread");
    assert!((100_000..=128 << 10).contains(&bulk_used(&pair)));
    assert!((0..25).all(|number| pair.receive() == Some((number, 4000))));
}

/// What goes round slowly has left the caches of its reader when it is written to again.
#[test]
fn longer_payloads_go_round_in_more_of_the_bulk() {
    let used_by = |len, large| {
        let mut pair = pair(large);
        exchange(&mut pair, len, 2000);
        bulk_used(&pair).next_power_of_two()
    };
    assert_eq!([used_by(4000, true), used_by(4000, false)], [8 << 10; 2]);
    assert_eq!([used_by(12000, true), used_by(12000, false)], [BULK_MIN; 2]);
    assert_eq!([used_by(65000, true), used_by(65000, false)], [BULK_MAX, BULK_MIN]);
}

/// What its reader asks for past the caches is not slower where it goes round fast, but where it goes round slowly.
#[test]
fn a_ring_goes_back_to_little_of_its_bulk_when_messages_come_to_go_past_the_caches() {
    const LEN: usize = 33000;
    let mut pair = pair(true);
    let used_in = |pair: &mut Pair, manner| {
        let inlets = pair.segment.inlets.clone();
        let ring = inlets.ring(pair.to.index()).unwrap();
        ring.u32(C_MANNER).store(manner, Ordering::Relaxed);
        // The first ones come to use as much as they will.
        exchange(pair, LEN, 200);
        ring.write(BULK, &vec![0; RING_LEN - BULK]);
        exchange(pair, LEN, 200);
        bulk_used(pair).next_power_of_two()
    };
    assert_eq!(used_in(&mut pair, 0), BULK_MAX);
    assert_eq!(used_in(&mut pair, ASKS_PAST | ASKS_TIME), BULK_MAX, "it may be a trial");
    assert_eq!(used_in(&mut pair, ASKS_PAST), 128 << 10);
    assert_eq!(used_in(&mut pair, 0), BULK_MAX, "through the caches again");
}

/// So many messages, each read at once.
fn exchange(pair: &mut Pair, len: usize, messages: u32) {
    for number in 0..messages {
        pair.to.prepare(len as u32);
        assert!(pair.send(len, number));
        assert_eq!(pair.receive(), Some((number, len)));
        assert_eq!(pair.poll(), None);
    }
}

/// The answers to READs use no more of the bulk than they need, whatever messages have come to use before.
#[test]
fn a_ring_goes_back_to_less_of_its_bulk_when_all_of_it_has_been_read() {
    const MOST: u32 = 64 << 10;
    let mut pair = pair(true);
    assert!((0..4).all(|number| pair.send(FRAGMENT_MAX, number)));
    assert!(pair.receive() == Some((0, FRAGMENT_MAX)));
    assert!(
        pair.to.has_room_within(5000, MOST) && pair.send(5000, 4),
        "something is unread: it stays as it is"
    );
    assert!((1..4).all(|number| pair.receive() == Some((number, FRAGMENT_MAX))));
    assert_eq!(pair.receive(), Some((4, 5000)));
    let answer = |pair: &mut Pair, number| {
        pair.from.await_next();
        assert!(pair.to.has_room_within(5000, MOST) && pair.send(5000, number));
        assert_eq!(pair.receive(), Some((number, 5000)));
    };
    // Not before it knows of two free cells.
    (0..20).for_each(|number| answer(&mut pair, number));
    let ring = pair.segment.inlets.ring(pair.to.index()).unwrap();
    ring.write(BULK, &vec![0; RING_LEN - BULK]);
    (0..200).for_each(|number| answer(&mut pair, number));
    assert!((1..=MOST as usize).contains(&bulk_used(&pair)), "{} bytes are used", bulk_used(&pair));
    assert!((0..4).all(|number| pair.send(FRAGMENT_MAX, number)), "and to more, if that is needed");
    assert!((0..4).all(|number| pair.receive() == Some((number, FRAGMENT_MAX))));
}

/// What a receiver has read, and has not told, leaves room for the longest message: its sender would wait for a word that does not come.
#[test]
fn a_little_ring_that_has_been_read_has_room_for_the_longest_message() {
    let mut pair = pair(false);
    let mut random = 1u32;
    let mut below = |most: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((u64::from(random) * u64::from(most)) >> 32) as usize
    };
    let mut number = 0;
    for _ in 0..5000 {
        // It comes to use less, and, where some wait, another half.
        let _ = pair.to.has_room_within(0, 8 << 10);
        for _ in 0..=below(3) {
            let len = if below(2) == 0 { below(5000) } else { FRAGMENT_MAX - below(4096) };
            number += u32::from(pair.send(len, number));
        }
        while pair.receive().is_some() {}
        assert!(pair.send(FRAGMENT_MAX, number), "{:?}", pair.to);
        assert_eq!(pair.receive(), Some((number, FRAGMENT_MAX)));
        number += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_ring_gives_back_what_was_put_in_and_never_deadlocks(
        steps in prop::collection::vec((length(), 0usize..6), 1..1500),
        large in any::<bool>(),
        polls in any::<bool>()
    ) {
        const MOST: usize = 8 << 10;
        let mut pair = pair(large);
        let receive = |pair: &mut Pair| if polls { pair.poll() } else { pair.receive() };
        let (mut number, mut expected) = (0, VecDeque::new());
        for (len, receives) in steps {
            if receives == 5 {
                let _ = pair.to.has_room_within(len.min(MOST), MOST as u32);
            }
            if pair.send(len, number) {
                expected.push_back((number, len));
                number += 1;
            } else if expected.is_empty() {
                prop_assert!(polls && receive(&mut pair).is_none());
                prop_assert!(pair.send(len, number), "an empty ring has room for any cell");
                expected.push_back((number, len));
                number += 1;
            }
            for _ in 0..receives {
                prop_assert_eq!(receive(&mut pair), expected.pop_front());
            }
        }
        while let Some(next) = expected.pop_front() {
            prop_assert_eq!(pair.receive(), Some(next));
        }
        prop_assert!(pair.receive().is_none());
        prop_assert!(pair.send(FRAGMENT_MAX, number));
    }

    /// Whatever a broken or hostile sender writes into a cell, the receiver neither panics nor reads outside of the ring.
    #[test]
    fn any_cell_is_survived(bytes in prop::collection::vec(any::<u8>(), 124), large in any::<bool>()) {
        let mut pair = pair(large);
        prop_assert!(pair.send(0, 0));
        pair.segment.inlets.ring(pair.to.index()).unwrap().write(4, &bytes);
        if let Some(found) = pair.from.peek() {
            prop_assert!(found.head.len as usize <= FRAGMENT_MAX);
            // SAFETY: as promised by peek.
            let sum: u64 = (0..found.head.len as usize).map(|i| u64::from(unsafe { found.payload.add(i).read() })).sum();
            std::hint::black_box(sum);
        }
    }
}

fn place(segment: &Segment, size: u32) -> Place {
    let shape = Shape { size, shared: true };
    let extent = Heap::default().alloc(shape.bytes()).unwrap();
    take_space(&segment.file, extent.offset, extent.len, "a queue").unwrap();
    let place = segment.heaps.queue(extent.offset, shape).unwrap().unwrap();
    place.reset();
    place
}

#[test]
fn many_claimers_get_every_receive_exactly_once() {
    const TOTAL: u32 = 100_000;
    const SIZE: u32 = 64;
    let segment = segment();
    let place = place(&segment, SIZE);
    let counts: Vec<AtomicU32> = (0..TOTAL).map(|_| AtomicU32::new(0)).collect();
    let (taken, done) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for owner in 1..4 {
            let (place, counts, taken, done) = (&place, &counts, &taken, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let Claim::Got { pos, len } = place.claim(owner) else {
                        std::thread::yield_now();
                        continue;
                    };
                    assert_eq!(len, pos % 1000);
                    counts[pos as usize].fetch_add(1, Ordering::Relaxed);
                    taken.fetch_add(1, Ordering::Release);
                }
            });
        }
        for pos in 0..TOTAL {
            while pos - taken.load(Ordering::Acquire) >= SIZE / 2 {
                std::thread::yield_now();
            }
            place.post_shared(pos, pos % 1000);
        }
        while taken.load(Ordering::Acquire) < TOTAL {
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    segment.unlink();
}

#[test]
fn a_claimer_that_died_before_moving_the_head_stops_nobody() {
    let segment = segment();
    let place = place(&segment, 4);
    (0..4).for_each(|pos| place.post_shared(pos, 10));
    assert_eq!(place.claim(5), Claim::Got { pos: 0, len: 10 });
    // As if its claimer had died between the claim and the step of the head.
    place.start_at(0);
    assert_eq!(place.claim(6), Claim::Got { pos: 1, len: 10 });
    place.start_at(0);
    assert_eq!(place.displace(0), Some(5));
    place.post_shared(4, 11);
    assert_eq!(place.claim(6), Claim::Got { pos: 2, len: 10 });
    segment.unlink();
}

#[test]
fn a_withdrawn_receive_is_claimed_by_nobody() {
    let segment = segment();
    let place = place(&segment, 4);
    (0..3).for_each(|pos| place.post_shared(pos, 10));
    assert!(place.withdraw(0));
    assert_eq!(place.claim(1), Claim::Got { pos: 1, len: 10 });
    assert!(!place.withdraw(1));
    assert_eq!(place.claimant(1), Some(1));
    assert_eq!(place.claim(2), Claim::Got { pos: 2, len: 10 });
    assert_eq!(place.claim(2), Claim::Empty);
    segment.unlink();
}
