//! Asynchronous events that can be raised, by name.

use rdma_sys::*;
use std::time::Duration;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// Completion queues.
    Cq,
    /// Queue pairs that are connected (RTR or RTS), datagrams' not among them.
    Qp,
    /// Shared receive queues.
    Srq,
    /// Ports: every open device tells.
    Port,
    /// Open devices.
    Device,
    /// Receive queue pairs of XRC domains: every handle tells.
    Receiver,
}

/// An event that can be raised: its name, its code, what it is about.
pub type Named = (&'static str, ibv_event_type, About);

/// Names are libibverbs' constants without `IBV_EVENT_`.
pub(crate) const NAMES: &[Named] = &[
    ("cq-err", IBV_EVENT_CQ_ERR, About::Cq),
    ("qp-fatal", IBV_EVENT_QP_FATAL, About::Qp),
    ("qp-req-err", IBV_EVENT_QP_REQ_ERR, About::Qp),
    ("qp-access-err", IBV_EVENT_QP_ACCESS_ERR, About::Qp),
    ("comm-est", IBV_EVENT_COMM_EST, About::Qp),
    ("sq-drained", IBV_EVENT_SQ_DRAINED, About::Qp),
    ("path-mig", IBV_EVENT_PATH_MIG, About::Qp),
    ("path-mig-err", IBV_EVENT_PATH_MIG_ERR, About::Qp),
    ("device-fatal", IBV_EVENT_DEVICE_FATAL, About::Device),
    ("port-active", IBV_EVENT_PORT_ACTIVE, About::Port),
    ("port-err", IBV_EVENT_PORT_ERR, About::Port),
    ("lid-change", IBV_EVENT_LID_CHANGE, About::Port),
    ("pkey-change", IBV_EVENT_PKEY_CHANGE, About::Port),
    ("sm-change", IBV_EVENT_SM_CHANGE, About::Port),
    ("srq-err", IBV_EVENT_SRQ_ERR, About::Srq),
    ("srq-limit-reached", IBV_EVENT_SRQ_LIMIT_REACHED, About::Srq),
    ("qp-last-wqe-reached", IBV_EVENT_QP_LAST_WQE_REACHED, About::Qp),
    ("client-reregister", IBV_EVENT_CLIENT_REREGISTER, About::Port),
    ("gid-change", IBV_EVENT_GID_CHANGE, About::Port),
    ("wq-fatal", IBV_EVENT_WQ_FATAL, About::Device),
    ("xrc-fatal", IBV_EVENT_QP_FATAL, About::Receiver),
    ("unknown", 99, About::Device),
];

/// An event that is raised without its cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventFault {
    /// Since the plan came into force.
    pub after: Duration,
    /// Which event.
    pub code: ibv_event_type,
    /// Of what.
    pub about: About,
    /// Of the n-th that there is then, in the order in which they were made, from 1; of a port, its
    /// number. 0: of each.
    pub number: u64,
}

impl EventFault {
    /// The event that is called so, now; `number` as in the field. `None`: none is.
    pub fn named(name: &str, number: u64) -> Option<EventFault> {
        let (_, code, about) = *NAMES.iter().find(|(known, ..)| *known == name)?;
        Some(EventFault { after: Duration::ZERO, code, about, number })
    }

    /// The event takes its queue pair to the error state.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(
            self.code,
            IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR | IBV_EVENT_DEVICE_FATAL
        )
    }

    /// Whether it is about the `place`-th, from 0.
    pub(crate) fn strikes(&self, place: usize) -> bool {
        self.number == 0 || self.number == place as u64 + 1
    }
}
