//! A ping-pong under valgrind's memcheck, which sees every access and every byte without a value, in the plugin as in Open MPI.
//!
//! Of what it reports, what has a frame of ours counts: a Rust source, or the plugin's name. Open MPI and its libraries report a few things of
//! their own. What of ours is known, is named with its reason in `configs/memcheck.supp`.

use std::path::Path;

use crate::failure::Context;
use crate::layouts::{DEFAULT, Layout};
use crate::suite::case::passes;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

/// Half a minute on a quiet machine.
const LIMIT: u64 = 600;

/// Layouts with each kind of queue.
const LAYOUTS: [&str; 3] = [DEFAULT, "p-only", "x-only"];

/// In the full matrix: a ping-pong for each kind of queue.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let layouts =
        setting.layouts.iter().filter(|layout| setting.all && LAYOUTS.contains(&layout.name.as_str()));
    let case = |layout: &Layout| {
        let name = format!("memcheck reports nothing of a ping-pong (layout {})", layout.name);
        let parameters = layout.parameters();
        Case::new(name, move |setting| ping_pong(setting, &parameters))
    };
    layouts.map(case).collect()
}

fn ping_pong(setting: &Setting, parameters: &[(String, String)]) -> Result<()> {
    let folder = setting.target.join("oxib/memcheck");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).context(format_args!("cannot remove {}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).context(format_args!("cannot create {}", folder.display()))?;
    let log = format!("--log-file={}", folder.join("%p").display());
    let known = format!("--suppressions={}", setting.sources.join("../configs/memcheck.supp").display());
    let program = setting.programs.compiled("pingpong")?.to_string_lossy().into_owned();
    // The plugin is gone when leaks are told; its names are kept.
    let leaks =
        ["--leak-check=full", "--show-leak-kinds=definite", "--keep-debuginfo=yes", "--num-callers=40"];
    let words = [&log, &known].map(String::as_str).into_iter().chain(leaks);
    let sizes = ["20", "0", "8", "4096", "65536", "1048576"];
    let job = setting.foreign_job(2, &setting.transport, "valgrind");
    let job = job.arguments(words).arguments([&program]).arguments(sizes);
    passes(&job.parameters(parameters), "pingpong", LIMIT)?;
    reports(&folder)
}

/// The logs of both ranks, each to its end, and nothing of ours in them.
fn reports(folder: &Path) -> Result<()> {
    let entries = std::fs::read_dir(folder).context(format_args!("cannot read {}", folder.display()))?;
    let logs: Vec<String> =
        entries.flatten().filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect();
    let whole = logs.iter().filter(|log| log.contains("ERROR SUMMARY")).count();
    let ours: Vec<String> = logs.iter().flat_map(|log| of_ours(log)).collect();
    match (whole, ours.first()) {
        (2, None) => Ok(()),
        (2, Some(_)) => {
            Err(Failure(format!("memcheck reports, in {}:\n{}", folder.display(), ours.join("\n\n"))))
        }
        _ => Err(Failure(format!("{whole} whole logs of memcheck in {}, not 2", folder.display()))),
    }
}

/// The reports with a frame of ours. Reports are apart by an empty line; each line begins with `==PID==`.
fn of_ours(log: &str) -> Vec<String> {
    let lines: Vec<&str> = log.lines().map(text).collect();
    let reports = lines.split(|line| line.is_empty());
    let is_frame = |line: &&str| line.starts_with("at 0x") || line.starts_with("by 0x");
    let is_ours = |line: &&str| is_frame(line) && (line.contains(".rs:") || line.contains("mca_btl_oxib"));
    reports.filter(|report| report.iter().any(is_ours)).map(|report| report.join("\n")).collect()
}

fn text(line: &str) -> &str {
    let behind =
        line.strip_prefix("==").and_then(|rest| rest.split_once("==")).map_or(line, |(_, rest)| rest);
    behind.trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "==7== Memcheck, a memory error detector\n==7== Command: ./mca_btl_oxib/pingpong\n==7== \n\
        ==7== Invalid read of size 4\n==7==    at 0xBC1: mca_btl_oxib::tx::post (post.rs:14)\n==7==    by 0x10: main (pingpong.c:8)\n==7== \n\
        ==7== 48 bytes in 1 blocks are definitely lost in loss record 37 of 101\n==7==    at 0x48: malloc (in x.so)\n\
        ==7==    by 0x4C8: mca_base_open (in /lib/libopen-pal.so)\n==7== \n==7== ERROR SUMMARY: 2 errors\n";

    #[test]
    fn a_report_is_of_ours_if_one_of_its_frames_is() {
        let ours = of_ours(LOG);
        assert_eq!(ours.len(), 1, "{ours:?}");
        assert!(ours[0].starts_with("Invalid read of size 4\nat 0xBC1"), "{ours:?}");
    }
}
