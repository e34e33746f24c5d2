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

/// Numbers the streams of messages between two endpoints, 1 to 15. A connection that takes the place of one that broke goes on with its
/// stream, if both sides still have that; else both begin another one, which has another number (protocol.md 4.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamNum(pub u8);

impl StreamNum {
    /// There is none to go on with.
    pub const NONE: StreamNum = StreamNum(0);
    /// The first follows it.
    pub(crate) const LAST: StreamNum = StreamNum(0xf);

    /// The stream of a connection between a side that has this one to go on with and one that has `theirs`: that one if it is the same, else
    /// one that neither has.
    pub fn agreed(self, theirs: StreamNum) -> StreamNum {
        if self == theirs && self != StreamNum::NONE {
            return self;
        }
        let next = self.max(theirs).following();
        // Behind the last number the first ones may be in use.
        if next == self.min(theirs) { next.following() } else { next }
    }

    fn following(self) -> StreamNum {
        StreamNum(((self.0 + 1) & StreamNum::LAST.0).max(1))
    }
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
    /// It is about to go: its peer may connect no more, unless it has begun to.
    Unlist,
    /// It has failed on this side: let the peer know, as well as the manager can. It will be
    /// removed later.
    Abandon,
    /// Data have come in on its QPs.
    FirstData,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sides_go_on_with_what_both_have_or_begin_what_neither_has() {
        let last = StreamNum::LAST.0;
        for (ours, theirs, agreed) in
            [(0, 0, 1), (7, 7, 7), (0, 7, 8), (7, 0, 8), (7, 9, 10), (last, 0, 1), (last, 1, 2), (1, last, 2)]
        {
            assert_eq!(StreamNum(ours).agreed(StreamNum(theirs)), StreamNum(agreed), "{ours}, {theirs}");
        }
    }
}
