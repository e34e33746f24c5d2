//! `cargo xtask bench --kernel`: the same program, the same sizes, over a real kernel's soft RoCE, in one guest and between two
//! (`e2e::kernel`): oxib, UCX's rc_v and tcp. Within one guest they take turns measurement by measurement ([`conductor`]); between two they
//! are jobs that follow each other. Emulated: the ratios of one run say something, the times do not.

use std::path::{Path, PathBuf};

use super::aims::GUEST;
use super::plan::{self, Batches};
use super::record::{NOTE, Record};
use super::samples::Samples;
use super::{conductor, contenders, plot, tables};
use crate::args::Args;
use crate::report::{json_fields, write_json};
use crate::workspace::Workspace;
use crate::{build, kernel, packages};
use e2e::failure::Context;
use e2e::kernel::table::{Contender, World, measured, measured_worlds};
use e2e::kernel::{Setting, measure, measure_in_turns};
use e2e::measured::{Measured, Measurement};
use e2e::{Failure, OpenMpi, Result, machine, say, tell};

/// Timed milliseconds of a measurement; the emulated payloads and their checks take several times as long.
const MILLISECONDS: u64 = 150;
/// How often jobs that take turns measure everything: starting them takes most of the time. Each is a round of its own in the tables.
const PASSES: usize = 3;
/// What a measurement takes, and a job's start and end, on a quiet machine.
const ALL_OF_A_MEASUREMENT: f64 = 1.7;
const ALL_OF_A_JOB: f64 = 8.0;
/// The same of all passes of a job that takes turns, and of the jobs of a round that start and end together.
const ALL_OF_THE_TURNS: f64 = 0.55;
const ALL_OF_A_ROUND: f64 = 15.0;

/// What `--json` writes.
#[derive(Debug)]
struct Figures {
    processor: String,
    load: f64,
    open_mpi: String,
    of_the_batches: &'static str,
    note: &'static str,
    worlds: Vec<InWorld>,
}

json_fields!(Figures: processor, load, open_mpi, of_the_batches, note, worlds);

#[derive(Debug)]
struct InWorld {
    world: String,
    record: Record,
}

json_fields!(InWorld: world, record);

struct Guests {
    setting: Setting,
    contenders: Vec<Contender>,
    rows: Vec<Measurement>,
    rounds: u64,
    milliseconds: u64,
    batches: Batches,
}

/// `cargo xtask bench --kernel`.
///
/// # Errors
/// No guest can be booted; oxib has failed in one.
pub fn command(args: &Args) -> Result<()> {
    packages::ensure(&[&packages::MPI[..], &packages::KERNEL].concat(), !args.flag("no-install"))?;
    let workspace = Workspace::find()?;
    build::build(&workspace, false)?;
    let guests = Guests {
        setting: kernel::setting(&workspace)?,
        contenders: measured(args.value("try").map(contenders::parameters).transpose()?),
        rows: plan::rows_in_guests(args)?,
        rounds: args.number("pairs", plan::ROUNDS)?.max(1),
        milliseconds: args.number("milliseconds", MILLISECONDS)?.max(1),
        batches: Batches::chosen(args),
    };
    let mut worlds = Vec::new();
    for world in measured_worlds() {
        let samples = if world.guests == 1 { guests.in_turns(&world) } else { guests.samples(&world) }?;
        guests.show(&world, &samples);
        if let Some(path) = args.value("svg") {
            plot::draw(&named(path, &world), &samples, GUEST, &caption(&world, samples.rounds))?;
        }
        worlds.push(InWorld { world: world.to_string(), record: Record::new(&samples, GUEST) });
    }
    args.value("json").map_or(Ok(()), |path| write_json(Path::new(path), &guests.figures(worlds)))
}

impl Guests {
    fn nothing_yet(&self) -> Samples {
        let names = self.contenders.iter().map(|contender| contender.name.to_owned()).collect();
        Samples::new(names, self.rows.clone())
    }

    /// Measurement by measurement; oxib's failure is ours.
    fn in_turns(&self, world: &World) -> Result<Samples> {
        let (mut samples, mut failure) = (self.nothing_yet(), None);
        let program = std::env::current_exe().context("this program's file")?;
        let conductor = [program.to_string_lossy().into_owned(), "conduct".to_owned(), PASSES.to_string()];
        let minutes = self.seconds_in_turns() / 60.0;
        tell!(
            "{world}: {} rounds of {PASSES} passes, about {minutes:.0} minutes on a quiet machine",
            self.rounds
        );
        measure_in_turns(
            &self.setting,
            world,
            &conductor,
            (&self.contenders, self.rounds as usize),
            (self.milliseconds.div_ceil(PASSES as u64), &self.rows),
            &mut |round, outcome| {
                tell!("[{}/{}] {:.0} s", round + 1, self.rounds, outcome.seconds);
                self.keep_passes(&mut samples, &outcome.output);
                if let Err(Failure(why)) = outcome.verdict {
                    failure.get_or_insert(Failure(format!("{world}: {why}")));
                }
            },
        )?;
        failure.map_or(Ok(samples), Err)
    }

    /// In jobs that follow each other.
    fn samples(&self, world: &World) -> Result<Samples> {
        let (mut samples, mut failure, mut done) = (self.nothing_yet(), None, 0);
        let jobs = self.rounds as usize * self.contenders.len();
        tell!("{world}: {jobs} jobs, about {:.0} minutes on a quiet machine", self.seconds() / 60.0);
        measure(
            &self.setting,
            world,
            (&self.contenders, self.rounds as usize),
            (self.milliseconds, &self.rows),
            &mut |round, column, outcome| {
                done += 1;
                tell!("[{done}/{jobs}] {:.0} s  {}", outcome.seconds, self.contenders[column].name);
                if samples.rounds <= round {
                    samples.begin_round();
                }
                for measured in outcome.output.lines().filter_map(Measured::parse) {
                    self.keep(&mut samples, column, measured);
                }
                if let (0, Err(Failure(why))) = (column, outcome.verdict) {
                    failure.get_or_insert(Failure(format!("{world}: {why}")));
                }
            },
        )?;
        failure.map_or(Ok(samples), Err)
    }

    /// A round for each pass over all rows.
    fn keep_passes(&self, samples: &mut Samples, output: &str) {
        for pass in 0..PASSES {
            samples.begin_round();
            for heard in output.lines().filter_map(conductor::heard).filter(|heard| heard.pass == pass) {
                self.keep(samples, heard.column, heard.measured);
            }
        }
        output.lines().filter(|line| conductor::heard(line).is_none()).for_each(|line| tell!("{line}"));
    }

    fn keep(&self, samples: &mut Samples, column: usize, measured: Measured) {
        if let Some(row) = self.rows.iter().position(|what| *what == measured.what) {
            samples.set(row, column, self.batches.of(measured));
        }
    }

    /// In a world where jobs take turns.
    fn seconds_in_turns(&self) -> f64 {
        let turns = (self.rows.len() * self.contenders.len()) as f64;
        self.rounds as f64 * (ALL_OF_A_ROUND + turns * ALL_OF_THE_TURNS)
    }

    /// In one where they follow each other.
    fn seconds(&self) -> f64 {
        let one = ALL_OF_A_JOB + self.rows.len() as f64 * ALL_OF_A_MEASUREMENT;
        self.rounds as f64 * self.contenders.len() as f64 * one
    }

    fn show(&self, world: &World, samples: &Samples) {
        say!("\n== {world}\n");
        tables::show(samples, GUEST);
        let (processor, load, batches) = (machine::processor(), machine::load(), self.batches.name());
        say!("of each measurement the {batches} of its batches; emulated on {processor}, load {load:.1}");
    }

    fn figures(&self, worlds: Vec<InWorld>) -> Figures {
        Figures {
            processor: machine::processor(),
            load: machine::load(),
            open_mpi: OpenMpi::in_path().version().to_owned(),
            of_the_batches: self.batches.name(),
            note: NOTE,
            worlds,
        }
    }
}

fn caption(world: &World, rounds: usize) -> String {
    format!(
        "{world}, emulated; {rounds} rounds in turns, medians and quartiles of the pairs; below 1 oxib is faster"
    )
}

/// "ratio.svg" for one guest: "ratio-1.svg".
fn named(path: &str, world: &World) -> PathBuf {
    let path = Path::new(path);
    let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    path.with_file_name(format!("{stem}-{}.svg", world.guests))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_world_has_a_picture_of_its_own() {
        let [one, two] = measured_worlds();
        assert_eq!(named("docs/ratio.svg", &one), Path::new("docs/ratio-1.svg"));
        assert_eq!(named("ratio", &two), Path::new("ratio-2.svg"));
    }
}
