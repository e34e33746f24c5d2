//! Faults on demand: what goes wrong on real fabrics, when and as often as a test or a user wants it.
//!
//! Without a plan this costs nothing: a queue pair's sends go straight out while it is `direct`, which it is in RTS with no plan and the port
//! up. With one, every send takes the way through its queue, and meets its fate there. Everything is decided when a request is
//! posted, from counters and a seeded generator, so a program that posts the same requests meets the same faults.
//!
//! Plans are `objects::faults`, what they do to send requests `datapath::initiator::fates`, what becomes of the ports `engine::outage`. Here are
//! the calls that put a plan into force, and `calls`, the calls that fail, and the steps at which the process is killed.

pub(crate) mod calls;

pub use crate::objects::faults::call::Call;
pub use crate::objects::faults::event::{About, EventFault};
pub use crate::objects::faults::plan::{CallFault, Outage, Plan, PlanError, When};
pub use crate::objects::faults::state::Counts;
pub use crate::objects::faults::step::{KillFault, Step};

use crate::engine::state::State;
use crate::errno::Errno;
use crate::objects::events::Subject;
use crate::objects::faults::state::Faults;
use crate::reason::{Cause, because};
use crate::shm::layout::QPS;

use rdma_sys::IBV_EVENT_QP_FATAL;
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

/// How often this process has called each function since its plan was put into force, if that has calls that fail or says `report`.
/// Of the data path's functions: if it has one of those, or says `report`, and was there before the device was opened.
pub fn calls() -> Vec<(&'static str, u64)> {
    calls::seen()
}

/// How often this process has come to each step that is no call, as [`calls`].
pub fn steps() -> Vec<(&'static str, u64)> {
    calls::steps()
}

/// Takes all ports of this process down, or brings them up again: PORT_ERR, PORT_ACTIVE, for each. While they are down connected queue pairs' sends, to them and from them,
/// time out and datagrams are lost. ENODEV while the device is not open.
pub fn set_port(up: bool) -> Result<(), Errno> {
    set_ports(None, up)
}

/// The same of the port of this number, on each device; none: all of them.
pub fn set_ports(number: Option<u8>, up: bool) -> Result<(), Errno> {
    let engine = crate::engine::current().ok_or(Errno::NODEV)?;
    engine.enter().set_ports(number, up);
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

/// Raises an asynchronous event now, whenever the plan has it; how many objects it was about.
/// ENODEV while the device is not open.
pub fn raise(event: EventFault) -> Result<u64, Errno> {
    let engine = crate::engine::current().ok_or(Errno::NODEV)?;
    let raised = engine.enter().raise(event);
    engine.shared.wake();
    Ok(raised)
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
