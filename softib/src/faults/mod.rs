//! Faults on demand: what goes wrong on real fabrics, when and as often as a test or a user wants it.
//!
//! ```text
//! call    the control calls that can be made to fail
//! plan    what is asked for: SOFTIB_FAULTS, or a program's Plan, parsed
//! state   a plan under way: counters and dice
//! sends   what it does to send requests
//! calls   control calls that fail
//! ```
//!
//! Without a plan this costs nothing: a queue pair's sends go straight out while it is `direct`, which it is in RTS with no plan and the port
//! up. With one, every send takes the way through its queue, and meets its fate there. Everything is decided when a request is
//! posted, from counters and a seeded generator, so a program that posts the same requests meets the same faults.

mod call;
pub(crate) mod calls;
mod plan;
pub(crate) mod sends;
pub(crate) mod state;

pub use call::Call;
pub use plan::{CallFault, Outage, Plan, PlanError, When};
pub use state::Counts;

use crate::engine::world::State;
use crate::errno::Errno;
use crate::objects::events::Subject;
use crate::reason::{Cause, because};
use crate::shm::layout::QPS;
use rdma_sys::{IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_FATAL};
use state::Faults;
use std::sync::{Mutex, PoisonError};

/// What [`set`] has chosen, for the next opening of the device.
static CHOSEN: Mutex<Option<Plan>> = Mutex::new(None);

/// Puts a plan into force, in the place of the one before and of `SOFTIB_FAULTS`; an empty one ends all faults. It starts now
/// if the device is open (its times, too), else when it is opened.
pub fn set(plan: Plan) {
    *CHOSEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan.clone());
    calls::arm(&plan);
    if let Some(engine) = crate::engine::current() {
        let mut state = engine.enter();
        state.w.faults = Faults::start(plan);
        state.fit_queue_pairs();
        drop(state);
        engine.shared.wake_for_rounds();
    }
}

/// The faults of this process so far, since its plan was put into force.
pub fn counts() -> Counts {
    let now = crate::engine::current().map(|engine| {
        let state = engine.enter();
        state.w.faults.as_ref().map_or_else(Counts::default, |faults| faults.counts)
    });
    Counts { calls: calls::failed(), ..now.unwrap_or_default() }
}

/// Takes all ports of this process down, or brings them up again: PORT_ERR, PORT_ACTIVE, for each. While they are down connected queue pairs' sends, to them and from them,
/// time out and datagrams are lost. ENODEV while the device is not open.
pub fn set_port(up: bool) -> Result<(), Errno> {
    let engine = crate::engine::current().ok_or(Errno::NODEV)?;
    engine.enter().set_port(up);
    engine.shared.wake();
    Ok(())
}

/// Kills the connection of a queue pair of this process: it goes to the error state with QP_FATAL, its peer's sends time out.
pub fn kill_connection(qpn: u32) -> Result<(), Errno> {
    let engine = crate::engine::current().ok_or(Errno::NODEV)?;
    let mut guard = engine.enter();
    let State { qps, w, .. } = &mut *guard;
    let index = qpn as usize % QPS;
    let qp = qps.get_mut(index).filter(|qp| qp.num == qpn).ok_or(Errno::INVAL)?;
    w.async_event(qp.context, IBV_EVENT_QP_FATAL, Subject::Qp(index));
    guard.fail(index);
    Ok(())
}

/// The plan for a device that is being opened. EINVAL, with a reason: a bad `SOFTIB_FAULTS`.
pub(crate) fn load() -> Result<Plan, Errno> {
    if let Some(plan) = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner).clone() {
        return Ok(plan);
    }
    let text = std::env::var_os("SOFTIB_FAULTS").unwrap_or_default();
    let text = text.to_string_lossy();
    text.parse().map_err(|error: PlanError| {
        because(Errno::INVAL, Cause::Setting, format_args!("SOFTIB_FAULTS={text:?}: {error}"))
    })
}

impl State {
    /// Tells every queue pair, and its peers, about a change of plan or port.
    fn fit_queue_pairs(&mut self) {
        let State { qps, w, .. } = self;
        for qp in qps.iter_mut() {
            qp.set_state(qp.state, w);
        }
    }

    fn set_port(&mut self, up: bool) {
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
    pub(crate) fn follow_plan(&mut self) {
        while let Some(up) = self.w.faults.as_mut().and_then(|faults| faults.port_change()) {
            self.set_port(up);
        }
    }
}
