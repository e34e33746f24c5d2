//! The whole stack in virtual time: transports, connection managers and the software device of two to four processes, driven by one
//! thread, over a fabric that loses, breaks and delays, from a seed.
//!
//! ```text
//!   seed --> layout, settings, plan of faults, schedule (simulation/schedule.rs)
//!              |
//!              v
//!        Trial: acts, looks around, holds what arrives against the model (simulation/trial.rs, btl-testing)
//! ```
//! `OXIB_SEED=n` runs one seed, `OXIB_SEEDS=n` so many, from 1 on, or from `OXIB_FROM`; from 1,000,000 on the device has two ports, from
//! 2,000,000 on rdmacm makes the connections, from 3,000,000 on with messages that are late, from
//! 4,000,000 on none takes the place of another, from 5,000,000 on messages by eager RDMA may have checksums. A failure names its seed. A binary of its own: virtual time and a plan of faults are the whole process'.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

#[path = "simulation/schedule.rs"]
mod schedule;
#[path = "simulation/trial.rs"]
mod trial;

use btl_testing::watchdog::Watchdog;
use schedule::{CHECKED, FINAL, LATE, RDMACM, RINGED, TWO_PORTS};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use trial::Trial;

/// Seeds of a run that says no more, and those beyond them that have found something.
const SEEDS: u64 = 300;
const FOUND: [u64; 42] = [
    360, 624, 1352, 1412, 1502, 1584, 3207, 3264, 3920, 4839, 5376, 6190, 7038, 16_486, 21_926, 37_906,
    38_515, 63_958, 155_477, 205_516, 231_141, 234_179, 1_000_188, 1_000_226, 1_000_264, 1_001_044,
    1_001_144, 1_005_355, 1_013_206, 1_023_164, 1_024_292, 1_025_484, 1_026_952, 1_030_766, 1_031_323,
    1_035_582, 2_004_207, 2_010_542, 4_050_802, 4_103_927, 4_123_010, 4_300_846,
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a seed; the hash of all that happened.
fn run(seed: u64) -> u64 {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::new(&format!("OXIB_SEED={seed}"), Duration::from_secs(60));
    let _named = Named(seed);
    let files = open_files();
    let trace = Trial::new(seed).run();
    assert!(softib::faults::set_port(true).is_err(), "a context of the device is left behind");
    assert_eq!(open_files(), files, "files are left open");
    log::info!("seed {seed}: {trace:016x}");
    trace
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

/// Names the seed of a failure.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the failure is repeated by OXIB_SEED={} cargo test -p btl --test simulation", self.0);
        }
    }
}

#[test]
fn whatever_happens_each_message_arrives_once_or_its_endpoint_fails_and_nothing_is_left_behind() {
    let begin = Instant::now();
    let seeds: Vec<u64> = match (number("OXIB_SEED"), number("OXIB_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(count)) => (number("OXIB_FROM").unwrap_or(1)..).take(count as usize).collect(),
        (None, None) => {
            let further =
                [TWO_PORTS, RDMACM, LATE, FINAL, CHECKED, RINGED].map(|from| from..from + SEEDS / 2);
            (1..=SEEDS).chain(FOUND).chain(further.into_iter().flatten()).collect()
        }
    };
    for &seed in &seeds {
        run(seed);
    }
    println!("{} seeds in {:?}", seeds.len(), begin.elapsed());
}

#[test]
fn a_seed_does_the_same_on_every_run() {
    for seed in [1, 2, 3, 5, 8, 13, 21, 34].into_iter().chain(RDMACM..RDMACM + 8).chain(LATE..LATE + 16) {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
