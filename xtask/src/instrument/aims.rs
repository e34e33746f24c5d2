//! How far ahead oxib is to be, as bounds on the ratio of a message's time to the other transports', and whether it is: a bench
//! says so, no test depends on it.

use std::ops::RangeInclusive;

use super::samples::Samples;
use e2e::measured::{Kind, Measurement};

/// A bound on the median of the ratios.
#[derive(Debug)]
pub struct Aim {
    /// Names of the other transports.
    beside: &'static [&'static str],
    kind: Kind,
    bytes: RangeInclusive<u64>,
    most: f64,
}

const fn aim(beside: &'static [&'static str], bytes: RangeInclusive<u64>, most: f64) -> Aim {
    Aim { beside, kind: Kind::HalfRoundTrip, bytes, most }
}

/// Over the same software device.
const SAME_DEVICE: &[&str] = &["openib", "UCX rc_v"];
/// Open MPI's own shared memory, 4.1 and 5.0.
const SHARED_MEMORY: &[&str] = &["vader", "sm"];
const ANY: u64 = u64::MAX;

/// Between processes of this host.
pub const HERE: &[Aim] = &[
    aim(SAME_DEVICE, 0..=4096, 0.77),
    aim(SAME_DEVICE, 4097..=65536, 0.9),
    aim(SAME_DEVICE, 65537..=ANY, 1.0),
    aim(SHARED_MEMORY, 0..=63, 1.5),
    aim(SHARED_MEMORY, 64..=4096, 1.25),
    aim(SHARED_MEMORY, 4097..=ANY, 1.0),
    aim(&["UCX sm"], 0..=ANY, 2.0),
    Aim { beside: SHARED_MEMORY, kind: Kind::OneWay, bytes: 8..=8, most: 1.0 },
];

/// In guests, over the same soft RoCE device.
pub const GUEST: &[Aim] = &[aim(&["ucx rc_v"], 0..=ANY, 1.0)];

/// An aim beside one transport, and what was measured.
#[derive(Debug, PartialEq)]
pub struct Verdict {
    /// Name of the other transport.
    pub beside: String,
    /// What was measured, in words.
    pub what: String,
    /// The bound.
    pub most: f64,
    /// Measurements within the bound, and all.
    pub met: usize,
    pub of: usize,
    /// The largest ratio, and where.
    pub worst: f64,
    pub at: u64,
}

impl Aim {
    fn is_about(&self, what: Measurement, beside: &str) -> bool {
        self.kind == what.kind && self.bytes.contains(&what.bytes) && self.beside.contains(&beside)
    }

    /// "half round trip, 4097 to 65536 bytes".
    fn what(&self) -> String {
        let kind = self.kind.name();
        match (*self.bytes.start(), *self.bytes.end()) {
            (from, to) if from == to => format!("{kind}, {from} bytes"),
            (0, ANY) => format!("{kind}, every size"),
            (from, ANY) => format!("{kind}, from {from} bytes"),
            (from, to) => format!("{kind}, {from} to {to} bytes"),
        }
    }
}

/// The bound for a measurement beside this transport.
pub fn bound(aims: &[Aim], what: Measurement, beside: &str) -> Option<f64> {
    aims.iter().find(|aim| aim.is_about(what, beside)).map(|aim| aim.most)
}

/// Every aim beside every transport, as far as something of it was measured.
pub fn verdicts(aims: &[Aim], samples: &Samples) -> Vec<Verdict> {
    let columns = samples.columns.iter().enumerate().skip(1);
    columns.flat_map(|(column, _)| aims.iter().filter_map(move |aim| verdict(aim, samples, column))).collect()
}

fn verdict(aim: &Aim, samples: &Samples, column: usize) -> Option<Verdict> {
    let beside = samples.columns.get(column)?;
    let rows = samples.rows.iter().enumerate().filter(|(_, what)| aim.is_about(**what, beside));
    let ratios: Vec<(f64, u64)> =
        rows.filter_map(|(row, what)| Some((samples.ratio(row, column)?.median, what.bytes))).collect();
    let (worst, at) = ratios.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let met = ratios.iter().filter(|(ratio, _)| *ratio <= aim.most).count();
    Some(Verdict {
        beside: beside.clone(),
        what: aim.what(),
        most: aim.most,
        met,
        of: ratios.len(),
        worst,
        at,
    })
}

#[cfg(test)]
mod tests {
    use super::super::samples::tests::samples;
    use super::*;

    #[test]
    fn every_size_has_one_bound_beside_each_transport_that_has_any() {
        for bytes in e2e::measured::SIZES {
            let what = Measurement::half_round_trip(bytes);
            for beside in ["vader", "sm", "UCX sm", "openib", "UCX rc_v"] {
                let about = HERE.iter().filter(|aim| aim.is_about(what, beside)).count();
                assert_eq!(about, 1, "{bytes} bytes beside {beside}");
            }
            assert_eq!(bound(HERE, what, "tcp"), None);
        }
    }

    #[test]
    fn a_verdict_counts_what_is_within_the_bound_and_names_the_worst() {
        let all = samples(
            &["oxib", "openib"],
            &[(0, &[&[0.5], &[1.0]]), (4096, &[&[0.9], &[1.0]]), (8192, &[&[0.9], &[1.0]])],
        );
        let verdicts = verdicts(HERE, &all);
        let seen: Vec<_> = verdicts.iter().map(|v| (v.met, v.of, v.worst, v.at)).collect();
        assert_eq!(seen, [(1, 2, 0.9, 4096), (1, 1, 0.9, 8192)]);
        assert_eq!(verdicts[0].what, "half round trip, 0 to 4096 bytes");
    }
}
