//! `cargo xtask test`: unit and property tests by cargo, then the end-to-end cases, then one line that counts both.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::args::{Args, Options};
use crate::workspace::{Workspace, cargo};
use crate::{build, dropin, kernel, ompi5, packages};
use e2e::layouts;
use e2e::machine::SegmentFolder;
use e2e::mpirun::Transport;
use e2e::process::{Limits, run};
use e2e::programs::Programs;
use e2e::suite::{self, Case, Setting, Tally};
use e2e::{Failure, OpenMpi, Result};

/// What `test` understands.
pub const OPTIONS: Options = Options {
    flags: &["all", "list", "ompi5", "only-e2e", "kernel", "no-install"],
    values: &["over", "soak", "seed"],
    words: true,
};

const CARGO_TEST: Limits = Limits { deadline: Duration::from_secs(1800), silence: None };

/// `cargo xtask test`.
pub fn command(args: Args) -> Result<()> {
    if args.flag("kernel") {
        return kernel::test(&args);
    }
    let workspace = Workspace::find()?;
    if args.flag("list") {
        return list(&setting(&workspace, &args, OpenMpi::in_path())?, &args);
    }
    let soak = Soak::asked(&args)?;
    packages::ensure(&[&packages::MPI[..], &packages::TESTS].concat(), !args.flag("no-install"))?;
    let began = Instant::now();
    let setting = setting(&workspace, &args, OpenMpi::in_path())?;
    if setting.transport.needs_plugin() {
        eprintln!("building the plugin in release mode");
        build::build(&workspace, false)?;
    }
    eprintln!("building the drop-in libibverbs");
    dropin::build(&workspace)?;
    let mut total =
        if only_cases(&args) { Tally::default() } else { cargo_test(&workspace.root, args.flag("all"))? };
    if !args.flag("ompi5") {
        total.add(run_cases(&setting, &suite::cases(&setting), &args, soak));
    }
    if soak.is_none() || args.flag("ompi5") {
        total.add(with_5_0(&workspace, &args, &setting, soak)?);
    }
    if total == Tally::default() {
        total.failed.push(format!("no case is named like {:?}; --list shows them all", args.words()));
    }
    conclude(&total, began.elapsed())
}

/// A filter names end-to-end cases; whoever gives one is not waiting for the unit tests, nor is who wants Open MPI 5.0.
fn only_cases(args: &Args) -> bool {
    args.flag("only-e2e") || args.flag("ompi5") || args.value("soak").is_some() || !args.words().is_empty()
}

/// The same cases again and again: for how long, and from which seed their order comes.
#[derive(Debug, Clone, Copy)]
struct Soak {
    time: Duration,
    seed: u64,
}

impl Soak {
    fn asked(args: &Args) -> Result<Option<Soak>> {
        let number = |option: &str, text: &str| {
            text.parse::<u64>().map_err(|_| Failure(format!("--{option} {text}: a whole number is needed")))
        };
        let Some(minutes) = args.value("soak") else {
            let idle = args.value("seed").map(|_| Failure::new("--seed goes with --soak MINUTES"));
            return idle.map_or(Ok(None), Err);
        };
        let time = Duration::from_secs(60 * number("soak", minutes)?);
        let seed = args.value("seed").map(|seed| number("seed", seed)).transpose()?;
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
        println!("the same cases for {minutes} minutes, in orders that come from --seed {seed}");
        Ok(Some(Soak { time, seed }))
    }
}

fn run_cases(setting: &Setting, cases: &[Case], args: &Args, soak: Option<Soak>) -> Tally {
    match soak {
        Some(Soak { time, seed }) => suite::soak(setting, cases, args.words(), time, seed),
        None => suite::run(setting, cases, args.words()),
    }
}

/// The cases with Open MPI 5.0. That it cannot be had is a failure: who sees none has seen 5.0 at work.
fn with_5_0(
    workspace: &Workspace,
    args: &Args,
    setting_of_4_1: &Setting,
    soak: Option<Soak>,
) -> Result<Tally> {
    let names: Vec<Case> = cases_of_5_0(setting_of_4_1, args);
    if !names.iter().any(|case| suite::runner::wanted(&case.name, args.words())) {
        return Ok(Tally::default());
    }
    let mpi = match ompi5::prepare(workspace) {
        Ok(mpi) => mpi,
        Err(Failure(text)) => {
            println!("{text}");
            return Ok(Tally { failed: vec!["Open MPI 5.0 can be fetched".to_owned()], ..Tally::default() });
        }
    };
    println!("with Open MPI {}, from {}", mpi.version(), mpi.tool("mpirun").display());
    let setting = setting(workspace, args, mpi)?;
    Ok(run_cases(&setting, &cases_of_5_0(&setting, args), args, soak))
}

fn cases_of_5_0(setting: &Setting, args: &Args) -> Vec<Case> {
    if args.flag("ompi5") { suite::ompi5::cases(setting) } else { suite::ompi5::short(setting) }
}

fn setting(workspace: &Workspace, args: &Args, mpi: OpenMpi) -> Result<Setting> {
    Ok(Setting {
        plugin: workspace.plugin_folder(),
        programs: Programs::new(&mpi, &workspace.root, &workspace.target)?,
        mpi,
        transport: Transport::new(args.value("over").unwrap_or("oxib")),
        layouts: layouts::read(&workspace.root.join("configs"))?,
        segments: SegmentFolder::create()?,
        target: workspace.target.clone(),
        sources: workspace.root.join("tests"),
        all: args.flag("all"),
    })
}

fn list(setting: &Setting, args: &Args) -> Result<()> {
    let of_4_1 = if args.flag("ompi5") { Vec::new() } else { suite::cases(setting) };
    let all = of_4_1.into_iter().chain(cases_of_5_0(setting, args));
    for case in all.filter(|case| suite::runner::wanted(&case.name, args.words())) {
        println!("{}", case.name);
    }
    Ok(())
}

/// How many seeds each of the simulator's storms is run with for `--all` (cpc/tests/simulator_storms.rs).
const STORMS: &str = "100";

/// All of the workspace's own tests, shown as they run; their numbers are read from cargo's summaries.
fn cargo_test(root: &Path, all: bool) -> Result<Tally> {
    let mut count = Count::default();
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-fail-fast", "--quiet"]).current_dir(root);
    if all {
        command.env("OXIB_SIM_ROUNDS", STORMS);
    }
    let finished = run(&mut command, CARGO_TEST, &mut |line| {
        println!("{line}");
        count.line(line);
    })?;
    let mut tally = count.tally;
    if !finished.ok() && tally.failed.is_empty() {
        tally.failed.push(format!("cargo test {}", finished.describe()));
    }
    Ok(tally)
}

/// Reads cargo test's output: `---- name stdout ----` before a failure's output, `test result: ...` after each binary.
#[derive(Default)]
struct Count {
    tally: Tally,
    named: usize,
}

impl Count {
    fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.tally.failed.push(name.to_owned());
            self.named += 1;
        }
        if let Some(summary) = line.strip_prefix("test result: ") {
            self.tally.passed += number(summary, " passed");
            let nameless = number(summary, " failed").saturating_sub(self.named);
            self.tally.failed.extend((0..nameless).map(|_| "a test of cargo test, shown above".to_owned()));
            self.named = 0;
        }
    }
}

/// The number before this word in `ok. 9 passed; 0 failed; ...`.
fn number(summary: &str, what: &str) -> usize {
    let clause = summary.split([';', '.']).find(|clause| clause.trim().ends_with(what));
    clause.and_then(|clause| clause.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Names of what was skipped and of failures, time, count.
///
/// # Errors
/// Something has failed.
pub fn conclude(total: &Tally, took: Duration) -> Result<()> {
    let mut told = HashSet::new();
    for (name, reason) in total.skipped.iter().filter(|skipped| told.insert(*skipped)) {
        println!("skipped: {name}: {reason}");
    }
    for name in &total.failed {
        println!("FAILED: {name}");
    }
    println!("took {:.1} minutes", took.as_secs_f64() / 60.0);
    println!("{total}");
    if total.failed.is_empty() { Ok(()) } else { Err(Failure(total.to_string())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summaries_of_cargo_test_are_added_up_and_failures_keep_their_names() {
        let mut count = Count::default();
        for line in [
            "test result: ok. 9 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 5.22s",
            "running 14 tests",
            "---- module::one stdout ----",
            "test result: FAILED. 8 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 602.02s",
        ] {
            count.line(line);
        }
        assert_eq!((count.tally.passed, count.tally.failed.len()), (17, 2));
        assert_eq!(count.tally.failed[0], "module::one");
    }
}
