//! What ibcm and rdmacm have in common: every endpoint has queue pairs of its own. Once it is
//! connected, the transport sends a clear-to-send over the first, and its first fragment once it
//! has the peer's; it reports first data.

use std::time::Duration;

use cpc::wire::Qpns;
use cpc::{EndpointCommand, EndpointKey};
use verbs::{Psn, Qpn};

use super::machine::{Machine, QpMachine};
use super::process::End;
use super::protocol::Protocol;
use super::{HOP, Packet, World};

pub const QUEUES: usize = 3;

/// What the transport keeps of an endpoint.
#[derive(Default)]
pub struct Pair {
    pub qpns: Option<Qpns>,
    pub psn: Option<Psn>,
    /// The other side's queue pairs and PSN, as this side has learnt of them.
    pub remote: Option<(Qpns, Psn)>,
    pub connected_at: Option<Duration>,
    /// When the peer's clear-to-send came.
    pub data_at: Option<Duration>,
    /// The device has reported that what is sent here is not acknowledged.
    pub broken: bool,
}

impl Pair {
    /// When the first fragment was posted: connected, and the peer's clear-to-send is in.
    pub fn first_fragment_at(&self) -> Option<Duration> {
        Some(self.connected_at?.max(self.data_at?))
    }

    /// The first queue pairs of both sides.
    fn ends(&self) -> Option<(Qpn, Qpn)> {
        Some((self.qpns?.first(), self.remote?.0.first()))
    }
}

impl<P: Protocol<Machine: QpMachine, End = Pair>> World<P> {
    pub fn create_qps(&mut self, me: usize, key: EndpointKey) {
        let qpns = [(); QUEUES].map(|()| Qpn(self.number()));
        self.owners.insert(qpns[0], (me, key));
        let (process, qpns) = (&mut self.processes[me], Qpns::new(&qpns).unwrap());
        process.ends.get_mut(&key).unwrap().qpns = Some(qpns);
        process.machine.qps_created(key, qpns, self.net.now);
    }

    pub fn bring_up(&mut self, me: usize, key: EndpointKey, remote: (Qpns, Psn), psn: Psn) {
        let process = &mut self.processes[me];
        let end = process.ends.get_mut(&key).unwrap();
        assert!(end.remote.is_none(), "queue pairs go up once");
        (end.remote, end.psn) = (Some(remote), Some(psn));
        process.machine.qps_up(key, self.net.now);
    }

    pub fn note_connected(&mut self, me: usize, key: EndpointKey) -> &End<P> {
        let at = self.elapsed();
        let end = self.processes[me].ends.get_mut(&key).expect("connected endpoints are present");
        assert!(end.connected_at.replace(at).is_none(), "connected is said once");
        end
    }

    /// The endpoint whose first queue pair this is, if it is still there.
    pub fn end_of_qp(&mut self, qpn: Qpn) -> Option<&mut End<P>> {
        let (me, key) = *self.owners.get(&qpn)?;
        let end = self.processes[me].ends.get_mut(&key)?;
        end.qpns.is_some_and(|qpns| qpns.first() == qpn).then_some(end)
    }

    /// The endpoint is for the peer's present life, and is not one that waits for its removal only:
    /// a Disconnected came first.
    pub fn has_usable_end(&self, me: usize, peer: usize) -> bool {
        let fresh = self.end(me, peer).is_some_and(|end| end.address == self.processes[peer].published);
        fresh && !self.state(me, peer).is_some_and(P::Machine::is_spent)
    }
}

/// Something that is sent over the first queue pair of an endpoint.
#[derive(Clone)]
pub struct Data {
    from: Qpn,
    to: Qpn,
    tries: u32,
}

/// ibcm and rdmacm, as far as tests of both have to know them.
pub trait Pairwise: Protocol<Machine: QpMachine, End = Pair, Message = Data> {
    /// After so long, every connection is up or has been reported as failed.
    const BOUND: Duration;
    /// An endpoint that its process replaces is connected anew whatever is lost. A kernel's manager
    /// says only once that an id is gone: where that word is lost, the device has to tell.
    const HEALS: bool;

    /// Its defaults, and those that the plugin registers (btl/src/mca/params/table.rs), where they
    /// differ.
    fn defaults() -> Vec<Self::Params> {
        vec![Self::Params::default()]
    }
}

impl<P: Pairwise> World<P> {
    /// Two processes that know each other.
    pub fn pair(seed: u64) -> World<P> {
        let mut world = World::new(2, seed, &P::Params::default());
        world.meet(0, 1);
        world
    }

    /// Every end that is up sends something. Where it is not acknowledged, the device says so.
    pub fn use_all(&mut self) {
        let ends = self.processes.iter().flat_map(|process| process.ends.values());
        let up: Vec<_> = ends.filter(|end| end.connected_at.is_some()).filter_map(|end| end.ends()).collect();
        up.into_iter().for_each(|(from, to)| self.post(HOP, Data { from, to, tries: 0 }));
    }

    /// The endpoint is connected: it sends its clear-to-send.
    pub(super) fn clear_to_send(&mut self, me: usize, key: EndpointKey) {
        let (from, to) = self.note_connected(me, key).ends().unwrap();
        self.post(HOP, Data { from, to, tries: 0 });
    }

    fn post(&mut self, after: Duration, data: Data) {
        self.net.schedule(after, Packet::Message(data));
    }

    /// Data reach a QP that is up towards the sender's; else the hardware repeats them a few times.
    pub(super) fn deliver_data(&mut self, Data { from, to, tries }: Data) {
        let elapsed = self.elapsed();
        if let Some(end) = self.end_of_qp(to)
            && end.ends() == Some((to, from))
        {
            end.data_at.get_or_insert(elapsed);
            let (me, key) = self.owners[&to];
            self.processes[me].machine.command(key, EndpointCommand::FirstData, self.net.now);
            self.drain(me);
        } else if tries < 3 {
            self.post(HOP * 10, Data { from, to, tries: tries + 1 });
        } else if let Some(end) = self.end_of_qp(from) {
            end.broken = true;
        }
    }
}
