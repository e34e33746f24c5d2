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
use super::field::{Mad, Part};
use super::message::{CommId, Drep, Dreq, Incarnation, Mra, Rej, ReqHead, Rtu};
use super::{MAD_LEN, WireError};
use crate::ProcessName;

/// The REQ of a manager, and what goes with it.
pub trait Request: Part + Copy + Debug + Eq {
    /// Attribute modifier of its datagrams, without the version in the last byte.
    const MAGIC: u32;
    /// True if the exchange ends with an RTU; without one an RTU is a foreign datagram.
    const HAS_RTU: bool;
    /// The REP that answers it.
    type Reply: Reply;

    /// What the REQs of all managers have in common.
    fn head(&self) -> &ReqHead;
    /// The process that sends it.
    fn name(&self) -> ProcessName;
}

/// The REP of a manager.
pub trait Reply: Part + Copy + Debug + Eq {
    /// The ids of the exchange: the sender's, the receiver's.
    fn ids(&self) -> (CommId, CommId);
}

/// A datagram: its sender, its receiver, its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<Q: Request> {
    /// The sender's incarnation.
    pub from: Incarnation,
    /// The receiver's incarnation, as the sender knows it.
    pub to: Incarnation,
    /// What it says.
    pub message: Message<Q>,
}

impl<Q: Request> Datagram<Q> {
    /// Writes the datagram; every byte of `mad` is set.
    pub fn emit(&self, mad: &mut [u8; MAD_LEN]) {
        let Datagram { from, to, message } = self;
        Envelope { from: *from, to: *to, attribute: message.attribute() }.wrap(Q::MAGIC, mad);
        message.emit(mad);
    }

    /// Reads a datagram.
    ///
    /// # Errors
    /// [`WireError`] for anything that [`Datagram::emit`] of this version would not have written.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let (Envelope { from, to, attribute }, mad) = Envelope::open(Q::MAGIC, bytes)?;
        Ok(Datagram { from, to, message: Message::parse(attribute, mad)? })
    }
}

/// The messages, each with its attribute id and the ids of its exchange: the sender's, the receiver's.
macro_rules! messages {
    ($($(#[$doc:meta])* $Name:ident($Type:ty) = $attribute:literal $(if $allowed:expr)?, $ids:expr;)+) => {
        /// A message of the communication manager that oxib sends or heeds (IBTA 12.6); `Q` is the manager's request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "short-lived, on the connection path only")]
        pub enum Message<Q: Request> { $($(#[$doc])* $Name($Type)),+ }

        impl<Q: Request> Message<Q> {
            fn ids(&self) -> (CommId, CommId) {
                fn of<M>(message: &M, ids: impl Fn(&M) -> (CommId, CommId)) -> (CommId, CommId) {
                    ids(message)
                }
                match self { $(Message::$Name(message) => of(message, $ids)),+ }
            }

            fn attribute(&self) -> u64 {
                match self { $(Message::$Name(_) => $attribute),+ }
            }

            fn emit(&self, mad: &mut Mad) {
                match self { $(Message::$Name(message) => message.emit(mad)),+ }
            }

            fn parse(attribute: u64, mad: &Mad) -> Result<Self, WireError> {
                match attribute {
                    $($attribute $(if $allowed)? => Part::parse(mad).map(Message::$Name),)+
                    _ => Err(WireError::Foreign("attribute")),
                }
            }
        }
    };
}

messages! {
    /// Request for communication; its receiver has no id yet.
    Req(Q) = 0x10, |m| (m.head().local, CommId::NONE);
    /// Message receipt acknowledgement: the answer takes longer.
    Mra(Mra) = 0x11, |m| (m.local, m.remote);
    /// Reject: of a message or of an exchange, and why.
    Rej(Rej) = 0x12, |m| (m.local, m.remote);
    /// Reply to a request.
    Rep(Q::Reply) = 0x13, |m| m.ids();
    /// Ready to use: the sender of the REQ is up. Managers without RTU do not know it.
    Rtu(Rtu) = 0x14 if Q::HAS_RTU, |m| (m.local, m.remote);
    /// Request for communication release.
    Dreq(Dreq) = 0x15, |m| (m.local, m.remote);
    /// Reply to a DREQ.
    Drep(Drep) = 0x16, |m| (m.local, m.remote);
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
}
