//! Where the folder of the segments has no space for a job: it ends at once and says so, or goes on over the other transport
//! that it was given.

use crate::mpirun::{Job, Transport};
use crate::process::{End, Finished, Limits};
use crate::suite::case::Verdict;
use crate::suite::{Case, Setting};
use crate::{Failure, Result, machine};

/// Far less than the connection managers' patience with a peer that does not answer.
const DEADLINE: u64 = 30;

/// All of them; they are about the software device under the plugin.
pub fn cases(setting: &Setting) -> Vec<Case> {
    if !setting.transport.needs_plugin() {
        return Vec::new();
    }
    let small = |kibibytes: usize, ranks: usize| {
        let name = format!(
            "a segment folder of {kibibytes} KiB refuses {ranks} ranks at once, with what is free and needed"
        );
        Case::skippable(name, move |setting| refused(setting, kibibytes, ranks))
            .unless(|_| machine::no_mount())
    };
    let name = "a job that may use tcp goes on over it where the segment folder is too small";
    // Room for all segments, and not for all rings between them.
    vec![small(512, 2), small(3072, 4), Case::skippable(name, goes_on).unless(|_| machine::no_mount())]
}

/// A job whose segments are in a tmpfs of this size, which only the job sees.
fn crowded(setting: &Setting, kibibytes: usize, ranks: usize, btl: &str) -> Result<(Job, Finished)> {
    let transport = Transport { name: setting.transport.name.clone(), btl: btl.to_owned() };
    let folder = setting.segments.path().to_string_lossy().into_owned();
    let mount = format!("mount -t tmpfs -o size={kibibytes}k tmpfs {folder}");
    let job = setting.foreign_job(ranks, &transport, setting.programs.compiled("everyone")?).inside(&mount);
    let finished = job.run(Limits::deadline(DEADLINE), &mut |_| {})?;
    Ok((job, finished))
}

/// Whether the job's output says what is missing where, and blames nothing else.
fn names_the_shortage(setting: &Setting, finished: &Finished) -> bool {
    let folder = setting.segments.path().to_string_lossy();
    [&folder, "are free", "are needed"].iter().all(|word| finished.output.contains(*word))
        && !finished.output.contains("may be gone")
}

fn refused(setting: &Setting, kibibytes: usize, ranks: usize) -> Result<Verdict> {
    let (job, finished) = crowded(setting, kibibytes, ranks, &setting.transport.btl)?;
    let ended = matches!(finished.end, End::Exit(code) if code != 0);
    if ended && names_the_shortage(setting, &finished) {
        return Ok(Verdict::Held);
    }
    Err(Failure(format!("no refusal that names the shortage: {}", job.explain(&finished))))
}

fn goes_on(setting: &Setting) -> Result<Verdict> {
    let (job, finished) = crowded(setting, 512, 2, "self,tcp,oxib")?;
    if finished.ok() && names_the_shortage(setting, &finished) {
        return Ok(Verdict::Held);
    }
    Err(Failure(format!("expected success, and what was missing: {}", job.explain(&finished))))
}
