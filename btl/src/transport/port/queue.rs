//! What all peers share of one queue of the layout: its sending side has buffers and send slots,
//! its receiving side buffers and the shared receive queue.
#![forbid(unsafe_code)]

use super::buffer::SendBuf;
use crate::protocol::pending::Shares;
use crate::protocol::wire::HEADER_LEN;
use crate::transport::wrid::Kind;
use std::sync::Arc;
use verbs::{Access, Buf, Pd, Pool, PoolConfig, PoolError, Srq};

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
    /// Refill when no more than this many of `limit` are posted (rd_low).
    pub low: u32,
    /// The device tells when fewer than this many are left; 0: it does not.
    pub srq_limit: u32,
    /// Slots whose buffers have been consumed.
    pub consumed: Vec<u32>,
    /// How often it grew.
    pub grown: u32,
}

/// Why a shared queue holds less than it should.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// No buffer.
    #[error(transparent)]
    Buffer(#[from] PoolError),
    /// The device does not take it.
    #[error(transparent)]
    Post(#[from] verbs::Error),
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
    /// No more than `total` at a time, over all peers.
    pub fn new(total: u32) -> SendSlots {
        SendSlots { shares: Shares::new(total, total.div_ceil(2)), wanted: false }
    }

    /// Takes one for `peer`; `false`: none is left for it.
    #[inline]
    pub fn take(&mut self, peer: u32) -> bool {
        let taken = self.shares.take(peer).is_ok();
        self.wanted |= !taken;
        taken
    }

    /// Takes one for `peer` if they do not become scarce by that.
    #[inline]
    pub fn take_plenty(&mut self, peer: u32) -> bool {
        self.shares.take_plenty(peer)
    }

    /// Takes one for a message of our own that nothing may hold up.
    pub fn take_beyond(&mut self, peer: u32) {
        self.shares.take_beyond(peer);
    }

    /// `count` sends to `peer` are over. Whether a peer waits for that.
    #[inline]
    pub fn release(&mut self, peer: u32, count: u16) -> bool {
        self.shares.release_many(peer, count.into());
        std::mem::take(&mut self.wanted)
    }

    /// The next peer may have to wait for one, so that this send is signalled. Those that are not
    /// hold less than half of all, and a peer may hold half: when one has to wait, a signalled send
    /// is in flight.
    #[inline]
    pub fn are_scarce(&self) -> bool {
        !self.shares.is_plenty()
    }

    /// The peer is gone, and completions of its sends will not be looked at any more. Whether another one waits for what it held.
    pub fn forget(&mut self, peer: u32) -> bool {
        let held = self.shares.held(peer);
        for _ in 0..held {
            self.shares.release(peer);
        }
        held != 0 && std::mem::take(&mut self.wanted)
    }

    /// Those that no peer holds.
    pub fn free(&self) -> u32 {
        self.shares.free()
    }
}

/// The sending side of one queue of the layout.
#[derive(Debug)]
pub struct SendQueue {
    /// Buffers: header room and payload.
    pub bufs: Pool,
    /// Who holds how many of the buffers that the limit allows.
    pub shares: Shares,
    /// Of a shared queue: the sends in flight that are still allowed, over all peers (sd_max).
    pub slots: Option<SendSlots>,
}

/// The receiving side of one queue of the layout.
#[derive(Debug)]
pub struct RecvQueue {
    /// Buffers: header room and payload.
    pub bufs: Pool,
    /// Set for shared queues.
    pub shared: Option<Shared>,
}

/// Buffers that carry `size` bytes.
pub fn pool(pd: &Arc<Pd>, size: u32, grow_by: u32) -> Pool {
    let buf_len = size + HEADER_LEN as u32;
    Pool::new(pd, PoolConfig { buf_len, align: ALIGN, grow_by, max: 0, access: Access::LOCAL_WRITE })
}

/// Buffers that the value before an atomic comes into.
pub fn words(pd: &Arc<Pd>) -> Pool {
    let access = Access::LOCAL_WRITE;
    Pool::new(pd, PoolConfig { buf_len: 8, align: 8, grow_by: 64, max: 0, access })
}

impl SendQueue {
    /// No more than `limit` (0: any number) of the buffers are handed to callers that can wait.
    pub fn new(bufs: Pool, limit: u32, slots: Option<SendSlots>) -> SendQueue {
        let limit = if limit == 0 { u32::MAX } else { limit };
        SendQueue { bufs, shares: Shares::new(limit, limit.div_ceil(2)), slots }
    }

    /// A buffer of this peer's share of the pool of queue `class`, if there is one at once.
    pub fn take_of(&mut self, peer: u32, class: u8) -> Option<SendBuf> {
        self.shares.take(peer).ok()?;
        match self.bufs.take() {
            Ok(buf) => Some(SendBuf { buf, class, share: Some(peer) }),
            Err(_) => {
                self.shares.release(peer);
                None
            }
        }
    }

    /// The same if they do not become scarce by that, and the pool need not grow.
    #[inline(always)] // with every message
    pub fn take_plenty(&mut self, peer: u32) -> Option<Buf> {
        if !self.shares.take_plenty(peer) {
            return None;
        }
        let buf = self.bufs.take_free();
        if buf.is_none() {
            self.shares.release(peer);
        }
        buf
    }

    /// The next caller may have to wait for a buffer, as with [`SendSlots::are_scarce`].
    pub fn bufs_are_scarce(&self) -> bool {
        !self.shares.is_plenty()
    }

    /// An unused buffer comes back.
    #[inline]
    pub fn take_back(&mut self, buf: SendBuf) {
        self.release_share(buf.share);
        self.bufs.put(buf.buf);
    }

    /// A buffer of this peer's share has come back.
    #[inline]
    pub fn release_share(&mut self, share: Option<u32>) {
        if let Some(peer) = share {
            self.shares.release(peer);
        }
    }
}

impl Shared {
    /// A queue of up to `limit` buffers that starts with `initial` and refills at `low` of `limit`.
    pub fn new(srq: Arc<Srq>, (limit, initial, low): (u32, u32, u32), srq_limit: u32) -> Shared {
        let (kind, target) = (Kind::Shared, initial.clamp(1, limit));
        Shared { srq, kind, posted: 0, target, limit, low, srq_limit, consumed: Vec::new(), grown: 0 }
    }

    /// The same of an XRC domain: who sent a message is in its header.
    pub fn over_xrc(self) -> Shared {
        Shared { kind: Kind::Xrc, ..self }
    }

    /// Asks for an event when the queue runs low, as long as it can still grow.
    ///
    /// # Errors
    /// The device has no such event.
    pub fn arm_limit(&self) -> Result<(), verbs::Error> {
        match self.srq_limit {
            0 => Ok(()),
            _ if self.target == self.limit => Ok(()),
            limit => self.srq.set_limit(limit),
        }
    }

    /// Refill now? rd_low is given for a full queue; a shorter one waits for as many, or for a quarter of what it holds: one call of the
    /// device posts them all.
    #[inline]
    pub fn refill_due(&self) -> bool {
        self.posted + self.batch() <= self.target
    }

    /// The same, and it cannot wait until nothing else is to be done.
    #[inline]
    pub fn refill_presses(&self) -> bool {
        self.posted + 2 * self.batch() <= self.target
    }

    #[inline]
    fn batch(&self) -> u32 {
        self.limit.saturating_sub(self.low).min(self.target / 4).max(1)
    }

    /// The queue was found nearly empty: keep twice as many from now on. Whether it could grow.
    pub fn grow(&mut self) -> bool {
        let grown = (self.target * 2).min(self.limit);
        let did = grown > self.target;
        self.target = grown;
        self.grown += u32::from(did);
        did
    }
}
