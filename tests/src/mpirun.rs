//! A job: ranks, transport, MCA parameters, binding, and how it went.
//!
//! The command line is what a user would type; [`Job::command_line`] prints it, so that a failure can be repeated by hand:
//!
//!     mpirun -n 2 --oversubscribe --bind-to none --mca mca_base_component_path DIR:SYS_DEFAULT \
//!            --mca pml ob1 --mca btl self,oxib PROGRAM ARGUMENTS
//!
//! `--allow-run-as-root` is added for root only. OMPI_MCA_* variables of the caller are dropped: they would change
//! what is measured. Each job gets a session folder of its own (TMPDIR), removed afterwards, so that a job that had to be killed leaves none.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process::{Finished, Limits, run};
use crate::{Failure, OpenMpi, Result, machine};

/// A choice for `--mca btl`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transport {
    /// Short name: "oxib".
    pub name: String,
    /// The list: "self,oxib".
    pub btl: String,
}

impl Transport {
    /// `self` and the BTL of this name.
    pub fn new(name: &str) -> Self {
        Transport { name: name.to_owned(), btl: format!("self,{name}") }
    }

    /// True when the plugin has to be in the component path.
    pub fn needs_plugin(&self) -> bool {
        self.btl.split(',').any(|name| name == "oxib")
    }
}

/// Where ranks may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// One rank a core where there are enough cores: for measurements.
    Pinned,
    /// Anywhere, and more ranks than cores if need be: for tests.
    Free,
}

/// An `mpirun` to be.
#[derive(Debug, Clone)]
pub struct Job {
    mpi: OpenMpi,
    ranks: usize,
    transport: Transport,
    pml: String,
    binding: Binding,
    as_root: bool,
    plugin: Option<PathBuf>,
    parameters: Vec<(String, String)>,
    flags: Vec<String>,
    environment: Vec<(String, String)>,
    program: PathBuf,
    foreign: bool,
    arguments: Vec<String>,
    /// Runs first, in a mount namespace that the job has for itself.
    prelude: Option<String>,
}

impl Job {
    /// `program` with this many ranks over this transport.
    pub fn new(mpi: &OpenMpi, ranks: usize, transport: &Transport, program: impl Into<PathBuf>) -> Self {
        Job {
            mpi: mpi.clone(),
            ranks,
            transport: transport.clone(),
            pml: "ob1".to_owned(),
            binding: Binding::Free,
            as_root: machine::is_root(),
            plugin: None,
            parameters: Vec::new(),
            flags: Vec::new(),
            environment: Vec::new(),
            program: program.into(),
            foreign: false,
            arguments: Vec::new(),
            prelude: None,
        }
    }

    /// The folder that holds `mca_btl_oxib.so`, searched before Open MPI's own.
    pub fn plugin(mut self, folder: &Path) -> Self {
        self.plugin = Some(folder.to_owned());
        self
    }

    /// The program was not built with this Open MPI's mpicc, but with another one, or for no MPI at all.
    pub fn foreign(mut self) -> Self {
        self.foreign = true;
        self
    }

    /// Another point-to-point layer than ob1; the transport is then of no interest.
    pub fn pml(mut self, name: &str) -> Self {
        name.clone_into(&mut self.pml);
        self
    }

    /// Where ranks may run.
    pub fn binding(mut self, binding: Binding) -> Self {
        self.binding = binding;
        self
    }

    /// It runs as root, whatever user we are.
    pub fn as_root(mut self) -> Self {
        self.as_root = true;
        self
    }

    /// `--mca name value`.
    pub fn parameter(mut self, name: &str, value: &str) -> Self {
        self.parameters.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Several `--mca name value`.
    pub fn parameters(mut self, parameters: &[(String, String)]) -> Self {
        self.parameters.extend_from_slice(parameters);
        self
    }

    /// A flag of mpirun itself.
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// A variable for mpirun and all ranks.
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Arguments of the program.
    pub fn arguments<S: AsRef<str>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// In a mount namespace of its own, after this script: what it mounts is there for the job alone. For root.
    pub fn inside(mut self, script: &str) -> Self {
        self.prelude = Some(script.to_owned());
        self
    }

    /// Runs the job to its end. `watch` sees every line as it comes.
    ///
    /// # Errors
    /// When mpirun cannot be started at all; a job that failed is an `Ok` whose [`Finished`] says so.
    pub fn run(&self, limits: Limits, watch: &mut dyn FnMut(&str)) -> Result<Finished> {
        let session = SessionFolder::create()?;
        let mut words = self.command().into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        for (name, _) in std::env::vars_os() {
            if is_parameter(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
        command.args(words).env("TMPDIR", &session.0);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        run(&mut command, limits, watch)
    }

    /// Runs the job; anything but success becomes a failure that shows the command and the output.
    ///
    /// # Errors
    /// See above.
    pub fn expect_success(&self, limits: Limits) -> Result<Finished> {
        let finished = self.run(limits, &mut |_| {})?;
        if finished.ok() { Ok(finished) } else { Err(self.explain(&finished)) }
    }

    /// How the job failed: the end, the command, the last of the output.
    pub fn explain(&self, finished: &Finished) -> Failure {
        Failure(format!(
            "the job {}\n  command: {}\n  output:\n{}",
            finished.describe(),
            self.command_line(),
            indent(tail(&finished.output, 60))
        ))
    }

    /// The command, as one would type it.
    pub fn command_line(&self) -> String {
        let variables = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        variables.chain(self.command().iter().map(|w| quoted(w))).collect::<Vec<_>>().join(" ")
    }

    /// mpirun and its words, behind what puts it into its namespace.
    fn command(&self) -> Vec<String> {
        let inside = self.prelude.iter().flat_map(|script| {
            let script = format!("{script} && exec \"$@\"");
            [
                "unshare".to_owned(),
                "-m".to_owned(),
                "/bin/sh".to_owned(),
                "-c".to_owned(),
                script,
                "sh".to_owned(),
            ]
        });
        inside.chain([self.mpi.tool("mpirun").to_string_lossy().into_owned()]).chain(self.words()).collect()
    }

    fn words(&self) -> Vec<String> {
        let mut words = vec!["-n".to_owned(), self.ranks.to_string()];
        if self.as_root {
            words.push("--allow-run-as-root".to_owned());
        }
        words.extend(self.placement());
        words.extend(self.flags.iter().cloned());
        if let (Some(folder), true) = (&self.plugin, self.transport.needs_plugin()) {
            words.extend(mca("mca_base_component_path", &self.mpi.component_path(folder)));
        }
        words.extend(mca("pml", &self.pml));
        words.extend(mca("btl", &self.transport.btl));
        for (name, value) in self.transport.btl.split(',').flat_map(|btl| self.mpi.parameters_of(btl)) {
            words.extend(mca(name, value));
        }
        for (name, value) in &self.parameters {
            words.extend(mca(name, value));
        }
        let runner = self.mpi.runner().filter(|_| self.foreign);
        words.extend(runner.map(|runner| runner.to_string_lossy().into_owned()));
        words.push(self.program.to_string_lossy().into_owned());
        words.extend(self.arguments.iter().cloned());
        words
    }

    fn placement(&self) -> Vec<String> {
        let free = ["--oversubscribe", "--bind-to", "none"];
        let words = match self.binding {
            Binding::Pinned if self.ranks <= machine::cores() => pinning(&self.mpi),
            _ => &free,
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}

/// Variables that set parameters of Open MPI, of its runtime, or of PMIx.
fn is_parameter(name: &str) -> bool {
    ["OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_"].iter().any(|prefix| name.starts_with(prefix))
}

fn mca(name: &str, value: &str) -> [String; 3] {
    ["--mca".to_owned(), name.to_owned(), value.to_owned()]
}

/// The first way to give every rank a core of its own that this machine's mpirun accepts. Containers may forbid binding,
/// and two hardware threads of one core count as one slot unless told otherwise.
pub fn pinning(mpi: &OpenMpi) -> &'static [&'static str] {
    const WAYS: [&[&str]; 2] = [&["--bind-to", "core"], &["--use-hwthread-cpus", "--bind-to", "hwthread"]];
    mpi.pinning.get_or_init(|| {
        WAYS.into_iter().find(|way| accepts(mpi, way)).unwrap_or(&["--oversubscribe", "--bind-to", "none"])
    })
}

/// Whether mpirun starts a job of two programs. Debian 13's 5.0.7 dies of SIGSEGV at any `mpirun A : B`
/// (open-mpi/ompi issue 13303).
pub fn starts_two_programs(mpi: &OpenMpi) -> bool {
    accepts(mpi, &["--oversubscribe", "true", ":", "-n", "1"])
}

/// `mpirun -n 2 WORDS... true` ends well.
fn accepts(mpi: &OpenMpi, words: &[&str]) -> bool {
    let Ok(session) = SessionFolder::create() else { return false };
    let root: &[&str] = if machine::is_root() { &["--allow-run-as-root"] } else { &[] };
    let mut command = Command::new(mpi.tool("mpirun"));
    command.args(root).args(["-n", "2"]).args(words).arg("true").env("TMPDIR", &session.0);
    run(&mut command, Limits::deadline(60), &mut |_| {}).is_ok_and(|finished| finished.ok())
}

/// A short path: Open MPI puts sockets below it, and their names are limited to 107 bytes.
struct SessionFolder(PathBuf);

impl SessionFolder {
    fn create() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("oxib-{}-{count}", std::process::id()));
        match std::fs::create_dir_all(&path) {
            Ok(()) => Ok(SessionFolder(path)),
            Err(error) => Err(Failure(format!("cannot create {}: {error}", path.display()))),
        }
    }
}

impl Drop for SessionFolder {
    fn drop(&mut self) {
        let _a_temporary_folder_may_stay = std::fs::remove_dir_all(&self.0);
    }
}

/// The last `most` lines.
pub fn tail(text: &str, most: usize) -> &str {
    let starts: Vec<usize> =
        std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let lines = starts.len() - usize::from(text.ends_with('\n'));
    if lines <= most { text } else { &text[starts[lines - most]..] }
}

/// Four spaces before every line.
pub fn indent(text: &str) -> String {
    text.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

/// As one word of a shell's command line.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+@%^".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_component_path_is_given_only_to_jobs_that_name_oxib() {
        let mpi = OpenMpi::in_path();
        let job =
            |name| Job::new(&mpi, 2, &Transport::new(name), "prog").plugin(Path::new("dir")).command_line();
        let path = mpi.component_path(Path::new("dir"));
        assert!(job("oxib").contains(&format!("mca_base_component_path {path}")));
        assert!(!job("vader").contains("mca_base_component_path"));
    }

    #[test]
    fn the_command_line_can_be_pasted_into_a_shell() {
        let job = Job::new(&OpenMpi::in_path(), 3, &Transport::new("vader"), "prog")
            .parameter("x", "P,1:S,2")
            .arguments(["it's", ""]);
        let line = job.command_line();
        assert!(
            line.ends_with(r"--mca pml ob1 --mca btl self,vader --mca x P,1:S,2 prog 'it'\''s' ''"),
            "{line}"
        );
    }

    #[test]
    fn the_tail_is_the_last_lines_with_or_without_a_final_line_feed() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
        assert_eq!(tail("a\n", 2), "a\n");
        assert_eq!(tail("", 2), "");
    }
}
