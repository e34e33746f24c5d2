//! Eager RDMA: messages that their sender writes into a ring in its peer's memory, which the peer looks at. No receive is consumed
//! and none completes.
//!
//! ```text
//!   memory of one side   0..8     how many slots of our messages the peer has taken from its ring; the peer writes that
//!                        128..    the overhang, into which the last message of a lap may reach
//!                        12416..  slots of 128 bytes, into which the peer writes its messages, one below the other, round and round
//!   message              [      free      |  payload  ..  |  payload  | trailer ]     one slot or several; it ends where its highest slot
//!                                                                                     ends, and is written with one WRITE
//!   trailer   byte 0      1..3          3..5          5..7    7
//!            tag     length (LE)   number (LE)   0     lap
//! ```
//!
//! A ring is filled from its highest slot down: so the trailer of the next message is at a place that is known, whatever the length of that
//! message, and everything else of it lies in front. The trailer is written last, and its `lap` behind all else, byte by byte if need be: who reads
//! the lap can read the message. `lap` is one more than how often the ring has gone round, modulo 2^8: what the slot had in the lap before is no
//! message. Where a message of several slots has lain, its receiver writes its trailer into each of them ([`ends_within`]), so that its bytes are
//! not taken for a trailer in the next lap. `number` counts the messages of the lane, those that go by SEND among them: the receiver takes a message
//! only when all before it have come, so the two ways together keep the order.
//!
//! A device that writes the bytes of a request in another order than that of their addresses may write the lap first. Where that may be, messages
//! have one slot, and a checksum of payload and trailer in front of the trailer ([`checksum`]): who reads a message whose checksum is not right
//! looks again. What tells how many slots have been taken has one, too ([`taken_word`]).
//!
//! Each side offers its memory to the other, and says whether messages for it need checksums ([`Offer`](super::wire::Offer)). What is written to it
//! is bytes that may be anything: [`Expected::of`], [`Expected::check`].
#![forbid(unsafe_code)]

use super::wire::MOST_SLOTS;

/// What lies where a message ends is no end of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It tells of a longer payload than there may be, or more than its length.
    #[error(
        "the last word of an eager RDMA message is {0:#x}: no message ends so; peer runs another version, or memory was overwritten"
    )]
    Word(u64),
    /// All bytes of the message should have been there long ago.
    #[error(
        "an eager RDMA message ends with {0:#x}, and its checksum has been wrong for {LOOKS} looks: peer runs another version, or memory was \
         overwritten"
    )]
    Checksum(u64),
}

/// So many looks find a message whose checksum is not right before that is an error: some seconds.
pub const LOOKS: u32 = 1 << 25;

/// Bytes of a slot.
pub const SLOT: usize = 128;

/// Bytes of the trailer.
pub const TRAILER: usize = 8;

/// The longest payload of a message of one slot.
pub const ALONE: usize = SLOT - TRAILER;

/// Bytes of the checksum in front of the trailer, where messages have one.
pub const CHECKSUM: usize = 8;

/// The longest payload of a message with a checksum, which has one slot.
pub const LONGEST_CHECKED: usize = ALONE - CHECKSUM;

/// Slots of the longest message.
const WIDEST: usize = 97;

/// The longest payload.
pub const LONGEST: usize = WIDEST * SLOT - TRAILER;

/// Where the lowest slot begins, behind the lines of the word in front and what the last message of a lap may need below.
const FIRST: usize = WIDEST * SLOT;

/// Slots of a message with such a payload.
#[inline(always)] // with every message
pub const fn slots_of(len: usize) -> u32 {
    ((len + TRAILER).div_ceil(SLOT)) as u32
}

/// Where the slots end that a message with such a payload has besides its highest one, which ends at `end`.
pub fn ends_within(end: usize, len: usize) -> impl Iterator<Item = usize> {
    (1..slots_of(len) as usize).map(move |slot| end.saturating_sub(slot * SLOT))
}

/// Where the next message of a ring is written, or looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Slots of the messages so far, what hangs over the lowest one among them, modulo 2^32.
    pub count: u32,
    /// Where the highest slot ends, in the memory.
    top: u32,
    /// Where it ends.
    end: u32,
    lap: u8,
}

impl Cursor {
    /// Of a ring of so many slots, rounded down to a power of two that there may be.
    pub fn new(slots: u16) -> Cursor {
        let slots = 1 << slots.clamp(1, MOST_SLOTS).ilog2();
        let top = FIRST as u32 + slots * SLOT as u32;
        Cursor { count: 0, end: top, top, lap: 1 }
    }

    /// Slots of the ring.
    #[inline(always)] // with every message
    pub const fn slots(self) -> u32 {
        (self.top - FIRST as u32) / SLOT as u32
    }

    /// Bytes of the memory that such a ring lies in.
    pub const fn memory(self) -> usize {
        self.top as usize
    }

    /// Where the next message ends, in the memory.
    #[inline(always)] // with every message
    pub const fn end(self) -> usize {
        self.end as usize
    }

    /// The lap of the next message.
    #[inline(always)] // with every message
    pub const fn lap(self) -> u8 {
        self.lap
    }

    /// One message of so many slots, of [`LONGEST`] bytes at most, further. Whether the next one is the first of a lap.
    #[inline(always)] // with every message
    pub const fn advance(&mut self, slots: u32) -> bool {
        self.count = self.count.wrapping_add(slots);
        self.end -= slots * SLOT as u32;
        let turns = self.end <= FIRST as u32;
        if turns {
            (self.end, self.lap) = (self.top, self.lap.wrapping_add(1));
        }
        turns
    }
}

/// The last word of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer(u64);

/// What the trailer of the next message has besides its tag and length: number and lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The lap, where it is behind the number.
    lap: u64,
    /// The number.
    pub number: u16,
}

impl Expected {
    /// No message.
    pub const NONE: Expected = Expected { lap: u64::MAX, number: 0 };

    /// The message of this lap and number.
    #[inline(always)] // with every message
    pub const fn new(lap: u8, number: u16) -> Expected {
        Expected { lap: (lap as u64) << 32, number }
    }

    /// There is none.
    #[inline(always)] // with every message
    pub const fn is_none(self) -> bool {
        self.lap == u64::MAX
    }

    /// Its lap.
    #[inline(always)] // with every look
    pub const fn lap(self) -> Lap {
        Lap(self.lap << 24)
    }

    /// Whether a word is that of a message of the lap.
    #[inline(always)] // with every look
    pub const fn has_landed(self, word: u64) -> bool {
        word >> 56 == self.lap >> 32
    }

    /// The trailer of the message. `None`: it has not landed, one before it has not come yet, or it is [refused](Self::check).
    #[inline(always)] // with every message
    pub const fn of(self, word: u64) -> Option<Trailer> {
        self.of_at_most(word, LONGEST)
    }

    /// The same of a message of one slot.
    #[inline(always)] // with every message
    pub const fn of_one_slot(self, word: u64) -> Option<Trailer> {
        self.of_at_most(word, ALONE)
    }

    /// The same of a message with so many bytes of payload at most.
    #[inline(always)] // with every message
    const fn of_at_most(self, word: u64, most: usize) -> Option<Trailer> {
        let is_it = word >> 24 == self.lap | self.number as u64 && (word >> 8) as u16 as usize <= most;
        if is_it { Some(Trailer(word)) } else { None }
    }

    /// Whether a word may be the trailer of this message, or of one that comes behind messages that have not come yet.
    ///
    /// # Errors
    /// No sender of this version has written it.
    pub const fn check(self, word: u64) -> Result<(), Refused> {
        let is_none = word & RESERVED != 0 || (word >> 8) as u16 as usize > LONGEST;
        if self.has_landed(word) && is_none { Err(Refused::Word(word)) } else { Ok(()) }
    }

    /// The trailer of the message, where it has a checksum, which may show that not all of it has been written yet.
    pub const fn of_checked(self, word: u64) -> Option<Trailer> {
        let is_it = word >> 24 == self.lap | self.number as u64 | CHECKED >> 24;
        if is_it && is_checked(word) { Some(Trailer(word)) } else { None }
    }

    /// Whether a word is the trailer of a message with a checksum that comes behind messages that have not come yet.
    pub const fn is_later(self, word: u64) -> bool {
        self.has_landed(word) && is_checked(word) && (word >> 24) as u16 != self.number
    }

    /// The next message, in the same lap.
    #[inline(always)] // with every message
    pub const fn advance(&mut self) {
        self.number = self.number.wrapping_add(1);
    }
}

/// The lap of the next message, where a trailer has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap(u64);

impl Lap {
    /// The one of memory in which nothing has landed: it seems to have.
    pub const NONE: Lap = Lap(0);

    /// Whether a word is that of a message of the lap.
    #[inline(always)] // with every look
    pub const fn has_landed(self, word: u64) -> bool {
        (word ^ self.0) >> 56 == 0
    }
}

/// Bits that no message without a checksum has set.
const RESERVED: u64 = 0x00ff_ff00_0000_0000;

/// The one of them that a message with a checksum has.
const CHECKED: u64 = 1 << 40;

/// A word may be the trailer of a message with a checksum.
const fn is_checked(word: u64) -> bool {
    word & RESERVED == CHECKED && (word >> 8) as u16 as usize <= LONGEST_CHECKED
}

impl Trailer {
    /// Of a message of `len` bytes, [`LONGEST`] at most.
    #[inline(always)] // with every message
    pub const fn new(tag: u8, lap: u8, number: u16, len: usize) -> Trailer {
        Trailer(tag as u64 | (len as u64) << 8 | (number as u64) << 24 | (lap as u64) << 56)
    }

    /// The same of a message with a checksum, of [`LONGEST_CHECKED`] bytes at most.
    pub const fn checked(self) -> Trailer {
        Trailer(self.0 | CHECKED)
    }

    /// The wire bytes.
    #[inline(always)] // with every message
    pub const fn emit(self) -> [u8; TRAILER] {
        self.0.to_le_bytes()
    }

    /// The upper layer's tag.
    #[inline(always)] // with every message
    pub const fn tag(self) -> u8 {
        self.0 as u8
    }

    /// Bytes of payload.
    #[inline(always)] // with every message
    pub const fn payload_len(self) -> usize {
        (self.0 >> 8) as u16 as usize
    }
}

/// What stands in front of the trailer of a message with a checksum: of the trailer and the words of its payload, the last one first. These end
/// where the payload ends; the first one begins with zeroes, if the payload has less.
#[inline]
pub fn checksum(trailer: Trailer, words: impl Iterator<Item = u64>) -> u64 {
    words.fold(mixed(0, trailer.0), mixed)
}

/// Puts checksum and trailer into the slot of a message. Its payload, of [`LONGEST_CHECKED`] bytes at most, is in front of them, and has zeroes in front.
#[inline]
pub fn seal(slot: &mut [u8; SLOT], trailer: Trailer) {
    let (words, _none) = slot.as_chunks_mut::<8>();
    let [payload @ .., sum, last] = words else { return };
    let count = trailer.payload_len().div_ceil(8).min(payload.len());
    let words = payload[payload.len() - count..].iter().rev().map(|word| u64::from_le_bytes(*word));
    (*sum, *last) = (checksum(trailer, words).to_le_bytes(), trailer.emit());
}

/// Another word changes it, whatever comes behind.
#[inline]
const fn mixed(sum: u64, word: u64) -> u64 {
    (sum.rotate_left(5) ^ word).wrapping_mul(MIXER)
}

/// 2^64 divided by the golden ratio: odd, and its bits are well mixed.
const MIXER: u64 = 0x9e37_79b9_7f4a_7c15;

/// How many slots have been taken, with its checksum in the upper half. 0 is right, as memory is at first.
pub const fn taken_word(taken: u32) -> u64 {
    taken as u64 | (taken as u64).wrapping_mul(MIXER) >> 32 << 32
}

/// The same, read. `None`: not all of it has been written yet.
pub const fn taken_of(word: u64) -> Option<u32> {
    if taken_word(word as u32) == word { Some(word as u32) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What has been written at a place where a message is looked for is of the lap before, whatever the messages are long.
        #[test]
        fn a_ring_goes_round_and_no_lap_is_like_the_one_before(
            slots in 1u16..5000,
            lens in proptest::collection::vec(prop_oneof![3 => 0..=ALONE, 1 => 0..=LONGEST], 1..50),
        ) {
            let mut cursor = Cursor::new(slots);
            prop_assert!(cursor.slots() <= slots.into() && cursor.slots() > u32::from(slots.min(MOST_SLOTS)) / 2);
            let mut laps = std::collections::HashMap::new();
            let mut lens = lens.into_iter().cycle();
            while cursor.lap() < 4 {
                let (end, lap, len) = (cursor.end(), cursor.lap(), lens.next().unwrap_or(0));
                prop_assert!(end <= cursor.memory() && end % SLOT == FIRST % SLOT && end >= FIRST + SLOT);
                let begin = end - len - TRAILER;
                prop_assert!(begin >= SLOT);
                let ends: Vec<usize> = ends_within(end, len).collect();
                prop_assert!(ends.iter().all(|within| *within > begin && *within < end));
                prop_assert_eq!(ends.len() as u32 + 1, slots_of(len));
                for end in ends.into_iter().chain([end]).filter(|end| *end > FIRST) {
                    let last = laps.insert(end, lap);
                    prop_assert_eq!(last.unwrap_or(0) + 1, lap);
                }
                let count = cursor.count;
                let turns = cursor.advance(slots_of(len));
                prop_assert_eq!((cursor.count - count, cursor.lap() != lap), (slots_of(len), turns));
                prop_assert!(!turns || laps.len() == cursor.slots() as usize && laps.values().all(|last| *last == lap));
            }
        }

        #[test]
        fn a_trailer_says_what_it_was_told(tag: u8, lap: u8, number: u16, len in 0..=LONGEST) {
            let word = u64::from_le_bytes(Trailer::new(tag, lap, number, len).emit());
            let expected = Expected::new(lap, number);
            prop_assert_eq!(expected.of(word).map(|found| (found.tag(), found.payload_len())), Some((tag, len)));
            prop_assert_eq!(expected.of_one_slot(word), expected.of(word).filter(|_| len <= ALONE));
            let mut following = expected;
            following.advance();
            prop_assert_eq!(following, Expected::new(lap, number.wrapping_add(1)));
            prop_assert!(expected.lap().has_landed(word) && !Expected::new(lap.wrapping_add(1), number).lap().has_landed(word));
            for other in [Expected::new(lap.wrapping_add(1), number), following, Expected::NONE] {
                prop_assert_eq!((other.of(word), other.of_one_slot(word), other.check(word)), (None, None, Ok(())));
                prop_assert_eq!((other.has_landed(word), other.is_none()), (other == following, other == Expected::NONE));
            }
        }

        #[test]
        fn any_word_is_a_trailer_of_a_payload_that_fits_or_refused(word: u64) {
            let expected = Expected::new((word >> 56) as u8, (word >> 24) as u16);
            let is_one = word & RESERVED == 0 && word >> 8 & 0xffff <= LONGEST as u64;
            prop_assert_eq!(expected.of(word).is_some(), is_one);
            prop_assert_eq!(expected.check(word).is_ok(), is_one);
            prop_assert!(Expected::NONE.of(word).is_none() && Expected::NONE.check(word).is_ok());
        }

        /// A device that writes in the order of addresses may write any number of bytes at a time.
        #[test]
        fn a_trailer_of_which_not_all_is_there_is_none(
            (tag, len) in (any::<u8>(), 0..=LONGEST),
            (tag_before, len_before) in (any::<u8>(), 0..=LONGEST),
            (lap, number, number_before) in any::<(u8, u16, u16)>(),
            written in 0..TRAILER,
        ) {
            let whole = Trailer::new(tag, lap, number, len).emit();
            let mut now = Trailer::new(tag_before, lap.wrapping_sub(1), number_before, len_before).emit();
            now[..written].copy_from_slice(&whole[..written]);
            let word = u64::from_le_bytes(now);
            let expected = Expected::new(lap, number);
            prop_assert_eq!((expected.of(word), expected.check(word)), (None, Ok(())));
            prop_assert!(!expected.has_landed(word));
        }
    }

    #[test]
    fn memory_that_is_zero_holds_no_message() {
        assert!(!Expected::new(Cursor::new(64).lap(), 0).has_landed(0));
        assert_eq!(taken_of(0), Some(0));
    }

    /// The slot of a message with a checksum.
    fn slot(trailer: Trailer, payload: &[u8]) -> [u8; SLOT] {
        let mut slot = [0; SLOT];
        slot[LONGEST_CHECKED - payload.len()..LONGEST_CHECKED].copy_from_slice(payload);
        seal(&mut slot, trailer);
        slot
    }

    /// Whether a slot has the message that is expected, all of it.
    fn is_whole(expected: Expected, slot: &[u8; SLOT]) -> bool {
        let (words, _) = slot.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let Some(trailer) = expected.of_checked(word(15)) else { return false };
        let len = trailer.payload_len();
        let mut payload = slot[..LONGEST_CHECKED].to_vec();
        payload[..LONGEST_CHECKED - len].fill(0);
        let of_payload = payload.rchunks(8).take(len.div_ceil(8));
        checksum(trailer, of_payload.map(|word| u64::from_le_bytes(word.try_into().unwrap()))) == word(14)
    }

    proptest! {
        /// A device may write the bytes of a message in any order.
        #[test]
        fn a_message_with_a_checksum_of_which_not_all_is_there_is_none(
            payload in proptest::collection::vec(any::<u8>(), 0..=LONGEST_CHECKED),
            before in any::<[[u8; 16]; 8]>(),
            (tag, lap, number, number_before) in any::<(u8, u8, u16, u16)>(),
            is_written in proptest::collection::vec(any::<bool>(), SLOT),
            repeats: bool,
        ) {
            let expected = Expected::new(lap, number);
            let whole = slot(Trailer::new(tag, lap, number, payload.len()).checked(), &payload);
            let mut now: [u8; SLOT] = before.concat().try_into().unwrap();
            if repeats {
                // The lap before had the same payload there.
                now = slot(Trailer::new(tag, lap.wrapping_sub(1), number_before, payload.len()).checked(), &payload);
            }
            let at = LONGEST_CHECKED - payload.len();
            for place in (at..SLOT).filter(|place| is_written[*place]) {
                now[place] = whole[place];
            }
            prop_assert_eq!(is_whole(expected, &now), now[at..] == whole[at..]);
            now[at..].copy_from_slice(&whole[at..]);
            prop_assert!(is_whole(expected, &now));
        }

        #[test]
        fn of_a_number_of_slots_of_which_not_all_is_there_none_is_read(
            (before, after) in any::<(u32, u32)>(),
            is_written: [bool; 8],
        ) {
            let (before, whole) = (taken_word(before).to_le_bytes(), taken_word(after).to_le_bytes());
            let now = std::array::from_fn(|at| if is_written[at] { whole[at] } else { before[at] });
            let is_torn = now != before && now != whole;
            prop_assert_eq!(taken_of(u64::from_le_bytes(now)).is_none(), is_torn);
        }

        #[test]
        fn a_trailer_has_a_checksum_or_none(tag: u8, lap: u8, number: u16, other: u16, len in 0..=LONGEST_CHECKED) {
            let expected = Expected::new(lap, number);
            let plain = Trailer::new(tag, lap, number, len);
            let word = u64::from_le_bytes(plain.checked().emit());
            prop_assert_eq!(expected.of_checked(word).map(|found| (found.tag(), found.payload_len())), Some((tag, len)));
            prop_assert!(expected.of(word).is_none() && expected.check(word).is_err() && expected.has_landed(word));
            prop_assert_eq!(expected.of_checked(u64::from_le_bytes(plain.emit())), None);
            prop_assert!(!expected.is_later(word));
            prop_assert_eq!(Expected::new(lap, other).is_later(word), other != number);
            prop_assert!(!Expected::new(lap.wrapping_add(1), other).is_later(word));
        }
    }
}
