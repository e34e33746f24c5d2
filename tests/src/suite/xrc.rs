//! X layouts: our MPI programs over XRC, with ranks on nodes of their own, two jobs at once, a fabric where things go wrong; and
//! what is said where X queues and connection managers do not fit. (`own` runs all programs over `configs/x-only.conf`.)

use std::thread;

use crate::layouts::Layout;
use crate::mpirun::Job;
use crate::process::{Finished, Limits};
use crate::suite::case::passes;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const LIMIT: u64 = 90;
const LAYOUT: &str = "x-only";

/// Programs on two nodes of two ranks each.
const PROGRAMS: [&str; 4] = ["sendrecv", "collectives", "random", "crossing"];

/// Datagrams are lost, and receives are missing. `drop` and the others strike datagrams only.
const FAULTS: &str = "seed=8,drop=20%,duplicate=10%,reorder=10%,rnr=every:50:1ms";

/// Both are asked, wait for their turn again, and so stand in front of those that come then.
const STOPPED: &str =
    "two ranks that stand and are the first to be asked of their node hold up no others (stopped, 5 ranks)";

/// Parameters that do not fit, and words of the message that says so.
const MISFITS: [(&str, &str, &[&str]); 3] = [
    ("btl_oxib_cpc_include", "ibcm", &["ibcm", "does not connect X queues"]),
    ("btl_oxib_cpc_exclude", "xrc", &["ibcm", "rdmacm", "does not connect X queues"]),
    ("btl_oxib_receive_queues", "P,128,64:X,2048,64", &["receive_queues", "do not mix with X"]),
];

/// Every case.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let programs = if setting.all { &PROGRAMS[..] } else { &PROGRAMS[..2] };
    let mut cases: Vec<Case> = programs.iter().map(|program| nodes_case(program)).collect();
    cases.push(Case::new("two jobs at once have an XRC domain each", two_jobs));
    cases.push(Case::new("messages arrive over X queues on a fabric where much goes wrong", faulty));
    cases.push(plain("everyone", 16, "16 ranks that all begin at once connect over XRC"));
    cases.push(Case::new(STOPPED, stopped));
    cases.push(plain(
        "spawn",
        2,
        "a job that is spawned is reached over XRC, though it has a domain of its own",
    ));
    for (name, value, words) in MISFITS {
        let title = format!("{name} {value} is refused with words where X queues do not fit");
        cases.push(Case::new(title, move |setting| refused(setting, LAYOUT, name, value, words)));
    }
    let words = &["xrc", "connects X queues only"];
    cases.push(Case::new("xrc says why it does not connect other queues", move |setting| {
        refused(setting, crate::layouts::DEFAULT, "btl_oxib_cpc_include", "xrc", words)
    }));
    cases
}

fn layout<'a>(setting: &'a Setting, name: &str) -> Result<&'a Layout> {
    let found = setting.layouts.iter().find(|layout| layout.name == name);
    found.ok_or_else(|| Failure(format!("configs/ has no {name}.conf")))
}

fn job(setting: &Setting, ranks: usize, program: &str) -> Result<Job> {
    Ok(setting.job(ranks, program)?.parameters(&layout(setting, LAYOUT)?.parameters()))
}

fn plain(program: &'static str, ranks: usize, title: &str) -> Case {
    Case::new(format!("{title} ({program})"), move |setting| {
        passes(&job(setting, ranks, program)?, program, LIMIT).map(drop)
    })
}

fn nodes_case(program: &'static str) -> Case {
    let title = format!("two nodes of two ranks: one send queue pair for each node ({program})");
    Case::new(title, move |setting| nodes(setting, program))
}

/// Each rank talks to three others, on two nodes, and has two send queue pairs for that.
fn nodes(setting: &Setting, program: &str) -> Result<()> {
    let compiled = setting.programs.compiled(program)?.to_string_lossy().into_owned();
    let script = r#"SOFTIB_NODE=node$((OMPI_COMM_WORLD_RANK / 2)) exec "$0" "$@""#;
    let job = setting.foreign_job(4, &setting.transport, "/bin/sh").arguments(["-c", script, &compiled]);
    let job = job.parameters(&layout(setting, LAYOUT)?.parameters());
    // No rank counts as slow within 60 s, so that no other is asked beside the first one of a node.
    let job = job.parameter("btl_oxib_ibcm_timeout", "60s");
    let finished = passes(&job.parameter("btl_oxib_verbose", "debug"), program, LIMIT)?;
    let (senders, connected) = (counts(&finished, "xrc_senders"), counts(&finished, "xrc_connected"));
    if senders == [2; 4] && connected == [3; 4] {
        return Ok(());
    }
    Err(Failure(format!(
        "{senders:?} send queue pairs for {connected:?} connections, not 2 for 3 in each of four ranks"
    )))
}

/// What the ranks say they have counted.
fn counts(finished: &Finished, name: &str) -> Vec<u64> {
    let marked = format!("(\"{name}\", ");
    let count = |line: &str| line.split(&marked).nth(1)?.split(')').next()?.parse().ok();
    finished.output.lines().filter_map(count).collect()
}

/// Their ranks are on one node, in one folder of segments, and of one user.
fn two_jobs(setting: &Setting) -> Result<()> {
    let jobs = ["sendrecv", "random"].map(|program| job(setting, 3, program).map(|job| (job, program)));
    thread::scope(|scope| {
        let started = jobs.map(|job| scope.spawn(|| job.and_then(|(job, name)| passes(&job, name, LIMIT))));
        started.into_iter().try_for_each(|job| match job.join() {
            Ok(outcome) => outcome.map(drop),
            Err(_) => Err(Failure::new("the watching thread panicked")),
        })
    })
}

/// The first time-outs of both are over when the others begin to connect to each other.
fn stopped(setting: &Setting) -> Result<()> {
    let job = job(setting, 5, "stopped")?.arguments(["2", "150"]);
    passes(&job.parameter("btl_oxib_ibcm_timeout", "20ms"), "stopped", LIMIT).map(drop)
}

fn faulty(setting: &Setting) -> Result<()> {
    let job = job(setting, 4, "sendrecv")?.flag("-x").flag(&format!("SOFTIB_FAULTS={FAULTS}"));
    passes(&job, "sendrecv", LIMIT).map(drop)
}

/// Nothing but oxib is there to go on with: the job ends, and the reason is said.
fn refused(setting: &Setting, layout_name: &str, name: &str, value: &str, words: &[&str]) -> Result<()> {
    let parameters = layout(setting, layout_name)?.parameters();
    let job = setting.job(2, "idle")?.parameters(&parameters).parameter(name, value);
    let finished = job.run(Limits::deadline(LIMIT), &mut |_| {})?;
    let output = finished.output.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.iter().find(|word| !output.contains(**word)) {
        None => Ok(()),
        Some(word) => Err(Failure(format!("\"{word}\" is not in\n{}", finished.output))),
    }
}
