//! What is measured, over what, how often, from the command line.

use super::aims::{Aim, HERE};
use super::contenders::{Contender, contenders};
use crate::args::Args;
use crate::pingpong::parse_sizes;
use e2e::machine;
use e2e::measured::{Kind, Measured, Measurement, SIZES};
use e2e::{OpenMpi, Result};

/// Unless `--pairs` says otherwise.
pub const ROUNDS: u64 = 11;
/// Timed milliseconds of a measurement. With what is not timed (payloads, their checks) it takes about twice as long.
const MILLISECONDS: u64 = 50;
const ALL_OF_A_MEASUREMENT: f64 = 0.13;
/// Start and end of a job, while the others of its round start and end.
const ALL_OF_A_JOB: f64 = 0.7;

/// Payloads in windows: the rate of messages, and bandwidth.
const WINDOWS: [Measurement; 7] = [
    Measurement { kind: Kind::OneWay, bytes: 8 },
    Measurement { kind: Kind::BothWays, bytes: 8 },
    Measurement { kind: Kind::OneWay, bytes: 4096 },
    Measurement { kind: Kind::OneWay, bytes: 64 << 10 },
    Measurement { kind: Kind::OneWay, bytes: 1 << 20 },
    Measurement { kind: Kind::BothWays, bytes: 64 << 10 },
    Measurement { kind: Kind::BothWays, bytes: 1 << 20 },
];

/// What programs do, and with which payloads.
const PATTERNS: [(Kind, &[u64]); 12] = [
    (Kind::Swap, &[8, 4096, 64 << 10, 256 << 10, 1 << 20]),
    (Kind::Turns, &[8, 2000, 64 << 10, 256 << 10, 1 << 20, 4 << 20]),
    (Kind::Walks, &[8, 1000, 4096]),
    (Kind::Tests, &[64 << 10, 256 << 10, 1 << 20, 4 << 20]),
    (Kind::Sum, OF_OPERATIONS),
    (Kind::Everyone, OF_OPERATIONS),
    (Kind::Broadcast, OF_OPERATIONS),
    (Kind::Put, OF_OPERATIONS),
    (Kind::Get, OF_OPERATIONS),
    (Kind::Puts, &[8, 4096, 64 << 10]),
    (Kind::Gets, &[8, 4096, 64 << 10]),
    (Kind::Fetch, &[8]),
];
const OF_OPERATIONS: &[u64] = &[8, 4096, 64 << 10, 1 << 20];

/// What of a measurement's batches counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batches {
    /// The median of them.
    Median,
    /// The fastest one: what else runs on the machine is left out of it.
    Least,
}

impl Batches {
    /// `--least`, or not.
    pub fn chosen(args: &Args) -> Self {
        if args.flag("least") { Batches::Least } else { Batches::Median }
    }

    /// A message's time.
    pub fn of(self, measured: Measured) -> f64 {
        match self {
            Batches::Median => measured.median_us,
            Batches::Least => measured.least_us,
        }
    }

    /// "median".
    pub fn name(self) -> &'static str {
        match self {
            Batches::Median => "median",
            Batches::Least => "least",
        }
    }
}

/// All of it.
#[derive(Debug)]
pub struct Plan {
    /// The transports; the first is compared with the others.
    pub contenders: Vec<Contender>,
    /// What is measured, in this order.
    pub rows: Vec<Measurement>,
    /// How often each transport's job is started.
    pub rounds: u64,
    /// Timed milliseconds of a measurement.
    pub milliseconds: u64,
    /// Which of a measurement's batches count.
    pub batches: Batches,
    /// Pairs of ranks that work at the same time.
    pub pairs_at_once: usize,
    /// A million messages over oxib follow: neither sizes nor kinds were chosen, and oxib is among the transports.
    pub doorbells: bool,
}

impl Plan {
    /// From the options of `cargo xtask bench`.
    ///
    /// # Errors
    /// An option makes no sense.
    pub fn new(args: &Args, mpi: &OpenMpi) -> Result<Self> {
        let at_once = args.number("at-once", 1)?.max(1);
        let all = args.value("sizes").is_none() && !args.flag("windows") && !args.flag("patterns");
        let contenders = contenders(args, mpi)?;
        Ok(Plan {
            doorbells: all && contenders.iter().any(Contender::is_ours),
            contenders,
            rows: rows(args)?,
            rounds: args.number("pairs", ROUNDS)?.max(1),
            milliseconds: args.number("milliseconds", MILLISECONDS)?.max(1),
            batches: Batches::chosen(args),
            pairs_at_once: usize::try_from(at_once).unwrap_or(1),
        })
    }

    /// Ranks of each job.
    pub fn ranks(&self) -> usize {
        2 * self.pairs_at_once
    }

    /// What is aimed at; nothing, unless oxib is what is compared.
    pub fn aims(&self) -> &'static [Aim] {
        if self.contenders.first().is_some_and(Contender::is_ours) { HERE } else { &[] }
    }

    /// The largest payload.
    pub fn largest(&self) -> u64 {
        self.rows.iter().map(|what| what.bytes).max().unwrap_or(0)
    }

    /// What all rounds take on a quiet machine.
    pub fn seconds(&self) -> f64 {
        let measurement = ALL_OF_A_MEASUREMENT * self.milliseconds as f64 / MILLISECONDS as f64;
        let one = ALL_OF_A_JOB + self.rows.len() as f64 * measurement;
        self.rounds as f64 * self.contenders.len() as f64 * one
    }

    /// "11 rounds of 6 transports, 24 measurements each".
    pub fn describe(&self) -> String {
        let (rounds, transports, rows) = (self.rounds, self.contenders.len(), self.rows.len());
        format!("{rounds} rounds of {transports} transports, {rows} measurements each")
    }

    /// How many pairs of ranks there are, and why no more.
    pub fn pairs(&self) -> String {
        match (self.pairs_at_once, machine::cores()) {
            (1, cores @ 0..4) => {
                format!("one pair of ranks; on {cores} processors several would measure the scheduler")
            }
            (1, cores) => {
                format!("one pair of ranks; --at-once {} measures more on these processors", cores / 2)
            }
            (pairs, _) => format!("{pairs} pairs of ranks at the same time"),
        }
    }
}

/// What `--sizes`, `--windows` and `--patterns` leave.
fn rows(args: &Args) -> Result<Vec<Measurement>> {
    let (sizes, windows) = (args.value("sizes").is_some(), args.flag("windows"));
    let all = !(sizes || windows || args.flag("patterns"));
    let rows = if sizes || all { half_round_trips(args)? } else { Vec::new() };
    let patterns = patterns().filter(|_| all || args.flag("patterns"));
    Ok(with_windows(rows, windows || all).into_iter().chain(patterns).collect())
}

fn patterns() -> impl Iterator<Item = Measurement> {
    PATTERNS.into_iter().flat_map(|(kind, sizes)| sizes.iter().map(move |&bytes| Measurement { kind, bytes }))
}

/// Half round trips of the sizes of `--sizes`, or of all; messages in windows with `--windows` only.
///
/// # Errors
/// A size is none.
pub fn rows_in_guests(args: &Args) -> Result<Vec<Measurement>> {
    half_round_trips(args).map(|rows| with_windows(rows, args.flag("windows")))
}

fn half_round_trips(args: &Args) -> Result<Vec<Measurement>> {
    let sizes = args.value("sizes").map_or_else(|| Ok(SIZES.to_vec()), parse_sizes)?;
    Ok(sizes.into_iter().map(Measurement::half_round_trip).collect())
}

fn with_windows(rows: Vec<Measurement>, wanted: bool) -> Vec<Measurement> {
    let windows = WINDOWS.iter().copied().filter(|_| wanted);
    rows.into_iter().chain(windows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Args {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Args::parse(&words, &crate::bench::OPTIONS).unwrap()
    }

    #[test]
    fn aims_and_doorbells_are_oxibs() {
        let plan = |line: &str| Plan::new(&parsed(line), &OpenMpi::in_path()).unwrap();
        let plans = ["--transports oxib,tcp", "--transports tcp,oxib", "--transports tcp,ucx-sm"].map(plan);
        let seen = plans.map(|plan| (!plan.aims().is_empty(), plan.doorbells));
        assert_eq!(seen, [(true, true), (false, true), (false, false)]);
        assert!(!plan("--sizes 8").doorbells);
    }

    #[test]
    fn in_guests_windows_are_measured_only_when_they_are_asked_for() {
        let count = |line: &str| rows_in_guests(&parsed(line)).unwrap().len();
        assert_eq!(count(""), SIZES.len());
        assert_eq!(count("--windows"), SIZES.len() + WINDOWS.len());
        assert_eq!(count("--windows --sizes 8"), 1 + WINDOWS.len());
    }

    #[test]
    fn without_a_choice_everything_is_measured() {
        assert_eq!(rows(&parsed("")).unwrap().len(), SIZES.len() + WINDOWS.len() + patterns().count());
        assert!(rows(&parsed("--patterns")).unwrap().into_iter().eq(patterns()));
        let sizes: Vec<String> =
            rows(&parsed("--sizes 8,4k")).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(sizes, ["size:8", "size:4096"]);
        assert_eq!(rows(&parsed("--windows")).unwrap().len(), WINDOWS.len());
        assert_eq!(rows(&parsed("--windows --sizes 8")).unwrap().len(), WINDOWS.len() + 1);
    }
}
