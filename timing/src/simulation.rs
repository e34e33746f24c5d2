//! Virtual time, and workers without threads.

use crate::{VIRTUAL, now, origin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Work that is done beside the application's thread.
pub trait Worker: Send {
    /// Does what there is to do now, and waits for nothing. When it is to be called again at the latest; it may be called earlier.
    fn turn(&mut self) -> Option<Instant>;
}

struct Place {
    number: u64,
    /// Gone while it has its turn.
    worker: Option<Box<dyn Worker>>,
}

/// In the order in which they came.
static WORKERS: Mutex<Vec<Place>> = Mutex::new(Vec::new());

/// One simulation at a time.
static RUNNING: Mutex<()> = Mutex::new(());

fn workers() -> MutexGuard<'static, Vec<Place>> {
    WORKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of a worker, which it loses with this value.
#[derive(Debug)]
pub struct Employed(u64);

/// Gives turns to `worker` from now on.
pub fn employ(worker: Box<dyn Worker>) -> Employed {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    workers().push(Place { number, worker: Some(worker) });
    Employed(number)
}

impl Drop for Employed {
    fn drop(&mut self) {
        let mut workers = workers();
        let at = workers.iter().position(|place| place.number == self.0);
        let gone = at.map(|at| workers.remove(at));
        // What it holds may employ or dismiss others as it goes.
        drop(workers);
        drop(gone);
    }
}

/// One turn for each worker; the soonest time at which one wants the next.
fn turn() -> Option<Instant> {
    let numbers: Vec<u64> = workers().iter().map(|place| place.number).collect();
    numbers.into_iter().filter_map(turn_of).min()
}

fn turn_of(number: u64) -> Option<Instant> {
    let place = |places: &mut Vec<Place>| places.iter().position(|place| place.number == number);
    let mut places = workers();
    let at = place(&mut places)?;
    let mut worker = places[at].worker.take()?;
    drop(places);
    let again = worker.turn();
    let mut places = workers();
    match place(&mut places) {
        Some(at) => places[at].worker = Some(worker),
        None => {
            drop(places);
            drop(worker);
        }
    }
    again
}

/// The least that time moves, where it has to move.
const TICK: Duration = Duration::from_micros(20);

/// The most that it moves while a caller waits for something, in nanoseconds.
static MOST: AtomicU64 = AtomicU64::new(u64::MAX);

/// Workers have a turn, and the caller's next look is at the time when one has something to do.
pub(crate) fn relax() {
    let soonest = turn();
    let next = now() + TICK;
    let last = next + Duration::from_nanos(MOST.load(Ordering::Relaxed));
    set(soonest.map_or(next + 50 * TICK, |soonest| soonest.max(next)).min(last));
}

/// Numbers drawn since the simulation began.
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// The next number of a sequence that is the same in every simulation (SplitMix64).
pub(crate) fn random() -> u64 {
    let n = DRAWN.fetch_add(1, Ordering::Relaxed) + 1;
    let x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn set(time: Instant) {
    let nanoseconds = time.saturating_duration_since(origin()).as_nanos();
    VIRTUAL.fetch_max(u64::try_from(nanoseconds).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// While it lives time is virtual.
#[derive(Debug)]
pub struct Simulation {
    _running: MutexGuard<'static, ()>,
}

impl Simulation {
    /// Begins one, when no other one runs in this process. Time starts at the same moment for each, an hour after the origin, and random
    /// numbers are the same.
    pub fn begin() -> Simulation {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        VIRTUAL.store(3600 * 1_000_000_000, Ordering::Relaxed);
        DRAWN.store(0, Ordering::Relaxed);
        MOST.store(u64::MAX, Ordering::Relaxed);
        Simulation { _running: running }
    }

    /// One turn for each worker; the soonest time at which one wants the next.
    pub fn turn(&self) -> Option<Instant> {
        turn()
    }

    /// From now on a caller that waits looks again after so much at the latest, although no worker has anything to do before: one that
    /// needs several looks does not find its deadline past at the second.
    pub fn look_every(&self, most: Duration) {
        MOST.store(u64::try_from(most.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The worker that came last.
    pub fn newest(&self) -> Option<u64> {
        workers().last().map(|place| place.number)
    }

    /// A worker has no more turns, as when its process is killed.
    pub fn stop(&self, worker: u64) {
        drop(Employed(worker));
    }

    /// Moves time to `until`, if that is later than now.
    pub fn advance_to(&self, until: Instant) {
        set(until);
    }

    /// Moves time.
    pub fn advance(&self, by: Duration) {
        set(now() + by);
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        VIRTUAL.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    struct Counter(Arc<AtomicU32>, Duration);

    impl Worker for Counter {
        fn turn(&mut self) -> Option<Instant> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Some(now() + self.1)
        }
    }

    #[test]
    fn time_stands_still_until_it_is_moved_and_is_real_afterwards() {
        let simulation = Simulation::begin();
        let begin = now();
        assert!(crate::is_simulated() && now() == begin);
        simulation.advance(Duration::from_secs(5));
        assert_eq!(now() - begin, Duration::from_secs(5));
        simulation.advance_to(begin);
        assert_eq!(now() - begin, Duration::from_secs(5), "time does not go back");
        drop(simulation);
        assert!(!crate::is_simulated() && now() < begin);
    }

    #[test]
    fn random_numbers_are_the_same_in_every_simulation_and_differ_outside() {
        let some = || [crate::random(), crate::random(), crate::random()];
        let simulated = || {
            let _simulation = Simulation::begin();
            some()
        };
        let first = simulated();
        assert_eq!(first, simulated());
        assert!(first[0] != first[1] && first[1] != first[2]);
        let _real = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        assert_ne!(some(), some());
    }

    #[test]
    fn a_worker_has_turns_as_long_as_it_is_employed_and_time_moves_to_the_next() {
        let simulation = Simulation::begin();
        let (begin, turns) = (now(), Arc::new(AtomicU32::new(0)));
        let slow = employ(Box::new(Counter(turns.clone(), Duration::from_secs(9))));
        let fast = employ(Box::new(Counter(turns.clone(), Duration::from_secs(2))));
        assert_eq!(simulation.turn(), Some(begin + Duration::from_secs(2)));
        crate::relax();
        assert_eq!((turns.load(Ordering::Relaxed), now()), (4, begin + Duration::from_secs(2)));
        simulation.look_every(Duration::from_millis(1));
        crate::relax();
        assert_eq!(now(), begin + Duration::from_secs(2) + TICK + Duration::from_millis(1));
        drop(fast);
        assert_eq!(simulation.turn(), Some(now() + Duration::from_secs(9)));
        drop(slow);
        assert_eq!(simulation.turn(), None);
        assert_eq!(turns.load(Ordering::Relaxed), 7);
    }
}
