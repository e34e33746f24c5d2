//! Files of device parameters: the layout that they give softib, what wins over them, a device that they ignore, a file with a
//! mistake.
//!
//! softib has the numbers of "no vendor". What a process made of the files it tells at verbosity debug.

use std::path::PathBuf;

use crate::failure::Context;
use crate::machine::SegmentFolder;
use crate::mpirun::{Job, Transport};
use crate::process::{Finished, Limits};
use crate::suite::case::passes;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const SECONDS: u64 = 60;

const LAYOUT: &str = "P,128,64,48,32,4,8:S,32768,128,96,24,32,6";
const OTHER: &str = "P,256,64,48,32,4,16:S,16384,128,96,24,32,6";

/// A section for softib that ends with this line, its fourth.
fn section(line: &str) -> String {
    format!("[ours]\nvendor_id = 0xffffff\nvendor_part_id = 0\n{line}\n")
}

/// Every case.
pub fn cases(setting: &Setting) -> Vec<Case> {
    if !setting.transport.needs_plugin() {
        return Vec::new();
    }
    vec![
        Case::new(
            "a file of device parameters gives softib its layout, and Open MPI's limits follow",
            layout,
        ),
        Case::new("a layout that is set wins over a file of device parameters", set_wins),
        Case::new("a device that a file ignores is left out, and is used when it is named", ignored),
        Case::new("refused: a file of device parameters with a mistake, at its line", mistaken),
        Case::new("the file beside the plugin is read, and changes nothing for softib", shipped),
    ]
}

/// A file in a folder of its own, for as long as this lives.
struct File {
    path: PathBuf,
    _folder: SegmentFolder,
}

fn file(text: &str) -> Result<File> {
    let folder = SegmentFolder::create()?;
    let path = folder.path().join("devices.ini");
    std::fs::write(&path, text).context(format_args!("cannot write {}", path.display()))?;
    Ok(File { path, _folder: folder })
}

fn with(job: Job, file: &File) -> Job {
    let job = job.parameter("btl_oxib_device_param_files", &file.path.to_string_lossy());
    job.parameter("btl_oxib_verbose", "debug")
}

/// The output says all of this.
fn says(finished: &Finished, wanted: &[&str]) -> Result<()> {
    let missing: Vec<_> = wanted.iter().filter(|words| !finished.output.contains(**words)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure(format!("{missing:?} is not said:\n{}", finished.output)))
}

/// The last queue is smaller than `max_send_size` by default.
fn layout(setting: &Setting) -> Result<()> {
    let file = file(&section(&format!("receive_queues = {LAYOUT}")))?;
    let finished = passes(&with(setting.job(2, "sendrecv")?, &file), "sendrecv", SECONDS)?;
    let from = format!("receive_queues {LAYOUT} from {}:4 [ours]", file.path.display());
    let applies = "softib0 (vendor 0xffffff, part 0x0): device parameters of";
    says(&finished, &[applies, &from, &format!("softib0 port 1: receive queues {LAYOUT}, mtu")])
}

fn set_wins(setting: &Setting) -> Result<()> {
    let file = file(&section(&format!("receive_queues = {LAYOUT}")))?;
    let job = with(setting.job(2, "sendrecv")?, &file).parameter("btl_oxib_receive_queues", OTHER);
    let finished = passes(&job, "sendrecv", SECONDS)?;
    let wins = format!("btl_oxib_receive_queues is set and wins over {}:4 [ours]", file.path.display());
    says(&finished, &[&wins, &format!("softib0 port 1: receive queues {OTHER}, mtu")])
}

/// The job goes on over shared memory; by its name the device carries it.
fn ignored(setting: &Setting) -> Result<()> {
    let file = file(&section("ignore_device = 1"))?;
    let btl = format!("self,{},oxib", setting.mpi.shared_memory());
    let beside = Transport { name: "oxib".to_owned(), btl };
    let job = with(setting.foreign_job(2, &beside, setting.programs.compiled("idle")?), &file);
    let why = format!("softib0 is ignored: ignore_device in {}:4 [ours]", file.path.display());
    says(&passes(&job, "idle", SECONDS)?, &[&why])?;
    let job = with(setting.job(2, "sendrecv")?, &file).parameter("btl_oxib_if_include", "softib0");
    passes(&job, "sendrecv", SECONDS).map(drop)
}

fn mistaken(setting: &Setting) -> Result<()> {
    let file = file(&section("mtu = 1000"))?;
    let finished = with(setting.job(2, "sendrecv")?, &file).run(Limits::deadline(SECONDS), &mut |_| {})?;
    setting.segments.clear();
    if finished.ok() {
        return Err(Failure(format!("the job was not refused:\n{}", finished.output)));
    }
    let place = format!("{}, line 4, column 7", file.path.display());
    says(
        &finished,
        &[&place, "\"1000\"", "256, 512, 1024, 2048, 4096 or auto", "btl_oxib_device_param_files"],
    )
}

fn shipped(setting: &Setting) -> Result<()> {
    let job = setting.job(2, "idle")?.parameter("btl_oxib_verbose", "debug");
    let finished = passes(&job, "idle", SECONDS)?;
    says(&finished, &["oxib-device-params.ini", "[softib and rxe] apply", "softib0 port 1: receive queues"])
}
