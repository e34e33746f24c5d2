//! A small seeded generator (SplitMix64): ids, PSNs and jitter must be reproducible from a seed, not secret.

use std::time::Duration;

/// The generator; its state alone decides every value to come.
#[derive(Debug)]
pub struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn next_u32(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).unwrap_or(0)
    }

    /// `wait`, lengthened or shortened by up to a quarter, so that peers that lost together don't repeat together.
    pub(crate) fn jitter(&mut self, wait: Duration) -> Duration {
        let permille = 750 + self.next() % 501;
        wait.mul_f64(f64::from(u32::try_from(permille).unwrap_or(1000)) / 1000.0)
    }
}
