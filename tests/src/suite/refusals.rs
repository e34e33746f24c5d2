//! Bad input and shortages: each is answered by its true cause, soon, and the program ends by itself.
//!
//! Each row says what is wrong, what the answer must name, and thereby what the user can do. The rows of variables run twice: as an
//! MPI job over oxib alone, and as `ibv_devinfo` on the drop-in libibverbs. What no answer may say is in [`MISLEADING`]: the remedies
//! of other causes.
//!
//! **How soon.** A refusal takes no waiting: 2 s are promised, and on an idle machine an MPI job needs about 0.2 s to its message, a verbs program
//! 0.01 s (each row's time is in its line). A machine that is busy starts the job late, too, so an answer after more than that is compared with the
//! time that a job of the same size needs to its end there and then.

use crate::failure::Context;
use crate::machine::{SegmentFolder, no_mount};
use crate::mpirun::{Job, Transport, tail};
use crate::process::{End, Finished, Limits, run};
use crate::suite::case::{Verdict, passes};
use crate::suite::verbs::environment;
use crate::suite::{Case, Setting};
use crate::{Failure, Result, say};
use std::process::Command;
use std::time::{Duration, Instant};

/// What ends a job that hangs.
const DEADLINE: u64 = 120;
/// From the start to the message.
const PROMISE: Duration = Duration::from_secs(2);
/// What a busy machine may cost beyond that, in working jobs of the same size.
const BUSY: u32 = 10;

/// The causes that shortages and mistakes used to be taken for.
const MISLEADING: &[&str] =
    &["check the cable", "subnet manager", "no active port", "the peer may be gone", "panicked"];

/// A mistake in a parameter: `--mca btl_oxib_NAME VALUE`, and what the message has to say.
struct Parameter(&'static str, &'static str, &'static [&'static str]);

const PARAMETERS: &[Parameter] = &[
    Parameter("receive_queues", "P,128,256,192,128:Q,2048,16", &["queue 2", "byte 18", "\"Q\"", "P, S or X"]),
    Parameter("receive_queues", "P,4096,64:S,2048,64", &["queue 2, size", "sizes ascend, queue 1 has 4096"]),
    Parameter("receive_queues", "P,128,64,48,65", &["rd_win", "\"65\"", "1 to 64 (rd_num)"]),
    Parameter("receive_queues", "P,128,64,64", &["rd_low", "0 to 63 (less than rd_num)"]),
    Parameter("receive_queues", "P,128,64,48,32,1", &["rd_rsv", "\"1\"", "2 to 255"]),
    Parameter("receive_queues", "P,128,64:X,2048,64", &["queue 2, type", "do not mix with X"]),
    Parameter("receive_queues", "P,128", &["rd_num", "found the end"]),
    Parameter("receive_queues", "S,128,64,48,16,16,8,2", &["extra field", "srq_limit"]),
    Parameter("receive_queues", "P,128,32767", &["queue 1", "softib0 has no more than 32768", "rd_num"]),
    Parameter(
        "device",
        "no_such_device_0",
        &["no device \"no_such_device_0\"", "softib0 is the software device"],
    ),
    Parameter("device", "softib0:2", &["softib0 has no port 2: it has 1"]),
    Parameter("device", "softib7", &["no device \"softib7\"", "this machine has: softib0"]),
    Parameter("device", "softib0:zero", &["\"zero\" is no port number"]),
    Parameter("if_include", "pigeon0", &["no device \"pigeon0\"", "btl_oxib_if_include"]),
    Parameter("if_exclude", "softib0", &["btl_oxib_if_exclude leave none of the active ports of softib0"]),
    Parameter("device_param_files", "/no/such.ini", &["/no/such.ini", "there is no such file or folder"]),
    Parameter("device_param_files", "a.ini,,b.ini", &["btl_oxib_device_param_files", "empty word"]),
    Parameter("device_param_files", "/dev/zero", &["/dev/zero", "at most 1048576 bytes"]),
    Parameter("max_btls", "999", &["btl_oxib_max_btls", "999 is out of range", "from 0 to 255"]),
    Parameter("cpc_include", "pigeon", &["\"pigeon\"", "known are: ibcm, rdmacm, xrc"]),
    Parameter("cpc_exclude", "ibcm,rdmacm,xrc", &["softib0 port 1", "all are excluded"]),
    Parameter("cpc_include", "xrc", &["xrc: it connects X queues only, and receive_queues has none"]),
    Parameter("cpc_include", "ibcm,,rdmacm", &["btl_oxib_cpc_include", "empty word"]),
    Parameter("gid_index", "99", &["btl_oxib_gid_index is 99", "softib0 port 1 has GIDs in rows 0 only"]),
    Parameter("gid_index", "1", &["btl_oxib_gid_index is 1", "softib0 port 1 has GIDs in rows 0 only"]),
    Parameter("gid_index", "-2", &["btl_oxib_gid_index", "-1, or a number from 0 to 255"]),
    Parameter("gid_index", "300", &["300 is out of range", "a number from 0 to 255"]),
    Parameter("pkey", "0x1234", &["btl_oxib_pkey is 0x1234", "softib0 port 1 has these P_Keys: 0xffff"]),
    Parameter("pkey", "70000", &["70000 is out of range", "from 0 to 65535"]),
    Parameter("mtu", "1000", &["btl_oxib_mtu", "1000 is no MTU"]),
    Parameter("ib_timeout", "5 parsecs", &["btl_oxib_ib_timeout", "\"5 parsecs\" is no time"]),
    Parameter("rd_atomic", "0", &["btl_oxib_rd_atomic", "0 is out of range", "from 1 to 128"]),
    Parameter(
        "eager_limit",
        "99999999",
        &["btl_oxib_eager_limit", "no buffer of btl_oxib_receive_queues", "65664"],
    ),
    Parameter("rdmacm_address", "nowhere", &["btl_oxib_rdmacm_address", "nowhere"]),
    Parameter("verbose", "chatty", &["btl_oxib_verbose", "chatty", "error, warn, info, debug, trace"]),
];

/// A mistake in the environment: NAME=VALUE, and what the message has to say.
struct Variable(&'static str, &'static str, &'static [&'static str]);

const VARIABLES: &[Variable] = &[
    Variable(
        "SOFTIB_DIR",
        "/no/such/folder",
        &["/no/such/folder", "No such file or directory", "SOFTIB_DIR"],
    ),
    Variable("SOFTIB_DIR", "/etc/passwd", &["/etc/passwd", "Not a directory", "SOFTIB_DIR"]),
    Variable("SOFTIB_DIR", "/proc", &["/proc", "not supported", "tmpfs"]),
    Variable("SOFTIB_NODE", "a\tb", &["SOFTIB_NODE=\"a\\tb\"", "1 to 60 bytes without control characters"]),
    Variable("SOFTIB_DEVICES", "9", &["SOFTIB_DEVICES=\"9\"", "devices times ports at most 8"]),
    Variable("SOFTIB_PORTS", "many", &["SOFTIB_PORTS=\"many\"", "a number from 1"]),
    Variable(
        "SOFTIB_LINK_LAYER",
        "token-ring",
        &["SOFTIB_LINK_LAYER=\"token-ring\"", "infiniband, ethernet or iwarp"],
    ),
    Variable("SOFTIB_PKEYS", "0x8000", &["SOFTIB_PKEYS", "8000", "none of partition 0"]),
    Variable("SOFTIB_GIDS", "ff02::1", &["SOFTIB_GIDS", "ff02::1", "up to 6 addresses"]),
    Variable("SOFTIB_FAULTS", "drop", &["SOFTIB_FAULTS=\"drop\"", "at character 1", "expected seed="]),
    Variable("SOFTIB_CMA", "no", &["SOFTIB_CMA=\"no\"", "0 (never), node"]),
    Variable("SOFTIB_CM_TIMEOUT", "soon", &["SOFTIB_CM_TIMEOUT=\"soon\"", "a number of milliseconds"]),
];

/// A limit of the process, set by the shell that starts it, and what the message has to say.
struct Limited(&'static str, &'static [&'static str]);

/// Of the ranks of a job: a library of Open MPI's needs some address space, too.
const LIMITED_RANKS: &[Limited] = &[
    Limited("ulimit -f 100", &["file size limit (ulimit -f", "raise it with `ulimit -f unlimited`"]),
    Limited(
        "ulimit -v 250000",
        &["of address space are needed", "address space limit (ulimit -v", "244 MiB"],
    ),
];

/// Of `ibv_devinfo`.
const LIMITED: &[Limited] = &[
    Limited("ulimit -f 100", &["file size limit (ulimit -f", "raise it with `ulimit -f unlimited`"]),
    Limited("ulimit -v 7500", &["cannot be mapped", "address space limit (ulimit -v", "7 MiB"]),
    Limited("ulimit -n 5", &["no file descriptor left", "(ulimit -n, RLIMIT_NOFILE) is 5"]),
];

/// Ranks that do not fit: what rank 1 does differently, and what the message has to say, whichever of them it comes from.
struct AtOdds(&'static str, &'static [&'static str]);

const AT_ODDS: &[AtOdds] = &[
    AtOdds(
        "SOFTIB_DIR=$OTHER",
        &["rank 1", "has its segments in", "this process in", "set the same SOFTIB_DIR"],
    ),
    AtOdds("SOFTIB_DIR=/no/such/folder", &["rank 1", "/no/such/folder", "No such file or directory"]),
    AtOdds("SOFTIB_PORTS=9", &["rank 1", "SOFTIB_PORTS=\"9\""]),
    AtOdds("OMPI_MCA_btl_oxib_pkey=0x1234", &["rank 1", "btl_oxib_pkey is 0x1234"]),
    AtOdds("OMPI_MCA_btl_oxib_mtu=1000", &["rank 1", "btl_oxib_mtu", "1000 is no MTU"]),
    AtOdds(
        "OMPI_MCA_btl_oxib_receive_queues=P,4096,32",
        &["rank 1", "other receive queues: ", "P,4096,32", "the same btl_oxib_receive_queues"],
    ),
    AtOdds("SOFTIB_LINK_LAYER=ethernet", &["rank 1", "no port on a subnet of ours", "Ethernet"]),
];

/// A folder of segments that is mounted for the program alone: options of the tmpfs, and what the message has to say.
struct Mounted(&'static str, &'static [&'static str]);

const MOUNTED: &[Mounted] = &[
    Mounted("ro", &["Read-only file system", "SOFTIB_DIR has to name a folder that this user may write to"]),
    Mounted("size=32k", &["no space", "are free", "are needed", "SOFTIB_DIR"]),
];

/// Every row.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let mut cases: Vec<Case> = VARIABLES.iter().map(verbs_variable).collect();
    cases.extend(LIMITED.iter().map(verbs_limit));
    cases.extend(MOUNTED.iter().map(verbs_mount));
    cases.push(Case::new(
        "refused: a SOFTIB_REAL_VERBS that is not there is named, and softib serves alone",
        real_verbs,
    ));
    if setting.transport.needs_plugin() {
        cases.extend(of_mpi());
    }
    cases
}

/// Those that are about the plugin.
pub fn of_mpi() -> Vec<Case> {
    let mut cases: Vec<Case> = PARAMETERS.iter().map(parameter).collect();
    cases.extend(VARIABLES.iter().map(variable));
    cases.extend(LIMITED_RANKS.iter().map(limit));
    cases.extend(AT_ODDS.iter().map(at_odds));
    cases.extend(MOUNTED.iter().map(mount));
    cases.push(Case::new(
        "refused: a rank that has another folder of segments goes on over shared memory, unsaid",
        beside,
    ));
    cases.push(Case::new("the death of a rank is said once by each of its peers", said_once));
    cases.push(Case::new("the command that a refusal recommends lists the parameters", recommended));
    cases
}

fn parameter(Parameter(name, value, words): &'static Parameter) -> Case {
    Case::new(format!("refused: btl_oxib_{name} {value}"), move |setting| {
        let job = setting.job(2, "sendrecv")?.parameter(&format!("btl_oxib_{name}"), value);
        refused(setting, &job, words)
    })
}

fn variable(Variable(name, value, words): &'static Variable) -> Case {
    Case::new(format!("refused: {name}={value:?} of an MPI job"), move |setting| {
        refused(setting, &setting.job(2, "sendrecv")?.variable(name, value), words)
    })
}

fn verbs_variable(Variable(name, value, words): &'static Variable) -> Case {
    Case::new(format!("refused: {name}={value:?} of ibv_devinfo"), move |setting| {
        let mut command = Command::new("ibv_devinfo");
        command.args(["-d", "softib0"]).envs(environment(setting)).env(name, value);
        verbs_refused(setting, command, words)
    })
}

fn limit(Limited(limit, words): &'static Limited) -> Case {
    Case::new(format!("refused: an MPI job under {limit}"), move |setting| {
        refused(setting, &through_shell(setting, &format!("{limit}; exec \"$0\""))?, words)
    })
}

fn verbs_limit(Limited(limit, words): &'static Limited) -> Case {
    Case::new(format!("refused: ibv_devinfo under {limit}"), move |setting| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("{limit}; exec ibv_devinfo -d softib0")]).envs(environment(setting));
        verbs_refused(setting, command, words)
    })
}

/// Rank 1 with a variable of its own.
fn at_odds(AtOdds(difference, words): &'static AtOdds) -> Case {
    Case::new(format!("refused: a job whose rank 1 has {difference}"), move |setting| {
        let other = SegmentFolder::create()?;
        let job = only_rank_1(setting, &setting.transport, difference)?;
        let job = job.variable("OTHER", &other.path().to_string_lossy());
        refused(setting, &job, words)
    })
}

fn only_rank_1(setting: &Setting, transport: &Transport, difference: &str) -> Result<Job> {
    let program = setting.programs.compiled("sendrecv")?.to_string_lossy().into_owned();
    let script = format!(r#"[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export {difference}; exec "$0""#);
    Ok(setting.foreign_job(2, transport, "/bin/sh").arguments(["-c", &script, &program]))
}

fn through_shell(setting: &Setting, script: &str) -> Result<Job> {
    let program = setting.programs.compiled("sendrecv")?.to_string_lossy().into_owned();
    Ok(setting.foreign_job(2, &setting.transport, "/bin/sh").arguments(["-c", script, &program]))
}

fn mount(Mounted(options, words): &'static Mounted) -> Case {
    Case::skippable(
        format!("refused: an MPI job whose folder of segments is mounted with {options}"),
        move |setting| {
            let job = setting.job(2, "sendrecv")?;
            with_mount(setting, options, |script| refused(setting, &job.clone().inside(script), words))
        },
    )
}

fn verbs_mount(Mounted(options, words): &'static Mounted) -> Case {
    Case::skippable(
        format!("refused: ibv_devinfo whose folder of segments is mounted with {options}"),
        move |setting| {
            with_mount(setting, options, |script| {
                let mut command = Command::new("unshare");
                command.args(["-m", "/bin/sh", "-c", &format!("{script}; exec ibv_devinfo -d softib0")]);
                command.envs(environment(setting));
                verbs_refused(setting, command, words)
            })
        },
    )
}

/// A script that mounts a tmpfs over the folder of segments, for a mount namespace of its own.
fn with_mount(setting: &Setting, options: &str, body: impl FnOnce(&str) -> Result<()>) -> Result<Verdict> {
    if let Some(reason) = no_mount() {
        return Ok(Verdict::Skipped(reason));
    }
    let folder = setting.segments.path().display();
    body(&format!("mount -t tmpfs -o {options} tmpfs {folder}")).map(|()| Verdict::Held)
}

/// The job ends by itself, without success, and says what it has to; nothing of it stays.
fn refused(setting: &Setting, job: &Job, words: &[&str]) -> Result<()> {
    let mut answer = Answer::new(words);
    let finished = job.run(Limits::deadline(DEADLINE), &mut |line| answer.line(line))?;
    let Failure(explained) = job.explain(&finished);
    // Ranks that Open MPI ends leave their segments to the next job.
    setting.segments.clear();
    answer.judge(setting, &finished, true, &explained)
}

fn verbs_refused(setting: &Setting, mut command: Command, words: &[&str]) -> Result<()> {
    let mut answer = Answer::new(words);
    let finished = run(&mut command, Limits::deadline(DEADLINE), &mut |line| answer.line(line))?;
    let explained = format!("`{command:?}` {}:\n{}", finished.describe(), tail(&finished.output, 30));
    answer.judge(setting, &finished, true, &explained)
}

/// Words that have to come, and when the last of them did.
struct Answer<'a> {
    began: Instant,
    missing: Vec<&'a str>,
    complete: Duration,
}

impl<'a> Answer<'a> {
    fn new(words: &[&'a str]) -> Self {
        Answer { began: Instant::now(), missing: words.to_vec(), complete: Duration::ZERO }
    }

    fn line(&mut self, line: &str) {
        let before = self.missing.len();
        self.missing.retain(|word| !line.contains(word));
        if self.missing.len() < before {
            self.complete = self.began.elapsed();
        }
    }

    fn judge(&self, setting: &Setting, finished: &Finished, fails: bool, explained: &str) -> Result<()> {
        let ended =
            matches!(finished.end, End::Exit(code) if (code != 0) == fails) && finished.leftovers.is_empty();
        let misled = MISLEADING.iter().find(|word| finished.output.contains(**word));
        let problem = match (&self.missing[..], misled) {
            ([], None) if ended => return self.in_time(setting, explained),
            ([], None) => "it did not end as it should".to_owned(),
            ([], Some(word)) => format!("\"{word}\" is another cause"),
            (missing, _) => format!("the message lacks {missing:?}"),
        };
        Err(Failure(format!("{problem}: {explained}")))
    }

    /// Late answers are compared with what a job costs on this machine at this moment.
    fn in_time(&self, setting: &Setting, explained: &str) -> Result<()> {
        say!("          the message after {:.2} s", self.complete.as_secs_f64());
        if self.complete <= PROMISE {
            return Ok(());
        }
        let began = Instant::now();
        passes(
            &setting.foreign_job(
                2,
                &Transport::new(setting.mpi.shared_memory()),
                setting.programs.compiled("sendrecv")?,
            ),
            "sendrecv",
            DEADLINE,
        )?;
        let most = PROMISE + BUSY * began.elapsed();
        if self.complete <= most {
            return Ok(());
        }
        Err(Failure(format!("the message came after {:?}, later than {most:?}: {explained}", self.complete)))
    }
}

/// Different folders are no mistake where another transport was asked for.
fn beside(setting: &Setting) -> Result<()> {
    let transport =
        Transport { name: "oxib".to_owned(), btl: format!("self,{},oxib", setting.mpi.shared_memory()) };
    let other = SegmentFolder::create()?;
    let job = only_rank_1(setting, &transport, "SOFTIB_DIR=$OTHER")?
        .variable("OTHER", &other.path().to_string_lossy());
    let finished = passes(&job, "sendrecv", DEADLINE)?;
    if finished.output.contains("SOFTIB_DIR") { Err(job.explain(&finished)) } else { Ok(()) }
}

fn real_verbs(setting: &Setting) -> Result<()> {
    let preload = setting.target.join("oxib").join("verbs").join("libsoftib-preload.so");
    let mut command = Command::new("ibv_devinfo");
    command.args(["-d", "softib0"]).env("LD_PRELOAD", preload).env("SOFTIB_DIR", setting.segments.path());
    command.env("SOFTIB_REAL_VERBS", "/no/such/library.so");
    let mut answer =
        Answer::new(&["SOFTIB_REAL_VERBS=\"/no/such/library.so\"", "No such file", "PORT_ACTIVE"]);
    let finished = run(&mut command, Limits::deadline(DEADLINE), &mut |line| answer.line(line))?;
    answer.judge(
        setting,
        &finished,
        false,
        &format!("`{command:?}` {}:\n{}", finished.describe(), finished.output),
    )
}

/// Open MPI's error handler would print the text again that it is handed.
fn said_once(setting: &Setting) -> Result<()> {
    let job = setting.job(3, "dies")?.arguments(["kill"]);
    let finished = job.run(Limits::deadline(DEADLINE), &mut |_| {})?;
    setting.segments.clear();
    let told = finished.output.lines().filter(|line| line.contains("connection to rank"));
    let mut speakers: Vec<&str> = told.map(|line| line.split(']').next().unwrap_or(line)).collect();
    let said = speakers.len();
    speakers.sort_unstable();
    speakers.dedup();
    if speakers.len() == said { Ok(()) } else { Err(job.explain(&finished)) }
}

/// As a user would paste it: the line of the message, in a shell.
fn recommended(setting: &Setting) -> Result<()> {
    let job = setting.job(2, "sendrecv")?.parameter("btl_oxib_mtu", "1000");
    let finished = job.run(Limits::deadline(DEADLINE), &mut |_| {})?;
    let mut quoted = finished
        .output
        .lines()
        .filter(|line| line.contains("ompi_info --param"))
        .map(|line| line.trim_matches('"'));
    let command = quoted.next().context("no command is recommended")?;
    let folder =
        setting.mpi.tool("ompi_info").parent().map(|folder| folder.display().to_string()).unwrap_or_default();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let listed = run(
        Command::new("/bin/sh").args(["-c", command]).env("PATH", path),
        Limits::deadline(DEADLINE),
        &mut |_| {},
    )?;
    let known = ["btl_oxib_mtu", "btl_oxib_receive_queues", "rd_num", "rd_rsv"];
    let all = known.iter().all(|name| listed.output.contains(name));
    if all {
        Ok(())
    } else {
        Err(Failure(format!("`{command}` {}:\n{}", listed.describe(), tail(&listed.output, 20))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_complete_when_its_last_word_has_come() {
        let mut answer = Answer::new(&["one", "two"]);
        answer.line("two");
        assert_eq!(answer.missing, ["one"]);
        answer.line("one and two");
        assert!(answer.missing.is_empty() && answer.complete > Duration::ZERO);
    }

    #[test]
    fn the_table_has_rows_enough_and_each_says_something() {
        let words = PARAMETERS.iter().map(|row| row.2).chain(VARIABLES.iter().map(|row| row.2));
        let words = words
            .chain(LIMITED.iter().chain(LIMITED_RANKS).map(|row| row.1))
            .chain(AT_ODDS.iter().map(|row| row.1));
        let rows: Vec<_> = words.chain(MOUNTED.iter().map(|row| row.1)).collect();
        assert!(rows.len() >= 50 && rows.iter().all(|words| !words.is_empty()), "{}", rows.len());
    }
}
