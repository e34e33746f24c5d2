//! An endpoint's queue pairs and their way from nothing to RTS. Shared by the components that move QPs themselves.

use std::collections::HashMap;
use std::sync::Arc;

use verbs::{Mtu, Posted, Psn, Qp, QpCap, QpInit, QpKind, QpState, Qpn, RtrAttr, RtsAttr};

use crate::queues::Outbox;
use crate::wire::listener::{Address, Facing};
use crate::wire::{Depth, Qpns};
use crate::{CtsRecv, EndpointKey, Event, QpPlan, QueuePlan};

/// What the peer has told of its side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSide {
    pub(crate) address: Facing<Address>,
    pub(crate) psn: Psn,
    pub(crate) depth: Depth,
}

impl PeerSide {
    /// What takes a queue pair of ours to RTR, connected to one of the peer's.
    pub(crate) fn ready_to_receive(&self, plan: &QpPlan, dest_qpn: Qpn) -> RtrAttr {
        let mtu = Mtu::from_code(self.address.mtu.into()).unwrap_or(plan.port.mtu);
        RtrAttr {
            mtu: plan.port.mtu.min(mtu),
            dest_qpn,
            rq_psn: self.psn,
            max_dest_rd_atomic: plan.max_dest_rd_atomic.min(self.depth.initiator_depth),
            min_rnr_timer: plan.min_rnr_timer,
            path: plan.way_to(self.address.lid, Some(self.address.gid), self.address.our_gid),
        }
    }

    /// What takes it to RTS.
    pub(crate) fn ready_to_send(&self, plan: &QpPlan, sq_psn: Psn, rnr_retry: u8) -> RtsAttr {
        RtsAttr {
            sq_psn,
            timeout: plan.timeout,
            retry_cnt: plan.retry_cnt,
            rnr_retry,
            max_rd_atomic: plan.max_rd_atomic.min(self.depth.responder_resources),
        }
    }
}

/// The QPs of a port's endpoints.
#[derive(Debug)]
pub(crate) struct QpSets {
    plan: Arc<QpPlan>,
    held: HashMap<EndpointKey, Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// The receive for the clear-to-send, until it is posted.
    cts: Option<CtsRecv>,
    /// In queue order.
    qps: Option<Vec<Arc<Qp>>>,
}

impl QpSets {
    pub(crate) fn new(plan: &Arc<QpPlan>) -> QpSets {
        QpSets { plan: plan.clone(), held: HashMap::new() }
    }

    /// An endpoint has come, with its receive for the clear-to-send.
    pub(crate) fn add(&mut self, key: EndpointKey, cts: Option<CtsRecv>) {
        self.held.insert(key, Held { cts, qps: None });
    }

    pub(crate) fn remove(&mut self, key: EndpointKey) {
        self.held.remove(&key);
    }

    pub(crate) fn get(&self, key: EndpointKey) -> Result<&[Arc<Qp>], String> {
        Ok(self.held.get(&key).and_then(|held| held.qps.as_deref()).ok_or("the queue pairs are gone")?)
    }

    /// Makes the endpoint's QPs and takes them to INIT.
    pub(crate) fn create(&mut self, key: EndpointKey) -> Result<Qpns, String> {
        let (plan, held) = (&self.plan, self.held.get_mut(&key).ok_or("the endpoint is gone")?);
        let made = (0..plan.queues.len()).map(|queue| create_qp(plan, queue)).collect::<Result<Vec<_>, _>>();
        let qps = made.map_err(|e| e.to_string())?;
        let nums: Vec<Qpn> = qps.iter().map(|qp| qp.num()).collect();
        let qpns = Qpns::new(&nums).ok_or("more queue pairs than fit the private data")?;
        held.qps = Some(qps);
        Ok(qpns)
    }

    /// Makes the endpoint's QPs and announces them, before the machine can ask for RTR: no message can come in on an unknown QPN.
    pub(crate) fn create_announced(&mut self, key: EndpointKey, out: &Outbox) -> Result<Qpns, String> {
        let qpns = self.create(key)?;
        self.announce(key, out)?;
        Ok(qpns)
    }

    /// The endpoint's QPs are the ones that serve: posts the receive for the clear-to-send, and tells the main thread. On iWARP nothing can
    /// have come in on them: either we have not accepted yet, or we send first.
    pub(crate) fn announce(&mut self, key: EndpointKey, out: &Outbox) -> Result<(), String> {
        let held = self.held.get_mut(&key).ok_or("the endpoint is gone")?;
        let qps = held.qps.as_ref().ok_or("the queue pairs are gone")?;
        let cts = held.cts.take().map(|cts| post_cts(qps, cts)).transpose()?;
        out.push(Event::QpsCreated { key, qps: qps.clone(), cts });
        Ok(())
    }

    /// Takes every QP to RTR and RTS, connected to the peer's. `psn` is the number that each of them starts with.
    pub(crate) fn bring_up(
        &self,
        key: EndpointKey,
        far: &PeerSide,
        qpns: &Qpns,
        psn: Psn,
    ) -> Result<(), String> {
        let plan = &self.plan;
        for ((qp, queue), &dest_qpn) in self.get(key)?.iter().zip(&plan.queues).zip(qpns.as_slice()) {
            let up = qp.to_rtr(&far.ready_to_receive(plan, dest_qpn));
            let up = up.and_then(|()| qp.to_rts(&far.ready_to_send(plan, psn, queue.rnr_retry)));
            up.map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// The main thread has taken the endpoint's QPs to the error state.
    pub(crate) fn is_taken_down(&self, key: EndpointKey) -> bool {
        self.get(key).is_ok_and(|qps| qps.iter().any(|qp| matches!(qp.state(), Ok(QpState::Err))))
    }
}

/// Posts the receive for the clear-to-send.
fn post_cts(qps: &[Arc<Qp>], cts: CtsRecv) -> Result<Posted, String> {
    let qp = qps.get(cts.queue).ok_or("the clear-to-send names a queue that does not exist")?;
    qp.post_recv(cts.wr_id, cts.buf).map_err(|(_, error)| error.to_string())
}

fn create_qp(plan: &QpPlan, index: usize) -> Result<Arc<Qp>, verbs::Error> {
    initialised(plan, &plan.queues[index])
}

fn initialised(plan: &QpPlan, queue: &QueuePlan) -> Result<Arc<Qp>, verbs::Error> {
    let init = QpInit {
        kind: QpKind::Rc,
        send_cq: queue.send_cq.clone(),
        recv_cq: queue.recv_cq.clone(),
        srq: queue.srq.clone(),
        cap: queue.cap,
        sig_all: false,
    };
    let qp = Qp::create(&plan.pd, &init)?;
    qp.to_init(&plan.init_attr())?;
    Ok(qp)
}

/// A queue pair in RTS that is connected to itself, for `sends` requests: a process reaches its own memory through the device. A port reaches
/// itself (IBTA 17.2.2, loopback), and both sides are known here: that takes no connection manager. Not for iWARP, where connections go over
/// TCP.
///
/// # Errors
/// What the device refuses, and why.
pub fn to_itself(plan: &QpPlan, sends: u32) -> Result<Arc<Qp>, String> {
    let queue = plan.queues.first().ok_or("the plan has no queue")?;
    let cap = QpCap { max_send_wr: sends, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let made = initialised(plan, &QueuePlan { srq: None, cap, ..queue.clone() });
    let up = made.and_then(|qp| connect_to_itself(plan, &qp).map(|()| qp));
    up.map_err(|e| e.to_string())
}

fn connect_to_itself(plan: &QpPlan, qp: &Qp) -> Result<(), verbs::Error> {
    let (port, psn) = (&plan.port, Psn(0));
    qp.to_rtr(&RtrAttr {
        mtu: port.mtu,
        dest_qpn: qp.num(),
        rq_psn: psn,
        max_dest_rd_atomic: plan.max_dest_rd_atomic,
        min_rnr_timer: plan.min_rnr_timer,
        path: plan.way_to(port.lid, Some(port.gid), None),
    })?;
    qp.to_rts(&RtsAttr {
        sq_psn: psn,
        timeout: plan.timeout,
        retry_cnt: plan.retry_cnt,
        rnr_retry: 0,
        max_rd_atomic: plan.max_rd_atomic.min(plan.max_dest_rd_atomic),
    })
}
