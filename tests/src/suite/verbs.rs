//! Programs that nobody here wrote, unmodified, over the drop-in libibverbs: rdma-core's examples, perftest, UCX, and Open MPI's
//! own BTL for verbs.
//!
//! Quick: each program once or twice with few iterations. All: more sizes, event mode everywhere, bandwidths.

use crate::mpirun::Transport;
use crate::pair::Pair;
use crate::process::{Limits, run};
use crate::suite::case::passes;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};
use std::process::Command;

const LIMITS: u64 = 60;
/// What programs that end well all the same may print: a library without symbol versions; a payload that changed on the way.
const COMPLAINTS: &[&str] = &["no version information available", "invalid data"];

/// Pairs of programs that are always run.
const QUICK: &[&str] = &[
    "ibv_rc_pingpong -d softib0 -c -n 200 -s 1",
    "ibv_rc_pingpong -d softib0 -c -n 200 -s 65536",
    "ibv_rc_pingpong -d softib0 -c -n 200 -s 4096 -e",
    "ibv_uc_pingpong -d softib0 -c -n 200",
    "ibv_ud_pingpong -d softib0 -c -n 200",
    "ibv_ud_pingpong -d softib0 -c -n 200 -g 0 -e",
    "ibv_srq_pingpong -d softib0 -c -n 200",
    "ibv_srq_pingpong -d softib0 -c -n 200 -e",
    "ib_send_lat -d softib0 -n 200",
    "ib_send_lat -d softib0 -n 200 -c UD",
    "ib_send_bw -d softib0 -n 200",
    "ib_send_bw -d softib0 -n 500 -c UD -s 4096",
    "ib_write_lat -d softib0 -n 200",
    "ib_write_bw -d softib0 -n 200",
    "ib_read_lat -d softib0 -n 200",
    "ib_read_bw -d softib0 -n 200",
    "ucx_perftest -d softib0:1 -x rc_verbs -t am_lat -n 200",
    "ucx_perftest -d softib0:1 -x ud_verbs -t am_lat -n 200",
];

/// Those of the full matrix.
const MORE: &[&str] = &[
    "ibv_rc_pingpong -d softib0 -c -n 200 -s 4096",
    "ibv_rc_pingpong -d softib0 -c -n 50 -s 1048576",
    "ibv_rc_pingpong -d softib0 -c -n 50 -s 1048576 -e",
    "ibv_rc_pingpong -d softib0 -c -n 200 -g 0",
    "ibv_uc_pingpong -d softib0 -c -n 200 -s 262144",
    "ibv_uc_pingpong -d softib0 -c -n 200 -e",
    "ibv_ud_pingpong -d softib0 -c -n 200 -s 2048 -e",
    "ibv_srq_pingpong -d softib0 -c -n 200 -q 3 -s 65536",
    "ib_send_lat -d softib0 -n 200 -c UC",
    "ib_send_lat -d softib0 -n 200 -e",
    "ib_send_lat -d softib0 -n 200 -c UD -e",
    "ib_send_lat -d softib0 -n 20 -a",
    "ib_send_lat -d softib0 -n 200 -c UD -s 64",
    "ib_send_lat -d softib0 -n 200 -c UD -s 1024",
    "ib_send_lat -d softib0 -n 200 -c UD -s 4096",
    "ib_send_bw -d softib0 -n 200 -e",
    // No more than the 512 receives that the server posts: what finds none is lost.
    "ib_send_bw -d softib0 -n 500 -c UD -s 64",
    "ib_send_bw -d softib0 -n 500 -c UD -s 1024",
    "ib_send_bw -d softib0 -n 500 -c UD -s 1024 -e",
    "ib_send_bw -d softib0 -n 200 -b",
    "ib_send_bw -d softib0 -n 200 -c UC",
    "ib_send_bw -d softib0 -n 200 -r 64 --use-srq",
    "ib_write_lat -d softib0 -n 200 -c UC",
    "ib_write_bw -d softib0 -n 200 -b -q 4",
    "ib_write_bw -d softib0 -n 50 -a",
    "ib_read_lat -d softib0 -n 200 -e",
    "ib_read_bw -d softib0 -n 50 -a",
    "ucx_perftest -d softib0:1 -x rc_verbs -t am_bw -n 200",
    "ucx_perftest -d softib0:1 -x rc_verbs -t put_lat -n 200",
    "ucx_perftest -d softib0:1 -x rc_verbs -t put_bw -n 200",
    "ucx_perftest -t tag_bw -s 1000000 -n 50",
];

/// Layouts for Open MPI's openib BTL: its default and per-peer queues only.
const OPENIB_LAYOUTS: &[(&str, Option<&str>)] =
    &[("default", None), ("P", Some("P,128,256,192,128:P,65536,64,32,32"))];

/// MPI programs of ours that check what they receive.
const MPI_QUICK: &[&str] = &["sendrecv"];
const MPI_MORE: &[&str] = &["collectives", "datatypes", "flood", "random"];

/// Every case.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let mut cases = vec![
        Case::new("ibv_devices lists the software device", |s| prints(s, "ibv_devices", "softib0")),
        Case::new("ibv_devinfo finds its port active", |s| {
            prints(s, "ibv_devinfo -v -d softib0", "PORT_ACTIVE")
        }),
    ];
    let more: &[&str] = if setting.all { MORE } else { &[] };
    cases.extend(QUICK.iter().chain(more).map(|command| pair_case(command)));
    let more: &[&str] = if setting.all { MPI_MORE } else { &[] };
    for program in MPI_QUICK.iter().chain(more) {
        cases.extend(OPENIB_LAYOUTS.iter().map(|(name, layout)| openib_case(program, name, *layout)));
        cases.push(ucx_case(program));
    }
    cases
}

/// What a program needs to run on the drop-in.
pub(super) fn environment(setting: &Setting) -> Vec<(String, String)> {
    let folder = setting.target.join("oxib").join("verbs");
    let variable = |name: &str, value: std::path::PathBuf| (name.to_owned(), value.display().to_string());
    vec![
        variable("LD_LIBRARY_PATH", folder.clone()),
        variable("LD_PRELOAD", folder.join("libsoftib-paths.so")),
        variable("SOFTIB_DIR", setting.segments.path().to_owned()),
        ("UCX_TLS".to_owned(), "rc_v,self".to_owned()),
        ("UCX_WARN_UNUSED_ENV_VARS".to_owned(), "n".to_owned()),
    ]
}

/// A program that runs alone prints this.
fn prints(setting: &Setting, command: &str, wanted: &str) -> Result<()> {
    let mut words = command.split_whitespace();
    let mut program = Command::new(words.next().unwrap_or_default());
    program.args(words).envs(environment(setting));
    let finished = run(&mut program, Limits::deadline(LIMITS), &mut |_| {})?;
    let output = &finished.output;
    let fine = !COMPLAINTS.iter().any(|complaint| output.contains(complaint));
    if finished.ok() && fine && output.contains(wanted) {
        return Ok(());
    }
    Err(Failure(format!(
        "`{command}` {}, without `{wanted}` or with warnings:\n{output}",
        finished.describe()
    )))
}

fn pair_case(command: &'static str) -> Case {
    Case::new(format!("unmodified: {command}"), move |setting| {
        let output = Pair::new(command, &environment(setting)).expect_success(Limits::deadline(LIMITS))?;
        let found = COMPLAINTS.iter().find(|complaint| output.contains(**complaint));
        found.map_or(Ok(()), |found| Err(Failure(format!("`{found}` in the output:\n{output}"))))
    })
}

fn openib_case(program: &'static str, name: &str, layout: Option<&'static str>) -> Case {
    let case = format!("Open MPI's own openib runs {program} over the software device (layout {name})");
    Case::new(case, move |setting| {
        let program_file = setting.programs.compiled(program)?;
        let mut job = setting.foreign_job(2, &Transport::new("openib"), program_file);
        job = job.parameter("btl_openib_allow_ib", "1");
        if let Some(layout) = layout {
            job = job.parameter("btl_openib_receive_queues", layout);
        }
        for (name, value) in environment(setting) {
            job = job.variable(&name, &value);
        }
        passes(&job, program, LIMITS).map(drop)
    })
}

fn ucx_case(program: &'static str) -> Case {
    Case::new(format!("Open MPI on UCX runs {program} over the software device"), move |setting| {
        let job = setting.foreign_job(2, &Transport::new("openib"), setting.programs.compiled(program)?);
        let mut job = job.pml("ucx");
        for (name, value) in environment(setting) {
            job = job.variable(&name, &value);
        }
        passes(&job, program, LIMITS).map(drop)
    })
}
