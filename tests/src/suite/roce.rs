//! RoCE ports with addresses on several networks: each pair of processes meets over the network that both are on.
//!
//! Ranks are on nodes of their own, with GID tables of their own (SOFTIB_GIDS). Packets go within a network only, as behind a switch
//! without a router, so a job that takes wrong rows does not run (docs/softib.md, section 1.7).

use crate::process::Finished;
use crate::suite::case::passes;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const SECONDS: u64 = 60;

/// A job, one rank for each of the GID tables, and what ranks say of how they meet: "softib0 port 1 meets it over GID ..., its is ...".
struct Meeting {
    what: &'static str,
    ports: &'static str,
    gids: &'static [&'static str],
    /// Parameters and variables of the job.
    parameters: &'static [(&'static str, &'static str)],
    variables: &'static [(&'static str, &'static str)],
    /// Port, GID here, GID there.
    said: &'static [(&'static str, &'static str, &'static str)],
    /// With rdmacm: address here, address there.
    reached: &'static [(&'static str, &'static str)],
}

const OVER_XRC: &[(&str, &str)] = &[("btl_oxib_receive_queues", "X,128,256:X,65536,64")];

/// Of three ranks, each two share a network that the third is not on.
const TRIANGLE: &[&str] = &["10.1.0.1/24,10.2.0.1/24", "10.1.0.2/24,10.3.0.2/24", "10.2.0.3/24,10.3.0.3/24"];
const BY_PAIRS: &[(&str, &str, &str)] = &[
    ("1", "::ffff:10.1.0.1", "::ffff:10.1.0.2"),
    ("1", "::ffff:10.1.0.2", "::ffff:10.1.0.1"),
    ("1", "::ffff:10.2.0.1", "::ffff:10.2.0.3"),
    ("1", "::ffff:10.3.0.3", "::ffff:10.3.0.2"),
];

const OVER_RDMACM: &[(&str, &str)] = &[("btl_oxib_cpc_include", "rdmacm")];

const MEETINGS: [Meeting; 7] = [
    Meeting {
        what: "RoCE ports meet over the network that both are on, wherever its GID stands in their tables",
        ports: "1",
        gids: &["10.9.0.1/24,10.1.0.1/24", "10.1.0.2/24,10.8.0.2/24"],
        parameters: &[],
        variables: &[],
        said: &[("1", "::ffff:10.1.0.1", "::ffff:10.1.0.2"), ("1", "::ffff:10.1.0.2", "::ffff:10.1.0.1")],
        reached: &[],
    },
    Meeting {
        what: "a RoCE port has another GID for each peer where each pair shares another network",
        ports: "1",
        gids: TRIANGLE,
        parameters: &[],
        variables: &[],
        said: BY_PAIRS,
        reached: &[],
    },
    Meeting {
        what: "a RoCE port has another GID for each peer over X queues, too",
        ports: "1",
        gids: TRIANGLE,
        parameters: OVER_XRC,
        variables: &[],
        said: BY_PAIRS,
        reached: &[],
    },
    Meeting {
        what: "a RoCE port has another address for each peer with rdmacm, too",
        ports: "1",
        gids: TRIANGLE,
        parameters: OVER_RDMACM,
        variables: &[],
        said: BY_PAIRS,
        reached: &[("10.1.0.1", "10.1.0.2"), ("10.2.0.1", "10.2.0.3"), ("10.3.0.3", "10.3.0.2")],
    },
    Meeting {
        what: "two RoCE ports each, with crossed networks, are paired network by network",
        ports: "2",
        gids: &["10.1.0.1/24;10.2.0.1/24", "10.2.0.2/24;10.1.0.2/24"],
        parameters: &[],
        variables: &[],
        said: &[
            ("1", "::ffff:10.1.0.1", "::ffff:10.1.0.2"),
            ("2", "::ffff:10.2.0.1", "::ffff:10.2.0.2"),
            ("1", "::ffff:10.2.0.2", "::ffff:10.2.0.1"),
            ("2", "::ffff:10.1.0.2", "::ffff:10.1.0.1"),
        ],
        reached: &[],
    },
    Meeting {
        what: "RoCE ports of which only one has an IPv4 address meet over link-local GIDs",
        ports: "1",
        gids: &["10.1.0.1/24", "fd00::2/64"],
        parameters: &[],
        variables: &[],
        said: &[("1", "fe80::", "fe80::")],
        reached: &[],
    },
    Meeting {
        what: "RoCE ports without a common network use their best GIDs, for there may be a router",
        ports: "1",
        gids: &["10.1.0.1/24", "10.2.0.2/24"],
        parameters: &[],
        variables: &[("SOFTIB_ROUTER", "1")],
        said: &[("1", "::ffff:10.1.0.1", "::ffff:10.2.0.2"), ("1", "::ffff:10.2.0.2", "::ffff:10.1.0.1")],
        reached: &[],
    },
];

/// Every case.
pub fn cases() -> Vec<Case> {
    MEETINGS.iter().map(|meeting| Case::new(meeting.what, move |setting| meet(setting, meeting))).collect()
}

fn meet(setting: &Setting, meeting: &Meeting) -> Result<()> {
    let compiled = setting.programs.compiled("sendrecv")?.to_string_lossy().into_owned();
    let mut script = String::from("rank=$OMPI_COMM_WORLD_RANK; export SOFTIB_NODE=node$rank; case $rank in ");
    for (rank, gids) in meeting.gids.iter().enumerate() {
        script += &format!("{rank}) export SOFTIB_GIDS='{gids}';; ");
    }
    script += r#"esac; exec "$0" "$@""#;
    let job = setting.foreign_job(meeting.gids.len(), &setting.transport, "/bin/sh");
    let job = job.arguments(["-c", &script, &compiled]).parameter("btl_oxib_verbose", "debug");
    let job = job.variable("SOFTIB_LINK_LAYER", "ethernet").variable("SOFTIB_PORTS", meeting.ports);
    let job = meeting.parameters.iter().fold(job, |job, (name, value)| job.parameter(name, value));
    let job = meeting.variables.iter().fold(job, |job, (name, value)| job.variable(name, value));
    let finished = passes(&job, "sendrecv", SECONDS)?;
    let unsaid =
        meeting.said.iter().filter(|words| !says(&finished, words)).map(|words| format!("{words:?}"));
    let unreached =
        meeting.reached.iter().filter(|way| !reaches(&finished, way)).map(|way| format!("{way:?}"));
    match unsaid.chain(unreached).next() {
        None => Ok(()),
        Some(missing) => Err(Failure(format!("{missing} is not said:\n{}", finished.output))),
    }
}

fn reaches(finished: &Finished, (from, to): &(&str, &str)) -> bool {
    finished.output.contains(&format!("is reached from {from} at {to}:"))
}

fn says(finished: &Finished, (port, here, there): &(&str, &str, &str)) -> bool {
    let met = |line: &str| {
        let (over, its) =
            line.split_once(&format!("softib0 port {port} meets it over GID "))?.1.split_once(", its is ")?;
        Some(over.starts_with(here) && its.starts_with(there))
    };
    finished.output.lines().any(|line| met(line) == Some(true))
}
