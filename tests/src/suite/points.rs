//! Ranks that are killed at named points of their connections' lives, as `tests/points.txt` has them: the job ends soon, mpirun names the rank
//! and its end, each survivor says at most one thing, which names the rank and why, and nothing is left but what the next job sweeps.
//! (`btl/tests/transport_points.rs` looks at the survivors' transports, which outlive the victim there.)
//!
//! Quick: every fourth point, with each connection manager in turn. All: each point with every manager that has it.

use crate::layouts::DEFAULT;
use crate::process::{End, Finished, Limits};
use crate::suite::case::passes;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const TABLE: &str = include_str!("../../points.txt");
/// Connection managers, in the order of the table's columns, and the layouts that they connect.
const MANAGERS: [(&str, &str); 3] = [("ibcm", DEFAULT), ("rdmacm", DEFAULT), ("xrc", "x-only")];
const RANKS: usize = 3;
const VICTIM: &str = "rank 2";
/// The bound on a job, on a machine that is twenty times too busy.
const BOUND: u64 = 30;
/// One of so many points is in the quick selection.
const SOME: usize = 4;

/// A point with one of the connection managers that have it.
#[derive(Debug, Clone, Copy)]
struct Point {
    name: &'static str,
    scene: &'static str,
    role: &'static str,
    manager: &'static str,
    layout: &'static str,
    step: &'static str,
}

/// One for each connection manager.
pub fn cases(setting: &Setting) -> Vec<Case> {
    if !setting.transport.needs_plugin() {
        return Vec::new();
    }
    let chosen = chosen(setting.all);
    let of = |(manager, _)| {
        let points: Vec<Point> = chosen.iter().filter(|point| point.manager == manager).copied().collect();
        let title = format!(
            "a rank that is killed at any of {} points of its connections ends the job with one word of each",
            points.len()
        );
        let name = format!("by {manager}: {title} (points, {RANKS} ranks)");
        Case::new(name, move |setting| all_of(setting, &points))
    };
    MANAGERS.into_iter().map(of).collect()
}

fn rows() -> Vec<Vec<Point>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| points_of(line.split_whitespace().collect())).collect()
}

/// The points of a row: those connection managers that have it.
fn points_of(row: Vec<&'static str>) -> Vec<Point> {
    let [name, scene, role, steps @ ..] = &row[..] else { return Vec::new() };
    let of = |((manager, layout), step)| Point { name, scene, role, manager, layout, step };
    MANAGERS.into_iter().zip(steps.iter().copied()).map(of).filter(|point| point.step != "-").collect()
}

fn chosen(all: bool) -> Vec<Point> {
    if all {
        return rows().into_iter().flatten().collect();
    }
    let some = rows().into_iter().step_by(SOME).enumerate();
    some.filter_map(|(number, points)| points.get(number % points.len().max(1)).copied()).collect()
}

/// Each in a job of its own, then one that has to find the place usable and sweep what is left there.
fn all_of(setting: &Setting, points: &[Point]) -> Result<()> {
    let failures: Vec<String> =
        points.iter().filter_map(|point| one(setting, *point).err()).map(|Failure(text)| text).collect();
    passes(&setting.job(2, "sendrecv")?, "sendrecv", BOUND)?;
    if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\n"))) }
}

fn one(setting: &Setting, point: Point) -> Result<()> {
    let program = setting.programs.compiled("points")?.to_string_lossy().into_owned();
    let script = format!(
        r#"[ "$OMPI_COMM_WORLD_RANK" != {} ] || export SOFTIB_FAULTS=kill={}; exec "$0" "$@""#,
        RANKS - 1,
        point.step
    );
    let layout = setting.layouts.iter().find(|layout| layout.name == point.layout);
    let layout = layout.map(crate::layouts::Layout::parameters).unwrap_or_default();
    let job = setting.foreign_job(RANKS, &setting.transport, "/bin/sh").parameters(&layout);
    let job = job.arguments(["-c", &script, &program, point.scene, point.role]);
    let job = job.parameter("btl_oxib_cpc_include", point.manager);
    let job = job.parameter("btl_oxib_use_eager_rdma", if point.scene == "ring" { "1" } else { "0" });
    // Without get, ob1 has the sender of a long message put it.
    let job = if point.scene == "put" { job.parameter("btl_oxib_flags", "send,put") } else { job };
    let finished = job.run(Limits::deadline(BOUND), &mut |_| {})?;
    match wrong(&finished) {
        None => Ok(()),
        Some(what) => {
            Err(Failure(format!("{} by {}: {what}: {}", point.name, point.manager, job.explain(&finished))))
        }
    }
}

/// What is not as it should be when rank 2 has been killed.
fn wrong(finished: &Finished) -> Option<&'static str> {
    let lines = || finished.output.lines();
    let ours: Vec<&str> =
        lines().filter(|line| line.contains("oxib error:") || line.contains("oxib warn")).collect();
    let senders = |line: &&&str| line.split(']').next().map(str::to_owned);
    let mut told: Vec<String> = ours.iter().filter_map(|line| senders(&line)).collect();
    told.sort();
    told.dedup();
    // A survivor that notices first aborts the job, and mpirun may tell of that instead.
    let named = ours.iter().any(|line| line.contains(VICTIM));
    let of_mpirun = |line: &&str| line.contains(&format!("process {VICTIM} ")) && line.contains("signal 9");
    if !matches!(finished.end, End::Exit(code) if code != 0) || !finished.leftovers.is_empty() {
        Some("the job has not ended by itself, with a failure and without a process left")
    } else if lines().filter(of_mpirun).count() > 1 || !(lines().any(|line| of_mpirun(&line)) || named) {
        Some("neither mpirun, once, nor a survivor says that rank 2 is gone")
    } else if told.len() != ours.len() {
        Some("a survivor says more than one thing")
    } else if ours.iter().any(|line| !names_a_loss(line)) {
        Some("a survivor does not say whose connection is lost, and why")
    } else {
        None
    }
}

/// The victim's connection, or that of a survivor which has ended for the victim's sake before this one noticed, or was connected to it, is
/// lost.
fn names_a_loss(line: &str) -> bool {
    let of_survivor = ["has not said that it leaves", "it does not answer"];
    line.contains("is lost: ")
        && (line.contains(VICTIM) || of_survivor.iter().any(|reason| line.contains(reason)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_has_a_step_and_every_fourth_is_in_the_selection() {
        assert!(rows().iter().all(|points| !points.is_empty()));
        let (some, all) = (chosen(false), chosen(true));
        assert_eq!(some.len(), rows().len().div_ceil(SOME));
        for (manager, _) in MANAGERS {
            assert!(some.iter().any(|point| point.manager == manager), "{manager}");
            assert!(all.iter().filter(|point| point.manager == manager).count() > rows().len() / 2);
        }
    }
}
