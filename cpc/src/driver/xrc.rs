//! xrc's backend: carries datagrams and moves queue pairs of the domain.

use std::collections::HashMap;
use std::sync::Arc;

use verbs::{AsyncEvent, EventKind, Psn, Qp, QpInit, QpKind, QpState, Qpn, Subject, XrcRecvQp};

use super::datagrams::{Transport, terms};
use super::module::{Backend, Desk, Parts, tell_times};
use super::qp_set::PeerSide;
use crate::config::datagram::Params;
use crate::manager::{Claim, Query};
use crate::wire::domain::Address;
use crate::wire::listener::Facing;
use crate::wire::xrc::SrqNums;
use crate::wire::{CommId, Source};
use crate::xrc::machine::{Call, JoinError, Local, PathId, Xrc};
use crate::{Config, EndpointPlan, Error, Event, QpPlan, Route, XrcPlan};

/// xrc on one port.
#[derive(Debug)]
pub(crate) struct XrcBackend {
    plan: Arc<QpPlan>,
    xrc: XrcPlan,
    address: Address,
    senders: HashMap<PathId, Arc<Qp>>,
    handles: HashMap<CommId, Receiver>,
}

/// A handle of a receive queue pair of the domain. The device tells every handle of its events,
/// those of one process among them; the process that made the queue pair acts upon each kind, once:
/// a queue pair in error does not come back.
#[derive(Debug)]
struct Receiver {
    qp: Arc<XrcRecvQp>,
    /// We have made it, and this is what has been told of it.
    made: Option<Vec<EventKind>>,
}

impl Backend for XrcBackend {
    type Protocol = Xrc;
    type Port = Transport;

    const NAME: &'static str = "xrc";
    const SERVES_XRC: bool = true;

    fn params(config: &Config) -> (&Params, u8, Option<u64>) {
        (&config.xrc, config.xrc.priority, config.xrc.seed)
    }

    fn open(query: &Query<'_>, params: &Params, _: u64) -> Result<Parts<Self>, Error> {
        let plan = query.plan;
        let xrc = plan.xrc.clone().ok_or(Error::Plan("it has no X queues"))?;
        let port = Transport::open(Self::NAME, "xrc_unsent", plan, params.recv_count)?;
        let address = Address { listener: port.address(), domain: xrc.id };
        let srqs = SrqNums::new(&xrc.srqs).ok_or(Error::Plan("it needs 1 to 15 shared receive queues"))?;
        let local = Local { name: query.me, address, layout: plan.layout()?, srqs, terms: terms(plan) };
        log::debug!("xrc listens on {:?} of {}", address.listener.qpn, plan.port.ctx.name());
        let (senders, handles) = (HashMap::new(), HashMap::new());
        let backend = XrcBackend { plan: plan.clone(), xrc, address, senders, handles };
        Ok(Parts { backend, port, local, blob: address.emit().to_vec() })
    }

    fn add_endpoint(&mut self, desk: Desk<'_, Self>, endpoint: EndpointPlan) -> Result<(), String> {
        let EndpointPlan { key, peer, peer_blob, label, gids, .. } = endpoint;
        let address = Address::parse(&peer_blob).map_err(|e| e.to_string())?;
        self.address.listener.check_link(&address.listener)?;
        let Facing { address: listener, our_gid } = Facing::over(address.listener, gids);
        let address = Facing { address: Address { listener, ..address }, our_gid };
        desk.port.add_peer(key, Source::from(&address.listener()), peer);
        desk.machine.add_endpoint(key, peer, address, label, desk.now);
        Ok(())
    }

    fn call(&mut self, desk: Desk<'_, Self>, call: Call) {
        let Desk { machine, port, now, out } = desk;
        match call {
            Call::MakeSender { path } => {
                let made = self.make_sender(path).map_err(|error| error.to_string());
                machine.sender_made(path, made, now);
            }
            Call::RaiseSender { path, receiver, psn, depth, address } => {
                // Nothing comes in on it but acknowledgements: the number that it expects does not matter.
                let far = PeerSide { address: address.listener(), psn: Psn(0), depth };
                machine.sender_raised(path, self.raise_sender(path, receiver, psn, &far), now);
            }
            Call::DropSender { path } => drop(self.senders.remove(&path)),
            Call::Join { link, epoch, receiver, sender, psn, depth, address } => {
                let outcome = match receiver {
                    Some(receiver) => self.open_receiver(receiver).map(|qp| Receiver { qp, made: None }),
                    None => self
                        .make_receiver(sender, &PeerSide { address: address.listener(), psn, depth })
                        .map(|qp| Receiver { qp, made: Some(Vec::new()) }),
                };
                let outcome = outcome.map(|handle| self.keep(link, handle));
                machine.joined(link, epoch, outcome, now);
            }
            Call::Release { link } => drop(self.handles.remove(&link)),
            Call::Send { to, datagram } => port.send(to, &datagram),
            Call::Route { key, path, srqs, label } => {
                if let Some(qp) = self.senders.get(&path).cloned() {
                    tell_times(machine, key, out);
                    let route = Route { path: path.0, qp, srqs: srqs.as_slice().to_vec(), label };
                    out.push(Event::Routed { key, route });
                }
            }
        }
    }

    fn progress(&mut self, desk: Desk<'_, Self>) {
        desk.port.progress(|from, bytes| desk.machine.datagram(from, bytes, desk.now));
    }

    fn claim(&mut self, event: &AsyncEvent) -> Claim {
        let Subject::Qp(num) = event.subject else { return Claim::No };
        let mut claim = Claim::No;
        for receiver in self.handles.values_mut().filter(|receiver| receiver.qp.num() == num) {
            if receiver.owns_news(event.kind) {
                return Claim::Owner;
            }
            claim = Claim::Other;
        }
        claim
    }
}

impl Receiver {
    /// We have made it, and this has not been told of it.
    fn owns_news(&mut self, kind: EventKind) -> bool {
        let Some(told) = self.made.as_mut().filter(|told| !told.contains(&kind)) else { return false };
        told.push(kind);
        true
    }
}

impl XrcBackend {
    fn make_sender(&mut self, path: PathId) -> Result<Qpn, verbs::Error> {
        let (send_cq, recv_cq) = (self.xrc.send_cq.clone(), self.xrc.send_cq.clone());
        let (kind, cap) = (QpKind::XrcSend, self.xrc.cap);
        let init = QpInit { kind, send_cq, recv_cq, srq: None, cap, sig_all: false };
        let qp = Qp::create(&self.plan.pd, &init)?;
        qp.to_init(&self.plan.init_attr())?;
        let num = qp.num();
        self.senders.insert(path, qp);
        Ok(num)
    }

    fn raise_sender(&self, path: PathId, receiver: Qpn, psn: Psn, far: &PeerSide) -> Result<(), String> {
        let (plan, qp) = (&self.plan, self.senders.get(&path).ok_or("the send queue pair is gone")?);
        let raised = qp.to_rtr(&far.ready_to_receive(plan, receiver));
        let raised = raised.and_then(|()| qp.to_rts(&far.ready_to_send(plan, psn, plan.rnr_retry())));
        raised.map_err(|error| error.to_string())
    }

    /// A new receive queue pair of the domain, which takes what this sender sends. It serves the reads and atomics to all processes of
    /// its node.
    fn make_receiver(&self, sender: Qpn, far: &PeerSide) -> Result<Arc<XrcRecvQp>, JoinError> {
        let make = || {
            let qp = XrcRecvQp::create(&self.xrc.domain)?;
            qp.to_init(&self.plan.init_attr())?;
            qp.to_rtr(&far.ready_to_receive(&self.plan, sender))?;
            Ok(qp)
        };
        make().map_err(|error: verbs::Error| JoinError::Verbs(error.to_string()))
    }

    /// A handle of one that another process has made, as long as it takes messages.
    fn open_receiver(&self, receiver: Qpn) -> Result<Arc<XrcRecvQp>, JoinError> {
        let handle = XrcRecvQp::open(&self.xrc.domain, receiver).map_err(|error| {
            log::debug!("xrc: {receiver} is gone: {error}");
            JoinError::Gone
        })?;
        match handle.state() {
            Ok(QpState::Rtr | QpState::Rts) => Ok(handle),
            _ => Err(JoinError::Gone),
        }
    }

    fn keep(&mut self, link: CommId, handle: Receiver) -> Qpn {
        let num = handle.qp.num();
        self.handles.insert(link, handle);
        num
    }
}
