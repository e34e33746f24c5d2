//! The rounds: in each, a job of every transport is started, all of them sleep, and measurement by measurement they take turns. The
//! next round begins with another transport, in new processes: what a process has been given (pages, their places in caches) is
//! part of the spread.

use std::path::Path;
use std::time::{Duration, Instant};

use super::contenders::Contender;
use super::plan::Plan;
use super::samples::{Processors, Samples};
use crate::report::Progress;
use crate::workspace::Workspace;
use e2e::measured::{Kind, Measurement};
use e2e::session::{Session, take_turns};
use e2e::{Failure, OpenMpi, Result, machine, tell};

/// Failures of another's transport after which it is left out.
const MOST_FAILURES: usize = 2;

/// What tells the state of the ranks' processors, and for how long each is measured.
const LINE: Measurement = Measurement { kind: Kind::Line, bytes: 8 };
const LINE_MILLISECONDS: u64 = 20;
const CORE: Measurement = Measurement { kind: Kind::Core, bytes: 8 };
const CORE_MILLISECONDS: u64 = 10;

/// What a run needs beside its plan.
pub struct Bench<'a> {
    /// The Open MPI that runs the jobs.
    pub mpi: &'a OpenMpi,
    /// Where the plugin is built.
    pub workspace: &'a Workspace,
    /// `tests/mpi/pingpong`, built.
    pub program: &'a Path,
    /// What is measured, over what.
    pub plan: &'a Plan,
}

/// Figures, and what went wrong with other transports.
pub struct Outcome {
    /// What was measured.
    pub samples: Samples,
    /// By transport.
    pub failures: Vec<Vec<String>>,
}

impl Bench<'_> {
    /// All rounds. A stock transport that fails leaves gaps.
    ///
    /// # Errors
    /// oxib has failed.
    pub fn run(&self) -> Result<Outcome> {
        let names = self.plan.contenders.iter().map(|contender| contender.name.clone()).collect();
        let mut outcome = Outcome {
            samples: Samples::new(names, self.plan.rows.clone()),
            failures: vec![Vec::new(); self.plan.contenders.len()],
        };
        let (began, mut progress) = (Instant::now(), Progress::new());
        for round in 0..self.plan.rounds {
            progress.stage(&self.stage(round, began.elapsed()));
            self.round(round as usize, &mut outcome, &mut progress)?;
        }
        progress.clear();
        tell!("{}: done in {:.1} minutes", self.plan.describe(), began.elapsed().as_secs_f64() / 60.0);
        Ok(outcome)
    }

    /// "round 3 of 11, about 4.1 minutes left".
    fn stage(&self, done: u64, so_far: Duration) -> String {
        let left = self.plan.rounds - done;
        let each = match done {
            0 => self.plan.seconds() / self.plan.rounds as f64,
            done => so_far.as_secs_f64() / done as f64,
        };
        let minutes = left as f64 * each / 60.0;
        format!("round {} of {}, about {minutes:.1} minutes left", done + 1, self.plan.rounds)
    }

    fn round(&self, round: usize, outcome: &mut Outcome, progress: &mut Progress) -> Result<()> {
        outcome.samples.begin_round();
        let mut sessions = self.sessions(outcome)?;
        let before = self.processors(&mut sessions);
        let (rows, milliseconds) = (self.plan.rows.as_slice(), self.plan.milliseconds);
        take_turns(&mut sessions, round, (rows, milliseconds), &mut |(row, column), came| {
            progress.detail(&format!("round {} of {}: {}", round + 1, self.plan.rounds, rows[row]));
            match came {
                Ok(measured) => outcome.samples.set(row, column, self.plan.batches.of(measured)),
                Err((why, session)) => self.lost(column, Some(session), why, outcome)?,
            }
            Ok(())
        })?;
        let after = self.processors(&mut sessions);
        if let (Some(before), Some(after)) = (before, after) {
            outcome.samples.set_ends([before, after]);
        }
        self.end(sessions, outcome)
    }

    /// The ranks' processors now, over the first job that can tell; a job that cannot is noticed by what it is asked next.
    fn processors(&self, sessions: &mut [Option<Session>]) -> Option<Processors> {
        let pinned = self.plan.ranks() <= machine::cores();
        let session = sessions.iter_mut().flatten().next().filter(|_| pinned)?;
        let line_us = session.measure(LINE, LINE_MILLISECONDS).ok()?.least_us;
        let core_us = session.measure(CORE, CORE_MILLISECONDS).ok()?.median_us;
        Some(Processors { line_us, core_us })
    }

    /// Starts all, then waits for all.
    fn sessions(&self, outcome: &mut Outcome) -> Result<Vec<Option<Session>>> {
        let start = |(contender, failures): (&Contender, &Vec<String>)| {
            if failures.len() >= MOST_FAILURES {
                return Ok(None);
            }
            let job = contender.job(self.mpi, self.workspace, self.plan.ranks(), self.program);
            Session::start(job, self.plan.largest()).map(Some)
        };
        let mut sessions =
            self.plan.contenders.iter().zip(&outcome.failures).map(start).collect::<Result<Vec<_>>>()?;
        for (column, place) in sessions.iter_mut().enumerate() {
            let Some(session) = place else { continue };
            if let Err(why) = session.connect(self.plan.ranks()) {
                self.lost(column, place.take(), why, outcome)?;
            }
        }
        Ok(sessions)
    }

    fn end(&self, mut sessions: Vec<Option<Session>>, outcome: &mut Outcome) -> Result<()> {
        sessions.iter_mut().flatten().for_each(Session::close);
        for (column, session) in sessions.into_iter().enumerate() {
            match session.map_or(Ok(()), Session::end) {
                Ok(()) => {}
                Err(why) => self.lost(column, None, why, outcome)?,
            }
        }
        Ok(())
    }

    /// The job itself tells best why it is gone.
    fn lost(
        &self,
        column: usize,
        session: Option<Session>,
        why: Failure,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let why = session.map_or(Ok(()), Session::end).err().unwrap_or(why);
        let contender = &self.plan.contenders[column];
        if contender.is_ours() {
            return Err(Failure(format!("{}: {why}", contender.name)));
        }
        tell!("{} failed, and is left out of this round", contender.name);
        outcome.failures[column].push(why.0);
        Ok(())
    }
}
