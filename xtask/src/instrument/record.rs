//! What `--json` writes of samples: every figure, its ratios, the aims.

use super::aims::{Aim, Verdict, verdicts};
use super::samples::{Processors, Samples, Spread};
use crate::report::json_fields;

/// For readers of the file.
pub const NOTE: &str = "us: microseconds a message (size: half round trip; rate, both: time by messages), by transport and round, null \
                        where a job failed; ratio: the first transport's us by this one's, round by round: quartile, median, quartile";

/// Everything measured beside each other.
#[derive(Debug)]
pub struct Record {
    transports: Vec<String>,
    rounds: usize,
    /// By round, at its begin and its end: the way of a cache line between the ranks' processors.
    cache_line_us: Vec<Option<[f64; 2]>>,
    /// The same: counting on all of them at the same time.
    core_us: Vec<Option<[f64; 2]>>,
    measurements: Vec<Row>,
    aims: Vec<Judged>,
}

json_fields!(Record: transports, rounds, cache_line_us, core_us, measurements, aims);

/// One measurement over all transports.
#[derive(Debug)]
struct Row {
    /// "size:4096".
    what: String,
    us: Vec<Vec<Option<f64>>>,
    ratio: Vec<Option<[f64; 3]>>,
}

json_fields!(Row: what, us, ratio);

#[derive(Debug)]
struct Judged {
    beside: String,
    what: String,
    most: f64,
    met: bool,
    worst: f64,
    at_bytes: u64,
}

json_fields!(Judged: beside, what, most, met, worst, at_bytes);

impl Record {
    /// Of these samples.
    pub fn new(samples: &Samples, aims: &[Aim]) -> Self {
        Record {
            transports: samples.columns.clone(),
            rounds: samples.rounds,
            cache_line_us: ends(samples, |end| end.line_us),
            core_us: ends(samples, |end| end.core_us),
            measurements: (0..samples.rows.len()).filter_map(|row| measurement(samples, row)).collect(),
            aims: verdicts(aims, samples).into_iter().map(judged).collect(),
        }
    }
}

fn ends(samples: &Samples, of: fn(&Processors) -> f64) -> Vec<Option<[f64; 2]>> {
    samples.ends.iter().map(|ends| ends.as_ref().map(|ends| ends.each_ref().map(of))).collect()
}

fn measurement(samples: &Samples, row: usize) -> Option<Row> {
    let columns = || 0..samples.columns.len();
    let three = |Spread { low, median, high }| [low, median, high];
    Some(Row {
        what: samples.rows.get(row)?.to_string(),
        us: columns().map(|column| samples.cell(row, column).to_vec()).collect(),
        ratio: columns().map(|column| samples.ratio(row, column).map(three)).collect(),
    })
}

fn judged(verdict: Verdict) -> Judged {
    let Verdict { beside, what, most, met, of, worst, at } = verdict;
    Judged { beside, what, most, met: met == of, worst, at_bytes: at }
}

#[cfg(test)]
mod tests {
    use super::super::aims::HERE;
    use super::super::samples::tests::samples;
    use super::*;

    #[test]
    fn a_gap_is_null_and_an_aim_is_met_when_all_of_it_is() {
        let mut all = samples(&["oxib", "openib"], &[(0, &[&[0.5], &[1.0]]), (4096, &[&[0.9], &[1.0]])]);
        all.begin_round();
        all.set(0, 0, 0.5);
        let json = serde_json::to_value(Record::new(&all, HERE)).unwrap();
        assert_eq!(json["rounds"], 2);
        assert_eq!(json["measurements"][0]["what"], "size:0");
        assert_eq!(json["measurements"][0]["us"][1], serde_json::json!([1.0, null]));
        assert_eq!(json["measurements"][0]["ratio"][1], serde_json::json!([0.5, 0.5, 0.5]));
        assert_eq!(json["aims"][0]["met"], false);
        assert_eq!(json["aims"][0]["at_bytes"], 4096);
    }
}
