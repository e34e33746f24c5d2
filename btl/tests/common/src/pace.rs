//! The time of a world: the machine's, with the helper threads and the device thread beside it; or virtual (`timing`), where the
//! test's own thread does everything, so that a seed decides all that happens.
//!
//! Virtual time moves a little with every step, and to the next deadline of whatever waits for one when several steps in a row
//! have changed nothing.

use super::rng::Rng;
use std::time::{Duration, Instant};
use timing::Simulation;

/// Steps that change nothing before time jumps.
const QUIET: u32 = 6;
/// The farthest that it jumps: the transports' own deadlines are not asked for.
const FAR: Duration = Duration::from_millis(250);

pub struct Virtual {
    simulation: Simulation,
    /// How long steps take.
    rng: Rng,
    /// What the last step has left.
    last: u64,
    soonest: Option<Instant>,
    quiet: u32,
    /// Folded over everything that has happened.
    pub trace: u64,
}

impl Virtual {
    pub fn new(seed: u64) -> Virtual {
        let simulation = Simulation::begin();
        let rng = Rng::new(seed ^ 0x7469_6d65);
        Virtual { simulation, rng, last: 0, soonest: None, quiet: 0, trace: 0xcbf2_9ce4_8422_2325 }
    }

    /// Callers that wait look again after a moment, whoever has something to do when.
    pub fn look_often(&self) {
        self.simulation.look_every(Duration::from_millis(1));
    }

    /// The worker that came last.
    pub fn newest_worker(&self) -> u64 {
        self.simulation.newest().expect("a worker")
    }

    /// A worker has no more turns.
    pub fn stop(&self, worker: u64) {
        self.simulation.stop(worker);
    }

    /// Those beside the test's thread have a turn, and so much time passes.
    pub fn wait(&self, time: Duration) {
        self.simulation.turn();
        self.simulation.advance(time);
    }

    /// Something has happened.
    pub fn note(&mut self, what: u64) {
        self.trace = fold(self.trace, what);
    }

    /// The end of a step that has left `state`. How often the sides would have looked around in the time that has passed.
    pub fn pass(&mut self, state: u64) -> u32 {
        let soonest = self.simulation.turn();
        let moved = state != self.last || soonest != self.soonest;
        self.quiet = if moved { 0 } else { self.quiet + 1 };
        (self.last, self.soonest) = (state, soonest);
        let before = timing::now();
        self.simulation.advance(Duration::from_nanos(500 + self.rng.word() % 20_000));
        if self.quiet >= QUIET {
            let far = before + FAR;
            self.simulation.advance_to(soonest.map_or(far, |soonest| soonest.min(far)));
            self.quiet = QUIET / 2;
        }
        let passed = timing::now() - before;
        self.note(passed.as_nanos() as u64);
        self.note(state);
        u32::try_from(passed.as_micros() / 4).unwrap_or(u32::MAX).min(256)
    }
}

/// FNV-1a, a word at a time.
pub fn fold(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17)
}
