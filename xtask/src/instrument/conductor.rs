//! In a guest: one round of `cargo xtask bench --kernel`. Outside, `guests` writes down the command lines of the jobs, and has this very
//! program run here with them, as the guest sees this machine's files:
//!
//! ```text
//!     xtask conduct ROUND MILLISECONDS WORD,WORD... COMMAND...      a job a COMMAND; WORD: a measurement, like size:8
//!     0 size 8 batches 33 median_us 52.1 min_us 33.8                what it says: the place of a COMMAND, a result of its program
//! ```
//!
//! All jobs live at the same time and sleep while it is another's turn. Emulated processors may be near each other at one time and far at
//! another, for seconds; results of one turn are of the same time, those of jobs that follow each other are not.

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
    let [round, milliseconds, rows, lines @ ..] = words else {
        return Err(Failure::new("conduct takes a round, milliseconds, measurements and command lines"));
    };
    let number = |word: &str| word.parse::<u32>().context(format_args!("`{word}` is no number"));
    let rows = rows.split(',').map(row).collect::<Result<Vec<_>>>()?;
    let largest = rows.iter().map(|what| what.bytes).max().unwrap_or(0);
    let mut sessions = begin(lines, largest)?;
    let turns = (rows.as_slice(), number(milliseconds)?.into());
    take_turns(&mut sessions, number(round)? as usize, turns, &mut |(_, column), came| match came {
        Ok(measured) => {
            say!("{}", said(column, &measured));
            Ok(())
        }
        Err(failed) => lost(column, failed),
    })?;
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

/// A result, in words.
fn said(column: usize, measured: &Measured) -> String {
    format!("{column} {measured}")
}

/// The same, read: the place of the job's command, and what it has measured; `None` for any other line.
pub fn heard(line: &str) -> Option<(usize, Measured)> {
    let (column, result) = line.split_once(' ')?;
    Some((column.parse().ok()?, Measured::parse(result)?))
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
        assert_eq!(heard(&said(2, &measured)), Some((2, measured)));
        for line in ["PASS pingpong", "x size 8 batches 33 median_us 52.1 min_us 33.8", "1 failed"] {
            assert_eq!(heard(line), None, "{line}");
        }
    }

    #[test]
    fn a_first_job_that_fails_is_the_rounds_failure_and_another_one_is_left_out() {
        let why = command(&words(&["0", "1", "size:8", "echo why; exit 3 #"])).unwrap_err().0;
        assert!(why.contains("exit code 3"), "{why}");
        assert_eq!(told(1, Failure::new("why")), Ok(()));
    }

    #[test]
    fn words_that_make_no_sense_are_named() {
        assert!(command(&words(&["0", "1"])).unwrap_err().0.contains("command lines"));
        assert!(command(&words(&["0", "1", "size"])).unwrap_err().0.contains("`size`"));
        assert!(command(&words(&["0", "x", "size:8"])).unwrap_err().0.contains("`x`"));
    }
}
