//! `cargo xtask bench`: oxib beside every transport that does the same, at every size, as one instrument.
//!
//!     plan       what is measured over what, how often: the command line
//!     rounds     the rounds: jobs of all transports, which take turns measurement by measurement
//!     samples    medians, quartiles, ratios within a round
//!     aims       how far ahead oxib is to be, and whether it is
//!     tables     the screen
//!     plot       the ratios as a picture
//!     doorbells  system calls that wake a sleeping peer, during a million small messages
//!
//! Half round trips of 0 bytes to 4 MiB; messages a second in windows of 64, one way and both ways; bandwidth in windows. Every
//! payload is checked, outside of the timed parts (tests/mpi/measure.h). All transports have the same placement of ranks.

mod aims;
mod doorbells;
mod plan;
mod plot;
mod rounds;
mod samples;
mod tables;

use std::path::Path;

use crate::args::Args;
use crate::report::{json_fields, write_json};
use crate::workspace::Workspace;
use crate::{build, dropin, ompi5, packages};
use aims::Aim;
use doorbells::Doorbells;
use e2e::failure::Context;
use e2e::mpirun::pinning;
use e2e::programs::Programs;
use e2e::{OpenMpi, Result, machine, say, tell};
use plan::{Contender, Plan};
use rounds::{Bench, Outcome};
use samples::{Samples, Spread};

/// What `--json` writes.
#[derive(Debug)]
struct Figures {
    processor: String,
    cores: usize,
    /// At the beginning, and at the end.
    load: [f64; 2],
    open_mpi: String,
    placement: String,
    rounds: usize,
    milliseconds: u64,
    pairs_at_once: usize,
    transports: Vec<String>,
    /// Of each transport, what differs from its defaults.
    settings: Vec<String>,
    /// "median" or "least".
    of_the_batches: &'static str,
    note: &'static str,
    measurements: Vec<Row>,
    aims: Vec<Judged>,
    doorbells: Option<Doorbells>,
}

json_fields!(Figures: processor, cores, load, open_mpi, placement, rounds, milliseconds, pairs_at_once, transports, settings, of_the_batches, note,
    measurements, aims, doorbells);

const NOTE: &str = "us: microseconds a message (size: half round trip; rate, both: time by messages), by \
                    transport and round, null where a job failed; ratio: the first transport's us by this one's, round by round";

/// One measurement over all transports.
#[derive(Debug)]
struct Row {
    /// "size:4096".
    what: String,
    us: Vec<Vec<Option<f64>>>,
    /// Quartile, median, quartile.
    ratio: Vec<Option<[f64; 3]>>,
}

json_fields!(Row: what, us, ratio);

#[derive(Debug)]
struct Judged {
    beside: String,
    what: String,
    most: f64,
    met: bool,
    worst: f64,
    at_bytes: u64,
}

json_fields!(Judged: beside, what, most, met, worst, at_bytes);

/// `cargo xtask bench`.
///
/// # Errors
/// oxib has failed; something cannot be built or written.
pub fn command(args: &Args) -> Result<()> {
    let workspace = Workspace::find()?;
    packages::ensure(&packages::MPI, !args.flag("no-install"))?;
    let mpi = ompi5::chosen(args, &workspace)?;
    let plan = Plan::new(args, &mpi)?;
    if plan.full || plan.contenders.iter().any(Contender::is_ours) {
        build::build(&workspace, false)?;
    }
    if plan.contenders.iter().any(Contender::needs_drop_in) {
        dropin::build(&workspace)?;
    }
    let program = Programs::new(&mpi, &workspace.root, &workspace.target)?.compiled("pingpong")?;
    let bench = Bench { mpi: &mpi, workspace: &workspace, program: &program, plan: &plan };
    tell!("{}: about {:.1} minutes on a quiet machine", plan.describe(), plan.seconds() / 60.0);
    let before = machine::load();
    let outcome = bench.run()?;
    let doorbells = if plan.full { Some(doorbells::count(&mpi, &workspace)?) } else { None };
    let load = [before, machine::load()];
    show(&outcome, aims::HERE);
    doorbells.iter().for_each(|bells| say!("{bells}"));
    say!("\n{}", explanation(&plan, &mpi, load));
    tell_settings(&plan);
    tell_failures(&outcome);
    if let Some(path) = args.value("svg") {
        draw(Path::new(path), &outcome.samples, aims::HERE, &caption(&mpi, outcome.samples.rounds))?;
    }
    match args.value("json") {
        Some(path) => write_json(Path::new(path), &figures(&plan, &mpi, load, &outcome.samples, doorbells)),
        None => Ok(()),
    }
}

fn show(outcome: &Outcome, aims: &[Aim]) {
    let samples = &outcome.samples;
    let (rounds, first) = (samples.rounds, samples.columns.first().map_or("", String::as_str));
    let titled = |title: String, table: Option<String>| {
        table.into_iter().for_each(|table| say!("{title}\n{table}\n"));
    };
    titled(format!("half round trip in us, median of {rounds} rounds"), tables::times(samples));
    titled(
        "windows of up to 64: 10^6 messages/s of 8 B, MB/s of larger ones".to_owned(),
        tables::rates(samples),
    );
    titled(
        format!("time of a message, {first} / other: median of {rounds} pairs (quartiles), * misses its aim"),
        tables::ratios(samples, aims),
    );
    titled("aims".to_owned(), tables::aims(&aims::verdicts(aims, samples)));
}

fn explanation(plan: &Plan, mpi: &OpenMpi, load: [f64; 2]) -> String {
    let pairs = plan.why_one_pair().unwrap_or_else(|| format!("{} pairs at once", plan.pairs_at_once));
    let batches = plan.of_the_batches();
    format!(
        "of each measurement the {batches} of its batches; below 1 the first transport is the faster one; every payload was checked, outside of the timed parts\n{pairs}\n\
         {}, {} cores, load {:.1} to {:.1}, Open MPI {}, ranks placed with {}",
        machine::processor(),
        machine::cores(),
        load[0],
        load[1],
        mpi.version(),
        placement(plan, mpi),
    )
}

fn tell_settings(plan: &Plan) {
    for contender in plan.contenders.iter().filter(|contender| !contender.settings().is_empty()) {
        say!("{}: {}", contender.name, contender.settings());
    }
}

/// What mpirun is told of the ranks' places.
fn placement(plan: &Plan, mpi: &OpenMpi) -> String {
    let enough = plan.ranks() <= machine::cores();
    if enough { pinning(mpi).join(" ") } else { "no binding, processors shared".to_owned() }
}

fn tell_failures(outcome: &Outcome) {
    for (name, failures) in outcome.samples.columns.iter().zip(&outcome.failures) {
        if let Some(first) = failures.first() {
            say!("\n{name} failed in {} rounds, which is not oxib's doing: {first}", failures.len());
        }
    }
}

fn caption(mpi: &OpenMpi, rounds: usize) -> String {
    let (processor, version) = (machine::processor(), mpi.version());
    format!(
        "{rounds} interleaved rounds, medians and quartiles of the pairs; dashed: aims; below 1 oxib is faster; \
         {processor}, Open MPI {version}"
    )
}

fn draw(path: &Path, samples: &Samples, aims: &[Aim], about: &str) -> Result<()> {
    let text = plot::svg(samples, aims, about).context("there is nothing to draw a line through")?;
    std::fs::write(path, text).context(format_args!("cannot write {}", path.display()))?;
    tell!("wrote {}", path.display());
    Ok(())
}

fn figures(
    plan: &Plan,
    mpi: &OpenMpi,
    load: [f64; 2],
    samples: &Samples,
    doorbells: Option<Doorbells>,
) -> Figures {
    Figures {
        processor: machine::processor(),
        cores: machine::cores(),
        load,
        open_mpi: mpi.version().to_owned(),
        placement: placement(plan, mpi),
        rounds: samples.rounds,
        milliseconds: plan.milliseconds,
        pairs_at_once: plan.pairs_at_once,
        transports: samples.columns.clone(),
        settings: plan.contenders.iter().map(Contender::settings).collect(),
        of_the_batches: plan.of_the_batches(),
        note: NOTE,
        measurements: (0..samples.rows.len()).filter_map(|row| measurement(samples, row)).collect(),
        aims: aims::verdicts(aims::HERE, samples).into_iter().map(judged).collect(),
        doorbells,
    }
}

fn measurement(samples: &Samples, row: usize) -> Option<Row> {
    let columns = || 0..samples.columns.len();
    let three = |Spread { low, median, high }| [low, median, high];
    Some(Row {
        what: samples.rows.get(row)?.to_string(),
        us: columns().map(|column| samples.cell(row, column).to_vec()).collect(),
        ratio: columns().map(|column| samples.ratio(row, column).map(three)).collect(),
    })
}

fn judged(verdict: aims::Verdict) -> Judged {
    let aims::Verdict { beside, what, most, met, of, worst, at } = verdict;
    Judged { beside, what, most, met: met == of, worst, at_bytes: at }
}
