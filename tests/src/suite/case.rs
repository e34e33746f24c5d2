//! One end-to-end test: a sentence about behaviour, and a function that holds it to be true or says what happened instead.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::layouts::Layout;
use crate::machine::SegmentFolder;
use crate::mpirun::{Job, Transport};
use crate::process::{Finished, Limits};
use crate::programs::Programs;
use crate::suite::drawn::Drawn;
use crate::{Failure, OpenMpi, Result};

/// What all cases share.
#[derive(Debug)]
pub struct Setting {
    /// The Open MPI that runs the jobs.
    pub mpi: OpenMpi,
    /// The folder of `mca_btl_oxib.so`.
    pub plugin: PathBuf,
    /// Our MPI programs.
    pub programs: Programs,
    /// The transport under test: oxib, or a stock one to tell its faults from ours.
    pub transport: Transport,
    /// From configs/, the default first.
    pub layouts: Vec<Layout>,
    /// Where jobs keep softib's segments.
    pub segments: SegmentFolder,
    /// Cargo's target folder, for what is built or cached.
    pub target: PathBuf,
    /// tests/ of the repository.
    pub sources: PathBuf,
    /// The full matrix, not the quick selection.
    pub all: bool,
    /// Of a soak: what the case at hand runs with, if it [takes](Case::takes_drawn) that.
    pub drawn: Mutex<Option<Drawn>>,
}

impl Setting {
    /// What a soak has drawn for the case at hand.
    pub fn drawn(&self) -> Option<Drawn> {
        *self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the next case run with this.
    pub fn draw(&self, drawn: Option<Drawn>) {
        *self.drawn.lock().unwrap_or_else(PoisonError::into_inner) = drawn;
    }

    /// A job of one of our programs over the transport under test.
    ///
    /// # Errors
    /// When the program does not compile.
    pub fn job(&self, ranks: usize, program: &str) -> Result<Job> {
        Ok(self.foreign_job(ranks, &self.transport, self.programs.compiled(program)?))
    }

    /// A job of any program over any transport, with the plugin at hand.
    pub fn foreign_job(&self, ranks: usize, transport: &Transport, program: impl Into<PathBuf>) -> Job {
        let segments = self.segments.path().to_string_lossy();
        Job::new(&self.mpi, ranks, transport, program).plugin(&self.plugin).variable("SOFTIB_DIR", &segments)
    }
}

/// What a case that did not fail has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It was run, and what it says is true.
    Held,
    /// It cannot be run here, for this reason: "Open MPI 5.0 has no openib BTL".
    Skipped(String),
}

impl Verdict {
    /// A case that cannot be run here.
    pub fn skipped(reason: impl Into<String>) -> Self {
        Verdict::Skipped(reason.into())
    }
}

type Body = Box<dyn Fn(&Setting) -> Result<Verdict>>;

/// A test case.
pub struct Case {
    /// What holds: "a receiver that starts late gets everything in order (3 ranks, layout default)".
    pub name: String,
    /// It runs with what a soak draws.
    pub takes_drawn: bool,
    body: Body,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Case {
    /// `body` is expected to set its own deadlines; it returns what went wrong.
    pub fn new(name: impl Into<String>, body: impl Fn(&Setting) -> Result<()> + 'static) -> Self {
        Case::skippable(name, move |setting| body(setting).map(|()| Verdict::Held))
    }

    /// As [`new`](Self::new), for a body that may find out that it cannot be run here.
    pub fn skippable(name: impl Into<String>, body: impl Fn(&Setting) -> Result<Verdict> + 'static) -> Self {
        Case { name: name.into(), takes_drawn: false, body: Box::new(body) }
    }

    /// The same, with a body that looks at [`Setting::drawn`].
    #[must_use]
    pub fn drawing(self) -> Self {
        Case { takes_drawn: true, ..self }
    }

    /// The same, skipped where `missing` names a reason: "libfabric is older than 1.17".
    #[must_use]
    pub fn unless(self, missing: impl Fn(&Setting) -> Option<String> + 'static) -> Self {
        let body = self.body;
        let skippable: Body = Box::new(move |setting| match missing(setting) {
            Some(reason) => Ok(Verdict::Skipped(reason)),
            None => body(setting),
        });
        Case { body: skippable, ..self }
    }

    /// The same under another name, which begins with this.
    #[must_use]
    pub fn below(self, title: &str) -> Self {
        Case { name: format!("{title}: {}", self.name), ..self }
    }

    /// Runs the body.
    ///
    /// # Errors
    /// What went wrong.
    pub fn run(&self, setting: &Setting) -> Result<Verdict> {
        (self.body)(setting)
    }
}

/// Runs `job`, expects success and `PASS name` in its output: a job that ends early without a word is no success.
///
/// # Errors
/// The job's end, command and output.
pub fn passes(job: &Job, name: &str, seconds: u64) -> Result<Finished> {
    passes_within(job, name, Limits::deadline(seconds))
}

/// As [`passes`], within other limits.
pub fn passes_within(job: &Job, name: &str, limits: Limits) -> Result<Finished> {
    let finished = job.expect_success(limits)?;
    let line = format!("PASS {name}");
    if finished.output.lines().any(|l| l == line) {
        return Ok(finished);
    }
    let Failure(text) = job.explain(&finished);
    Err(Failure(format!("`{line}` is missing: {text}")))
}
