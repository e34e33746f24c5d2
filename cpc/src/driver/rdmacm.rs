//! rdmacm's backend: makes the calls on ids of the connection manager, moves queue pairs, and passes on what comes back.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use verbs::cm::{self, CmEvent, CmEventKind, CmId, ConnParam, EventChannel, Token};
use verbs::{Gid, Qp, QpState, Qpn};

use super::listener;
use super::module::{Backend, Desk, Parts, Port};
use super::qp_set::QpSets;
use crate::config::rdmacm::Params;
use crate::manager::Query;
use crate::queues::Outbox;
use crate::rdmacm::machine::{Call, IdEvent, Local, Machine, RdmaCm, Refused};
use crate::wire::ip::{Address, Listening};
use crate::wire::refusal::Refusal;
use crate::wire::{Hello, Qpns};
use crate::{Config, EndpointKey, EndpointPlan, Error, Event, GidPair, QpPlan, QueuePlan};

/// Why a layout does not fit an iWARP device.
const NO_RNR: &str = "an iWARP device cannot wait for receives (it has no RNR), so all queues must be per-peer ones (P), as in configs/iwarp.conf";

/// An id, and what its peer asked for.
#[derive(Debug)]
struct HeldId {
    id: CmId,
    theirs: ConnParam,
    /// It asks, so what establishes it is the answer.
    asks: bool,
}

/// Where RDMA-CM tells of its ids. It repeats what is lost, and says which id cannot be connected.
#[derive(Debug)]
pub(crate) struct Events {
    channel: Arc<EventChannel>,
    /// The event to be looked at, or why there is none.
    fetched: Option<Result<CmEvent, verbs::Error>>,
    /// The last call failed: what it would say next is not asked in the same turn.
    has_failed: bool,
}

impl Port for Events {
    fn fd(&self) -> RawFd {
        self.channel.fd()
    }

    fn fetch(&mut self) -> bool {
        if std::mem::take(&mut self.has_failed) {
            return false;
        }
        self.fetched = self.channel.next_event().transpose();
        self.has_failed = matches!(self.fetched, Some(Err(_)));
        self.fetched.is_some()
    }
}

/// rdmacm on one port.
#[derive(Debug)]
pub(crate) struct RdmaCmBackend {
    plan: Arc<QpPlan>,
    params: Params,
    /// Where we listen.
    listening: Listening,
    /// RoCE: the addresses of endpoints over the network that both are on, ours and theirs.
    ways: HashMap<EndpointKey, (IpAddr, SocketAddr)>,
    iwarp: bool,
    sets: QpSets,
    /// Closed in the order of their names.
    ids: BTreeMap<Token, HeldId>,
    listeners: Vec<CmId>,
    /// Why no connection comes up any more.
    deaf: Option<String>,
}

impl Backend for RdmaCmBackend {
    type Protocol = RdmaCm;
    type Port = Events;

    const NAME: &'static str = "rdmacm";
    const SERVES_XRC: bool = false;

    fn params(config: &Config) -> (&Params, u8, Option<u64>) {
        (&config.rdmacm, config.rdmacm.priority, config.rdmacm.seed)
    }

    fn open(query: &Query<'_>, params: &Params, seed: u64) -> Result<Parts<Self>, Error> {
        let (plan, layout) = (query.plan, query.plan.layout()?);
        let iwarp = plan.port.ctx.is_iwarp();
        if iwarp && plan.has_srq() {
            return Err(Error::Plan(NO_RNR));
        }
        let channel = EventChannel::create(plan.port.ctx.driver())?;
        let (listeners, sockets) = listener::open(plan, params, &channel)?;
        let (&socket, further) = sockets.split_first().ok_or(Error::Plan("it listens nowhere"))?;
        let address = Address { socket, incarnation: u32::try_from(seed >> 32).unwrap_or(1) };
        let listening = Listening { address, further: further.to_vec() };
        log::debug!("rdmacm listens on {sockets:?} of {}", plan.port.ctx.name());
        let blob = listening.emit();
        let local = Local { name: query.me, address, layout, id_per_qp: iwarp };
        let backend = RdmaCmBackend {
            plan: plan.clone(),
            params: params.clone(),
            listening,
            ways: HashMap::new(),
            iwarp,
            sets: QpSets::new(plan),
            ids: BTreeMap::new(),
            listeners,
            deaf: None,
        };
        let port = Events { channel, fetched: None, has_failed: false };
        Ok(Parts { backend, port, local, blob })
    }

    fn add_endpoint(&mut self, desk: Desk<'_, Self>, endpoint: EndpointPlan) -> Result<(), String> {
        if let Some(why) = &self.deaf {
            return Err(why.clone());
        }
        let EndpointPlan { key, peer, peer_blob, cts, gids, stream, .. } = endpoint;
        let theirs = Listening::parse(&peer_blob).map_err(|e| e.to_string())?;
        self.sets.add(key, cts);
        if let Some(way) = gids.and_then(|gids| self.way(&theirs, gids)) {
            log::debug!("rdmacm: {peer:?} is reached from {} at {}", way.0, way.1);
            self.ways.insert(key, way);
        }
        desk.machine.add_endpoint(key, peer, theirs.address, desk.now);
        desk.machine.goes_on_with(key, stream);
        Ok(())
    }

    fn remove_endpoint(&mut self, key: EndpointKey) {
        self.ways.remove(&key);
        self.sets.remove(key);
    }

    fn call(&mut self, desk: Desk<'_, Self>, call: Call) {
        let Desk { machine, port, now, out } = desk;
        match call {
            Call::Resolve { key, id, to } => {
                let usual = (self.listening.address.socket.ip(), to.socket);
                let way = self.ways.get(&key).copied().unwrap_or(usual);
                self.resolve(machine, &port.channel, id, way, now);
            }
            Call::Route { id } => {
                let patience = self.params.resolve_timeout;
                self.call_id(machine, id, now, |held| held.id.resolve_route(patience));
            }
            Call::CreateQps { key } => machine.qps_created(key, self.create_qps(key, out), now),
            Call::Connect { id, hello } => {
                let param = self.wishes(hello.qpns.first());
                self.call_id(machine, id, now, |held| held.id.connect(param, &private_data(&hello)));
            }
            Call::BringUp { key, id, remote } => {
                let outcome =
                    if self.iwarp { self.sets.announce(key, out) } else { self.bring_up(key, id, &remote) };
                machine.qps_up(key, outcome, now);
            }
            Call::Accept { id, hello } => {
                let wishes = self.wishes(hello.qpns.first());
                self.call_id(machine, id, now, |held| {
                    held.id.accept(agreed(wishes, &held.theirs), &private_data(&hello))
                });
            }
            Call::Join { id, join } => {
                let param = self.wishes(join.from[1]);
                self.call_id(machine, id, now, |held| held.id.connect(param, &join.emit()));
            }
            Call::AcceptJoin { id, qpn } => {
                let wishes = self.wishes(qpn);
                self.call_id(machine, id, now, |held| held.id.accept(agreed(wishes, &held.theirs), &[]));
            }
            Call::Establish { id } => {
                if let Some(Err(error)) = self.ids.get(&id).map(|held| held.id.establish()) {
                    machine.event(id, IdEvent::Unconfirmed(&error.to_string()), now);
                }
            }
            Call::Refuse { id, why } => self.refuse(id, why),
            // The peer may have gone meanwhile, or be up already: the events say what counts.
            Call::Notify { id } => self.try_call(id, CmId::notify_data),
            Call::Disconnect { id } => self.try_call(id, CmId::disconnect),
            Call::Close { id } => drop(self.ids.remove(&id)),
            Call::Order { key, first } => out.push(Event::Order { key, first }),
        }
    }

    fn progress(&mut self, desk: Desk<'_, Self>) {
        match desk.port.fetched.take() {
            Some(Ok(event)) => self.take(desk.machine, event, desk.now),
            Some(Err(error)) => self.deafened(desk, &error),
            None => {}
        }
    }

    fn close(&mut self) {
        self.listeners.clear();
    }
}

impl RdmaCmBackend {
    /// What the connection manager has to say is not to be had: what waits for that fails, and what comes after.
    #[cold]
    fn deafened(&mut self, desk: Desk<'_, Self>, error: &verbs::Error) {
        if self.deaf.is_some() {
            return log::debug!("{error}");
        }
        log::error!("{error}; no connection comes up any more");
        let why = error.to_string();
        desk.machine.events_lost(&why, desk.now);
        self.deaf = Some(why);
    }

    /// Makes a call on an id; a failure goes to the machine.
    fn call_id(
        &self,
        machine: &mut Machine,
        id: Token,
        now: Instant,
        call: impl FnOnce(&HeldId) -> Result<(), verbs::Error>,
    ) {
        if let Some(Err(error)) = self.ids.get(&id).map(call) {
            machine.event(id, IdEvent::Broken(&error.to_string()), now);
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

    /// The addresses that are a pair of GIDs, if both sides listen there.
    fn way(&self, theirs: &Listening, gids: GidPair) -> Option<(IpAddr, SocketAddr)> {
        let ip = |gid: Gid| IpAddr::from(gid.0).to_canonical();
        Some((self.listening.at(ip(gids.ours))?.ip(), theirs.at(ip(gids.theirs))?))
    }

    fn resolve(
        &mut self,
        machine: &mut Machine,
        channel: &Arc<EventChannel>,
        id: Token,
        (from, to): (IpAddr, SocketAddr),
        now: Instant,
    ) {
        let from = SocketAddr::new(from, 0);
        let made = CmId::create(channel, id).and_then(|made| {
            made.resolve_addr(from, to, self.params.resolve_timeout)?;
            Ok(made)
        });
        match made {
            Ok(made) => {
                let held = HeldId { id: made, theirs: ConnParam::default(), asks: true };
                self.ids.insert(id, held);
            }
            Err(error) => machine.event(id, IdEvent::Broken(&error.to_string()), now),
        }
    }

    /// On iWARP the QPs may be of no use, and others made in their place: they are announced when they serve.
    fn create_qps(&mut self, key: EndpointKey, out: &Outbox) -> Result<Qpns, String> {
        if self.iwarp { self.sets.create(key) } else { self.sets.create_announced(key, out) }
    }

    /// The attributes are those of the id, for every QP; they differ in the peer's QPN.
    fn bring_up(&self, key: EndpointKey, id: Token, remote: &Qpns) -> Result<(), String> {
        let qps = self.sets.get(key)?;
        let id = self.ids.get(&id).ok_or("the connection is gone")?;
        for ((qp, queue), &qpn) in qps.iter().zip(&self.plan.queues).zip(remote.as_slice()) {
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
            rnr_retry_count: plan.rnr_retry().min(7),
            srq: plan.has_srq(),
            qpn,
        }
    }

    fn take(&mut self, machine: &mut Machine, event: CmEvent, now: Instant) {
        let CmEvent { token, kind, conn, private_data, request } = event;
        if let Some(mut id) = request {
            log::trace!("a connection request with {} bytes: {private_data:02x?}", private_data.len());
            let token = machine.draw_id();
            id.set_token(token);
            self.ids.insert(token, HeldId { id, theirs: conn, asks: false });
            return machine.request(token, &private_data, now);
        }
        match kind {
            CmEventKind::AddrResolved => self.address_resolved(machine, token, now),
            CmEventKind::DeviceRemoval => {
                log::error!("{}: the device is being removed", self.plan.port.ctx.name());
                machine.device_removed(now);
            }
            CmEventKind::AddrChange => log::warn!("the address of {} has moved", self.plan.port.ctx.name()),
            CmEventKind::TimewaitExit | CmEventKind::Other(_) | CmEventKind::ConnectRequest => {}
            kind => {
                let broken = broken(kind);
                let asks = self.ids.get(&token).is_some_and(|held| held.asks);
                // On iWARP the answer to a request is that the connection is there.
                let answers = self.iwarp && asks && kind == CmEventKind::Established;
                let kind = if answers { CmEventKind::ConnectResponse } else { kind };
                if let Some(event) = id_event(kind, &private_data, &broken) {
                    machine.event(token, event, now);
                }
            }
        }
    }

    fn address_resolved(&self, machine: &mut Machine, token: Token, now: Instant) {
        let Some(held) = self.ids.get(&token) else { return };
        match listener::belongs(&self.plan, &held.id) {
            Ok(()) => machine.event(token, IdEvent::AddrResolved, now),
            Err(why) => machine.event(token, IdEvent::Broken(&format!("its address: {why}")), now),
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
        (cm::Refusal::NotListening, None) => Refused::NotListening,
        (cm::Refusal::Consumer, None) => Refused::Other(CONSUMER),
        (cm::Refusal::Other(reason), None) => Refused::Other(reason),
    }
}
