//! Names that cross every border of this crate: plain values, no verbs object behind them.

use std::fmt;

/// Name of an MPI process: job id in the upper 32 bits, rank within the job (vpid) in the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessName(pub u64);

/// Shown as `[job,rank]`, as Open MPI does.
impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{},{}]", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

/// Names an endpoint of the transport: a slot, and the generation of its tenant. A stale key never
/// names a newer endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointKey {
    /// Slot in the transport's table.
    pub index: u32,
    /// Which tenant of the slot.
    pub generation: u32,
}

/// What the main thread wants of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointCommand {
    /// There is something to send: connect, if nothing is under way yet.
    Connect,
    /// Its way to its node is broken; find another. Only X queues have such ways.
    Renew,
    /// It is gone: take its connection down.
    Remove,
    /// It is about to go: its peer may connect no more, unless it has begun to. P and S queues.
    Unlist,
    /// It has failed on this side: let the peer know, as well as the manager can. It will be
    /// removed later.
    Abandon,
    /// Data have come in on its QPs.
    FirstData,
}
