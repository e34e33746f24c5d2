//! `cargo xtask bench`: the figures that docs/results.md quotes.
//!
//! * 8-byte half round trip and 1 MiB bandwidth of oxib and vader, from pairs of jobs that follow each other, so that both see
//!   the same machine: the median of the ratios of all pairs, and the best figure of each.
//! * Doorbells (system calls that wake a sleeping peer) during a million small messages between two polling ranks, as the
//!   plugin counts them; it says so at the end of a job with `btl_oxib_verbose debug`.
//!
//! `--connect`: what connections cost (`bench_connect`). `--memory`: what a process and its peers take (`bench_memory`). `--threads`: what
//! one thread's messages take beside another's flood (`bench_threads`). `--verbs`: the software device alone, with no MPI: `softib/examples/pingpong`.

use std::path::Path;

use crate::args::{Args, Options};
use crate::bench_connect;
use crate::bench_memory;
use crate::bench_threads;
use crate::build;
use crate::ompi5;
use crate::pingpong::{self, Plan, Series};
use crate::report::{figure, json_fields, table, write_json};
use crate::workspace::{Workspace, cargo};
use e2e::failure::Context;
use e2e::mpirun::{Binding, Job, Transport};
use e2e::process::Limits;
use e2e::programs::Programs;
use e2e::{Failure, OpenMpi, Result, machine, say, tell};

/// What `bench` understands.
pub const OPTIONS: Options = Options {
    flags: &["connect", "memory", "no-install", "ompi5", "test-loops", "threads", "verbs"],
    values: &["json", "mpi", "pairs", "transports"],
    words: true,
};

const SIZES: [u64; 2] = [8, 1 << 20];
const MILLISECONDS_PER_SIZE: u32 = 300;

/// What `--json` writes.
#[derive(Debug)]
struct Figures {
    processor: String,
    cores: usize,
    load: f64,
    open_mpi: String,
    comparisons: Vec<Comparison>,
    million: Option<Million>,
}

json_fields!(Figures: processor, cores, load, open_mpi, comparisons, million);

/// One size, both transports.
#[derive(Debug)]
struct Comparison {
    bytes: u64,
    /// Best half round trip of the transport under test, in us.
    ours_us: f64,
    /// The same of the one it is compared with.
    theirs_us: f64,
    /// Ratio of each pair of jobs, ascending.
    ratios: Vec<f64>,
    median_ratio: f64,
}

json_fields!(Comparison: bytes, ours_us, theirs_us, ratios, median_ratio);

/// A million messages.
#[derive(Debug)]
struct Million {
    messages: u64,
    seconds: f64,
    /// Sum over both ranks; `None` when the plugin said nothing.
    doorbells: Option<u64>,
}

json_fields!(Million: messages, seconds, doorbells);

/// `cargo xtask bench`.
pub fn command(args: Args) -> Result<()> {
    if args.flag("verbs") {
        return verbs(args.words());
    }
    if args.flag("connect") {
        return bench_connect::command(&args);
    }
    if args.flag("memory") {
        return bench_memory::command(&args);
    }
    if args.flag("threads") {
        return bench_threads::command(&args);
    }
    if !args.words().is_empty() {
        return Err(Failure::new("words are for --verbs: windows, messages, sizes"));
    }
    let workspace = Workspace::find()?;
    let mpi = ompi5::chosen(&args, &workspace)?;
    let default = format!("oxib,{}", mpi.shared_memory());
    let names: Vec<&str> = args.value("transports").unwrap_or(&default).split(',').collect();
    let [ours, theirs] = names[..] else {
        return Err(Failure(format!("--transports takes two names, like {default}")));
    };
    let (ours, theirs) = (Transport::new(ours), Transport::new(theirs));
    if ours.needs_plugin() {
        build::build(&workspace, false)?;
    }
    let pairs = args.number("pairs", 7)?.max(1);
    let comparisons = compare(&mpi, &workspace, &ours, &theirs, pairs)?;
    let million = ours.needs_plugin().then(|| million(&mpi, &workspace, &ours)).transpose()?;
    show(&mpi, &ours, &theirs, &comparisons, million.as_ref());
    match args.value("json") {
        Some(path) => write(Path::new(path), &mpi, comparisons, million),
        None => Ok(()),
    }
}

/// The software device alone: softib's example pingpong, which says what its words mean.
fn verbs(words: &[String]) -> Result<()> {
    let mut cargo = cargo();
    cargo.current_dir(Workspace::find()?.root).args(["run", "--quiet", "--release", "-p", "softib"]);
    let status =
        cargo.args(["--example", "pingpong", "--"]).args(words).status().context("cannot run cargo")?;
    if !status.success() {
        return Err(Failure(format!("the bench {status}")));
    }
    say!("{}", machine());
    Ok(())
}

fn machine() -> String {
    let (load, processor, cores) = (machine::load(), machine::processor(), machine::cores());
    format!("{processor}, {cores} cores, load {load:.1}")
}

/// One round of the ping-pong is a pair: ours, then theirs.
fn compare(
    mpi: &OpenMpi,
    workspace: &Workspace,
    ours: &Transport,
    theirs: &Transport,
    pairs: u64,
) -> Result<Vec<Comparison>> {
    let transports = vec![ours.clone(), theirs.clone()];
    let sizes = SIZES.to_vec();
    let plan = Plan { mpi: mpi.clone(), transports, sizes, rounds: 1, milliseconds: MILLISECONDS_PER_SIZE };
    let plugin = workspace.plugin_folder();
    let mut rounds = Vec::new();
    for pair in 1..=pairs {
        tell!("pair {pair} of {pairs}");
        rounds.push(pingpong::measure(&plan, workspace, Some(&plugin))?);
    }
    SIZES.iter().map(|bytes| comparison(*bytes, &rounds)).collect()
}

fn comparison(bytes: u64, rounds: &[Vec<Series>]) -> Result<Comparison> {
    let pairs: Option<Vec<(f64, f64)>> = rounds.iter().map(|series| pair(bytes, series)).collect();
    let pairs = pairs.context("a transport did not run; cargo xtask pingpong says why")?;
    let mut ratios: Vec<f64> = pairs.iter().map(|(ours, theirs)| ours / theirs).collect();
    ratios.sort_by(f64::total_cmp);
    let best = |figures: &mut dyn Iterator<Item = f64>| figures.fold(f64::INFINITY, f64::min);
    Ok(Comparison {
        bytes,
        ours_us: best(&mut pairs.iter().map(|pair| pair.0)),
        theirs_us: best(&mut pairs.iter().map(|pair| pair.1)),
        median_ratio: ratios[ratios.len() / 2],
        ratios,
    })
}

fn pair(bytes: u64, series: &[Series]) -> Option<(f64, f64)> {
    let [ours, theirs] = series else { return None };
    Some((ours.at(bytes)?.half_round_trip_us, theirs.at(bytes)?.half_round_trip_us))
}

/// A million messages over the transport under test, with the plugin's own count of doorbells.
fn million(mpi: &OpenMpi, workspace: &Workspace, ours: &Transport) -> Result<Million> {
    tell!("a million small messages");
    let program = Programs::new(mpi, &workspace.root, &workspace.target)?.compiled("million")?;
    let job = Job::new(mpi, 2, ours, program).binding(Binding::Pinned);
    let job = job.plugin(&workspace.plugin_folder());
    let finished = job.parameter("btl_oxib_verbose", "debug").expect_success(Limits::deadline(120))?;
    let line = finished.output.lines().find_map(|line| line.strip_prefix("messages "));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    let [messages, "seconds", seconds] = words[..] else {
        return Err(Failure::new("the program reported no time"));
    };
    let parsed = messages.parse().ok().zip(seconds.parse().ok());
    let (messages, seconds) = parsed.context("the program's report cannot be read")?;
    Ok(Million { messages, seconds, doorbells: doorbells(&finished.output) })
}

/// The sum of all numbers that follow the word: `... doorbells 0 ...`, `doorbells=0`, `doorbells: 0`.
fn doorbells(output: &str) -> Option<u64> {
    let numbers = output.match_indices("doorbells").filter_map(|(at, word)| {
        let rest = output[at + word.len()..].trim_start_matches([' ', '=', ':']);
        let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
        digits.parse::<u64>().ok()
    });
    numbers.fold(None, |sum, number| Some(sum.unwrap_or(0) + number))
}

fn show(
    mpi: &OpenMpi,
    ours: &Transport,
    theirs: &Transport,
    comparisons: &[Comparison],
    million: Option<&Million>,
) {
    let header = ["bytes", &ours.name, &theirs.name, &ours.name, &theirs.name, "time ratio", "all pairs"];
    let units = ["", "us", "us", "MB/s", "MB/s", "median", "from .. to"];
    let mut rows: Vec<Vec<String>> = [header, units].map(|row| row.map(str::to_owned).to_vec()).to_vec();
    rows.extend(comparisons.iter().map(row));
    say!("{}", table(&rows).trim_end());
    if let Some(million) = million {
        let bells = million
            .doorbells
            .map_or_else(|| "not reported by the plugin".to_owned(), |count| count.to_string());
        say!("{} messages of 8 bytes in {:.2} s; doorbells: {bells}", million.messages, million.seconds);
    }
    say!("{}, Open MPI {}", machine(), mpi.version());
}

fn row(c: &Comparison) -> Vec<String> {
    let bandwidth = |us: f64| figure(c.bytes as f64 / us);
    let (least, most) = (c.ratios.first().copied().unwrap_or(0.0), c.ratios.last().copied().unwrap_or(0.0));
    let times = [c.bytes.to_string(), figure(c.ours_us), figure(c.theirs_us)];
    let ratios = [format!("{:.2}x", c.median_ratio), format!("{least:.2} .. {most:.2}")];
    times.into_iter().chain([bandwidth(c.ours_us), bandwidth(c.theirs_us)]).chain(ratios).collect()
}

fn write(path: &Path, mpi: &OpenMpi, comparisons: Vec<Comparison>, million: Option<Million>) -> Result<()> {
    let figures = Figures {
        processor: machine::processor(),
        cores: machine::cores(),
        load: machine::load(),
        open_mpi: mpi.version().to_owned(),
        comparisons,
        million,
    };
    write_json(path, &figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_of_all_ranks_are_added_and_silence_is_not_zero() {
        assert_eq!(doorbells("rank 0: doorbells 3, x\nrank 1: doorbells=4\n"), Some(7));
        assert_eq!(doorbells("doorbells: 0"), Some(0));
        assert_eq!(doorbells("nothing of the kind"), None);
    }
}
