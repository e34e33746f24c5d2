//! The datagrams of ibcm: management datagrams (MADs) of the communication management class.
//!
//! ```text
//!   0  base version 1 | class 0x07 | class version 2 | method 0x03 (Send)
//!   4  status (16) | class specific (16)
//!   8  transaction id (64): the sender's nonce, then the receiver's
//!  16  attribute id (16): REQ 0x10, MRA 0x11, REJ 0x12, REP 0x13, RTU 0x14, DREQ 0x15, DREP 0x16
//!  20  attribute modifier (32): the specification leaves it 0; here "oxc" and a version
//!  24  the message (IBTA vol. 1, 12.6), private data behind its fields
//! 256
//! ```
//! Every field lies where the specification puts it, so that a packet capture reads well; but the datagrams travel
//! between our own UD queue pairs and never meet a kernel's CM. A datagram of another length, class, or modifier is
//! foreign and refused. Bytes become a [`Datagram`] once, in [`Datagram::parse`]; nothing behind it sees raw bytes.
#![forbid(unsafe_code)]

pub(crate) mod codec;
pub(crate) mod field;
mod hello;
mod message;
mod queues;

pub use field::MAD_LEN;
pub use hello::{HELLO_LEN, Hello, Layout, MAX_QUEUES, Qpns};
pub use message::{
    CommId, Datagram, Depth, Drep, Dreq, Message, Mra, Nonce, Path, Reason, Rej, Rep, Req, Rtu, Stage,
};

pub use queues::Queues;

use field::Field;

/// Why bytes are not one of our datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not 256 bytes.
    #[error("{0} bytes where a management datagram has 256")]
    Length(usize),
    /// Not a CM datagram of this program.
    #[error("foreign: its {0} is not ours")]
    Foreign(&'static str),
    /// Ours, from a version that we don't speak.
    #[error("speaks protocol version {0}: all processes of a job need the same release")]
    Version(u8),
    /// Ours, but a field has a value that can't be.
    #[error("its {0} can't be")]
    Field(&'static str),
}

/// Attribute modifier of our datagrams, without the version in the last byte.
const MAGIC: u32 = u32::from_be_bytes(*b"oxc\0");
/// Version of the protocol: of the exchange, the private data and the modex address.
pub const VERSION: u8 = 2;

const BASE_VERSION: Field = Field::header(0, 1);
const CLASS: Field = Field::header(1, 1);
const CLASS_VERSION: Field = Field::header(2, 1);
const METHOD: Field = Field::header(3, 1);
const FROM_NONCE: Field = Field::header(8, 4);
const TO_NONCE: Field = Field::header(12, 4);
const ATTRIBUTE: Field = Field::header(16, 2);
const MODIFIER: Field = Field::header(20, 4);

/// What the first four header fields hold in every CM datagram (IBTA 16.7.1).
const FIXED: [(Field, u64, &str); 4] = [
    (BASE_VERSION, 1, "base version"),
    (CLASS, 0x07, "management class"),
    (CLASS_VERSION, 2, "class version"),
    (METHOD, 0x03, "method"),
];

/// What is around every message, whichever protocol it is of: `magic` tells them apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) from: Nonce,
    pub(crate) to: Nonce,
    pub(crate) attribute: u64,
}

impl Envelope {
    /// Writes it, and sets all other bytes of `mad` to 0.
    pub(crate) fn emit(&self, magic: u32, mad: &mut [u8; MAD_LEN]) {
        mad.fill(0);
        for (field, value, _) in FIXED {
            field.write(mad, value);
        }
        FROM_NONCE.write(mad, self.from.0.into());
        TO_NONCE.write(mad, self.to.0.into());
        ATTRIBUTE.write(mad, self.attribute);
        MODIFIER.write(mad, (magic | u32::from(VERSION)).into());
    }

    /// Reads it from a datagram of the right length, class, protocol and version.
    pub(crate) fn parse(magic: u32, bytes: &[u8]) -> Result<(Envelope, &[u8; MAD_LEN]), WireError> {
        let mad: &[u8; MAD_LEN] = bytes.try_into().map_err(|_| WireError::Length(bytes.len()))?;
        for (field, value, name) in FIXED {
            if field.read(mad) != value {
                return Err(WireError::Foreign(name));
            }
        }
        check_modifier(magic, MODIFIER.read(mad))?;
        let [from, to] = [FROM_NONCE, TO_NONCE].map(|field| Nonce(field.read_u32(mad)));
        Ok((Envelope { from, to, attribute: ATTRIBUTE.read(mad) }, mad))
    }
}

/// Any message that fills one management datagram.
pub(crate) trait Mad {
    /// Writes it; every byte of `mad` is set.
    fn emit(&self, mad: &mut [u8; MAD_LEN]);
}

impl Mad for Datagram {
    fn emit(&self, mad: &mut [u8; MAD_LEN]) {
        Datagram::emit(self, mad);
    }
}

impl Datagram {
    /// Writes the datagram; every byte of `mad` is set.
    pub fn emit(&self, mad: &mut [u8; MAD_LEN]) {
        let Datagram { from, to, message } = self;
        Envelope { from: *from, to: *to, attribute: message.attribute() }.emit(MAGIC, mad);
        message.emit(mad);
    }

    /// Reads a datagram.
    ///
    /// # Errors
    /// [`WireError`] for anything that [`Datagram::emit`] of this version would not have written.
    pub fn parse(bytes: &[u8]) -> Result<Datagram, WireError> {
        let (Envelope { from, to, attribute }, mad) = Envelope::parse(MAGIC, bytes)?;
        Ok(Datagram { from, to, message: Message::parse(attribute, mad)? })
    }
}

fn check_modifier(magic: u32, modifier: u64) -> Result<(), WireError> {
    let [version, rest @ ..] = modifier.to_le_bytes();
    if rest[..3] != magic.to_le_bytes()[1..] {
        return Err(WireError::Foreign("attribute modifier"));
    }
    if version == VERSION { Ok(()) } else { Err(WireError::Version(version)) }
}

impl Message {
    /// The sender's communication id; [`CommId::NONE`] where it has none.
    pub fn local(&self) -> CommId {
        match self {
            Message::Req(m) => m.local,
            Message::Mra(m) => m.local,
            Message::Rej(m) => m.local,
            Message::Rep(m) => m.local,
            Message::Rtu(m) => m.local,
            Message::Dreq(m) => m.local,
            Message::Drep(m) => m.local,
        }
    }

    /// The receiver's communication id, as the sender knows it; a REQ has none.
    pub fn remote(&self) -> CommId {
        match self {
            Message::Req(_) => CommId::NONE,
            Message::Mra(m) => m.remote,
            Message::Rej(m) => m.remote,
            Message::Rep(m) => m.remote,
            Message::Rtu(m) => m.remote,
            Message::Dreq(m) => m.remote,
            Message::Drep(m) => m.remote,
        }
    }

    fn attribute(&self) -> u64 {
        match self {
            Message::Req(_) => 0x10,
            Message::Mra(_) => 0x11,
            Message::Rej(_) => 0x12,
            Message::Rep(_) => 0x13,
            Message::Rtu(_) => 0x14,
            Message::Dreq(_) => 0x15,
            Message::Drep(_) => 0x16,
        }
    }

    fn emit(&self, mad: &mut [u8; MAD_LEN]) {
        match self {
            Message::Req(m) => m.emit(mad),
            Message::Mra(m) => m.emit(mad),
            Message::Rej(m) => m.emit(mad),
            Message::Rep(m) => m.emit(mad),
            Message::Rtu(m) => m.emit(mad),
            Message::Dreq(m) => m.emit(mad),
            Message::Drep(m) => m.emit(mad),
        }
    }

    fn parse(attribute: u64, mad: &[u8; MAD_LEN]) -> Result<Message, WireError> {
        Ok(match attribute {
            0x10 => Message::Req(Req::parse(mad)?),
            0x11 => Message::Mra(Mra::parse(mad)),
            0x12 => Message::Rej(Rej::parse(mad)),
            0x13 => Message::Rep(Rep::parse(mad)?),
            0x14 => Message::Rtu(Rtu::parse(mad)),
            0x15 => Message::Dreq(Dreq::parse(mad)),
            0x16 => Message::Drep(Drep::parse(mad)),
            _ => return Err(WireError::Foreign("attribute")),
        })
    }
}
