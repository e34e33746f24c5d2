//! How jobs end that are interrupted or run short: signals to a rank and to mpirun, memory that runs out after the start, a limit of
//! locked memory, and calls of the device that fail once, one after another.
//!
//! (MPI_Abort and SIGKILL: `manners`. Address space, file sizes and descriptors at the start, mounts: `refusals`. A folder of segments
//! that is too small: `shortage`. fork: `forks` of `own`. Unloading: `tools` and `sessions` of `lifecycle`.)

use crate::mpirun::Job;
use crate::process::{End, Finished, Limits};
use crate::suite::case::passes;
use crate::suite::{Case, Setting};
use crate::{Failure, Result, say};

const DEADLINE: u64 = 60;

/// What `dies` does to itself, and to whom that happens.
const SIGNALS: [(&str, &str); 4] = [
    ("term", "a rank that gets SIGTERM"),
    ("int", "a rank that gets SIGINT"),
    ("mpirun-term", "SIGTERM to mpirun"),
    ("mpirun-int", "SIGINT to mpirun"),
];

/// MiB that a rank may map after MPI_Init; with none at all its peers wait out their patience with it.
const ROOM: [&str; 5] = ["0.5", "2", "8", "32", "256"];
const NO_ROOM: &str = "0";

/// A call that fails, with what. A selection: btl/tests/transport_sweep.rs has them all.
const CALLS: [(&str, &str); 16] = [
    ("open_device", "EACCES"),
    ("query_device", "EIO"),
    ("query_port", "EIO"),
    ("alloc_pd", "ENOMEM"),
    ("create_comp_channel", "EMFILE"),
    ("create_cq", "ENOMEM"),
    ("create_srq", "ENOMEM"),
    ("create_qp", "ENOMEM"),
    ("modify_qp", "EINVAL"),
    ("create_ah", "EINVAL"),
    ("reg_mr", "ENOMEM"),
    ("resize_cq", "ENOMEM"),
    ("post_send", "ENOMEM"),
    ("post_recv", "ENOMEM"),
    ("post_srq_recv", "ENOMEM"),
    ("poll_cq", "EIO"),
];

/// Those of librdmacm.
const CONNECTION_CALLS: [(&str, &str); 6] = [
    ("rdma_create_event_channel", "ENODEV"),
    ("rdma_bind_addr", "EADDRINUSE"),
    ("rdma_resolve_addr", "ENODEV"),
    ("rdma_connect", "EINVAL"),
    ("rdma_accept", "EINVAL"),
    ("rdma_get_cm_event", "EIO"),
];

/// Which call of a function, in the quick selection and in all.
const SOME: &[u32] = &[2, 10];
const MANY: &[u32] = &[1, 2, 3, 5, 9, 10, 11];

/// All of them.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let mut cases: Vec<Case> = SIGNALS.iter().map(|(how, what)| signal(how, what)).collect();
    cases.push(Case::new("a signal's handler that runs every millisecond disturbs no message", |setting| {
        passes(&setting.job(3, "interrupted")?, "interrupted", DEADLINE).map(drop)
    }));
    if setting.transport.needs_plugin() {
        cases.extend(ROOM.iter().map(|room| starved(room)));
        cases.extend(setting.all.then(|| starved(NO_ROOM)));
        cases.push(Case::new("a limit of locked memory is none for the software device", unlocked));
        let numbers = if setting.all { MANY } else { SOME };
        cases.extend(CALLS.iter().map(|(call, errno)| fails(call, errno, "ibcm", numbers)));
        cases.extend(CONNECTION_CALLS.iter().map(|(call, errno)| fails(call, errno, "rdmacm", numbers)));
    }
    cases
}

fn require(holds: bool, what: &str, job: &Job, finished: &Finished) -> Result<()> {
    if holds { Ok(()) } else { Err(Failure(format!("{what}: {}", job.explain(finished)))) }
}

/// It has ended by itself, with a failure, and no process is left.
fn failed(finished: &Finished) -> bool {
    matches!(finished.end, End::Exit(code) if code != 0) && finished.leftovers.is_empty()
}

/// The job that is ended, then one that has to find the place usable and sweep what is left there.
fn signal(how: &'static str, what: &str) -> Case {
    Case::new(
        format!("{what} in the middle of traffic takes the job down, and the next job goes on"),
        move |setting| {
            let job = setting.job(3, "dies")?.arguments([how]);
            let finished = job.run(Limits::deadline(DEADLINE), &mut |_| {})?;
            passes(&setting.job(2, "sendrecv")?, "sendrecv", DEADLINE)?;
            let panicked = finished.output.contains("panicked");
            require(
                failed(&finished) && !panicked,
                "expected the job to end, with a failure",
                &job,
                &finished,
            )
        },
    )
}

/// Everything arrives, or the job ends with a word on memory. A rank that cannot even take a peer's request in is waited for as long as any
/// peer that does not answer: 50 s.
fn starved(room: &'static str) -> Case {
    Case::new(
        format!("a rank that may map {room} MiB more after MPI_Init gets everything, or says what is short"),
        move |setting| {
            let job = setting.job(3, "starved")?.arguments([room]);
            let finished = job.run(Limits::deadline(2 * DEADLINE), &mut |_| {})?;
            setting.segments.clear();
            let output = finished.output.to_lowercase();
            let told = [
                "cannot allocate memory",
                "address space",
                "out of memory",
                "out of resource",
                "memory allocation",
                "no memory for",
            ];
            let told = told.iter().any(|word| output.contains(word));
            let panicked = output.contains("panicked");
            require(
                finished.ok() || failed(&finished) && told && !panicked,
                "no word on memory",
                &job,
                &finished,
            )
        },
    )
}

fn unlocked(setting: &Setting) -> Result<()> {
    let program = setting.programs.compiled("sendrecv")?.to_string_lossy().into_owned();
    let job = setting.foreign_job(2, &setting.transport, "/bin/sh");
    let job = job.arguments(["-c", "ulimit -l 64; exec \"$0\"", &program]);
    passes(&job, "sendrecv", DEADLINE).map(drop)
}

/// Rank 1's n-th call of a function fails. Everything arrives in spite of that, or the job ends soon, and what it says names the call.
fn fails(call: &'static str, errno: &'static str, manager: &'static str, numbers: &'static [u32]) -> Case {
    Case::new(
        format!("by {manager}: a call of {call} that fails in one rank is survived or named"),
        move |setting| {
            numbers.iter().try_for_each(|number| fails_once(setting, (call, errno, *number), manager))
        },
    )
}

fn fails_once(setting: &Setting, (call, errno, number): (&str, &str, u32), manager: &str) -> Result<()> {
    let program = setting.programs.compiled("sendrecv")?.to_string_lossy().into_owned();
    let plan = format!("fail={call}:{number}:{errno}");
    let script = format!(r#"[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export SOFTIB_FAULTS={plan}; exec "$0""#);
    let job = setting.foreign_job(2, &setting.transport, "/bin/sh").arguments(["-c", &script, &program]);
    let job = job.parameter("btl_oxib_cpc_include", manager);
    let finished = job.run(Limits::deadline(DEADLINE), &mut |_| {})?;
    // Ranks that Open MPI ends leave their segments to the next job.
    setting.segments.clear();
    let name = if call.starts_with("rdma_") { call.to_owned() } else { format!("ibv_{call}") };
    let named = finished.output.contains(&name);
    let panicked = finished.output.contains("panicked");
    let crashed = finished.launcher_crashed_at_its_end();
    // What mpirun has lost it cannot say.
    let told = (failed(&finished) || crashed) && named || finished.launcher_failed();
    let fine = finished.ok() || told && !panicked;
    if crashed && fine {
        say!(
            "          call {number}: mpirun itself was ended by SIGSEGV, in PMIx_server_finalize, after its ranks"
        );
    }
    require(fine, &format!("call {number} failed, and no word of {name}"), &job, &finished)
}
