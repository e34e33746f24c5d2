//! `cargo xtask bench --memory`: what a process takes at its start, and for each peer.
//!
//! Jobs of 2 and of 16 ranks (`tests/mpi/memory.c`), in which rank 0 exchanges one small message with each other rank, or
//! a few hundred of several sizes. A peer's share is the difference between one peer and all of them; that of a peer
//! without a connection is the difference between the two jobs at their start. Resident memory counts a page that
//! processes share in each of them, proportional memory counts it by its part. Registered bytes are the highest so far with oxib, by its
//! counter; of openib and UCX the software device tells.

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
    start: Sizes,
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
    registered: f64,
}

json_fields!(Sizes: resident, proportional, heap, registered);

impl Sizes {
    /// What each of `peers` peers has added since `before`.
    fn since(self, before: Sizes, peers: usize) -> Sizes {
        let each = |now: f64, was: f64| (now - was) / peers as f64;
        Sizes {
            resident: each(self.resident, before.resident),
            proportional: each(self.proportional, before.proportional),
            heap: each(self.heap, before.heap),
            registered: each(self.registered, before.registered),
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
            start: medians(few.iter().map(|report| report.start)),
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

/// Lines like `memory start peers 0 resident 14000 share 5000 heap 2000 registered 300`, three of them.
fn parse(output: &str) -> Option<Report> {
    let at = |when: &str| {
        let line = output.lines().find_map(|line| line.strip_prefix(&format!("memory {when} ")))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["peers", _, "resident", resident, "share", share, "heap", heap, "registered", registered] =
            words[..]
        else {
            return None;
        };
        let (resident, proportional) = (resident.parse().ok()?, share.parse().ok()?);
        Some(Sizes { resident, proportional, heap: heap.parse().ok()?, registered: registered.parse().ok()? })
    };
    Some(Report { start: at("start")?, first: at("first")?, last: at("last").or_else(|| at("first"))? })
}

fn medians(sizes: impl Iterator<Item = Sizes>) -> Sizes {
    let all: Vec<Sizes> = sizes.collect();
    Sizes {
        resident: median(all.iter().map(|sizes| sizes.resident)),
        proportional: median(all.iter().map(|sizes| sizes.proportional)),
        heap: median(all.iter().map(|sizes| sizes.heap)),
        registered: median(all.iter().map(|sizes| sizes.registered)),
    }
}

fn show(mpi: &OpenMpi, rows: &[Row]) {
    let of_peer = |when: &'static str| [when, "", "", ""];
    let (sizes, one) =
        (["resident", "proportional", "heap", "registered"], ["resident", "heap", "registered"]);
    let header =
        [&["", "start", "", "unconnected", "", ""][..], &of_peer("idle peer"), &of_peer("busy peer")]
            .concat();
    let units = [&["KiB (start: MiB)", "resident", "registered"][..], &one, &sizes, &sizes].concat();
    let mut lines: Vec<Vec<String>> =
        [header, units].map(|row| row.into_iter().map(str::to_owned).collect()).to_vec();
    lines.extend(rows.iter().map(|row| {
        let peer = |sizes: Sizes| [sizes.resident, sizes.proportional, sizes.heap, sizes.registered];
        let Sizes { resident, heap, registered, .. } = row.unconnected;
        let start = [row.start.resident / 1024.0, row.start.registered / 1024.0, resident, heap, registered];
        let figures = start.into_iter().chain(peer(row.idle)).chain(peer(row.busy)).map(figure);
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
        let output = "x\nmemory start peers 0 resident 100 share 50 heap 20 registered 5\n\
                      memory first peers 1 resident 120 share 60 heap 22 registered 6\n";
        let sizes =
            |resident, proportional, heap, registered| Sizes { resident, proportional, heap, registered };
        let (start, first) = (sizes(100.0, 50.0, 20.0, 5.0), sizes(120.0, 60.0, 22.0, 6.0));
        assert_eq!(parse(output), Some(Report { start, first, last: first }), "a job of two ranks");
        let last = "memory last peers 15 resident 400 share 200 heap 50 registered 34\n";
        let report = parse(&format!("{output}{last}"));
        assert_eq!(report.map(|r| r.last.since(r.first, 14)), Some(sizes(20.0, 10.0, 2.0, 2.0)));
        assert_eq!(parse("memory start peers 0 resident 100\n"), None);
    }
}
