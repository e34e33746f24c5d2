//! The workspace's own tests, unit and property, by `cargo test`: compiled first, for as long as that takes; then run, a line a
//! test binary, failures in full. Only what runs has a limit, and that is on silence: a test that has ended counts as a word.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::report::phase;
use crate::workspace::cargo;
use e2e::failure::Context;
use e2e::output::SignOfLife;
use e2e::process::{Limits, run};
use e2e::suite::Tally;
use e2e::{Result, say};

/// How many seeds each of the simulator's storms is run with for `--all` (cpc/tests/simulator_storms.rs), beside the whole sweep of calls
/// that fail (btl/tests/transport_sweep.rs) and every point at which a process is killed (btl/tests/transport_points.rs).
const STORMS: &str = "100";
/// No test has ended for so long: something hangs.
const SILENCE: Duration = Duration::from_secs(15 * 60);
/// A storm of 100 seeds is one test.
const SILENCE_OF_STORMS: Duration = Duration::from_secs(2 * 3600);

/// All of them.
///
/// # Errors
/// Cargo cannot be started.
pub fn run_all(root: &Path, all: bool) -> Result<Tally> {
    let compiled = phase("compiling the unit and property tests", |_| compile(root))?;
    if !compiled {
        let failed = vec!["the unit and property tests compile (cargo's messages are above)".to_owned()];
        return Ok(Tally { failed, ..Tally::default() });
    }
    phase("running the unit and property tests", |sign| run_compiled(root, all, sign))
}

fn compile(root: &Path) -> Result<bool> {
    let mut cargo = cargo();
    cargo.args(["test", "--workspace", "--no-run"]).current_dir(root).stdin(Stdio::null());
    Ok(cargo.status().context("cannot run cargo")?.success())
}

/// The protocols between threads, in all interleavings, under loom: another build of the crates that have such, with `--cfg loom`.
///
/// # Errors
/// Cargo cannot be started.
pub fn run_models(root: &Path, target: &Path) -> Result<Tally> {
    let mut all = Tally::default();
    for words in MODELS {
        let name = format!("running in loom: {}", words.join(" "));
        let tally = phase(&name, |sign| {
            let mut command = piped(root);
            command.args(["test", "--no-fail-fast", "--target-dir"]).arg(target.join("loom")).args(*words);
            command.env("RUSTFLAGS", "--cfg loom").env("LOOM_MAX_PREEMPTIONS", PREEMPTIONS);
            counted(&mut command, SILENCE, sign)
        })?;
        all.add(tally);
    }
    Ok(all)
}

/// What of which crate; `softib/src/shm/word.rs` has the device's list.
const MODELS: &[&[&str]] = &[
    &["-p", "softib", "--test", "handover", "--test", "claims", "--test", "tables", "--test", "fault"],
    &["-p", "sync", "--test", "lock"],
    &["-p", "btl", "--lib", "marks"],
];
/// Switches between threads where none has to wait, in one interleaving; loom's authors find nearly all with two or three.
const PREEMPTIONS: &str = "3";

fn run_compiled(root: &Path, all: bool, sign: &SignOfLife) -> Result<Tally> {
    let mut command = piped(root);
    command.args(["test", "--workspace", "--no-fail-fast"]);
    if all {
        command.env("OXIB_SIM_ROUNDS", STORMS).env("OXIB_SWEEP", "all").env("OXIB_POINTS", "all");
    }
    counted(&mut command, if all { SILENCE_OF_STORMS } else { SILENCE }, sign)
}

/// Cargo with one pipe for both streams: it names a test binary on one, and the binary counts on the other.
fn piped(root: &Path) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "exec \"$0\" \"$@\" 2>&1"]).arg(cargo().get_program()).current_dir(root);
    command
}

fn counted(command: &mut Command, silence: Duration, sign: &SignOfLife) -> Result<Tally> {
    let mut count = Count::default();
    let finished = run(command, Limits::silence(silence.as_secs()), &mut |line| {
        if let Some(text) = count.line(line) {
            say!("{text}");
            sign.heard();
        }
        sign.now(count.progress());
    })?;
    let mut tally = count.tally;
    if !finished.ok() && tally.failed.is_empty() {
        let slow: Vec<String> = count.slow.into_iter().collect();
        let running =
            if slow.is_empty() { String::new() } else { format!("; still running: {}", slow.join(", ")) };
        tally.failed.push(format!("cargo test {}{running}", finished.describe()));
    }
    Ok(tally)
}

/// Reads cargo test's output: `Running ... (target/debug/deps/NAME-HASH)` and `test NAME ... ok` for each binary, `---- NAME
/// stdout ----` before a failure's output, `skipped: NAME: REASON` from a test that cannot be run here, `test result: ...` at the end of each binary.
#[derive(Default)]
struct Count {
    tally: Tally,
    /// Failures of this binary whose names were read.
    named: usize,
    /// Tests of this binary that have passed themselves over.
    skipped: usize,
    binary: String,
    /// Tests of this binary that have ended.
    ended: usize,
    /// Tests that libtest has called slow, and that have not ended since.
    slow: BTreeSet<String>,
}

impl Count {
    /// Takes a line; returns what is to be shown.
    fn line(&mut self, line: &str) -> Option<String> {
        if let Some(binary) = running(line) {
            (self.binary, self.ended) = (binary, 0);
            return None;
        }
        if let Some(summary) = line.strip_prefix("test result: ") {
            return self.summary(summary);
        }
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.tally.failed.push(name.to_owned());
            self.named += 1;
        }
        if let Some((name, reason)) = line.strip_prefix("skipped: ").and_then(|rest| rest.split_once(": ")) {
            self.tally.skipped.push((name.to_owned(), reason.to_owned()));
            self.skipped += 1;
            return None;
        }
        if let Some((name, slow)) = test(line) {
            self.ended += usize::from(!slow);
            if slow {
                self.slow.insert(name.to_owned())
            } else {
                self.slow.remove(name)
            };
            return (slow || line.ends_with("FAILED")).then(|| line.to_owned());
        }
        let boring = line.trim().is_empty() || line.starts_with("running ");
        (!boring).then(|| line.to_owned())
    }

    fn summary(&mut self, summary: &str) -> Option<String> {
        let (passed, failed) = (number(summary, " passed"), number(summary, " failed"));
        // One that passes itself over has passed, says libtest.
        self.tally.passed += passed.saturating_sub(std::mem::take(&mut self.skipped));
        let nameless = failed.saturating_sub(self.named);
        self.tally.failed.extend((0..nameless).map(|_| "a test of cargo test, shown above".to_owned()));
        self.named = 0;
        let took = summary.rsplit("finished in ").next().unwrap_or_default().trim_end_matches('s');
        let word = if failed > 0 { format!("FAIL {failed} of") } else { "ok  ".to_owned() };
        (passed + failed > 0)
            .then(|| format!("{word} {:>4} tests {took:>7} s  {}", passed + failed, self.binary))
    }

    /// What is being done, for a sign of life.
    fn progress(&self) -> String {
        let total = self.tally.passed + self.tally.failed.len();
        format!("tests of {} ({} ended, {total} before them)", self.binary, self.ended)
    }
}

/// `     Running tests/errors.rs (target/debug/deps/errors-0123)`, `   Doc-tests softib`
fn running(line: &str) -> Option<String> {
    if let Some(name) = line.trim_start().strip_prefix("Doc-tests ") {
        return Some(format!("the documentation of {name}"));
    }
    let (path, binary) = line.trim_start().strip_prefix("Running ")?.split_once(" (")?;
    let stem = Path::new(binary.trim_end_matches(')')).file_name()?.to_str()?.rsplit_once('-')?.0.to_owned();
    Some(match path.strip_prefix("unittests ") {
        Some(path) => format!("{stem}, {path}"),
        None => path.to_owned(),
    })
}

/// `test NAME ... ok`: the name; and whether libtest says that it has been running for long.
fn test(line: &str) -> Option<(&str, bool)> {
    let rest = line.strip_prefix("test ")?;
    if let Some((name, _)) = rest.split_once(" has been running for over") {
        return Some((name, true));
    }
    let (name, outcome) = rest.split_once(" ... ")?;
    let known = ["ok", "FAILED", "ignored"].iter().any(|word| outcome.starts_with(word));
    known.then_some((name, false))
}

/// The number before this word in `ok. 9 passed; 0 failed; ...`.
fn number(summary: &str, what: &str) -> usize {
    let clause = summary.split([';', '.']).find(|clause| clause.trim().ends_with(what));
    clause.and_then(|clause| clause.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(lines: &[&str]) -> (Count, Vec<String>) {
        let mut count = Count::default();
        let shown = lines.iter().filter_map(|line| count.line(line)).collect();
        (count, shown)
    }

    #[test]
    fn the_summaries_of_cargo_test_are_added_up_and_failures_keep_their_names() {
        let (count, _) = shown(&[
            "test result: ok. 9 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 5.22s",
            "running 14 tests",
            "---- module::one stdout ----",
            "test result: FAILED. 8 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 602.02s",
        ]);
        assert_eq!((count.tally.passed, count.tally.failed.len()), (17, 2));
        assert_eq!(count.tally.failed[0], "module::one");
    }

    #[test]
    fn a_binary_is_one_line_and_what_a_failed_test_said_is_shown() {
        let (_, shown) = shown(&[
            "     Running unittests src/lib.rs (target/debug/deps/softib-01)",
            "",
            "running 2 tests",
            "test one ... ok",
            "test two ... FAILED",
            "---- two stdout ----",
            "what it said",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s",
        ]);
        let expected = [
            "test two ... FAILED",
            "---- two stdout ----",
            "what it said",
            "FAIL 1 of    2 tests    1.50 s  softib, src/lib.rs",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_test_that_passes_itself_over_is_counted_as_skipped_with_its_reason() {
        let (count, shown) = shown(&[
            "skipped: one: another Open MPI",
            "test one ... ok",
            "test two ... ok",
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        ]);
        assert_eq!(count.tally.to_string(), "1 passed, 0 failed, 1 skipped");
        assert_eq!(count.tally.skipped, [("one".to_owned(), "another Open MPI".to_owned())]);
        assert_eq!(shown.len(), 1);
    }

    #[test]
    fn a_test_that_hangs_is_named_by_what_libtest_said_of_it() {
        let (count, _) = shown(&[
            "     Running tests/errors.rs (target/debug/deps/errors-01)",
            "test one has been running for over 60 seconds",
            "test two has been running for over 60 seconds",
            "test one ... ok",
        ]);
        assert_eq!(count.slow.into_iter().collect::<Vec<_>>(), ["two"]);
        assert_eq!(count.binary, "tests/errors.rs");
    }
}
