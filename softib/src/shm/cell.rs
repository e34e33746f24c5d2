//! The format of a cell: what one process says to another in a ring, parsed once and emitted once.
//!
//! ```text
//!   0      tag        the cell's sequence number plus one, stored last (`super::cells`)
//!   4      Head       operation and flags, destination, sender, length, immediate data, position of the receive
//!   24     Via        over XRC: the receive queue pair that it goes through
//!   32     payload    480 bytes; of a request for memory the fixed part: its operands
//! ```
//!
//! The payload of a datagram begins with an [`Envelope`], and with a route header if the flag says so. What has come is one
//! [`Found`]: its head is a copy, and its values are checked where they are used.

use super::layout::{CELL, QP_BITS};

/// Bytes of a cell in front of its inline payload, which is aligned so that words of the usual lengths do not cross a cache line: a store
/// that does needs both lines at once.
pub const CELL_HEAD: usize = 32;
/// Longest payload that travels in a cell.
pub const INLINE_MAX: usize = CELL - CELL_HEAD;

/// Cell operations.
pub mod op {
    /// SEND, with or without immediate.
    pub const SEND: u8 = 1;
    /// RDMA WRITE with immediate: the data is there, this consumes a receive.
    pub const WRITE_IMM: u8 = 2;
    /// The consumed receive was too short for the message.
    pub const TOO_LONG: u8 = 3;
    /// The consumed receive had invalid buffers.
    pub const BAD_RECEIVE: u8 = 4;
    /// RDMA WRITE, with its data.
    pub const WRITE: u8 = 5;
    /// RDMA READ, the question.
    pub const READ: u8 = 6;
    /// The answer to a READ or an atomic.
    pub const RESPONSE: u8 = 7;
    /// FETCH_ADD, the question.
    pub const FETCH_ADD: u8 = 8;
    /// CMP_SWAP, the question.
    pub const CMP_SWAP: u8 = 9;
    /// The initiator found in the target's tables that the target refuses a request; `imm` is the initiator's status.
    pub const REFUSED: u8 = 10;
    /// Atomic WRITE of 8 bytes.
    pub const ATOMIC_WRITE: u8 = 11;
    /// SEND that invalidates a memory window of the target: `imm` is its key.
    pub const SEND_INV: u8 = 12;
    /// No message: twice as many cells are used from the next one on. It stands in the last free one.
    pub const MORE_CELLS: u8 = 13;
    /// As READ, of data that the initiator can fetch itself: where it is not granted, or no more, the answer is [`super::NOT_SENT`].
    pub const ASK: u8 = 14;
    /// No message: `imm` bytes of the bulk are used from the next cell on, fewer than before; all of it has been read.
    pub const LESS_BULK: u8 = 15;
    /// A datagram: its payload follows where it comes from ([`Envelope`]).
    pub const DATAGRAM: u8 = 16;
    /// As WRITE, of data that the initiator can place itself: where it is not granted, or no more, the answer is [`super::NOT_SENT`].
    pub const GIVE: u8 = 17;
    /// SEND whose data its initiator has placed in the posted buffer by its own hand: the payload is its length.
    pub const FILLED: u8 = 18;
    /// Added to the operations of messages that go through a domain's receive queue pair.
    pub const XRC: u8 = 0x80;
}

/// In the answer to an ASK or a GIVE, in place of a status: the data does not come, or has not been placed, and nothing is wrong. The
/// initiator may have moved it meanwhile.
pub const NOT_SENT: u32 = u32::MAX;

/// Flags of a cell.
pub mod flag {
    /// The first cell of a message.
    pub const FIRST: u8 = 1;
    /// Of a READ or an ASK, which are one cell: its data is to be written past the caches.
    pub const PAST: u8 = FIRST;
    /// The last cell of a message.
    pub const LAST: u8 = 2;
    /// The payload is in the bulk.
    pub const BULK: u8 = 4;
    /// The sender asks for a solicited event.
    pub const SOLICITED: u8 = 8;
    /// `imm` holds immediate data.
    pub const IMM: u8 = 16;
    /// A route header precedes the data.
    pub const GRH: u8 = 32;
    /// The message invalidates the window whose key stands in `imm`.
    pub const INV: u8 = 64;
    /// From this payload on more of the bulk is used (`ring::wider`).
    pub const WIDER: u8 = 128;
}

/// Bytes 4..24 of a cell.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Head {
    /// Operation ([`op`]).
    pub op: u8,
    /// Of [`flag`].
    pub flags: u8,
    /// Index of the destination QP in the lower 12 bits, its generation above.
    pub dst: u16,
    /// The sender's queue pair.
    pub src_qpn: u32,
    /// Payload bytes of this cell.
    pub len: u32,
    /// Immediate data, network order; or the key of a window.
    pub imm: u32,
    /// Position of the receive that the initiator consumed.
    pub pos: u32,
}

const _: () = assert!(
    size_of::<Head>() + 4 <= VIA_AT && VIA_AT + size_of::<Via>() <= CELL_HEAD && CELL_HEAD.is_multiple_of(16)
);

/// A piece of so many bytes or more may be written past the caches, and a message of as many, in one piece, be timed ([`super::pace`]).
pub const PAST: u32 = 12 << 10;

/// When the payload of a cell was begun to be written to the bulk: in place of an inline payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// By the device's clock ([`crate::clock`]).
    pub at: u64,
    /// Past the sender's caches.
    pub streams: bool,
}

impl Begin {
    /// As one word, which is not 0 at any time but the clock's first.
    pub fn word(self) -> u64 {
        self.at << 1 | u64::from(self.streams)
    }

    /// From what has come: any word but 0 makes one.
    pub fn of_word(word: u64) -> Option<Begin> {
        (word != 0).then_some(Begin { at: word >> 1, streams: word & 1 != 0 })
    }
}

impl Head {
    /// What travels, in the order of a cell.
    #[inline]
    pub fn words(self) -> [u32; 5] {
        [Head::meaning(self.op, self.flags, self.dst), self.src_qpn, self.len, self.imm, self.pos]
    }

    /// It is a whole message, which waits for the program's next poll if it makes no event, or asks for data that is fetched where it does not
    /// come; what is not patient is urgent.
    pub fn is_patient(self) -> bool {
        const WHOLE: u8 = flag::FIRST | flag::LAST;
        match self.op & !op::XRC {
            op::SEND => self.flags & WHOLE == WHOLE,
            op::WRITE_IMM | op::FILLED | op::ASK | op::GIVE => true,
            _ => false,
        }
    }

    /// Operation, flags and destination, to be looked at together: the first word.
    #[inline(always)]
    pub const fn meaning(op: u8, flags: u8, dst: u16) -> u32 {
        let [low, high] = dst.to_ne_bytes();
        u32::from_ne_bytes([op, flags, low, high])
    }

    /// The head that [`Self::words`] has made words of.
    #[inline(always)]
    pub fn from_words([first, src_qpn, len, imm, pos]: [u32; 5]) -> Head {
        let [op, flags, low, high] = first.to_ne_bytes();
        Head { op, flags, dst: u16::from_ne_bytes([low, high]), src_qpn, len, imm, pos }
    }
}

/// The `dst` field of a cell: the QP's index and the low bits of its generation.
#[inline]
pub fn destination(index: usize, generation: u32) -> u16 {
    index as u16 | (generation as u16) << QP_BITS
}

/// A cell as found: its head, copied, and where its parts are.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// Its head.
    pub head: Head,
    /// `head.len` readable bytes, valid until the ring has consumed it.
    pub payload: *const u8,
    /// The cell's inline part (`INLINE_MAX` bytes), for the fixed part of a cell with bulk.
    pub fixed: *const u8,
    /// Over XRC: what it goes through.
    pub via: Via,
    /// Which of the receiver's rings it has come through.
    pub ring: usize,
    /// Where the bulk of the ring goes on behind it, and how many bytes of that are in use from this cell on.
    pub(super) bulk: u32,
    pub(super) used: u32,
}

impl Found {
    /// The number that is all of its payload.
    #[inline]
    pub fn number(&self) -> Option<u32> {
        // SAFETY: the payload has head.len readable bytes, which is 4 (checked first); no alignment is assumed.
        (self.head.len == 4).then(|| unsafe { self.payload.cast::<u32>().read_unaligned() })
    }

    /// A part of the payload, as if it were a cell's; None if the cell has not that much.
    pub fn part(&self, skip: u32, len: u32) -> Option<Found> {
        if skip.checked_add(len)? > self.head.len {
            return None;
        }
        // SAFETY: the payload has head.len readable bytes, and skip is at most that (checked).
        let payload = unsafe { self.payload.add(skip as usize) };
        Some(Found { head: Head { len, ..self.head }, payload, ..*self })
    }
}

/// The local route header (IBTA 7.7), as far as a completion reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// Where it comes from; 0 on Ethernet.
    pub slid: u16,
    /// Service level, 0 to 15.
    pub sl: u8,
}

impl Envelope {
    /// Bytes that travel.
    pub const LEN: usize = 4;

    /// As it travels.
    pub fn emit(self) -> [u8; Envelope::LEN] {
        let [low, high] = self.slid.to_ne_bytes();
        [low, high, self.sl, 0]
    }

    /// From what has come; any bytes make one.
    pub fn parse(bytes: [u8; Envelope::LEN]) -> Envelope {
        Envelope { slid: u16::from_ne_bytes([bytes[0], bytes[1]]), sl: bytes[2] & 15 }
    }
}

/// Where [`Via`] is in a cell.
pub const VIA_AT: usize = 24;

/// The receive queue pair that a message comes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Via {
    /// Its number.
    pub qpn: u32,
    /// Its generation.
    pub generation: u32,
}

impl Via {
    /// Both in one word.
    #[inline(always)]
    pub fn word(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.qpn)
    }

    /// From the word in a cell; any makes one.
    #[inline(always)]
    pub fn of_word(word: u64) -> Via {
        Via { qpn: word as u32, generation: (word >> 32) as u32 }
    }
}
