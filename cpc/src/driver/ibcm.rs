//! ibcm's backend: carries datagrams and moves queue pairs.

use std::sync::Arc;
use std::time::Instant;

use verbs::{Mtu, Psn};

use super::datagrams::{Transport, needs_grh, terms};
use super::module::{Backend, Opened};
use super::qp_set::{PeerSide, QpSets};
use super::seed;
use crate::ibcm::machine::{Call, Ibcm, Local, Machine, Remote};
use crate::manager::Query;
use crate::queues::Outbox;
use crate::wire::listener::Address;
use crate::wire::{Layout, Queues, Source};
use crate::{EndpointKey, EndpointPlan, Error, QpPlan};

/// ibcm on one port.
#[derive(Debug)]
pub(crate) struct IbcmBackend {
    plan: Arc<QpPlan>,
    address: Address,
    sets: QpSets,
}

impl Backend for IbcmBackend {
    type Protocol = Ibcm;
    type Port = Transport;

    const NAME: &'static str = "ibcm";
    const SERVES_XRC: bool = false;

    fn open(query: &Query<'_>) -> Result<Opened<Self>, Error> {
        let (plan, params) = (query.plan, &query.config.ibcm);
        let layout = Layout::new(plan.queues.iter().map(|q| q.srq.is_some()));
        let layout = layout.ok_or(Error::Plan("it needs 1 to 15 queues"))?;
        let transport = Transport::open(Self::NAME, "ibcm_unsent", plan, params.recv_count)?;
        let seed = params.seed.unwrap_or_else(seed::from_system);
        let address = transport.address();
        let machine = Machine::new(local(query, address, layout), params.clone(), seed);
        log::debug!(
            "ibcm listens on {:?} of {}, {:?}, {:?}",
            address.qpn,
            plan.port.ctx.name(),
            address.lid,
            address.incarnation
        );
        let backend = IbcmBackend { plan: plan.clone(), address, sets: QpSets::new(plan) };
        let (priority, blob) = (params.priority, address.emit().to_vec());
        Ok(Opened { machine, backend, port: transport, priority, blob })
    }

    fn add_endpoint(
        &mut self,
        machine: &mut Machine,
        transport: &mut Transport,
        endpoint: EndpointPlan,
        now: Instant,
    ) -> Result<(), String> {
        let EndpointPlan { key, peer, peer_blob, cts, .. } = endpoint;
        let address = Address::parse(&peer_blob).map_err(|e| e.to_string())?;
        self.address.check_link(&address)?;
        log::debug!("ibcm: {peer:?} listens on {:?}, {:?}", address.qpn, address.incarnation);
        self.sets.add(key, cts);
        transport.add_peer(key, Source::from(&address), peer);
        machine.add_endpoint(key, peer, address, now);
        Ok(())
    }

    fn remove_endpoint(&mut self, key: EndpointKey) {
        self.sets.remove(key);
    }

    fn call(
        &mut self,
        machine: &mut Machine,
        transport: &mut Transport,
        call: Call,
        now: Instant,
        out: &Outbox,
    ) {
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
            Call::Send { to, datagram } => transport.send(to, &datagram),
        }
    }

    fn progress(&mut self, machine: &mut Machine, transport: &mut Transport, now: Instant) -> bool {
        transport.progress(|from, bytes| machine.datagram(from, bytes, now));
        false
    }

    fn close(&mut self) {}
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

fn local(query: &Query<'_>, address: Address, layout: Layout) -> Local {
    let plan = query.plan;
    Local {
        name: query.me,
        address,
        layout,
        queues: Queues::new(plan.receive_queues.fingerprint, &plan.receive_queues.text),
        terms: terms(plan),
        srq: plan.queues.iter().any(|q| q.srq.is_some()),
    }
}
