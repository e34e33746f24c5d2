//! In a guest: one round of `cargo xtask bench --kernel`. Outside, `guests` writes down the command lines of the jobs, and has this very
//! program run here with them, as the guest sees this machine's files:
//!
//! ```text
//!     xtask conduct PASSES ROUND MILLISECONDS WORD,WORD... COMMAND...   a job a COMMAND; WORD: a measurement, like size:8
//!     0 2 size 8 batches 33 median_us 52.1 min_us 33.8                  what it says: a pass over all WORDs, the place of a COMMAND, and a
//!                                                                       result of its program
//! ```
//!
//! All jobs live at the same time and sleep while it is another's turn. Emulated processors may be near each other at one time and far at
//! another, for seconds; results of one turn are of the same time, those of jobs that follow each other are not.

use std::fmt;

use e2e::failure::Context;
use e2e::measured::{Measured, Measurement};
use e2e::session::{Failed, Session, take_turns};
use e2e::{Failure, Result, say, tell};

/// Of each job.
const RANKS: usize = 2;

/// `xtask conduct`.
///
/// # Errors
/// The words make no sense; the first job has failed, which is oxib's. Another one that fails is left out.
pub fn command(words: &[String]) -> Result<()> {
    let [passes, round, milliseconds, rows, lines @ ..] = words else {
        return Err(Failure::new(
            "conduct takes passes, a round, milliseconds, measurements and command lines",
        ));
    };
    let number = |word: &str| word.parse::<u32>().context(format_args!("`{word}` is no number"));
    let rows = rows.split(',').map(row).collect::<Result<Vec<_>>>()?;
    let largest = rows.iter().map(|what| what.bytes).max().unwrap_or(0);
    let mut sessions = begin(lines, largest)?;
    for pass in 0..number(passes)? as usize {
        let turns = (rows.as_slice(), number(milliseconds)?.into());
        take_turns(&mut sessions, number(round)? as usize + pass, turns, &mut |(_, column), came| {
            let measured = match came {
                Ok(measured) => measured,
                Err(failed) => return lost(column, failed),
            };
            say!("{}", Heard { pass, column, measured });
            Ok(())
        })?;
    }
    end(sessions)
}

fn row(word: &str) -> Result<Measurement> {
    Measurement::parse(word).context(format_args!("`{word}` is no measurement"))
}

/// Starts all, then waits for all.
fn begin(lines: &[String], largest: u64) -> Result<Vec<Option<Session>>> {
    let start = |line: &String| Session::start_line(line, largest).map(Some);
    let mut sessions = lines.iter().map(start).collect::<Result<Vec<_>>>()?;
    for (column, place) in sessions.iter_mut().enumerate() {
        if let Some(mut session) = place.take() {
            match session.connect(RANKS) {
                Ok(()) => *place = Some(session),
                Err(why) => lost(column, (why, session))?,
            }
        }
    }
    Ok(sessions)
}

fn end(mut sessions: Vec<Option<Session>>) -> Result<()> {
    sessions.iter_mut().flatten().for_each(Session::close);
    for (column, session) in sessions.into_iter().enumerate() {
        if let Err(why) = session.map_or(Ok(()), Session::end) {
            told(column, why)?;
        }
    }
    Ok(())
}

/// The job itself tells best why it is gone.
fn lost(column: usize, (why, session): Failed) -> Result<()> {
    told(column, session.end().err().unwrap_or(why))
}

fn told(column: usize, why: Failure) -> Result<()> {
    if column == 0 {
        return Err(why);
    }
    tell!("{column} failed, and is left out of this round: {why}");
    Ok(())
}

/// A result; as text, the line that says so.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Heard {
    /// Number of the pass over all measurements.
    pub pass: usize,
    /// Place of the job's command.
    pub column: usize,
    /// What it has measured.
    pub measured: Measured,
}

impl fmt::Display for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.pass, self.column, self.measured)
    }
}

/// Such a line, read; `None` for any other one.
pub fn heard(line: &str) -> Option<Heard> {
    let (pass, rest) = line.split_once(' ')?;
    let (column, result) = rest.split_once(' ')?;
    Some(Heard { pass: pass.parse().ok()?, column: column.parse().ok()?, measured: Measured::parse(result)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &[&str]) -> Vec<String> {
        text.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn what_is_said_is_heard() {
        let measured = Measured::parse("size 8 batches 33 median_us 52.10000 min_us 33.80000").unwrap();
        let said = Heard { pass: 1, column: 2, measured };
        assert_eq!(heard(&said.to_string()), Some(said));
        for line in ["PASS pingpong", "1 size 8 batches 33 median_us 52.1 min_us 33.8", "1 failed"] {
            assert_eq!(heard(line), None, "{line}");
        }
    }

    #[test]
    fn a_first_job_that_fails_is_the_rounds_failure_and_another_one_is_left_out() {
        let why = command(&words(&["1", "0", "1", "size:8", "echo why; exit 3 #"])).unwrap_err().0;
        assert!(why.contains("exit code 3"), "{why}");
        assert_eq!(told(1, Failure::new("why")), Ok(()));
    }

    #[test]
    fn words_that_make_no_sense_are_named() {
        assert!(command(&words(&["1", "0", "1"])).unwrap_err().0.contains("command lines"));
        assert!(command(&words(&["1", "0", "1", "size"])).unwrap_err().0.contains("`size`"));
        assert!(command(&words(&["1", "0", "x", "size:8"])).unwrap_err().0.contains("`x`"));
    }
}
