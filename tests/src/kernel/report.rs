//! What tests/kernel/jobs says, turned into outcomes: `@@ begin N`, the job's own output, `@@ left N NAME`,
//! `@@ end N STATUS TENTHS`; at the end of a boot `@@ counter NAME VALUE` and `@@ kernel TEXT`.

use std::fmt;

use super::table::{FIGURES, Job};
use crate::measured::Measured;
use crate::mpirun::tail;
use crate::{Failure, Result};

/// What one job of a boot is to do.
#[derive(Debug)]
pub struct Errand {
    /// A line for bash.
    pub command: String,
    /// How long it may take.
    pub seconds: u64,
    /// What it says when it has done so.
    pub wanted: Wanted,
}

/// What a job says in the end, if all is well.
#[derive(Debug)]
pub enum Wanted {
    /// `PASS name`.
    Pass(&'static str),
    /// So many results.
    Results(usize),
    /// Nothing particular: its exit status says all.
    Anything,
}

impl Wanted {
    /// Of one of our programs.
    pub fn of(job: &Job) -> Self {
        match job.program {
            // Milliseconds, and a word for each result.
            FIGURES => Wanted::Results(job.arguments.len().saturating_sub(1)),
            program => Wanted::Pass(program),
        }
    }

    fn is_in(&self, output: &str) -> bool {
        match self {
            Wanted::Pass(program) => output.lines().any(|line| line == format!("PASS {program}")),
            Wanted::Results(count) => output.lines().filter_map(Measured::parse).count() == *count,
            Wanted::Anything => true,
        }
    }
}

/// How a job ended.
#[derive(Debug)]
pub struct Outcome {
    /// What it said, both streams.
    pub output: String,
    /// Its time on the guest's clock.
    pub seconds: f64,
    /// Success, or what is wrong.
    pub verdict: Result<()>,
}

/// What a boot had to say beside its jobs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Names and values that the device counted, without those that are 0.
    counters: Vec<(String, u64)>,
    /// Complaints of the guest's kernel.
    kernel: Vec<String>,
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the device counted")?;
        if self.counters.is_empty() {
            f.write_str(" nothing")?;
        }
        for (index, (name, value)) in self.counters.iter().enumerate() {
            write!(f, "{} {name} {value}", if index == 0 { "" } else { "," })?;
        }
        self.kernel.iter().try_for_each(|line| write!(f, "\n  the guest's kernel: {line}"))
    }
}

/// A boot's lines, as they come.
#[derive(Debug)]
pub struct Report<'a> {
    errands: &'a [Errand],
    /// Jobs that have ended.
    ended: usize,
    output: String,
    left: Vec<String>,
    news: News,
}

impl<'a> Report<'a> {
    /// Nothing said yet.
    pub fn new(errands: &'a [Errand]) -> Self {
        Report { errands, ended: 0, output: String::new(), left: Vec::new(), news: News::default() }
    }

    /// One more line; the job that it ends, by index.
    pub fn line(&mut self, line: &str) -> Option<(usize, Outcome)> {
        let Some(words) = line.strip_prefix("@@ ") else {
            self.output.push_str(line);
            self.output.push('\n');
            return None;
        };
        match *words.splitn(3, ' ').collect::<Vec<_>>() {
            ["begin", _] => self.output.clear(),
            ["left", _, name] => self.left.push(name.to_owned()),
            ["end", _, numbers] => return self.end(numbers),
            ["counter", name, value] => match value.parse() {
                Ok(value) if value != 0 => self.news.counters.push((name.to_owned(), value)),
                _ => {}
            },
            _ => self.news.kernel.extend(words.strip_prefix("kernel ").map(str::to_owned)),
        }
        None
    }

    fn end(&mut self, numbers: &str) -> Option<(usize, Outcome)> {
        let (status, tenths) = numbers.split_once(' ')?;
        let (index, errand) = (self.ended, self.errands.get(self.ended)?);
        self.ended += 1;
        let output = std::mem::take(&mut self.output);
        let left = std::mem::take(&mut self.left);
        let verdict = verdict(errand, status.parse().unwrap_or(-1), &left, &output);
        Some((index, Outcome { output, seconds: tenths.parse().unwrap_or(0.0) / 10.0, verdict }))
    }

    /// The guest has ended. Jobs that it never ended have failed: `why`.
    pub fn conclude(self, why: &str) -> (Vec<(usize, Outcome)>, News) {
        let failed = |index| {
            (index, Outcome { output: String::new(), seconds: 0.0, verdict: Err(Failure(why.to_owned())) })
        };
        ((self.ended..self.errands.len()).map(failed).collect(), self.news)
    }
}

/// What `timeout` ends with when it has ended a command.
const TIMED_OUT: i32 = 124;

fn verdict(errand: &Errand, status: i32, left: &[String], output: &str) -> Result<()> {
    let fault = if status == TIMED_OUT {
        format!("did not end within {} s", errand.seconds)
    } else if status != 0 {
        format!("ended with exit status {status}")
    } else if !left.is_empty() {
        format!("left processes behind: {}", left.join(", "))
    } else if !errand.wanted.is_in(output) {
        "ended without a word of success".to_owned()
    } else {
        return Ok(());
    };
    Err(Failure(format!("the job {fault}; it said:\n{}", tail(output, 40))))
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;

    fn errand(wanted: Wanted) -> Errand {
        Errand { command: String::new(), seconds: 1, wanted }
    }

    fn two_jobs() -> [Errand; 2] {
        ["idle", "flood"].map(|program| errand(Wanted::Pass(program)))
    }

    fn told(jobs: &[Errand], lines: &[&str]) -> (Vec<(usize, Outcome)>, News) {
        let mut report = Report::new(jobs);
        let mut outcomes: Vec<_> = lines.iter().filter_map(|line| report.line(line)).collect();
        let (rest, news) = report.conclude("the guest died");
        outcomes.extend(rest);
        (outcomes, news)
    }

    #[test]
    fn a_job_has_passed_when_it_says_so_with_status_0_and_leaves_nobody() {
        let jobs = two_jobs();
        let lines = [
            "@@ begin 0",
            "PASS idle",
            "@@ end 0 0 42",
            "@@ begin 1",
            "PASS flood",
            "@@ left 1 flood",
            "@@ end 1 0 7",
        ];
        let (outcomes, _) = told(&jobs, &lines);
        assert!(outcomes[0].1.verdict.is_ok());
        assert!((outcomes[0].1.seconds - 4.2).abs() < 1e-9);
        assert!(outcomes[1].1.verdict.as_ref().unwrap_err().0.contains("left processes behind: flood"));
    }

    #[test]
    fn silence_a_bad_status_and_a_dead_guest_are_failures() {
        let jobs = two_jobs();
        for end in ["@@ end 0 0 1", "@@ end 0 124 1", "@@ end 0 1 1", "@@ end 0 x 1"] {
            let (outcomes, _) = told(&jobs, &["@@ begin 0", "something", end]);
            assert_eq!(outcomes.len(), 2, "{end}");
            assert!(outcomes[0].1.verdict.is_err(), "{end}");
            assert_eq!(outcomes[1].1.verdict, Err(Failure::new("the guest died")));
        }
    }

    #[test]
    fn a_ping_pong_has_a_result_for_each_word_and_other_programs_pass() {
        let (_, jobs) = table::worlds().remove(0);
        let of = |program| Wanted::of(jobs.iter().find(|job| job.program == program).unwrap());
        assert!(matches!(of("idle"), Wanted::Pass("idle")));
        assert!(matches!(of(FIGURES), Wanted::Results(count) if count > 1));
        let result = "size 8 batches 7 median_us 2.0 min_us 1.5";
        for (output, passed) in [("", false), (result, true)] {
            let lines = ["@@ begin 0", output, "@@ end 0 0 1"];
            let (outcomes, _) = told(&[errand(Wanted::Results(1))], &lines);
            assert_eq!(outcomes[0].1.verdict.is_ok(), passed, "{output}");
        }
    }

    #[test]
    fn counters_and_complaints_of_the_kernel_are_passed_on() {
        let (_, news) =
            told(&[], &["@@ counter sent_pkts 12", "@@ counter send_err 0", "@@ kernel [ 1.0] BUG: here"]);
        assert_eq!(
            news.to_string(),
            "the device counted sent_pkts 12\n  the guest's kernel: [ 1.0] BUG: here"
        );
        assert_eq!(News::default().to_string(), "the device counted nothing");
    }
}
