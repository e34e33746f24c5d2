//! `cargo xtask bench --threads`: what a thread's messages take while another thread of the same rank floods.
//!
//! Two ranks of two threads each (`tests/mpi/contend.c`, MPI_THREAD_MULTIPLE): the first threads exchange 8-byte messages,
//! alone, beside windows of small messages of the second threads, and beside windows of 1 MiB. Jobs of all transports
//! follow each other, round by round. With four threads on fewer processors the figures are of the scheduler, too: they
//! are given up to others while a thread waits (`mpi_yield_when_idle`). The median is that of all messages; the mean is
//! that of the time. `--test-loops`: threads wait in loops of MPI_Test, so that Open MPI parks none of them.

use std::path::Path;
use std::time::Duration;

use crate::args::Args;
use crate::report::{figure, json_fields, median, table, write_json};
use crate::ways::{self, Way};
use crate::workspace::Workspace;
use crate::{build, dropin, ompi5, packages};
use e2e::failure::Context;
use e2e::machine::{self, SegmentFolder};
use e2e::process::Limits;
use e2e::programs::Programs;
use e2e::{OpenMpi, Result, say, tell};

const MILLISECONDS: &str = "500";
const DEADLINE: Limits = Limits { deadline: Duration::from_secs(60), silence: None };

/// What `--json` writes.
#[derive(Debug)]
struct Figures {
    open_mpi: String,
    rounds: u64,
    ways: Vec<Row>,
}

json_fields!(Figures: open_mpi, rounds, ways);

/// Medians of one way's jobs.
#[derive(Debug)]
struct Row {
    way: &'static str,
    alone: Figure,
    small: Figure,
    large: Figure,
}

json_fields!(Row: way, alone, small, large);

/// The first threads' messages beside one kind of flood.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Figure {
    /// Half round trip in us: of half of the messages, what 1 of 100 exceeds, and the time over the messages.
    median: f64,
    tail: f64,
    mean: f64,
    /// Messages of the flood in a second.
    rate: f64,
}

json_fields!(Figure: median, tail, mean, rate);

/// Of one job: alone, beside small messages, beside large ones.
type Report = [Figure; 3];

/// `cargo xtask bench --threads`.
pub fn command(args: &Args) -> Result<()> {
    let workspace = Workspace::find()?;
    packages::ensure(&[&packages::MPI[..], &packages::TESTS].concat(), !args.flag("no-install"))?;
    let mpi = ompi5::chosen(args, &workspace)?;
    build::build(&workspace, false)?;
    dropin::build(&workspace)?;
    let program = Programs::new(&mpi, &workspace.root, &workspace.target)?.compiled("contend")?;
    let segments = SegmentFolder::create()?;
    let rounds = args.number("pairs", 11)?.max(1);
    // Its thread levels end below MPI_THREAD_MULTIPLE.
    let ways: Vec<&Way> = ways::of(&mpi).filter(|way| way.name != "openib").collect();
    let arguments = if args.flag("test-loops") { &[MILLISECONDS, "test"][..] } else { &[MILLISECONDS] };
    let mut reports: Vec<Vec<Report>> = ways.iter().map(|_| Vec::new()).collect();
    for round in 1..=rounds {
        tell!("round {round} of {rounds}");
        for (way, reports) in ways.iter().zip(&mut reports) {
            let job = way.job(&mpi, &workspace, segments.path(), 2, &program);
            let job = job.parameter("mpi_yield_when_idle", "1").arguments(arguments);
            let output = job.expect_success(DEADLINE)?.output;
            reports.push(
                parse(&output).context(format_args!("the program's report cannot be read:\n{output}"))?,
            );
        }
    }
    let rows: Vec<Row> = ways.iter().zip(&reports).map(|(way, reports)| row(way.name, reports)).collect();
    show(&mpi, &rows, rounds);
    let figures = Figures { open_mpi: mpi.version().to_owned(), rounds, ways: rows };
    args.value("json").map_or(Ok(()), |path| write_json(Path::new(path), &figures))
}

/// Lines like `contend small median 26.788 tail 2052.213 mean 81.5 rate 260150`, three of them.
fn parse(output: &str) -> Option<Report> {
    let of = |flood: &str| {
        let line = output.lines().find_map(|line| line.strip_prefix(&format!("contend {flood} ")))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["median", median, "tail", tail, "mean", mean, "rate", rate] = words[..] else { return None };
        let [median, tail, mean, rate] = [median, tail, mean, rate].map(|word| word.parse().ok());
        Some(Figure { median: median?, tail: tail?, mean: mean?, rate: rate? })
    };
    Some([of("alone")?, of("small")?, of("large")?])
}

fn row(way: &'static str, reports: &[Report]) -> Row {
    let [alone, small, large] = [0, 1, 2].map(|flood| Figure {
        median: median(reports.iter().map(|report| report[flood].median)),
        tail: median(reports.iter().map(|report| report[flood].tail)),
        mean: median(reports.iter().map(|report| report[flood].mean)),
        rate: median(reports.iter().map(|report| report[flood].rate)),
    });
    Row { way, alone, small, large }
}

fn show(mpi: &OpenMpi, rows: &[Row], rounds: u64) {
    let header = ["", "alone", "", "", "beside 8 B", "", "", "", "beside 1 MiB", "", "", ""];
    let times = ["median", "mean", "99 %"];
    let units = [&["half round trip in us"][..], &times, &times, &["kmsg/s"], &times, &["msg/s"]].concat();
    let mut lines: Vec<Vec<String>> =
        [&header[..], &units].map(|row| row.iter().map(|word| (*word).to_owned()).collect()).to_vec();
    lines.extend(rows.iter().map(|row| {
        let times = |of: Figure| vec![of.median, of.mean, of.tail];
        let rates = (vec![row.small.rate / 1000.0], vec![row.large.rate]);
        let figures = [times(row.alone), times(row.small), rates.0, times(row.large), rates.1].concat();
        [row.way.to_owned()].into_iter().chain(figures.into_iter().map(figure)).collect()
    }));
    say!("{}", table(&lines).trim_end());
    say!(
        "medians of {rounds} jobs, Open MPI {}, {}, {} processors",
        mpi.version(),
        machine::processor(),
        machine::cores()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_report_is_read_and_medians_are_taken() {
        let output = "x\ncontend alone median 1.5 tail 9 mean 2 rate 0\ncontend small median 20 tail 30 mean 25 rate 1000\n";
        assert_eq!(parse(output), None, "the third line is missing");
        let report =
            parse(&format!("{output}contend large median 4 tail 5 mean 4.5 rate 6\nPASS contend\n")).unwrap();
        assert_eq!(report[1], Figure { median: 20.0, tail: 30.0, mean: 25.0, rate: 1000.0 });
        let slower = report.map(|f| Figure { median: f.median * 2.0, ..f });
        let middle = row("oxib", &[slower, report, report]).large;
        assert_eq!(middle, Figure { median: 4.0, tail: 5.0, mean: 4.5, rate: 6.0 });
    }
}
