//! Between processes of this host: the command, its explanations, its file.

use std::path::Path;

use super::contenders::Contender;
use super::doorbells::{self, Doorbells};
use super::plan::Plan;
use super::record::{NOTE, Record};
use super::rounds::{Bench, Outcome};
use super::samples::Spread;
use super::{plot, tables};
use crate::args::Args;
use crate::report::{json_fields, write_json};
use crate::workspace::Workspace;
use crate::{build, dropin, ompi5, packages};
use e2e::mpirun::pinning;
use e2e::programs::Programs;
use e2e::{OpenMpi, Result, machine, say, tell};

/// What `--json` writes.
#[derive(Debug)]
struct Figures {
    processor: String,
    cores: usize,
    /// At the beginning, and at the end.
    load: [f64; 2],
    open_mpi: String,
    placement: String,
    milliseconds: u64,
    pairs_at_once: usize,
    /// Of each transport, what differs from its defaults.
    settings: Vec<String>,
    /// "median" or "least".
    of_the_batches: &'static str,
    note: &'static str,
    record: Record,
    doorbells: Option<Doorbells>,
}

json_fields!(Figures: processor, cores, load, open_mpi, placement, milliseconds, pairs_at_once, settings, of_the_batches, note, record,
    doorbells);

/// All that a run has.
struct Run {
    mpi: OpenMpi,
    plan: Plan,
    load: [f64; 2],
    outcome: Outcome,
    doorbells: Option<Doorbells>,
}

/// `cargo xtask bench`.
///
/// # Errors
/// oxib has failed; something cannot be built or written.
pub fn command(args: &Args) -> Result<()> {
    packages::ensure(&packages::MPI, !args.flag("no-install"))?;
    let workspace = Workspace::find()?;
    let mpi = ompi5::chosen(args, &workspace)?;
    let plan = Plan::new(args, &mpi)?;
    build_for(&plan, &workspace)?;
    let run = Run::new(mpi, plan, &workspace)?;
    run.show();
    if let Some(path) = args.value("svg") {
        plot::draw(Path::new(path), &run.outcome.samples, run.plan.aims(), &run.caption())?;
    }
    args.value("json").map_or(Ok(()), |path| write_json(Path::new(path), &run.figures()))
}

fn build_for(plan: &Plan, workspace: &Workspace) -> Result<()> {
    if plan.contenders.iter().any(Contender::is_ours) {
        build::build(workspace, false)?;
    }
    if plan.contenders.iter().any(Contender::needs_drop_in) {
        dropin::build(workspace)?;
    }
    Ok(())
}

impl Run {
    fn new(mpi: OpenMpi, plan: Plan, workspace: &Workspace) -> Result<Self> {
        let program = Programs::new(&mpi, &workspace.root, &workspace.target)?.compiled("pingpong")?;
        tell!("{}: about {:.1} minutes on a quiet machine", plan.describe(), plan.seconds() / 60.0);
        let before = machine::load();
        let outcome = Bench { mpi: &mpi, workspace, program: &program, plan: &plan }.run()?;
        let doorbells = if plan.doorbells { Some(doorbells::count(&mpi, workspace)?) } else { None };
        Ok(Run { mpi, plan, load: [before, machine::load()], outcome, doorbells })
    }

    fn show(&self) {
        tables::show(&self.outcome.samples, self.plan.aims());
        self.doorbells.iter().for_each(|bells| say!("{bells}"));
        let batches = self.plan.batches.name();
        say!(
            "below 1 the first transport is the faster one; of each measurement the {batches} of its batches"
        );
        say!("every payload was checked, outside of the timed parts");
        say!("{}", self.plan.pairs());
        say!("{}", self.machine());
        if let Some(Spread { low, median, high }) = self.outcome.samples.line() {
            say!(
                "a cache line goes from the one rank's processor to the other's in {median:.3} us ({low:.3}-{high:.3})"
            );
        }
        for contender in self.plan.contenders.iter().filter(|contender| !contender.settings().is_empty()) {
            say!("{}: {}", contender.name, contender.settings());
        }
        self.tell_failures();
    }

    fn tell_failures(&self) {
        for (name, failures) in self.outcome.samples.columns.iter().zip(&self.outcome.failures) {
            if let Some(first) = failures.first() {
                say!("\n{name} failed in {} rounds, which is not oxib's doing: {first}", failures.len());
            }
        }
    }

    fn machine(&self) -> String {
        let (processor, cores, [before, after]) = (machine::processor(), machine::cores(), self.load);
        let (version, placement) = (self.mpi.version(), self.placement());
        format!(
            "{processor}, {cores} cores, load {before:.1} to {after:.1}, Open MPI {version}, ranks: {placement}"
        )
    }

    /// What mpirun is told of the ranks' places.
    fn placement(&self) -> String {
        let enough = self.plan.ranks() <= machine::cores();
        if enough { pinning(&self.mpi).join(" ") } else { "not bound, more than cores".to_owned() }
    }

    fn caption(&self) -> String {
        let (samples, version) = (&self.outcome.samples, self.mpi.version());
        let first = samples.columns.first().map_or("", String::as_str);
        let (rounds, processor) = (samples.rounds, machine::processor());
        format!(
            "{rounds} interleaved rounds, medians and quartiles of the pairs; dashed: aims; below 1 {first} is faster; \
             {processor}, Open MPI {version}"
        )
    }

    fn figures(&self) -> Figures {
        Figures {
            processor: machine::processor(),
            cores: machine::cores(),
            load: self.load,
            open_mpi: self.mpi.version().to_owned(),
            placement: self.placement(),
            milliseconds: self.plan.milliseconds,
            pairs_at_once: self.plan.pairs_at_once,
            settings: self.plan.contenders.iter().map(Contender::settings).collect(),
            of_the_batches: self.plan.batches.name(),
            note: NOTE,
            record: Record::new(&self.outcome.samples, self.plan.aims()),
            doorbells: self.doorbells,
        }
    }
}
