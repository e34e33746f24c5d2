//! What a run says, on one screen: times, ratios, rates, aims.

use super::aims::{Aim, Verdict, bound, verdicts};
use super::samples::{Alike, Samples, Spread};
use crate::report::{figure, table};
use e2e::measured::{Kind, Measurement};
use e2e::say;

const NONE: &str = "-";

/// All tables.
pub fn show(samples: &Samples, aims: &[Aim]) {
    let (rounds, first) = (samples.rounds, samples.columns.first().map_or("", String::as_str));
    let titled = |title: String, table: Option<String>| {
        table.into_iter().for_each(|table| say!("{title}\n{table}\n"));
    };
    titled(format!("half round trip in us, median of {rounds} rounds"), times(samples, is_half));
    titled("windows of up to 64: 10^6 messages/s of 8 B, MB/s of larger ones".to_owned(), rates(samples));
    titled("patterns, us: an exchange by two, an operation".to_owned(), times(samples, Kind::is_pattern));
    titled(
        format!("time of a message, {first} / other: median of {rounds} pairs (quartiles), * misses its aim"),
        ratios(samples, aims),
    );
    titled("the same by the state of the ranks' processors".to_owned(), by_state(samples));
    titled("aims".to_owned(), judged(&verdicts(aims, samples)));
}

/// Microseconds of these kinds: a row a measurement, a column a transport.
fn times(samples: &Samples, wanted: impl Fn(Kind) -> bool) -> Option<String> {
    let cell = |row, column| samples.time(row, column).map(|time| figure(time.median));
    of_kind(samples, |what| wanted(what.kind), 0, &cell)
}

fn is_half(kind: Kind) -> bool {
    kind == Kind::HalfRoundTrip
}

/// Messages in windows: millions a second, and 10^6 bytes a second where they are larger.
fn rates(samples: &Samples) -> Option<String> {
    let cell = |row: usize, column| {
        let what: &Measurement = samples.rows.get(row)?;
        let scale = if small(what) { 1.0 } else { what.bytes as f64 };
        samples.time(row, column).map(|time| figure(scale / time.median))
    };
    of_kind(samples, |what| matches!(what.kind, Kind::OneWay | Kind::BothWays), 0, &cell)
}

/// The first transport's time by the others': "1.31 (1.25-1.40)", with a star where it misses the bound.
fn ratios(samples: &Samples, aims: &[Aim]) -> Option<String> {
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

/// "4096", "8 B one way".
fn label(what: &Measurement) -> String {
    let Measurement { kind, bytes } = what;
    match kind {
        Kind::HalfRoundTrip => bytes.to_string(),
        _ => format!("{bytes} B {}", kind.name()),
    }
}

/// Counted, not weighed.
fn small(what: &Measurement) -> bool {
    what.bytes < 1024
}

/// A row a state of the machine: the ratios of the first size that has a payload; `None` if there was one state.
fn by_state(samples: &Samples) -> Option<String> {
    let row = samples.rows.iter().position(|what| what.kind == Kind::HalfRoundTrip && what.bytes > 1)?;
    let first = ["rounds", "processors", "cache line us", "bytes"].map(str::to_owned);
    let head = first.into_iter().chain(samples.columns.iter().skip(1).map(|name| format!("/ {name}")));
    let line = |Alike { state, line_us, rounds }: &Alike| {
        let (count, name) = (rounds.len().to_string(), state.name().to_owned());
        let first = [count, name, figure(*line_us), label(samples.rows.get(row)?)];
        let ratio = |column| samples.ratio_in(rounds, row, column);
        let ratios = (1..samples.columns.len()).map(ratio);
        let cells = ratios.map(|ratio| ratio.map_or_else(|| NONE.to_owned(), |r| format!("{:.2}", r.median)));
        Some(first.into_iter().chain(cells).collect())
    };
    let states = Some(samples.states()).filter(|states| states.len() > 1)?;
    let lines: Option<Vec<Vec<String>>> = states.iter().map(line).collect();
    let lines: Vec<Vec<String>> = std::iter::once(head.collect()).chain(lines?).collect();
    Some(table(&lines).trim_end().to_owned())
}

/// A row an aim.
fn judged(verdicts: &[Verdict]) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::super::aims::HERE;
    use super::super::samples::tests::samples;
    use super::*;

    #[test]
    fn ratios_that_miss_their_aim_have_a_star() {
        let all = samples(
            &["oxib", "openib", "tcp"],
            &[(8, &[&[1.0], &[2.0], &[0.5]]), (64, &[&[1.0], &[1.0], &[2.0]])],
        );
        let text = ratios(&all, HERE).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[1], "8  0.50 (0.50-0.50)   2.00 (2.00-2.00)", "tcp has no aim");
        assert!(lines[2].starts_with("64  1.00 (1.00-1.00)*"), "{text}");
        assert_eq!(rates(&all), None, "nothing was measured in windows");
    }

    #[test]
    fn small_messages_are_counted_and_large_ones_weighed() {
        let what = |bytes| Measurement { kind: Kind::OneWay, bytes };
        let mut all = Samples::new(vec!["oxib".to_owned()], vec![what(8), what(1 << 20)]);
        all.begin_round();
        all.set(0, 0, 0.25);
        all.set(1, 0, 512.0);
        let text = rates(&all).unwrap();
        let cells: Vec<&str> =
            text.lines().skip(1).filter_map(|line| line.split_whitespace().last()).collect();
        assert_eq!(cells, ["4.000", "2048"]);
        assert_eq!(times(&all, is_half), None);
    }

    #[test]
    fn an_aim_is_met_or_says_where_not() {
        let all = samples(&["oxib", "UCX sm"], &[(8, &[&[1.0], &[2.0]]), (64, &[&[3.0], &[1.0]])]);
        let text = judged(&verdicts(HERE, &all)).unwrap();
        assert!(text.contains("at most 2.00") && text.contains("not met at 1 of 2"), "{text}");
        assert_eq!(judged(&[]), None);
    }
}
