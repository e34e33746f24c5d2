//! `cargo xtask test`: unit and property tests by cargo ([`cargo_test`]), then the end-to-end cases, then one line that counts both.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::args::{Args, Options};
use crate::report::conclude;
use crate::workspace::Workspace;
use crate::{build, cargo_test, dropin, kernel, ompi5, packages};
use e2e::layouts;
use e2e::machine::SegmentFolder;
use e2e::mpirun::Transport;
use e2e::programs::Programs;
use e2e::suite::{self, Case, Setting, Tally};
use e2e::{Failure, OpenMpi, Result, say, tell};

/// What `test` understands.
pub const OPTIONS: Options = Options {
    flags: &["all", "list", "ompi5", "only-e2e", "kernel", "no-install"],
    values: &["over", "soak", "seed"],
    words: true,
};

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
    let _claim = workspace.claim()?;
    let of_all = if args.flag("all") { &packages::ALL[..] } else { &[] };
    packages::ensure(&[&packages::MPI[..], &packages::TESTS, of_all].concat(), !args.flag("no-install"))?;
    let began = Instant::now();
    let setting = setting(&workspace, &args, OpenMpi::in_path())?;
    // Whatever has to be fetched is fetched first: a machine that cannot is told so before it has built anything.
    let newer = if wants_5_0(&setting, &args, soak) { Some(ompi5::prepare(&workspace)) } else { None };
    if setting.transport.needs_plugin() {
        build::build(&workspace, false)?;
    }
    dropin::build(&workspace)?;
    let mut total = Tally::default();
    if !only_cases(&args) {
        total.add(cargo_test::run_all(&workspace.root, args.flag("all"))?);
        if args.flag("all") {
            total.add(cargo_test::run_models(&workspace.root, &workspace.target)?);
        }
    }
    if !args.flag("ompi5") {
        tell!("== running the end-to-end cases with Open MPI {}", setting.mpi.version());
        total.add(run_cases(&setting, &suite::cases(&setting), &args, soak));
    }
    if let Some(mpi) = newer {
        total.add(with_5_0(&workspace, &args, mpi, soak)?);
    }
    if total == Tally::default() {
        total.failed.push(format!("no case is named like {:?}; --list shows them all", args.words()));
    }
    conclude(&total, began.elapsed())
}

/// A filter names end-to-end cases; a user who gives one is not waiting for the unit tests, nor is
/// one who wants Open MPI 5.0.
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
        say!("the same cases for {minutes} minutes, in orders that come from --seed {seed}");
        Ok(Some(Soak { time, seed }))
    }
}

fn run_cases(setting: &Setting, cases: &[Case], args: &Args, soak: Option<Soak>) -> Tally {
    match soak {
        Some(Soak { time, seed }) => suite::soak(setting, cases, args.words(), time, seed),
        None => suite::run(setting, cases, args.words()),
    }
}

/// Whether any of the cases that were asked for is one of Open MPI 5.0. Where that is the Open MPI of the machine, all of them are.
fn wants_5_0(setting: &Setting, args: &Args, soak: Option<Soak>) -> bool {
    let cases = cases_of_5_0(setting, args);
    let wanted = cases.iter().any(|case| suite::runner::wanted(&case.name, args.words()));
    wanted && (args.flag("ompi5") || (soak.is_none() && setting.mpi.major() < 5))
}

/// The cases with Open MPI 5.0. That it cannot be had is a failure: who sees none has seen 5.0 at work.
fn with_5_0(workspace: &Workspace, args: &Args, mpi: Result<OpenMpi>, soak: Option<Soak>) -> Result<Tally> {
    let mpi = match mpi {
        Ok(mpi) => mpi,
        Err(Failure(text)) => {
            say!("{text}");
            return Ok(Tally { failed: vec!["Open MPI 5.0 can be fetched".to_owned()], ..Tally::default() });
        }
    };
    tell!(
        "== running end-to-end cases with Open MPI {}, from {}",
        mpi.version(),
        mpi.tool("mpirun").display()
    );
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
        drawn: Mutex::new(None),
    })
}

fn list(setting: &Setting, args: &Args) -> Result<()> {
    let own = if args.flag("ompi5") { Vec::new() } else { suite::cases(setting) };
    let of_5_0 = if wants_5_0(setting, args, None) { cases_of_5_0(setting, args) } else { Vec::new() };
    for case in own.into_iter().chain(of_5_0).filter(|case| suite::runner::wanted(&case.name, args.words())) {
        say!("{}", case.name);
    }
    Ok(())
}
