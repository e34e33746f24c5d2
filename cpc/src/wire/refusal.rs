//! Why a request, or a reply, is refused: the private data of `rdma_reject`. 8 bytes; what follows is the transport's padding.
//!
//! ```text
//!   0  "oxr", version    4  reason    5  layout (24), where the reason is that the queues differ
//! ```
#![forbid(unsafe_code)]

use std::fmt;

use super::ip::VERSION;
use crate::wire::Layout;

/// Length of the private data in use.
pub const REFUSAL_LEN: usize = 8;
const MAGIC: [u8; 4] = [b'o', b'x', b'r', VERSION];

/// Why a request of rdmacm was refused, as the private data of the refusal say (protocol.md 7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Two requests cross, and the refuser's stands: wait for it.
    Crossing,
    /// The refuser is connected to these very queue pairs already.
    Late,
    /// The receiver has not added the requesting process as a peer in time.
    UnknownPeer,
    /// The endpoint there has failed.
    Failed,
    /// No queue pair or memory there.
    NoResources,
    /// The queues differ; the refuser's are these.
    Layout(Layout),
    /// The request, or reply, makes no sense there.
    Malformed,
    /// The process there is about to end.
    Closing,
}

/// All but `Layout`, by their numbers.
const PLAIN: [(u8, Refusal); 7] = [
    (1, Refusal::Crossing),
    (2, Refusal::Late),
    (3, Refusal::UnknownPeer),
    (4, Refusal::Failed),
    (5, Refusal::NoResources),
    (6, Refusal::Malformed),
    (7, Refusal::Closing),
];
const LAYOUT: u8 = 8;

impl Refusal {
    /// The private data of the refusal.
    pub fn emit(self) -> [u8; REFUSAL_LEN] {
        let mut out = [0_u8; REFUSAL_LEN];
        out[..4].copy_from_slice(&MAGIC);
        match self {
            Refusal::Layout(layout) => {
                out[4] = LAYOUT;
                out[5..].copy_from_slice(&layout.to_bytes());
            }
            plain => out[4] = PLAIN.iter().find(|(_, r)| *r == plain).map_or(0, |(code, _)| *code),
        }
        out
    }

    /// Reads private data; `None` if they are none of ours.
    pub fn parse(data: &[u8]) -> Option<Refusal> {
        let data: &[u8; REFUSAL_LEN] = data.first_chunk()?;
        if data[..4] != MAGIC {
            return None;
        }
        match data[4] {
            LAYOUT => Layout::from_bytes([data[5], data[6], data[7]]).ok().map(Refusal::Layout),
            code => PLAIN.iter().find(|(c, _)| *c == code).map(|&(_, refusal)| refusal),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Crossing => f.write_str("its own request stands"),
            Refusal::Late => f.write_str("it takes itself for connected already"),
            Refusal::UnknownPeer => f.write_str("it has not been told of this process"),
            Refusal::Failed => f.write_str("its endpoint has failed"),
            Refusal::NoResources => f.write_str("it has no resources for another queue pair"),
            Refusal::Layout(theirs) => write!(f, "its queues are {theirs}"),
            Refusal::Malformed => f.write_str("it does not understand our private data"),
            Refusal::Closing => f.write_str("it is about to end"),
        }
    }
}
