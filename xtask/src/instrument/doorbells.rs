//! Doorbells: system calls that wake a sleeping peer. Between two polling ranks there should be none; the plugin counts them, and says
//! so at the end of a job with `btl_oxib_verbose debug`.

use std::fmt;

use crate::report::json_fields;
use crate::workspace::Workspace;
use e2e::failure::Context;
use e2e::mpirun::{Binding, Job, Transport};
use e2e::process::Limits;
use e2e::programs::Programs;
use e2e::{Failure, OpenMpi, Result, tell};

const SECONDS: u64 = 120;

/// During a million messages.
#[derive(Debug, Clone, Copy)]
pub struct Doorbells {
    messages: u64,
    seconds: f64,
    /// Sum over both ranks; `None` when the plugin said nothing.
    doorbells: Option<u64>,
}

json_fields!(Doorbells: messages, seconds, doorbells);

impl fmt::Display for Doorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bells =
            self.doorbells.map_or_else(|| "not reported by the plugin".to_owned(), |count| count.to_string());
        write!(
            f,
            "{} messages of 8 bytes over oxib in {:.2} s; doorbells: {bells}",
            self.messages, self.seconds
        )
    }
}

/// A million messages over oxib, with the plugin's own count of doorbells.
///
/// # Errors
/// The job has failed, or its report cannot be read.
pub fn count(mpi: &OpenMpi, workspace: &Workspace) -> Result<Doorbells> {
    tell!("a million small messages");
    let program = Programs::new(mpi, &workspace.root, &workspace.target)?.compiled("million")?;
    let job = Job::new(mpi, 2, &Transport::new("oxib"), program).binding(Binding::Pinned);
    let job = job.plugin(&workspace.plugin_folder()).parameter("btl_oxib_verbose", "debug");
    let finished = job.expect_success(Limits::deadline(SECONDS))?;
    let line = finished.output.lines().find_map(|line| line.strip_prefix("messages "));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    let [messages, "seconds", seconds] = words[..] else {
        return Err(Failure::new("the program reported no time"));
    };
    let parsed = messages.parse().ok().zip(seconds.parse().ok());
    let (messages, seconds) = parsed.context("the program's report cannot be read")?;
    Ok(Doorbells { messages, seconds, doorbells: sum(&finished.output) })
}

/// Of all numbers that follow the word: `... doorbells 0 ...`, `doorbells=0`, `doorbells: 0`.
fn sum(output: &str) -> Option<u64> {
    let numbers = output.match_indices("doorbells").filter_map(|(at, word)| {
        let rest = output[at + word.len()..].trim_start_matches([' ', '=', ':']);
        let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
        digits.parse::<u64>().ok()
    });
    numbers.fold(None, |sum, number| Some(sum.unwrap_or(0) + number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_of_all_ranks_are_added_and_silence_is_not_zero() {
        assert_eq!(sum("rank 0: doorbells 3, x\nrank 1: doorbells=4\n"), Some(7));
        assert_eq!(sum("doorbells: 0"), Some(0));
        assert_eq!(sum("nothing of the kind"), None);
    }
}
