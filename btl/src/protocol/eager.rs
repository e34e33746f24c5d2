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
//! Each side offers its memory to the other ([`Offer`](super::wire::Offer)). What is written to it is bytes that may be anything:
//! [`Expected::of`], [`Expected::check`].
#![forbid(unsafe_code)]

use super::wire::MOST_SLOTS;

/// The longest payload that a trailer tells of is longer than there may be, or it tells more than its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the last word of an eager RDMA message is {0:#x}: no message ends so; peer runs another version, or memory was overwritten"
)]
pub struct Refused(u64);

/// Bytes of a slot.
pub const SLOT: usize = 128;

/// Bytes of the trailer.
pub const TRAILER: usize = 8;

/// The longest payload of a message of one slot.
pub const ALONE: usize = SLOT - TRAILER;

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
        if self.has_landed(word) && is_none { Err(Refused(word)) } else { Ok(()) }
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

/// Bits that no message has set.
const RESERVED: u64 = 0x00ff_ff00_0000_0000;

impl Trailer {
    /// Of a message of `len` bytes, [`LONGEST`] at most.
    #[inline(always)] // with every message
    pub const fn new(tag: u8, lap: u8, number: u16, len: usize) -> Trailer {
        Trailer(tag as u64 | (len as u64) << 8 | (number as u64) << 24 | (lap as u64) << 56)
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
    }
}
