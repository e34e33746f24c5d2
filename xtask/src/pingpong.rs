//! `cargo xtask pingpong`: oxib beside the stock transports, in one table.
//!
//! The machine may be noisy and small, so the transports take turns: round after round, each runs once over all sizes in
//! a job of its own, two ranks pinned to a core each. Within a job a size's figure is the median over batches
//! (tests/mpi/pingpong.c); over the rounds it is the smallest of those medians, as noise only ever adds.
//! The program checks every byte of every payload and ends the job at the first wrong one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::args::{Args, Options};
use crate::report::{self, Progress, figure, json_fields, table};
use crate::workspace::Workspace;
use crate::{build, ompi5};
use e2e::failure::Context;
use e2e::measured::{Kind, Measured};
use e2e::mpirun::{Binding, Job, Transport, pinning};
use e2e::output::SignOfLife;
use e2e::process::Limits;
use e2e::programs::Programs;
use e2e::{Failure, OpenMpi, Result, machine, say};

/// What `pingpong` understands.
pub const OPTIONS: Options = Options {
    flags: &["no-install", "ompi5"],
    values: &["json", "mpi", "sizes", "transports", "rounds"],
    words: false,
};

const LARGEST: u64 = 4 << 20;
const MILLISECONDS_PER_SIZE: u32 = 60;
const DEADLINE_SECONDS: u64 = 300;

/// One size over one transport.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Payload in bytes.
    pub bytes: u64,
    /// Half round trip in microseconds: smallest over the rounds of the medians over batches.
    pub half_round_trip_us: f64,
    /// Fastest single batch, same unit.
    pub fastest_us: f64,
    /// Payload over half round trip, in 10^6 bytes a second.
    pub mb_per_s: f64,
}

json_fields!(Point: bytes, half_round_trip_us, fastest_us, mb_per_s);

/// All sizes over one transport, or why there are none.
#[derive(Debug, Clone)]
pub struct Series {
    /// "oxib"
    pub transport: String,
    /// "self,oxib"
    pub btl: String,
    /// Ascending by size; empty when it failed.
    pub points: Vec<Point>,
    /// What went wrong with a stock transport.
    pub failure: Option<String>,
}

json_fields!(Series: transport, btl, points, failure);

/// What `--json` writes.
#[derive(Debug)]
pub struct Figures {
    processor: String,
    cores: usize,
    load: f64,
    open_mpi: String,
    placement: String,
    rounds: u64,
    note: &'static str,
    series: Vec<Series>,
}

json_fields!(Figures: processor, cores, load, open_mpi, placement, rounds, note, series);

/// What to measure.
#[derive(Debug)]
pub struct Plan {
    /// The Open MPI that is measured.
    pub mpi: OpenMpi,
    /// In the order of the table's columns.
    pub transports: Vec<Transport>,
    /// Bytes, ascending.
    pub sizes: Vec<u64>,
    /// How often each transport runs.
    pub rounds: u64,
    /// Timed milliseconds a size, a round.
    pub milliseconds: u32,
}

/// `cargo xtask pingpong`.
pub fn command(args: Args) -> Result<()> {
    let workspace = Workspace::find()?;
    let plan = plan(&args, ompi5::chosen(&args, &workspace)?)?;
    let plugin = plugin_for(&plan, &workspace)?;
    let series = measure(&plan, &workspace, plugin.as_deref())?;
    say!("{}", table(&rows(&series)).trim_end());
    say!("\n{}", explanation(&plan));
    for (name, why) in series.iter().filter_map(|s| s.failure.as_ref().map(|why| (&s.transport, why))) {
        say!("\n{name} did not run, which is not oxib's doing: {why}");
    }
    if let Some(path) = args.value("json") {
        write_json(Path::new(path), &plan, series)?;
    }
    Ok(())
}

fn plan(args: &Args, mpi: OpenMpi) -> Result<Plan> {
    let default = format!("oxib,{},tcp", mpi.shared_memory());
    let names = args.value("transports").unwrap_or(&default).split(',').filter(|name| !name.is_empty());
    let sizes = args.value("sizes").map_or_else(|| Ok(default_sizes()), parse_sizes)?;
    Ok(Plan {
        transports: names.map(Transport::new).collect(),
        sizes,
        rounds: args.number("rounds", 3)?.max(1),
        milliseconds: MILLISECONDS_PER_SIZE,
        mpi,
    })
}

/// The plugin's folder, freshly built, when the plan needs it.
pub fn plugin_for(plan: &Plan, workspace: &Workspace) -> Result<Option<PathBuf>> {
    if !plan.transports.iter().any(Transport::needs_plugin) {
        return Ok(None);
    }
    build::build(workspace, false)?;
    Ok(Some(workspace.plugin_folder()))
}

/// 0 and the powers of two to 4 MiB.
fn default_sizes() -> Vec<u64> {
    std::iter::once(0).chain((0..).map(|shift| 1 << shift).take_while(|size| *size <= LARGEST)).collect()
}

/// "0,8,4k,1M" to bytes; ascending, each once.
pub fn parse_sizes(text: &str) -> Result<Vec<u64>> {
    let mut sizes = text.split(',').map(parse_size).collect::<Result<Vec<u64>>>()?;
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

fn parse_size(word: &str) -> Result<u64> {
    let (digits, shift) = match word.char_indices().last() {
        Some((at, 'k' | 'K')) => (&word[..at], 10),
        Some((at, 'm' | 'M')) => (&word[..at], 20),
        _ => (word, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_shl(shift));
    let size = number.filter(|size| *size <= 1 << 30);
    size.context(format_args!("`{word}` is no size: expected a number up to 1 GiB, like 0, 64, 4k or 1M"))
}

/// Runs all rounds. A stock transport that fails leaves an empty series; oxib's failure is ours.
pub fn measure(plan: &Plan, workspace: &Workspace, plugin: Option<&Path>) -> Result<Vec<Series>> {
    let program = Programs::new(&plan.mpi, &workspace.root, &workspace.target)?.compiled("pingpong")?;
    let mut progress = Progress::new();
    let mut series: Vec<Series> = plan.transports.iter().map(empty_series).collect();
    for round in 1..=plan.rounds {
        for (transport, series) in
            plan.transports.iter().zip(&mut series).filter(|(_, s)| s.failure.is_none())
        {
            let title = format!("round {round} of {}: {}", plan.rounds, transport.btl);
            progress.stage(&title);
            let sign = SignOfLife::of(title.clone());
            let job = job(plan, transport, &program, plugin);
            match one_run(&job, plan, &mut |size| {
                let title = format!("{title}: {size} bytes");
                progress.detail(&title);
                sign.now(title);
            }) {
                Ok(points) => merge(&mut series.points, points),
                Err(error) if transport.needs_plugin() => return Err(what_to_try(plan, error)),
                Err(Failure(text)) => *series = Series { failure: Some(text), ..empty_series(transport) },
            }
        }
    }
    Ok(series)
}

fn empty_series(transport: &Transport) -> Series {
    Series {
        transport: transport.name.clone(),
        btl: transport.btl.clone(),
        points: Vec::new(),
        failure: None,
    }
}

fn job(plan: &Plan, transport: &Transport, program: &Path, plugin: Option<&Path>) -> Job {
    let arguments =
        std::iter::once(plan.milliseconds.to_string()).chain(plan.sizes.iter().map(u64::to_string));
    let job = Job::new(&plan.mpi, 2, transport, program).binding(Binding::Pinned).arguments(arguments);
    plugin.into_iter().fold(job, Job::plugin)
}

fn one_run(job: &Job, plan: &Plan, size_done: &mut dyn FnMut(u64)) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    let finished = job.run(Limits::deadline(DEADLINE_SECONDS), &mut |line| {
        if let Some(point) = parse_line(line) {
            size_done(point.bytes);
            points.push(point);
        }
    })?;
    if finished.ok() && points.len() == plan.sizes.len() { Ok(points) } else { Err(job.explain(&finished)) }
}

fn what_to_try(plan: &Plan, Failure(text): Failure) -> Failure {
    let shared_memory = plan.mpi.shared_memory();
    Failure(format!(
        "{text}\n  try: the command above with --mca btl_base_verbose 100, which says what oxib found and chose\n  \
         try: cargo xtask pingpong --transports {shared_memory},tcp, to see whether Open MPI works here without oxib\n  \
         try: df /dev/shm (containers often give it 64 MiB; docker run --shm-size=1g)"
    ))
}

/// A half round trip of the program's.
fn parse_line(line: &str) -> Option<Point> {
    let Measured { what, median_us, least_us, .. } = Measured::parse(line)?;
    let mb_per_s = what.bytes as f64 / median_us.max(1e-6);
    let half = what.kind == Kind::HalfRoundTrip;
    half.then_some(Point { bytes: what.bytes, half_round_trip_us: median_us, fastest_us: least_us, mb_per_s })
}

/// Keeps the better of two rounds, size by size.
fn merge(best: &mut Vec<Point>, new: Vec<Point>) {
    let mut by_size: BTreeMap<u64, Point> = best.drain(..).map(|point| (point.bytes, point)).collect();
    for point in new {
        let known = by_size.entry(point.bytes).or_insert(point);
        let fastest_us = known.fastest_us.min(point.fastest_us);
        let better = if point.half_round_trip_us < known.half_round_trip_us { point } else { *known };
        *known = Point { fastest_us, ..better };
    }
    best.extend(by_size.into_values());
}

/// Two header rows, then a row a size: us and MB/s for each transport, then the first one's time over each other's.
fn rows(series: &[Series]) -> Vec<Vec<String>> {
    let Some((first, others)) = series.split_first() else { return Vec::new() };
    let names = series.iter().flat_map(|s| [s.transport.clone(), String::new()]);
    let ratios = others.iter().map(|_| format!("{} /", first.transport));
    let top = std::iter::once(String::new()).chain(names).chain(ratios).collect();
    let units = series.iter().flat_map(|_| ["us".to_owned(), "MB/s".to_owned()]);
    let second =
        std::iter::once("bytes".to_owned()).chain(units).chain(others.iter().map(|s| s.transport.clone()));
    let mut rows = vec![top, second.collect()];
    rows.extend(sizes_of(series).into_iter().map(|bytes| row(bytes, first, series, others)));
    rows
}

fn sizes_of(series: &[Series]) -> Vec<u64> {
    series
        .iter()
        .map(|s| s.points.iter().map(|p| p.bytes).collect::<Vec<_>>())
        .max_by_key(Vec::len)
        .unwrap_or_default()
}

fn row(bytes: u64, first: &Series, series: &[Series], others: &[Series]) -> Vec<String> {
    let mut cells = vec![bytes.to_string()];
    for s in series {
        let point = s.at(bytes);
        cells.push(point.map_or_else(|| "-".to_owned(), |p| figure(p.half_round_trip_us)));
        cells.push(point.filter(|_| bytes > 0).map_or_else(|| "-".to_owned(), |p| figure(p.mb_per_s)));
    }
    cells.extend(
        others
            .iter()
            .map(|other| ratio(first, other, bytes).map_or_else(|| "-".to_owned(), |r| format!("{r:.2}x"))),
    );
    cells
}

impl Series {
    /// The figure for this size.
    pub fn at(&self, bytes: u64) -> Option<&Point> {
        self.points.iter().find(|point| point.bytes == bytes)
    }
}

/// How many times as long `first` takes as `other`.
pub fn ratio(first: &Series, other: &Series, bytes: u64) -> Option<f64> {
    Some(first.at(bytes)?.half_round_trip_us / other.at(bytes)?.half_round_trip_us)
}

fn explanation(plan: &Plan) -> String {
    let names: Vec<&str> = plan.transports.iter().map(|t| t.name.as_str()).collect();
    let ratios = match names.split_first() {
        Some((first, others)) if !others.is_empty() => {
            format!("\n`{first} / x`: how many times as long {first} takes; below 1 it is the faster one.")
        }
        _ => String::new(),
    };
    format!(
        "us: half round trip, median of a run, best of {} alternating runs. MB/s: 10^6 bytes a second.{ratios}\n\
         Every byte of every payload was checked, outside of the timed part.\n{}, {} cores, load {:.1}, Open MPI {}, ranks placed with {}",
        plan.rounds,
        machine::processor(),
        machine::cores(),
        machine::load(),
        plan.mpi.version(),
        pinning(&plan.mpi).join(" "),
    )
}

/// Writes what the table shows, and more digits of it.
pub fn write_json(path: &Path, plan: &Plan, series: Vec<Series>) -> Result<()> {
    let figures = Figures {
        processor: machine::processor(),
        cores: machine::cores(),
        load: machine::load(),
        open_mpi: plan.mpi.version().to_owned(),
        placement: pinning(&plan.mpi).join(" "),
        rounds: plan.rounds,
        note: "half_round_trip_us: smallest over the rounds of the medians over batches; every payload checked",
        series,
    };
    report::write_json(path, &figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(bytes: u64, us: f64, fastest: f64) -> Point {
        Point { bytes, half_round_trip_us: us, fastest_us: fastest, mb_per_s: bytes as f64 / us }
    }

    fn series(name: &str, points: Vec<Point>) -> Series {
        Series { points, ..empty_series(&Transport::new(name)) }
    }

    #[test]
    fn sizes_default_to_zero_and_the_powers_of_two_to_four_mebibytes() {
        let sizes = default_sizes();
        assert_eq!((sizes[0], sizes[1], sizes[2], sizes.len()), (0, 1, 2, 24));
        assert_eq!(sizes.last(), Some(&LARGEST));
    }

    #[test]
    fn sizes_take_binary_units_and_come_out_sorted() {
        assert_eq!(parse_sizes("1M,0,4k,4096"), Ok(vec![0, 4096, 1 << 20]));
        for wrong in ["", "x", "4g", "-1", "2000M", "99999999999M"] {
            assert!(parse_sizes(wrong).unwrap_err().0.contains(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_figure_line_is_read_and_any_other_line_is_not() {
        let point = parse_line("size 1000 batches 7 median_us 2.0 min_us 1.5").unwrap();
        assert_eq!(
            (point.bytes, point.half_round_trip_us, point.fastest_us, point.mb_per_s),
            (1000, 2.0, 1.5, 500.0)
        );
        assert_eq!(parse_line("PASS pingpong"), None);
    }

    #[test]
    fn the_better_round_wins_size_by_size() {
        let mut best = vec![point(0, 2.0, 1.0), point(8, 2.0, 1.9)];
        merge(&mut best, vec![point(0, 3.0, 0.5), point(8, 1.0, 0.9)]);
        assert_eq!(best, vec![point(0, 2.0, 0.5), point(8, 1.0, 0.9)]);
    }

    #[test]
    fn the_table_shows_ratios_and_leaves_gaps_for_what_did_not_run() {
        let all = [
            series("oxib", vec![point(8, 2.0, 2.0)]),
            series("vader", vec![point(8, 1.0, 1.0)]),
            series("tcp", vec![]),
        ];
        let rows = rows(&all);
        assert_eq!(rows[2], ["8", "2.000", "4.000", "1.000", "8.000", "-", "-", "2.00x", "-"]);
    }
}
