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

use crate::transport::Transport;
use verbs::AsyncEvent;

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
            AsyncEvent::SrqLimitReached(srq) => self.rx.limit_reached(srq),
            AsyncEvent::QpFatal(qpn) | AsyncEvent::QpAccess(qpn) => {
                if let Some(endpoint) = self.rx.qpns.endpoint(qpn) {
                    self.fail(endpoint, &format!("the device reports {event:?}"));
                }
            }
            AsyncEvent::CqError => self.all_broken("a completion queue overran"),
            AsyncEvent::DeviceFatal => self.all_broken("the device reports a fatal error"),
            AsyncEvent::PortError(port) => log::warn!("port {port} of {} is down", self.port.device()),
            AsyncEvent::PortActive(port) => log::info!("port {port} of {} is up", self.port.device()),
            AsyncEvent::CommEst(_) | AsyncEvent::LastWqeReached(_) | AsyncEvent::Other(_) => {}
        }
    }

    pub(crate) fn all_broken(&mut self, reason: &str) {
        let all: Vec<u32> = self.endpoints.iter().map(|(index, _)| index).collect();
        for index in all {
            self.fail(index, &reason);
        }
    }
}
