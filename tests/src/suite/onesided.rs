//! One-sided communication that Open MPI maps to put, get and atomics of the BTL (osc/rdma), and the counters show that it was oxib.
//!
//! On one host the locks of windows are in shared memory; what the ranks do to each other's words goes over the device.

use crate::Result;
use crate::layouts::{DEFAULT, Layout};
use crate::mpirun::Job;
use crate::process::Limits;
use crate::suite::case::passes_within;
use crate::suite::{Case, Setting};
use std::time::Duration;

const LIMITS: Limits = Limits { deadline: Duration::from_secs(600), silence: Some(Duration::from_secs(90)) };

/// A program, its arguments, what it shows. The first argument names the counter that has to have counted.
struct Run(&'static str, &'static [&'static str], &'static str);

const COUNTER: &str = "btl_oxib_atomics";

const RUNS: [Run; 5] = [
    Run(
        "atomics",
        &[COUNTER, "intrinsic"],
        "words that all ranks change by the device's atomics come out right",
    ),
    Run(
        "atomics",
        &[COUNTER, "intrinsic", "mapped"],
        "words in a file that the other ranks map, too, come out right",
    ),
    Run("atomics", &[COUNTER], "words that all ranks change under locks come out right"),
    Run("onesided", &[], "one-sided operations and their synchronisation do what MPI says"),
    Run("linkedlist", &[], "ranks append to one list by compare-and-swap"),
];

/// All of them: programs x layouts x ranks; of layouts other than the default a selection.
pub fn cases(setting: &Setting) -> Vec<Case> {
    if !setting.transport.needs_plugin() {
        return Vec::new();
    }
    let cases = setting.layouts.iter().flat_map(|layout| of_layout(layout, setting.all));
    cases.chain([without_atomics()]).collect()
}

/// Those that tell most.
pub fn some(setting: &Setting) -> Vec<Case> {
    let default = setting.layouts.iter().filter(|layout| layout.name == DEFAULT);
    default.map(|layout| case(layout, &RUNS[0], 4)).chain([without_atomics()]).collect()
}

fn of_layout(layout: &Layout, all: bool) -> Vec<Case> {
    let whole = all || layout.name == DEFAULT;
    let runs = if whole { &RUNS[..] } else { &RUNS[..1] };
    let ranks: &[usize] = if whole { &[2, 4] } else { &[4] };
    runs.iter().flat_map(|run| ranks.iter().map(|ranks| case(layout, run, *ranks))).collect()
}

fn case(layout: &Layout, run: &'static Run, ranks: usize) -> Case {
    let Run(program, arguments, shows) = run;
    let how: String = arguments.iter().skip(1).map(|how| format!(" {how}")).collect();
    let name = format!("over osc/rdma: {shows} ({program}{how}, {ranks} ranks, layout {})", layout.name);
    let parameters = layout.parameters();
    Case::new(name, move |setting| {
        let job = setting.job(ranks, program)?.parameters(&parameters).arguments(*arguments);
        passes_over_rdma(job, program)
    })
}

fn passes_over_rdma(job: Job, program: &str) -> Result<()> {
    passes_within(&job.parameter("osc", "rdma"), program, LIMITS).map(drop)
}

/// 4.1 uses another component then, 5.0 active messages.
fn without_atomics() -> Case {
    let name = "without put, get and atomics of the device one-sided communication goes by messages (onesided, 2 ranks)";
    Case::new(name, |setting| {
        let job = setting.job(2, "onesided")?.parameter("btl_oxib_flags", "send,put,get");
        passes_within(&job.parameter("osc", setting.mpi.one_sided()), "onesided", LIMITS).map(drop)
    })
}
