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

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of SplitMix64 for the seed 1234567, of the author's C program.
    #[test]
    fn the_generator_is_splitmix64() {
        let mut rng = Rng::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| rng.next()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        let high = Rng::new(1_234_567).next_u32();
        assert_eq!(u64::from(high), first[0] >> 32);
    }

    #[test]
    fn jitter_covers_a_quarter_to_either_side_and_no_more() {
        let (mut rng, wait) = (Rng::new(1), Duration::from_secs(1));
        let waits: Vec<Duration> = (0..10_000).map(|_| rng.jitter(wait)).collect();
        let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
        assert_eq!((*least, *most), (Duration::from_millis(750), Duration::from_millis(1250)));
    }
}
