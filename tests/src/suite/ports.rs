//! Several devices and ports: which of them a job uses, that all of them carry it, and who does not meet.
//!
//! softib has as many as its variables say (docs/softib.md, section 1.10). What each port carried oxib says at the end, at verbosity info.

use std::collections::BTreeMap;
use std::process::Command;

use crate::mpirun::{Job, Transport};
use crate::pair::Pair;
use crate::process::{End, Finished, Limits};
use crate::suite::case::passes;
use crate::suite::verbs::{environment, says, succeeds};
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const SECONDS: u64 = 60;
/// Verbs programs of other projects, at a port that is not the first of a device that is not the
/// first.
const COMMANDS: [&str; 4] = [
    "ibv_rc_pingpong -d softib1 -i 2 -c -n 200",
    "ibv_ud_pingpong -d softib1 -i 2 -c -n 200",
    "ibv_srq_pingpong -d softib1 -i 2 -c -n 200 -e",
    "ib_write_bw -d softib1 -i 2 -n 200",
];

/// A job: devices, ports of each, parameters, and the ports that are to carry it.
struct Choice {
    what: &'static str,
    devices: &'static str,
    ports: &'static str,
    parameters: &'static [(&'static str, &'static str)],
    carry: &'static [&'static str],
}

const CHOICES: [Choice; 5] = [
    Choice {
        what: "two ports of one device share the long messages of a job",
        devices: "1",
        ports: "2",
        parameters: &[],
        carry: &["softib0 port 1", "softib0 port 2"],
    },
    Choice {
        what: "two devices share the long messages of a job",
        devices: "2",
        ports: "1",
        parameters: &[],
        carry: &["softib0 port 1", "softib1 port 1"],
    },
    Choice {
        what: "the ports of two devices that if_include names carry a job, one that is named twice once",
        devices: "2",
        ports: "2",
        parameters: &[("btl_oxib_if_include", "softib0:1,softib1:2,softib0:1")],
        carry: &["softib0 port 1", "softib1 port 2"],
    },
    Choice {
        what: "a device that if_exclude names carries nothing",
        devices: "2",
        ports: "2",
        parameters: &[("btl_oxib_if_exclude", "softib1")],
        carry: &["softib0 port 1", "softib0 port 2"],
    },
    Choice {
        what: "no more ports carry a job than max_btls says",
        devices: "2",
        ports: "2",
        parameters: &[("btl_oxib_max_btls", "1")],
        carry: &["softib0 port 1"],
    },
];

/// An `if_include` and an `if_exclude` that cannot be followed, and what is said of them.
struct Mistake {
    what: &'static str,
    include: &'static str,
    exclude: Option<&'static str>,
    said: &'static [&'static str],
}

const MISTAKES: [Mistake; 3] = [
    Mistake {
        what: "a port that a device does not have is named, and how many it has",
        include: "softib1:3",
        exclude: None,
        said: &["btl_oxib_if_include", "softib1 has no port 3", "it has 2"],
    },
    Mistake {
        what: "a device that is not there is named beside one that is, and those there are",
        include: "softib0,softib7:1",
        exclude: None,
        said: &["btl_oxib_if_include", "softib7", "softib0, softib1"],
    },
    Mistake {
        what: "if_include and if_exclude together are refused",
        include: "softib0",
        exclude: Some("softib1"),
        said: &["btl_oxib_if_exclude", "if_include is set too"],
    },
];

/// What `gid_index` is, and what is said of the row that the port uses then.
const GIDS: [(&str, &str, &str); 3] = [
    ("a RoCE port uses a GID of RoCE v2 and IPv4 unless it is told another", "-1", "GID 3: ::ffff:127.0."),
    ("a RoCE port uses the row of its GID table that it is told", "0", "GID 0: fe80::"),
    ("a RoCE port uses a global GID that it is told", "5", "GID 5: fd00::7 RoCE v2"),
];

/// Those of verbs programs, and those of MPI.
pub fn cases(_: &Setting) -> Vec<Case> {
    let mut cases = vec![Case::new("unmodified: ibv_devinfo lists two devices of two ports", devinfo)];
    cases.extend(COMMANDS.map(|command| {
        Case::new(format!("unmodified: {command}"), move |setting| {
            succeeds(&Pair::new(command, &with(environment(setting), "2", "2")))
        })
    }));
    cases.extend(of_mpi());
    cases
}

/// Those that are about MPI.
pub fn of_mpi() -> Vec<Case> {
    let mut cases: Vec<Case> =
        CHOICES.iter().map(|choice| Case::new(choice.what, move |setting| chosen(setting, choice))).collect();
    cases.extend(
        GIDS.iter().map(|(what, index, row)| Case::new(*what, move |setting| gid_row(setting, index, row))),
    );
    cases.push(Case::new("ranks that were given different ports meet at the wire that they share", shared));
    cases.push(Case::new("ranks without a port on a common wire are told so, with both sides' ports", apart));
    cases.extend(
        MISTAKES.iter().map(|mistake| Case::new(mistake.what, move |setting| mistaken(setting, mistake))),
    );
    cases
}

/// One of each kind of these.
pub fn some_of_mpi() -> Vec<Case> {
    const KINDS: [&str; 3] = ["two devices", "ranks that were given", "ranks without"];
    of_mpi().into_iter().filter(|case| KINDS.iter().any(|kind| case.name.starts_with(kind))).collect()
}

fn with(mut variables: Vec<(String, String)>, devices: &str, ports: &str) -> Vec<(String, String)> {
    variables.push(("SOFTIB_DEVICES".to_owned(), devices.to_owned()));
    variables.push(("SOFTIB_PORTS".to_owned(), ports.to_owned()));
    variables
}

fn devinfo(setting: &Setting) -> Result<()> {
    for (device, wanted) in [("softib0", "port_lid:\t\t6145"), ("softib1", "port_lid:\t\t18433")] {
        let mut program = Command::new("ibv_devinfo");
        program.args(["-d", device]).envs(with(environment(setting), "2", "2"));
        says(program, wanted)?;
    }
    Ok(())
}

fn job(setting: &Setting, program: &str, devices: &str, ports: &str) -> Result<Job> {
    let job = setting.job(2, program)?.parameter("btl_oxib_verbose", "info");
    Ok(job.variable("SOFTIB_DEVICES", devices).variable("SOFTIB_PORTS", ports))
}

fn chosen(setting: &Setting, choice: &Choice) -> Result<()> {
    let job = job(setting, "sendrecv", choice.devices, choice.ports)?;
    let job = choice.parameters.iter().fold(job, |job, (name, value)| job.parameter(name, value));
    let finished = passes(&job, "sendrecv", SECONDS)?;
    expect(&finished, &choice.carry.iter().map(|port| (*port, 2)).collect())
}

fn gid_row(setting: &Setting, index: &str, row: &str) -> Result<()> {
    let job = setting.job(2, "sendrecv")?.parameter("btl_oxib_verbose", "debug");
    let job = job.variable("SOFTIB_LINK_LAYER", "ethernet").variable("SOFTIB_GIDS", "fd00::7");
    let finished = passes(&job.parameter("btl_oxib_gid_index", index), "sendrecv", SECONDS)?;
    if finished.output.contains(&format!("softib0 port 1: {row}")) {
        return Ok(());
    }
    Err(Failure(format!("{row:?} is not said:\n{}", finished.output)))
}

/// What a port says that it carried: messages in both directions, and one-sided operations.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    ranks: usize,
    messages: u64,
    long: u64,
}

/// "... softib0 port 1 carried 23 messages out, 44 in, and 9 puts and gets"
fn loads(finished: &Finished) -> BTreeMap<String, Load> {
    let mut loads: BTreeMap<String, Load> = BTreeMap::new();
    for (before, after) in finished.output.lines().filter_map(|line| line.split_once(" carried ")) {
        let Some((_, name)) = before.rsplit_once("oxib info: ") else { continue };
        let numbers: Vec<u64> =
            after.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
        if let [sent, received, long] = numbers[..] {
            let load = loads.entry(name.to_owned()).or_default();
            load.ranks += 1;
            load.messages += sent + received;
            load.long += long;
        }
    }
    loads
}

/// These ports, each in so many ranks and no others, carried messages and parts of long ones.
fn expect(finished: &Finished, ports: &BTreeMap<&str, usize>) -> Result<()> {
    let loads = loads(finished);
    let same = loads.len() == ports.len()
        && loads.iter().all(|(name, load)| ports.get(name.as_str()) == Some(&load.ranks));
    if same && loads.values().all(|load| load.messages > 0 && load.long > 0) {
        return Ok(());
    }
    Err(Failure(format!("expected {ports:?} to carry the job, but {loads:?}\n{}", finished.output)))
}

/// The two ranks of a job, each with an `if_include` of its own, on a device with an InfiniBand and an Ethernet port.
fn at_odds(setting: &Setting, include: [&str; 2]) -> Result<Job> {
    let compiled = setting.programs.compiled("sendrecv")?.to_string_lossy().into_owned();
    let script = format!(
        r#"[ "$OMPI_COMM_WORLD_RANK" = 0 ] && ports={} || ports={}; OMPI_MCA_btl_oxib_if_include=$ports exec "$0" "$@""#,
        include[0], include[1]
    );
    let job = setting.foreign_job(2, &setting.transport, "/bin/sh").arguments(["-c", &script, &compiled]);
    let job = job.parameter("btl_oxib_verbose", "info").variable("SOFTIB_PORTS", "2");
    Ok(job.variable("SOFTIB_LINK_LAYER", "infiniband,ethernet"))
}

fn shared(setting: &Setting) -> Result<()> {
    let job = at_odds(setting, ["softib0", "softib0:2"])?;
    let finished = passes(&job, "sendrecv", SECONDS)?;
    let mut loads = loads(&finished);
    let alone = loads.remove("softib0 port 1");
    let idle = alone.is_some_and(|load| (load.ranks, load.messages, load.long) == (1, 0, 0));
    let met =
        loads.get("softib0 port 2").is_some_and(|load| load.ranks == 2 && load.messages > 0 && load.long > 0);
    if idle && met && loads.len() == 1 {
        return Ok(());
    }
    Err(Failure(format!("not as expected: {alone:?}, {loads:?}\n{}", finished.output)))
}

fn apart(setting: &Setting) -> Result<()> {
    let job = at_odds(setting, ["softib0:1", "softib0:2"])?;
    let finished = job.run(Limits::deadline(SECONDS), &mut |_| {})?;
    // What the aborted ranks have left is swept by the next that come.
    passes(&setting.job(2, "idle")?, "idle", SECONDS)?;
    let ended = matches!(finished.end, End::Exit(code) if code != 0) && finished.leftovers.is_empty();
    let said =
        ["has no port on a subnet of ours", "Ethernet IPv4 127.0.", "InfiniBand fe80", "btl_oxib_if_include"];
    let missing: Vec<_> = said.iter().filter(|words| !finished.output.contains(**words)).collect();
    if ended && missing.is_empty() {
        return Ok(());
    }
    Err(Failure(format!("{}, without {missing:?}:\n{}", finished.describe(), finished.output)))
}

/// The job goes on over shared memory.
fn mistaken(setting: &Setting, mistake: &Mistake) -> Result<()> {
    let btl = format!("self,{},oxib", setting.mpi.shared_memory());
    let beside = Transport { name: "oxib".to_owned(), btl };
    let job = setting.foreign_job(2, &beside, setting.programs.compiled("idle")?);
    let job = job.variable("SOFTIB_DEVICES", "2").variable("SOFTIB_PORTS", "2");
    let job = job.parameter("btl_oxib_if_include", mistake.include);
    let job = mistake.exclude.into_iter().fold(job, |job, value| job.parameter("btl_oxib_if_exclude", value));
    let finished = passes(&job, "idle", SECONDS)?;
    let missing: Vec<_> = mistake.said.iter().filter(|words| !finished.output.contains(**words)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure(format!("{missing:?} is not said:\n{}", finished.output)))
}
