//! Everything that the connection managers say to each other, as values: bytes become a value once, here, and nothing behind
//! sees raw bytes. No states, no clock, no I/O.
//!
//! ```text
//!   modex blobs       listener (ibcm)    domain (xrc)        ip (rdmacm)
//!   datagrams         datagram           datagram            -             in an envelope, a MAD header
//!   messages          ibcm, message, reason   xrc            -             REQ, MRA, REJ, REP, RTU, DREQ, DREP
//!   private data      hello, queues      xrc                 hello, join, refusal
//!   ground            field: bit fields of a MAD             time: 5-bit codes of a time
//! ```
#![forbid(unsafe_code)]

/// A datagram, whichever manager's.
pub mod datagram;
/// Where a process listens for xrc.
pub mod domain;
pub(crate) mod envelope;
pub(crate) mod field;
mod hello;
mod ibcm;
/// Where a process listens for rdmacm.
pub mod ip;
/// iWARP: whose a further connection is.
pub mod join;
/// Where a process listens for ibcm.
pub mod listener;
mod message;
mod queues;
mod reason;
/// Why rdmacm refuses.
pub mod refusal;
pub(crate) mod time;
/// REQ and REP of xrc.
pub mod xrc;

pub use field::MAD_LEN;
pub use hello::{HELLO_LEN, Hello, Layout, MAX_QUEUES, PerQueue, Qpns};
pub use ibcm::{Datagram, Message, Rep, Req};
pub use listener::Source;
pub use message::{CommId, Depth, Drep, Dreq, Incarnation, Mra, Path, Rej, ReqHead, Rtu, Stage};
pub use queues::Queues;
pub use reason::Reason;

/// Why bytes are not one of our datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not the length of a datagram, or less than the private data take: how many bytes there are, and how many that is.
    #[error("{0} bytes where there should be {1}")]
    Length(usize, usize),
    /// Not a CM datagram of this program.
    #[error("foreign: its {0} is not ours")]
    Foreign(&'static str),
    /// Ours, but of this other version.
    #[error("speaks protocol version {0}: all processes of a job need the same release")]
    Version(u8),
    /// Ours, but a field has a value that can't be.
    #[error("its {0} can't be")]
    Field(&'static str),
}

/// Why a modex blob is no address of a manager, which is named first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Of the wrong length: the manager, how many bytes there are, how many an address has.
    #[error("{1} bytes where an {0} address has {2}")]
    Length(&'static str, usize, usize),
    /// Of another version: the manager, the blob's version, ours.
    #[error("{0} version {1}, ours is {2}: all processes of a job need the same release")]
    Version(&'static str, u8, u8),
    /// A field has a value that can't be; its name.
    #[error("its {0} can't be")]
    Field(&'static str),
}

/// The blob as one of the length that addresses of the manager have.
fn check_len<'a, const N: usize>(manager: &'static str, blob: &'a [u8]) -> Result<&'a [u8; N], AddressError> {
    blob.try_into().map_err(|_| AddressError::Length(manager, blob.len(), N))
}

/// Version of the protocol: of the exchange, the private data and the modex address.
pub const VERSION: u8 = 2;
