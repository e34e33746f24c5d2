//! The longest queues that the device makes.

use crate::shm::layout::ARENA;
use crate::shm::rq::Shape;

/// Largest depth of a CQ, and of a send or receive queue.
pub const MAX_CQE: u32 = 1 << 20;

/// Deepest send or receive queue, in work requests.
pub const MAX_WR: u32 = 1 << 15;
const _: () = assert!(Shape { size: MAX_WR, shared: true }.bytes() <= ARENA);
