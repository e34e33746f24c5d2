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

use super::codec::{given, ids, put_ids, rep, req};
use super::datagram::{Reply, Request};
use super::domain::DomainId;
use super::field::{Field, Mad};
use super::{CommId, Depth, Layout, MAX_QUEUES, PerQueue, ReqHead, WireError};
use crate::ProcessName;

const EXTENDED_TRANSPORT: Field = Field::cm_bits(51, 5, 3);
const EE_CONTEXT: Field = Field::cm(16, 24);
/// "Extended": the extended transport type says which.
const SERVICE_EXTENDED: u64 = 3;
const TRANSPORT_XRC: u64 = 1;

const NAME_AT: usize = 3;
const REST_AT: usize = 11;
const NUM_LEN: usize = 3;
const REQ_EPOCH_AT: usize = REST_AT + NUM_LEN;
const ENDED_AT: usize = REQ_EPOCH_AT + 4;
const DOMAIN_AT: usize = ENDED_AT + 4;
const DOMAIN_LEN: usize = 16;
const LABEL_AT: usize = REST_AT + MAX_QUEUES * NUM_LEN;
const REP_EPOCH_AT: usize = LABEL_AT + 4;

/// SRQ numbers of one process.
pub type SrqNums = PerQueue<SrqNum>;

/// "I send over this queue pair; which are your queues?"
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// What every REQ says; the PSN is that of the send queue pair.
    pub head: ReqHead,
    /// The process that asks.
    pub name: ProcessName,
    /// Its queues.
    pub layout: Layout,
    /// Its send queue pair.
    pub sender: Qpn,
    /// The receive queue pair on this node that it is connected to; `None`: make one.
    pub receiver: Option<Qpn>,
    /// How often the requester has begun over another send queue pair. An exchange that does keeps its ids.
    pub epoch: u32,
    /// The requester's exchanges with this process, up to this one, are over, in both directions: its DREQ was never answered.
    /// [`CommId::NONE`] if there is nothing to say.
    pub ended: CommId,
    /// The requester's domain, which may be another one than the modex named for its former incarnation.
    pub domain: DomainId,
}

/// "These are my queues; I have a handle of this receive queue pair."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's id for this exchange.
    pub local: CommId,
    /// The requester's.
    pub remote: CommId,
    /// The process that replies.
    pub name: ProcessName,
    /// Its queues.
    pub layout: Layout,
    /// The receive queue pair.
    pub receiver: Qpn,
    /// Its RDMA read depth.
    pub depth: Depth,
    /// Its shared receive queues.
    pub srqs: SrqNums,
    /// What messages to the replier have to call themselves.
    pub label: u32,
    /// The epoch that it answers.
    pub epoch: u32,
}

/// A datagram of xrc.
pub type Datagram = super::datagram::Datagram<Req>;
/// A message of xrc.
pub type Message = super::datagram::Message<Req>;

impl Request for Req {
    /// `"oxx"`.
    const MAGIC: u32 = u32::from_be_bytes(*b"oxx\0");
    const HAS_RTU: bool = false;
    type Reply = Rep;

    fn head(&self) -> &ReqHead {
        &self.head
    }

    fn name(&self) -> ProcessName {
        self.name
    }

    fn emit(&self, mad: &mut Mad) {
        self.head.emit(mad);
        req::QPN.write(mad, self.sender.0.into());
        req::TRANSPORT_SERVICE.write(mad, SERVICE_EXTENDED);
        EXTENDED_TRANSPORT.write(mad, TRANSPORT_XRC);
        req::SRQ.write(mad, 1);
        let data = req::PRIVATE.of_mut(mad);
        put_sender(data, self.layout, self.name);
        put_num(data, REST_AT, self.receiver.map_or(0, |qpn| qpn.0));
        put_word(data, REQ_EPOCH_AT, self.epoch);
        put_word(data, ENDED_AT, self.ended.0);
        data[DOMAIN_AT..DOMAIN_AT + DOMAIN_LEN].copy_from_slice(&self.domain.0);
    }

    fn parse(mad: &Mad) -> Result<Req, WireError> {
        let service = (req::TRANSPORT_SERVICE.read(mad), EXTENDED_TRANSPORT.read(mad));
        if service != (SERVICE_EXTENDED, TRANSPORT_XRC) {
            return Err(WireError::Field("transport service type"));
        }
        let (layout, name) = sender(req::PRIVATE.of(mad))?;
        let receiver = Qpn(num(req::PRIVATE.of(mad), REST_AT));
        Ok(Req {
            head: ReqHead::parse(mad)?,
            name,
            layout,
            sender: real(Qpn(req::QPN.read_u32(mad)))?,
            receiver: if receiver == Qpn(0) { None } else { Some(real(receiver)?) },
            epoch: word(req::PRIVATE.of(mad), REQ_EPOCH_AT),
            ended: CommId(word(req::PRIVATE.of(mad), ENDED_AT)),
            domain: domain(req::PRIVATE.of(mad)),
        })
    }
}

impl Reply for Rep {
    fn ids(&self) -> (CommId, CommId) {
        (self.local, self.remote)
    }

    fn emit(&self, mad: &mut Mad) {
        put_ids(mad, self.local, self.remote);
        EE_CONTEXT.write(mad, self.receiver.0.into());
        rep::RESPONDER_RESOURCES.write(mad, self.depth.responder_resources.into());
        rep::INITIATOR_DEPTH.write(mad, self.depth.initiator_depth.into());
        rep::FAILOVER.write(mad, rep::NO_FAILOVER);
        rep::SRQ.write(mad, 1);
        let data = rep::PRIVATE.of_mut(mad);
        put_sender(data, self.layout, self.name);
        let places = (REST_AT..LABEL_AT).step_by(NUM_LEN);
        places.zip(self.srqs.as_slice()).for_each(|(at, srq)| put_num(data, at, srq.0));
        put_word(data, LABEL_AT, self.label);
        put_word(data, REP_EPOCH_AT, self.epoch);
    }

    fn parse(mad: &Mad) -> Result<Rep, WireError> {
        let data = rep::PRIVATE.of(mad);
        let (layout, name) = sender(data)?;
        let mut srqs = [SrqNum(0); MAX_QUEUES];
        let places = (REST_AT..LABEL_AT).step_by(NUM_LEN);
        places.zip(&mut srqs).for_each(|(at, srq)| *srq = SrqNum(num(data, at)));
        let srqs = SrqNums::new(&srqs[..layout.count()]).ok_or(WireError::Field("queue count"))?;
        let (local, remote) = ids(mad);
        Ok(Rep {
            local: given(local)?,
            remote,
            name,
            layout,
            receiver: real(Qpn(EE_CONTEXT.read_u32(mad)))?,
            depth: Depth {
                responder_resources: rep::RESPONDER_RESOURCES.read_u8(mad),
                initiator_depth: rep::INITIATOR_DEPTH.read_u8(mad),
            },
            srqs,
            label: word(data, LABEL_AT),
            epoch: word(data, REP_EPOCH_AT),
        })
    }
}

fn put_sender(data: &mut [u8], layout: Layout, name: ProcessName) {
    data.fill(0);
    data[..NAME_AT].copy_from_slice(&layout.to_bytes());
    data[NAME_AT..REST_AT].copy_from_slice(&name.0.to_be_bytes());
}

fn sender(data: &[u8]) -> Result<(Layout, ProcessName), WireError> {
    let head: &[u8; REST_AT] = data.first_chunk().ok_or(WireError::Length(data.len()))?;
    let name: [u8; 8] = head[NAME_AT..].try_into().unwrap_or_default();
    Ok((Layout::from_bytes([head[0], head[1], head[2]])?, ProcessName(u64::from_be_bytes(name))))
}

/// Numbers of queue pairs and SRQs have 24 bits.
fn put_num(data: &mut [u8], at: usize, num: u32) {
    data[at..at + NUM_LEN].copy_from_slice(&num.to_be_bytes()[1..]);
}

fn num(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, data[at], data[at + 1], data[at + 2]])
}

fn put_word(data: &mut [u8], at: usize, word: u32) {
    data[at..at + 4].copy_from_slice(&word.to_be_bytes());
}

fn word(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

fn domain(data: &[u8]) -> DomainId {
    let mut domain = [0; DOMAIN_LEN];
    domain.copy_from_slice(&data[DOMAIN_AT..DOMAIN_AT + DOMAIN_LEN]);
    DomainId(domain)
}

/// QPs 0 and 1 are the management QPs: no connection ends there (IBTA 3.5.10).
fn real(qpn: Qpn) -> Result<Qpn, WireError> {
    if qpn.0 < 2 { Err(WireError::Field("queue pair number")) } else { Ok(qpn) }
}
