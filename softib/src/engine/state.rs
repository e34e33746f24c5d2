//! The engine's state: everything under its lock.
//!
//! Split in three so that one queue pair, one ring and the rest can be borrowed at the same time.

use super::inbound::Inbound;
use super::still::Still;
use crate::objects::qp::Qps;
use crate::objects::world::World;

/// All of it, in the parts that are borrowed at the same time.
#[derive(Debug)]
#[repr(C)] // in this order: each verb touches what comes first in it and in its parts
pub struct State {
    /// The queue pairs.
    pub qps: Qps,
    /// What the last poll has found nothing at.
    pub still: Still,
    /// The inbound rings.
    pub inbound: Inbound,
    /// The rest.
    pub w: World,
}
