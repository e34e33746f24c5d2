//! How much private data fits which message, and how long an answer may take.
//!
//! The bytes are those of InfiniBand's CM messages less what rdma_cm's own header takes of a request (36 bytes;
//! rdma_connect(3), rdma_accept(3)). A receiver always sees the whole field: what the sender did not fill is zero. On iWARP private
//! data arrive as long as they were sent.

use crate::fabric::{self, LinkLayer};
use std::time::Duration;

const REQUEST: usize = 56;
const REPLY: usize = 196;
const REJECT: usize = 148;
const SIDR_REQUEST: usize = 180;
const SIDR_REPLY: usize = 136;

const DEFAULT_PATIENCE: Duration = Duration::from_secs(20);

/// On iWARP the calls' own limit is lower than MPA's (512 bytes, RFC 5044).
const MPA: usize = u8::MAX as usize;

/// Most private data of `rdma_connect`, in bytes (rdma_connect(3)).
pub fn connect(datagram: bool) -> usize {
    limit(if datagram { SIDR_REQUEST } else { REQUEST })
}

/// Most private data of `rdma_accept`, in bytes (rdma_accept(3)).
pub fn accept(datagram: bool) -> usize {
    limit(if datagram { SIDR_REPLY } else { REPLY })
}

/// Most private data of `rdma_reject`, in bytes (rdma_reject(3)).
pub fn refuse(datagram: bool) -> usize {
    limit(if datagram { SIDR_REPLY } else { REJECT })
}

fn limit(of_infiniband: usize) -> usize {
    if fabric::link_layer() == LinkLayer::Iwarp { MPA } else { of_infiniband }
}

/// MPA frames say how long they are.
fn field(mut private: Vec<u8>, len: usize) -> Vec<u8> {
    if fabric::link_layer() != LinkLayer::Iwarp {
        private.resize(len, 0);
    }
    private
}

/// Received private data, as long as its field.
pub fn request(private: Vec<u8>) -> Vec<u8> {
    field(private, REQUEST)
}

/// A reply's private data as the peer sees them.
pub fn reply(private: Vec<u8>) -> Vec<u8> {
    field(private, REPLY)
}

/// A rejection's, likewise.
pub fn reject(private: Vec<u8>) -> Vec<u8> {
    field(private, REJECT)
}

/// Those of a request of a datagram id.
pub fn sidr_request(private: Vec<u8>) -> Vec<u8> {
    field(private, SIDR_REQUEST)
}

/// Those of the reply to it.
pub fn sidr_reply(private: Vec<u8>) -> Vec<u8> {
    field(private, SIDR_REPLY)
}

/// How long a request, reply or disconnect may go unanswered: SOFTIB_CM_TIMEOUT in milliseconds, default 20 s. A peer that
/// has ended is known at once; this is for one that is stopped, or never looks.
pub fn patience() -> Duration {
    // What cannot be understood keeps the device from being opened.
    fabric::cm_timeout().ok().flatten().unwrap_or(DEFAULT_PATIENCE)
}
