//! xrc's backend: carries datagrams and moves queue pairs of the domain.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use verbs::{
    AhAttr, InitAttr, Mtu, Psn, QKey, Qp, QpInit, QpKind, QpState, Qpn, RtrAttr, RtsAttr, XrcRecvQp,
};

use super::datagrams::{Transport, needs_grh};
use super::ibcm::address as listener;
use super::module::{Backend, tell_times};
use super::qp_set::HOP_LIMIT;
use super::seed;
use crate::config::datagram::Params;
use crate::manager::Query;
use crate::queues::Outbox;
use crate::wire::domain::Address;
use crate::wire::xrc::SrqNums;
use crate::wire::{CommId, Depth, Layout, Source};
use crate::xrc::machine::{Call, JoinError, Local, Machine, PathId, Xrc};
use crate::{ConnectError, EndpointKey, EndpointPlan, Error, Event, QpPlan, Route, XrcPlan};

/// xrc on one port.
#[derive(Debug)]
pub(crate) struct XrcBackend {
    plan: Arc<QpPlan>,
    xrc: XrcPlan,
    params: Params,
    address: Address,
    transport: Transport,
    senders: HashMap<PathId, Arc<Qp>>,
    handles: HashMap<CommId, Arc<XrcRecvQp>>,
}

impl Backend for XrcBackend {
    type Protocol = Xrc;

    const NAME: &'static str = "xrc";
    const SERVES_XRC: bool = true;

    fn open(query: &Query<'_>) -> Result<(Self, Machine), Error> {
        let (plan, params) = (query.plan, &query.config.xrc);
        let xrc = plan.xrc.clone().ok_or(Error::Plan("it has no X queues"))?;
        let transport = Transport::open(Self::NAME, plan, params.recv_count)?;
        let seed = params.seed.unwrap_or_else(seed::from_system);
        let address = Address { listener: listener(plan, &transport, seed::incarnation()), domain: xrc.id };
        let machine = Machine::new(local(query, &xrc, address)?, params.clone(), seed);
        log::debug!("xrc listens on {:?} of {}", address.listener.qpn, plan.port.ctx.name());
        let backend = XrcBackend {
            plan: plan.clone(),
            xrc,
            params: params.clone(),
            address,
            transport,
            senders: HashMap::new(),
            handles: HashMap::new(),
        };
        Ok((backend, machine))
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
        let EndpointPlan { key, peer, peer_blob, label, .. } = endpoint;
        let address = Address::parse(&peer_blob).map_err(|e| e.to_string())?;
        self.address.listener.check_link(&address.listener)?;
        self.transport.add_peer(key, Source::from(&address.listener), peer);
        machine.add_endpoint(key, peer, address, label, now);
        Ok(())
    }

    fn silence(&mut self, key: EndpointKey) {
        self.transport.remove_peer(key);
    }

    fn remove_endpoint(&mut self, _: EndpointKey) {}

    fn call(&mut self, machine: &mut Machine, call: Call, now: Instant, out: &Outbox) {
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
            Call::Send { to, datagram } => self.transport.send(to, &datagram),
            Call::Route { key, path, srqs, label } => {
                if let Some(qp) = self.senders.get(&path).cloned() {
                    tell_times(machine, key, out);
                    let route = Route { path: path.0, qp, srqs: srqs.as_slice().to_vec(), label };
                    out.push(Event::Routed { key, route });
                }
            }
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
        vec![("xrc_unsent", self.transport.dropped)]
    }
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
    // 0xffff is the default partition, full membership (IBTA 10.9.1.2).
    let pkey = plan.port.ctx.query_pkey(plan.port.num, plan.port.pkey_index).unwrap_or(0xffff);
    let layout = Layout::new(plan.queues.iter().map(|q| q.srq.is_some()));
    Ok(Local {
        name: query.me,
        address,
        layout: layout.ok_or(Error::Plan("it needs 1 to 15 queues"))?,
        srqs: SrqNums::new(&xrc.srqs).ok_or(Error::Plan("it needs 1 to 15 shared receive queues"))?,
        depth: Depth { responder_resources: plan.max_dest_rd_atomic, initiator_depth: plan.max_rd_atomic },
        pkey,
        sl: plan.sl,
        ack_timeout: plan.timeout,
        retry_count: plan.retry_cnt,
        rnr_retry: rnr_retry(plan),
    })
}
