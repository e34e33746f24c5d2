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
//! built here. Jobs of one world run one after another in one boot; a world's jobs that come to nothing because its guest died
//! count as failed.

pub mod boot;
pub mod figures;
pub mod report;
pub mod table;

use std::path::PathBuf;
use std::time::Instant;

use crate::measured::Measurement;
use crate::output::SignOfLife;
use crate::programs::Programs;
use crate::suite::Tally;
use crate::suite::runner::wanted;
use crate::{Failure, Result, say};
use figures::Figures;
use report::Outcome;
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
        let news = boot::run(setting, world, jobs, &mut |index, outcome| {
            sign.heard();
            progress.tell(world, &jobs[index], &outcome);
            figures.take(world, &jobs[index], &outcome);
        })?;
        say!("  {:.0} s in all; {news}", began.elapsed().as_secs_f64());
    }
    Ok((progress.tally, figures))
}

/// Boots a world once and measures in it, round by round, all contenders, which take turns; the next round begins with
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
    let sign = SignOfLife::of(format!("guests of {world}"));
    let news = boot::run(setting, world, &jobs, &mut |index, outcome| {
        sign.heard();
        let (round, column) = turns[index];
        each(round, column, outcome);
    })?;
    say!("{world}: {news}");
    Ok(())
}

/// Round and place among so many contenders, in the order of the jobs.
fn turns(places: usize, rounds: usize) -> Vec<(usize, usize)> {
    (0..rounds).flat_map(|round| (0..places).map(move |turn| (round, (turn + round) % places))).collect()
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
