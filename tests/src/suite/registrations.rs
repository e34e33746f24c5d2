//! What stays registered between transfers, and what must not.

use crate::mpirun::Job;
use crate::suite::case::passes;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const DEADLINE: u64 = 240;

/// What a rank says at its end: "... found 998 of 1000 registrations in its cache (...)".
const FOUND: &str = " registrations in its cache";

/// All of them: they are about the plugin itself.
pub fn cases(setting: &Setting) -> Vec<Case> {
    if !setting.transport.needs_plugin() {
        return Vec::new();
    }
    let churn = |(way, name, value): (&str, &'static str, &'static str)| {
        let text = "memory that comes and goes is never used through an old key";
        Case::new(format!("{text}: {way} (churn, 2 ranks)"), move |setting| churns(setting, name, value))
    };
    let off = |(parameter, value): (&'static str, &'static str)| {
        let text = format!("{parameter} {value} keeps no registrations (again, 2 ranks)");
        Case::new(text, move |setting| keeps_none(setting, parameter, value))
    };
    let maps = |when: &'static str| {
        let text = "a thread that maps and unmaps memory may run";
        let name =
            format!("{text} from {when} MPI_Init on until MPI_Finalize has returned (mapping, 2 ranks)");
        Case::new(name, move |setting| stays_whole(setting, when))
    };
    let hits = "of the registrations of a long ping-pong of 1 MiB more than 99 % are found (again, 2 ranks)";
    let ways = [
        ("by get", "btl_oxib_flags", "send,put,get"),
        ("by put", "btl_oxib_flags", "send,put"),
        ("with few that are kept", "btl_oxib_reg_cache_max", "3"),
    ];
    let cases = ways.into_iter().map(churn).chain([Case::new(hits, finds)]);
    let replaced = "memory that comes and goes is never used through an old key: \
                    where UCX may have replaced the hooks (collectives, 2 ranks)";
    let cases = cases.chain(["before", "after"].map(maps)).chain([Case::new(replaced, survives_ucx)]);
    let offs = [("mpi_leave_pinned", "0"), ("btl_oxib_reg_cache_max", "0")];
    cases.chain(offs.into_iter().map(off)).collect()
}

/// softib fails what goes through a registration whose memory is another one by now.
fn churns(setting: &Setting, name: &str, value: &str) -> Result<()> {
    let job = setting.job(2, "churn")?.parameter("osc", setting.mpi.one_sided());
    let job = job.variable("SOFTIB_CHECK_MEMORY", "1").parameter("btl_oxib_verbose", "info");
    let job = job.parameter(name, value);
    each_rank(&job, "churn", |found, asked| found > 0 && asked > found)
}

/// With a parameter file of one's own the system's is not read, which on Debian excludes osc/ucx: Open MPI 4.1 opens it
/// then, and it loads UCX.
fn survives_ucx(setting: &Setting) -> Result<()> {
    let Some(layout) = setting.layouts.first() else { return Err(Failure("no layout".into())) };
    let job = setting.job(2, "collectives")?.variable("SOFTIB_CHECK_MEMORY", "1");
    passes(&job.parameters(&layout.from_file()), "collectives", DEADLINE).map(drop)
}

/// Open MPI patches munmap and the like for the hooks, and takes that back, never under such a thread's feet: of
/// 20 jobs with one from before MPI_Init on, 14 ended by signal 11.
fn stays_whole(setting: &Setting, when: &str) -> Result<()> {
    const JOBS: usize = 5;
    for _ in 0..JOBS {
        passes(&setting.job(2, "mapping")?.arguments([when]), "mapping", DEADLINE)?;
    }
    Ok(())
}

fn finds(setting: &Setting) -> Result<()> {
    let job = setting.job(2, "again")?.parameter("btl_oxib_verbose", "info");
    each_rank(&job, "again", |found, asked| asked >= 1000 && found * 100 > asked * 99)
}

fn keeps_none(setting: &Setting, parameter: &str, value: &str) -> Result<()> {
    let job = setting.job(2, "again")?.parameter("btl_oxib_verbose", "info").parameter(parameter, value);
    each_rank(&job, "again", |found, _| found == 0)
}

/// What each rank has found of what it asked for is `right`.
fn each_rank(job: &Job, program: &str, right: impl Fn(u64, u64) -> bool) -> Result<()> {
    let finished = passes(job, program, DEADLINE)?;
    let said: Vec<(u64, u64)> = finished.output.lines().filter_map(found).collect();
    if said.len() == 2 && said.iter().all(|(found, asked)| right(*found, *asked)) {
        return Ok(());
    }
    let Failure(text) = job.explain(&finished);
    Err(Failure(format!("found and asked for: {said:?}; {text}")))
}

fn found(line: &str) -> Option<(u64, u64)> {
    let numbers = line.split_once(FOUND)?.0.rsplit_once(" found ")?.1;
    let (found, asked) = numbers.split_once(" of ")?;
    Some((found.parse().ok()?, asked.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_numbers_of_a_rank_are_read() {
        let line =
            "[vm:1] oxib info: softib0 port 1 found 998 of 1000 registrations in its cache (0 were evicted)";
        assert_eq!(super::found(line), Some((998, 1000)));
        assert_eq!(super::found("softib0 port 1 carried 3 messages out"), None);
    }
}
