//! Progress for a person (on standard error, in place on a terminal) and tables (on standard output).

use std::collections::HashSet;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use e2e::failure::Context;
use e2e::output::{self, SignOfLife};
use e2e::suite::Tally;
use e2e::{Failure, Result, say, tell};
use serde::Serialize;

/// Makes a struct of figures writable as JSON, field by field: `json_fields!(Point: bytes, mb_per_s)`.
/// What serde's derive does; its macros take longer to build than all of xtask.
macro_rules! json_fields {
    ($name:ident: $($field:ident),*) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct;
                let count = [$(stringify!($field)),*].len();
                let mut fields = to.serialize_struct(stringify!($name), count)?;
                $(fields.serialize_field(stringify!($field), &self.$field)?;)*
                fields.end()
            }
        }
    };
}
pub(crate) use json_fields;

/// Writes figures to a file and says so.
///
/// # Errors
/// The file cannot be written.
pub fn write_json(path: &Path, figures: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(figures).context("cannot write JSON")?;
    std::fs::write(path, text + "\n").context(format_args!("cannot write {}", path.display()))?;
    tell!("wrote {}", path.display());
    Ok(())
}

/// The figure in the middle, the upper one of two; NaN of none.
pub fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Does something that takes a while: says what it is, that it goes on, and how long it took.
///
/// # Errors
/// Those of `body`.
pub fn phase<T>(what: &str, body: impl FnOnce(&SignOfLife) -> Result<T>) -> Result<T> {
    tell!("== {what}");
    let (began, sign) = (Instant::now(), SignOfLife::of(what));
    let outcome = body(&sign);
    drop(sign);
    if outcome.is_ok() {
        tell!("   {what}: done in {:.1} s", began.elapsed().as_secs_f64());
    }
    outcome
}

/// One line that says what is going on; overwritten on a terminal, one line a stage elsewhere.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    shown: usize,
}

impl Progress {
    /// Nothing said yet.
    pub fn new() -> Self {
        Progress { terminal: std::io::stderr().is_terminal(), shown: 0 }
    }

    /// A new stage: said everywhere.
    pub fn stage(&mut self, text: &str) {
        if self.terminal {
            self.detail(text);
        } else {
            tell!("{text}");
        }
    }

    /// Something within a stage: said on a terminal only.
    pub fn detail(&mut self, text: &str) {
        if !self.terminal {
            return;
        }
        output::write(&mut std::io::stderr(), format_args!("\r{text:<width$}", width = self.shown));
        self.shown = text.chars().count();
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if self.terminal && self.shown > 0 {
            output::write(&mut std::io::stderr(), format_args!("\r{:width$}\r", "", width = self.shown));
            self.shown = 0;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Columns padded to their widest cell, right-aligned; two spaces between them.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(|row| line(row) + "\n").collect()
}

/// Three to four significant digits: 0.123, 12.3, 1234.
pub fn figure(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.3}"),
        v if v < 100.0 => format!("{v:.2}"),
        v if v < 1000.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// Names of what was skipped and of failures, time, count.
///
/// # Errors
/// Something has failed.
pub fn conclude(total: &Tally, took: Duration) -> Result<()> {
    let mut told = HashSet::new();
    for (name, reason) in total.skipped.iter().filter(|skipped| told.insert(*skipped)) {
        say!("skipped: {name}: {reason}");
    }
    for name in &total.failed {
        say!("FAILED: {name}");
    }
    say!("took {:.1} minutes", took.as_secs_f64() / 60.0);
    say!("{total}");
    if total.failed.is_empty() { Ok(()) } else { Err(Failure(total.to_string())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_owned(), "long".to_owned()], vec!["bbb".to_owned(), "c".to_owned()]];
        assert_eq!(table(&rows), "  a  long\nbbb     c\n");
    }

    #[test]
    fn figures_keep_three_or_four_digits() {
        assert_eq!([0.1234, 12.34, 123.4, 12345.6].map(figure), ["0.123", "12.34", "123.4", "12346"]);
    }
}
