//! `cargo xtask bench --connect`: what connections cost, on the software device.
//!
//! * Jobs of 2, 8 and 32 ranks, half of which connect to the other half (`tests/mpi/connect.c`): 1, 16 and 256 connections,
//!   one after the other, and all at once. oxib with each of its connection managers, and Open MPI's own openib BTL with
//!   udcm on the same device through the drop-in libibverbs, in turns.
//! * `cmtime` of rdmacm-utils, unmodified, over the drop-in librdmacm: the connection manager alone, with no MPI.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::report::{figure, json_fields, median, table, write_json};
use crate::workspace::Workspace;
use crate::{build, dropin, ompi5, packages};
use e2e::failure::Context;
use e2e::machine::{self, SegmentFolder};
use e2e::mpirun::{Job, Transport};
use e2e::process::{End, Limits, run};
use e2e::programs::Programs;
use e2e::suite::verbs;
use e2e::{Failure, OpenMpi, Result, say, tell};

/// Ranks of the jobs; half of them squared is the number of connections.
const RANKS: [usize; 3] = [2, 8, 32];
/// Who connects.
struct Manager {
    /// Its name in the table.
    name: &'static str,
    btl: &'static str,
    /// MCA parameters.
    parameters: &'static [(&'static str, &'static str)],
}

const MANAGERS: [Manager; 3] = [
    Manager { name: "oxib ibcm", btl: "oxib", parameters: &[("btl_oxib_cpc_include", "ibcm")] },
    Manager { name: "oxib rdmacm", btl: "oxib", parameters: &[("btl_oxib_cpc_include", "rdmacm")] },
    Manager {
        name: "openib udcm",
        btl: "openib",
        parameters: &[("btl_openib_allow_ib", "1"), ("btl_openib_warn_no_device_params_found", "0")],
    },
];
const DEADLINE: Limits = Limits { deadline: Duration::from_secs(120), silence: None };
/// The same for openib, whose udcm polls, arms its queue and does not poll again: some of its jobs stand still on a device that does not
/// fire for what came in between. The software device does (docs/softib.md 1.4).
const FOREIGN: Limits = Limits { deadline: Duration::from_secs(40), silence: None };
/// How long a server of cmtime may take to listen.
const LISTENING: Duration = Duration::from_secs(10);
/// In the name of every socket that listens.
const LISTENER: &str = "-cm-";

/// What `--json` writes.
#[derive(Debug)]
struct Figures {
    processor: String,
    cores: usize,
    load: f64,
    open_mpi: String,
    jobs: Vec<Row>,
    cmtime: Vec<CmTime>,
}

json_fields!(Figures: processor, cores, load, open_mpi, jobs, cmtime);

/// One manager, one number of connections; medians over the jobs.
#[derive(Debug)]
struct Row {
    manager: &'static str,
    connections: u64,
    /// First message to first answer, one connection at a time, in us.
    one_by_one_us: f64,
    /// The same when all begin at once: median of the connections.
    at_once_us: f64,
    /// From the first message's start to the last answer.
    per_second: f64,
    /// Jobs of openib's that did not end, and are in none of the figures.
    stood_still: usize,
}

json_fields!(Row: manager, connections, one_by_one_us, at_once_us, per_second, stood_still);

/// What cmtime says of its step `connect`.
#[derive(Debug)]
struct CmTime {
    connections: u64,
    us_each: f64,
}

json_fields!(CmTime: connections, us_each);

/// One job's report.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    connections: u64,
    seconds: f64,
    median_us: f64,
}

/// `cargo xtask bench --connect`.
pub fn command(args: &Args) -> Result<()> {
    let workspace = Workspace::find()?;
    packages::ensure(&[&packages::MPI[..], &packages::TESTS].concat(), !args.flag("no-install"))?;
    let mpi = ompi5::chosen(args, &workspace)?;
    build::build(&workspace, false)?;
    dropin::build(&workspace)?;
    let bench = Bench {
        folder: workspace.verbs_folder(),
        plugin: workspace.plugin_folder(),
        program: Programs::new(&mpi, &workspace.root, &workspace.target)?.compiled("connect")?,
        segments: SegmentFolder::create()?,
        mpi,
    };
    let jobs = bench.rows(args.number("pairs", 3)?.max(1))?;
    let cmtime: Vec<CmTime> =
        jobs_of(&jobs).map(|connections| bench.cmtime(connections)).collect::<Result<_>>()?;
    show(&bench.mpi, &jobs, &cmtime);
    match args.value("json") {
        Some(path) => write(Path::new(path), &bench.mpi, jobs, cmtime),
        None => Ok(()),
    }
}

fn jobs_of(rows: &[Row]) -> impl Iterator<Item = u64> {
    rows.iter().filter(|row| row.manager == MANAGERS[0].name).map(|row| row.connections)
}

struct Bench {
    mpi: OpenMpi,
    plugin: std::path::PathBuf,
    folder: std::path::PathBuf,
    program: std::path::PathBuf,
    segments: SegmentFolder,
}

impl Bench {
    /// All managers take turns, so that each sees the same machine. openib is of Open MPI 4 only.
    fn rows(&self, rounds: u64) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for ranks in RANKS {
            // A job with one connection says little: more of them.
            let rounds = if ranks == 2 { rounds * 3 } else { rounds };
            let managers = MANAGERS.iter().filter(|manager| manager.btl == "oxib" || self.mpi.major() < 5);
            let mut samples: Vec<_> = managers.map(|manager| (manager, Vec::new(), Vec::new())).collect();
            for round in 1..=rounds {
                tell!("{ranks} ranks, round {round} of {rounds}");
                for (manager, each, all) in &mut samples {
                    each.push(self.sample(ranks, manager, "each")?);
                    all.push(self.sample(ranks, manager, "all")?);
                }
            }
            let connections = (ranks / 2).pow(2) as u64;
            rows.extend(samples.iter().map(|(manager, each, all)| row(manager.name, connections, each, all)));
        }
        Ok(rows)
    }

    /// None: a job of openib's stood still.
    fn sample(&self, ranks: usize, manager: &Manager, mode: &str) -> Result<Option<Sample>> {
        let transport = Transport::new(manager.btl);
        let mut job = Job::new(&self.mpi, ranks, &transport, &self.program).arguments([mode]);
        job = match transport.needs_plugin() {
            true => job.plugin(&self.plugin).variable("SOFTIB_DIR", &self.segments.path().to_string_lossy()),
            false => verbs::drop_in(&self.folder, self.segments.path())
                .into_iter()
                .fold(job, |job, (name, value)| job.variable(&name, &value)),
        };
        job = manager.parameters.iter().fold(job, |job, (name, value)| job.parameter(name, value));
        let ours = transport.needs_plugin();
        let finished = job.run(if ours { DEADLINE } else { FOREIGN }, &mut |_| {})?;
        match finished.end {
            End::TimedOut(_) if !ours => Ok(None),
            _ if finished.ok() => {
                parse(&finished.output).context("the program's report cannot be read").map(Some)
            }
            _ => Err(job.explain(&finished)),
        }
    }

    /// A server that is ended afterwards: it would serve for ever, but only one client well.
    fn cmtime(&self, connections: u64) -> Result<CmTime> {
        tell!("cmtime, {connections} connections");
        let count = connections.to_string();
        let server = self.tool(&["-c", &count]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let _ended_with_this = Ended(server.context("cannot run cmtime")?);
        let began = Instant::now();
        while !self.listens() {
            if began.elapsed() > LISTENING {
                return Err(Failure::new("cmtime does not listen"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        let finished = run(&mut self.tool(&["-s", "127.0.0.1", "-c", &count]), DEADLINE, &mut |_| {})?;
        let us_each = connect_step(&finished.output).filter(|_| finished.ok());
        let us_each = us_each.context(format_args!("cmtime's output:\n{}", finished.output))?;
        Ok(CmTime { connections, us_each })
    }

    fn tool(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("cmtime");
        command.args(arguments).envs(verbs::drop_in(&self.folder, self.segments.path()));
        command
    }

    fn listens(&self) -> bool {
        self.segments.contents().iter().any(|path| path.to_string_lossy().contains(LISTENER))
    }
}

/// A process that ends when this does.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill();
        let _nobody_asks_how = self.0.wait();
    }
}

/// `connections 16 seconds 0.0317 first_message_us 27.0 30.3 30.8`: least, median, most.
fn parse(output: &str) -> Option<Sample> {
    let line = output.lines().find_map(|line| line.strip_prefix("connections "))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let [connections, "seconds", seconds, "first_message_us", _, median, _] = words[..] else { return None };
    let (connections, seconds) = (connections.parse().ok()?, seconds.parse().ok()?);
    Some(Sample { connections, seconds, median_us: median.parse().ok()? })
}

/// The last column of `connect      :       26.63        7.16       97.00      104.02`, if nothing was refused.
fn connect_step(output: &str) -> Option<f64> {
    if output.contains("error") {
        return None;
    }
    let line = output.lines().find(|line| line.starts_with("connect "))?;
    line.split_whitespace().next_back()?.parse().ok()
}

fn row(manager: &'static str, connections: u64, each: &[Option<Sample>], all: &[Option<Sample>]) -> Row {
    let of_all = || all.iter().flatten();
    Row {
        manager,
        connections,
        one_by_one_us: median(each.iter().flatten().map(|sample| sample.median_us)),
        at_once_us: median(of_all().map(|sample| sample.median_us)),
        per_second: median(of_all().map(|sample| sample.connections as f64 / sample.seconds)),
        stood_still: each.iter().chain(all).filter(|sample| sample.is_none()).count(),
    }
}

fn show(mpi: &OpenMpi, jobs: &[Row], cmtime: &[CmTime]) {
    let header = ["connections", "manager", "one by one", "at once", "at once"];
    let units = ["", "", "us to answer", "us to answer", "a second"];
    let mut rows: Vec<Vec<String>> = [header, units].map(|row| row.map(str::to_owned).to_vec()).to_vec();
    rows.extend(jobs.iter().map(|job| {
        let figures = [job.one_by_one_us, job.at_once_us, job.per_second].map(figure);
        [job.connections.to_string(), job.manager.to_owned()].into_iter().chain(figures).collect()
    }));
    rows.extend(cmtime.iter().map(|time| {
        let figures = [String::new(), figure(time.us_each), figure(1e6 / time.us_each)];
        [time.connections.to_string(), "cmtime".to_owned()].into_iter().chain(figures).collect()
    }));
    say!("{}", table(&rows).trim_end());
    for job in jobs.iter().filter(|job| job.stood_still > 0) {
        let Row { manager, connections, stood_still, .. } = job;
        say!("{manager}, {connections} connections: {stood_still} jobs stood still and are left out");
    }
    let (load, processor, cores) = (machine::load(), machine::processor(), machine::cores());
    say!("{processor}, {cores} cores, load {load:.1}, Open MPI {}", mpi.version());
}

fn write(path: &Path, mpi: &OpenMpi, jobs: Vec<Row>, cmtime: Vec<CmTime>) -> Result<()> {
    let figures = Figures {
        processor: machine::processor(),
        cores: machine::cores(),
        load: machine::load(),
        open_mpi: mpi.version().to_owned(),
        jobs,
        cmtime,
    };
    write_json(path, &figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_report_is_read() {
        let sample = parse("x\nconnections 16 seconds 0.5 first_message_us 1.0 2.5 3.0\nPASS connect\n");
        assert_eq!(sample, Some(Sample { connections: 16, seconds: 0.5, median_us: 2.5 }));
        assert_eq!(parse("connections 16 seconds\n"), None);
    }

    #[test]
    fn jobs_that_stood_still_are_counted_and_leave_the_figures_alone() {
        let sample = Some(Sample { connections: 16, seconds: 0.5, median_us: 2.5 });
        let row = row("openib udcm", 16, &[sample, None], &[None, sample, sample]);
        assert_eq!((row.stood_still, row.one_by_one_us, row.at_once_us, row.per_second), (2, 2.5, 2.5, 32.0));
    }

    #[test]
    fn cmtimes_connect_step_is_read_unless_something_was_refused() {
        let output = "connecting\nconnect      :       26.63        7.16       97.00      104.02\ndisconnect   : 1 1 1 1\n";
        assert_eq!(connect_step(output), Some(104.02));
        assert_eq!(connect_step(&format!("event: RDMA_CM_EVENT_REJECTED, error: 28\n{output}")), None);
    }
}
