//! `cargo xtask bench --memory`: what a process takes at its start, and for each peer.
//!
//! Jobs of 2 and of 16 ranks (`tests/mpi/memory.c`), in which rank 0 exchanges one small message with each other rank, or
//! a few hundred of several sizes. A peer's share is the difference between one peer and all of them; that of a peer
//! without a connection is the difference between the two jobs at their start. Resident memory counts a page that
//! processes share in each of them, proportional memory counts it by its part.

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

/// Ranks of the two jobs.
const FEW: usize = 2;
const MANY: usize = 16;
const DEADLINE: Limits = Limits { deadline: Duration::from_secs(120), silence: None };

/// What `--json` writes.
#[derive(Debug)]
struct Figures {
    open_mpi: String,
    ways: Vec<Row>,
}

json_fields!(Figures: open_mpi, ways);

/// One way; all in KiB.
#[derive(Debug)]
struct Row {
    way: &'static str,
    start: f64,
    unconnected: Sizes,
    idle: Sizes,
    busy: Sizes,
}

json_fields!(Row: way, start, unconnected, idle, busy);

/// What one peer costs, or a process has.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sizes {
    resident: f64,
    proportional: f64,
    heap: f64,
}

json_fields!(Sizes: resident, proportional, heap);

impl Sizes {
    /// What each of `peers` peers has added since `before`.
    fn since(self, before: Sizes, peers: usize) -> Sizes {
        let each = |now: f64, was: f64| (now - was) / peers as f64;
        Sizes {
            resident: each(self.resident, before.resident),
            proportional: each(self.proportional, before.proportional),
            heap: each(self.heap, before.heap),
        }
    }
}

/// A job's report: at its start, with one peer, with all.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Report {
    start: Sizes,
    first: Sizes,
    last: Sizes,
}

/// `cargo xtask bench --memory`.
pub fn command(args: &Args) -> Result<()> {
    let workspace = Workspace::find()?;
    packages::ensure(&[&packages::MPI[..], &packages::TESTS].concat(), !args.flag("no-install"))?;
    let mpi = ompi5::chosen(args, &workspace)?;
    build::build(&workspace, false)?;
    dropin::build(&workspace)?;
    let program = Programs::new(&mpi, &workspace.root, &workspace.target)?.compiled("memory")?;
    let bench = Bench { program, segments: SegmentFolder::create()?, mpi, workspace };
    let rounds = args.number("pairs", 3)?.max(1);
    let rows = ways::of(&bench.mpi).map(|way| bench.row(way, rounds)).collect::<Result<Vec<_>>>()?;
    show(&bench.mpi, &rows);
    let figures = Figures { open_mpi: bench.mpi.version().to_owned(), ways: rows };
    args.value("json").map_or(Ok(()), |path| write_json(Path::new(path), &figures))
}

struct Bench {
    mpi: OpenMpi,
    workspace: Workspace,
    program: std::path::PathBuf,
    segments: SegmentFolder,
}

impl Bench {
    /// Medians over so many jobs of each kind.
    fn row(&self, way: &Way, rounds: u64) -> Result<Row> {
        tell!("{}", way.name);
        let reports =
            |ranks, mode| (0..rounds).map(|_| self.report(way, ranks, mode)).collect::<Result<Vec<_>>>();
        let (few, idle, busy) = (reports(FEW, "idle")?, reports(MANY, "idle")?, reports(MANY, "busy")?);
        let starts = few.iter().zip(&idle).map(|(few, many)| many.start.since(few.start, MANY - FEW));
        let grown = |report: &Report| report.last.since(report.first, MANY - FEW);
        Ok(Row {
            way: way.name,
            start: median(few.iter().map(|report| report.start.resident)),
            unconnected: medians(starts),
            idle: medians(idle.iter().map(grown)),
            busy: medians(busy.iter().map(grown)),
        })
    }

    fn report(&self, way: &Way, ranks: usize, mode: &str) -> Result<Report> {
        let job = way.job(&self.mpi, &self.workspace, self.segments.path(), ranks, &self.program);
        let job = job.arguments([mode]);
        let finished = job.expect_success(DEADLINE)?;
        parse(&finished.output)
            .context(format_args!("the program's report cannot be read:\n{}", finished.output))
    }
}

/// Lines like `memory start peers 0 resident 14000 share 5000 heap 2000`, three of them.
fn parse(output: &str) -> Option<Report> {
    let at = |when: &str| {
        let line = output.lines().find_map(|line| line.strip_prefix(&format!("memory {when} ")))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["peers", _, "resident", resident, "share", share, "heap", heap] = words[..] else { return None };
        let (resident, proportional) = (resident.parse().ok()?, share.parse().ok()?);
        Some(Sizes { resident, proportional, heap: heap.parse().ok()? })
    };
    Some(Report { start: at("start")?, first: at("first")?, last: at("last").or_else(|| at("first"))? })
}

fn medians(sizes: impl Iterator<Item = Sizes>) -> Sizes {
    let all: Vec<Sizes> = sizes.collect();
    Sizes {
        resident: median(all.iter().map(|sizes| sizes.resident)),
        proportional: median(all.iter().map(|sizes| sizes.proportional)),
        heap: median(all.iter().map(|sizes| sizes.heap)),
    }
}

fn show(mpi: &OpenMpi, rows: &[Row]) {
    let header = ["", "start", "unconnected", "idle peer", "", "", "busy peer", "", ""];
    let units =
        ["", "MiB", "KiB a peer", "resident", "proportional", "heap", "resident", "proportional", "heap"];
    let mut lines: Vec<Vec<String>> = [header, units].map(|row| row.map(str::to_owned).to_vec()).to_vec();
    lines.extend(rows.iter().map(|row| {
        let peer = |sizes: Sizes| [sizes.resident, sizes.proportional, sizes.heap];
        let figures = [row.start / 1024.0, row.unconnected.resident].into_iter();
        let figures = figures.chain(peer(row.idle)).chain(peer(row.busy)).map(figure);
        [row.way.to_owned()].into_iter().chain(figures).collect()
    }));
    say!("{}", table(&lines).trim_end());
    say!("rank 0 of {MANY}, Open MPI {}, {}", mpi.version(), machine::processor());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_report_is_read() {
        let output = "x\nmemory start peers 0 resident 100 share 50 heap 20\n\
                      memory first peers 1 resident 120 share 60 heap 22\n";
        let sizes = |resident, proportional, heap| Sizes { resident, proportional, heap };
        let (start, first) = (sizes(100.0, 50.0, 20.0), sizes(120.0, 60.0, 22.0));
        assert_eq!(parse(output), Some(Report { start, first, last: first }), "a job of two ranks");
        let last = "memory last peers 15 resident 400 share 200 heap 50\n";
        let report = parse(&format!("{output}{last}"));
        assert_eq!(report.map(|r| r.last.since(r.first, 14)), Some(sizes(20.0, 10.0, 2.0)));
        assert_eq!(parse("memory start peers 0 resident 100\n"), None);
    }
}
