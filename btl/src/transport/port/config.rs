//! What a transport is told from outside.
#![forbid(unsafe_code)]

pub use crate::protocol::hold::Bound;
use crate::protocol::layout::{Layout, Queue};
pub use crate::transport::channel::Signalling;
use std::path::PathBuf;
use std::time::Duration;
use verbs::Context;

/// Messages of so many bytes the software device hands over where they lie; shorter ones it copies faster than it asks for their lines.
pub const PLACED_FROM: u32 = 500;

/// Short messages are written into rings in their receivers' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eager {
    /// Messages that a ring holds.
    pub slots: u16,
    /// A peer is offered rings when so many messages have come from it.
    pub threshold: u32,
    /// So many peers have rings at a time.
    pub most: u16,
    /// Rings that have not been used for so many looks, a multiple of 256, are looked at less often.
    pub cooling: u32,
    /// Messages have checksums: the device may write the bytes of a request in any order.
    pub checks: bool,
}

/// Settings of one transport, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The BSRQ layout.
    pub layout: Layout,
    /// Bytes that may travel inline; less where the device's queue pairs take less.
    pub max_inline: u32,
    /// Messages of one piece of memory, up to 16 KiB, go from there: the device copies them as they are posted, as the software
    /// device does at no more than the copy that it makes of a buffer. No copy of them is kept, so that they can't be replayed: only without
    /// `reconnects`.
    pub gathers: bool,
    /// Send buffers of each queue that may be out at a time before a sender has to wait; 0: no
    /// limit.
    pub pool_limit: u32,
    /// Registered memory of a queue pair into which messages are copied that are too long to go inline: bytes, 0 for none, and how many queue pairs have
    /// some at a time.
    pub send_rings: (u32, u16),
    /// Short messages go by eager RDMA; no copies of them are kept, so that they can't be replayed: only without `reconnects`.
    pub eager: Option<Eager>,
    /// Buffers by which a pool grows.
    pub pool_grow: u32,
    /// How many requests may go unsignalled, one after the other.
    pub signalling: Signalling,
    /// How many answers may wait before messages are held back.
    pub hold: Bound,
    /// First depth of the completion queues; they grow as peers come.
    pub cq_size: u32,
    /// IB coded delay that we ask senders to wait when a shared queue is empty (IBTA table 45).
    pub min_rnr_timer: u8,
    /// IB coded acknowledgement timeout: 4.096 us times two to this power.
    pub timeout: u8,
    /// Retries on a missing acknowledgement, 0 to 7.
    pub retry_count: u8,
    /// Retries on RNR for shared queues, 7: without end. Per-peer queues never see RNR and get 0.
    pub rnr_retry: u8,
    /// RDMA reads in flight on a queue pair.
    pub rd_atomic: u8,
    /// Entries of the last queue's send queue that RDMA operations may take besides messages.
    pub rdma_depth: u32,
    /// Service level.
    pub service_level: u8,
    /// How long MPI_Finalize waits for what is still queued to a peer that does not take it.
    pub drain: Duration,
    /// A peer that has said nothing for so long, and that nothing is on its way to, is asked whether it is there. Zero: none is.
    pub keepalive: Duration,
    /// How often in a row a connection that breaks is replaced by another one over which nothing gets done. 0: never.
    pub reconnects: u8,
    /// Keep the timelines of endpoints that go, for [`super::Transport::timelines`].
    pub keep_timelines: bool,
    /// X queues: the file that stands for the domain of this job's processes on this node. It is
    /// made if it is not there, and removed at the end.
    pub xrc_domain: PathBuf,
    /// The connection managers.
    pub cpc: cpc::Config,
}

impl Config {
    /// How short messages go by eager RDMA on this device, if they do: over a first queue of their peer's own. Not on iWARP, where nothing says when
    /// what was written can be read.
    pub fn rings(&self, device: &Context) -> Option<Eager> {
        let is_per_peer = self.layout.queues().first().is_some_and(Queue::is_per_peer);
        self.eager
            .filter(|eager| eager.most != 0 && is_per_peer && self.reconnects == 0 && !device.is_iwarp())
    }

    /// Connections over a port of this device that break are replaced by others: not over X queues, which take another send queue pair, and not on
    /// iWARP.
    pub fn replaces(&self, device: &Context) -> bool {
        self.reconnects != 0 && !self.layout.is_xrc() && !device.is_iwarp()
    }
}
