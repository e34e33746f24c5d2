//! iWARP: the software device is one (docs/softib.md, section 1.7), connections come by RDMA-CM, one for each queue pair, and the
//! device breaks those whose responder sends first.

use std::process::Command;

use crate::mpirun::Job;
use crate::process::Limits;
use crate::suite::case::passes;
use crate::suite::verbs::{environment, says};
use crate::suite::{Case, Setting, rdmacm};
use crate::{Failure, Result};

const LIMITS: u64 = 90;
const IWARP: (&str, &str) = ("SOFTIB_LINK_LAYER", "iwarp");

/// Verbs programs of other projects: server, and what makes a client of it. (The servers of
/// ucmatose and ib_write_lat send first, which iWARP does not allow: the device ends them.)
const PROGRAMS: &[(&str, &str)] = &[
    ("rping @ -C 20 -v -V", "-s|-c -a 127.0.0.1"),
    ("rping @ -C 5 -S 4096", "-s -a ::1|-c -a ::1"),
    ("ib_send_lat -R -n 200 @", "|127.0.0.1"),
    ("ib_read_bw -R -n 200 -q 2 @", "|127.0.0.1"),
];

/// Our programs, and with how many ranks they run; the default layout of iWARP.
const QUICK: &[(&str, usize)] = &[
    ("sendrecv", 2),
    ("sendrecv", 4),
    ("collectives", 3),
    ("crossing", 2),
    ("large", 2),
    ("threads", 2),
    ("lastwords", 3),
    ("everyone", 4),
];
const MORE: &[(&str, usize)] = &[
    ("idle", 2),
    ("modes", 2),
    ("probe", 2),
    ("wildcard", 3),
    ("persistent", 2),
    ("datatypes", 2),
    ("communicators", 4),
    ("flood", 2),
    ("random", 3),
    ("paused", 2),
    ("forks", 2),
    ("spawn", 2),
    ("threads", 4),
    ("everyone", 16),
];

/// Layouts with other numbers, or another queue for the clear-to-send, than the default one.
const LAYOUTS: &[&str] = &["P,65536,64,48,16", "P,64,1,0,1,2:P,4096,1,0,1,2:P,65536,2,1,1,2"];

/// Every case.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let more: &[(&str, usize)] = if setting.all { MORE } else { &[] };
    let mut cases = vec![Case::new("unmodified: ibv_devinfo shows an iWARP device", devinfo)];
    cases.extend(PROGRAMS.iter().map(|(command, ends)| pair(command, ends)));
    cases.extend(QUICK.iter().chain(more).map(|&(program, ranks)| {
        let name = format!("{program} runs over an iWARP device ({ranks} ranks)");
        Case::new(name, move |setting| passes(&job(setting, program, ranks)?, program, LIMITS).map(drop))
    }));
    let programs: &[&'static str] =
        if setting.all { &["sendrecv", "flood", "random"] } else { &["sendrecv"] };
    for (program, layout) in programs.iter().flat_map(|program| LAYOUTS.iter().map(move |l| (*program, *l))) {
        let name = format!("{program} runs over an iWARP device (layout {layout})");
        cases.push(Case::new(name, move |setting| {
            let job = job(setting, program, 2)?.parameter("btl_oxib_receive_queues", layout);
            passes(&job, program, LIMITS).map(drop)
        }));
    }
    cases.push(Case::new(
        "shared queues are refused on an iWARP device, and a layout that works is named",
        refused,
    ));
    cases
}

fn job(setting: &Setting, program: &str, ranks: usize) -> Result<Job> {
    Ok(setting.job(ranks, program)?.variable(IWARP.0, IWARP.1))
}

fn devinfo(setting: &Setting) -> Result<()> {
    for wanted in ["iWARP (1)", "Ethernet"] {
        let mut program = Command::new("ibv_devinfo");
        program.args(["-v", "-d", "softib0"]).envs(environment(setting)).env(IWARP.0, IWARP.1);
        says(program, wanted)?;
    }
    Ok(())
}

fn pair(command: &'static str, ends: &'static str) -> Case {
    let (server, client) = ends.split_once('|').unwrap_or((ends, ""));
    let (server, client) = (command.replace('@', server), command.replace('@', client));
    Case::new(format!("unmodified, on an iWARP device: {client}"), move |setting| {
        rdmacm::pair(setting, &server, &client, &[IWARP]).map(drop)
    })
}

fn refused(setting: &Setting) -> Result<()> {
    let shared = "S,2048,256,128,32:S,65536,256,128,32";
    let job = job(setting, "sendrecv", 2)?.parameter("btl_oxib_receive_queues", shared);
    let finished = job.run(Limits::deadline(LIMITS), &mut |_| {})?;
    if !finished.ok() && finished.output.contains("configs/iwarp.conf") {
        return Ok(());
    }
    Err(Failure(format!("the job {}, not refused:\n{}", finished.describe(), finished.output)))
}
