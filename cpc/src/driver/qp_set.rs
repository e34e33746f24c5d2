//! An endpoint's queue pairs and their way from nothing to RTS. Shared by the components that move QPs themselves.

use std::collections::HashMap;
use std::sync::Arc;

use verbs::{Mtu, Posted, Psn, Qp, QpInit, QpKind, QpState, Qpn, RtrAttr, RtsAttr};

use crate::queues::Outbox;
use crate::wire::listener::Address;
use crate::wire::{Depth, Qpns};
use crate::{CtsRecv, EndpointKey, Event, QpPlan};

/// The QPs of one endpoint, in queue order.
#[derive(Debug)]
pub(crate) struct QpSet {
    qps: Vec<Arc<Qp>>,
}

/// What the peer has told of its side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSide {
    pub(crate) address: Address,
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
            path: plan.way_to(self.address.lid, Some(self.address.gid)),
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

impl QpSet {
    /// Makes the QPs and takes them to INIT.
    fn create(plan: &QpPlan) -> Result<QpSet, String> {
        let qps = (0..plan.queues.len()).map(|queue| create_qp(plan, queue)).collect::<Result<Vec<_>, _>>();
        Ok(QpSet { qps: qps.map_err(|e| e.to_string())? })
    }

    /// Posts the receive for the clear-to-send.
    fn post_cts(&self, cts: CtsRecv) -> Result<Posted, String> {
        let qp = self.qps.get(cts.queue).ok_or("the clear-to-send names a queue that does not exist")?;
        qp.post_recv(cts.wr_id, cts.buf).map_err(|(_, error)| error.to_string())
    }

    pub(crate) fn qps(&self) -> &[Arc<Qp>] {
        &self.qps
    }

    fn qpns(&self) -> Vec<Qpn> {
        self.qps.iter().map(|qp| qp.num()).collect()
    }

    /// Takes every QP to RTR and RTS, connected to the peer's. `psn` is the number that each of them starts with.
    pub(crate) fn bring_up(
        &self,
        plan: &QpPlan,
        far: &PeerSide,
        qpns: &Qpns,
        psn: Psn,
    ) -> Result<(), verbs::Error> {
        for ((qp, queue), &dest_qpn) in self.qps.iter().zip(&plan.queues).zip(qpns.as_slice()) {
            qp.to_rtr(&far.ready_to_receive(plan, dest_qpn))?;
            qp.to_rts(&far.ready_to_send(plan, psn, queue.rnr_retry))?;
        }
        Ok(())
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
    qps: Option<QpSet>,
}

impl QpSets {
    pub(crate) fn new(plan: &Arc<QpPlan>) -> QpSets {
        QpSets { plan: plan.clone(), held: HashMap::new() }
    }

    /// An endpoint has come, with its receive for the clear-to-send.
    pub(crate) fn add(&mut self, key: EndpointKey, cts: Option<CtsRecv>) {
        self.held.insert(key, Held { cts, qps: None });
    }

    /// The endpoint is gone.
    pub(crate) fn remove(&mut self, key: EndpointKey) {
        self.held.remove(&key);
    }

    /// The endpoint's QPs.
    pub(crate) fn get(&self, key: EndpointKey) -> Result<&QpSet, String> {
        Ok(self.held.get(&key).and_then(|held| held.qps.as_ref()).ok_or("the queue pairs are gone")?)
    }

    /// Makes the endpoint's QPs.
    pub(crate) fn create(&mut self, key: EndpointKey) -> Result<Qpns, String> {
        let held = self.held.get_mut(&key).ok_or("the endpoint is gone")?;
        let set = QpSet::create(&self.plan)?;
        let qpns = Qpns::new(&set.qpns()).ok_or("more queue pairs than fit the private data")?;
        held.qps = Some(set);
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
        let set = held.qps.as_ref().ok_or("the queue pairs are gone")?;
        let cts = held.cts.take().map(|cts| set.post_cts(cts)).transpose()?;
        out.push(Event::QpsCreated { key, qps: set.qps().to_vec(), cts });
        Ok(())
    }

    /// The main thread has taken the endpoint's QPs to the error state.
    pub(crate) fn is_taken_down(&self, key: EndpointKey) -> bool {
        self.get(key).is_ok_and(|set| set.qps().iter().any(|qp| matches!(qp.state(), Ok(QpState::Err))))
    }
}

fn create_qp(plan: &QpPlan, index: usize) -> Result<Arc<Qp>, verbs::Error> {
    let queue = &plan.queues[index];
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
