//! rdmacm's driver: between the machine and the connection manager. Thin: it makes the calls that the machine asks for, moves
//! queue pairs, and passes on what comes back.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use verbs::cm::{self, CmEvent, CmEventKind, CmId, ConnParam, EventChannel, Token};
use verbs::{Qp, QpState, Qpn};

use super::qp_set::QpSet;
use super::{listener, seed};
use crate::config::rdmacm::Params;
use crate::manager::{Advert, Component, Module, Query};
use crate::queues::Outbox;
use crate::rdmacm::machine::{Action, IdEvent, Local, Machine, Refused};
use crate::wire::ip::Address;
use crate::wire::refusal::Refusal;
use crate::wire::{Hello, Layout, Qpns};
use crate::{
    ConnectCause, ConnectError, CtsRecv, EndpointKey, EndpointPlan, Error, Event, QpPlan, QueuePlan,
};

const NAME: &str = "rdmacm";

/// The component.
#[derive(Debug)]
pub struct RdmaCm;

impl Component for RdmaCm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn serves_xrc(&self) -> bool {
        false
    }

    fn query(&self, query: &Query<'_>) -> Result<Box<dyn Module>, Error> {
        Ok(Box::new(RdmaCmModule::open(query)?))
    }
}

/// Why a layout does not fit an iWARP device.
const NO_RNR: &str = "an iWARP device cannot wait for receives (it has no RNR), so all queues must be per-peer ones (P), as in configs/iwarp.conf";

/// What the driver keeps of an endpoint.
#[derive(Debug, Default)]
struct Held {
    cts: Option<CtsRecv>,
    qps: Option<QpSet>,
}

/// An id, and what its peer asked for.
#[derive(Debug)]
struct HeldId {
    id: CmId,
    theirs: ConnParam,
    /// It asks, so what establishes it is the answer.
    asks: bool,
}

/// rdmacm on one port.
#[derive(Debug)]
struct RdmaCmModule {
    plan: Arc<QpPlan>,
    params: Params,
    address: Address,
    iwarp: bool,
    machine: Machine,
    held: HashMap<EndpointKey, Held>,
    // Ids before the channel that they hold.
    ids: HashMap<Token, HeldId>,
    listener: Option<CmId>,
    channel: Arc<EventChannel>,
}

impl RdmaCmModule {
    fn open(query: &Query<'_>) -> Result<RdmaCmModule, Error> {
        let (plan, params) = (query.plan, &query.config.rdmacm);
        let layout = Layout::new(plan.queues.iter().map(|q| q.srq.is_some()));
        let layout = layout.ok_or(Error::Plan("it needs 1 to 15 queues"))?;
        let iwarp = plan.port.ctx.is_iwarp();
        if iwarp && plan.queues.iter().any(|queue| queue.srq.is_some()) {
            return Err(Error::Plan(NO_RNR));
        }
        let channel = EventChannel::create(plan.port.ctx.driver())?;
        let (listener, socket) = listener::open(plan, params, &channel)?;
        let seed = params.seed.unwrap_or_else(seed::from_system);
        let address = Address { socket, incarnation: u32::try_from(seed >> 32).unwrap_or(1) };
        log::debug!("rdmacm listens on {socket} of {}", plan.port.ctx.name());
        Ok(RdmaCmModule {
            plan: plan.clone(),
            params: params.clone(),
            address,
            iwarp,
            machine: Machine::new(
                Local { name: query.me, address, layout, id_per_qp: iwarp },
                params.clone(),
                seed,
            ),
            held: HashMap::new(),
            ids: HashMap::new(),
            listener: Some(listener),
            channel,
        })
    }

    /// Performs what the machine wants done, answers included, until it wants nothing more.
    fn perform_all(&mut self, now: Instant, out: &Outbox) {
        while let Some(action) = self.machine.poll_action() {
            self.perform(action, now, out);
        }
    }

    fn perform(&mut self, action: Action, now: Instant, out: &Outbox) {
        match action {
            Action::Resolve { id, to } => self.resolve(id, to, now),
            Action::Route { id } => {
                let patience = self.params.resolve_timeout;
                self.call(id, now, |held| held.id.resolve_route(patience));
            }
            Action::CreateQps { key } => {
                let qpns = self.create_qps(key, out);
                self.machine.qps_created(key, qpns, now);
            }
            Action::Connect { id, hello } => {
                let param = self.wishes(hello.qpns.first());
                self.call(id, now, |held| held.id.connect(param, &private_data(&hello)));
            }
            Action::BringUp { key, id, remote } => {
                let outcome =
                    if self.iwarp { self.announce(key, out) } else { self.bring_up(key, id, &remote) };
                self.machine.qps_up(key, outcome, now);
            }
            Action::Accept { id, hello } => {
                let wishes = self.wishes(hello.qpns.first());
                self.call(id, now, |held| {
                    held.id.accept(agreed(wishes, &held.theirs), &private_data(&hello))
                });
            }
            Action::Join { id, join } => {
                let param = self.wishes(join.from[1]);
                self.call(id, now, |held| held.id.connect(param, &join.emit()));
            }
            Action::AcceptJoin { id, qpn } => {
                let wishes = self.wishes(qpn);
                self.call(id, now, |held| held.id.accept(agreed(wishes, &held.theirs), &[]));
            }
            Action::Establish { id } => self.call(id, now, |held| held.id.establish()),
            Action::Refuse { id, why } => self.refuse(id, why),
            // The peer may have gone meanwhile, or be up already: the events say what counts.
            Action::Notify { id } => self.try_call(id, CmId::notify_data),
            Action::Disconnect { id } => self.try_call(id, CmId::disconnect),
            Action::Close { id } => drop(self.ids.remove(&id)),
            Action::Order { key, first } => out.push(Event::Order { key, first }),
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

    /// Makes a call on an id; a failure goes to the machine.
    fn call(&mut self, id: Token, now: Instant, call: impl FnOnce(&HeldId) -> Result<(), verbs::Error>) {
        if let Some(Err(error)) = self.ids.get(&id).map(call) {
            self.machine.event(id, IdEvent::Broken(&error.to_string()), now);
        }
    }

    fn try_call(&self, id: Token, call: impl FnOnce(&CmId) -> Result<(), verbs::Error>) {
        if let Some(Err(error)) = self.ids.get(&id).map(|held| call(&held.id)) {
            log::debug!("{error}");
        }
    }

    fn refuse(&mut self, id: Token, why: Refusal) {
        log::debug!("a connection request is refused: {why}");
        self.try_call(id, |id| id.reject(&why.emit()));
        self.ids.remove(&id);
    }

    fn resolve(&mut self, id: Token, to: Address, now: Instant) {
        let from = SocketAddr::new(self.address.socket.ip(), 0);
        let made = CmId::create(&self.channel, id).and_then(|made| {
            made.resolve_addr(from, to.socket, self.params.resolve_timeout)?;
            Ok(made)
        });
        match made {
            Ok(made) => {
                let held = HeldId { id: made, theirs: ConnParam::default(), asks: true };
                self.ids.insert(id, held);
            }
            Err(error) => self.machine.event(id, IdEvent::Broken(&error.to_string()), now),
        }
    }

    /// The QPs are announced here, before the machine can ask for RTR: no message can come in on an unknown QPN. On iWARP they may be
    /// of no use, and others made in their place, so that is left to [`Self::announce`].
    fn create_qps(&mut self, key: EndpointKey, out: &Outbox) -> Result<Qpns, String> {
        let held = self.held.get_mut(&key).ok_or("the endpoint is gone")?;
        let cts = if self.iwarp { None } else { held.cts.take() };
        let (set, cts) = QpSet::create(&self.plan, cts)?;
        if !self.iwarp {
            out.push(Event::QpsCreated { key, qps: set.qps().to_vec(), cts });
        }
        let qpns = Qpns::new(&set.qpns()).ok_or("more queue pairs than fit the private data")?;
        held.qps = Some(set);
        Ok(qpns)
    }

    /// iWARP: these QPs it will be. Nothing can have come in on them: either we have not accepted yet, or we send first.
    fn announce(&mut self, key: EndpointKey, out: &Outbox) -> Result<(), String> {
        let held = self.held.get_mut(&key).ok_or("the endpoint is gone")?;
        let set = held.qps.as_ref().ok_or("the queue pairs are gone")?;
        let cts = held.cts.take().map(|cts| set.post_cts(cts)).transpose()?;
        out.push(Event::QpsCreated { key, qps: set.qps().to_vec(), cts });
        Ok(())
    }

    /// The attributes are those of the id, for every QP; they differ in the peer's QPN.
    fn bring_up(&self, key: EndpointKey, id: Token, remote: &Qpns) -> Result<(), String> {
        let set = self.held.get(&key).and_then(|h| h.qps.as_ref()).ok_or("the queue pairs are gone")?;
        let id = self.ids.get(&id).ok_or("the connection is gone")?;
        for ((qp, queue), &qpn) in set.qps().iter().zip(&self.plan.queues).zip(remote.as_slice()) {
            self.bring_up_one(qp, queue, &id.id, qpn).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn bring_up_one(&self, qp: &Qp, queue: &QueuePlan, id: &CmId, remote: Qpn) -> Result<(), verbs::Error> {
        let plan = &self.plan;
        let receive = id.prepare(QpState::Rtr)?.to_qpn(remote).with_min_rnr_timer(plan.min_rnr_timer);
        qp.to_prepared(&receive.with_reads_served(plan.max_dest_rd_atomic))?;
        let send = id.prepare(QpState::Rts)?.with_retries(plan.timeout, plan.retry_cnt, queue.rnr_retry);
        qp.to_prepared(&send.with_reads_outstanding(plan.max_rd_atomic))
    }

    /// What we ask for with a connection.
    fn wishes(&self, qpn: Qpn) -> ConnParam {
        let plan = &self.plan;
        ConnParam {
            responder_resources: plan.max_dest_rd_atomic,
            initiator_depth: plan.max_rd_atomic,
            retry_count: plan.retry_cnt.min(7),
            rnr_retry_count: plan.queues.iter().map(|q| q.rnr_retry).max().unwrap_or(0).min(7),
            srq: plan.queues.iter().any(|q| q.srq.is_some()),
            qpn,
        }
    }

    fn take(&mut self, event: CmEvent, now: Instant) {
        let CmEvent { token, kind, conn, private_data, request } = event;
        if let Some(mut id) = request {
            log::trace!("a connection request with {} bytes: {private_data:02x?}", private_data.len());
            let token = self.machine.draw_id();
            id.set_token(token);
            self.ids.insert(token, HeldId { id, theirs: conn, asks: false });
            return self.machine.request(token, &private_data, now);
        }
        match kind {
            CmEventKind::AddrResolved => self.address_resolved(token, now),
            CmEventKind::DeviceRemoval => {
                log::error!("{}: the device is being removed", self.plan.port.ctx.name());
                self.machine.device_removed(now);
            }
            CmEventKind::AddrChange => log::warn!("the address of {} has moved", self.plan.port.ctx.name()),
            CmEventKind::TimewaitExit | CmEventKind::Other(_) | CmEventKind::ConnectRequest => {}
            kind => {
                let broken = broken(kind);
                let answers = self.iwarp && self.ids.get(&token).is_some_and(|held| held.asks);
                let kind = if answers { as_answer(kind) } else { kind };
                if let Some(event) = id_event(kind, &private_data, &broken) {
                    self.machine.event(token, event, now);
                }
            }
        }
    }

    fn address_resolved(&mut self, token: Token, now: Instant) {
        let Some(held) = self.ids.get(&token) else { return };
        match listener::belongs(&self.plan, &held.id) {
            Ok(()) => self.machine.event(token, IdEvent::AddrResolved, now),
            Err(why) => self.machine.event(token, IdEvent::Broken(&format!("its address: {why}")), now),
        }
    }
}

/// What goes into request and reply.
fn private_data(hello: &Hello) -> [u8; cm::REQUEST_DATA] {
    let mut data = [0; cm::REQUEST_DATA];
    hello.emit(&mut data);
    data
}

/// The depths that both sides can keep.
fn agreed(ours: ConnParam, theirs: &ConnParam) -> ConnParam {
    ConnParam {
        responder_resources: ours.responder_resources.min(theirs.responder_resources),
        initiator_depth: ours.initiator_depth.min(theirs.initiator_depth),
        ..ours
    }
}

/// What an event that ends an exchange says.
fn broken(kind: CmEventKind) -> String {
    let text = |errno: i32| std::io::Error::from_raw_os_error(errno);
    match kind {
        CmEventKind::AddrError(errno) => format!("its address cannot be resolved: {}", text(errno)),
        CmEventKind::RouteError(errno) => format!("there is no route to it: {}", text(errno)),
        CmEventKind::ConnectError(errno) => format!("the connection could not be made: {}", text(errno)),
        CmEventKind::Unreachable(errno) => format!("it does not answer: {}", text(errno)),
        _ => String::new(),
    }
}

/// On iWARP the answer to a request is that the connection is there.
fn as_answer(kind: CmEventKind) -> CmEventKind {
    if kind == CmEventKind::Established { CmEventKind::ConnectResponse } else { kind }
}

fn id_event<'a>(kind: CmEventKind, data: &'a [u8], broken: &'a str) -> Option<IdEvent<'a>> {
    Some(match kind {
        CmEventKind::RouteResolved => IdEvent::RouteResolved,
        CmEventKind::ConnectResponse => IdEvent::Response(data),
        CmEventKind::Established => IdEvent::Established,
        CmEventKind::Disconnected => IdEvent::Disconnected,
        CmEventKind::Rejected(refusal) => IdEvent::Refused(refused(refusal, data)),
        CmEventKind::AddrError(_)
        | CmEventKind::RouteError(_)
        | CmEventKind::ConnectError(_)
        | CmEventKind::Unreachable(_) => IdEvent::Broken(broken),
        _ => return None,
    })
}

/// Reason of a refusal by a program, as InfiniBand numbers it.
const CONSUMER: i32 = 28;

fn refused(refusal: cm::Refusal, data: &[u8]) -> Refused {
    match (refusal, Refusal::parse(data)) {
        (_, Some(why)) => Refused::ByPeer(why),
        (cm::Refusal::NobodyListens, None) => Refused::NotListening,
        (cm::Refusal::Consumer, None) => Refused::Other(CONSUMER),
        (cm::Refusal::Other(reason), None) => Refused::Other(reason),
    }
}

impl Module for RdmaCmModule {
    fn advert(&self) -> Advert {
        let blob = self.address.emit().to_vec();
        Advert { name: NAME.to_owned(), priority: self.params.priority.min(100), blob }
    }

    fn uses_cts(&self) -> bool {
        true
    }

    fn fds(&self) -> Vec<RawFd> {
        vec![self.channel.fd()]
    }

    fn add_endpoint(&mut self, endpoint: EndpointPlan, now: Instant, out: &Outbox) {
        let EndpointPlan { key, peer, peer_blob, cts, .. } = endpoint;
        match Address::parse(&peer_blob) {
            Ok(address) => {
                self.held.insert(key, Held { cts, qps: None });
                self.machine.add_endpoint(key, peer, address, now);
                self.perform_all(now, out);
            }
            Err(why) => {
                let error = ConnectError { peer, cause: ConnectCause::Address(why.to_string()) };
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
        self.machine.remove_endpoint(key, now);
        self.perform_all(now, out);
        self.held.remove(&key);
    }

    fn abandon_endpoint(&mut self, key: EndpointKey, now: Instant, out: &Outbox) {
        self.machine.abandon_endpoint(key, now);
        self.perform_all(now, out);
    }

    fn first_data(&mut self, key: EndpointKey, now: Instant, out: &Outbox) {
        self.machine.first_data(key, now);
        self.perform_all(now, out);
    }

    fn progress(&mut self, now: Instant, out: &Outbox) {
        loop {
            match self.channel.next_event() {
                Ok(Some(event)) => self.take(event, now),
                Ok(None) => return,
                Err(error) => return log::error!("{error}; no connection comes up any more"),
            }
            self.perform_all(now, out);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.machine.poll_timeout()
    }

    fn timeout(&mut self, now: Instant, out: &Outbox) {
        self.machine.handle_timeout(now);
        self.perform_all(now, out);
    }

    fn close(&mut self, now: Instant, out: &Outbox) {
        self.listener = None;
        self.machine.close(now);
        self.perform_all(now, out);
        self.held.clear();
    }

    fn is_quiet(&self) -> bool {
        self.machine.leaving() == 0
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.machine.stats().rows().to_vec()
    }
}
