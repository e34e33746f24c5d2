//! The datagrams of ibcm and xrc: management datagrams (MADs) of the communication management
//! class.
//!
//! ```text
//!   0  base version 1 | class 0x07 | class version 2 | method 0x03 (Send)
//!   4  status (16) | class specific (16)
//!   8  transaction id (64): the sender's incarnation, then the receiver's
//!  16  attribute id (16): REQ 0x10, MRA 0x11, REJ 0x12, REP 0x13, RTU 0x14, DREQ 0x15, DREP 0x16
//!  20  attribute modifier (32): the specification leaves it 0; here "oxc" (ibcm) or "oxx" (xrc) and a version
//!  24  the message (IBTA vol. 1, 12.6), private data behind its fields
//! 256
//! ```
//! Every field lies where the specification puts it, so that a packet capture reads well; but the
//! datagrams travel between our own UD queue pairs and never meet a kernel's CM. A datagram of
//! another length, class, or modifier is foreign and refused. Bytes become a [`Datagram`] once, in
//! [`Datagram::parse`]; nothing behind it sees raw bytes.

use std::fmt::Debug;

use super::envelope::Envelope;
use super::field::Mad;
use super::message::{CommId, Drep, Dreq, Incarnation, Mra, Rej, ReqHead, Rtu};
use super::{MAD_LEN, WireError};
use crate::ProcessName;

/// The REQ of a manager, and what goes with it.
pub trait Request: Copy + Debug + Eq {
    /// Attribute modifier of its datagrams, without the version in the last byte.
    const MAGIC: u32;
    /// The manager sends RTUs.
    const HAS_RTU: bool;
    /// Its REP.
    type Reply: Reply;

    /// What every REQ says.
    fn head(&self) -> &ReqHead;
    /// The process that sends it.
    fn name(&self) -> ProcessName;
    /// Writes it into a MAD whose other bytes are 0.
    fn emit(&self, mad: &mut Mad);
    /// Reads it.
    ///
    /// # Errors
    /// [`WireError::Field`] for a value that no sender of this version writes.
    fn parse(mad: &Mad) -> Result<Self, WireError>;
}

/// The REP of a manager.
pub trait Reply: Copy + Debug + Eq {
    /// The ids of the exchange: the sender's, the receiver's.
    fn ids(&self) -> (CommId, CommId);
    /// Writes it into a MAD whose other bytes are 0.
    fn emit(&self, mad: &mut Mad);
    /// Reads it.
    ///
    /// # Errors
    /// [`WireError::Field`] for a value that no sender of this version writes.
    fn parse(mad: &Mad) -> Result<Self, WireError>;
}

/// A datagram: its sender, its receiver, its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<Q: Request> {
    /// The sender's incarnation.
    pub from: Incarnation,
    /// The incarnation that it is meant for.
    pub to: Incarnation,
    /// The message.
    pub message: Message<Q>,
}

/// A CM message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "short-lived, on the connection path only")]
pub enum Message<Q: Request> {
    /// Request for communication.
    Req(Q),
    /// Message receipt acknowledgement: the answer takes longer.
    Mra(Mra),
    /// Reject.
    Rej(Rej),
    /// Reply to a request.
    Rep(Q::Reply),
    /// Ready to use.
    Rtu(Rtu),
    /// Request for communication release.
    Dreq(Dreq),
    /// Reply to that.
    Drep(Drep),
}

impl<Q: Request> Datagram<Q> {
    /// Writes the datagram; every byte of `mad` is set.
    pub fn emit(&self, mad: &mut [u8; MAD_LEN]) {
        let Datagram { from, to, message } = self;
        Envelope { from: *from, to: *to, attribute: message.attribute() }.emit(Q::MAGIC, mad);
        message.emit(mad);
    }

    /// Reads a datagram.
    ///
    /// # Errors
    /// [`WireError`] for anything that [`Datagram::emit`] of this version would not have written.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let (Envelope { from, to, attribute }, mad) = Envelope::parse(Q::MAGIC, bytes)?;
        Ok(Datagram { from, to, message: Message::parse(attribute, mad)? })
    }
}

impl<Q: Request> Message<Q> {
    /// The sender's communication id; [`CommId::NONE`] where it has none.
    pub fn local(&self) -> CommId {
        self.ids().0
    }

    /// The receiver's communication id, as the sender knows it; a REQ has none.
    pub fn remote(&self) -> CommId {
        self.ids().1
    }

    fn ids(&self) -> (CommId, CommId) {
        match self {
            Message::Req(m) => (m.head().local, CommId::NONE),
            Message::Mra(m) => (m.local, m.remote),
            Message::Rej(m) => (m.local, m.remote),
            Message::Rep(m) => m.ids(),
            Message::Rtu(m) => (m.local, m.remote),
            Message::Dreq(m) => (m.local, m.remote),
            Message::Drep(m) => (m.local, m.remote),
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

    fn emit(&self, mad: &mut Mad) {
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

    fn parse(attribute: u64, mad: &Mad) -> Result<Self, WireError> {
        Ok(match attribute {
            0x10 => Message::Req(Q::parse(mad)?),
            0x11 => Message::Mra(Mra::parse(mad)),
            0x12 => Message::Rej(Rej::parse(mad)),
            0x13 => Message::Rep(Reply::parse(mad)?),
            0x14 if Q::HAS_RTU => Message::Rtu(Rtu::parse(mad)),
            0x15 => Message::Dreq(Dreq::parse(mad)),
            0x16 => Message::Drep(Drep::parse(mad)),
            _ => return Err(WireError::Foreign("attribute")),
        })
    }
}
