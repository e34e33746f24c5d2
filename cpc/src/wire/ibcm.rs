//! The datagrams of ibcm: management datagrams (MADs) of the communication management class.
//!
//! ```text
//!   0  base version 1 | class 0x07 | class version 2 | method 0x03 (Send)
//!   4  status (16) | class specific (16)
//!   8  transaction id (64): the sender's incarnation, then the receiver's
//!  16  attribute id (16): REQ 0x10, MRA 0x11, REJ 0x12, REP 0x13, RTU 0x14, DREQ 0x15, DREP 0x16
//!  20  attribute modifier (32): the specification leaves it 0; here "oxc" and a version
//!  24  the message (IBTA vol. 1, 12.6), private data behind its fields
//! 256
//! ```
//! Every field lies where the specification puts it, so that a packet capture reads well; but the datagrams travel
//! between our own UD queue pairs and never meet a kernel's CM. A datagram of another length, class, or modifier is
//! foreign and refused. Bytes become a [`Datagram`] once, in [`Datagram::parse`]; nothing behind it sees raw bytes.

use super::envelope::{Envelope, Mad};
use super::{CommId, Datagram, Drep, Dreq, MAD_LEN, Message, Mra, Rej, Rep, Req, Rtu, WireError};

/// Attribute modifier of our datagrams, without the version in the last byte.
const MAGIC: u32 = u32::from_be_bytes(*b"oxc\0");

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
