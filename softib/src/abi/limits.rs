//! The longest queues that the device makes.

/// Largest depth of a CQ, and of a send or receive queue.
pub const MAX_CQE: u32 = 1 << 20;

/// Deepest send or receive queue, in work requests.
pub const MAX_WR: u32 = 1 << 15;
