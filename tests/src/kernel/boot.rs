//! One boot of one or more guests, and the jobs that run there.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Setting;
use super::report::{Errand, News, Outcome, Report, Wanted};
use super::table::{Job, Over, World};
use crate::failure::Context;
use crate::mpirun::{self, Transport, tail};
use crate::process::{Limits, run as run_child};
use crate::{Failure, OpenMpi, Result, tell};

/// What a boot may take on a busy machine.
const BOOT_SECONDS: u64 = 240;
/// Fetching kernel and emulator for the first time.
const PREPARE_SECONDS: u64 = 1800;
/// What vmrun needs to clear up after its own time limit.
const GRACE_SECONDS: u64 = 30;

/// Fetches and builds what guests need; from the second time on it only looks.
///
/// # Errors
/// What is missing.
pub fn prepare(setting: &Setting) -> Result<()> {
    std::fs::create_dir_all(&setting.cache)
        .context(format_args!("cannot create {}", setting.cache.display()))?;
    let finished =
        run_child(vmrun(setting).arg("--setup"), Limits::deadline(PREPARE_SECONDS), &mut |line| {
            tell!("{line}");
        })?;
    if finished.ok() {
        return Ok(());
    }
    Err(Failure(format!("no guest can be booted: tests/kernel/vmrun --setup {}", finished.describe())))
}

/// What these jobs are in this world's guests.
///
/// # Errors
/// A program does not compile.
pub fn errands(setting: &Setting, world: &World, jobs: &[Job]) -> Result<Vec<Errand>> {
    let errand = |job: &Job| {
        let command = mpirun(setting, world, job)?.command_line();
        Ok(Errand { command, seconds: job.seconds, wanted: Wanted::of(job) })
    };
    jobs.iter().map(errand).collect()
}

/// Boots, runs the jobs, tells `each` what came of the one with this index; every job gets exactly one outcome.
///
/// # Errors
/// The list of jobs cannot be written; what goes wrong in the guest is in the outcomes.
pub fn run(
    setting: &Setting,
    world: &World,
    errands: &[Errand],
    each: &mut dyn FnMut(usize, Outcome),
) -> Result<News> {
    let list = List::write(setting, errands)?;
    let mut report = Report::new(errands);
    let seconds = BOOT_SECONDS + errands.iter().map(|errand| errand.seconds).sum::<u64>();
    let mut command = vmrun(setting);
    command.args(["--net", world.device.driver(), "--hosts", &world.guests.to_string()]);
    // Two spinning ranks of one guest must not share a processor; a guest of its own has one rank.
    command.args(["--cpus", if world.guests == 1 { "2" } else { "1" }]);
    command.args(["--wire", world.wire.netem(), "--timeout", &seconds.to_string(), "--"]);
    command.arg(setting.scripts.join("jobs")).arg(&list.0);
    let finished = run_child(&mut command, Limits::deadline(seconds + GRACE_SECONDS), &mut |line| {
        if let Some((index, outcome)) = report.line(line) {
            each(index, outcome);
        }
    })?;
    let why = format!("the guest {}; its last words:\n{}", finished.describe(), tail(&finished.output, 30));
    let (rest, news) = report.conclude(&why);
    rest.into_iter().for_each(|(index, outcome)| each(index, outcome));
    Ok(news)
}

fn vmrun(setting: &Setting) -> Command {
    let mut command = Command::new(setting.scripts.join("vmrun"));
    command.env("OXIB_VM_CACHE", &setting.cache);
    // Cargo's: the guest's programs need nothing of it.
    command.env_remove("LD_LIBRARY_PATH");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OMPI_MCA_") {
            command.env_remove(name);
        }
    }
    command
}

/// The list of jobs, in a file that the guest sees.
struct List(PathBuf);

impl List {
    fn write(setting: &Setting, errands: &[Errand]) -> Result<List> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = setting.cache.join(format!("jobs-{}-{count}", std::process::id()));
        let line = |errand: &Errand| format!("{}\t{}\n", errand.seconds, errand.command);
        let text: String = errands.iter().map(line).collect();
        std::fs::write(&path, text).context(format_args!("cannot write {}", path.display()))?;
        Ok(List(path))
    }
}

impl Drop for List {
    fn drop(&mut self) {
        let _an_old_list_harms_nobody = std::fs::remove_file(&self.0);
    }
}

/// The job's mpirun, as one would type it in the guest.
///
/// # Errors
/// The program does not compile.
pub fn mpirun(setting: &Setting, world: &World, job: &Job) -> Result<mpirun::Job> {
    let device = format!("{}0", world.device.driver());
    let transport = Transport::new(if job.over == Over::Oxib { "oxib" } else { "tcp" });
    let mut mpirun =
        mpirun::Job::new(&OpenMpi::in_path(), job.ranks, &transport, setting.programs.compiled(job.program)?)
            .arguments(&job.arguments)
            .as_root();
    if world.guests > 1 {
        let hosts: Vec<String> = (0..world.guests).map(|node| format!("n{node}:{}", job.ranks)).collect();
        mpirun = mpirun.flag("--host").flag(&hosts.join(",")).flag("--map-by").flag("node");
        mpirun = mpirun.parameter("oob_tcp_if_include", "eth0").parameter("btl_tcp_if_include", "eth0");
    }
    mpirun = match job.over {
        Over::Tcp => mpirun,
        Over::Oxib => {
            let named = job.parameters.iter().any(|(name, _)| *name == "btl_oxib_device");
            let mpirun = if named { mpirun } else { mpirun.parameter("btl_oxib_device", &device) };
            mpirun
                .plugin(&setting.plugin)
                .parameter("btl_oxib_cpc_include", world.cpc)
                .parameter("btl_oxib_verbose", "warn")
        }
        Over::Ucx => ucx(mpirun.pml("ucx"), &device),
    };
    if let Some(layout) = job.layout {
        let file = setting.configs.join(format!("{layout}.conf"));
        mpirun = mpirun.parameter("mca_base_param_files", &file.to_string_lossy());
    }
    let tried = job.tried.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in job.parameters.iter().copied().chain(tried) {
        mpirun = mpirun.parameter(name, value);
    }
    Ok(mpirun)
}

/// UCX's settings, passed on to ranks on other guests. It takes an IPv6 GID: with an IPv4 GID of rxe its UD wire-up ignores what arrives (1.13).
fn ucx(mpirun: mpirun::Job, device: &str) -> mpirun::Job {
    let port = format!("{device}:1");
    let settings = [("UCX_NET_DEVICES", port.as_str()), ("UCX_TLS", "rc_v,self"), ("UCX_IB_GID_INDEX", "2")];
    settings.into_iter().fold(mpirun, |job, (name, value)| job.variable(name, value).flag("-x").flag(name))
}
