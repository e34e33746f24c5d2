//! Jobs on other fabrics than the usual one: RoCE ports, ranks on nodes of their own, and things going wrong.
//!
//! All of it is softib's doing (docs/softib.md, sections 1.6, 1.7 and 7), asked for by environment variables that mpirun passes on.

use std::collections::BTreeSet;
use std::process::Command;

use crate::mpirun::starts_two_programs;
use crate::pair::Pair;
use crate::process::Finished;
use crate::suite::case::passes;
use crate::suite::verbs::{environment, says, succeeds};
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

/// Verbs programs of other projects, on RoCE ports and between nodes.
const ON_ROCE: [&str; 6] = [
    "ibv_rc_pingpong -d softib0 -c -n 200 -g 0",
    "ibv_rc_pingpong -d softib0 -c -n 200 -g 3 -e",
    "ibv_ud_pingpong -d softib0 -c -n 200 -g 1",
    "ibv_srq_pingpong -d softib0 -c -n 200 -g 3",
    "ib_send_lat -d softib0 -n 200 -x 3",
    "ib_write_bw -d softib0 -n 200 -x 1",
];
const BETWEEN_NODES: [&str; 4] = [
    "ibv_rc_pingpong -d softib0 -c -n 200 -s 65536",
    "ibv_ud_pingpong -d softib0 -c -n 200 -g 0",
    "ib_write_lat -d softib0 -n 200",
    "ib_send_bw -d softib0 -n 200 -c UD -s 4096",
];

const PROGRAMS: [&str; 3] = ["sendrecv", "collectives", "crossing"];

/// Programs x fabrics.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let programs: &[&'static str] = if setting.all { &PROGRAMS } else { &PROGRAMS[..1] };
    let of_verbs = [Case::new("unmodified: ibv_devinfo -v shows a RoCE port", devinfo)].into_iter();
    let on_roce = ON_ROCE.iter().map(|&command| {
        Case::new(format!("unmodified, on RoCE ports: {command}"), move |setting| {
            let mut variables = environment(setting);
            variables.push(("SOFTIB_LINK_LAYER".to_owned(), "ethernet".to_owned()));
            succeeds(&Pair::new(command, &variables))
        })
    });
    let between = BETWEEN_NODES.iter().map(|&command| {
        Case::new(format!("unmodified, between nodes: {command}"), move |setting| {
            succeeds(&Pair::new(command, &environment(setting)).differing("SOFTIB_NODE", ["a", "b"]))
        })
    });
    let of_mpi = programs.iter().flat_map(|program| of_program(program));
    let port =
        Case::new("a job whose port goes down and up again goes on, and says so (paused, 2 ranks)", outage);
    of_verbs.chain(on_roce).chain(between).chain(of_mpi).chain([port]).collect()
}

/// Link layer, the types of the GID table's rows, the length of the P_Key table.
fn devinfo(setting: &Setting) -> Result<()> {
    for wanted in ["Ethernet", "::ffff:127.0.0.1, RoCE v2", "max_pkeys:\t\t\t2"] {
        let mut program = Command::new("ibv_devinfo");
        program.args(["-v", "-d", "softib0"]).envs(environment(setting));
        program.env("SOFTIB_LINK_LAYER", "ethernet").env("SOFTIB_PKEYS", "0xffff,0x8001");
        says(program, wanted)?;
    }
    Ok(())
}

fn of_program(program: &'static str) -> Vec<Case> {
    let case = |what: &str, run: fn(&Setting, &str) -> Result<()>| {
        Case::new(format!("{what} ({program})"), move |setting| run(setting, program))
    };
    let mut cases = vec![
        case("ranks with RoCE ports exchange messages", roce),
        case("ranks on nodes of their own, chosen by a script, exchange messages", scripted_nodes),
        case("the two halves of an MPMD job are on nodes of their own", mpmd_nodes).unless(no_two_programs),
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

fn no_two_programs(setting: &Setting) -> Option<String> {
    let version = setting.mpi.version();
    let reason = format!(
        "mpirun of this Open MPI {version} dies of any job of two programs (open-mpi/ompi issue 13303)"
    );
    (setting.mpi.major() >= 5 && !starts_two_programs(&setting.mpi)).then_some(reason)
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

/// The program has a rank stopped for a second, so it is there when the port's second event comes.
fn outage(setting: &Setting) -> Result<()> {
    let job = setting.job(2, "paused")?.parameter("btl_oxib_verbose", "info");
    let job = job.flag("-x").flag("SOFTIB_FAULTS=port-down=200ms:100ms,event=gid-change:400ms,report");
    let finished = passes(&job, "paused", DEADLINE_SECONDS)?;
    let said = ["port 1 of softib0 is down", "port 1 of softib0 is up", "GID table", "outages: 1"];
    match said.into_iter().find(|words| !finished.output.contains(words)) {
        Some(missing) => Err(Failure(format!("\"{missing}\" is not said:\n{}", finished.output))),
        None => Ok(()),
    }
}

/// The LIDs that the ranks' ports say they have.
fn lids(finished: &Finished) -> BTreeSet<&str> {
    let lines = finished.output.lines().filter(|line| line.contains("ibcm listens on"));
    lines.filter_map(lid).collect()
}

fn lid(line: &str) -> Option<&str> {
    line.split_once("lid ")?.1.split(',').next().map(str::trim)
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
