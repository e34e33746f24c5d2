//! What a run says, on one screen: times, ratios, rates, aims.

use super::aims::{Aim, Verdict, bound};
use super::samples::{Samples, Spread};
use crate::report::{figure, table};
use e2e::measured::{Kind, Measurement};

const NONE: &str = "-";

/// Half round trips in microseconds: a row a size, a column a transport.
pub fn times(samples: &Samples) -> Option<String> {
    let cell = |row, column| samples.time(row, column).map(|time| figure(time.median));
    of_kind(samples, |what| what.kind == Kind::HalfRoundTrip, 0, &cell)
}

/// Messages in windows: millions a second, and 10^6 bytes a second where they are larger.
pub fn rates(samples: &Samples) -> Option<String> {
    let cell = |row: usize, column| {
        let what: &Measurement = samples.rows.get(row)?;
        let scale = if small(what) { 1.0 } else { what.bytes as f64 };
        samples.time(row, column).map(|time| figure(scale / time.median))
    };
    of_kind(samples, |what| what.kind != Kind::HalfRoundTrip, 0, &cell)
}

/// The first transport's time by the others': "1.31 (1.25-1.40)", with a star where it misses the bound.
pub fn ratios(samples: &Samples, aims: &[Aim]) -> Option<String> {
    let cell = |row: usize, column: usize| {
        let (what, beside) = (samples.rows.get(row)?, samples.columns.get(column)?);
        let Spread { low, median, high } = samples.ratio(row, column)?;
        let missed = bound(aims, *what, beside).is_some_and(|most| median > most);
        Some(format!("{median:.2} ({low:.2}-{high:.2}){}", if missed { "*" } else { " " }))
    };
    of_kind(samples, |_| true, 1, &cell)
}

/// A head with the columns' names, then those rows; `None` without any.
fn of_kind(
    samples: &Samples,
    wanted: impl Fn(&Measurement) -> bool,
    first: usize,
    cell: &dyn Fn(usize, usize) -> Option<String>,
) -> Option<String> {
    let names = samples.columns.iter().skip(first).map(|name| match first {
        0 => name.clone(),
        _ => format!("/ {name}"),
    });
    let mut lines: Vec<Vec<String>> = vec![std::iter::once(String::new()).chain(names).collect()];
    for (row, what) in samples.rows.iter().enumerate().filter(|(_, what)| wanted(what)) {
        let cells = (first..samples.columns.len()).map(|column| cell(row, column));
        let cells = cells.map(|cell| cell.unwrap_or_else(|| NONE.to_owned()));
        lines.push(std::iter::once(label(what)).chain(cells).collect());
    }
    (lines.len() > 1).then(|| table(&lines).trim_end().to_owned())
}

/// "4096", "8 one way, 10^6/s".
fn label(what: &Measurement) -> String {
    let Measurement { kind, bytes } = what;
    match kind {
        Kind::HalfRoundTrip => bytes.to_string(),
        Kind::OneWay if small(what) => format!("{bytes} B one way"),
        Kind::BothWays if small(what) => format!("{bytes} B both ways"),
        Kind::OneWay => format!("{bytes} B one way"),
        Kind::BothWays => format!("{bytes} B both ways"),
    }
}

/// Counted, not weighed.
fn small(what: &Measurement) -> bool {
    what.bytes < 1024
}

/// A row an aim.
pub fn aims(verdicts: &[Verdict]) -> Option<String> {
    let head = ["beside", "oxib's", "aim", "worst", "at bytes", ""].map(str::to_owned).to_vec();
    let line = |v: &Verdict| {
        let met =
            if v.met == v.of { "met".to_owned() } else { format!("not met at {} of {}", v.of - v.met, v.of) };
        let figures = [format!("at most {:.2}", v.most), format!("{:.2}", v.worst), v.at.to_string(), met];
        [v.beside.clone(), v.what.clone()].into_iter().chain(figures).collect()
    };
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(verdicts.iter().map(line)).collect();
    (!verdicts.is_empty()).then(|| table(&lines).trim_end().to_owned())
}
