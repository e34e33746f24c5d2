//! REQ and REP of ibcm, whose private data begin with a [`Hello`].

use verbs::Psn;

use super::datagram::{Reply, Request};
use super::field::{Field, Mad, Place, Run, Within, message};
use super::message::{CommId, Depth, GIVEN, REMOTE, ReqHead, rep, req};
use super::{HELLO_LEN, Hello, Queues, WireError};
use crate::ProcessName;

/// A datagram of ibcm (protocol.md 5.2).
pub type Datagram = super::datagram::Datagram<Req>;
/// What such a datagram says.
pub type Message = super::datagram::Message<Req>;

message! {
    /// ibcm's request for communication.
    pub struct Req {
        fixed req::SERVICE, 0, Field("transport service type");
        /// Layout, name, QPNs and stream of the sender.
        pub hello: Hello = HelloAt(req::QPN, req::PRIVATE),
        /// Its queues; of the text, what fits.
        pub queues: Queues = behind_hello(req::PRIVATE),
        /// What every REQ says.
        pub head: ReqHead = Within,
        /// True if any queue is shared.
        pub srq: bool = req::SRQ,
    }
}

message! {
    /// Reply to a request (IBTA 12.6.8).
    pub struct Rep {
        /// Layout, name, QPNs and stream of the sender.
        pub hello: Hello = HelloAt(Field::cm(12, 24), rep::PRIVATE),
        /// The sender's id of the exchange.
        pub local: CommId = GIVEN,
        /// The receiver's id: that of the REQ.
        pub remote: CommId = REMOTE,
        /// Its queues; of the text, what fits.
        pub queues: Queues = behind_hello(rep::PRIVATE),
        /// Its starting PSN, the same on every QP.
        pub psn: Psn = Field::cm(20, 24),
        /// RDMA READs and atomics of the sender.
        pub depth: Depth = rep::DEPTH,
        /// RNR retries, 0 to 7; 7 repeats for ever.
        pub rnr_retry: u8 = Field::cm(27, 3),
        /// True if any queue is shared.
        pub srq: bool = rep::SRQ,
        written rep::FAILOVER, |_| rep::NO_FAILOVER;
    }
}

/// Where the message names a queue pair, and its private data, which begin with the [`Hello`] whose first QPN that is.
struct HelloAt(Field, (usize, usize));

impl Place<Hello> for HelloAt {
    fn put(&self, hello: &Hello, mad: &mut Mad) {
        self.0.put(&hello.qpns.first(), mad);
        hello.emit(Run::cm(self.1.0, self.1.1).of_mut(mad));
    }

    fn take(&self, mad: &Mad) -> Result<Hello, WireError> {
        let hello = Hello::parse(Run::cm(self.1.0, self.1.1).of(mad))?;
        if self.0.take(mad) == Ok(hello.qpns.first()) {
            Ok(hello)
        } else {
            Err(WireError::Field("queue pair number"))
        }
    }
}

/// The rest of the private data.
const fn behind_hello((byte, len): (usize, usize)) -> Run {
    Run::cm(byte + HELLO_LEN, len - HELLO_LEN)
}

impl Request for Req {
    const MAGIC: u32 = u32::from_be_bytes(*b"oxc\0");
    const HAS_RTU: bool = true;
    type Reply = Rep;

    fn head(&self) -> &ReqHead {
        &self.head
    }

    fn name(&self) -> ProcessName {
        self.hello.name
    }
}

impl Reply for Rep {
    fn ids(&self) -> (CommId, CommId) {
        (self.local, self.remote)
    }
}
