//! Jobs on other fabrics than the usual one: RoCE ports, ranks on nodes of their own, and things going wrong.
//!
//! All of it is softib's doing (docs/softib.md, sections 1.6, 1.7 and 7), asked for by environment variables that mpirun passes on.

use std::collections::BTreeSet;

use crate::process::Finished;
use crate::suite::case::passes;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const DEADLINE_SECONDS: u64 = 90;
const RANKS: usize = 4;
/// Everything in shared queues: an RNR storm on a per-peer queue breaks its connection, as it should.
const SHARED: &str = "S,256,256,128,32:S,65536,64,32,16";

/// What goes wrong, and the count in softib's report that must not be 0.
const FABRICS: [(&str, &str, &str); 3] = [
    ("loses, doubles and reorders datagrams", "seed=5,drop=30%,duplicate=20%,reorder=20%,report", "dropped"),
    ("is slow", "seed=6,drop=10%,delay=200us,report", "delayed"),
    ("finds no receive for every fiftieth message", "seed=7,drop=20%,rnr=every:50:2ms,report", "rnr_storms"),
];

const PROGRAMS: [&str; 3] = ["sendrecv", "collectives", "crossing"];

/// Programs x fabrics.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let programs: &[&'static str] = if setting.all { &PROGRAMS } else { &PROGRAMS[..1] };
    programs.iter().flat_map(|program| of_program(program)).collect()
}

fn of_program(program: &'static str) -> Vec<Case> {
    let case = |what: &str, run: fn(&Setting, &str) -> Result<()>| {
        Case::new(format!("{what} ({program})"), move |setting| run(setting, program))
    };
    let mut cases = vec![
        case("ranks with RoCE ports exchange messages", roce),
        case("ranks on nodes of their own, chosen by a script, exchange messages", scripted_nodes),
        case("the two halves of an MPMD job are on nodes of their own", mpmd_nodes),
    ];
    cases.extend(FABRICS.iter().map(|&(what, plan, struck)| {
        let name = format!("messages arrive over a fabric that {what} ({program})");
        Case::new(name, move |setting| faulty(setting, program, plan, struck))
    }));
    cases
}

fn roce(setting: &Setting, program: &str) -> Result<()> {
    let job = setting.job(RANKS, program)?.flag("-x").flag("SOFTIB_LINK_LAYER=ethernet");
    let finished = passes(&job.parameter("btl_oxib_verbose", "debug"), program, DEADLINE_SECONDS)?;
    expect_lids(&finished, &BTreeSet::from(["0"]))
}

/// One node a rank; no LID is another's, and none is the default node's.
fn scripted_nodes(setting: &Setting, program: &str) -> Result<()> {
    let compiled = setting.programs.compiled(program)?.to_string_lossy().into_owned();
    let script = r#"SOFTIB_NODE=node$OMPI_COMM_WORLD_RANK exec "$0" "$@""#;
    let job = setting.foreign_job(RANKS, &setting.transport, "/bin/sh").arguments(["-c", script, &compiled]);
    let finished = passes(&job.parameter("btl_oxib_verbose", "debug"), program, DEADLINE_SECONDS)?;
    expect_nodes(&finished, RANKS)
}

fn mpmd_nodes(setting: &Setting, program: &str) -> Result<()> {
    let compiled = setting.programs.compiled(program)?.to_string_lossy().into_owned();
    let half = |node: &str| ["-n".to_owned(), "2".to_owned(), "-x".to_owned(), format!("SOFTIB_NODE={node}")];
    let second = [":".to_owned()].into_iter().chain(half("b")).chain([compiled]);
    let job = setting.job(2, program)?.flag("-x").flag("SOFTIB_NODE=a").arguments(second);
    let finished = passes(&job.parameter("btl_oxib_verbose", "debug"), program, DEADLINE_SECONDS)?;
    expect_nodes(&finished, 2)
}

fn faulty(setting: &Setting, program: &str, plan: &str, struck: &str) -> Result<()> {
    let job = setting.job(RANKS, program)?.parameter("btl_oxib_receive_queues", SHARED);
    let job = job.flag("-x").flag(&format!("SOFTIB_FAULTS={plan}"));
    let finished = passes(&job, program, DEADLINE_SECONDS)?;
    let count =
        |line: &str| line.split(&format!("{struck}: ")).nth(1)?.split([',', ' ']).next()?.parse::<u64>().ok();
    let reports = finished.output.lines().filter(|line| line.contains("softib: faults of process"));
    let counts: Vec<u64> = reports.filter_map(count).collect();
    if counts.len() == RANKS && counts.iter().sum::<u64>() > 0 {
        return Ok(());
    }
    Err(Failure(format!("no fault struck ({struck}): {counts:?}\n{}", finished.output)))
}

/// The LIDs that the ranks' ports say they have.
fn lids(finished: &Finished) -> BTreeSet<&str> {
    let lines = finished.output.lines().filter(|line| line.contains("ibcm listens on"));
    lines.filter_map(|line| line.rsplit("lid ").next()).map(str::trim).collect()
}

fn expect_lids(finished: &Finished, expected: &BTreeSet<&str>) -> Result<()> {
    let found = lids(finished);
    if found == *expected { Ok(()) } else { Err(Failure(format!("lids {found:?} instead of {expected:?}"))) }
}

fn expect_nodes(finished: &Finished, count: usize) -> Result<()> {
    let found = lids(finished);
    if found.len() == count && !found.contains("1") {
        return Ok(());
    }
    Err(Failure(format!("{count} nodes were asked for, and the lids are {found:?}")))
}
