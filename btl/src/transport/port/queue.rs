//! What all peers share of one queue of the layout: buffers, the shared receive queue, its send
//! slots.
#![forbid(unsafe_code)]

use crate::protocol::pending::Shares;
use crate::protocol::wire::HEADER_LEN;
use crate::transport::wrid::Kind;
use std::sync::Arc;
use verbs::{Access, Pd, Pool, PoolConfig, Srq};

/// Buffers start on a cache line, so that header and first payload bytes share one.
const ALIGN: u32 = 64;

/// A shared receive queue and how full it is kept.
#[derive(Debug)]
pub struct Shared {
    /// The device's queue.
    pub srq: Arc<Srq>,
    /// What its receives are posted as.
    pub kind: Kind,
    /// Buffers that the device holds.
    pub posted: u32,
    /// Fill up to this many; grows from rd_init to rd_num as the queue proves too short.
    pub target: u32,
    /// Never more than this (rd_num).
    pub limit: u32,
    /// Refill when no more than this many are posted, as a share of `target` (rd_low of rd_num).
    pub low: u32,
    /// The device tells when fewer than this many are left; 0: it does not.
    pub srq_limit: u32,
    /// Slots whose buffers have been consumed.
    pub consumed: Vec<u32>,
    /// Sends in flight on this queue that are still allowed, over all peers (sd_max).
    pub send_slots: SendSlots,
}

/// The sends that a shared queue allows at a time. A peer whose queue is full holds its sends until
/// it takes them, so each gets a share only, as of the buffers.
#[derive(Debug)]
pub struct SendSlots {
    shares: Shares,
    /// A peer was refused since the last release.
    wanted: bool,
}

impl SendSlots {
    fn new(total: u32) -> SendSlots {
        SendSlots { shares: Shares::new(total, total.div_ceil(2)), wanted: false }
    }

    /// Takes one for `peer`; `false`: none is left for it.
    #[inline]
    pub fn take(&mut self, peer: u32) -> bool {
        let taken = self.shares.take(peer).is_ok();
        self.wanted |= !taken;
        taken
    }

    /// A send to `peer` is over. Whether a peer waits for that.
    #[inline]
    pub fn release(&mut self, peer: u32) -> bool {
        self.shares.release(peer);
        std::mem::take(&mut self.wanted)
    }

    /// The peer is gone, and completions of its sends will not be looked at any more.
    pub fn forget(&mut self, peer: u32) {
        for _ in 0..self.shares.held(peer) {
            self.shares.release(peer);
        }
    }

    /// Those that no peer holds.
    pub fn free(&self) -> u32 {
        self.shares.free()
    }
}

/// One queue of the layout, as all peers share it.
#[derive(Debug)]
pub struct QueueRes {
    /// Send buffers: header room and payload.
    pub send: Pool,
    /// Who holds how many of the send buffers that the limit allows.
    pub shares: Shares,
    /// Receive buffers.
    pub recv: Pool,
    /// Set for shared queues.
    pub shared: Option<Shared>,
}

impl QueueRes {
    /// Pools for a queue whose buffers carry `size` bytes; no more than `limit` (0: any number) of
    /// the send buffers are handed to callers that can wait.
    pub fn new(pd: &Arc<Pd>, size: u32, grow_by: u32, limit: u32) -> QueueRes {
        let config = PoolConfig {
            buf_len: size + HEADER_LEN as u32,
            align: ALIGN,
            grow_by,
            max: 0,
            access: Access::LOCAL_WRITE,
        };
        let limit = if limit == 0 { u32::MAX } else { limit };
        let shares = Shares::new(limit, limit.div_ceil(2));
        QueueRes { send: Pool::new(pd, config.clone()), shares, recv: Pool::new(pd, config), shared: None }
    }

    /// A send buffer of this peer's share has come back.
    #[inline]
    pub fn release_share(&mut self, share: Option<u32>) {
        if let Some(peer) = share {
            self.shares.release(peer);
        }
    }
}

impl Shared {
    /// A queue of up to `limit` buffers that starts with `initial` and refills at `low` of `limit`.
    pub fn new(srq: Arc<Srq>, (limit, initial, low): (u32, u32, u32), sd_max: u32, srq_limit: u32) -> Shared {
        let target = initial.clamp(1, limit);
        let send_slots = SendSlots::new(sd_max);
        let kind = Kind::Shared;
        Shared { srq, kind, posted: 0, target, limit, low, srq_limit, consumed: Vec::new(), send_slots }
    }

    /// The same of an XRC domain: who sent a message is in its header.
    pub fn over_xrc(self) -> Shared {
        Shared { kind: Kind::Xrc, ..self }
    }

    /// Refill now? rd_low is given for a full queue; a shorter one refills at the same share.
    #[inline]
    pub fn refill_due(&self) -> bool {
        u64::from(self.posted) * u64::from(self.limit) <= u64::from(self.low) * u64::from(self.target)
    }

    /// The queue was found nearly empty: keep twice as many from now on. Whether it could grow.
    pub fn grow(&mut self) -> bool {
        let grown = (self.target * 2).min(self.limit);
        let did = grown > self.target;
        self.target = grown;
        did
    }
}
