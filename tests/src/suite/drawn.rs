//! What a soak draws for each run of one of our MPI programs: what the programs do not depend on, and a transport might.

use rand::Rng;
use rand::seq::IndexedRandom;

/// `max_unsig_wrs`: few sends go unsignalled, the default, many.
const UNSIGNALLED: [u16; 3] = [1, 16, 64];

/// `eager_rdma_num`: none (no eager RDMA), rings that are full soon, the default of the software device.
const SLOTS: [u16; 3] = [0, 4, 4096];

/// A thread level and the number of ranks, with how many sends go unsignalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Drawn {
    /// `max_unsig_wrs`.
    pub unsignalled: u16,
    /// `eager_rdma_num`.
    pub slots: u16,
    /// What MPI_Init_thread is asked for.
    pub level: Level,
    /// For programs that are not made for a certain number.
    pub ranks: usize,
}

/// A thread level, in the order of MPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// MPI_THREAD_SINGLE.
    Single,
    /// MPI_THREAD_FUNNELED.
    Funneled,
    /// MPI_THREAD_SERIALIZED.
    Serialized,
    /// MPI_THREAD_MULTIPLE.
    Multiple,
}

impl Level {
    /// All of them.
    pub const ALL: [Level; 4] = [Level::Single, Level::Funneled, Level::Serialized, Level::Multiple];

    /// As `tests/mpi/check.h` reads it from the environment.
    pub fn name(self) -> &'static str {
        match self {
            Level::Single => "single",
            Level::Funneled => "funneled",
            Level::Serialized => "serialized",
            Level::Multiple => "multiple",
        }
    }
}

impl Drawn {
    /// The next one.
    pub fn from(random: &mut impl Rng) -> Drawn {
        Drawn {
            unsignalled: UNSIGNALLED.choose(random).copied().unwrap_or(16),
            slots: SLOTS.choose(random).copied().unwrap_or(4096),
            level: Level::ALL.choose(random).copied().unwrap_or(Level::Single),
            ranks: random.random_range(2..=8),
        }
    }
}

impl std::fmt::Display for Drawn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Drawn { unsignalled, slots, level, ranks } = self;
        let level = level.name();
        write!(
            f,
            "drawn: max_unsig_wrs {unsignalled}, eager_rdma_num {slots}, thread level {level}, {ranks} ranks"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;
    use std::collections::HashSet;

    #[test]
    fn every_value_of_each_kind_is_drawn_and_a_seed_draws_the_same_again() {
        let draw = |seed| {
            let mut random = SmallRng::seed_from_u64(seed);
            (0..10_000).map(|_| Drawn::from(&mut random)).collect::<Vec<_>>()
        };
        let drawn = draw(1);
        assert_eq!(drawn, draw(1));
        let kinds = UNSIGNALLED.len() * SLOTS.len() * Level::ALL.len() * 7;
        assert_eq!(drawn.iter().collect::<HashSet<_>>().len(), kinds);
    }
}
