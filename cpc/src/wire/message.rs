//! The seven CM messages as values: what the machine sees. `layout.rs` says where each field lies in the MAD.

use std::fmt;
use std::time::Duration;

use verbs::{Gid, Lid, Psn, Qpn};

use super::hello::{Hello, Layout};
use super::queues::Queues;
use super::time::encode_time;
use crate::ProcessName;

/// A communication id: names one exchange of one incarnation of one endpoint (IBTA 12.6.5 "Local Communication ID").
/// It is drawn from a counter with a random start; it never carries a pointer or an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommId(pub u32);

impl CommId {
    /// "I have none": in a REJ of a message that led to no exchange.
    pub const NONE: CommId = CommId(0);

    /// The next of the counter; never 0, which means "none".
    pub(crate) fn following(self) -> CommId {
        CommId(self.0.wrapping_add(1).max(1))
    }

    /// True if `self` was drawn after `other` from the same counter, wrap-around included.
    pub fn is_newer_than(self, other: CommId) -> bool {
        let ahead = self.0.wrapping_sub(other.0);
        ahead != 0 && ahead < 1 << 31
    }
}

/// Names one incarnation of a process's connection manager; in the modex and in every datagram. Later incarnations of a process have
/// higher ones, compared as serial numbers (RFC 1982): milliseconds of the clock, and never twice the same in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u32);

impl Incarnation {
    /// True if `self` names a later incarnation of a process than `other`, which may be 24 days older at most.
    pub fn is_newer_than(self, other: Incarnation) -> bool {
        let ahead = self.0.wrapping_sub(other.0);
        ahead != 0 && ahead < 1 << 31
    }
}

/// How many RDMA reads and atomics may be under way (IBTA 12.7.29, 12.7.30).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// How many the sender of this message serves at a time: its `max_dest_rd_atomic`.
    pub responder_resources: u8,
    /// How many it wants to have outstanding: its `max_rd_atomic`.
    pub initiator_depth: u8,
}

/// The primary path of a REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// LID of the sender.
    pub local_lid: Lid,
    /// LID of the receiver.
    pub remote_lid: Lid,
    /// GID of the sender.
    pub local_gid: Gid,
    /// GID of the receiver.
    pub remote_gid: Gid,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Local ACK timeout, 4.096 µs * 2^n, 5 bits.
    pub ack_timeout: u8,
}

/// What every REQ says, whichever manager's it is (IBTA 12.6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReqHead {
    /// The sender's id for this exchange.
    pub local: CommId,
    /// The process it wants to reach; stands in the service id.
    pub service: ProcessName,
    /// The PSN that its queue pairs start with.
    pub psn: Psn,
    /// Its RDMA read depth.
    pub depth: Depth,
    /// The path.
    pub path: Path,
    /// Path MTU, as the code of the specification: 1 = 256 bytes to 5 = 4096.
    pub mtu: u8,
    /// Partition key.
    pub pkey: u16,
    /// Transport retries, 3 bits.
    pub retry_count: u8,
    /// RNR retries, 3 bits, 7 = for ever.
    pub rnr_retry: u8,
    /// How often the CM message itself is repeated, 4 bits.
    pub max_cm_retries: u8,
    /// Time in which the sender expects an answer, 4.096 µs * 2^n, 5 bits.
    pub response_timeout: u8,
}

/// ibcm's request for communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// What every REQ says.
    pub head: ReqHead,
    /// Its queue pairs.
    pub hello: Hello,
    /// Its queues; of the text, what fits.
    pub queues: Queues,
    /// True if any queue is shared.
    pub srq: bool,
}

/// The message that an MRA or a REJ answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// None of them.
    Other,
}

impl Stage {
    pub(super) fn code(self) -> u64 {
        match self {
            Stage::Req => 0,
            Stage::Rep => 1,
            Stage::Other => 2,
        }
    }

    pub(super) fn from_code(code: u64) -> Stage {
        match code {
            0 => Stage::Req,
            1 => Stage::Rep,
            _ => Stage::Other,
        }
    }
}

/// Message receipt acknowledgement (IBTA 12.6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra {
    /// The sender's id, or none.
    pub local: CommId,
    /// The id of the exchange at the receiver.
    pub remote: CommId,
    /// What was received.
    pub stage: Stage,
    /// How much longer it takes, 4.096 µs * 2^n, 5 bits.
    pub service_timeout: u8,
}

/// Reject (IBTA 12.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The sender's id, or none.
    pub local: CommId,
    /// The id of the exchange at the receiver.
    pub remote: CommId,
    /// What is rejected.
    pub stage: Stage,
    /// Why.
    pub reason: Reason,
}

impl Mra {
    /// Asks the sender of the REQ `remote`, which has no exchange here yet, to wait this long before it repeats it.
    pub(crate) fn of_req(remote: CommId, wait: Duration) -> Mra {
        Mra { local: CommId::NONE, remote, stage: Stage::Req, service_timeout: encode_time(wait) }
    }
}

impl Rej {
    /// Rejects the REQ `remote`, which has led to no exchange.
    pub(crate) fn of_req(remote: CommId, reason: Reason) -> Rej {
        Rej { local: CommId::NONE, remote, stage: Stage::Req, reason }
    }

    /// Tells the sender of the REP `remote` that its exchange is not known here.
    pub(crate) fn of_stray_rep(remote: CommId) -> Rej {
        Rej { local: CommId::NONE, remote, stage: Stage::Rep, reason: Reason::InvalidCommId }
    }
}

/// Why a message is rejected. Ours travel as "consumer reject" (28) with a code in the additional information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// 3: no QP or memory there.
    NoResources,
    /// 4: the sender has given up on this exchange.
    Timeout,
    /// 6: the exchange is not known (any more).
    InvalidCommId,
    /// 8: the datagram is for another process: the address has a new owner.
    InvalidServiceId,
    /// 10: belongs to a former incarnation of the endpoint.
    Stale,
    /// Consumer: number or kinds of the queues differ; the sender's are these.
    Layout(Layout),
    /// Consumer: the queues differ; the sender's are these.
    Queues(Queues),
    /// Consumer: the receiver has not added the requesting process as a peer in time.
    UnknownPeer,
    /// Consumer: the endpoint there has failed.
    Refused,
    /// Consumer: the XRC receive queue pair that the request names does not exist there (any more). With the low 24 bits of
    /// the request's epoch.
    NoReceiver(u32),
    /// Any other reason of the specification.
    Other(u16),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoResources => f.write_str("it has no resources for another queue pair"),
            Reason::Timeout => f.write_str("it had given up waiting for us"),
            Reason::InvalidCommId => f.write_str("it does not know this exchange"),
            Reason::InvalidServiceId => f.write_str("its address belongs to another process now"),
            Reason::Stale => f.write_str("the request is from a former connection"),
            Reason::Layout(theirs) => write!(f, "its queues are {theirs}"),
            Reason::Queues(theirs) => write!(f, "its queues are {theirs}"),
            Reason::UnknownPeer => f.write_str("it has not been told of this process"),
            Reason::Refused => f.write_str("its endpoint has failed"),
            Reason::NoReceiver(_) => f.write_str("the receive queue pair of its node is gone"),
            Reason::Other(code) => write!(f, "CM reject reason {code}"),
        }
    }
}

/// Reply to a request (IBTA 12.6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's id for this exchange.
    pub local: CommId,
    /// The requester's.
    pub remote: CommId,
    /// The sender's queue pairs.
    pub hello: Hello,
    /// Its queues; of the text, what fits.
    pub queues: Queues,
    /// Its starting PSN, the same on every QP.
    pub psn: Psn,
    /// Its RDMA read depth.
    pub depth: Depth,
    /// RNR retries, 3 bits.
    pub rnr_retry: u8,
    /// True if any queue is shared.
    pub srq: bool,
}

/// Ready to use (IBTA 12.6.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rtu {
    /// The sender's id.
    pub local: CommId,
    /// The receiver's.
    pub remote: CommId,
}

/// Request for communication release (IBTA 12.6.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's id.
    pub local: CommId,
    /// The receiver's.
    pub remote: CommId,
    /// The receiver's first QP.
    pub remote_qpn: Qpn,
    /// The sender's end has failed: the receiver shall not take it for a peer that has nothing more to say.
    pub failed: bool,
}

/// Reply to a request for communication release (IBTA 12.6.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drep {
    /// The sender's id.
    pub local: CommId,
    /// The receiver's.
    pub remote: CommId,
}
