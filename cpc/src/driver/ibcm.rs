//! ibcm's backend: carries datagrams and moves queue pairs.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use verbs::{LinkLayer, Mtu, Psn};

use super::datagrams::{Transport, needs_grh};
use super::module::Backend;
use super::qp_set::{PeerSide, QpSets};
use super::seed;
use crate::config::datagram::Params;
use crate::ibcm::machine::{Call, Ibcm, Local, Machine, Remote};
use crate::manager::Query;
use crate::queues::Outbox;
use crate::wire::listener::Address;
use crate::wire::{Depth, Incarnation, Layout, Queues, Source};
use crate::{ConnectError, EndpointKey, EndpointPlan, Error, QpPlan};

/// ibcm on one port.
#[derive(Debug)]
pub(crate) struct IbcmBackend {
    plan: Arc<QpPlan>,
    params: Params,
    address: Address,
    transport: Transport,
    sets: QpSets,
}

impl Backend for IbcmBackend {
    type Protocol = Ibcm;

    const NAME: &'static str = "ibcm";
    const SERVES_XRC: bool = false;

    fn open(query: &Query<'_>) -> Result<(Self, Machine), Error> {
        let (plan, params) = (query.plan, &query.config.ibcm);
        let layout = Layout::new(plan.queues.iter().map(|q| q.srq.is_some()));
        let layout = layout.ok_or(Error::Plan("it needs 1 to 15 queues"))?;
        let transport = Transport::open(Self::NAME, plan, params.recv_count)?;
        let seed = params.seed.unwrap_or_else(seed::from_system);
        let address = address(plan, &transport, seed::incarnation());
        let machine = Machine::new(local(query, address, layout), params.clone(), seed);
        log::debug!(
            "ibcm listens on {:?} of {}, {:?}, {:?}",
            address.qpn,
            plan.port.ctx.name(),
            address.lid,
            address.incarnation
        );
        let sets = QpSets::new(plan);
        Ok((IbcmBackend { plan: plan.clone(), params: params.clone(), address, transport, sets }, machine))
    }

    fn advert(&self) -> (u8, Vec<u8>) {
        (self.params.priority, self.address.emit().to_vec())
    }

    fn fd(&self) -> RawFd {
        self.transport.fd()
    }

    fn add_endpoint(
        &mut self,
        machine: &mut Machine,
        endpoint: EndpointPlan,
        now: Instant,
    ) -> Result<(), String> {
        let EndpointPlan { key, peer, peer_blob, cts, .. } = endpoint;
        let address = Address::parse(&peer_blob).map_err(|e| e.to_string())?;
        self.address.check_link(&address)?;
        log::debug!("ibcm: {peer:?} listens on {:?}, {:?}", address.qpn, address.incarnation);
        self.sets.add(key, cts);
        self.transport.add_peer(key, Source::from(&address), peer);
        machine.add_endpoint(key, peer, address, now);
        Ok(())
    }

    fn silence(&mut self, key: EndpointKey) {
        self.transport.remove_peer(key);
    }

    fn remove_endpoint(&mut self, key: EndpointKey) {
        self.sets.remove(key);
    }

    fn call(&mut self, machine: &mut Machine, call: Call, now: Instant, out: &Outbox) {
        match call {
            Call::CreateQps { key } => machine.qps_created(key, self.sets.create_announced(key, out), now),
            Call::BringUp { key, remote, address, psn } => {
                match self.bring_up(key, &remote, &address, psn) {
                    // The main thread has taken them down: what it wants instead, removal or the word that its end has failed, is on
                    // its way, and says it better than a failure that is none.
                    Err(error) if self.sets.is_taken_down(key) => log::debug!("ibcm: {error}"),
                    outcome => machine.qps_up(key, outcome, now),
                }
            }
            Call::Send { to, datagram } => self.transport.send(to, &datagram),
        }
    }

    fn progress(&mut self, machine: &mut Machine, now: Instant) -> bool {
        self.transport.progress(|from, bytes| machine.datagram(from, bytes, now));
        false
    }

    fn take_lost(&mut self) -> Vec<(EndpointKey, ConnectError)> {
        self.transport.take_lost()
    }

    fn close(&mut self) {}

    fn is_quiet(&self) -> bool {
        self.transport.is_quiet()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("ibcm_unsent", self.transport.dropped)]
    }
}

impl IbcmBackend {
    fn bring_up(&self, key: EndpointKey, remote: &Remote, peer: &Address, psn: Psn) -> Result<(), String> {
        let set = self.sets.get(key)?;
        let far = PeerSide {
            qpns: remote.qpns.as_slice(),
            psn: remote.psn,
            mtu: Mtu::from_code(peer.mtu.into()).unwrap_or(self.plan.port.mtu),
            lid: peer.lid,
            gid: Some(peer.gid).filter(|gid| needs_grh(&self.plan, gid)),
            responder_resources: remote.depth.responder_resources,
            initiator_depth: remote.depth.initiator_depth,
        };
        set.bring_up(&self.plan, &far, psn)
    }
}

pub(crate) fn address(plan: &QpPlan, transport: &Transport, incarnation: Incarnation) -> Address {
    Address {
        port: plan.port.num,
        mtu: plan.port.mtu as u8,
        ethernet: plan.port.link_layer == LinkLayer::Ethernet,
        lid: plan.port.lid,
        qpn: transport.qpn(),
        incarnation,
        gid: plan.port.gid,
    }
}

fn local(query: &Query<'_>, address: Address, layout: Layout) -> Local {
    let plan = query.plan;
    // 0xffff is the default partition, full membership (IBTA 10.9.1.2).
    let pkey = plan.port.ctx.query_pkey(plan.port.num, plan.port.pkey_index).unwrap_or(0xffff);
    Local {
        name: query.me,
        address,
        layout,
        queues: Queues::new(plan.receive_queues.fingerprint, &plan.receive_queues.text),
        depth: Depth { responder_resources: plan.max_dest_rd_atomic, initiator_depth: plan.max_rd_atomic },
        pkey,
        sl: plan.sl,
        ack_timeout: plan.timeout,
        retry_count: plan.retry_cnt,
        rnr_retry: plan.queues.iter().map(|q| q.rnr_retry).max().unwrap_or(0),
        srq: plan.queues.iter().any(|q| q.srq.is_some()),
    }
}
