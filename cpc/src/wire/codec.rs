//! Where each field lies (IBTA vol. 1, tables of 12.6.5 to 12.6.11), and the way from bytes to values and back.
//!
//! Fields that this connection manager has no use for (EE contexts, Q_Key, alternate path) are sent as 0 and not read.

use verbs::{Gid, Lid, Psn, Qpn};

use super::WireError;
use super::datagram::{Reply, Request};
use super::field::{Field, Mad, Run};
use super::hello::{HELLO_LEN, Hello, Layout};
use super::message::{CommId, Depth, Drep, Dreq, Mra, Path, Reason, Rej, Rep, Req, ReqHead, Rtu, Stage};
use super::queues::Queues;
use crate::ProcessName;

const LOCAL_COMM_ID: Field = Field::cm(0, 32);
const REMOTE_COMM_ID: Field = Field::cm(4, 32);

/// Fields of the messages with offsets in the CM message.
pub(crate) mod req {
    use super::{Field, Run};
    /// ServiceID: the process that the sender wants to reach.
    pub const SERVICE_ID: Field = Field::cm(8, 64);
    /// Local CA GUID: the interface half of the sender's GID; written, never read.
    pub const CA_GUID: Field = Field::cm(16, 64);
    /// Local QPN: the sender's queue pair; in ibcm the first of those in the `Hello`.
    pub const QPN: Field = Field::cm(32, 24);
    /// RDMA reads and atomics that the sender serves at a time.
    pub const RESPONDER_RESOURCES: Field = Field::cm(35, 8);
    /// RDMA reads and atomics that the sender has outstanding at most.
    pub const INITIATOR_DEPTH: Field = Field::cm(39, 8);
    /// Remote CM response timeout, 4.096 µs * 2^n: the receiver's time for an answer; written,
    /// never read.
    pub const REMOTE_RESPONSE_TIMEOUT: Field = Field::cm(43, 5);
    /// Transport service type: 0, reliable connected, in ibcm; 3, extended, in xrc.
    pub const TRANSPORT_SERVICE: Field = Field::cm_bits(43, 5, 2);
    /// The PSN that the sender's queue pairs start with.
    pub const PSN: Field = Field::cm(44, 24);
    /// Local CM response timeout, 4.096 µs * 2^n: the sender's time for an answer.
    pub const LOCAL_RESPONSE_TIMEOUT: Field = Field::cm(47, 5);
    /// Transport retries, 0 to 7.
    pub const RETRY_COUNT: Field = Field::cm_bits(47, 5, 3);
    /// Partition key of the connection.
    pub const PKEY: Field = Field::cm(48, 16);
    /// Path packet payload MTU as a code: 1 = 256 bytes to 5 = 4096.
    pub const MTU: Field = Field::cm(50, 4);
    /// RNR retries; 7: without end.
    pub const RNR_RETRY: Field = Field::cm_bits(50, 5, 3);
    /// How often the sender repeats the CM message.
    pub const MAX_CM_RETRIES: Field = Field::cm(51, 4);
    /// 1 if the sender has a shared receive queue; always in xrc.
    pub const SRQ: Field = Field::cm_bits(51, 4, 1);
    /// Primary local port LID: the sender's.
    pub const LOCAL_LID: Field = Field::cm(52, 16);
    /// Primary remote port LID: the receiver's.
    pub const REMOTE_LID: Field = Field::cm(54, 16);
    /// Primary local port GID: the sender's.
    pub const LOCAL_GID: Run = Run::cm(56, 16);
    /// Primary remote port GID: the receiver's.
    pub const REMOTE_GID: Run = Run::cm(72, 16);
    /// Primary hop limit: 0 within a subnet, else 64; written, never read.
    pub const HOP_LIMIT: Field = Field::cm(93, 8);
    /// Service level of the primary path.
    pub const SL: Field = Field::cm(94, 4);
    /// 1 if both GIDs have one subnet prefix; written, never read.
    pub const SUBNET_LOCAL: Field = Field::cm_bits(94, 4, 1);
    /// Local ACK timeout of the primary path, 4.096 µs * 2^n.
    pub const ACK_TIMEOUT: Field = Field::cm(95, 5);
    /// Private data; ibcm's begin with the `Hello`.
    pub const PRIVATE: Run = Run::cm(140, 92);
    /// The rest of the private data, behind the `Hello`.
    pub const QUEUES: Run = Run::cm(140 + super::HELLO_LEN, 92 - super::HELLO_LEN);
}

pub(crate) mod rep {
    use super::{Field, Run};
    /// Local QPN: the sender's queue pair; in ibcm the first of those in the `Hello`.
    pub const QPN: Field = Field::cm(12, 24);
    /// The PSN that the sender's queue pairs start with.
    pub const PSN: Field = Field::cm(20, 24);
    /// RDMA reads and atomics that the sender serves at a time.
    pub const RESPONDER_RESOURCES: Field = Field::cm(24, 8);
    /// RDMA reads and atomics that the sender has outstanding at most.
    pub const INITIATOR_DEPTH: Field = Field::cm(25, 8);
    /// Failover accepted: always [`NO_FAILOVER`]; written, never read.
    pub const FAILOVER: Field = Field::cm_bits(26, 5, 2);
    /// RNR retries; 7: without end.
    pub const RNR_RETRY: Field = Field::cm(27, 3);
    /// 1 if the sender has a shared receive queue; always in xrc.
    pub const SRQ: Field = Field::cm_bits(27, 3, 1);
    /// Private data; ibcm's begin with the `Hello`.
    pub const PRIVATE: Run = Run::cm(36, 196);
    /// The rest of the private data, behind the `Hello`.
    pub const QUEUES: Run = Run::cm(36 + super::HELLO_LEN, 196 - super::HELLO_LEN);
    /// "Failover port not supported": there is no alternate path.
    pub const NO_FAILOVER: u64 = 1;
}

mod mra {
    use super::Field;
    /// Message MRAed: the message that was received, as [`Stage`](super::Stage) codes it.
    pub const STAGE: Field = Field::cm(8, 2);
    /// Service timeout: how much longer the answer takes, 4.096 µs * 2^n.
    pub const SERVICE_TIMEOUT: Field = Field::cm(9, 5);
}

mod rej {
    use super::{Field, Run};
    /// Message rejected, as [`Stage`](super::Stage) codes it.
    pub const STAGE: Field = Field::cm(8, 2);
    /// Reject information length: bytes in use of [`INFO`].
    pub const INFO_LEN: Field = Field::cm(9, 7);
    /// Reason code (IBTA 12.6.7.2).
    pub const REASON: Field = Field::cm(10, 16);
    /// Additional reject information: the reason in detail where the code is [`CONSUMER`].
    pub const INFO: Run = Run::cm(12, 72);
    /// Private data: the sender's queues where they are the reason.
    pub const PRIVATE: Run = Run::cm(84, 148);
    /// "Consumer reject" (IBTA 12.6.7.2): the reason is in the additional information.
    pub const CONSUMER: u16 = 28;
    /// One byte of code, three of layout.
    pub const INFO_USED: usize = 4;
}

const DREQ_REMOTE_QPN: Field = Field::cm(8, 24);
/// First byte of a DREQ's private data: 1 if the sender's end has failed.
const DREQ_FAILED: Field = Field::cm(12, 8);

const _: () = assert!(HELLO_LEN <= 92);

fn read_gid(run: Run, mad: &Mad) -> Gid {
    let mut gid = [0_u8; 16];
    gid.copy_from_slice(run.of(mad));
    Gid(gid)
}

pub(crate) fn ids(mad: &Mad) -> (CommId, CommId) {
    (CommId(LOCAL_COMM_ID.read_u32(mad)), CommId(REMOTE_COMM_ID.read_u32(mad)))
}

pub(crate) fn put_ids(mad: &mut Mad, local: CommId, remote: CommId) {
    LOCAL_COMM_ID.write(mad, local.0.into());
    REMOTE_COMM_ID.write(mad, remote.0.into());
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

    fn emit(&self, mad: &mut Mad) {
        self.head.emit(mad);
        req::QPN.write(mad, self.hello.qpns.first().0.into());
        req::SRQ.write(mad, self.srq.into());
        self.hello.emit(req::PRIVATE.of_mut(mad));
        self.queues.emit(req::QUEUES.of_mut(mad));
    }

    fn parse(mad: &Mad) -> Result<Req, WireError> {
        // 0 is "reliable connected" (IBTA 12.7.8); nothing else is spoken here.
        if req::TRANSPORT_SERVICE.read(mad) != 0 {
            return Err(WireError::Field("transport service type"));
        }
        let hello = Hello::parse(req::PRIVATE.of(mad))?;
        agrees(req::QPN.read_u32(mad), &hello)?;
        let queues = Queues::parse(req::QUEUES.of(mad))?;
        Ok(Req { head: ReqHead::parse(mad)?, hello, queues, srq: req::SRQ.read(mad) == 1 })
    }
}

impl ReqHead {
    pub(super) fn emit(&self, mad: &mut Mad) {
        put_ids(mad, self.local, CommId::NONE);
        req::SERVICE_ID.write(mad, self.service.0);
        req::RESPONDER_RESOURCES.write(mad, self.depth.responder_resources.into());
        req::INITIATOR_DEPTH.write(mad, self.depth.initiator_depth.into());
        req::REMOTE_RESPONSE_TIMEOUT.write(mad, self.response_timeout.into());
        req::LOCAL_RESPONSE_TIMEOUT.write(mad, self.response_timeout.into());
        req::PSN.write(mad, self.psn.0.into());
        req::RETRY_COUNT.write(mad, self.retry_count.into());
        req::RNR_RETRY.write(mad, self.rnr_retry.into());
        req::MAX_CM_RETRIES.write(mad, self.max_cm_retries.into());
        req::PKEY.write(mad, self.pkey.into());
        req::MTU.write(mad, self.mtu.into());
        self.path.emit(mad);
    }

    pub(super) fn parse(mad: &Mad) -> Result<ReqHead, WireError> {
        let mtu = req::MTU.read_u8(mad);
        if !(1..=5).contains(&mtu) {
            return Err(WireError::Field("path MTU"));
        }
        Ok(ReqHead {
            local: given(ids(mad).0)?,
            service: ProcessName(req::SERVICE_ID.read(mad)),
            psn: Psn(req::PSN.read_u32(mad)),
            depth: Depth {
                responder_resources: req::RESPONDER_RESOURCES.read_u8(mad),
                initiator_depth: req::INITIATOR_DEPTH.read_u8(mad),
            },
            path: Path::parse(mad),
            mtu,
            pkey: req::PKEY.read_u16(mad),
            retry_count: req::RETRY_COUNT.read_u8(mad),
            rnr_retry: req::RNR_RETRY.read_u8(mad),
            max_cm_retries: req::MAX_CM_RETRIES.read_u8(mad),
            response_timeout: req::LOCAL_RESPONSE_TIMEOUT.read_u8(mad),
        })
    }
}

impl Path {
    pub(crate) fn emit(&self, mad: &mut Mad) {
        req::LOCAL_LID.write(mad, self.local_lid.0.into());
        req::REMOTE_LID.write(mad, self.remote_lid.0.into());
        req::LOCAL_GID.of_mut(mad).copy_from_slice(&self.local_gid.0);
        req::REMOTE_GID.of_mut(mad).copy_from_slice(&self.remote_gid.0);
        let (_, interface) = self.local_gid.0.split_at(8);
        let guid = interface.iter().fold(0_u64, |acc, &b| acc << 8 | u64::from(b));
        req::CA_GUID.write(mad, guid);
        req::SL.write(mad, self.sl.into());
        req::ACK_TIMEOUT.write(mad, self.ack_timeout.into());
        // The first eight bytes of a GID are the subnet: a path within one needs no router (IBTA 12.7.16).
        let local = self.local_gid.0[..8] == self.remote_gid.0[..8];
        req::SUBNET_LOCAL.write(mad, local.into());
        req::HOP_LIMIT.write(mad, if local { 0 } else { 64 });
    }

    pub(crate) fn parse(mad: &Mad) -> Path {
        Path {
            local_lid: Lid(req::LOCAL_LID.read_u16(mad)),
            remote_lid: Lid(req::REMOTE_LID.read_u16(mad)),
            local_gid: read_gid(req::LOCAL_GID, mad),
            remote_gid: read_gid(req::REMOTE_GID, mad),
            sl: req::SL.read_u8(mad),
            ack_timeout: req::ACK_TIMEOUT.read_u8(mad),
        }
    }
}

/// The id of the sender of a REQ or REP, which must have one.
pub(super) fn given(id: CommId) -> Result<CommId, WireError> {
    if id == CommId::NONE { Err(WireError::Field("communication id")) } else { Ok(id) }
}

/// The QPN field of a REQ or REP must agree with the private data.
fn agrees(qpn: u32, hello: &Hello) -> Result<(), WireError> {
    if Qpn(qpn) == hello.qpns.first() { Ok(()) } else { Err(WireError::Field("queue pair number")) }
}

impl Reply for Rep {
    fn ids(&self) -> (CommId, CommId) {
        (self.local, self.remote)
    }

    fn emit(&self, mad: &mut Mad) {
        put_ids(mad, self.local, self.remote);
        rep::QPN.write(mad, self.hello.qpns.first().0.into());
        rep::PSN.write(mad, self.psn.0.into());
        rep::RESPONDER_RESOURCES.write(mad, self.depth.responder_resources.into());
        rep::INITIATOR_DEPTH.write(mad, self.depth.initiator_depth.into());
        rep::FAILOVER.write(mad, rep::NO_FAILOVER);
        rep::RNR_RETRY.write(mad, self.rnr_retry.into());
        rep::SRQ.write(mad, self.srq.into());
        self.hello.emit(rep::PRIVATE.of_mut(mad));
        self.queues.emit(rep::QUEUES.of_mut(mad));
    }

    fn parse(mad: &Mad) -> Result<Rep, WireError> {
        let hello = Hello::parse(rep::PRIVATE.of(mad))?;
        let (local, remote) = ids(mad);
        agrees(rep::QPN.read_u32(mad), &hello)?;
        Ok(Rep {
            local: given(local)?,
            remote,
            hello,
            queues: Queues::parse(rep::QUEUES.of(mad))?,
            psn: Psn(rep::PSN.read_u32(mad)),
            depth: Depth {
                responder_resources: rep::RESPONDER_RESOURCES.read_u8(mad),
                initiator_depth: rep::INITIATOR_DEPTH.read_u8(mad),
            },
            rnr_retry: rep::RNR_RETRY.read_u8(mad),
            srq: rep::SRQ.read(mad) == 1,
        })
    }
}

impl Mra {
    pub(crate) fn emit(&self, mad: &mut Mad) {
        put_ids(mad, self.local, self.remote);
        mra::STAGE.write(mad, self.stage.code());
        mra::SERVICE_TIMEOUT.write(mad, self.service_timeout.into());
    }

    pub(crate) fn parse(mad: &Mad) -> Mra {
        let (local, remote) = ids(mad);
        let stage = Stage::from_code(mra::STAGE.read(mad));
        Mra { local, remote, stage, service_timeout: mra::SERVICE_TIMEOUT.read_u8(mad) }
    }
}

impl Rej {
    pub(crate) fn emit(&self, mad: &mut Mad) {
        put_ids(mad, self.local, self.remote);
        rej::STAGE.write(mad, self.stage.code());
        let (code, info) = self.reason.encode();
        rej::REASON.write(mad, code.into());
        if let Some(info) = info {
            rej::INFO_LEN.write(mad, rej::INFO_USED.try_into().unwrap_or(0));
            rej::INFO.of_mut(mad)[..rej::INFO_USED].copy_from_slice(&info);
        }
        if let Reason::Queues(queues) = &self.reason {
            queues.emit(rej::PRIVATE.of_mut(mad));
        }
    }

    pub(crate) fn parse(mad: &Mad) -> Rej {
        let (local, remote) = ids(mad);
        let stage = Stage::from_code(rej::STAGE.read(mad));
        let enough = rej::INFO_LEN.read(mad) >= rej::INFO_USED.try_into().unwrap_or(u64::MAX);
        let info = rej::INFO.of(mad).first_chunk().filter(|_| enough).copied();
        let code = rej::REASON.read_u16(mad);
        let reason = Reason::decode(code, info, || Queues::parse(rej::PRIVATE.of(mad)));
        Rej { local, remote, stage, reason }
    }
}

impl Reason {
    fn encode(self) -> (u16, Option<[u8; rej::INFO_USED]>) {
        let consumer = |info| (rej::CONSUMER, Some(info));
        match self {
            Reason::NoResources => (3, None),
            Reason::Timeout => (4, None),
            Reason::InvalidCommId => (6, None),
            Reason::InvalidServiceId => (8, None),
            Reason::Stale => (10, None),
            Reason::Layout(layout) => {
                let [a, b, c] = layout.to_bytes();
                consumer([1, a, b, c])
            }
            Reason::UnknownPeer => consumer([2, 0, 0, 0]),
            Reason::Refused => consumer([3, 0, 0, 0]),
            Reason::NoReceiver(epoch) => {
                let [_, a, b, c] = epoch.to_be_bytes();
                consumer([4, a, b, c])
            }
            Reason::Queues(_) => consumer([5, 0, 0, 0]),
            Reason::Other(code) => (code, None),
        }
    }

    /// `queues` reads the private data, where the reason has some.
    fn decode(
        code: u16,
        info: Option<[u8; rej::INFO_USED]>,
        queues: impl FnOnce() -> Result<Queues, WireError>,
    ) -> Reason {
        match (code, info) {
            (3, _) => Reason::NoResources,
            (4, _) => Reason::Timeout,
            (6, _) => Reason::InvalidCommId,
            (8, _) => Reason::InvalidServiceId,
            (10, _) => Reason::Stale,
            (rej::CONSUMER, Some([1, a, b, c])) => {
                Layout::from_bytes([a, b, c]).map_or(Reason::Other(code), Reason::Layout)
            }
            (rej::CONSUMER, Some([2, ..])) => Reason::UnknownPeer,
            (rej::CONSUMER, Some([3, ..])) => Reason::Refused,
            (rej::CONSUMER, Some([4, a, b, c])) => Reason::NoReceiver(u32::from_be_bytes([0, a, b, c])),
            (rej::CONSUMER, Some([5, ..])) => queues().map_or(Reason::Other(code), Reason::Queues),
            _ => Reason::Other(code),
        }
    }
}

impl Rtu {
    pub(super) fn emit(&self, mad: &mut Mad) {
        put_ids(mad, self.local, self.remote);
    }

    pub(super) fn parse(mad: &Mad) -> Rtu {
        let (local, remote) = ids(mad);
        Rtu { local, remote }
    }
}

impl Dreq {
    pub(crate) fn emit(&self, mad: &mut Mad) {
        put_ids(mad, self.local, self.remote);
        DREQ_REMOTE_QPN.write(mad, self.remote_qpn.0.into());
        DREQ_FAILED.write(mad, self.failed.into());
    }

    pub(crate) fn parse(mad: &Mad) -> Dreq {
        let (local, remote) = ids(mad);
        let remote_qpn = Qpn(DREQ_REMOTE_QPN.read_u32(mad));
        Dreq { local, remote, remote_qpn, failed: DREQ_FAILED.read(mad) == 1 }
    }
}

impl Drep {
    pub(crate) fn emit(&self, mad: &mut Mad) {
        put_ids(mad, self.local, self.remote);
    }

    pub(crate) fn parse(mad: &Mad) -> Drep {
        let (local, remote) = ids(mad);
        Drep { local, remote }
    }
}
