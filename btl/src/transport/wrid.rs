//! Work request ids of receives: what a completion needs to find its buffer, in 64 bits.
//!
//! ```text
//!   63..60 kind | 59..56 queue | 55..32 generation (24 bits) | 31..0 index
//! ```
//!
//! The index names a receive slot or an endpoint, by kind. The generation tells a stale completion
//! (of a slot or an epoch that is over) from a live one. Sends name a line (`channel::LineId`).
#![forbid(unsafe_code)]

/// What a receive was posted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Receive on a per-peer queue; index: receive slot.
    Peer = 1,
    /// Receive on a shared queue; index: receive slot.
    Shared = 2,
    /// The connection manager's one small receive for the CTS; index: endpoint.
    Cts = 3,
    /// Receive on a shared queue over XRC; index: receive slot.
    Xrc = 7,
}

/// A work request id, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrId(pub u64);

/// Generations are kept modulo this (24 bits).
pub const GENERATION_MASK: u32 = 0x00ff_ffff;

impl WrId {
    /// Packs the parts; `queue` has 4 bits, `generation` 24.
    #[inline]
    pub fn new(kind: Kind, queue: usize, generation: u32, index: u32) -> WrId {
        let high = (kind as u64) << 60 | ((queue as u64) & 0xf) << 56;
        WrId(high | u64::from(generation & GENERATION_MASK) << 32 | u64::from(index))
    }

    /// The kind, or `None` for an id that we never made.
    #[inline]
    pub fn kind(self) -> Option<Kind> {
        Some(match self.0 >> 60 {
            1 => Kind::Peer,
            2 => Kind::Shared,
            3 => Kind::Cts,
            7 => Kind::Xrc,
            _ => return None,
        })
    }

    /// Whether it is of this kind: one comparison, for the hot paths.
    #[inline]
    pub fn is(self, kind: Kind) -> bool {
        self.0 >> 60 == kind as u64
    }

    /// The queue of the layout.
    #[inline]
    pub fn queue(self) -> usize {
        (self.0 >> 56) as usize & 0xf
    }

    /// The generation of the slot, or the epoch of the endpoint.
    #[inline]
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32 & GENERATION_MASK
    }

    /// The index, by kind.
    #[inline]
    pub fn index(self) -> u32 {
        self.0 as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_part_comes_back(kind in prop::sample::select(vec![1u8, 2, 3, 7]), queue in 0usize..15, generation in 0u32..=GENERATION_MASK, index: u32) {
            let id = WrId(u64::from(kind) << 60);
            let made = WrId::new(id.kind().unwrap(), queue, generation, index);
            prop_assert_eq!(made.kind(), id.kind());
            prop_assert_eq!((made.queue(), made.generation(), made.index()), (queue, generation, index));
        }
    }

    #[test]
    fn foreign_ids_have_no_kind() {
        assert_eq!(WrId(0).kind(), None);
        assert_eq!(WrId(u64::MAX).kind(), None);
    }
}
