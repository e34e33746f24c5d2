//! ibcm's driver: between the machine and the world. Thin: it carries datagrams, moves queue pairs, and passes on what the
//! machine says.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use verbs::{LinkLayer, Mtu, Psn, QpState};

use super::datagrams::{Transport, needs_grh};
use super::qp_set::{Far, QpSet};
use super::seed;
use crate::config::datagram::Params;
use crate::ibcm::machine::{Action, Local, Machine, Remote};
use crate::manager::{Advert, Component, Module, Query};
use crate::queues::Outbox;
use crate::wire::listener::Address;
use crate::wire::{Depth, Incarnation, Layout, Qpns, Queues, Source};
use crate::{ConnectCause, ConnectError, CtsRecv, EndpointKey, EndpointPlan, Error, Event, QpPlan};

const NAME: &str = "ibcm";

/// The component.
#[derive(Debug)]
pub struct Ibcm;

impl Component for Ibcm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn serves_xrc(&self) -> bool {
        false
    }

    fn query(&self, query: &Query<'_>) -> Result<Box<dyn Module>, Error> {
        Ok(Box::new(IbcmModule::open(query)?))
    }
}

/// What the driver keeps of an endpoint.
#[derive(Debug, Default)]
struct Held {
    cts: Option<CtsRecv>,
    qps: Option<QpSet>,
}

/// ibcm on one port.
#[derive(Debug)]
struct IbcmModule {
    plan: Arc<QpPlan>,
    params: Params,
    address: Address,
    machine: Machine,
    transport: Transport,
    held: HashMap<EndpointKey, Held>,
}

impl IbcmModule {
    fn open(query: &Query<'_>) -> Result<IbcmModule, Error> {
        let (plan, params) = (query.plan, &query.config.ibcm);
        let layout = Layout::new(plan.queues.iter().map(|q| q.srq.is_some()));
        let layout = layout.ok_or(Error::Plan("it needs 1 to 15 queues"))?;
        let transport = Transport::open(NAME, plan, params.recv_count)?;
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
        Ok(IbcmModule {
            plan: plan.clone(),
            params: params.clone(),
            address,
            machine,
            transport,
            held: HashMap::new(),
        })
    }

    /// Performs what the machine wants done, answers included, until it wants nothing more.
    fn perform_all(&mut self, now: Instant, out: &Outbox) {
        loop {
            while let Some(action) = self.machine.poll_action() {
                self.perform(action, now, out);
            }
            let lost = self.transport.take_lost();
            if lost.is_empty() {
                return;
            }
            for (key, error) in lost {
                self.machine.abandon_endpoint(key, now);
                self.tell_times(key, out);
                out.push(Event::Failed { key, error });
            }
        }
    }

    fn perform(&mut self, action: Action, now: Instant, out: &Outbox) {
        match action {
            Action::CreateQps { key } => {
                let qpns = self.create_qps(key, out);
                self.machine.qps_created(key, qpns, now);
            }
            Action::BringUp { key, remote, address, psn } => {
                let outcome = self.bring_up(key, &remote, &address, psn);
                match outcome {
                    // The main thread has taken them down: what it wants instead, removal or the word that its end has failed, is on
                    // its way, and says it better than a failure that is none.
                    Err(error) if self.is_taken_down(key) => log::debug!("ibcm: {error}"),
                    outcome => self.machine.qps_up(key, outcome, now),
                }
            }
            Action::Send { to, datagram } => self.transport.send(to, &datagram),
            Action::Connected { key } => {
                self.tell_times(key, out);
                out.push(Event::Connected { key });
            }
            Action::Failed { key, error } => {
                self.tell_times(key, out);
                out.push(Event::Failed { key, error });
            }
            Action::Disconnected { key } => out.push(Event::Disconnected { key }),
            Action::UnknownPeer { peer } => out.push(Event::UnknownPeer { peer }),
        }
    }

    fn tell_times(&self, key: EndpointKey, out: &Outbox) {
        if let Some(steps) = self.machine.timeline(key) {
            out.push(Event::Timeline { key, steps: Box::new(steps.clone()) });
        }
    }

    /// The QPs are announced here, before the machine can ask for RTR: no message can come in on an unknown QPN.
    fn create_qps(&mut self, key: EndpointKey, out: &Outbox) -> Result<Qpns, String> {
        let held = self.held.get_mut(&key).ok_or("the endpoint is gone")?;
        let (set, cts) = QpSet::create(&self.plan, held.cts.take())?;
        out.push(Event::QpsCreated { key, qps: set.qps().to_vec(), cts });
        let qpns = Qpns::new(&set.qpns()).ok_or("more queue pairs than fit a message")?;
        held.qps = Some(set);
        Ok(qpns)
    }

    fn bring_up(&self, key: EndpointKey, remote: &Remote, peer: &Address, psn: Psn) -> Result<(), String> {
        let set = self.held.get(&key).and_then(|h| h.qps.as_ref()).ok_or("the queue pairs are gone")?;
        let far = Far {
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

    fn is_taken_down(&self, key: EndpointKey) -> bool {
        let qps = self.held.get(&key).and_then(|h| h.qps.as_ref()).map_or(&[][..], QpSet::qps);
        qps.iter().any(|qp| matches!(qp.state(), Ok(QpState::Err)))
    }

    fn parse_address(&self, blob: &[u8]) -> Result<Address, String> {
        let address = Address::parse(blob).map_err(|e| e.to_string())?;
        self.address.check_link(&address).map(|()| address)
    }
}

impl Module for IbcmModule {
    fn advert(&self) -> Advert {
        let blob = self.address.emit().to_vec();
        Advert { name: NAME.to_owned(), priority: self.params.priority.min(100), blob }
    }

    fn uses_cts(&self) -> bool {
        true
    }

    fn fds(&self) -> Vec<RawFd> {
        vec![self.transport.fd()]
    }

    fn add_endpoint(&mut self, endpoint: EndpointPlan, now: Instant, out: &Outbox) {
        let EndpointPlan { key, peer, peer_blob, cts, .. } = endpoint;
        match self.parse_address(&peer_blob) {
            Ok(address) => {
                log::debug!("ibcm: {peer:?} listens on {:?}, {:?}", address.qpn, address.incarnation);
                self.held.insert(key, Held { cts, qps: None });
                self.transport.add_peer(key, Source::from(&address), peer);
                self.machine.add_endpoint(key, peer, address, now);
                self.perform_all(now, out);
            }
            Err(why) => {
                let error = ConnectError { peer, cause: ConnectCause::Address(why) };
                out.push(Event::Failed { key, error });
            }
        }
    }

    fn connect(&mut self, key: EndpointKey, now: Instant, out: &Outbox) {
        self.machine.connect(key, now);
        self.perform_all(now, out);
    }

    /// An endpoint has queue pairs of its own; it has no way that others share.
    fn renew(&mut self, _: EndpointKey, _: Instant, _: &Outbox) {}

    fn remove_endpoint(&mut self, key: EndpointKey, now: Instant, out: &Outbox) {
        self.transport.remove_peer(key);
        self.machine.remove_endpoint(key, now);
        self.perform_all(now, out);
        self.held.remove(&key);
    }

    fn abandon_endpoint(&mut self, key: EndpointKey, now: Instant, out: &Outbox) {
        self.transport.remove_peer(key);
        self.machine.abandon_endpoint(key, now);
        self.perform_all(now, out);
    }

    fn first_data(&mut self, key: EndpointKey, now: Instant, out: &Outbox) {
        self.machine.first_data(key, now);
        self.perform_all(now, out);
    }

    fn progress(&mut self, now: Instant, out: &Outbox) {
        let machine = &mut self.machine;
        self.transport.progress(|from, bytes| machine.datagram(from, bytes, now));
        self.perform_all(now, out);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.machine.poll_timeout()
    }

    fn timeout(&mut self, now: Instant, out: &Outbox) {
        self.machine.handle_timeout(now);
        self.perform_all(now, out);
    }

    fn close(&mut self, now: Instant, out: &Outbox) {
        self.machine.close(now);
        self.perform_all(now, out);
        self.held.clear();
    }

    fn is_quiet(&self) -> bool {
        self.machine.leaving() == 0 && self.transport.is_quiet()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut rows = self.machine.stats().rows().to_vec();
        rows.push(("ibcm_unsent", self.transport.dropped));
        rows
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
