//! How connections come up, with each connection manager by itself (`btl_oxib_cpc_include`) and with the default choice: many at
//! once, peers that Open MPI has not told of yet, peers that are stopped, connections that overlap with MPI_Finalize, and what
//! a user is told when two processes do not fit.
//!
//! Quick: a few programs a manager. All: every program of ours with 2 to 4 ranks a manager, and storms of 32 ranks.

use crate::mpirun::{Job, Transport};
use crate::process::{End, Finished, Limits};
use crate::suite::case::passes;
use crate::suite::{Case, Setting, own};
use crate::{Failure, Result};

const SECONDS: u64 = 90;
const MANAGERS: [&str; 2] = ["ibcm", "rdmacm"];
/// The helper thread, as the kernel names it.
const HELPER: &str = "oxib-connect";

/// A program, its ranks, its arguments and MCA parameters, and what it shows.
struct Scene {
    program: &'static str,
    ranks: usize,
    arguments: &'static [&'static str],
    parameters: &'static [(&'static str, &'static str)],
    shows: &'static str,
}

const fn scene(program: &'static str, ranks: usize, shows: &'static str) -> Scene {
    Scene { program, ranks, arguments: &[], parameters: &[], shows }
}

const UNKNOWN: &str = "processes connect that Open MPI has not told each other of yet";
const YIELD: &[(&str, &str)] = &[("mpi_yield_when_idle", "1")];

const QUICK: [Scene; 8] = [
    scene("sendrecv", 3, "every pair of ranks exchanges messages"),
    Scene { arguments: &["all"], ..scene("connect", 8, "16 connections of 8 ranks begin at once") },
    Scene { arguments: &["each"], ..scene("connect", 8, "16 connections of 8 ranks come up one by one") },
    Scene { parameters: YIELD, ..scene("everyone", 16, "all ranks connect to all at once") },
    Scene { parameters: &[("mpi_add_procs_cutoff", "0")], ..scene("everyone", 6, UNKNOWN) },
    Scene {
        parameters: &[("mpi_preconnect_mpi", "1")],
        ..scene("everyone", 4, "MPI_Init connects all to all")
    },
    scene("stopped", 5, "a rank that is stopped before it is connected holds up no others"),
    scene("parting", 5, "connections come up while their processes are in MPI_Finalize"),
];

const MORE: [Scene; 4] = [
    Scene { parameters: YIELD, ..scene("everyone", 32, "all ranks connect to all at once") },
    Scene { parameters: &[("mpi_add_procs_cutoff", "0")], ..scene("everyone", 24, UNKNOWN) },
    Scene { arguments: &["all"], ..scene("connect", 32, "256 connections of 32 ranks begin at once") },
    scene("stopped", 16, "a rank that is stopped before it is connected holds up no others"),
];

/// Each manager by itself, then what is the same for all.
pub fn cases(setting: &Setting) -> Vec<Case> {
    if !setting.transport.needs_plugin() {
        return Vec::new();
    }
    let more: &[Scene] = if setting.all { &MORE } else { &[] };
    let scenes = || QUICK.iter().chain(more);
    let mut cases: Vec<Case> =
        MANAGERS.iter().flat_map(|manager| scenes().map(|scene| scene_case(manager, scene))).collect();
    if setting.all {
        cases.extend(MANAGERS.iter().flat_map(|manager| own::by_manager(setting, manager)));
    }
    cases.extend(of_the_choice());
    cases
}

fn scene_case(manager: &'static str, scene: &'static Scene) -> Case {
    let Scene { program, ranks, shows, parameters, .. } = scene;
    let with: String = parameters.iter().map(|(name, value)| format!(", {name} {value}")).collect();
    Case::new(format!("by {manager}: {shows} ({program}, {ranks} ranks{with})"), move |setting| {
        let job = setting.job(scene.ranks, scene.program)?.arguments(scene.arguments);
        let job = job.parameter("btl_oxib_cpc_include", manager);
        let job = scene.parameters.iter().fold(job, |job, (name, value)| job.parameter(name, value));
        passes(&job, scene.program, SECONDS).map(drop)
    })
}

fn of_the_choice() -> Vec<Case> {
    vec![
        Case::new(
            "a process without peers has no helper thread, and MPI_Finalize nothing to wait for",
            alone,
        ),
        Case::new("a connection manager that nobody knows is named, with those that are known", unknown),
        Case::new("a port that if_include names is used, one that is not there is named", included),
        Case::new("processes with other queues refuse each other, and both layouts are shown", layouts),
        Case::new("processes with other queues go on over shared memory", layouts_beside),
        Case::new("processes without a common connection manager name both sides' managers", managers),
    ]
}

/// One rank has no helper, two have: so the look at the threads' names would have found it.
fn alone(setting: &Setting) -> Result<()> {
    for (ranks, expected) in [(1, false), (2, true)] {
        let awaited: &[&str] = if expected { &[HELPER] } else { &[] };
        let job = setting.job(ranks, "alone")?.arguments(awaited);
        let finished = passes(&job, "alone", SECONDS)?;
        let told = finished.output.contains(&format!("thread {HELPER}"));
        require(told == expected, "its helper thread", &job, &finished)?;
    }
    Ok(())
}

fn unknown(setting: &Setting) -> Result<()> {
    let job = beside(setting, "sendrecv")?.parameter("btl_oxib_cpc_include", "pigeon");
    let finished = passes(&job, "sendrecv", SECONDS)?;
    says(&job, &finished, &["pigeon", "known are", "ibcm", "rdmacm"])
}

fn included(setting: &Setting) -> Result<()> {
    passes(&setting.job(2, "sendrecv")?.parameter("btl_oxib_if_include", "softib0:1"), "sendrecv", SECONDS)?;
    for (value, named) in [("softib0:2", "softib0"), ("softib0:1,pigeon0:3", "pigeon0")] {
        let job = beside(setting, "sendrecv")?.parameter("btl_oxib_if_include", value);
        let finished = passes(&job, "sendrecv", SECONDS)?;
        says(&job, &finished, &["btl_oxib_if_include", named])?;
    }
    Ok(())
}

/// Rank 1 has its own idea of the parameter.
fn at_odds(
    setting: &Setting,
    job: fn(&Setting, &str) -> Result<Job>,
    name: &str,
    value: &str,
) -> Result<Job> {
    let compiled = setting.programs.compiled("sendrecv")?.to_string_lossy().into_owned();
    let script = format!(
        r#"[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export OMPI_MCA_btl_oxib_{name}={value}; exec "$0" "$@""#
    );
    Ok(job(setting, "/bin/sh")?.arguments(["-c", &script, &compiled]))
}

fn layouts(setting: &Setting) -> Result<()> {
    for manager in MANAGERS {
        let job = at_odds(setting, only, "receive_queues", "S,4096,256,128,32")?;
        let job = job.parameter("btl_oxib_receive_queues", "P,4096,64");
        let job = job.parameter("btl_oxib_cpc_include", manager);
        fails_and_says(&job, &["P,4096,64", "S,4096,256,128,32", "btl_oxib_receive_queues"])?;
    }
    sweep(setting)
}

fn layouts_beside(setting: &Setting) -> Result<()> {
    let job = at_odds(setting, beside, "receive_queues", "S,4096,256,128,32")?;
    let finished = passes(&job, "sendrecv", SECONDS)?;
    says(&job, &finished, &["S,4096,256,128,32", "btl_oxib_receive_queues"])
}

fn managers(setting: &Setting) -> Result<()> {
    let job = at_odds(setting, only, "cpc_include", "rdmacm")?;
    fails_and_says(
        &job.parameter("btl_oxib_cpc_include", "ibcm"),
        &["no connection component", "ibcm", "rdmacm"],
    )?;
    sweep(setting)
}

fn fails_and_says(job: &Job, words: &[&str]) -> Result<()> {
    let finished = job.run(Limits::deadline(SECONDS), &mut |_| {})?;
    let failed = matches!(finished.end, End::Exit(code) if code != 0) && finished.leftovers.is_empty();
    require(failed, "it should have failed", job, &finished)?;
    says(job, &finished, words)
}

/// Ranks that Open MPI has ended leave their segments to the next job.
fn sweep(setting: &Setting) -> Result<()> {
    passes(&setting.job(2, "sendrecv")?, "sendrecv", SECONDS).map(drop)
}

/// Two ranks over oxib and nothing else.
fn only(setting: &Setting, program: &str) -> Result<Job> {
    Ok(setting.foreign_job(2, &setting.transport, program))
}

/// Two ranks that have shared memory, too. A path is a program that is there already.
fn beside(setting: &Setting, program: &str) -> Result<Job> {
    let btl = format!("self,{},oxib", setting.mpi.shared_memory());
    let transport = Transport { name: "oxib".to_owned(), btl };
    let path = if program.starts_with('/') { program.into() } else { setting.programs.compiled(program)? };
    Ok(setting.foreign_job(2, &transport, path))
}

fn require(holds: bool, what: &str, job: &Job, finished: &Finished) -> Result<()> {
    if holds { Ok(()) } else { Err(Failure(format!("{what}: {}", job.explain(finished)))) }
}

fn says(job: &Job, finished: &Finished, words: &[&str]) -> Result<()> {
    let missing: Vec<&&str> = words.iter().filter(|word| !finished.output.contains(**word)).collect();
    require(missing.is_empty(), &format!("the message lacks {missing:?}"), job, finished)
}
