//! Registered memory of queue pairs, which messages are copied into that are too long to go inline ([`Ledger::send_from`]).
//!
//! A queue pair that sends many such messages gets some, and twice as much when many have found no room there: what is in the caches is written again
//! and again as long as that will do. It keeps what it was given until it is destroyed; so many have some at a time, and there is no other bound to
//! what connections take.
//!
//! [`Ledger::send_from`]: super::Ledger::send_from
#![forbid(unsafe_code)]

use std::sync::Arc;

/// The place of one of them, free again when it is dropped.
#[derive(Debug)]
pub struct Place(
    #[expect(dead_code, reason = "there are as many places in use as there are holders of this")] Arc<()>,
);

/// The places that there are.
#[derive(Debug)]
pub struct SendRings {
    all: Arc<()>,
    /// Bytes of the longest, a power of two; 0: there are none.
    size: usize,
    most: usize,
}

impl SendRings {
    /// A message may be this part of the longest, at most.
    const PART: usize = 8;

    /// Bytes at first.
    const FIRST: usize = 8 << 10;

    /// No more than `most` at a time, of `size` bytes or the next power of two.
    pub fn new(size: u32, most: u16) -> SendRings {
        let size = if size == 0 { 0 } else { (size as usize).next_power_of_two() };
        SendRings { all: Arc::new(()), size, most: most.into() }
    }

    /// Bytes that one is to have next, which has so many and can be posted from or not. `None`: no more.
    pub fn size_after(&self, (bytes, is_registered): (usize, bool)) -> Option<usize> {
        let next = if is_registered { 2 * bytes } else { bytes.max(Self::FIRST.min(self.size)) };
        (next != 0 && next <= self.size).then_some(next)
    }

    /// A message of so many bytes, header included, may go from one.
    #[inline(always)] // with every message that is copied
    pub fn take(&self, len: usize) -> bool {
        len <= self.size / Self::PART
    }

    /// A place for one more.
    pub fn place(&self) -> Option<Place> {
        let used = Arc::strong_count(&self.all) - 1;
        (used < self.most).then(|| Place(self.all.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_places_as_are_free() {
        let rings = SendRings::new(60_000, 2);
        let mut taken: Vec<Place> = (0..3).filter_map(|_| rings.place()).collect();
        assert_eq!(taken.len(), 2);
        taken.pop();
        assert!(rings.place().is_some() && rings.place().is_some(), "one at a time");
        assert!(SendRings::new(60_000, 0).place().is_none());
    }

    #[test]
    fn memory_is_doubled_up_to_the_bound() {
        let rings = SendRings::new(20_000, 2);
        assert!(rings.take(4096) && !rings.take(4097));
        let next = |bytes, is_registered| rings.size_after((bytes, is_registered));
        assert_eq!(
            [next(0, false), next(256, false), next(8192, true)],
            [Some(8192), Some(8192), Some(16_384)]
        );
        assert_eq!(
            [next(16_384, true), next(32_768, true), next(32_768, false)],
            [Some(32_768), None, Some(32_768)]
        );
        assert_eq!(next(65_536, false), None, "copies that have not completed would not fit");
        let none = SendRings::new(0, 2);
        assert!(none.size_after((0, false)).is_none() && !none.take(1));
        assert_eq!(SendRings::new(100, 1).size_after((0, false)), Some(128));
    }
}
