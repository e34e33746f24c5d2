//! RDMA-CM over the software device, twice: programs of other projects, unmodified, over the
//! drop-in librdmacm.so.1 (rdma-core's examples, perftest with `-R`), and our MPI programs with
//! `btl_oxib_cpc_include rdmacm`.
//!
//! A server is given its client once it listens: its socket shows in the folder of segments.

use crate::process::{Finished, Limits, run};
use crate::suite::case::passes;
use crate::suite::{Case, Setting, verbs};
use crate::{Failure, Result};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const LIMITS: u64 = 90;
const MCKEY: &str = "mckey -m 224.0.0.9 -b 127.0.0.1 -c 2 -C 10";
const TICK: Duration = Duration::from_millis(10);
/// In the name of every socket that listens.
const LISTENER: &str = "-cm-";
/// What programs that end well all the same may print.
const COMPLAINTS: &[&str] =
    &["no version information available", "invalid data", "error", "unexpected event"];

/// Servers, and what makes a client of each: `@` is replaced by it in the command.
const QUICK: &[(&str, &str)] = &[
    ("rping @ -C 20 -v -V", "-s|-c -a 127.0.0.1"),
    ("rping @ -C 5 -S 4096", "-s -a ::1|-c -a ::1"),
    ("rping @ -C 5 -q", "-s|-c -a 127.0.0.1"),
    ("ucmatose @ -c 8 -C 20", "|-s 127.0.0.1"),
    ("ucmatose @ -c 2 -C 5 -S 65536", "-b 127.0.0.1|-s 127.0.0.1 -b 127.0.0.1"),
    ("ucmatose @ -m", "|-s 127.0.0.1"),
    ("udaddy @ -c 4 -C 20", "|-s 127.0.0.1"),
    ("rdma_@", "server|client -s 127.0.0.1"),
    ("rdma_x@", "server|client -s 127.0.0.1"),
    ("rdma_x@ -c x", "server|client -s 127.0.0.1"),
    ("ib_send_lat -R -n 200 @", "|127.0.0.1"),
    ("ib_send_bw -R -n 200 -q 4 @", "|127.0.0.1"),
    ("ib_write_bw -R -n 200 @", "|127.0.0.1"),
];

const MORE: &[(&str, &str)] = &[
    ("rping @ -C 1000", "-s|-c -a 127.0.0.1"),
    ("ucmatose @ -c 100 -C 2", "|-s 127.0.0.1"),
    ("udaddy @ -c 50 -C 3", "|-s 127.0.0.1"),
    ("ib_send_lat -R -n 200 -e @", "|127.0.0.1"),
    ("ib_send_lat -R -n 200 -c UD @", "|127.0.0.1"),
    ("ib_write_lat -R -n 200 @", "|127.0.0.1"),
    ("ib_read_lat -R -n 200 @", "|127.0.0.1"),
    ("ib_read_bw -R -n 200 -q 2 @", "|127.0.0.1"),
    ("ib_atomic_lat -R -n 200 @", "|127.0.0.1"),
    ("ib_send_bw -R -n 200 -b @", "|127.0.0.1"),
];

/// Our programs, and with how many ranks they run over rdmacm.
const MPI: &[(&str, &[usize])] = &[
    ("idle", &[2]),
    ("sendrecv", &[2, 4]),
    ("collectives", &[3]),
    ("random", &[3]),
    ("crossing", &[2]),
    ("lastwords", &[3]),
    ("paused", &[2]),
    ("threads", &[2, 4]),
    ("spawn", &[2]),
    ("everyone", &[16]),
];

/// A layout of shared queues only.
const SHARED: &[(&str, &str)] = &[("btl_oxib_receive_queues", "S,2048,256,128,32:S,65536,256,128,32")];

/// Every case.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let more: &[(&str, &str)] = if setting.all { MORE } else { &[] };
    let mut cases: Vec<Case> =
        QUICK.iter().chain(more).map(|(command, ends)| pair_case(command, ends)).collect();
    cases.push(Case::new("a client that nobody listens for is refused at once", refused));
    cases.push(Case::new(
        "unmodified over the drop-in librdmacm: mckey, two of which hear the third's datagrams",
        multicast,
    ));
    for (program, ranks) in MPI {
        cases.extend(ranks.iter().map(|ranks| mpi_case(program, *ranks, &[])));
    }
    cases.push(mpi_case("sendrecv", 2, &[("btl_oxib_rdmacm_address", "::1")]));
    // Every queue shared: no clear-to-send.
    cases.push(mpi_case("sendrecv", 3, SHARED));
    cases.extend([4, 16].map(|ranks| {
        let name = format!("{ranks} ranks that all begin at once connect by the default connection manager");
        Case::new(name, move |setting| passes(&setting.job(ranks, "everyone")?, "everyone", LIMITS).map(drop))
    }));
    cases
}

fn mpi_case(program: &'static str, ranks: usize, parameters: &'static [(&str, &str)]) -> Case {
    let with: String = parameters.iter().map(|(name, value)| format!(", {name} {value}")).collect();
    let name = format!("{program} runs over connections by RDMA-CM ({ranks} ranks{with})");
    Case::new(name, move |setting| {
        let mut job = setting.job(ranks, program)?.parameter("btl_oxib_cpc_include", "rdmacm");
        for (name, value) in parameters {
            job = job.parameter(name, value);
        }
        passes(&job, program, LIMITS).map(drop)
    })
}

fn pair_case(command: &'static str, ends: &'static str) -> Case {
    let (server, client) = ends.split_once('|').unwrap_or((ends, ""));
    let (server, client) = (command.replace('@', server), command.replace('@', client));
    Case::new(format!("unmodified over the drop-in librdmacm: {client}"), move |setting| {
        let output = pair(setting, &server, &client, &[])?;
        let found = COMPLAINTS.iter().find(|complaint| output.contains(**complaint));
        found.map_or(Ok(()), |found| Err(Failure(format!("`{found}` in the output:\n{output}"))))
    })
}

/// Runs both with these variables besides; returns the output of both if both succeed.
pub(super) fn pair(
    setting: &Setting,
    server: &str,
    client: &str,
    variables: &[(&str, &str)],
) -> Result<String> {
    let limits = Limits::deadline(LIMITS);
    let (first, second) = thread::scope(|scope| {
        let first =
            scope.spawn(|| run(shell(setting, server).envs(variables.iter().copied()), limits, &mut |_| {}));
        let began = Instant::now();
        while !listens(setting) && !first.is_finished() && began.elapsed() < limits.deadline {
            thread::sleep(TICK);
        }
        let second = run(shell(setting, client).envs(variables.iter().copied()), limits, &mut |_| {});
        let first = first.join().map_err(|_| Failure::new("the watching thread panicked"));
        first.and_then(|first| Ok((first?, second?)))
    })?;
    if first.ok() && second.ok() {
        return Ok(first.output + &second.output);
    }
    let end = |command: &str, finished: &Finished| {
        format!("`{command}` {}:\n{}", finished.describe(), finished.output)
    };
    Err(Failure(format!("{}\n{}", end(server, &first), end(client, &second))))
}

fn listens(setting: &Setting) -> bool {
    setting.segments.contents().iter().any(|path| path.to_string_lossy().contains(LISTENER))
}

fn shell(setting: &Setting, command: &str) -> Command {
    let mut words = command.split_whitespace();
    let mut program = Command::new(words.next().unwrap_or_default());
    program.args(words).envs(verbs::environment(setting));
    program
}

/// Two that have joined a group get what a third one sends.
fn multicast(setting: &Setting) -> Result<()> {
    let ready = AtomicUsize::new(0);
    let limits = Limits::deadline(LIMITS);
    let listen = || {
        let mut watch = |line: &str| {
            ready.fetch_add(usize::from(line.contains("receiving data")), Ordering::SeqCst);
        };
        run(&mut shell(setting, &format!("stdbuf -oL {MCKEY}")), limits, &mut watch)
    };
    let ends = thread::scope(|scope| {
        let listeners = [scope.spawn(listen), scope.spawn(listen)];
        let began = Instant::now();
        while ready.load(Ordering::SeqCst) < 2 && began.elapsed() < limits.deadline {
            thread::sleep(TICK);
        }
        let sender = run(&mut shell(setting, &format!("{MCKEY} -s")), limits, &mut |_| {});
        let heard = listeners.map(|listener| {
            listener.join().map_err(|_| Failure::new("the watching thread panicked")).and_then(|end| end)
        });
        heard.into_iter().chain([sender]).collect::<Result<Vec<Finished>>>()
    })?;
    let whole = |end: &Finished| end.ok() && end.output.contains("data transfers complete");
    match ends.iter().find(|end| !whole(end)) {
        None => Ok(()),
        Some(end) => Err(Failure(format!("`{MCKEY}` {}:\n{}", end.describe(), end.output))),
    }
}

fn refused(setting: &Setting) -> Result<()> {
    let finished =
        run(&mut shell(setting, "rping -c -a 127.0.0.1 -C 1"), Limits::deadline(LIMITS), &mut |_| {})?;
    let says = finished.output.contains("RDMA_CM_EVENT_REJECTED") || finished.output.contains("event 8");
    if !finished.ok() && says {
        return Ok(());
    }
    Err(Failure(format!("rping {}, not refused:\n{}", finished.describe(), finished.output)))
}
