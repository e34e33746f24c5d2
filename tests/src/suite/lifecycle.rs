//! How a process starts and ends MPI: thread levels, the tool interface before MPI, sessions, a private libmpi; and how it goes
//! on when another one has ended; how it ends while messages are on their way.

use crate::layouts::{DEFAULT, Layout};
use crate::suite::case::passes;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const DEADLINE: u64 = 60;
/// How processes end that have messages on their way to each other, and how many ranks do.
const CLOSINGS: [(&str, usize, &str); 3] = [
    ("received", 4, "every message arrives that ranks send each other right before MPI_Finalize"),
    ("unreceived", 4, "MPI_Finalize ends although ranks leave each other messages that none receives"),
    ("disconnect", 2, "MPI_Comm_disconnect from children, twice, with messages of both sides on their way"),
];
/// The kinds of queues. (With the windows of tiny-windows.conf messages of `disconnect` are left with ob1, whose MPI_Comm_disconnect of 5.0
/// does nothing for them.)
const KINDS: [&str; 4] = [DEFAULT, "p-only", "s-only", "x-only"];
const LEVELS: [&str; 4] = ["single", "funneled", "serialized", "multiple"];

/// Those that both Open MPIs have.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let mut cases: Vec<Case> = (0..LEVELS.len()).map(level).collect();
    cases.push(Case::new("a libmpi that was loaded for its caller only finds its transport", local));
    let name = setting.transport.name.clone();
    cases.push(Case::new(
        format!("MPI_T finds the parameters of {name} before and during MPI, as often as it is opened"),
        tools,
    ));
    if setting.transport.needs_plugin() {
        for (rings, with) in [("0", "without rings"), ("1", "with rings")] {
            let title = format!("a tool reads the counters of {name}, and a parameter prints them ({with})");
            cases.push(Case::new(title, move |setting| counters(setting, rings)));
        }
        let title = "windows of 64 KiB both ways wait in the program's memory, and arrive (pingpong)";
        cases.push(Case::new(title, windows_both_ways));
        for ranks in [2, 32] {
            let title = format!(
                "MPI_Finalize takes four messages for each pair at most, and waits for nobody (everyone, {ranks} ranks)"
            );
            cases.push(Case::new(title, move |setting| leave_together(setting, ranks)));
        }
        let layouts = setting.layouts.iter().filter(|layout| KINDS.contains(&layout.name.as_str()));
        cases.extend(layouts.flat_map(|layout| CLOSINGS.map(|closing| closes(layout, closing))));
    }
    cases
}

/// What came with Open MPI 5.0: sessions, and going on after a failure.
pub fn newer() -> Vec<Case> {
    vec![
        Case::new("sessions start and end MPI several times in one process (2 ranks)", |s| sessions(s, 2)),
        Case::new("sessions start and end MPI several times in one process (4 ranks)", |s| sessions(s, 4)),
        Case::new("with ULFM the survivors of a killed rank hear of it and go on", survivors),
    ]
}

fn level(number: usize) -> Case {
    let name =
        format!("messages flow after MPI_Init_thread with MPI_THREAD_{}", LEVELS[number].to_uppercase());
    Case::new(name, move |setting| {
        let job = setting.job(2, "levels")?.arguments([number.to_string()]);
        passes(&job, "levels", DEADLINE).map(drop)
    })
}

fn tools(setting: &Setting) -> Result<()> {
    let prefix = format!("btl_{}_", setting.transport.name);
    passes(&setting.job(2, "tools")?.arguments([prefix]), "tools", DEADLINE).map(drop)
}

fn counters(setting: &Setting, rings: &str) -> Result<()> {
    let name = &setting.transport.name;
    let job = setting.job(2, "counters")?.arguments([format!("btl_{name}_"), rings.to_owned()]);
    let job = job.parameter(&format!("btl_{name}_stats"), "1");
    let job = job.parameter(&format!("btl_{name}_use_eager_rdma"), rings);
    let finished = passes(&job, "counters", DEADLINE)?;
    let lines = |of: &str| finished.output.lines().filter(|line| line.contains(of)).count();
    let peers = ["bytes-in): 1 ", "bytes-in): 0 "].map(lines);
    let (told, peers) =
        (lines("has counted: sent_inline "), peers.into_iter().filter(|count| *count == 1).count());
    if (told, peers) == (2, 2) {
        return Ok(());
    }
    let Failure(text) = job.explain(&finished);
    Err(Failure(format!(
        "{told} of 2 ranks print what they have counted, {peers} the bytes of their peer: {text}"
    )))
}

/// What would wait in the device's send queue, while the peer sends as much, is refused and offered again.
fn windows_both_ways(setting: &Setting) -> Result<()> {
    let job = setting.job(2, "pingpong")?.arguments(["200", "both:65536"]);
    let job = job.parameter(&format!("btl_{}_stats", setting.transport.name), "1");
    let finished = passes(&job, "pingpong", DEADLINE)?;
    let refused =
        finished.output.lines().filter_map(|line| line.split(" long_refused ").nth(1)?.split(',').next());
    if refused.filter_map(|count| count.trim().parse::<u64>().ok()).sum::<u64>() > 0 {
        return Ok(());
    }
    let Failure(text) = job.explain(&finished);
    Err(Failure(format!("no message was left with Open MPI (long_refused is 0): {text}")))
}

/// An end of stream and an acknowledgement each way.
fn leave_together(setting: &Setting, ranks: usize) -> Result<()> {
    let name = &setting.transport.name;
    let job = setting.job(ranks, "everyone")?.parameter(&format!("btl_{name}_stats"), "1");
    let job = job.parameter(&format!("btl_{name}_finalize_timeout"), "3600s");
    let finished = passes(&job, "everyone", DEADLINE)?;
    let told = finished.output.lines().filter_map(|line| line.split(" ends ").nth(1)?.split(',').next());
    let told: Vec<usize> = told.filter_map(|count| count.trim().parse().ok()).collect();
    let (said, pairs) = (told.iter().sum::<usize>(), ranks * (ranks - 1) / 2);
    if told.len() == ranks && (2 * pairs..=4 * pairs).contains(&said) {
        return Ok(());
    }
    let Failure(text) = job.explain(&finished);
    Err(Failure(format!(
        "{} of {ranks} ranks say that they have told {said} ends for {pairs} pairs: {text}",
        told.len()
    )))
}

/// Nothing is given up, and no connection fails.
fn closes(layout: &Layout, (how, ranks, shows): (&'static str, usize, &str)) -> Case {
    let layout = layout.clone();
    Case::new(format!("{shows} (closing, {ranks} ranks, layout {})", layout.name), move |setting| {
        let job = setting.job(ranks, "closing")?.parameters(&layout.parameters()).arguments([how]);
        let finished = passes(&job, "closing", DEADLINE)?;
        let told =
            finished.output.lines().find(|line| line.contains("oxib error") || line.contains("oxib warn"));
        let Some(line) = told else { return Ok(()) };
        let Failure(text) = job.explain(&finished);
        Err(Failure(format!("it says `{line}`: {text}")))
    })
}

fn local(setting: &Setting) -> Result<()> {
    let job = setting.foreign_job(2, &setting.transport, "/usr/bin/python3").foreign();
    let program = setting.sources.join("mpi/local.py");
    passes(&job.arguments([program.to_string_lossy()]), "local", DEADLINE).map(drop)
}

/// Without the PMIx fence of MPI_Finalize, which 5.0.7 does not always end after a death (docs/openmpi.md). The next job
/// sweeps what the killed rank left.
fn survivors(setting: &Setting) -> Result<()> {
    let job =
        setting.job(3, "survivors")?.flag("--with-ft").flag("ulfm").parameter("async_mpi_finalize", "1");
    passes(&job, "survivors", DEADLINE)?;
    passes(&setting.job(2, "sendrecv")?, "sendrecv", DEADLINE).map(drop)
}

/// The plugin says how often it was opened: a library that ended each time opens it anew.
fn sessions(setting: &Setting, ranks: usize) -> Result<()> {
    let job = setting.job(ranks, "sessions")?.parameter("btl_oxib_verbose", "debug");
    let finished = passes(&job, "sessions", DEADLINE)?;
    if !setting.transport.needs_plugin() {
        return Ok(());
    }
    let opened = finished.output.matches("opened in Open MPI").count();
    let closed = finished.output.matches("component closed").count();
    if opened == closed && opened >= 4 * ranks {
        return Ok(());
    }
    let Failure(text) = job.explain(&finished);
    Err(Failure(format!("the plugin was opened {opened} times and closed {closed} times: {text}")))
}
