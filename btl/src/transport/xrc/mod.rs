//! X queues: all processes of a node behind one send queue pair.
//!
//! ```text
//!   endpoint B ─ way ─┐                      SRQ numbers of B, label of ours at B
//!   endpoint C ─ way ─┴─> path (send QP) ──> node: receive QP ──> SRQs of B, SRQs of C
//! ```
//! * Lanes have no queue pair of their own. A message is posted to the path's, and names the SRQ of its peer's queue.
//! * Who sent a message is in its header, where other queues have credits: the *label* that the receiver has given out.
//! * Everything goes from registered buffers, which are kept until the completion. So when a work request fails because
//!   one process of the node is gone, the others' that were flushed behind it are posted again over the next send queue pair,
//!   in their order, and only that process is lost (`broken`).
//! * The path holds what may be in flight on all queues, so messages need no counting of their own; RDMA operations do.
#![forbid(unsafe_code)]

mod broken;
mod domain;
mod path;
mod post;
mod recv;

pub use domain::{Domain, DomainError};
pub use path::Way;
pub(super) use path::Xrc;

use super::endpoint::EpId;
use crate::protocol::credits::Grant;

/// Peers that a label can name.
pub const MOST_PEERS: usize = 1 << 16;

/// What a peer's messages to us have to call themselves: the endpoint's index (16 bits) and the low 8 bits of its generation.
pub fn label(id: EpId) -> u32 {
    id.index & 0xffff | (id.generation & 0xff) << 16
}

/// A label as it stands in a header, in the place of the credits.
fn as_grant(label: u32) -> Grant {
    Grant { data: label as u16, ctl: (label >> 16) as u8 }
}

/// The endpoint's index in a header, and the low bits of its generation.
fn of_grant(grant: Grant) -> (usize, u8) {
    (grant.data.into(), grant.ctl)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_label_survives_its_way_through_a_header(index in 0..1_u32 << 16, generation in 0..1_u32 << 24) {
            let (found, low) = of_grant(as_grant(label(EpId { index, generation })));
            prop_assert_eq!((found as u32, u32::from(low)), (index, generation & 0xff));
        }
    }
}
