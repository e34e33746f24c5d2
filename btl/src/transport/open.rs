//! Putting a transport together over one port, and what the upper layer asks of the port.
#![forbid(unsafe_code)]

use super::channel::SendRings;
use super::config::Config;
use super::device::Port;
use super::endpoint::Endpoints;
use super::endpoint::rings::Rings;
use super::endpoint::traffic::Traffic;
use super::link::Keepalive;
use super::port::queue::words;
use super::port::{OpenError, Opened};
use super::rx::{CtsRecvs, Rx};
use super::stats::{Chains, Stats};
use super::tx::Tx;
use super::tx::path::Paths;
use super::upcall::Upcalls;
use super::{Here, Transport};
use crate::protocol::layout::Layout;
use std::collections::BTreeMap;
use std::sync::Arc;
use verbs::{LKey, Mr, Pd};

impl<C> Transport<C> {
    /// Opens the port: completion queues, shared receive queues, connection managers. No thread is
    /// started and no receive is posted before the first peer is added.
    pub fn open(port: &Port, config: Config, me: u64) -> Result<Transport<C>, OpenError> {
        let Opened { port, send_queues, recv_queues, domain } = Opened::new(port, config, me)?;
        let rx = Rx::new(port.recv_room.cq().clone(), recv_queues, CtsRecvs::new(&port.pd));
        let device = port.pd.context();
        let rings =
            Rings::new(port.config.rings(device), (!device.writes_short()).then_some(port.config.max_inline));
        let signalling = port.config.signalling;
        let signalling = if device.is_iwarp() { signalling.of_iwarp() } else { signalling };
        Ok(Transport {
            endpoints: Endpoints::new(port.config.keep_timelines),
            rx,
            tx: Tx::new(
                port.send_room.cq().clone(),
                send_queues,
                words(&port.pd),
                SendRings::new(port.config.send_rings.0, port.config.send_rings.1),
                (signalling, port.config.hold.peer),
            ),
            up: Upcalls::new(),
            rings,
            renewals: Vec::new(),
            asked: BTreeMap::new(),
            ending: Vec::new(),
            here: Here::Yes,
            keepalive: Keepalive::new(port.config.keepalive),
            port,
            paths: Paths::new(domain),
            stats: Stats::default(),
        })
    }

    /// What the connection managers tell peers, for the modex.
    pub fn adverts(&self) -> &[cpc::Advert] {
        self.port.service.adverts()
    }

    /// What the connection managers have counted, datagrams that they refused among it.
    pub fn connection_counters(&self) -> Vec<(&'static str, u64)> {
        self.port.service.counters()
    }

    /// What this transport, its queues and its connection managers have counted.
    pub fn counted(&self) -> Stats {
        let mut stats = self.stats;
        stats.markers = self.tx.markers;
        stats.srq_grown = self.rx.grown();
        let Chains { lists, requests } = self.rx.slots.chains();
        (stats.recv_chains, stats.recv_chained) = (lists, requests);
        (stats.send_chains, stats.send_chained) = (self.tx.chains.lists, self.tx.chains.requests);
        stats.cq_grown = u64::from(self.port.recv_room.grown()) + u64::from(self.port.send_room.grown());
        stats.registered_high = self.port.pd.context().most_registered();
        stats.note_credits(self.endpoints.fewest_credits());
        for Traffic { sent, received } in self.traffic().into_values() {
            stats.bytes_sent += sent;
            stats.bytes_received += received;
            stats.peer_bytes_sent = stats.peer_bytes_sent.max(sent);
            stats.peer_bytes_received = stats.peer_bytes_received.max(received);
        }
        for (name, count) in self.connection_counters() {
            if name.ends_with("_raced") {
                stats.cm_raced += count;
            } else if name.ends_with("_repeated") {
                stats.cm_repeated += count;
            }
        }
        stats
    }

    /// Bytes to and from each peer, by its name; those of peers that are gone among them.
    pub fn traffic(&self) -> BTreeMap<u64, Traffic> {
        self.endpoints.traffic()
    }

    /// The protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.port.pd
    }

    /// The protection domain, for a registration of the upper layer; before the first one is lent,
    /// each queue gets send buffers of its own, which go round and round when there are no more to
    /// be had.
    ///
    /// # Errors
    /// There are none for us.
    pub fn lend(&mut self) -> Result<Arc<Pd>, verbs::PoolError> {
        self.tx.reserve()?;
        Ok(self.port.pd.clone())
    }

    /// The key of all our memory for requests of our own, on a device that needs no registration of a piece.
    pub fn key_of_all(&self) -> Option<LKey> {
        self.port.all_memory.as_ref().map(Mr::lkey)
    }

    /// Registrations that the upper layers of the process may have: a sixteenth of the device's is
    /// kept for buffers of our own.
    pub fn lendable(&self) -> u32 {
        self.port.lendable()
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        self.port.layout()
    }
}
