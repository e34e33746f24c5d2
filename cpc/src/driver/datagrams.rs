//! The datagram service under ibcm and xrc: one UD queue pair, its receives, the way to every port.
//!
//! A datagram that finds no room in the send queue waits in a backlog; one that can't be sent at all is dropped and counted:
//! the machine repeats what matters. The queue pair stays until its last datagram has completed, so that a DREP or REJ sent in
//! the last moment is not torn from the device.

use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::Arc;

use slab::Slab;
use verbs::{
    Access, Ah, Buf, CompChannel, Completion, Completions, Cq, Gid, InitAttr, Lid, LinkLayer, Pool,
    PoolConfig, Posted, Psn, QKey, Qp, QpCap, QpInit, QpKind, SendFlags, Wc,
};

use super::module::Port;
use super::seed;
use crate::exchange::Terms;
use crate::wire::datagram::{Datagram, Request};
use crate::wire::listener::Address;
use crate::wire::{Depth, MAD_LEN, Source};
use crate::{ConnectCause, ConnectError, EndpointKey, Error, GidPair, ProcessName, QpPlan};

/// Key of the datagram service. The top bit stays clear: a key with it set is the privileged one of the sending QP (IBTA 10.2.5).
pub const Q_KEY: QKey = QKey(0x1ee7_c0de & 0x7fff_ffff);
/// A UD receive leaves room for a global routing header, whether one comes or not (IBTA 11.4.1.2).
const GRH_LEN: usize = 40;
const RECV_LEN: usize = GRH_LEN + MAD_LEN;
/// Datagrams in the send queue; more wait in the backlog.
const SEND_DEPTH: u32 = 128;
/// Marks the `wr_id` of sends.
const SEND_BIT: u64 = 1 << 63;
/// Polls for the flush of the receives at the end, before they are left to the device.
const FLUSH_POLLS: u32 = 10_000;

/// The way to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Route {
    lid: Lid,
    /// The GID there, and the row of ours.
    gid: Option<(Gid, u8)>,
}

#[derive(Debug)]
pub(crate) struct Transport {
    /// The manager's name, for messages.
    name: &'static str,
    /// What `dropped` is called.
    unsent_counter: &'static str,
    plan: Arc<QpPlan>,
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    channel: Arc<CompChannel>,
    pool: Pool,
    receives: Slab<Posted>,
    sends: Slab<Posted>,
    /// To be looked at.
    fetched: Completions<32>,
    backlog: VecDeque<(Source, [u8; MAD_LEN])>,
    routes: HashMap<Route, Ah>,
    /// The peers of endpoints that datagrams can be sent to, as far as is known.
    peers: HashMap<EndpointKey, Peer>,
    /// Where the device refused to send to, and why.
    unsent: Vec<(Source, verbs::Error)>,
    /// Datagrams that could not be sent. Should stay 0.
    dropped: u64,
    /// Why nothing is sent or awaited any more: the device is gone.
    broken: Option<verbs::Error>,
}

/// The peer of an endpoint.
#[derive(Debug)]
struct Peer {
    at: Source,
    name: ProcessName,
    /// Its connection is up, and needs no datagrams before its end.
    up: bool,
}

impl Transport {
    /// Makes the queue pair and posts its receives: from now on datagrams are kept.
    pub(crate) fn open(
        name: &'static str,
        unsent_counter: &'static str,
        plan: &Arc<QpPlan>,
        receives: u32,
    ) -> Result<Transport, Error> {
        let receives = receives.clamp(1, plan.port.ctx.query_device()?.max_qp_wr.max(1));
        let channel = CompChannel::create(&plan.port.ctx)?;
        let cq = Cq::create(&plan.port.ctx, receives + SEND_DEPTH, Some(&channel))?;
        let qp = create_qp(plan, &cq, receives)?;
        let config = PoolConfig {
            buf_len: u32::try_from(RECV_LEN).unwrap_or(u32::MAX),
            align: 64,
            grow_by: receives + SEND_DEPTH,
            max: receives + SEND_DEPTH,
            access: Access::LOCAL_WRITE,
        };
        let mut transport = Transport {
            name,
            unsent_counter,
            pool: Pool::new(&plan.pd, config),
            plan: plan.clone(),
            qp,
            cq,
            channel,
            receives: Slab::new(),
            sends: Slab::new(),
            fetched: Completions::new(),
            backlog: VecDeque::new(),
            routes: HashMap::new(),
            peers: HashMap::new(),
            unsent: Vec::new(),
            dropped: 0,
            broken: None,
        };
        for _ in 0..receives {
            let buf = transport.pool.take()?;
            transport.post_receive(buf)?;
        }
        transport.qp.to_rtr_ud()?;
        transport.qp.to_rts_ud(Psn(0))?;
        Ok(transport)
    }

    fn post_receive(&mut self, buf: Buf) -> Result<(), verbs::Error> {
        let place = self.receives.vacant_entry();
        let wr_id = place.key() as u64;
        match self.qp.post_recv(wr_id, buf) {
            Ok(posted) => {
                place.insert(posted);
                Ok(())
            }
            Err((buf, error)) => {
                self.pool.put(buf);
                Err(error)
            }
        }
    }

    /// Where it is reached, by this incarnation of the process.
    pub(crate) fn address(&self) -> Address {
        let port = &self.plan.port;
        Address {
            port: port.num,
            mtu: port.mtu as u8,
            ethernet: port.link_layer == LinkLayer::Ethernet,
            lid: port.lid,
            qpn: self.qp.num(),
            incarnation: seed::incarnation(),
            gid: port.gid,
        }
    }

    /// An endpoint's peer is to be reached at this address.
    pub(crate) fn add_peer(&mut self, key: EndpointKey, to: Source, peer: ProcessName) {
        self.peers.insert(key, Peer { at: to, name: peer, up: false });
    }

    /// Sends a datagram, now or when there is room.
    pub(crate) fn send(&mut self, to: Source, datagram: &Datagram<impl Request>) {
        let mut mad = [0; MAD_LEN];
        datagram.emit(&mut mad);
        self.backlog.push_back((to, mad));
        self.flush();
    }

    fn flush(&mut self) {
        while self.broken.is_none() && self.sends.len() < SEND_DEPTH as usize {
            let Some((to, mad)) = self.backlog.pop_front() else { return };
            if let Err(error) = self.post(to, &mad) {
                self.dropped += 1;
                log::debug!(
                    "{}: a datagram to qp {:#x} at lid {} was not sent: {error}",
                    self.name,
                    to.qpn.0,
                    to.lid.0
                );
                // A repetition would meet with the same.
                if let Error::Verbs(error) = error
                    && error.call() == "ibv_post_send"
                {
                    self.unsent.push((to, error));
                }
            }
        }
    }

    fn post(&mut self, to: Source, mad: &[u8; MAD_LEN]) -> Result<(), Error> {
        let route = self.route(to)?;
        let mut buf = self.pool.take()?;
        if let Some(room) = buf.as_mut_slice().first_chunk_mut() {
            *room = *mad;
        }
        let place = self.sends.vacant_entry();
        let wr_id = SEND_BIT | place.key() as u64;
        let len = u32::try_from(MAD_LEN).unwrap_or(u32::MAX);
        let ah = self.routes.get(&route).ok_or(Error::Plan("no route"))?;
        match self.qp.post_send_ud(wr_id, buf, len, ah, to.qpn, Q_KEY, SendFlags::SIGNALED) {
            Ok(posted) => {
                place.insert(posted);
                Ok(())
            }
            Err((buf, error)) => {
                self.pool.put(buf);
                Err(error.into())
            }
        }
    }

    /// The way to a port; its address handle is made once and kept.
    fn route(&mut self, to: Source) -> Result<Route, Error> {
        let way = self.plan.way_to(to.lid, to.gid, to.our_gid);
        let route = Route { lid: to.lid, gid: way.gid.map(|(gid, row, _)| (gid, row)) };
        if !self.routes.contains_key(&route) {
            self.routes.insert(route, Ah::create(&self.plan.pd, &way)?);
        }
        Ok(route)
    }

    /// Takes in what was fetched. `take` gets each datagram.
    pub(crate) fn progress(&mut self, take: impl FnMut(Source, &[u8])) {
        if let Err(error) = self.complete_fetched(take) {
            self.fail(error);
        }
        self.flush();
    }

    #[cold]
    fn fail(&mut self, error: verbs::Error) {
        log::error!("{}: no more connections on {}: {error}", self.name, self.plan.port.ctx.name());
        self.broken = Some(error);
    }

    /// Arms the channel for more before it polls: what comes in between raises an event.
    fn fetch_or_fail(&mut self) -> Result<bool, verbs::Error> {
        if self.broken.is_some() {
            return Ok(false);
        }
        while self.channel.next_event()? {}
        self.cq.arm(false)?;
        Ok(self.cq.poll(&mut self.fetched)? != 0)
    }

    /// Each is looked at, whatever comes of another: it is the only word on its buffer.
    fn complete_fetched(&mut self, mut take: impl FnMut(Source, &[u8])) -> Result<(), verbs::Error> {
        let mut outcome = Ok(());
        while let Some(done) = self.fetched.take() {
            outcome = self.complete(done, &mut take).and(outcome);
        }
        outcome
    }

    fn complete(
        &mut self,
        done: Completion,
        take: &mut impl FnMut(Source, &[u8]),
    ) -> Result<(), verbs::Error> {
        let wc = *done;
        let index = usize::try_from(wc.wr_id() & !SEND_BIT).unwrap_or(usize::MAX);
        if wc.wr_id() & SEND_BIT != 0 {
            if !wc.is_ok() {
                self.dropped += 1;
                let (name, status) = (self.name, wc.status());
                log::warn!("{name}: a datagram was not sent ({status:?}); connections may not come up");
            }
            if let Some(buf) = self.sends.try_remove(index).and_then(|posted| posted.completed(done).ok()) {
                self.pool.put(buf);
            }
            return Ok(());
        }
        let Some(buf) = self.receives.try_remove(index).and_then(|posted| posted.completed(done).ok()) else {
            return Ok(());
        };
        if wc.is_ok() {
            take(source(&wc, &buf), payload(&wc, &buf));
            self.post_receive(buf)
        } else {
            self.pool.put(buf);
            Ok(())
        }
    }

    /// The endpoints of these peers can't be connected, for this reason.
    fn lose(
        &mut self,
        error: &verbs::Error,
        is_lost: impl Fn(&Peer) -> bool,
    ) -> Vec<(EndpointKey, ConnectError)> {
        let gone = self.peers.extract_if(|_, peer| is_lost(peer));
        let cause = || ConnectCause::Verbs(error.to_string());
        gone.map(|(key, peer)| (key, ConnectError { peer: peer.name, cause: cause() })).collect()
    }

    /// Takes the receives back: flushes them and waits a bounded number of polls for that. A poll that fails is one of them.
    fn take_back(&mut self) -> Result<(), verbs::Error> {
        self.qp.to_error()?;
        let mut outcome = Ok(());
        for _ in 0..FLUSH_POLLS {
            if self.receives.is_empty() && self.sends.is_empty() {
                break;
            }
            outcome = self.flush_one_batch().or(outcome);
            std::thread::yield_now();
        }
        outcome
    }

    fn flush_one_batch(&mut self) -> Result<(), verbs::Error> {
        self.complete_fetched(|_, _| {})?;
        self.cq.poll(&mut self.fetched)?;
        self.complete_fetched(|_, _| {})
    }
}

impl Port for Transport {
    fn fd(&self) -> RawFd {
        self.channel.fd()
    }

    fn fetch(&mut self) -> bool {
        self.fetch_or_fail().unwrap_or_else(|error| {
            self.fail(error);
            true
        })
    }

    fn remove_peer(&mut self, key: EndpointKey) {
        self.peers.remove(&key);
    }

    fn connected(&mut self, key: EndpointKey) {
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.up = true;
        }
    }

    fn take_lost(&mut self) -> Vec<(EndpointKey, ConnectError)> {
        let mut lost = Vec::new();
        for (to, error) in std::mem::take(&mut self.unsent) {
            lost.extend(self.lose(&error, |peer| peer.at == to));
        }
        if let Some(error) = self.broken.clone() {
            lost.extend(self.lose(&error, |peer| !peer.up));
        }
        lost
    }

    fn is_quiet(&self) -> bool {
        self.broken.is_some() || (self.backlog.is_empty() && self.sends.is_empty())
    }

    fn unsent(&self) -> Option<(&'static str, u64)> {
        Some((self.unsent_counter, self.dropped))
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        if let Err(error) = self.take_back() {
            log::debug!("{}: closing the datagram queue pair: {error}", self.name);
        }
        let left = self.receives.len() + self.sends.len();
        if left > 0 {
            log::warn!("{}: the device keeps {left} datagram buffers", self.name);
        }
    }
}

/// What this side says of the queue pairs of a plan.
pub(crate) fn terms(plan: &QpPlan) -> Terms {
    // 0xffff is the default partition, full membership (IBTA 10.9.1.2).
    let pkey = plan.port.ctx.query_pkey(plan.port.num, plan.port.pkey_index).unwrap_or(0xffff);
    Terms {
        depth: Depth { responder_resources: plan.max_dest_rd_atomic, initiator_depth: plan.max_rd_atomic },
        pkey,
        sl: plan.sl,
        ack_timeout: plan.timeout,
        retry_count: plan.retry_cnt,
        rnr_retry: plan.rnr_retry(),
    }
}

fn create_qp(plan: &Arc<QpPlan>, cq: &Arc<Cq>, receives: u32) -> Result<Arc<Qp>, Error> {
    let cap = QpCap {
        max_send_wr: SEND_DEPTH,
        max_recv_wr: receives,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
    };
    let (send_cq, recv_cq) = (cq.clone(), cq.clone());
    let init = QpInit { kind: QpKind::Ud, send_cq, recv_cq, srq: None, cap, sig_all: false };
    let qp = Qp::create(&plan.pd, &init)?;
    qp.to_init(&InitAttr { access: Access::empty(), qkey: Q_KEY, ..plan.init_attr() })?;
    Ok(qp)
}

/// Who sent a datagram, and to which GID of ours: an answer goes back over the row that it came to.
fn source(wc: &Wc, buf: &Buf) -> Source {
    let gids = buf.as_slice().first_chunk().filter(|_| wc.has_grh()).and_then(gids_of);
    Source {
        qpn: wc.src_qp(),
        lid: wc.slid(),
        gid: gids.map(|gids| gids.theirs),
        our_gid: gids.map(|gids| gids.ours),
    }
}

/// The GIDs of sender and receiver in the 40 bytes before a datagram. InfiniBand and RoCE v1 have a global routing header there, RoCE v2 an
/// IPv6 header, both with the source in bytes 8 to 24 and the destination behind it (IBTA 8.3, RFC 8200); RoCE v2 over IPv4 has that header in
/// the last 20 bytes and leaves the first undefined (IBTA annex A17.4.5.2), and its GIDs are IPv4 addresses mapped into IPv6.
fn gids_of(header: &[u8; GRH_LEN]) -> Option<GidPair> {
    let ipv4 = &header[20..];
    if is_ipv4_header(ipv4) {
        Some(GidPair { theirs: mapped(&ipv4[12..16]), ours: mapped(&ipv4[16..20]) })
    } else if header[0] >> 4 == 6 {
        let gid = |at: usize| Gid(std::array::from_fn(|i| header[at + i]));
        Some(GidPair { theirs: gid(8), ours: gid(24) })
    } else {
        None
    }
}

/// An IPv4 address as a GID.
fn mapped(ipv4: &[u8]) -> Gid {
    let mut gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
    gid[12..].copy_from_slice(ipv4);
    Gid(gid)
}

/// Version 4, 20 bytes, and a right checksum (RFC 791): the tail of an IPv6 header, which is its destination, has not all three but
/// by a chance of one in millions.
fn is_ipv4_header(bytes: &[u8]) -> bool {
    let words = bytes.chunks_exact(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    bytes[0] == 0x45 && (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// What a datagram says; nothing if the device claims an impossible length.
fn payload<'a>(wc: &Wc, buf: &'a Buf) -> &'a [u8] {
    let end = usize::try_from(wc.byte_len()).unwrap_or(usize::MAX);
    buf.as_slice().get(GRH_LEN..end).unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As rxe of Linux 6.1 delivers it: a header of RFC 791 from 10.77.0.1 to 10.77.0.2 behind 20 bytes of anything.
    fn over_ipv4() -> [u8; GRH_LEN] {
        let mut header = [0x66; GRH_LEN];
        let ip = [0x45, 0, 1, 0x2c, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2];
        header[20..].copy_from_slice(&ip);
        let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        header[30..32].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    #[test]
    fn the_ends_of_a_datagram_over_ipv4_are_its_mapped_addresses() {
        let gids = gids_of(&over_ipv4()).unwrap();
        let words = [gids.theirs, gids.ours].map(|gid| std::net::Ipv6Addr::from(gid.0).to_string());
        assert_eq!(words, ["::ffff:10.77.0.1", "::ffff:10.77.0.2"]);
    }

    #[test]
    fn the_ends_of_a_datagram_with_a_global_routing_header_or_over_ipv6_are_its_source_and_destination() {
        let mut header = [0; GRH_LEN];
        header[0] = 0x60;
        let source = std::array::from_fn(|i| i as u8 + 1);
        header[8..24].copy_from_slice(&source);
        // A destination that looks like the beginning of an IPv4 header, without its checksum.
        header[24..].copy_from_slice(&[0x45; 16]);
        assert_eq!(gids_of(&header), Some(GidPair { theirs: Gid(source), ours: Gid([0x45; 16]) }));
    }

    #[test]
    fn bytes_that_are_no_header_name_no_sender() {
        assert_eq!(gids_of(&[0; GRH_LEN]), None);
        let mut damaged = over_ipv4();
        damaged[33] ^= 1;
        damaged[0] = 0;
        assert_eq!(gids_of(&damaged), None);
    }
}
