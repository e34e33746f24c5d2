//! How oxib behaves at the edges of a job: loading, parameters, bad input, jobs that never asked for it, ranks that die.

use std::path::Path;
use std::process::Command;

use crate::failure::Context;
use crate::layouts::Layout;
use crate::mpirun::{Job, Transport, tail};
use crate::open_mpi::hides_component_folder;
use crate::process::{End, Finished, Limits, run};
use crate::suite::case::passes;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const DEADLINE: u64 = 60;

/// All of them; those that are about the plugin itself only when it is what is under test. (vader does not reach other jobs.)
pub fn cases(setting: &Setting) -> Vec<Case> {
    let mut cases = if setting.transport.needs_plugin() { of_the_plugin() } else { Vec::new() };
    cases.extend(of_any_transport());
    if setting.transport.name != setting.mpi.shared_memory() {
        cases.push(Case::new("parents and children of MPI_Comm_spawn exchange messages", spawned));
    }
    cases.extend(setting.layouts.iter().filter(|_| setting.transport.needs_plugin()).map(layout_is_read));
    cases
}

fn of_the_plugin() -> Vec<Case> {
    vec![
        Case::new("ompi_info lists oxib and its parameters, with help", listed),
        Case::new("a plugin that is installed for a user is found by that user's jobs", installed),
        Case::new("traffic over self,oxib goes through the plugin and its segments", traffic_is_ours),
        Case::new("a job that never asked for oxib has none of its threads, segments or output", no_traces),
        Case::new(
            "a wrong layout is answered with position and expectation, and the job goes on over shared memory",
            wrong_layout,
        ),
        Case::new(
            "a wrong layout without another transport ends the job with the same message",
            wrong_layout_alone,
        ),
        Case::new(
            "a device that does not exist is named, and the job goes on over shared memory",
            wrong_device,
        ),
        Case::new("every rank writes when each step of its connections happened", timelines),
        Case::new(
            "ports that if_exclude leaves out are not used, and the job goes on over shared memory",
            excluded,
        ),
        Case::new("a parameter out of range is named, and the job goes on over shared memory", wrong_number),
    ]
}

fn of_any_transport() -> Vec<Case> {
    vec![
        Case::new("MPI_Abort in the middle of traffic ends the job with its code", aborts),
        Case::new("a rank that is killed takes the job down, and the next job sweeps what it left", killed),
    ]
}

fn over(name: &str, btl: &str) -> Transport {
    Transport { name: name.to_owned(), btl: btl.to_owned() }
}

fn require(holds: bool, what: &str, job: &Job, finished: &Finished) -> Result<()> {
    if holds { Ok(()) } else { Err(Failure(format!("{what}: {}", job.explain(finished)))) }
}

fn listed(setting: &Setting) -> Result<()> {
    let mut command = Command::new(setting.mpi.tool("ompi_info"));
    let path = setting.mpi.component_path(&setting.plugin);
    command.args(["--param", "btl", "oxib", "--level", "9"]).env("OMPI_MCA_mca_base_component_path", path);
    let finished = run(&mut command, Limits::deadline(DEADLINE), &mut |_| {})?;
    let known = ["btl_oxib_receive_queues", "btl_oxib_device", "btl_oxib_eager_limit", "btl_oxib_verbose"];
    let missing: Vec<&str> = known.into_iter().filter(|name| !finished.output.contains(name)).collect();
    if finished.ok() && missing.is_empty() {
        return Ok(());
    }
    Err(Failure(format!(
        "ompi_info {} and does not name {missing:?}:\n{}",
        finished.describe(),
        tail(&finished.output, 30)
    )))
}

/// As the README says, without the folder of the build: where Open MPI looks by itself; Debian's 5.0 has to be told.
fn installed(setting: &Setting) -> Result<()> {
    let home = setting.target.join("oxib").join("home");
    let folder = home.join(".openmpi/components");
    std::fs::create_dir_all(&folder).context(format_args!("cannot create {}", folder.display()))?;
    let name = "mca_btl_oxib.so";
    std::fs::copy(setting.plugin.join(name), folder.join(name)).context("cannot copy the plugin")?;
    let job = Job::new(&setting.mpi, 2, &setting.transport, setting.programs.compiled("sendrecv")?);
    let segments = setting.segments.path().to_string_lossy();
    let job = job.variable("HOME", &home.to_string_lossy()).variable("SOFTIB_DIR", &segments);
    let told = hides_component_folder(&setting.mpi);
    let job = if told { job.plugin(&folder) } else { job };
    passes(&job, "sendrecv", DEADLINE).map(drop)
}

/// Three ranks: a file each, with two connections each, which carried something.
fn timelines(setting: &Setting) -> Result<()> {
    let folder = setting.target.join("oxib").join("timelines");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).context("cannot make a folder for timelines")?;
    let job = setting.job(3, "sendrecv")?.parameter("btl_oxib_timeline", &folder.display().to_string());
    let finished = passes(&job, "sendrecv", DEADLINE)?;
    let files = std::fs::read_dir(&folder).context("cannot read the folder of timelines")?;
    let texts: Vec<String> =
        files.flatten().filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect();
    let told = texts.iter().filter(|text| tells_of_two_connections(text)).count();
    require((texts.len(), told) == (3, 3), &format!("timelines: {texts:?}"), &job, &finished)
}

fn tells_of_two_connections(text: &str) -> bool {
    let Ok(serde_json::Value::Array(records)) = serde_json::from_str(text) else { return false };
    let steps = ["created", "qps_created", "qps_up", "buffers_posted", "connected", "first_message"];
    records.len() == 2 && records.iter().all(|r| steps.iter().all(|step| r["us"][step].is_number()))
}

/// Once where segments are by default, with a look that the very files which a rank had mapped are gone afterwards.
fn traffic_is_ours(setting: &Setting) -> Result<()> {
    let job = Job::new(&setting.mpi, 2, &setting.transport, setting.programs.compiled("traces")?)
        .plugin(&setting.plugin);
    let finished = passes(&job, "traces", DEADLINE)?;
    let segments: Vec<&str> =
        finished.output.lines().filter_map(|line| line.strip_prefix("segment ")).collect();
    let ours = finished.output.contains("plugin mapped 1") && !segments.is_empty();
    require(ours, "neither a plugin nor segments were seen in a rank", &job, &finished)?;
    let left: Vec<&&str> = segments.iter().filter(|path| Path::new(path).exists()).collect();
    require(left.is_empty(), &format!("{left:?} outlived the job"), &job, &finished)
}

/// The plugin is in the path (Open MPI opens it), vader carries the traffic: the same as without the plugin at all.
fn no_traces(setting: &Setting) -> Result<()> {
    let path = setting.mpi.component_path(&setting.plugin);
    let program = setting.programs.compiled("traces")?;
    let without = Job::new(&setting.mpi, 2, &over("without", "^openib,uct,ofi,tcp,oxib"), &program);
    let with = Job::new(&setting.mpi, 2, &over("default", "^openib,uct,ofi,tcp"), &program)
        .parameter("mca_base_component_path", &path);
    let expected = passes(&without, "traces", DEADLINE)?;
    let finished = passes(&with, "traces", DEADLINE)?;
    let normal = |text: &str| {
        let ours = text.lines().filter(|line| !line.starts_with("plugin") && !is_of_pmix(line));
        let mut lines: Vec<String> = ours.map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let same = normal(&expected.output) == normal(&finished.output);
    require(
        same,
        &format!("this differs from a job without the plugin:\n{}\n", expected.output),
        &with,
        &finished,
    )
}

/// PMIx of Open MPI 5.0 is told the component path, too, and says what of it is not for itself. It does so of any component.
fn is_of_pmix(line: &str) -> bool {
    line.contains("mca:base:process_repository_item")
        || ["pmix_mca_", "or", "libpmix_mca_"].contains(&line.trim())
}

/// Goes on over shared memory with one message that contains all of `words`, whatever their case.
fn complains(setting: &Setting, parameter: &str, value: &str, words: &[&str]) -> Result<()> {
    let program = setting.programs.compiled("sendrecv")?;
    let transport = over("oxib", &format!("self,{},oxib", setting.mpi.shared_memory()));
    let job = setting.foreign_job(2, &transport, program).parameter(parameter, value);
    let finished = passes(&job, "sendrecv", DEADLINE)?;
    says(&job, &finished, words)
}

fn says(job: &Job, finished: &Finished, words: &[&str]) -> Result<()> {
    let output = finished.output.to_lowercase();
    let missing: Vec<&&str> = words.iter().filter(|word| !output.contains(&word.to_lowercase())).collect();
    require(missing.is_empty(), &format!("the message lacks {missing:?}"), job, finished)
}

const WRONG_LAYOUT: &str = "P,128,256,192,128:Q,2048,16";

fn wrong_layout(setting: &Setting) -> Result<()> {
    complains(
        setting,
        "btl_oxib_receive_queues",
        WRONG_LAYOUT,
        &["receive_queues", "queue 2", "byte 18", "expected", "P, S"],
    )
}

fn wrong_layout_alone(setting: &Setting) -> Result<()> {
    let job = setting.job(2, "idle")?.parameter("btl_oxib_receive_queues", WRONG_LAYOUT);
    let finished = job.run(Limits::deadline(DEADLINE), &mut |_| {})?;
    let failed = matches!(finished.end, End::Exit(code) if code != 0) && finished.leftovers.is_empty();
    require(failed, "a job without any usable transport should have failed", &job, &finished)?;
    says(&job, &finished, &["receive_queues", "queue 2", "expected"])
}

fn wrong_device(setting: &Setting) -> Result<()> {
    complains(setting, "btl_oxib_device", "no_such_device_0", &["oxib", "no_such_device_0"])
}

fn excluded(setting: &Setting) -> Result<()> {
    complains(setting, "btl_oxib_if_exclude", "softib0:1", &["btl_oxib_if_exclude", "softib0"])
}

fn wrong_number(setting: &Setting) -> Result<()> {
    complains(setting, "btl_oxib_min_rnr_timer", "99", &["btl_oxib_min_rnr_timer", "99"])
}

/// The job that dies, then one that has to find the place usable and sweep what is left there.
fn dies(setting: &Setting, ranks: usize, how: &str) -> Result<(Job, Finished)> {
    let job = setting.job(ranks, "dies")?.arguments([how]);
    let finished = job.run(Limits::deadline(DEADLINE), &mut |_| {})?;
    passes(&setting.job(2, "sendrecv")?, "sendrecv", DEADLINE)?;
    Ok((job, finished))
}

fn aborts(setting: &Setting) -> Result<()> {
    let (job, finished) = dies(setting, 3, "abort")?;
    require(
        finished.end == End::Exit(17) && finished.leftovers.is_empty(),
        "expected exit code 17",
        &job,
        &finished,
    )
}

/// 137 = 128 + SIGKILL, as mpirun reports it; over tcp the survivors may notice first and end the job with code 1.
fn killed(setting: &Setting) -> Result<()> {
    let (job, finished) = dies(setting, 3, "kill")?;
    let ended = matches!(finished.end, End::Exit(code) if code != 0) && finished.leftovers.is_empty();
    require(ended, "expected the job to end by itself, with a failure", &job, &finished)
}

fn spawned(setting: &Setting) -> Result<()> {
    passes(&setting.job(2, "spawn")?, "spawn", DEADLINE).map(drop)
}

/// With the file named on the command line, the way the file itself says.
fn layout_is_read(layout: &Layout) -> Case {
    let layout = layout.clone();
    Case::new(format!("the shipped file {}.conf is read and carries traffic", layout.name), move |setting| {
        let job = setting.job(2, "sendrecv")?.parameters(&layout.from_file());
        passes(&job, "sendrecv", DEADLINE).map(drop)
    })
}
