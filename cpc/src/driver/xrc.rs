//! xrc's backend: carries datagrams and moves queue pairs of the domain.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use verbs::{
    AhAttr, InitAttr, Mtu, Psn, QKey, Qp, QpInit, QpKind, QpState, Qpn, RtrAttr, RtsAttr, XrcRecvQp,
};

use super::datagrams::{Transport, needs_grh, terms};
use super::module::{Backend, Opened, tell_times};
use super::qp_set::HOP_LIMIT;
use super::seed;
use crate::manager::Query;
use crate::queues::Outbox;
use crate::wire::domain::Address;
use crate::wire::xrc::SrqNums;
use crate::wire::{CommId, Depth, Layout, Source};
use crate::xrc::machine::{Call, JoinError, Local, Machine, PathId, Xrc};
use crate::{EndpointKey, EndpointPlan, Error, Event, QpPlan, Route, XrcPlan};

/// xrc on one port.
#[derive(Debug)]
pub(crate) struct XrcBackend {
    plan: Arc<QpPlan>,
    xrc: XrcPlan,
    address: Address,
    senders: HashMap<PathId, Arc<Qp>>,
    handles: HashMap<CommId, Arc<XrcRecvQp>>,
}

impl Backend for XrcBackend {
    type Protocol = Xrc;
    type Port = Transport;

    const NAME: &'static str = "xrc";
    const SERVES_XRC: bool = true;

    fn open(query: &Query<'_>) -> Result<Opened<Self>, Error> {
        let (plan, params) = (query.plan, &query.config.xrc);
        let xrc = plan.xrc.clone().ok_or(Error::Plan("it has no X queues"))?;
        let transport = Transport::open(Self::NAME, "xrc_unsent", plan, params.recv_count)?;
        let seed = params.seed.unwrap_or_else(seed::from_system);
        let address = Address { listener: transport.address(), domain: xrc.id };
        let machine = Machine::new(local(query, &xrc, address)?, params.clone(), seed);
        log::debug!("xrc listens on {:?} of {}", address.listener.qpn, plan.port.ctx.name());
        let (senders, handles) = (HashMap::new(), HashMap::new());
        let backend = XrcBackend { plan: plan.clone(), xrc, address, senders, handles };
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
        let EndpointPlan { key, peer, peer_blob, label, .. } = endpoint;
        let address = Address::parse(&peer_blob).map_err(|e| e.to_string())?;
        self.address.listener.check_link(&address.listener)?;
        transport.add_peer(key, Source::from(&address.listener), peer);
        machine.add_endpoint(key, peer, address, label, now);
        Ok(())
    }

    fn remove_endpoint(&mut self, _: EndpointKey) {}

    fn call(
        &mut self,
        machine: &mut Machine,
        transport: &mut Transport,
        call: Call,
        now: Instant,
        out: &Outbox,
    ) {
        match call {
            Call::MakeSender { path } => {
                let made = self.make_sender(path).map_err(|error| error.to_string());
                machine.sender_made(path, made, now);
            }
            Call::RaiseSender { path, receiver, psn, depth, address } => {
                let outcome = self.raise_sender(path, receiver, psn, depth, &address);
                machine.sender_raised(path, outcome, now);
            }
            Call::DropSender { path } => drop(self.senders.remove(&path)),
            Call::Join { link, epoch, receiver, sender, psn, depth, address } => {
                let outcome = match receiver {
                    Some(receiver) => self.open_receiver(receiver),
                    None => self.make_receiver(sender, psn, depth, &address),
                };
                let outcome = outcome.map(|handle| self.keep(link, handle));
                machine.joined(link, epoch, outcome, now);
            }
            Call::Release { link } => drop(self.handles.remove(&link)),
            Call::Send { to, datagram } => transport.send(to, &datagram),
            Call::Route { key, path, srqs, label } => {
                if let Some(qp) = self.senders.get(&path).cloned() {
                    tell_times(machine, key, out);
                    let route = Route { path: path.0, qp, srqs: srqs.as_slice().to_vec(), label };
                    out.push(Event::Routed { key, route });
                }
            }
        }
    }

    fn progress(&mut self, machine: &mut Machine, transport: &mut Transport, now: Instant) -> bool {
        transport.progress(|from, bytes| machine.datagram(from, bytes, now));
        false
    }

    fn close(&mut self) {}
}

impl XrcBackend {
    fn make_sender(&mut self, path: PathId) -> Result<Qpn, verbs::Error> {
        let (send_cq, recv_cq) = (self.xrc.send_cq.clone(), self.xrc.send_cq.clone());
        let (kind, cap) = (QpKind::XrcSend, self.xrc.cap);
        let init = QpInit { kind, send_cq, recv_cq, srq: None, cap, sig_all: false };
        let qp = Qp::create(&self.plan.pd, &init)?;
        qp.to_init(&self.init())?;
        let num = qp.num();
        self.senders.insert(path, qp);
        Ok(num)
    }

    fn raise_sender(
        &self,
        path: PathId,
        receiver: Qpn,
        psn: Psn,
        depth: Depth,
        to: &Address,
    ) -> Result<(), String> {
        let qp = self.senders.get(&path).ok_or("the send queue pair is gone")?;
        // Nothing comes in on it but acknowledgements: the number that it expects does not matter.
        qp.to_rtr(&self.ready(receiver, Psn(0), depth, to)).map_err(|e| e.to_string())?;
        let attr = RtsAttr {
            sq_psn: psn,
            timeout: self.plan.timeout,
            retry_cnt: self.plan.retry_cnt,
            rnr_retry: rnr_retry(&self.plan),
            max_rd_atomic: self.plan.max_rd_atomic.min(depth.responder_resources),
        };
        qp.to_rts(&attr).map_err(|e| e.to_string())
    }

    /// A new receive queue pair of the domain, which takes what this sender sends.
    fn make_receiver(
        &self,
        sender: Qpn,
        psn: Psn,
        depth: Depth,
        from: &Address,
    ) -> Result<Arc<XrcRecvQp>, JoinError> {
        let make = || {
            let qp = XrcRecvQp::create(&self.xrc.domain)?;
            qp.to_init(&self.init())?;
            qp.to_rtr(&self.ready(sender, psn, depth, from))?;
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

    fn keep(&mut self, link: CommId, handle: Arc<XrcRecvQp>) -> Qpn {
        let num = handle.num();
        self.handles.insert(link, handle);
        num
    }

    fn init(&self) -> InitAttr {
        let port = &self.plan.port;
        InitAttr { port: port.num, pkey_index: port.pkey_index, access: self.plan.access, qkey: QKey(0) }
    }

    fn ready(&self, dest_qpn: Qpn, rq_psn: Psn, depth: Depth, far: &Address) -> RtrAttr {
        let (plan, far) = (&self.plan, &far.listener);
        let gid = Some(far.gid).filter(|gid| needs_grh(plan, gid));
        RtrAttr {
            mtu: Mtu::from_code(far.mtu.into()).map_or(plan.port.mtu, |mtu| mtu.min(plan.port.mtu)),
            dest_qpn,
            rq_psn,
            // One queue pair serves the reads and atomics to all processes of its node.
            max_dest_rd_atomic: plan.max_dest_rd_atomic.min(depth.initiator_depth),
            min_rnr_timer: plan.min_rnr_timer,
            path: AhAttr {
                port: plan.port.num,
                dlid: far.lid,
                sl: plan.sl,
                gid: gid.map(|gid| (gid, plan.port.gid_index, HOP_LIMIT)),
            },
        }
    }
}

fn rnr_retry(plan: &QpPlan) -> u8 {
    plan.queues.iter().map(|q| q.rnr_retry).max().unwrap_or(0)
}

fn local(query: &Query<'_>, xrc: &XrcPlan, address: Address) -> Result<Local, Error> {
    let plan = query.plan;
    let layout = Layout::new(plan.queues.iter().map(|q| q.srq.is_some()));
    Ok(Local {
        name: query.me,
        address,
        layout: layout.ok_or(Error::Plan("it needs 1 to 15 queues"))?,
        srqs: SrqNums::new(&xrc.srqs).ok_or(Error::Plan("it needs 1 to 15 shared receive queues"))?,
        terms: terms(plan),
    })
}
