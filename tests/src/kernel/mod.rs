//! A real kernel's verbs: the plugin and MPI jobs in guests that run a stock Debian kernel with software RDMA devices.
//!
//! ```text
//!   cargo xtask test --kernel
//!     table    worlds (device, connection manager, guests, wire) and the jobs that each runs
//!     boot     one boot: tests/kernel/vmrun with a list of jobs
//!     report   what the guest says about its jobs, line by line, turned into outcomes
//!     figures  ping-pong of oxib, UCX and tcp in the same guest, side by side
//! ```
//!
//! The guests see this machine's files, so the plugin, Open MPI, rdma-core and our programs are the very ones that are installed and
//! built here. Jobs of one world run one after another in one boot, or, where they are measured in one guest, by turns; a world's jobs that come to nothing because its guest died
//! count as failed.

pub mod boot;
pub mod figures;
pub mod report;
pub mod table;

use std::path::PathBuf;
use std::time::Instant;

use crate::measured::Measurement;
use crate::mpirun::quoted;
use crate::output::SignOfLife;
use crate::programs::Programs;
use crate::session::in_turn;
use crate::suite::Tally;
use crate::suite::runner::wanted;
use crate::{Failure, Result, say};
use figures::Figures;
use report::{Errand, Outcome, Wanted};
use table::{Contender, Job, World};

/// What all worlds share.
#[derive(Debug)]
pub struct Setting {
    /// The folder of `mca_btl_oxib.so`.
    pub plugin: PathBuf,
    /// Our MPI programs.
    pub programs: Programs,
    /// tests/kernel of the repository.
    pub scripts: PathBuf,
    /// configs/ of the repository.
    pub configs: PathBuf,
    /// Where kernel, modules and emulator are kept between runs.
    pub cache: PathBuf,
}

/// Every case's name, as filters see it: "rxe0, ibcm, 2 guests, 1 % loss: flood".
pub fn names(filters: &[String]) -> Vec<String> {
    chosen(filters).iter().flat_map(|(world, jobs)| jobs.iter().map(|job| name(world, job))).collect()
}

/// Boots the worlds one after another and runs those jobs whose name contains one of `filters`.
///
/// # Errors
/// The programs do not compile, or the first guest could not be prepared at all.
pub fn run(setting: &Setting, filters: &[String]) -> Result<(Tally, Figures)> {
    boot::prepare(setting)?;
    let worlds = chosen(filters);
    let of = worlds.iter().map(|(_, jobs)| jobs.len()).sum();
    let mut progress = Progress { done: 0, of, tally: Tally::default() };
    let mut figures = Figures::default();
    for (world, jobs) in &worlds {
        say!("booting: {world}");
        let began = Instant::now();
        let sign = SignOfLife::of(format!("guests of {world}"));
        let errands = boot::errands(setting, world, jobs)?;
        let news = boot::run(setting, world, &errands, &mut |index, outcome| {
            sign.heard();
            progress.tell(world, &jobs[index], &outcome);
            figures.take(world, &jobs[index], &outcome);
        })?;
        say!("  {:.0} s in all; {news}", began.elapsed().as_secs_f64());
    }
    Ok((progress.tally, figures))
}

/// Boots a world once and measures in it, round by round, a job of each contender; the next round begins with
/// another one. `each` is told round, place in that list, and outcome.
///
/// # Errors
/// The guest could not be prepared.
pub fn measure(
    setting: &Setting,
    world: &World,
    (contenders, rounds): (&[Contender], usize),
    (milliseconds, what): (u64, &[Measurement]),
    each: &mut dyn FnMut(usize, usize, Outcome),
) -> Result<()> {
    boot::prepare(setting)?;
    let turns = turns(contenders.len(), rounds);
    let job = |&(_, column): &(usize, usize)| table::measuring(&contenders[column], milliseconds, what);
    let jobs: Vec<Job> = turns.iter().map(job).collect();
    let errands = boot::errands(setting, world, &jobs)?;
    follow(setting, world, &errands, &mut |index, outcome| {
        let (round, column) = turns[index];
        each(round, column, outcome);
    })
}

/// Boots a world of one guest once and measures in it, round by round, jobs of all contenders at the same time, which take turns measurement
/// by measurement: `conductor... ROUND MILLISECONDS WORD,WORD... COMMAND...` starts the commands in the guest ([`crate::session`]) and says what
/// they measure. `each` is told round and outcome.
///
/// # Errors
/// The guest could not be prepared.
pub fn measure_in_turns(
    setting: &Setting,
    world: &World,
    conductor: &[String],
    (contenders, rounds): (&[Contender], usize),
    (milliseconds, what): (u64, &[Measurement]),
    each: &mut dyn FnMut(usize, Outcome),
) -> Result<()> {
    boot::prepare(setting)?;
    let line = |contender| {
        let job = Job { arguments: Vec::new(), ..table::measuring(contender, milliseconds, what) };
        boot::mpirun(setting, world, &job).map(|mpirun| mpirun.command_line())
    };
    let lines = contenders.iter().map(line).collect::<Result<Vec<String>>>()?;
    let words = what.iter().map(Measurement::to_string).collect::<Vec<_>>().join(",");
    let errand = |round: usize| {
        let of_round = [round.to_string(), milliseconds.to_string(), words.clone()];
        let all = conductor.iter().chain(&of_round).chain(&lines);
        let command = all.map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        Errand { command, seconds: table::MEASURING_SECONDS, wanted: Wanted::Anything }
    };
    let errands: Vec<Errand> = (0..rounds).map(errand).collect();
    follow(setting, world, &errands, each)
}

/// Boots, tells `each` what came of the errands, and says what the device has counted.
fn follow(
    setting: &Setting,
    world: &World,
    errands: &[Errand],
    each: &mut dyn FnMut(usize, Outcome),
) -> Result<()> {
    let sign = SignOfLife::of(format!("guests of {world}"));
    let news = boot::run(setting, world, errands, &mut |index, outcome| {
        sign.heard();
        each(index, outcome);
    })?;
    say!("{world}: {news}");
    Ok(())
}

/// Round and place among so many contenders, in the order of the jobs.
fn turns(places: usize, rounds: usize) -> Vec<(usize, usize)> {
    (0..rounds).flat_map(|round| in_turn(places, round).map(move |place| (round, place))).collect()
}

fn chosen(filters: &[String]) -> Vec<(World, Vec<Job>)> {
    let of_world = |(world, jobs): (World, Vec<Job>)| {
        let jobs: Vec<Job> = jobs.into_iter().filter(|job| wanted(&name(&world, job), filters)).collect();
        (!jobs.is_empty()).then_some((world, jobs))
    };
    table::worlds().into_iter().filter_map(of_world).collect()
}

fn name(world: &World, job: &Job) -> String {
    format!("{world}: {}", job.title)
}

/// A line a case, and the count.
struct Progress {
    done: usize,
    of: usize,
    tally: Tally,
}

impl Progress {
    fn tell(&mut self, world: &World, job: &Job, outcome: &Outcome) {
        self.done += 1;
        let (done, of, name) = (self.done, self.of, name(world, job));
        let seconds = outcome.seconds;
        match &outcome.verdict {
            Ok(()) => {
                say!("[{done:>3}/{of}] ok   {seconds:6.1} s  {name}");
                self.tally.passed += 1;
            }
            Err(Failure(text)) => {
                say!("[{done:>3}/{of}] FAIL {seconds:6.1} s  {name}");
                say!("{}", crate::mpirun::indent(text));
                self.tally.failed.push(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_transport_is_measured_once_a_round_and_begins_some_of_them() {
        let turns = turns(3, 3);
        assert_eq!(turns.iter().map(|(_, column)| *column).collect::<Vec<_>>(), [0, 1, 2, 1, 2, 0, 2, 0, 1]);
        assert!(turns.iter().map(|(round, _)| *round).is_sorted());
    }

    #[test]
    fn every_case_has_a_name_of_its_own_and_a_filter_chooses_by_it() {
        let all = names(&[]);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        for wire in ["1 % loss", "bad wire"] {
            let some = names(&[wire.to_owned()]);
            assert!(!some.is_empty() && some.len() < all.len(), "{some:?}");
        }
        assert!(names(&["no such case".to_owned()]).is_empty());
    }
}
