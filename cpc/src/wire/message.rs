//! The CM messages that ibcm and xrc have in common: what the machine sees, and where each field lies (IBTA vol. 1, tables of 12.6.5 to 12.6.11).
//!
//! Fields that these connection managers have no use for (EE contexts, Q_Key, alternate path) are sent as 0 and not read.

use std::time::Duration;

use verbs::{Gid, Lid, Psn, Qpn};

use super::WireError;
use super::field::{Checked, Field, Mad, Place, Run, Value, Within, message, values};
use super::reason::{Reason, ReasonAt};
use super::time::encode_time;
use crate::ProcessName;

/// A communication id: names one exchange of one incarnation of one endpoint (IBTA 12.6.5 "Local Communication ID").
/// It is drawn from a counter with a random start; it never carries a pointer or an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
        is_ahead(self.0, other.0)
    }
}

/// Names one incarnation of a process's connection manager; in the modex and in every datagram. Later incarnations of a process have
/// higher ones, compared as serial numbers (RFC 1982): milliseconds of the clock, and never twice the same in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u32);

impl Incarnation {
    /// True if `self` names a later incarnation of a process than `other`, which may be 24 days older at most.
    pub fn is_newer_than(self, other: Incarnation) -> bool {
        is_ahead(self.0, other.0)
    }
}

/// Of serial numbers, wrap-around included (RFC 1982).
fn is_ahead(new: u32, old: u32) -> bool {
    (1..1 << 31).contains(&new.wrapping_sub(old))
}

values!(; CommId Incarnation);

/// The message that an MRA or a REJ answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// Another message, or an exchange without naming a message.
    Other,
}

impl Value for Stage {
    fn bits(self) -> u64 {
        self as u64
    }

    fn of_bits(bits: u64) -> Stage {
        match bits {
            0 => Stage::Req,
            1 => Stage::Rep,
            _ => Stage::Other,
        }
    }
}

/// The sender's id.
pub(super) const LOCAL: Field = Field::cm(0, 32);
/// The receiver's id.
pub(super) const REMOTE: Field = Field::cm(4, 32);

/// The same of a REQ or REP, whose sender must have one.
pub(super) const GIVEN: Checked<CommId> = Checked(LOCAL, |id| id != CommId::NONE, "communication id");

/// How many RDMA reads and atomics may be under way (IBTA 12.7.29, 12.7.30).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// How many the sender of this message serves at a time: its `max_dest_rd_atomic`.
    pub responder_resources: u8,
    /// How many it wants to have outstanding: its `max_rd_atomic`.
    pub initiator_depth: u8,
}

/// Where the two depths lie.
pub(super) struct DepthAt(Field, Field);

impl Place<Depth> for DepthAt {
    fn put(&self, depth: &Depth, mad: &mut Mad) {
        self.0.put(&depth.responder_resources, mad);
        self.1.put(&depth.initiator_depth, mad);
    }

    fn take(&self, mad: &Mad) -> Result<Depth, WireError> {
        Ok(Depth { responder_resources: self.0.take(mad)?, initiator_depth: self.1.take(mad)? })
    }
}

/// Fields of REQ and REP whose use differs between ibcm and xrc.
pub(super) mod req {
    use super::Field;
    /// Local QPN: the sender's queue pair.
    pub const QPN: Field = Field::cm(32, 24);
    /// Transport service type (IBTA 12.7.8).
    pub const SERVICE: Field = Field::cm_bits(43, 5, 2);
    /// 1 if the sender has a shared receive queue.
    pub const SRQ: Field = Field::cm_bits(51, 4, 1);
    /// Byte at which the private data begin, and their length.
    pub const PRIVATE: (usize, usize) = (140, 92);
}

pub(super) mod rep {
    use super::{DepthAt, Field};
    /// Responder resources and initiator depth: reads and atomics that the sender takes, and has, under way at a time (IBTA 12.7.29, 12.7.30).
    pub const DEPTH: DepthAt = DepthAt(Field::cm(24, 8), Field::cm(25, 8));
    /// Failover accepted: always [`NO_FAILOVER`].
    pub const FAILOVER: Field = Field::cm_bits(26, 5, 2);
    /// "Failover port not supported": there is no alternate path.
    pub const NO_FAILOVER: u64 = 1;
    /// 1 if the sender has a shared receive queue.
    pub const SRQ: Field = Field::cm_bits(27, 3, 1);
    /// Byte at which the private data begin, and their length.
    pub const PRIVATE: (usize, usize) = (36, 196);
}

/// Local CA GUID: the interface half of the sender's GID.
const CA_GUID: Field = Field::cm(16, 64);
/// The receiver's time for an answer.
const REMOTE_RESPONSE_TIMEOUT: Field = Field::cm(43, 5);
/// 0 within a subnet, else 64.
const HOP_LIMIT: Field = Field::cm(93, 8);
/// 1 if both GIDs have one subnet prefix.
const SUBNET_LOCAL: Field = Field::cm_bits(94, 4, 1);

message! {
    /// The primary path of a REQ, whose sender is its local end.
    pub struct Path {
        /// LID of the sender; 0 on Ethernet.
        pub local_lid: Lid = Field::cm(52, 16),
        /// LID of the receiver; 0 on Ethernet.
        pub remote_lid: Lid = Field::cm(54, 16),
        /// GID of the sender.
        pub local_gid: Gid = Run::cm(56, 16),
        /// GID of the receiver.
        pub remote_gid: Gid = Run::cm(72, 16),
        /// Service level, 0 to 15.
        pub sl: u8 = Field::cm(94, 4),
        /// Local ACK timeout, 4.096 µs * 2^n.
        pub ack_timeout: u8 = Field::cm(95, 5),
        written CA_GUID, |path| path.local_gid.0[8..].iter().fold(0, |guid, &b| guid << 8 | u64::from(b));
        written SUBNET_LOCAL, |path| path.is_local().into();
        written HOP_LIMIT, |path| if path.is_local() { 0 } else { 64 };
    }
}

impl Path {
    /// The first eight bytes of a GID are the subnet: a path within one needs no router (IBTA 12.7.16).
    fn is_local(&self) -> bool {
        self.local_gid.0[..8] == self.remote_gid.0[..8]
    }
}

message! {
    /// What every REQ says, whichever manager's it is (IBTA 12.6.5).
    pub struct ReqHead {
        /// Path MTU: 1 = 256 bytes to 5 = 4096.
        pub mtu: u8 = Checked(Field::cm(50, 4), |code| (1..=5).contains(&code), "path MTU"),
        /// The sender's id of the exchange.
        pub local: CommId = GIVEN,
        /// The process it wants to reach; stands in the service id.
        pub service: ProcessName = Field::cm(8, 64),
        /// The PSN that its queue pairs start with.
        pub psn: Psn = Field::cm(44, 24),
        /// RDMA READs and atomics of the sender.
        pub depth: Depth = DepthAt(Field::cm(35, 8), Field::cm(39, 8)),
        /// The path between the two ports.
        pub path: Path = Within,
        /// Partition key.
        pub pkey: u16 = Field::cm(48, 16),
        /// Transport retries, 0 to 7.
        pub retry_count: u8 = Field::cm_bits(47, 5, 3),
        /// RNR retries; 7 = for ever.
        pub rnr_retry: u8 = Field::cm_bits(50, 5, 3),
        /// How often the CM message itself is repeated.
        pub max_cm_retries: u8 = Field::cm(51, 4),
        /// Time in which the sender answers, and expects an answer, 4.096 µs * 2^n.
        pub response_timeout: u8 = Field::cm(47, 5),
        written REMOTE_RESPONSE_TIMEOUT, |head| head.response_timeout.into();
    }
}

message! {
    /// Message receipt acknowledgement (IBTA 12.6.6).
    pub struct Mra {
        /// The sender's id, or none.
        pub local: CommId = LOCAL,
        /// The receiver's id.
        pub remote: CommId = REMOTE,
        /// What was received.
        pub stage: Stage = Field::cm(8, 2),
        /// How much longer it takes, 4.096 µs * 2^n.
        pub service_timeout: u8 = Field::cm(9, 5),
    }
}

message! {
    /// Reject (IBTA 12.6.7).
    pub struct Rej {
        /// The sender's id, or none.
        pub local: CommId = LOCAL,
        /// The receiver's id, or none: of a withdrawn REQ, which has no answer yet.
        pub remote: CommId = REMOTE,
        /// What is rejected.
        pub stage: Stage = Field::cm(8, 2),
        /// Why.
        pub reason: Reason = ReasonAt,
    }
}

message! {
    /// Ready to use (IBTA 12.6.9).
    pub struct Rtu {
        /// The sender's id.
        pub local: CommId = LOCAL,
        /// The receiver's id.
        pub remote: CommId = REMOTE,
    }
}

message! {
    /// Request for communication release (IBTA 12.6.10).
    pub struct Dreq {
        /// The sender's id.
        pub local: CommId = LOCAL,
        /// The receiver's id.
        pub remote: CommId = REMOTE,
        /// The receiver's first QP.
        pub remote_qpn: Qpn = Field::cm(8, 24),
        /// The sender's end has failed: the receiver shall not take it for a peer that has nothing more to say. In the first byte of the
        /// private data.
        pub failed: bool = Field::cm(12, 8),
    }
}

message! {
    /// Reply to a request for communication release (IBTA 12.6.11).
    pub struct Drep {
        /// The sender's id.
        pub local: CommId = LOCAL,
        /// The receiver's id.
        pub remote: CommId = REMOTE,
    }
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
