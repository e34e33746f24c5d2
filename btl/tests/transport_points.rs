//! kill -9 of a process at each named point of a connection's life (tests/points.txt): its peers get an error for it within the bound, or it has
//! left in their eyes; they go on talking to each other, everything of theirs comes back, and nothing is left.
//!
//! ```text
//!   test ──starts──> survivor 0 <──messages──> survivor 1           all with their segments in a directory of the point
//!     ├──starts──> survivor 1
//!     └──starts──> victim: SOFTIB_FAULTS=kill=to_rtr:1, talks to both
//! ```
//! A survivor that has nothing to do with the victim yet sends it a message once it is dead.
//!
//! Each point runs with one connection manager with the other tests; `OXIB_POINTS=all` runs each with every manager that has it,
//! `OXIB_POINTS=ibcm:cts` one, with its output.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

#[path = "points/roles.rs"]
mod roles;

use btl_testing::child::{Child, TempDir, role};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const TABLE: &str = include_str!("../../tests/points.txt");
const MANAGERS: [&str; 3] = ["ibcm", "rdmacm", "xrc"];
/// Points that run side by side: they mostly wait.
const AT_ONCE: usize = 6;

/// A row of the table with one of its connection managers.
#[derive(Clone, Copy)]
struct Point {
    name: &'static str,
    scene: &'static str,
    role: &'static str,
    manager: &'static str,
    step: &'static str,
}

fn rows() -> impl Iterator<Item = Vec<&'static str>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().collect())
}

/// The points of a row.
fn points_of(row: Vec<&'static str>) -> Vec<Point> {
    let [name, scene, role, steps @ ..] = &row[..] else { panic!("{row:?}") };
    assert_eq!(steps.len(), MANAGERS.len(), "{name}");
    let of = |(manager, step)| Point { name, scene, role, manager, step };
    MANAGERS.into_iter().zip(steps.iter().copied()).map(of).filter(|point| point.step != "-").collect()
}

/// Which of them are asked for.
fn asked() -> Vec<Point> {
    let asked = std::env::var("OXIB_POINTS").unwrap_or_default();
    let each = rows().map(points_of);
    match asked.as_str() {
        "" => each.enumerate().map(|(number, points)| points[number % points.len()]).collect(),
        "all" => each.flatten().collect(),
        one => each.flatten().filter(|point| one == format!("{}:{}", point.manager, point.name)).collect(),
    }
}

/// What each of the survivors has to say, or what went wrong.
fn play(point: Point, dir: &Path) -> Result<Vec<String>, String> {
    let Point { scene, role, manager, step, .. } = point;
    let plan = format!("kill={step}");
    let mut children: Vec<Child> = ["survivor", "survivor", "victim"]
        .into_iter()
        .map(|of| {
            let plan = if of == "victim" { plan.as_str() } else { "" };
            Child::start_with(of, dir, &[("SOFTIB_FAULTS", plan)])
        })
        .collect();
    for (rank, child) in children.iter_mut().enumerate() {
        child.tell(&format!("{rank} {manager} {scene} {role}"));
    }
    let addresses: Vec<[String; 2]> = children.iter_mut().map(|child| [child.hear(), child.hear()]).collect();
    for (rank, child) in children.iter_mut().enumerate() {
        let others = addresses.iter().enumerate().filter(|(other, _)| *other != rank);
        others.flat_map(|(_, lines)| lines).for_each(|line| child.tell(line));
    }
    let mut victim = children.pop().unwrap();
    for child in &mut children {
        assert_eq!(child.hear(), "ready");
    }
    victim.tell("go");
    if role == "asked" {
        children[0].tell("ask");
    }
    let status = victim.end();
    if status.signal() != Some(libc::SIGKILL) {
        return Err(format!("the victim has not come to {step}: {status}"));
    }
    children.iter_mut().for_each(|child| child.tell("killed"));
    let verdicts = children.iter_mut().map(Child::hear).collect();
    children.iter_mut().for_each(|child| child.tell("end"));
    children.into_iter().for_each(Child::finish);
    // The next process that opens the device sweeps the victim's segment, if the survivors have not.
    Child::start("sweeper", dir).finish();
    Ok(verdicts)
}

/// The victim has told the end of its stream, or was about to.
const LEAVING: [&str; 6] =
    ["acknowledgement", "end-of-stream", "error-state", "disconnect", "destroy", "close"];

/// The victim's messages have come.
const UNDER_WAY: [&str; 7] =
    ["mid-stream", "mid-ring", "credits", "before-write", "after-write", "before-read", "after-read"];

/// Where nothing has passed yet, the end of a process over rdmacm looks like that of an endpoint, which may have another one (`link::renew`).
fn may_have_left(point: Point) -> bool {
    LEAVING.contains(&point.name) || point.manager == "rdmacm" && !UNDER_WAY.contains(&point.name)
}

fn judge(point: Point, dir: &Path) -> Result<String, String> {
    let verdicts = play(point, dir)?;
    let told = |verdict: &String| {
        verdict.starts_with("failed") || may_have_left(point) && verdict.starts_with("left")
    };
    let left: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    match verdicts.iter().all(told) && left.is_empty() {
        true => Ok(verdicts.join("; ")),
        false => Err(format!("{verdicts:?}, left behind {left:?}")),
    }
}

#[test]
fn child_main() {
    match role().as_deref() {
        Some("survivor") => roles::survivor(),
        Some("victim") => roles::victim(),
        Some("sweeper") => roles::sweeper(),
        _ => {}
    }
}

#[test]
fn a_process_that_is_killed_at_any_point_of_a_connection_costs_its_peers_nothing_else() {
    let (points, next) = (asked(), AtomicUsize::new(0));
    assert!(!points.is_empty(), "no such point");
    let (dir, defects) = (TempDir::new("points"), Mutex::new(Vec::new()));
    let one = |point: Point| {
        let name = format!("{}:{}", point.manager, point.name);
        let (dir, begin) = (dir.0.join(name.replace(':', "-")), Instant::now());
        std::fs::create_dir_all(&dir).unwrap();
        let outcome = std::panic::catch_unwind(|| judge(point, &dir));
        let outcome = outcome.unwrap_or_else(|_| Err("a survivor has not done its part".to_owned()));
        let _ = std::fs::remove_dir_all(&dir);
        println!("{name}, {}, {} ms: {outcome:?}", point.step, begin.elapsed().as_millis());
        if let Err(what) = outcome {
            defects.lock().unwrap().push(format!("{name}: {what}"));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    one(*point);
                }
            });
        }
    });
    let defects = defects.into_inner().unwrap();
    assert!(
        defects.is_empty(),
        "of {} points {} are wrong:\n{}",
        points.len(),
        defects.len(),
        defects.join("\n")
    );
}
