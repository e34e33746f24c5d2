//! mpi4py's own tests, by the hundred, from its source distribution, measured against the same run over tcp.
//!
//! Some of them fail or are skipped on any transport (Debian's Open MPI 4.1 has gaps of its own), so the rule is: a test that is
//! ok over `self,tcp` on every rank is ok over the transport under test on every rank. That catches failures, hangs, tests
//! that are suddenly skipped and tests that never ran. The tcp run is kept below target/, by versions and number of ranks.
//!
//! The tests run with MPI_THREAD_MULTIPLE, mpi4py's default. One-sided ones can't where tcp is measured with 4.1: osc/pt2pt refuses that
//! level, and osc/rdma wants a transport with atomics.
//! test_spawn is left out: it needs minutes of process starts and fails over tcp too; tests/mpi/spawn.c is ours.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::failure::Context;
use crate::layouts::{DEFAULT, Layout};
use crate::mpirun::{Job, Transport, indent, tail};
use crate::process::{Limits, run};
use crate::suite::{Case, Setting};
use crate::{Failure, Result, say};

/// A selection of test modules.
struct Group {
    name: &'static str,
    /// Arguments of mpi4py's main.py.
    select: &'static [&'static str],
    one_sided: OneSided,
}

/// The component for one-sided communication.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OneSided {
    /// It does not matter.
    Any,
    /// The one that tcp can do, too.
    Common,
    /// osc/rdma, against what the other one does over tcp.
    Rdma,
}

impl OneSided {
    fn component(self, common: &'static str, over_tcp: bool) -> Option<&'static str> {
        match self {
            OneSided::Any => None,
            OneSided::Rdma if !over_tcp => Some("rdma"),
            OneSided::Common | OneSided::Rdma => Some(common),
        }
    }
}

const GROUPS: [Group; 4] = [
    Group {
        name: "point-to-point",
        select: &["-i", r"test_(p2p_|request|status|msgzero|pack|util_pkl5|threads)"],
        one_sided: OneSided::Any,
    },
    Group { name: "collective", select: &["-i", r"test_(cco_|op\b)"], one_sided: OneSided::Any },
    Group {
        name: "one-sided",
        select: &["--no-threads", "-i", r"test_(rma|win)"],
        one_sided: OneSided::Common,
    },
    Group {
        name: "one-sided by RDMA",
        select: &["--no-threads", "-i", r"test_(rma|win)"],
        one_sided: OneSided::Rdma,
    },
];

const REST: Group = Group {
    name: "remaining",
    select: &["-e", r"test_(p2p_|request|status|msgzero|pack|util_pkl5|threads|cco_|op\b|rma|win|spawn)"],
    one_sided: OneSided::Any,
};

/// How long a test may be silent. Ranks that wait yield their processor: beside a program that never does, each wait takes a
/// scheduler's slice, and a test of a second takes a minute.
const SECONDS_PER_TEST: &str = "300";
const DEADLINE_SECONDS: u64 = 3600;

/// Quick: every group with 2 ranks and every layout, with 3 and 4 ranks and the default layout; the remaining ones once.
/// All: everything.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let mut cases = Vec::new();
    for layout in &setting.layouts {
        let all = setting.all || layout.name == DEFAULT;
        let ranks: &[usize] = if all { &[2, 3, 4] } else { &[2] };
        // 5.0 has but one component, and so has a transport without atomics.
        let twice = setting.mpi.major() < 5 && setting.transport.needs_plugin();
        let groups = GROUPS.iter().filter(|group| twice || group.one_sided != OneSided::Rdma);
        cases.extend(groups.flat_map(|group| ranks.iter().map(|ranks| case(layout, *ranks, group))));
        let rest = if setting.all { ranks } else { &ranks[..usize::from(all)] };
        cases.extend(rest.iter().map(|ranks| case(layout, *ranks, &REST)));
    }
    cases
}

fn case(layout: &Layout, ranks: usize, group: &'static Group) -> Case {
    let layout = layout.clone();
    let name = format!(
        "mpi4py's {} tests do as well as over tcp ({ranks} ranks, layout {})",
        group.name, layout.name
    );
    Case::new(name, move |setting| compare(setting, group, ranks, &layout))
}

/// Test name to the worst that happened to it on any rank.
type Outcomes = BTreeMap<String, String>;

/// A run over tcp, kept; measured again when the selection has changed.
struct Baseline {
    select: Vec<String>,
    outcomes: Outcomes,
}

impl Baseline {
    /// What [`text`](Self::text) wrote; `None` for anything else.
    fn parse(text: &str) -> Option<Baseline> {
        let value: Value = serde_json::from_str(text).ok()?;
        let word = |value: &Value| value.as_str().map(str::to_owned);
        let select = value["select"].as_array()?.iter().map(word).collect::<Option<_>>()?;
        let outcomes = value["outcomes"].as_object()?.iter();
        let outcomes = outcomes.map(|(test, outcome)| Some((test.clone(), word(outcome)?)));
        Some(Baseline { select, outcomes: outcomes.collect::<Option<_>>()? })
    }

    fn text(&self) -> String {
        format!("{:#}\n", json!({ "select": self.select, "outcomes": self.outcomes }))
    }
}

fn compare(setting: &Setting, group: &Group, ranks: usize, layout: &Layout) -> Result<()> {
    let suite = Suite::prepare(setting)?;
    let required = suite.baseline(setting, group, ranks)?;
    let job = suite.job(setting, &setting.transport, group, ranks).parameters(&layout.parameters());
    let (outcomes, output) = suite.outcomes(job, ranks)?;
    let worse: Vec<String> = required
        .iter()
        .filter(|(_, outcome)| outcome.as_str() == "ok")
        .filter_map(|(test, _)| worse_than_ok(test, outcomes.get(test)))
        .collect();
    if worse.is_empty() {
        return Ok(());
    }
    let list = worse.join("\n");
    Err(Failure(format!(
        "{} of {} tests do worse than over tcp:\n{}\n{output}",
        worse.len(),
        required.len(),
        indent(&list)
    )))
}

fn worse_than_ok(test: &str, outcome: Option<&String>) -> Option<String> {
    match outcome.map(String::as_str) {
        Some("ok") => None,
        Some(other) => Some(format!("{other:<8}{test}")),
        None => Some(format!("{:<8}{test}", "not run")),
    }
}

/// mpi4py, built against this machine's Open MPI, and its tests.
struct Suite {
    folder: PathBuf,
    /// "mpi4py-4.1.2"
    version: String,
    requirements: PathBuf,
    runner: PathBuf,
    mpicc: PathBuf,
    /// The component for one-sided communication that both transports can do.
    one_sided: &'static str,
}

impl Suite {
    /// Builds mpi4py unless that has been done for these versions. A build that failed is not tried again by the next case.
    fn prepare(setting: &Setting) -> Result<Suite> {
        static FAILED: Mutex<BTreeMap<PathBuf, Failure>> = Mutex::new(BTreeMap::new());
        let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
        let suite = Suite::find(setting)?;
        if let Some(Failure(text)) = failed.get(&suite.folder) {
            return Err(Failure(format!("mpi4py could not be built, as said above: {}", tail(text, 1))));
        }
        if suite.folder.join("complete").exists() {
            return Ok(suite);
        }
        let built = suite.build();
        built
            .inspect_err(|failure| drop(failed.insert(suite.folder.clone(), failure.clone())))
            .map(|()| suite)
    }

    fn find(setting: &Setting) -> Result<Suite> {
        let requirements = setting.sources.join("mpi4py/requirements.txt");
        let text = std::fs::read_to_string(&requirements)
            .context(format_args!("cannot read {}", requirements.display()))?;
        let version = text.split_whitespace().next().unwrap_or("mpi4py").replace("==", "-");
        let folder = setting.target.join("oxib").join(format!("{version}-openmpi-{}", setting.mpi.version()));
        Ok(Suite {
            folder,
            version,
            requirements,
            runner: setting.sources.join("mpi4py/run.py"),
            mpicc: setting.mpi.tool("mpicc"),
            one_sided: setting.mpi.one_sided(),
        })
    }

    fn build(&self) -> Result<()> {
        let at = |name: &str| self.folder.join(name).to_string_lossy().into_owned();
        let (venv, pip, archive) = (at("venv"), at("venv/bin/pip"), format!("{}.tar.gz", at(&self.version)));
        let (version, requirements) = (&self.version, self.requirements.to_string_lossy());
        let folder = self.folder.to_string_lossy();
        say!("building {version} from its source distribution (once; about a minute)");
        std::fs::create_dir_all(&self.folder).context(format_args!("cannot create {folder}"))?;
        step(&["/usr/bin/python3", "-m", "venv", "--clear", &venv])?;
        let only_source =
            ["--no-deps", "--no-binary", "mpi4py", "--require-hashes", "-r", &requirements, "-d", &folder];
        step(&[&[pip.as_str(), "download"], &only_source[..]].concat())?;
        step(&["tar", "-xzf", &archive, "-C", &folder])?;
        let mpicc = format!("MPICC={}", self.mpicc.display());
        step(&["env", "CFLAGS=-O0", &mpicc, &pip, "install", "--no-deps", &archive])?;
        std::fs::write(self.folder.join("complete"), "").context("cannot mark the build as complete")
    }

    fn job(&self, setting: &Setting, transport: &Transport, group: &Group, ranks: usize) -> Job {
        let over_tcp = !transport.needs_plugin();
        let job = setting.foreign_job(ranks, transport, self.folder.join("venv/bin/python")).foreign();
        let job = job.arguments([self.runner.to_string_lossy(), self.tests().to_string_lossy()]);
        let job = job
            .arguments([self.results().to_string_lossy().as_ref(), SECONDS_PER_TEST])
            .arguments(group.select);
        match group.one_sided.component(self.one_sided, over_tcp) {
            Some(component) => job.parameter("osc", component),
            None => job,
        }
    }

    fn tests(&self) -> PathBuf {
        self.folder.join(&self.version).join("test")
    }

    fn results(&self) -> PathBuf {
        self.folder.join("results")
    }

    /// The outcomes over tcp, measured once.
    fn baseline(&self, setting: &Setting, group: &Group, ranks: usize) -> Result<Outcomes> {
        let name = if group.one_sided == OneSided::Rdma { "one-sided" } else { group.name };
        let file = self.folder.join(format!("tcp-{name}-{ranks}-ranks.json"));
        let known = std::fs::read_to_string(&file).ok().and_then(|text| Baseline::parse(&text));
        if let Some(baseline) = known.filter(|baseline| baseline.select == group.select) {
            return Ok(baseline.outcomes);
        }
        let (outcomes, output) =
            self.outcomes(self.job(setting, &Transport::new("tcp"), group, ranks), ranks)?;
        let ok = outcomes.values().filter(|outcome| *outcome == "ok").count();
        if ok < 10 {
            return Err(Failure(format!("only {ok} tests are ok over tcp, which says nothing:\n{output}")));
        }
        let select = group.select.iter().map(|word| (*word).to_owned()).collect();
        let baseline = Baseline { select, outcomes };
        std::fs::write(&file, baseline.text()).context(format_args!("cannot write {}", file.display()))?;
        Ok(baseline.outcomes)
    }

    /// Runs the tests. A job that ends badly is no error here: what its tests did is in the files.
    fn outcomes(&self, job: Job, ranks: usize) -> Result<(Outcomes, String)> {
        let results = self.results();
        let _there_may_be_none = std::fs::remove_dir_all(&results);
        std::fs::create_dir_all(&results).context(format_args!("cannot create {}", results.display()))?;
        let finished = job.run(Limits::deadline(DEADLINE_SECONDS), &mut |_| {})?;
        if !finished.leftovers.is_empty() {
            return Err(job.explain(&finished));
        }
        let mut outcomes = Outcomes::new();
        for rank in 0..ranks {
            let text = std::fs::read_to_string(results.join(format!("rank-{rank}"))).unwrap_or_default();
            for (test, outcome) in parse(&text) {
                merge(&mut outcomes, test, outcome);
            }
        }
        Ok((outcomes, job.explain(&finished).0))
    }
}

/// Every test that began, and what its later line says; "stuck" without one.
fn parse(log: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for (word, test) in log.lines().filter_map(|line| line.split_once(' ')) {
        let word = if word == "begin" { "stuck" } else { word };
        let known = outcomes.entry(test.to_owned()).or_insert_with(|| word.to_owned());
        let settled: BTreeSet<&str> = ["fail", "error"].into();
        if !settled.contains(known.as_str()) {
            word.clone_into(known);
        }
    }
    outcomes
}

/// Ok only where every rank says so.
fn merge(outcomes: &mut Outcomes, test: String, outcome: String) {
    let known = outcomes.entry(test).or_insert_with(|| outcome.clone());
    if known == "ok" {
        *known = outcome;
    }
}

fn step(words: &[&str]) -> Result<()> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    let finished = run(&mut command, Limits::deadline(900), &mut |_| {})?;
    if finished.ok() {
        return Ok(());
    }
    let (what, output) = (words.join(" "), indent(&finished.output));
    Err(Failure(format!(
        "{what}\n  {}; mpi4py comes from the Python index, which has to be reachable:\n{output}",
        finished.describe()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(pairs: &[(&str, &str)]) -> Outcomes {
        pairs.iter().map(|(test, outcome)| ((*test).to_owned(), (*outcome).to_owned())).collect()
    }

    #[test]
    fn a_test_without_an_end_was_stuck_and_a_failed_subtest_is_a_failure() {
        let log = "begin a\nok a\nbegin b\nskip b\nbegin c\nfail c\nok c\nbegin d\n";
        assert_eq!(parse(log), outcomes(&[("a", "ok"), ("b", "skip"), ("c", "fail"), ("d", "stuck")]));
    }

    #[test]
    fn the_worst_rank_decides() {
        let mut all = outcomes(&[("a", "ok"), ("b", "fail")]);
        merge(&mut all, "a".to_owned(), "stuck".to_owned());
        merge(&mut all, "b".to_owned(), "ok".to_owned());
        assert_eq!(all, outcomes(&[("a", "stuck"), ("b", "fail")]));
    }

    #[test]
    fn anything_but_ok_is_worse_than_ok() {
        assert_eq!(worse_than_ok("t", Some(&"ok".to_owned())), None);
        assert_eq!(worse_than_ok("t", Some(&"skip".to_owned())), Some("skip    t".to_owned()));
        assert_eq!(worse_than_ok("t", None), Some("not run t".to_owned()));
    }
}
