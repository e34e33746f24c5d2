//! Programs of other projects, unmodified, over the drop-in libibverbs: rdma-core's examples,
//! perftest, UCX, and Open MPI's own BTL for verbs. Which, with which options: see [`commands`].

use crate::failure::Context;
use crate::mpirun::Transport;
use crate::pair::Pair;
use crate::process::{Limits, run};
use crate::suite::case::passes;
use crate::suite::{Case, Setting, commands};
use crate::{Failure, Result};
use std::fs::File;
use std::path::Path;
use std::process::Command;

const LIMITS: u64 = 60;
/// What programs that end well all the same may print: a library without symbol versions; a payload that changed on the way.
const COMPLAINTS: &[&str] = &["no version information available", "invalid data"];

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
    cases.extend(commands::commands(setting.all).into_iter().map(pair_case));
    cases.extend(commands::with_two_clients(setting.all).map(two_clients_case));
    cases.extend(commands::in_files().iter().copied().map(in_files_case));
    let more: &[&str] = if setting.all { MPI_MORE } else { &[] };
    for program in MPI_QUICK.iter().chain(more) {
        cases.extend(OPENIB_LAYOUTS.iter().map(|(name, layout)| openib_case(program, name, *layout)));
        cases.push(ucx_case(program));
    }
    cases
}

/// What a program needs to run on the drop-in.
pub(super) fn environment(setting: &Setting) -> Vec<(String, String)> {
    let mut variables = drop_in(&setting.target.join("oxib").join("verbs"), setting.segments.path());
    variables.push(("UCX_TLS".to_owned(), "rc_v,self".to_owned()));
    variables.push(("UCX_WARN_UNUSED_ENV_VARS".to_owned(), "n".to_owned()));
    variables
}

/// What makes a program run on the drop-in libraries in `folder`, with its segments in `segments`.
pub fn drop_in(folder: &Path, segments: &Path) -> Vec<(String, String)> {
    let variable = |name: &str, value: &Path| (name.to_owned(), value.display().to_string());
    vec![
        variable("LD_LIBRARY_PATH", folder),
        variable("LD_PRELOAD", &folder.join("libsoftib-paths.so")),
        variable("SOFTIB_DIR", segments),
    ]
}

/// A program that runs alone prints this.
fn prints(setting: &Setting, command: &str, wanted: &str) -> Result<()> {
    let mut words = command.split_whitespace();
    let mut program = Command::new(words.next().unwrap_or_default());
    program.args(words).envs(environment(setting));
    says(program, wanted)
}

/// The program succeeds and prints this.
pub(super) fn says(mut program: Command, wanted: &str) -> Result<()> {
    let finished = run(&mut program, Limits::deadline(LIMITS), &mut |_| {})?;
    let output = &finished.output;
    let fine = !COMPLAINTS.iter().any(|complaint| output.contains(complaint));
    if finished.ok() && fine && output.contains(wanted) {
        return Ok(());
    }
    Err(Failure(format!(
        "`{program:?}` {}, without `{wanted}` or with warnings:\n{output}",
        finished.describe()
    )))
}

fn pair_case(command: String) -> Case {
    Case::new(format!("unmodified: {command}"), move |setting| {
        succeeds(&Pair::new(&command, &environment(setting)))
    })
}

fn two_clients_case(command: &'static str) -> Case {
    Case::new(format!("unmodified, two clients: {command}"), move |setting| {
        succeeds(&Pair::new(command, &environment(setting)).clients(2, &["-c", "2"]))
    })
}

fn in_files_case(command: &'static str) -> Case {
    Case::new(format!("unmodified, in files: {command}"), move |setting| {
        let folder = setting.segments.path();
        let files = ["memory", "other memory"].map(|name| folder.join(name));
        for path in &files {
            let file = File::create(path).context("no file for a program's memory")?;
            file.set_len(IN_FILE).context("a file for a program's memory can't be made longer")?;
        }
        let words = files.each_ref().map(|path| format!("--mmap={}", path.display()));
        let end = succeeds(&Pair::new(command, &environment(setting)).each_with(words));
        for path in &files {
            std::fs::remove_file(path).context("the file of a program's memory can't be removed")?;
        }
        end
    })
}

/// Bytes of such a file: more than any of those programs uses.
const IN_FILE: u64 = 16 << 20;

/// All end well, and without complaints.
pub(super) fn succeeds(pair: &Pair) -> Result<()> {
    let output = pair.expect_success(Limits::deadline(LIMITS))?;
    let found = COMPLAINTS.iter().find(|complaint| output.contains(**complaint));
    found.map_or(Ok(()), |found| Err(Failure(format!("`{found}` in the output:\n{output}"))))
}

/// Open MPI dropped it.
fn openib_is_gone(setting: &Setting) -> Option<String> {
    let version = setting.mpi.version();
    (setting.mpi.major() >= 5).then(|| format!("Open MPI {version} has no openib BTL"))
}

fn openib_case(program: &'static str, name: &str, layout: Option<&'static str>) -> Case {
    let case = format!("Open MPI's own openib runs {program} over the software device (layout {name})");
    Case::new(case, move |setting| {
        let program_file = setting.programs.compiled(program)?;
        let mut job = setting.foreign_job(2, &Transport::new("openib"), program_file);
        job = job.parameter("btl_openib_allow_ib", "1");
        // openib counts in a byte that it does not set (docs/bugs/openib-counts-in-garbage.md): memory comes as zeros, to the ranks. mpirun uses
        // memory that it has freed, which the variable fills with ones: it has crashed as it passed a rank's message on.
        job = job.flag("-x").flag("MALLOC_PERTURB_=255");
        if let Some(layout) = layout {
            job = job.parameter("btl_openib_receive_queues", layout);
        }
        for (name, value) in environment(setting) {
            job = job.variable(&name, &value);
        }
        passes(&job, program, LIMITS).map(drop)
    })
    .unless(openib_is_gone)
}

fn ucx_case(program: &'static str) -> Case {
    Case::new(format!("Open MPI on UCX runs {program} over the software device"), move |setting| {
        let transport = Transport { name: "ucx".to_owned(), btl: "self".to_owned() };
        let job = setting.foreign_job(2, &transport, setting.programs.compiled(program)?);
        let mut job = job.pml("ucx");
        for (name, value) in environment(setting) {
            job = job.variable(&name, &value);
        }
        passes(&job, program, LIMITS).map(drop)
    })
}
