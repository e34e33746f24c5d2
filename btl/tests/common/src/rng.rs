//! Numbers that are the same on every run.

/// SplitMix64: small, and good enough to choose sizes and orders.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
    /// What it started with.
    pub seed: u64,
}

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed, seed }
    }

    /// The seed of a test: OXIB_SEED, else 1. Printed, so that a failure can be repeated.
    pub fn of_test(test: &str) -> Rng {
        let seed = std::env::var("OXIB_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        println!("{test}: OXIB_SEED={seed}");
        Rng::new(seed)
    }

    /// Any 64 bits (splitmix64).
    pub fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.word() % end.max(1) as u64) as usize
    }

    /// A length up to `max`: small ones, large ones and the edges all come up often.
    pub fn len(&mut self, max: usize, edges: &[usize]) -> usize {
        match self.below(4) {
            0 => edges[self.below(edges.len())].min(max),
            1 => self.below(max + 1),
            _ => self.below(max.min(200) + 1),
        }
    }
}
