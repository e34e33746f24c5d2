//! The eight bytes in front of every message that travels on a queue pair.
//!
//! ```text
//!   byte 0    1            2..4           4              5       6..8
//!        tag  kind|flags   credits (LE)   ctl credits    queue   reserved, 0
//! ```
//!
//! * `tag`: the upper layer's active-message tag of a [`Kind::Data`] message, 0 in all others.
//! * `kind` is the low nibble of byte 1; the high nibble holds flags. One is defined, for data
//!   messages on P queues: [`LAST`]. All others must be 0.
//! * `credits`, `ctl`: the [`Grant`] to the receiver of this message, for the queue that the
//!   message travels on.
//! * `queue`: index of that queue in the layout; the receiver compares it with the queue it posted
//!   to.
//!
//! On X queues there are no credits: [`XrcHeader`] has other fields in their place.
//!
//! A credit message is a header and nothing else. A CTS carries [`Cts`], an end [`End`], what resumes [`Arrived`]. Everything is little
//! endian. The hot path parses a data header with one 64-bit load and one mask
//! ([`DataHeader::parse`]); all other kinds go through [`Header::parse`].

#![forbid(unsafe_code)]

use super::credits::Grant;

/// Version of the header and of the control payloads; travels in the CTS.
pub const VERSION: u16 = 12;

/// Flag in byte 1 of a data message: it has taken the last credit that its sender had.
pub const LAST: u8 = 0x10;

/// Length of the message header in bytes.
pub const HEADER_LEN: usize = 8;

/// No control payload, present or reserved, is longer: no queue of a layout may be smaller than
/// this.
pub const MAX_CONTROL_PAYLOAD: usize = 32;

/// What a message is. The discriminant is the wire value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A fragment of the upper layer, named by its tag. Takes one data credit.
    Data = 0,
    /// An explicit return of credits: no payload. Takes one control credit.
    Credit = 1,
    /// "My receives are posted". Outside the credit window, received by the connection's extra
    /// buffer.
    Cts = 2,
    /// Its sender is leaving, after the messages that [`End`] counts. Takes one data credit. Its receiver answers
    /// with [`Kind::EndAck`].
    End = 3,
    /// So many messages have come, as the end of stream has said: [`End`]. Takes one data credit.
    EndAck = 4,
    /// Where its sender looks for short messages, or that it does no more: [`Offer`]. Takes one data credit.
    Eager = 5,
    /// The first over a connection that has taken the place of one that broke: how many messages have come over that,
    /// [`Arrived`]. No credits. Takes one control credit.
    Resume = 6,
    /// The first of a queue pair, where one side has to send first (iWARP): no payload, no credits.
    /// Takes one control credit.
    Open = 7,
}

const KIND_MASK: u8 = 0x0f;
const FLAG_MASK: u8 = 0xf0;

/// Bits that are zero in every valid data header: kind and flags (byte 1), reserved (bytes 6 and
/// 7).
const DATA_MUST_BE_ZERO: u64 = 0xffff_0000_0000_ff00;

/// Why a header or a control payload was refused. The message is dropped and counted, the endpoint
/// fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Fewer bytes arrived than the fixed part needs.
    #[error("message of {len} bytes is shorter than the {need} bytes of its {what}")]
    Short { what: &'static str, len: usize, need: usize },
    /// More bytes arrived than this kind of message may have.
    #[error("{what} of {len} bytes is longer than {limit}")]
    Long { what: &'static str, len: usize, limit: usize },
    /// A kind that means nothing.
    #[error("message kind {0} is unknown: peer runs another version, or memory was overwritten")]
    UnknownKind(u8),
    /// Reserved bits or fields are set, or a field is set that this kind does not have.
    #[error("field {field} is {value:#x}, must be 0 in this kind of message")]
    NotZero { field: &'static str, value: u32 },
    /// An explicit credit message that returns nothing.
    #[error("credit message returns no data credit")]
    EmptyCredit,
    /// An offer of as many slots as no ring has.
    #[error("eager RDMA offer of {0} slots: their number has to be a power of two, and at most 4096")]
    Slots(u16),
    /// The peer speaks another version.
    #[error("peer speaks version {theirs} of the message format, this side {ours}", ours = VERSION)]
    Version { theirs: u16 },
}

/// A data message's header, still in its wire word: the accessors are shifts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader(u64);

impl DataHeader {
    /// The header if these bytes are a valid data header; else `None`, and [`Header::parse`] knows
    /// what they are.
    #[inline]
    pub const fn parse(bytes: [u8; HEADER_LEN]) -> Option<Self> {
        let word = u64::from_le_bytes(bytes);
        if word & DATA_MUST_BE_ZERO == 0 { Some(Self(word)) } else { None }
    }

    /// The header if these bytes are a valid data header with the flag [`LAST`] and no other.
    pub const fn parse_last([tag, kind_flags, rest @ ..]: [u8; HEADER_LEN]) -> Option<Self> {
        let [c0, c1, ctl, queue, r0, r1] = rest;
        if kind_flags == LAST { Self::parse([tag, 0, c0, c1, ctl, queue, r0, r1]) } else { None }
    }

    /// The same header, with the flag [`LAST`] if that is so. It is for [`Self::emit`]: other
    /// accessors do not show it.
    #[inline]
    pub const fn flag_last(self, last: bool) -> Self {
        Self(self.0 | (last as u64 * LAST as u64) << 8)
    }

    /// The same header, of a message of this kind.
    #[inline]
    pub const fn of_kind(self, kind: Kind) -> Self {
        Self(self.0 | (kind as u64) << 8)
    }

    /// A header for one data message on `queue`.
    #[inline]
    pub const fn new(tag: u8, queue: u8, grant: Grant) -> Self {
        Self(tag as u64 | (grant.data as u64) << 16 | (grant.ctl as u64) << 32 | (queue as u64) << 40)
    }

    /// The wire bytes.
    #[inline]
    pub const fn emit(self) -> [u8; HEADER_LEN] {
        self.0.to_le_bytes()
    }

    /// Active-message tag. Any of 256 values: index a table of 256, or check.
    #[inline]
    pub const fn tag(self) -> u8 {
        self.0 as u8
    }

    /// Layout index of the queue that the peer says it sent on.
    #[inline]
    pub const fn queue(self) -> u8 {
        (self.0 >> 40) as u8
    }

    /// It returns credits.
    #[inline]
    pub const fn has_grant(self) -> bool {
        self.0 & (0x00ff_ffff << 16) != 0
    }

    /// Credits returned by this message.
    #[inline]
    pub const fn grant(self) -> Grant {
        Grant { data: (self.0 >> 16) as u16, ctl: (self.0 >> 32) as u8 }
    }
}

/// A data message's header on an X queue, still in its wire word:
///
/// ```text
///   byte 0    1            2..5           5              6..8
///        tag  kind|flags   label (LE)     queue          number (LE)
/// ```
/// The label (24 bits) says whose the message is, for the queue pair that it comes through does
/// not: the receiver has given it out. Messages to one peer are numbered, so that one which is sent
/// again over another queue pair is known by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcHeader(u64);

/// Bits that are zero in every valid header of an X queue: those of kinds that it does not have, and flags.
const XRC_MUST_BE_ZERO: u64 = 0xf800;

/// The kind in the header of an X queue: data and the two of an end.
const XRC_KIND: u64 = 0x0700;

impl XrcHeader {
    /// The header if these bytes are a valid one; X queues have data messages and the two of an end.
    #[inline]
    pub const fn parse(bytes: [u8; HEADER_LEN]) -> Option<Self> {
        let word = u64::from_le_bytes(bytes);
        let is_valid = matches!((word & XRC_KIND) >> 8, 0 | 3 | 4) && word & XRC_MUST_BE_ZERO == 0;
        if is_valid { Some(Self(word)) } else { None }
    }

    /// The same header, of a message of this kind.
    #[inline]
    pub const fn of_kind(self, kind: Kind) -> Self {
        Self(self.0 & !XRC_KIND | (kind as u64) << 8)
    }

    /// What the message is.
    #[inline]
    pub const fn kind(self) -> Kind {
        match (self.0 & XRC_KIND) >> 8 {
            3 => Kind::End,
            4 => Kind::EndAck,
            _ => Kind::Data,
        }
    }

    /// The same header, with this label; it is cut to 24 bits.
    #[inline]
    pub const fn labelled(self, label: u32) -> Self {
        Self(self.0 & !(0x00ff_ffff << 16) | ((label & 0x00ff_ffff) as u64) << 16)
    }

    /// A header; the label is cut to 24 bits.
    #[inline]
    pub const fn new(tag: u8, queue: u8, label: u32, number: u16) -> Self {
        let label = (label & 0x00ff_ffff) as u64;
        Self(tag as u64 | label << 16 | (queue as u64) << 40 | (number as u64) << 48)
    }

    /// The wire bytes.
    #[inline]
    pub const fn emit(self) -> [u8; HEADER_LEN] {
        self.0.to_le_bytes()
    }

    /// Active-message tag.
    #[inline]
    pub const fn tag(self) -> u8 {
        self.0 as u8
    }

    /// Whose it is.
    #[inline]
    pub const fn label(self) -> u32 {
        (self.0 >> 16) as u32 & 0x00ff_ffff
    }

    /// Layout index of the queue that the peer says it sent on.
    #[inline]
    pub const fn queue(self) -> u8 {
        (self.0 >> 40) as u8
    }

    /// How many messages its sender has sent to the receiver before.
    #[inline]
    pub const fn number(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// A parsed header of any kind. Build control headers with [`Header::credit`], [`Header::cts`],
/// [`Header::open`] and [`Header::resume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// Active-message tag; 0 unless `kind` is data.
    pub tag: u8,
    /// Layout index of the queue that the message travels on.
    pub queue: u8,
    /// Credits returned to the receiver of the message.
    pub grant: Grant,
}

impl Header {
    /// Header of a data message.
    pub const fn data(tag: u8, queue: u8, grant: Grant) -> Self {
        Self { kind: Kind::Data, tag, queue, grant }
    }

    /// Header of an explicit credit message, which is nothing but this header.
    pub const fn credit(queue: u8, grant: Grant) -> Self {
        Self { kind: Kind::Credit, tag: 0, queue, grant }
    }

    /// Header of a CTS: it returns no credit.
    pub const fn cts(queue: u8) -> Self {
        Self { kind: Kind::Cts, tag: 0, queue, grant: Grant::NONE }
    }

    /// Header of a message that only opens a queue pair: it returns no credit.
    pub const fn open(queue: u8) -> Self {
        Self { kind: Kind::Open, tag: 0, queue, grant: Grant::NONE }
    }

    /// Header of the message that resumes: it returns no credit.
    pub const fn resume(queue: u8) -> Self {
        Self { kind: Kind::Resume, tag: 0, queue, grant: Grant::NONE }
    }

    /// The wire bytes.
    #[inline]
    pub const fn emit(self) -> [u8; HEADER_LEN] {
        let mut bytes = DataHeader::new(self.tag, self.queue, self.grant).emit();
        bytes[1] = self.kind as u8;
        bytes
    }

    /// Parses the header at the front of a received message and returns the payload behind it.
    ///
    /// # Errors
    /// Everything that a peer of this version would not have sent: see [`WireError`].
    pub fn parse(message: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let Some((head, payload)) = message.split_first_chunk::<HEADER_LEN>() else {
            return Err(WireError::Short { what: "header", len: message.len(), need: HEADER_LEN });
        };
        let [tag, kind_flags, credits_lo, credits_hi, ctl, queue, reserved_lo, reserved_hi] = *head;
        must_be_zero("flags", u32::from(kind_flags & FLAG_MASK))?;
        must_be_zero("reserved", u32::from(u16::from_le_bytes([reserved_lo, reserved_hi])))?;
        let kind = Kind::parse(kind_flags & KIND_MASK)?;
        let grant = Grant { data: u16::from_le_bytes([credits_lo, credits_hi]), ctl };
        let header = Self { kind, tag, queue, grant };
        header.check(payload.len())?;
        Ok((header, payload))
    }

    /// The rules that depend on the kind.
    fn check(self, payload: usize) -> Result<(), WireError> {
        match self.kind {
            Kind::Data => Ok(()),
            Kind::Credit => {
                must_be_zero("tag", u32::from(self.tag))?;
                longest("credit message payload", payload, 0)?;
                if self.grant.data == 0 { Err(WireError::EmptyCredit) } else { Ok(()) }
            }
            Kind::End | Kind::EndAck => {
                must_be_zero("tag", u32::from(self.tag))?;
                longest("end of stream payload", payload, End::LEN)
            }
            Kind::Eager => {
                must_be_zero("tag", u32::from(self.tag))?;
                longest("eager RDMA offer", payload, Offer::LEN)
            }
            Kind::Cts | Kind::Resume => self.grants_nothing(),
            Kind::Open => {
                longest("opening message payload", payload, 0)?;
                self.grants_nothing()
            }
        }
    }

    fn grants_nothing(self) -> Result<(), WireError> {
        must_be_zero("tag", u32::from(self.tag))?;
        must_be_zero("credits", u32::from(self.grant.data))?;
        must_be_zero("ctl", u32::from(self.grant.ctl))
    }
}

/// Kind and tag of a message that is counted (see [`Arrived`]), by a header that we have written; `None`: it is another
/// one.
pub const fn counted(header: [u8; HEADER_LEN]) -> Option<(Kind, u8)> {
    match header[1] & KIND_MASK {
        0 => Some((Kind::Data, header[0])),
        3 => Some((Kind::End, 0)),
        4 => Some((Kind::EndAck, 0)),
        5 => Some((Kind::Eager, 0)),
        _ => None,
    }
}

impl Kind {
    fn parse(value: u8) -> Result<Self, WireError> {
        match value {
            0 => Ok(Self::Data),
            1 => Ok(Self::Credit),
            2 => Ok(Self::Cts),
            3 => Ok(Self::End),
            4 => Ok(Self::EndAck),
            5 => Ok(Self::Eager),
            6 => Ok(Self::Resume),
            7 => Ok(Self::Open),
            _ => Err(WireError::UnknownKind(value)),
        }
    }
}

/// Payload of a CTS: enough to notice that the two sides do not agree before the first fragment is
/// misread.
///
/// ```text
///   0..2 version    2 number of queues    3 reserved, 0    4..8 fingerprint of the layout
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cts {
    /// Number of queues of the sender's layout.
    pub queues: u8,
    /// [`Layout::fingerprint`](super::layout::Layout::fingerprint) of the sender's layout.
    pub layout: u32,
}

impl Cts {
    /// Length of the payload in bytes.
    pub const LEN: usize = 8;

    /// Length of a whole CTS message: the capacity that the connection's extra receive needs.
    pub const MESSAGE_LEN: usize = HEADER_LEN + Self::LEN;

    /// The whole message, header included.
    pub fn message(self, queue: u8) -> [u8; Self::MESSAGE_LEN] {
        let mut out = [0; Self::MESSAGE_LEN];
        out[..HEADER_LEN].copy_from_slice(&Header::cts(queue).emit());
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[10] = self.queues;
        out[12..16].copy_from_slice(&self.layout.to_le_bytes());
        out
    }

    /// Parses the payload behind a CTS header.
    ///
    /// # Errors
    /// [`WireError::Version`] when the peer speaks another version; wrong length; reserved byte
    /// set.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        let Some((fixed, rest)) = payload.split_first_chunk::<{ Self::LEN }>() else {
            return Err(WireError::Short { what: "CTS", len: payload.len(), need: Self::LEN });
        };
        let [v0, v1, queues, reserved, l0, l1, l2, l3] = *fixed;
        let theirs = u16::from_le_bytes([v0, v1]);
        if theirs != VERSION {
            return Err(WireError::Version { theirs });
        }
        longest("CTS payload", Self::LEN + rest.len(), Self::LEN)?;
        must_be_zero("CTS reserved", u32::from(reserved))?;
        Ok(Self { queues, layout: u32::from_le_bytes([l0, l1, l2, l3]) })
    }
}

/// Payload of an end of stream and of its acknowledgement: four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    /// Data messages of the one who ends, over the connection, all queues together, modulo 2^32.
    pub count: u32,
}

impl End {
    /// Length of the payload in bytes.
    pub const LEN: usize = 4;

    /// Length of the whole message.
    pub const MESSAGE_LEN: usize = HEADER_LEN + Self::LEN;

    /// The whole message, with an empty header.
    pub fn message(self) -> [u8; Self::MESSAGE_LEN] {
        let mut out = [0; Self::MESSAGE_LEN];
        out[HEADER_LEN..].copy_from_slice(&self.count.to_le_bytes());
        out
    }

    /// Parses the payload behind the header.
    ///
    /// # Errors
    /// Wrong length.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        longest("end of stream payload", payload.len(), Self::LEN)?;
        match payload.try_into() {
            Ok(bytes) => Ok(Self { count: u32::from_le_bytes(bytes) }),
            Err(_) => Err(WireError::Short { what: "end of stream", len: payload.len(), need: Self::LEN }),
        }
    }
}

/// Most slots of a ring of eager RDMA.
pub const MOST_SLOTS: u16 = 1 << 12;

/// Payload of a message of kind [`Kind::Eager`]: where the sender of this message looks for messages.
///
/// ```text
///   0..8 address    8..12 key    12..14 slots    14 bit 0: messages have checksums, the rest 0    15 reserved, 0
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Where its memory begins.
    pub addr: u64,
    /// Remote key of it.
    pub rkey: u32,
    /// How many there are, a power of two. 0: none any more, and the sender writes to none of the receiver's.
    pub slots: u16,
    /// What is written there has [checksums](super::eager::checksum).
    pub checks: bool,
}

impl Offer {
    /// Length of the payload in bytes.
    pub const LEN: usize = 16;

    /// Length of the whole message.
    pub const MESSAGE_LEN: usize = HEADER_LEN + Self::LEN;

    /// What takes an offer back.
    pub const NONE: Offer = Offer { addr: 0, rkey: 0, slots: 0, checks: false };

    /// The whole message, with an empty header.
    pub fn message(self) -> [u8; Self::MESSAGE_LEN] {
        let mut out = [0; Self::MESSAGE_LEN];
        out[8..16].copy_from_slice(&self.addr.to_le_bytes());
        out[16..20].copy_from_slice(&self.rkey.to_le_bytes());
        out[20..22].copy_from_slice(&self.slots.to_le_bytes());
        out[22] = self.checks.into();
        out
    }

    /// Parses the payload behind the header.
    ///
    /// # Errors
    /// Wrong length; slots that are no power of two, or too many; reserved bytes set.
    pub fn parse(payload: &[u8]) -> Result<Offer, WireError> {
        let len = payload.len();
        let Ok(bytes) = <[u8; Self::LEN]>::try_from(payload) else {
            return Err(if len < Self::LEN {
                WireError::Short { what: "eager RDMA offer", len, need: Self::LEN }
            } else {
                WireError::Long { what: "eager RDMA offer", len, limit: Self::LEN }
            });
        };
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, s0, s1, flags, r] = bytes;
        let addr = u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        let (rkey, slots) = (u32::from_le_bytes([k0, k1, k2, k3]), u16::from_le_bytes([s0, s1]));
        let wrong = |field, value| Err(WireError::NotZero { field, value });
        if (flags & !1, r) != (0, 0) {
            return wrong("eager RDMA offer, reserved,", u32::from(u16::from_le_bytes([flags & !1, r])));
        }
        if slots == 0 {
            return Ok(Offer::NONE);
        }
        if !slots.is_power_of_two() || slots > MOST_SLOTS {
            return Err(WireError::Slots(slots));
        }
        Ok(Offer { addr, rkey, slots, checks: flags != 0 })
    }
}

/// Payload of a message that resumes: two bytes a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arrived {
    /// By queue of the layout: messages that have come over it since the endpoint was made, modulo 2^16. What takes a
    /// data credit counts: data and the two of an end.
    counts: [u16; Self::MOST],
    queues: u8,
}

impl Arrived {
    /// Queues, at most.
    pub const MOST: usize = 15;

    /// Length of the longest message.
    pub const LONGEST: usize = HEADER_LEN + 2 * Self::MOST;

    /// These counts, of the first [`Self::MOST`] queues.
    pub fn new(counts: impl IntoIterator<Item = u16>) -> Self {
        let mut arrived = Self { counts: [0; Self::MOST], queues: 0 };
        for (count, to) in counts.into_iter().zip(&mut arrived.counts) {
            *to = count;
            arrived.queues += 1;
        }
        arrived
    }

    /// By queue.
    pub fn counts(&self) -> &[u16] {
        &self.counts[..usize::from(self.queues)]
    }

    /// The whole message, which travels on `queue`.
    pub fn message(&self, queue: u8) -> Vec<u8> {
        let counts = self.counts().iter().flat_map(|count| count.to_le_bytes());
        Header::resume(queue).emit().into_iter().chain(counts).collect()
    }

    /// Parses the payload behind the header, from a peer with so many queues.
    ///
    /// # Errors
    /// Wrong length.
    pub fn parse(payload: &[u8], queues: usize) -> Result<Self, WireError> {
        let (what, need, len) = ("counts of a resumed connection", 2 * queues, payload.len());
        longest(what, len, need.min(2 * Self::MOST))?;
        if len < need {
            return Err(WireError::Short { what, len, need });
        }
        Ok(Self::new(payload.chunks_exact(2).map(|count| u16::from_le_bytes([count[0], count[1]]))))
    }
}

fn must_be_zero(field: &'static str, value: u32) -> Result<(), WireError> {
    if value == 0 { Ok(()) } else { Err(WireError::NotZero { field, value }) }
}

fn longest(what: &'static str, len: usize, limit: usize) -> Result<(), WireError> {
    if len <= limit { Ok(()) } else { Err(WireError::Long { what, len, limit }) }
}

const _: () = assert!(
    Cts::LEN <= MAX_CONTROL_PAYLOAD && End::LEN <= MAX_CONTROL_PAYLOAD && Offer::LEN <= MAX_CONTROL_PAYLOAD
);
const _: () = assert!(Arrived::LONGEST <= HEADER_LEN + MAX_CONTROL_PAYLOAD);
