//! Asynchronous events of the device: read now and then by an idle poll, acknowledged, answered.
//!
//! | event                      | answer                                                        |
//! |----------------------------|---------------------------------------------------------------|
//! | SRQ limit reached          | that queue grows, is refilled and armed again                  |
//! | queue pair fatal, access   | its endpoint fails                                            |
//! | CQ error, device fatal     | every endpoint fails                                          |
//! | port up, port down         | told to the user; the device's own retries decide the rest    |
//! | COMM_EST, last WQE, others | nothing: data and flushed completions tell the same           |
#![forbid(unsafe_code)]

use super::queue::{RecvQueue, Shared};
use crate::transport::Transport;
use verbs::{AsyncEvent, Qpn, SrqId};

/// Idle polls between two looks: about a millisecond, so that a look (one system call) costs
/// nothing that could be seen.
pub const IDLE_POLLS: u32 = 1 << 14;

impl<C> Transport<C> {
    /// Reads what the device has to say.
    #[cold]
    pub(crate) fn device_events(&mut self) {
        loop {
            match self.port.pd.context().next_async_event() {
                Ok(Some(event)) => self.device_event(event),
                Ok(None) => return,
                Err(error) => return log::warn!("{error}"),
            }
        }
    }

    fn device_event(&mut self, event: AsyncEvent) {
        log::debug!("{}: {event:?}", self.port.device());
        match event {
            AsyncEvent::SrqLimitReached(srq) => self.shared_queue_low(srq),
            AsyncEvent::QpFatal(qpn) | AsyncEvent::QpAccess(qpn) => self.qp_broken(qpn, event),
            AsyncEvent::CqError => self.all_broken("a completion queue overran"),
            AsyncEvent::DeviceFatal => self.all_broken("the device reports a fatal error"),
            AsyncEvent::PortError(port) => log::warn!("port {port} of {} is down", self.port.device()),
            AsyncEvent::PortActive(port) => log::info!("port {port} of {} is up", self.port.device()),
            AsyncEvent::CommEst(_) | AsyncEvent::LastWqeReached(_) | AsyncEvent::Other(_) => {}
        }
    }

    /// What the device has consumed of the queue may not have been polled yet, so the refill may be
    /// by less than it grows.
    fn shared_queue_low(&mut self, srq: SrqId) {
        let of_event = |res: &RecvQueue| res.shared.as_ref().is_some_and(|shared| shared.srq.id() == srq);
        let Some(queue) = self.queues.iter().position(of_event) else { return };
        if self.queues[queue].shared.as_mut().is_some_and(Shared::grow) {
            self.refill(queue);
            self.arm_limit(queue);
        }
    }

    /// Asks for an event when the queue runs low, as long as it can still grow.
    pub(crate) fn arm_limit(&mut self, queue: usize) {
        let Some(shared) = &self.queues[queue].shared else { return };
        if shared.srq_limit == 0 || shared.target == shared.limit {
            return;
        }
        if let Err(error) = shared.srq.set_limit(shared.srq_limit) {
            log::debug!("shared queue {queue} grows only when it is found empty: {error}");
        }
    }

    fn qp_broken(&mut self, qpn: Qpn, event: AsyncEvent) {
        if let Some(endpoint) = self.qpns.endpoint(qpn) {
            self.fail(endpoint, &format!("the device reports {event:?}"));
        }
    }

    pub(crate) fn all_broken(&mut self, reason: &str) {
        let all: Vec<u32> = self.endpoints.iter().map(|(index, _)| index).collect();
        for index in all {
            self.fail(index, &reason);
        }
    }
}
