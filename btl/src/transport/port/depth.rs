//! How deep queue pairs and completion queues have to be.
#![forbid(unsafe_code)]

use super::config::Config;
use crate::protocol::budget::{CqBudget, NeedsDepth};
use crate::protocol::layout::{Kind, Layout, Queue};
use verbs::Cq;

/// Send work queue entries of a per-peer queue pair that data never takes: one credit message, one
/// CTS.
pub const CONTROL_WQES: u16 = 2;

/// Entries of a per-peer send queue besides those for data: credit messages and the CTS.
const CONTROL_SENDS: u32 = CONTROL_WQES as u32 + 1;

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

/// Sends that all X queues together have in flight, to all peers; 0 in other layouts.
pub(crate) fn shared_sends(layout: &Layout) -> u32 {
    let sends = |queue: &Queue| match queue.kind {
        Kind::Xrc(srq) => u32::from(srq.sd_max),
        Kind::PerPeer { .. } | Kind::Shared(_) => 0,
    };
    layout.queues().iter().map(sends).sum()
}

/// Receives that one peer's queue pair holds.
pub(crate) fn recv_depth(queue: &Queue, takes_cts: bool) -> u32 {
    queue.window().map_or(0, |w| w.receives()) + u32::from(takes_cts)
}

/// A completion queue has no room for what one more peer may cause.
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

/// Makes room for `count` more completions, in a device whose queues have no more than `most`
/// entries.
pub(crate) fn grow(cq: &Cq, budget: &mut CqBudget, count: u32, most: u32) -> Result<(), CqTooSmall> {
    if let Err(NeedsDepth(needs)) = budget.reserve(count) {
        let has = cq.depth();
        cq.resize(next_depth(needs, has, most)).map_err(|why| CqTooSmall { needs, has, why })?;
        budget.resized(cq.depth());
        // A device that grants less than was asked for has answered with an error above.
        let _ = budget.reserve(count);
    }
    Ok(())
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
