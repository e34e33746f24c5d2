//! Asynchronous events of receive queue pairs: every handle, in every process, gets each.
//!
//! The process that finds out counts the event in the domain's segment and wakes the device
//! threads of the holders; each of those compares the counts with what its handles have been told.

use crate::objects::arrival::Arrival;
use crate::objects::events::Subject;
use crate::objects::world::World;
use crate::objects::xrc::EVENT_KINDS;
use crate::shm::domain::DomainFile;
use crate::shm::layout::{QP_BITS, QPS};
use rdma_sys::*;

/// An event of receive queue pair `index` has happened.
#[cold]
pub fn raise(w: &mut World, domain: &DomainFile, index: usize, kind: u32) {
    let Some(at) = EVENT_KINDS.iter().position(|&known| known == kind) else { return };
    domain.count_event(index, at);
    let me = w.segment.slot;
    let others: Vec<usize> = domain.holders(index).map(|(slot, _)| slot).filter(|&slot| slot != me).collect();
    others.into_iter().for_each(|slot| w.peers.wake(slot));
    collect(w);
}

/// Moves receive queue pair `index` to the error state and tells its holders why, if it was not there before and is (if that is
/// said) of this generation.
#[cold]
pub fn fail(w: &mut World, domain: &DomainFile, index: usize, generation: Option<u32>, kind: u32) {
    let Ok(locked) = domain.lock() else { return };
    let Some((_, mut qp)) = locked.mend(index).ok().and_then(|()| domain.look_up(index)) else { return };
    let other = generation.is_some_and(|generation| generation != qp.generation);
    if other || matches!(qp.attr.qp_state, IBV_QPS_ERR | IBV_QPS_RESET) {
        return;
    }
    qp.attr.qp_state = IBV_QPS_ERR;
    locked.write(index, &qp);
    drop(locked);
    raise(w, domain, index, kind);
}

/// The same for a receive queue pair of a domain that we have open, by its number.
#[cold]
pub fn fail_numbered(w: &mut World, qpn: u32, kind: u32) {
    if let Some(domain) = w.xrc.domain_in((qpn >> QP_BITS) as usize) {
        fail(w, &domain, qpn as usize % QPS, None, kind);
    }
}

/// Hands events that have been counted since the last time to our handles.
pub fn collect(w: &mut World) {
    let mut due = Vec::new();
    for (key, domain) in &mut w.xrc.domains {
        let count = domain.file.event_count();
        if count == domain.events_seen {
            continue;
        }
        domain.events_seen = count;
        for (at, handle) in w.xrc.handles.iter_mut().filter(|(_, handle)| handle.domain == key) {
            let now = domain.file.events(handle.index);
            for (kind, name) in EVENT_KINDS.into_iter().enumerate() {
                if now[kind] != handle.seen[kind] {
                    due.push((handle.context, name, Subject::Handle(at)));
                }
            }
            handle.seen = now;
        }
    }
    for (context, kind, subject) in due {
        w.async_event(context, kind, subject);
    }
}

/// The end of a receive queue pair whose peer asked for what it may not; `status` is what the peer gets.
#[cold]
pub fn refuse(w: &mut World, to: &Arrival, status: u32) {
    let invalid = status == IBV_WC_REM_INV_REQ_ERR;
    let kind = if invalid { IBV_EVENT_QP_REQ_ERR } else { IBV_EVENT_QP_ACCESS_ERR };
    fail(w, &to.domain, to.index, Some(to.via.generation), kind);
}
