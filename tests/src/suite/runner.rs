//! Runs cases one after another: a line a case, failures in full, skipped ones with the reason, a count at the end.
//!
//! After every case, whatever it found, nothing of it may be left: processes are looked for by [`crate::process`], segments here.

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::machine::Litter;
use crate::output::{self, SignOfLife};
use crate::suite::drawn::Drawn;
use crate::suite::{Case, Setting, Verdict};
use crate::{Failure, Result, say};

const UNREAD: &str = "the cases after that were not run: a signal, or the reader of standard output or standard error has gone";

/// How many passed, and the names of those that failed or were skipped.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Cases that held.
    pub passed: usize,
    /// Names of those that did not.
    pub failed: Vec<String>,
    /// Names of those that cannot be run here, each with its reason.
    pub skipped: Vec<(String, String)>,
}

impl Tally {
    /// Counts what another part of the run has come to.
    pub fn add(&mut self, part: Tally) {
        self.passed += part.passed;
        self.failed.extend(part.failed);
        self.skipped.extend(part.skipped);
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed.len())?;
        if self.skipped.is_empty() { Ok(()) } else { write!(f, ", {} skipped", self.skipped.len()) }
    }
}

/// Runs those of `cases` whose name contains one of `filters` (all, without filters).
pub fn run(setting: &Setting, cases: &[Case], filters: &[String]) -> Tally {
    let chosen = choose(cases, filters);
    let _until_the_end = Litter::of_programs();
    let mut tally = Tally::default();
    for (number, case) in chosen.iter().enumerate() {
        if output::is_over() {
            tally.failed.push(UNREAD.to_owned());
            break;
        }
        one(setting, case, (number + 1, chosen.len()), &mut tally);
    }
    tally
}

/// Runs them again and again until `time` is over, each round in another order and each of our programs with a thread level, ranks and a
/// `max_unsig_wrs` ([`Drawn`]) that come from `seed`: what fails once in hundreds of runs, or only after a certain other case, shows here. The first failure is told
/// again at the end, in full and with the seed.
pub fn soak(setting: &Setting, cases: &[Case], filters: &[String], time: Duration, seed: u64) -> Tally {
    let mut chosen = choose(cases, filters);
    let _until_the_end = Litter::of_programs();
    let (mut tally, mut order) = (Tally::default(), SmallRng::seed_from_u64(seed));
    let (mut first, mut round) = (None, 0);
    let end = Instant::now() + time;
    while !chosen.is_empty() && Instant::now() < end && !output::is_over() {
        chosen.shuffle(&mut order);
        round += 1;
        for (number, case) in chosen.iter().enumerate() {
            if Instant::now() >= end || output::is_over() {
                break;
            }
            let drawn = Drawn::from(&mut order);
            setting.draw(Some(drawn).filter(|_| case.takes_drawn));
            let failure = one(setting, case, (number + 1, chosen.len()), &mut tally);
            let place = || {
                format!("case {} of round {round} with --seed {seed}: {}", number + 1, title(setting, case))
            };
            first = first.or_else(|| failure.map(|text| (place(), text)));
        }
    }
    setting.draw(None);
    if let Some((place, text)) = first {
        say!("\nthe first failure, {place}\n{}", crate::mpirun::indent(&text));
    }
    tally
}

fn choose<'a>(cases: &'a [Case], filters: &[String]) -> Vec<&'a Case> {
    cases.iter().filter(|case| wanted(&case.name, filters)).collect()
}

/// Runs one and counts it; what went wrong.
fn one(setting: &Setting, case: &Case, (number, of): (usize, usize), tally: &mut Tally) -> Option<String> {
    let began = Instant::now();
    let title = title(setting, case);
    let sign = SignOfLife::of(format!("[{number:>3}/{of}] {title}"));
    let outcome = watched(setting, case);
    drop(sign);
    say(number, of, began.elapsed(), &title, &outcome);
    match outcome {
        Ok(Verdict::Held) => tally.passed += 1,
        Ok(Verdict::Skipped(reason)) => tally.skipped.push((case.name.clone(), reason)),
        Err(Failure(text)) => {
            tally.failed.push(case.name.clone());
            return Some(text);
        }
    }
    None
}

/// Its name, with what has been drawn for it.
fn title(setting: &Setting, case: &Case) -> String {
    setting.drawn().map_or_else(|| case.name.clone(), |drawn| format!("{} [{drawn}]", case.name))
}

/// True when a filter is part of the name, or there is none.
pub fn wanted(name: &str, filters: &[String]) -> bool {
    filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
}

/// The case, and a look at what it left in shared memory.
fn watched(setting: &Setting, case: &Case) -> Result<Verdict> {
    let outcome = case.run(setting);
    let left = setting.segments.contents();
    setting.segments.clear();
    match outcome {
        Ok(_) if !left.is_empty() => Err(Failure(format!("segments were left behind: {left:?}"))),
        outcome => outcome,
    }
}

fn say(number: usize, of: usize, took: Duration, name: &str, outcome: &Result<Verdict>) {
    let seconds = took.as_secs_f64();
    match outcome {
        Ok(Verdict::Held) => say!("[{number:>3}/{of}] ok   {seconds:6.1} s  {name}"),
        Ok(Verdict::Skipped(reason)) => {
            say!("[{number:>3}/{of}] skip {seconds:6.1} s  {name}: {reason}");
        }
        Err(Failure(text)) => {
            say!("[{number:>3}/{of}] FAIL {seconds:6.1} s  {name}");
            say!("{}", crate::mpirun::indent(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenMpi;
    use crate::machine::SegmentFolder;
    use crate::mpirun::Transport;
    use crate::programs::Programs;
    use std::cell::RefCell;
    use std::ops::Deref;
    use std::rc::Rc;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A setting whose folder goes with it.
    struct Scratch(Setting);

    impl Deref for Scratch {
        type Target = Setting;

        fn deref(&self) -> &Setting {
            &self.0
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0.sources).unwrap();
        }
    }

    fn setting() -> Scratch {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name =
            format!("oxib-runner-test-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let scratch = std::env::temp_dir().join(name);
        Scratch(Setting {
            plugin: scratch.clone(),
            programs: Programs::new(&OpenMpi::in_path(), &scratch, &scratch).unwrap(),
            mpi: OpenMpi::in_path(),
            transport: Transport::new("vader"),
            layouts: Vec::new(),
            segments: SegmentFolder::create().unwrap(),
            target: scratch.clone(),
            sources: scratch,
            all: false,
            drawn: Mutex::new(None),
        })
    }

    #[test]
    fn a_case_that_leaves_a_segment_has_failed_and_the_next_starts_clean() {
        let leaves = |setting: &Setting| {
            std::fs::write(setting.segments.path().join("softib-0-0"), "").map_err(|e| Failure(e.to_string()))
        };
        let cases = [Case::new("leaves one", leaves), Case::new("leaves none", |_| Ok(()))];
        assert_eq!(run(&setting(), &cases, &[]).failed, ["leaves one"]);
    }

    #[test]
    fn a_soak_repeats_the_chosen_cases_until_its_time_is_over() {
        let cases = [
            Case::new("one holds", |_| Ok(())),
            Case::new("one does not", |_| Err(Failure::new("wrong"))),
            Case::new("two", |_| Err(Failure::new("not chosen"))),
        ];
        let tally = soak(&setting(), &cases, &["one".to_owned()], Duration::from_millis(50), 1);
        assert!(tally.passed > 1 && tally.failed.len() > 1, "{tally}");
        assert!(tally.failed.iter().all(|name| name == "one does not"));
        assert_eq!(
            soak(&setting(), &cases, &["none".to_owned()], Duration::from_secs(9), 1),
            Tally::default()
        );
    }

    #[test]
    fn a_soak_draws_by_its_seed_for_the_cases_that_take_it() {
        let drawn_by = |seed| {
            let seen = Rc::new(RefCell::new(Vec::new()));
            let of_case = seen.clone();
            let notes = move |setting: &Setting| {
                of_case.borrow_mut().extend(setting.drawn());
                Ok(())
            };
            let plain = |setting: &Setting| match setting.drawn() {
                None => Ok(()),
                Some(drawn) => Err(Failure(drawn.to_string())),
            };
            let setting = setting();
            let cases = [Case::new("notes", notes).drawing(), Case::new("plain", plain)];
            let tally = soak(&setting, &cases, &[], Duration::from_secs(1), seed);
            assert_eq!((tally.failed, setting.drawn()), (Vec::new(), None), "what runs next draws nothing");
            seen.take()
        };
        let (one, again, other) = (drawn_by(1), drawn_by(1), drawn_by(2));
        let common = one.len().min(again.len()).min(other.len()).min(64);
        assert!(common > 16, "{one:?}");
        assert_eq!(one[..common], again[..common]);
        assert_ne!(one[..common], other[..common]);
    }

    #[test]
    fn failures_are_counted_and_named_and_filters_choose() {
        let fails = |_: &Setting| Err(Failure::new("wrong"));
        let cases =
            [Case::new("one holds", |_| Ok(())), Case::new("two does not", fails), Case::new("three", fails)];
        let tally = run(&setting(), &cases, &["one".to_owned(), "two".to_owned()]);
        let failed = vec!["two does not".to_owned()];
        assert_eq!(tally, Tally { passed: 1, failed, ..Tally::default() });
        assert_eq!(tally.to_string(), "1 passed, 1 failed");
    }

    #[test]
    fn a_case_that_cannot_be_run_here_is_skipped_with_its_reason_and_counted_as_neither() {
        let newer = || Case::new("needs a newer one", |_| Err(Failure::new("was run")));
        let cases = [
            newer().unless(|_| Some("this one is old".to_owned())),
            newer().below("twice").unless(|_| None),
            Case::skippable("finds out", |_| Ok(Verdict::skipped("no such device"))),
        ];
        let tally = run(&setting(), &cases, &[]);
        assert_eq!(tally.to_string(), "0 passed, 1 failed, 2 skipped");
        assert_eq!(tally.skipped[0], ("needs a newer one".to_owned(), "this one is old".to_owned()));
        assert_eq!(tally.skipped[1].1, "no such device");
    }
}
