//! Why a message is rejected: a code of the specification, or "consumer reject" with a code of ours in the additional information.

use std::fmt;

use super::WireError;
use super::field::{Field, Mad, Place, Run};
use super::hello::Layout;
use super::queues::Queues;

/// Additional reject information length, in bytes.
const INFO_LEN: Field = Field::cm(9, 7);
/// Reason code (IBTA 12.6.7.2).
const CODE: Field = Field::cm(10, 16);
/// Additional reject information, as much of it as is ours: one byte of code, three of what goes with it.
const INFO: Run = Run::cm(12, INFO_USED as usize);
const INFO_USED: u64 = 4;
/// Private data: the sender's queues where they are the reason.
const PRIVATE: Run = Run::cm(84, 148);
/// "Consumer reject": the reason is in the additional information.
const CONSUMER: u16 = 28;

/// Why a request was refused, or an exchange given up: what a REJ says (protocol.md 5.4). Where IBTA 12.6.7.2 has no number for it, the
/// reason is "consumer reject", with ours in the additional information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No QP or memory there.
    NoResources,
    /// The sender has given up on this exchange.
    Timeout,
    /// The exchange is not known (any more).
    InvalidCommId,
    /// The datagram is for another process: the address has a new owner.
    InvalidServiceId,
    /// Belongs to a former incarnation of the endpoint.
    Stale,
    /// Number or kinds of the queues differ; the sender's are these.
    Layout(Layout),
    /// The queues differ; the sender's are these.
    Queues(Queues),
    /// The receiver has not added the requesting process as a peer in time.
    UnknownPeer,
    /// The endpoint there has failed.
    Refused,
    /// The XRC receive queue pair that the request names does not exist there (any more). With the low 24 bits of the request's
    /// epoch.
    NoReceiver(u32),
    /// Any other reason of the specification.
    Other(u16),
}

/// Those without anything more to say: code, and code of ours for a consumer.
const PLAIN: [(u16, u8, Reason); 7] = [
    (3, 0, Reason::NoResources),
    (4, 0, Reason::Timeout),
    (6, 0, Reason::InvalidCommId),
    (8, 0, Reason::InvalidServiceId),
    (10, 0, Reason::Stale),
    (CONSUMER, 2, Reason::UnknownPeer),
    (CONSUMER, 3, Reason::Refused),
];
const LAYOUT: u8 = 1;
const NO_RECEIVER: u8 = 4;
const QUEUES: u8 = 5;

impl Reason {
    /// The code and the additional information.
    fn encode(self) -> (u16, [u8; INFO_USED as usize]) {
        let ours = |code, [a, b, c]: [u8; 3]| (CONSUMER, [code, a, b, c]);
        match self {
            Reason::Layout(layout) => ours(LAYOUT, layout.to_bytes()),
            Reason::NoReceiver(epoch) => {
                let [_, epoch @ ..] = epoch.to_be_bytes();
                ours(NO_RECEIVER, epoch)
            }
            Reason::Queues(_) => ours(QUEUES, [0; 3]),
            Reason::Other(code) => (code, [0; 4]),
            plain => {
                let row = PLAIN.iter().find(|(.., reason)| *reason == plain);
                row.map_or((0, [0; 4]), |&(code, ours, _)| (code, [ours, 0, 0, 0]))
            }
        }
    }

    /// `queues` reads the private data.
    fn decode(code: u16, info: [u8; 4], queues: impl FnOnce() -> Result<Queues, WireError>) -> Reason {
        let plain = |&&(c, ours, _): &&(u16, u8, _)| c == code && (c != CONSUMER || ours == info[0]);
        let known = match info {
            _ if code != CONSUMER => None,
            [LAYOUT, layout @ ..] => Layout::from_bytes(layout).ok().map(Reason::Layout),
            [NO_RECEIVER, a, b, c] => Some(Reason::NoReceiver(u32::from_be_bytes([0, a, b, c]))),
            [QUEUES, ..] => queues().ok().map(Reason::Queues),
            _ => None,
        };
        known.or_else(|| PLAIN.iter().find(plain).map(|&(.., reason)| reason)).unwrap_or(Reason::Other(code))
    }
}

/// The fields of a REJ that say why.
pub(super) struct ReasonAt;

impl Place<Reason> for ReasonAt {
    fn put(&self, reason: &Reason, mad: &mut Mad) {
        let (code, info) = reason.encode();
        CODE.put(&code, mad);
        if info[0] != 0 {
            INFO_LEN.write(mad, INFO_USED);
            INFO.of_mut(mad).copy_from_slice(&info);
        }
        if let Reason::Queues(queues) = reason {
            PRIVATE.put(queues, mad);
        }
    }

    fn take(&self, mad: &Mad) -> Result<Reason, WireError> {
        let info = INFO.of(mad).first_chunk().filter(|_| INFO_LEN.read(mad) >= INFO_USED);
        Ok(Reason::decode(CODE.take(mad)?, info.copied().unwrap_or_default(), || PRIVATE.take(mad)))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::NoResources => "it has no resources for another queue pair",
            Reason::Timeout => "it had given up waiting for us",
            Reason::InvalidCommId => "it does not know this exchange",
            Reason::InvalidServiceId => "its address belongs to another process now",
            Reason::Stale => "the request is from a former connection",
            Reason::Layout(theirs) => return write!(f, "its queues are {theirs}"),
            Reason::Queues(theirs) => return write!(f, "its queues are {theirs}"),
            Reason::UnknownPeer => "it has not been told of this process",
            Reason::Refused => "its endpoint has failed",
            Reason::NoReceiver(_) => "the receive queue pair of its node is gone",
            Reason::Other(code) => return write!(f, "CM reject reason {code}"),
        })
    }
}
