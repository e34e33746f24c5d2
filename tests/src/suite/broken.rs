//! Connections that break under a job while its processes live: the job does not notice, and nothing is lost, doubled or out of order.
//!
//! softib fails every so many-th request (docs/softib.md, section 7): on our side, which takes the queue pair to the error state, or as if the
//! peer did not answer. A port that goes down does the same to all connections at once.

use crate::mpirun::Job;
use crate::suite::case::passes;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const DEADLINE_SECONDS: u64 = 120;
const RANKS: usize = 4;

const PER_PEER: &str = "P,128,256,192,128,4:P,12288,64,48,32,4:P,65536,16,12,8,4";
const SHARED: &str = "S,256,256,128,32:S,65536,64,32,16";
const OVER_XRC: &str = "X,256,256,128,32:X,65536,64,32,16";

/// Which layout (none: the default), over which connection manager, what breaks, and the counter that tells of it.
const BREAKS: [(Option<&str>, &str, &str, &str); 7] = [
    (None, "ibcm", "error=every:300", "reconnects"),
    (None, "rdmacm", "cut=every:300", "reconnects"),
    (Some(PER_PEER), "ibcm", "cut=every:400", "reconnects"),
    (Some(PER_PEER), "rdmacm", "error=every:400", "reconnects"),
    (Some(SHARED), "ibcm", "error=every:300,cut=every:700", "reconnects"),
    (Some(SHARED), "rdmacm", "error=every:300", "reconnects"),
    (Some(OVER_XRC), "xrc", "error=every:300", "rerouted"),
];

/// One of the two ports of the device goes down for good, in all ranks or in one: which layout, and over which connection manager. softib's
/// rdmacm has addresses at the first port only, so that ibcm serves the other.
const OUTAGES: [(Option<&str>, &str, bool); 4] = [
    (None, "ibcm", true),
    (Some(PER_PEER), "ibcm", false),
    (Some(SHARED), "ibcm", false),
    (None, "rdmacm,ibcm", true),
];
const OUTAGE: &str = "port-down=400ms:1000s:1";

/// Programs x what breaks; and a program whose ranks compare digests of what they have sent and received.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let programs: &[&'static str] =
        if setting.all { &["random", "collectives", "crossing"] } else { &["random"] };
    let of_program = |program: &'static str| {
        BREAKS.iter().map(move |&(layout, manager, plan, counter)| {
            let name = format!(
                "messages arrive though connections break: {plan} over {manager}, {} ({program}, {RANKS} ranks)",
                layout.unwrap_or("default layout")
            );
            Case::new(name, move |setting| broken(setting, program, (layout, manager), plan, counter))
        })
    };
    let digests = BREAKS.iter().map(|&(layout, manager, plan, counter)| {
        let name = format!(
            "50,000 messages have the SHA-256 that they were sent with though connections break: {plan} over {manager}, {}",
            layout.unwrap_or("default layout")
        );
        Case::new(name, move |setting| digests(setting, (layout, manager), plan, counter))
    });
    let digests = digests.take(if setting.all { BREAKS.len() } else { 1 });
    let outages = OUTAGES.iter().map(|&(layout, managers, everywhere)| {
        let name = format!(
            "50,000 messages have the SHA-256 that they were sent with though a port goes down for good {}, over {managers}, {}",
            if everywhere { "in both ranks" } else { "in one rank" },
            layout.unwrap_or("default layout")
        );
        Case::new(name, move |setting| outage(setting, (layout, managers), everywhere))
    });
    let outages = outages.take(if setting.all { OUTAGES.len() } else { 2 });
    programs.iter().copied().flat_map(of_program).chain(digests).chain(outages).collect()
}

/// Of the two modules one is left with a port that is down: its connections go on over the other port.
fn outage(setting: &Setting, way: Way, everywhere: bool) -> Result<()> {
    let compiled = setting.programs.compiled("digests")?.to_string_lossy().into_owned();
    let condition = if everywhere { "true" } else { r#"[ "$OMPI_COMM_WORLD_RANK" = 1 ]"# };
    let script = format!(r#"{condition} && export SOFTIB_FAULTS={OUTAGE}; exec "$0" "$@""#);
    let job = setting.foreign_job(2, &setting.transport, "/bin/sh").arguments(["-c", &script, &compiled]);
    runs(job.variable("SOFTIB_PORTS", "2"), "digests", way, "", "port_changes")
}

type Way = (Option<&'static str>, &'static str);

fn broken(setting: &Setting, program: &str, way: Way, plan: &str, counter: &str) -> Result<()> {
    runs(setting.job(RANKS, program)?, program, way, plan, counter)
}

fn digests(setting: &Setting, way: Way, plan: &str, counter: &str) -> Result<()> {
    runs(setting.job(2, "digests")?, "digests", way, plan, counter)
}

/// The program says that it has passed, and the counters that something has broken.
fn runs(job: Job, program: &str, (layout, manager): Way, plan: &str, counter: &str) -> Result<()> {
    let job = job
        .parameter("btl_oxib_stats", "1")
        .parameter("btl_oxib_cpc_include", manager)
        .parameter("btl_oxib_reconnects", "8");
    let job = match layout {
        Some(layout) => job.parameter("btl_oxib_receive_queues", layout),
        None => job,
    };
    let finished = passes(&job.variable("SOFTIB_FAULTS", plan), program, DEADLINE_SECONDS)?;
    let after = format!(" {counter} ");
    let counts =
        finished.output.lines().filter_map(|line| line.split(&after).nth(1)?.split([',', ' ']).next());
    let broken: u64 = counts.filter_map(|count| count.parse::<u64>().ok()).sum();
    if broken > 0 {
        return Ok(());
    }
    Err(Failure(format!("no connection broke ({counter} is 0): {}", finished.output)))
}
