//! Ports that go down and come up, and what a plan of faults has for the time.

use super::state::State;
use crate::objects::events::Subject;
use rdma_sys::*;

impl State {
    /// Tells every queue pair, and its peers, about a change of plan or port.
    pub fn fit_queue_pairs(&mut self) {
        let State { qps, w, .. } = self;
        for qp in qps.iter_mut() {
            qp.set_state(qp.state, w);
        }
    }

    /// Takes all ports down, or brings them up.
    pub fn set_port(&mut self, up: bool) {
        if std::mem::replace(&mut self.w.ports.up, up) == up {
            return;
        }
        log::info!("all ports are {}", if up { "up" } else { "down" });
        self.fit_queue_pairs();
        let kind = if up { IBV_EVENT_PORT_ACTIVE } else { IBV_EVENT_PORT_ERR };
        let contexts: Vec<usize> = self.w.contexts.iter().map(|(key, _)| key).collect();
        for context in contexts {
            for num in 1..=self.w.ports.per_device() {
                self.w.async_event(context, kind, Subject::Port(num));
            }
        }
    }

    /// Carries out what the plan has for this time.
    pub fn follow_plan(&mut self) {
        while let Some(up) = self.w.faults.as_mut().and_then(|faults| faults.port_change()) {
            self.set_port(up);
        }
    }
}
