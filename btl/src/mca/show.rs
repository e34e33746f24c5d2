//! Messages that a user must see: what happened, to what, why probably, what to do.
//!
//! They look like Open MPI's own help but go straight to standard error. Open MPI's way
//! (`opal_show_help`) counts repeats of other ranks instead of showing them, but 4.1.4's loses one
//! message in five (two ranks that report at once; mpirun then logs "ORTE_ERROR_LOG ...
//! show_help.c"). What several processes of a node have to say is said once.

use opal_sys::Abi;
use std::fmt::Write;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::os::fd::AsRawFd;

/// A message in the shape of Open MPI's own help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The other processes of this node have the same to say.
    pub common: bool,
    /// What happened, in a sentence or two.
    pub what: String,
    /// To what, and why: label and text.
    pub facts: Vec<(&'static str, String)>,
    /// What to do.
    pub remedy: String,
}

/// Why the component takes no part in this job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The user did not ask for it: one debug line.
    Quiet(String),
    /// The user did, or gave it a bad value: the message is shown.
    Tell(Report),
}

/// Width of the label column.
const LABELS: usize = 12;

impl Report {
    /// A report without facts yet, about something that every process of the node meets (a
    /// parameter, no device).
    pub fn common(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { common: true, what: what.into(), facts: Vec::new(), remedy: remedy.into() }
    }

    /// A report without facts yet, about something that happened to this process.
    pub fn own(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { common: false, ..Self::common(what, remedy) }
    }

    /// Adds a fact.
    #[must_use]
    pub fn with(mut self, label: &'static str, text: impl Into<String>) -> Self {
        self.facts.push((label, text.into()));
        self
    }

    /// The text without rules around it.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n\n", self.what);
        for (label, fact) in &self.facts {
            let fact = fact.replace('\n', &format!("\n{:1$}", "", LABELS + 3));
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {:LABELS$} {fact}", format!("{label}:"));
        }
        if !self.facts.is_empty() {
            text.push('\n');
        }
        text + &self.remedy
    }

    /// The facts in one line, for a process that says it in our place.
    pub fn line(&self) -> String {
        let facts = self.facts.iter().map(|(label, fact)| format!("{label}: {}", fact.replace('\n', " ")));
        facts.collect::<Vec<_>>().join("; ")
    }

    /// Shows it, if no other process of this node has; false: another one will.
    ///
    /// Where the job has a folder on the node, the first process that meets with something common shows it: one that alone meets with it
    /// may be the one that ends the job.
    pub fn show(&self, abi: Option<&Abi>) -> bool {
        let first = is_first_of_node(std::env::var(LOCAL_RANK).ok().as_deref());
        match abi {
            Some(abi) if self.common && abi.session_dir().is_some() => {
                let named = || self.clone().with("Process", abi.my_name().to_string());
                once_on_node(abi, &self.text(), || if first { self.write() } else { named().write() });
            }
            _ if self.common && !first => {
                log::debug!("the first process of this node reports: {}", self.what.replace('\n', " "));
                return false;
            }
            _ => self.write(),
        }
        true
    }

    /// Writes it to standard error.
    pub fn write(&self) {
        let rule = "-".repeat(74);
        let text = format!("{rule}\n{}\n{rule}\n", self.text().trim_end());
        // One write, so that the lines of two ranks do not mix; without standard error there is
        // nowhere to write.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

/// Calls `tell` in one process of our job on this node, and returns in the others that have the same to say when it has been said: each of
/// them may go on to abort the job, and with it the one that tells.
pub fn once_on_node(abi: &Abi, what: &str, tell: impl FnOnce()) {
    let Some(dir) = abi.session_dir() else { return tell() };
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    let name = format!("oxib-told-{:016x}", hasher.finish());
    let told = File::options().create(true).truncate(false).write(true).open(dir.join(name));
    // The lock goes with the file.
    let told = told.and_then(|file| lock(&file).map(|()| file));
    if told.as_ref().ok().and_then(|file| file.metadata().ok()).is_some_and(|data| data.len() != 0) {
        return log::debug!("another process of this node has said this");
    }
    tell();
    if let Err(error) = told.and_then(|mut file| file.write_all(b"told")) {
        log::debug!("others of this node may say the same: {error}");
    }
}

/// Waits for the lock of a file, which goes when that is closed.
fn lock(file: &File) -> std::io::Result<()> {
    // SAFETY: the descriptor is that of an open file; flock(2) touches no memory of ours.
    let status = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
    if status == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Where a user reads about the parameters: `ompi_info` finds the plugin where the job has found
/// it, if it is told the component path as the job is.
pub fn see_parameters() -> String {
    let path = std::env::var(COMPONENT_PATH).ok().map(|path| format!("{COMPONENT_PATH}={path} "));
    format!(
        "docs/parameters.md and\n\"{}ompi_info --param btl oxib --level 9\"\ndescribe every parameter.",
        path.unwrap_or_default()
    )
}

/// What `mpirun --mca mca_base_component_path` becomes in a rank; `ompi_info` takes it from the
/// environment only.
const COMPONENT_PATH: &str = "OMPI_MCA_mca_base_component_path";

/// Where mpirun of 4.1 and 5.0 tells a process its number among those of the job on this node.
const LOCAL_RANK: &str = "OMPI_COMM_WORLD_LOCAL_RANK";

/// True for number 0, and when the processes are not numbered.
fn is_first_of_node(local_rank: Option<&str>) -> bool {
    local_rank.is_none_or(|rank| rank == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_puts_facts_in_a_column_and_the_remedy_last() {
        let report = Report::own("It broke.", "Mend it.").with("Device", "soft0").with("Why", "old\nworn");
        assert_eq!(
            report.text(),
            "It broke.\n\n  Device:      soft0\n  Why:         old\n               worn\n\nMend it."
        );
        assert_eq!(report.line(), "Device: soft0; Why: old worn");
    }

    #[test]
    fn what_is_common_to_a_node_is_said_by_its_first_process() {
        assert_eq!([None, Some("0"), Some("1")].map(is_first_of_node), [true, true, false]);
    }
}
