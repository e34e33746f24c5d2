//! Eager RDMA: short messages that their sender writes into a ring in its peer's memory, which the peer looks at. No receive is consumed
//! and none completes.
//!
//! ```text
//!   memory of one side   0..8   how many of our messages the peer has taken from its ring; the peer writes that
//!                        128..    slots of 128 bytes, into which the peer writes its messages, one after the other, round and round
//!   slot                 [      free      |  payload  | trailer ]     a message ends where its slot ends, and is written with one WRITE
//!   trailer   byte 0      1       2..4      4..7    7
//!            tag     length  number (LE)   0     lap
//! ```
//!
//! The trailer is written last, and its `lap` behind all else, byte by byte if need be: who reads the lap can read the message. `lap` is one
//! more than how often the ring has gone round, modulo 2^8: what the slot had in the lap before is no message. `number` counts the messages of the
//! lane, those that go by SEND among them: the receiver takes a message only when all before it have come, so the two ways together keep the order.
//!
//! Each side offers its memory to the other ([`Offer`](super::wire::Offer)). What is written to it is bytes that may be anything:
//! [`Expected::of`], [`Expected::check`].
#![forbid(unsafe_code)]

use super::wire::MOST_SLOTS;

/// The longest payload that a trailer tells of is longer than a slot, or it tells more than its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the last word of an eager RDMA slot is {0:#x}: no message ends so; peer runs another version, or memory was overwritten"
)]
pub struct Refused(u64);

/// Bytes of a slot.
pub const SLOT: usize = 128;

/// Bytes of the trailer.
pub const TRAILER: usize = 8;

/// The longest payload.
pub const LONGEST: usize = SLOT - TRAILER;

/// Where the first slot begins, behind the lines of the word in front.
const FIRST: usize = SLOT;

/// Where the next message of a ring is written, or looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Messages so far, modulo 2^32.
    pub count: u32,
    /// Where its slot ends, and the last one, in the memory.
    end: u32,
    last: u32,
    lap: u8,
}

impl Cursor {
    /// Of a ring of so many slots, rounded down to a power of two that there may be.
    pub fn new(slots: u16) -> Cursor {
        let slots = 1 << slots.clamp(1, MOST_SLOTS).ilog2();
        Cursor { count: 0, end: (FIRST + SLOT) as u32, last: FIRST as u32 + slots * SLOT as u32, lap: 1 }
    }

    /// Slots of the ring.
    #[inline(always)] // with every message
    pub const fn slots(self) -> u32 {
        (self.last - FIRST as u32) / SLOT as u32
    }

    /// Bytes of the memory that such a ring lies in.
    pub const fn memory(self) -> usize {
        self.last as usize
    }

    /// Where the slot of the next message ends, in the memory.
    #[inline(always)] // with every message
    pub const fn end(self) -> usize {
        self.end as usize
    }

    /// The lap of the next message.
    #[inline(always)] // with every message
    pub const fn lap(self) -> u8 {
        self.lap
    }

    /// One message further. Whether it is the first of a lap.
    #[inline(always)] // with every message
    pub const fn advance(&mut self) -> bool {
        self.count = self.count.wrapping_add(1);
        let turns = self.end == self.last;
        if turns {
            (self.end, self.lap) = (FIRST as u32, self.lap.wrapping_add(1));
        }
        self.end += SLOT as u32;
        turns
    }
}

/// The last word of a slot.
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
        Expected { lap: (lap as u64) << 40, number }
    }

    /// There is none.
    #[inline(always)] // with every message
    pub const fn is_none(self) -> bool {
        self.lap == u64::MAX
    }

    /// Whether a word is that of a message of the lap.
    #[inline(always)] // with every look
    pub const fn has_landed(self, word: u64) -> bool {
        word >> 56 == self.lap >> 40
    }

    /// The trailer of the message. `None`: it has not landed, one before it has not come yet, or it is [refused](Self::check).
    #[inline(always)] // with every message
    pub const fn of(self, word: u64) -> Option<Trailer> {
        if word >> 16 == self.lap | self.number as u64 && (word >> 8) as u8 as usize <= LONGEST {
            Some(Trailer(word))
        } else {
            None
        }
    }

    /// Whether a word may be the trailer of this message, or of one that comes behind messages that have not come yet.
    ///
    /// # Errors
    /// No sender of this version has written it.
    pub const fn check(self, word: u64) -> Result<(), Refused> {
        let is_none = word & RESERVED != 0 || (word >> 8) as u8 as usize > LONGEST;
        if self.has_landed(word) && is_none { Err(Refused(word)) } else { Ok(()) }
    }

    /// The next message, in the same lap.
    #[inline(always)] // with every message
    pub const fn advance(&mut self) {
        self.number = self.number.wrapping_add(1);
    }
}

/// Bits that no message has set.
const RESERVED: u64 = 0x00ff_ffff_0000_0000;

impl Trailer {
    /// Of a message of `len` bytes, [`LONGEST`] at most.
    #[inline(always)] // with every message
    pub const fn new(tag: u8, lap: u8, number: u16, len: usize) -> Trailer {
        Trailer(tag as u64 | (len as u64) << 8 | (number as u64) << 16 | (lap as u64) << 56)
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
        (self.0 >> 8) as u8 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_ring_goes_round_and_no_lap_is_like_the_one_before(slots in 1u16..5000) {
            let mut cursor = Cursor::new(slots);
            prop_assert!(cursor.slots() <= slots.into() && cursor.slots() > u32::from(slots.min(MOST_SLOTS)) / 2);
            let mut laps = std::collections::HashMap::new();
            for _ in 0..3 * cursor.slots() {
                let end = cursor.end();
                prop_assert!(end <= cursor.memory() && end % SLOT == FIRST % SLOT && end >= FIRST + SLOT);
                let last = laps.insert(end, cursor.lap());
                prop_assert!(last.is_none_or(|last| last.wrapping_add(1) == cursor.lap()));
                cursor.advance();
            }
            prop_assert_eq!(laps.len(), cursor.slots() as usize);
        }

        #[test]
        fn a_trailer_says_what_it_was_told(tag: u8, lap: u8, number: u16, len in 0..=LONGEST) {
            let word = u64::from_le_bytes(Trailer::new(tag, lap, number, len).emit());
            let expected = Expected::new(lap, number);
            prop_assert_eq!(expected.of(word).map(|found| (found.tag(), found.payload_len())), Some((tag, len)));
            let mut following = expected;
            following.advance();
            prop_assert_eq!(following, Expected::new(lap, number.wrapping_add(1)));
            for other in [Expected::new(lap.wrapping_add(1), number), following, Expected::NONE] {
                prop_assert_eq!((other.of(word), other.check(word)), (None, Ok(())));
                prop_assert_eq!((other.has_landed(word), other.is_none()), (other == following, other == Expected::NONE));
            }
        }

        #[test]
        fn any_word_is_a_trailer_of_a_payload_that_fits_or_refused(word: u64) {
            let expected = Expected::new((word >> 56) as u8, (word >> 16) as u16);
            let is_one = word & RESERVED == 0 && word >> 8 & 0xff <= LONGEST as u64;
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
