//! Messages that a user must see: what happened, to what, why probably, what to do.
//!
//! They look like Open MPI's own help but go straight to standard error. Open MPI's way
//! (`opal_show_help`) counts repeats of other ranks instead of showing them, but 4.1.4's loses one
//! message in five (two ranks that report at once; mpirun then logs "ORTE_ERROR_LOG ...
//! show_help.c"). What holds for every process of a node is said by the node's first one only.

use std::fmt::Write;
use std::io::Write as _;

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

    /// Shows it, unless another process of this node does; whether it has.
    pub fn show(&self) -> bool {
        if self.common && !is_first_of_node(std::env::var(LOCAL_RANK).ok().as_deref()) {
            log::debug!("the first process of this node reports: {}", self.what.replace('\n', " "));
            return false;
        }
        let rule = "-".repeat(74);
        let text = format!("{rule}\n{}\n{rule}\n", self.text().trim_end());
        // One write, so that the lines of two ranks do not mix; without standard error there is
        // nowhere to write.
        let _ = std::io::stderr().write_all(text.as_bytes());
        true
    }
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
