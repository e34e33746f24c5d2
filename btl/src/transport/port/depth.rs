//! How deep queue pairs and completion queues have to be.
#![forbid(unsafe_code)]

use super::config::Config;
use crate::protocol::budget::CqBudget;
use crate::protocol::layout::{Kind, Layout, Queue};
use std::sync::Arc;
use verbs::Cq;

/// Send work queue entries of a per-peer queue pair that data never takes: one credit message, one
/// CTS.
pub const CONTROL_WQES: u16 = 2;

/// Entries of a per-peer send queue besides those for data: credit messages and the CTS.
const CONTROL_SENDS: u32 = CONTROL_WQES as u32 + 1;

/// Markers that a send queue pair to a node may have out: one behind messages that are waited for, and
/// one when it is taken down.
pub const PATH_MARKERS: u32 = 2;

/// Send work requests that one peer's queue pair holds: messages, control messages, on the largest
/// queue RDMA operations.
pub(crate) fn send_depth(layout: &Layout, index: usize, config: &Config) -> u32 {
    let queue = &layout.queues()[index];
    let messages = match queue.kind {
        Kind::PerPeer { .. } => u32::from(queue.rd_num) + CONTROL_SENDS,
        Kind::Shared(srq) | Kind::Xrc(srq) => srq.sd_max.into(),
    };
    messages + if index == layout.largest() { config.rdma_depth } else { 0 }
}

/// Send work requests that the queue pair to this process itself holds: RDMA operations, and control
/// messages' entries, which `pump_rdma` leaves free.
pub(crate) fn depth_to_itself(config: &Config) -> u32 {
    config.rdma_depth + u32::from(CONTROL_WQES)
}

/// Sends that all X queues together have in flight, to all peers; 0 in other layouts.
pub(crate) fn shared_sends(layout: &Layout) -> u32 {
    let sends = |queue: &Queue| match queue.kind {
        Kind::Xrc(srq) => u32::from(srq.sd_max),
        Kind::PerPeer { .. } | Kind::Shared(_) => 0,
    };
    layout.queues().iter().map(sends).sum()
}

/// Receives that all shared queues together hold.
pub(crate) fn shared_receives(layout: &Layout) -> u32 {
    layout.queues().iter().filter(|queue| !queue.is_per_peer()).map(|queue| u32::from(queue.rd_num)).sum()
}

/// Receives that one peer's queue pair holds.
pub(crate) fn recv_depth(queue: &Queue, takes_cts: bool) -> u32 {
    queue.window().map_or(0, |w| w.receives()) + u32::from(takes_cts)
}

/// A completion queue has no room for what one more connection may cause.
#[derive(Debug, thiserror::Error)]
#[error(
    "a completion queue needs {needs} entries, has {has}, and cannot grow: {why}; start with a larger btl_oxib_cq_size, or a \
         layout and btl_oxib_rdma_depth with fewer work requests"
)]
pub struct CqTooSmall {
    needs: u32,
    has: u32,
    why: verbs::Error,
}

/// A completion queue, and the entries of it that are reserved.
#[derive(Debug)]
pub struct CqRoom {
    cq: Arc<Cq>,
    budget: CqBudget,
    /// Entries of the device's largest completion queue.
    most: u32,
    /// How often it was made longer.
    grown: u32,
}

impl CqRoom {
    /// Nothing is reserved in this queue, which grows to no more than `most` entries.
    pub fn new(cq: Arc<Cq>, most: u32) -> CqRoom {
        let budget = CqBudget::new(cq.depth());
        CqRoom { cq, budget, most, grown: 0 }
    }

    /// The queue.
    pub fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// How often it was made longer.
    pub fn grown(&self) -> u32 {
        self.grown
    }

    /// Entries that are reserved.
    pub fn reserved(&self) -> u32 {
        self.budget.reserved()
    }

    /// Makes the queue long enough for `count` more completions than are reserved.
    ///
    /// # Errors
    /// The queue cannot grow.
    pub fn make_room(&mut self, count: u32) -> Result<(), CqTooSmall> {
        let needs = self.budget.reserved().saturating_add(count);
        let has = self.cq.depth();
        if needs > has {
            let depth = next_depth(needs, has, self.most);
            self.cq.resize(depth).map_err(|why| CqTooSmall { needs, has, why })?;
            self.budget.resized(self.cq.depth());
            self.grown += 1;
        }
        Ok(())
    }

    /// Reserves room for `count` more completions.
    ///
    /// # Errors
    /// The queue cannot grow; nothing is reserved then.
    pub fn reserve(&mut self, count: u32) -> Result<(), CqTooSmall> {
        self.make_room(count)?;
        // A device that grants less than was asked for has answered with an error above.
        let _ = self.budget.reserve(count);
        Ok(())
    }

    /// These completions have been polled, or will never come.
    pub fn release(&mut self, count: u32) {
        self.budget.release(count);
    }
}

/// Twice what it has, to grow seldom, but for that alone not beyond the device's limit.
fn next_depth(needs: u32, has: u32, most: u32) -> u32 {
    needs.max(has.saturating_mul(2).min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_queue_doubles_as_far_as_the_device_goes_and_takes_what_is_needed_at_once() {
        assert_eq!(next_depth(9000, 8192, 32767), 16384);
        assert_eq!(next_depth(17000, 16384, 32767), 32767);
        assert_eq!(next_depth(40000, 8192, 1 << 20), 40000);
        assert_eq!(next_depth(40000, 32767, 32767), 40000); // refused by the device, which says why
    }
}
