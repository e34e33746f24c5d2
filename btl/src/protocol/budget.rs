//! Budgets of send work requests and of completion queue entries.
//!
//! Every posted work request needs a slot in its send queue until it is known to be done, and a
//! slot in its completion queue whether or not it is signalled (an error completes the unsignalled
//! ones too). Both are counted here before the post, so that a post never fails with `ENOMEM` and a
//! completion queue never overruns.

#![forbid(unsafe_code)]

/// Send work requests of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendBudget {
    free: u16,
    total: u16,
}

impl SendBudget {
    /// `total` is the queue pair's granted `max_send_wr`; a larger number is cut to 65535.
    pub fn new(total: u32) -> Self {
        let total = u16::try_from(total).unwrap_or(u16::MAX);
        Self { free: total, total }
    }

    /// Takes one slot. `false`: none is free.
    #[inline]
    pub fn acquire(&mut self) -> bool {
        self.acquire_leaving(0)
    }

    /// Takes one slot if at least `reserve` remain after it: data leaves room for control messages.
    #[inline]
    pub fn acquire_leaving(&mut self, reserve: u16) -> bool {
        if self.free <= reserve {
            return false;
        }
        self.free -= 1;
        true
    }

    /// Gives `count` slots back: a completion retires everything before it on its queue pair.
    #[inline]
    pub fn release(&mut self, count: u16) {
        debug_assert!(count <= self.in_flight(), "released more work requests than were posted");
        self.free += count.min(self.in_flight());
    }

    /// Slots that are free.
    #[inline]
    pub const fn free(&self) -> u16 {
        self.free
    }

    /// All slots.
    pub const fn total(&self) -> u16 {
        self.total
    }

    /// Work requests posted and not known to be done.
    #[inline]
    pub const fn in_flight(&self) -> u16 {
        self.total - self.free
    }
}

/// Entries of one completion queue, reserved by everything that may complete on it.
///
/// Posted receives of a P queue are reserved once, when the queue is set up (they are reposted only
/// after their completion was polled); sends are reserved one by one or as the send queue's whole
/// depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqBudget {
    depth: u32,
    reserved: u32,
}

impl CqBudget {
    /// `depth` is what the completion queue really has.
    pub const fn new(depth: u32) -> Self {
        Self { depth, reserved: 0 }
    }

    /// Reserves `count` entries.
    ///
    /// # Errors
    /// The depth that the completion queue would need; nothing is reserved then.
    #[inline]
    pub fn reserve(&mut self, count: u32) -> Result<(), NeedsDepth> {
        let needed = self.reserved.saturating_add(count);
        if needed > self.depth {
            return Err(NeedsDepth(needed));
        }
        self.reserved = needed;
        Ok(())
    }

    /// Gives `count` entries back: polled, or never to come.
    #[inline]
    pub fn release(&mut self, count: u32) {
        debug_assert!(count <= self.reserved, "released more completions than were reserved");
        self.reserved = self.reserved.saturating_sub(count);
    }

    /// The completion queue was resized. `false`, and nothing changes, if `depth` does not hold
    /// what is reserved.
    pub fn resized(&mut self, depth: u32) -> bool {
        let ok = depth >= self.reserved;
        if ok {
            self.depth = depth;
        }
        ok
    }

    /// Entries reserved.
    pub const fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Entries left.
    pub const fn free(&self) -> u32 {
        self.depth - self.reserved
    }
}

/// A completion queue is too small: resize it to at least this many entries, or wait for
/// completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("completion queue needs {0} entries")]
pub struct NeedsDepth(pub u32);
