//! The datagrams of xrc: ibcm's, under an attribute modifier of their own (`"oxx"` and the version), with the fields of XRC.
//!
//! | message | is   | what is special (IBTA vol. 1, annex A14)                                                        |
//! |---------|------|-----------------------------------------------------------------------------------------------------|
//! | REQ     | REQ  | transport service type 3, extended transport type 1; QPN: the send queue pair                       |
//! | REP    | REP  | local EE context number: the receive queue pair of the domain                                       |
//! | MRA, REJ, DREQ, DREP | as with ibcm | REJ has one more reason: the receive queue pair is gone                        |
//!
//! Private data, the first eleven bytes as in ibcm's (version and count of queues, which of them are shared, name of the process):
//!
//! ```text
//!   REQ    11..14  the receive queue pair that the sender knows of; 0: make one
//!          14..18  epoch: a number that grows each time that the sender begins over another send queue pair
//!          18..22  the sender's exchanges with the receiver up to this one are over; 0: it has nothing to say of them
//!          22..38  the sender's domain
//!   REP   11..56  15 SRQ numbers of 3 bytes; those behind the last queue are 0
//!          56..60  the sender's label
//!          60..64  the epoch of the REQ
//! ```
//! A label is what messages to its sender have to call themselves (see the transport). It is another one for each endpoint that a process
//! makes of its peer, so it also distinguishes the next endpoint from this one.
#![forbid(unsafe_code)]

use verbs::{Qpn, SrqNum};

use super::datagram::{Reply, Request};
use super::domain::DomainId;
use super::field::{Checked, Field, Mad, Place, Run, Within, message};
use super::message::{GIVEN, REMOTE, rep, req};
use super::{CommId, Depth, Layout, MAX_QUEUES, PerQueue, ReqHead, WireError};
use crate::ProcessName;

const EXTENDED_TRANSPORT: Field = Field::cm_bits(51, 5, 3);
/// "Extended": the extended transport type says which.
const SERVICE_EXTENDED: u64 = 3;
const TRANSPORT_XRC: u64 = 1;

/// `width` bits of a REQ's private data.
const fn in_req(byte: usize, width: usize) -> Field {
    Field::cm(req::PRIVATE.0 + byte, width)
}

/// `width` bits of a REP's private data.
const fn in_rep(byte: usize, width: usize) -> Field {
    Field::cm(rep::PRIVATE.0 + byte, width)
}

/// SRQ numbers of one process.
pub type SrqNums = PerQueue<SrqNum>;

message! {
    /// "I send over this queue pair; which are your queues?"
    pub struct Req {
        fixed req::SERVICE, SERVICE_EXTENDED, Field("transport service type");
        fixed EXTENDED_TRANSPORT, TRANSPORT_XRC, Field("transport service type");
        /// Number and kinds of the requester's queues.
        pub layout: Layout = in_req(0, 24),
        /// The requester.
        pub name: ProcessName = in_req(3, 64),
        /// What every REQ says; the PSN is that of the send queue pair.
        pub head: ReqHead = Within,
        /// The send queue pair.
        pub sender: Qpn = qpn_at(req::QPN),
        /// The receive queue pair on this node that it is connected to; `None`: make one.
        pub receiver: Option<Qpn> = qpn_at(in_req(11, 24)),
        /// How often the requester has begun over another send queue pair. An exchange that does keeps its ids.
        pub epoch: u32 = in_req(14, 32),
        /// The requester's exchanges with this process, up to this one, are over, in both directions: its DREQ was never answered.
        /// [`CommId::NONE`] if there is nothing to say.
        pub ended: CommId = in_req(18, 32),
        /// The requester's domain, which may be another one than the modex named for its former incarnation.
        pub domain: DomainId = Run::cm(req::PRIVATE.0 + 22, 16),
        written req::SRQ, |_| 1;
    }
}

message! {
    /// "These are my queues; I have a handle of this receive queue pair."
    pub struct Rep {
        /// Number and kinds of the replier's queues.
        pub layout: Layout = in_rep(0, 24),
        /// The replier.
        pub name: ProcessName = in_rep(3, 64),
        /// Its shared receive queues, in queue order.
        pub srqs: SrqNums = SrqsAt,
        /// The replier's id of the exchange.
        pub local: CommId = GIVEN,
        /// The requester's id.
        pub remote: CommId = REMOTE,
        /// The receive queue pair, in place of the EE context number.
        pub receiver: Qpn = qpn_at(Field::cm(16, 24)),
        /// RDMA READs and atomics of the receive queue pair.
        pub depth: Depth = rep::DEPTH,
        /// What messages to the replier have to call themselves.
        pub label: u32 = in_rep(56, 32),
        /// The epoch that it answers.
        pub epoch: u32 = in_rep(60, 32),
        written rep::FAILOVER, |_| rep::NO_FAILOVER;
        written rep::SRQ, |_| 1;
    }
}

/// A datagram of xrc (protocol.md 8.2).
pub type Datagram = super::datagram::Datagram<Req>;
/// What such a datagram says.
pub type Message = super::datagram::Message<Req>;

impl Request for Req {
    const MAGIC: u32 = u32::from_be_bytes(*b"oxx\0");
    const HAS_RTU: bool = false;
    type Reply = Rep;

    fn head(&self) -> &ReqHead {
        &self.head
    }

    fn name(&self) -> ProcessName {
        self.name
    }
}

impl Reply for Rep {
    fn ids(&self) -> (CommId, CommId) {
        (self.local, self.remote)
    }
}

impl Place<Layout> for Field {
    fn put(&self, layout: &Layout, mad: &mut Mad) {
        let [a, b, c] = layout.to_bytes();
        self.write(mad, u32::from_be_bytes([0, a, b, c]).into());
    }

    fn take(&self, mad: &Mad) -> Result<Layout, WireError> {
        let [c, b, a, ..] = self.read(mad).to_le_bytes();
        Layout::from_bytes([a, b, c])
    }
}

/// The number of a queue pair that a connection can end at, which 0 and 1, the management QPs, are not (IBTA 3.5.10).
const fn qpn_at(field: Field) -> Checked<Qpn> {
    Checked(field, |qpn: Qpn| qpn.0 > 1, "queue pair number")
}

/// 0 is none.
impl Place<Option<Qpn>> for Checked<Qpn> {
    fn put(&self, qpn: &Option<Qpn>, mad: &mut Mad) {
        self.put(&qpn.unwrap_or(Qpn(0)), mad);
    }

    fn take(&self, mad: &Mad) -> Result<Option<Qpn>, WireError> {
        match self.0.read(mad) {
            0 => Ok(None),
            _ => self.take(mad).map(Some),
        }
    }
}

/// The SRQ numbers of a REP, as many as the layout says.
struct SrqsAt;

impl SrqsAt {
    fn fields() -> impl Iterator<Item = Field> {
        (0..MAX_QUEUES).map(|queue| in_rep(11 + 3 * queue, 24))
    }
}

impl Place<SrqNums> for SrqsAt {
    fn put(&self, srqs: &SrqNums, mad: &mut Mad) {
        SrqsAt::fields().zip(srqs.as_slice()).for_each(|(field, srq)| field.write(mad, srq.0.into()));
    }

    fn take(&self, mad: &Mad) -> Result<SrqNums, WireError> {
        let layout: Layout = in_rep(0, 24).take(mad)?;
        let srqs = SrqsAt::fields().take(layout.count()).map(|field| field.take(mad).map(SrqNum));
        SrqNums::new(&srqs.collect::<Result<Vec<_>, _>>()?).ok_or(WireError::Field("queue count"))
    }
}
