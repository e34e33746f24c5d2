//! The longest queues that the device makes.

use crate::shm::layout::ARENA;
use crate::shm::rq::Shape;

/// Largest depth of a CQ, in completions.
pub const MAX_CQE: u32 = 1 << 20;

/// Deepest send, receive or shared receive queue, in work requests.
pub const MAX_WR: u32 = 1 << 15;
const _: () = assert!(Shape { size: MAX_WR, shared: true }.bytes() <= ARENA);
