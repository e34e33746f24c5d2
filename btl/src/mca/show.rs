//! Messages that a user must see: what happened, to what, why probably, what to do. Shown once for a whole job.

use opal_sys::{Base, Help};
use std::fmt::Write;

/// A message in the shape of Open MPI's own help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// One word per kind of message: the launcher counts repeats of other ranks under it.
    pub topic: &'static str,
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
    /// Nobody asked for it: one debug line.
    Quiet(String),
    /// Somebody did, or gave it a bad value: the message is shown.
    Tell(Report),
}

/// Width of the label column.
const LABELS: usize = 12;

impl Report {
    /// A report without facts yet.
    pub fn new(topic: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { topic, what: what.into(), facts: Vec::new(), remedy: remedy.into() }
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

    /// Shows it through Open MPI.
    pub fn show(&self, base: &Base) {
        base.show_help(Help { topic: self.topic, text: &self.text() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_puts_facts_in_a_column_and_the_remedy_last() {
        let report =
            Report::new("test", "It broke.", "Mend it.").with("Device", "soft0").with("Why", "old\nworn");
        assert_eq!(
            report.text(),
            "It broke.\n\n  Device:      soft0\n  Why:         old\n               worn\n\nMend it."
        );
    }
}
