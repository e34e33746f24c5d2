//! rdma-core's own tests (pyverbs) over the drop-in libibverbs, held against a list in the repository.
//!
//! Debian ships them as documentation of python3-pyverbs, partly compressed; they are unpacked below target/. `tests/pyverbs/run.py`
//! runs all but those for one vendor's hardware and logs what became of each. `tests/pyverbs/expected.txt` says what should:
//!
//! ```text
//!   tests.test_pd.PDTest.test_alloc_pd          pass
//!   tests.test_flow.FlowTest.test_ipv4_...      cannot apply: steers raw packets; a software device has none
//!   tests.test_mr.MWTest.test_mw_type1          lacks: memory windows
//! ```
//!
//! They run twice: over an InfiniBand port and over an Ethernet (RoCE) port. `cannot apply on ethernet: REASON` excuses one of the two,
//! `cannot apply without huge pages: REASON` a machine that has none.
//!
//! `up to rdma-core 44: ` and `from rdma-core 45: ` before any of these: the line is about those releases of the tests only.
//!
//! A test that is not excused there must pass: a skip is a failure, and so is a test that no longer runs. One that cannot apply may
//! be skipped, never fail; what the device lacks, and could have, is counted apart. One that is excused and passes is
//! reported, so that the list stays honest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Context;
use crate::mpirun::{indent, tail};
use crate::process::{Limits, ask, run};
use crate::suite::{Case, Setting, verbs};
use crate::{Failure, Result, say};

const DOCUMENTATION: &str = "/usr/share/doc/rdma-core/tests";
const PACKAGE: &str = "python3-pyverbs";
/// Debian's own: its packages are not for another Python that may come first in the PATH.
const PYTHON: &str = "/usr/bin/python3";
const SECONDS_PER_TEST: &str = "30";
const SECONDS_PER_RUN: u64 = 300;
/// The interface whose address the tests of the connection manager use.
const INTERFACE: &str = "lo";
/// Most that a test allocates, of 2 MiB.
const HUGE_PAGES: u32 = 16;

/// One case for each kind of port: all of them take a second or two.
pub fn cases(_: &Setting) -> Vec<Case> {
    let case = |link_layer: &'static str| {
        let name = format!(
            "rdma-core's own tests (pyverbs) pass over the software device, but for those that cannot apply ({link_layer})"
        );
        Case::new(name, move |setting| hold(setting, link_layer))
    };
    vec![case("infiniband"), case("ethernet")]
}

/// Runs the tests and compares.
fn hold(setting: &Setting, link_layer: &str) -> Result<()> {
    let list = List::read(&setting.sources.join("pyverbs/expected.txt"), &conditions(link_layer))?;
    let (outcomes, output) = Suite::prepare(setting)?.outcomes(setting, link_layer)?;
    let verdict = list.judge(&outcomes);
    say!("          pyverbs ({link_layer}): {}", verdict.summary);
    for note in &verdict.notes {
        say!("          {note}");
    }
    if verdict.wrong.is_empty() {
        return Ok(());
    }
    let (wrong, output) = (indent(&verdict.wrong.join("\n")), indent(tail(&output, 60)));
    Err(Failure(format!("{}:\n{wrong}\n  the end of their output:\n{output}", verdict.summary)))
}

/// What may follow `cannot apply`.
const CONDITIONS: [&str; 3] = ["on infiniband", "on ethernet", "without huge pages"];
const EXCUSE: &str = "cannot apply ";

/// Those of the conditions that hold.
fn conditions(link_layer: &str) -> Vec<String> {
    let free = |line: &str| line.strip_prefix("HugePages_Free:").and_then(|count| count.trim().parse().ok());
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let pages: u32 = memory.lines().find_map(free).unwrap_or(0);
    let huge = (pages < HUGE_PAGES).then(|| "without huge pages".to_owned());
    [format!("on {link_layer}")].into_iter().chain(huge).collect()
}

/// What the repository says about each test.
#[derive(Debug)]
struct List(BTreeMap<String, Expectation>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expectation {
    Pass,
    /// It is skipped, for what a software device, or this kind of machine, cannot have.
    CannotApply,
    /// It does not pass, for something that is still to be built.
    Lacks,
}

/// What became of a test: `pass`, `skip`, `fail`, `error`, or `stuck` if it never said; and why.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    word: String,
    why: String,
}

type Outcomes = BTreeMap<String, Outcome>;

/// The outcomes beside the list.
#[derive(Debug)]
struct Verdict {
    summary: String,
    wrong: Vec<String>,
    notes: Vec<String>,
}

impl List {
    fn read(path: &Path, here: &[String]) -> Result<List> {
        let text = std::fs::read_to_string(path).context(format_args!("cannot read {}", path.display()))?;
        List::parse(&of_release(&text, release()), here)
    }

    fn parse(text: &str, here: &[String]) -> Result<List> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut list = BTreeMap::new();
        for line in lines {
            let (test, rest) = line.split_once(' ').unwrap_or((line, ""));
            let expectation = Expectation::parse(rest.trim(), here).context(format_args!(
                "`pass`, `cannot apply: REASON` or `lacks: FEATURE` is missing: {line}"
            ))?;
            if list.insert(test.to_owned(), expectation).is_some() {
                return Err(Failure(format!("{test} is listed twice")));
            }
        }
        Ok(List(list))
    }

    fn judge(&self, outcomes: &Outcomes) -> Verdict {
        let mut verdict = Verdict { summary: String::new(), wrong: Vec::new(), notes: Vec::new() };
        let (mut passed, mut cannot, mut lacking) = (0, 0, 0);
        for (test, Outcome { word, why }) in outcomes {
            let expected = self.0.get(test).copied().unwrap_or(Expectation::Pass);
            match (word.as_str(), expected) {
                ("pass", Expectation::Pass) => passed += 1,
                ("pass", _) => {
                    passed += 1;
                    verdict.notes.push(format!("{test} passes now: take its excuse off the list"));
                }
                ("skip", Expectation::CannotApply) => cannot += 1,
                (_, Expectation::Lacks) => lacking += 1,
                _ => verdict.wrong.push(format!("{word:<8}{test}  {why}")),
            }
        }
        let absent = self.0.keys().filter(|test| !outcomes.contains_key(*test));
        verdict.wrong.extend(absent.map(|test| format!("{:<8}{test}", "not run")));
        let wrong = verdict.wrong.len();
        verdict.summary = format!(
            "{passed} of {} pass, {cannot} cannot apply, {lacking} lack something, {wrong} are wrong",
            outcomes.len()
        );
        verdict
    }
}

/// The release of the tests: the first number of the package's version. Where no dpkg knows, that of Debian 12.
fn release() -> u32 {
    let version = ask("dpkg-query", &["-W", "-f", "${Version}", PACKAGE]).unwrap_or_default();
    version.split(['.', '-', '~']).next().and_then(|number| number.parse().ok()).unwrap_or(44)
}

/// The lines that are about this release, without the words that say so.
fn of_release(text: &str, release: u32) -> String {
    let line = |line: &str| {
        let (test, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (upto, from) = ("up to rdma-core ", "from rdma-core ");
        let bound = |word: &str| {
            let (number, rest) = rest.trim().strip_prefix(word)?.split_once(": ")?;
            Some((number.parse::<u32>().ok()?, format!("{test} {rest}\n")))
        };
        match (bound(upto), bound(from)) {
            (Some((last, line)), _) => (release <= last).then_some(line),
            (_, Some((first, line))) => (release >= first).then_some(line),
            _ => Some(format!("{line}\n")),
        }
    };
    text.lines().filter_map(line).collect()
}

impl Expectation {
    fn parse(words: &str, here: &[String]) -> Option<Expectation> {
        match words.split_once(": ") {
            None if words == "pass" => Some(Expectation::Pass),
            Some(("cannot apply", _)) => Some(Expectation::CannotApply),
            Some((excuse, _))
                if CONDITIONS.iter().any(|known| excuse.strip_prefix(EXCUSE) == Some(known)) =>
            {
                let holds = here.iter().any(|condition| excuse.strip_prefix(EXCUSE) == Some(condition));
                Some(if holds { Expectation::CannotApply } else { Expectation::Pass })
            }
            Some(("lacks", _)) => Some(Expectation::Lacks),
            _ => None,
        }
    }
}

/// rdma-core's tests, unpacked.
struct Suite {
    /// Holds the Python package `tests`.
    folder: PathBuf,
    runner: PathBuf,
}

impl Suite {
    /// Unpacks them anew each time: it is a matter of milliseconds, and what an upgrade left behind is gone.
    fn prepare(setting: &Setting) -> Result<Suite> {
        let folder = setting.target.join("oxib/pyverbs");
        let _there_may_be_none = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).context(format_args!("cannot create {}", folder.display()))?;
        let from = if Path::new(DOCUMENTATION).exists() { DOCUMENTATION.into() } else { fetch(&folder)? };
        let tests = folder.join("tests");
        step(Command::new("cp").arg("-R").args([&from, &tests]))?;
        step(Command::new("gzip").args(["-d", "-f", "-r"]).arg(&tests))?;
        Ok(Suite { folder, runner: setting.sources.join("pyverbs/run.py") })
    }

    /// Runs them all, in a new process behind each test that ended its own.
    fn outcomes(&self, setting: &Setting, link_layer: &str) -> Result<(Outcomes, String)> {
        let log = self.folder.join("log");
        let (mut output, mut known) = (String::new(), 0);
        loop {
            let mut python = Command::new(PYTHON);
            python
                .arg(&self.runner)
                .args([&self.folder, &log])
                .args([SECONDS_PER_TEST, INTERFACE])
                .args(["--dev", "softib0"]);
            python.envs(verbs::environment(setting)).env("SOFTIB_LINK_LAYER", link_layer);
            let finished = run(&mut python, Limits::deadline(SECONDS_PER_RUN), &mut |_| {})?;
            output.push_str(&finished.output);
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let outcomes = parse(&text);
            if finished.ok() && !outcomes.is_empty() {
                return Ok((outcomes, output));
            }
            if outcomes.len() == known || !finished.leftovers.is_empty() {
                let end = finished.describe();
                return Err(Failure(format!("run.py {end}:\n{}", indent(tail(&output, 60)))));
            }
            known = outcomes.len();
        }
    }
}

/// Where the documentation of packages is not installed (small containers are set up so), the package itself has it.
fn fetch(folder: &Path) -> Result<PathBuf> {
    step(Command::new("apt-get").args(["-q", "download", PACKAGE]).current_dir(folder))?;
    let files = std::fs::read_dir(folder).context("cannot look for the package")?.flatten();
    let package = files.map(|file| file.path()).find(|path| path.extension().is_some_and(|end| end == "deb"));
    let unpacked = folder.join("package");
    step(Command::new("dpkg-deb").arg("-x").arg(package.context("no package came")?).arg(&unpacked))?;
    Ok(unpacked.join(DOCUMENTATION.trim_start_matches('/')))
}

fn step(command: &mut Command) -> Result<()> {
    let finished = run(command, Limits::deadline(120), &mut |_| {})?;
    if finished.ok() {
        return Ok(());
    }
    let program = command.get_program().to_string_lossy().into_owned();
    Err(Failure(format!("{program} {}:\n{}", finished.describe(), indent(&finished.output))))
}

/// Every test that began, and the worst that a later line says.
fn parse(log: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for (word, rest) in log.lines().filter_map(|line| line.split_once(' ')) {
        let (test, why) = rest.split_once('\t').unwrap_or((rest, ""));
        let word = if word == "begin" { "stuck" } else { word };
        let known = outcomes.get(test).map(|outcome: &Outcome| outcome.word.as_str());
        if !matches!(known, Some("fail" | "error")) {
            outcomes.insert(test.to_owned(), Outcome { word: word.to_owned(), why: why.to_owned() });
        }
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# a comment\n\na  pass\nb  cannot apply: no such hardware\nc  lacks: windows\ne  cannot apply on ethernet: LIDs\n";

    fn on(link_layer: &str) -> Vec<String> {
        vec![format!("on {link_layer}")]
    }

    fn verdict(log: &str) -> Verdict {
        let mut outcomes = parse(log);
        outcomes.extend(parse("pass e\t\n"));
        List::parse(LIST, &on("infiniband")).unwrap().judge(&outcomes)
    }

    #[test]
    fn what_is_not_excused_must_pass_and_skips_are_no_passes() {
        let good = verdict("begin a\t\npass a\t\nbegin b\t\nskip b\twhy\nerror c\t\n");
        assert_eq!((good.wrong.len(), good.notes.len()), (0, 0));
        assert_eq!(good.summary, "2 of 4 pass, 1 cannot apply, 1 lack something, 0 are wrong");
        assert_eq!(verdict("skip a\twhy\nskip b\t\nskip c\t\n").wrong, ["skip    a  why"]);
        assert_eq!(verdict("pass a\t\nskip b\t\nskip c\t\nfail d\tnew\n").wrong, ["fail    d  new"]);
    }

    #[test]
    fn what_cannot_apply_may_be_skipped_but_neither_fail_nor_crash() {
        assert_eq!(verdict("pass a\t\nbegin b\t\nskip c\t\n").wrong, ["stuck   b  "]);
        assert_eq!(verdict("pass a\t\nerror b\tbad\nskip c\t\n").wrong, ["error   b  bad"]);
    }

    #[test]
    fn a_listed_test_that_does_not_run_is_wrong_and_an_excused_one_that_passes_is_reported() {
        assert_eq!(verdict("skip b\t\nskip c\t\n").wrong, ["not run a"]);
        let note = verdict("pass a\t\npass b\t\nskip c\t\n");
        assert!(note.wrong.is_empty() && note.notes[0].starts_with("b passes now"), "{note:?}");
    }

    #[test]
    fn a_test_that_failed_once_has_failed_whatever_came_after() {
        assert_eq!(parse("begin a\t\nfail a\tpart\npass a\t\n")["a"].word, "fail");
    }

    #[test]
    fn an_entry_without_a_verdict_or_a_reason_is_refused() {
        for wrong in
            ["a  maybe\n", "a  cannot apply: \n", "a  cannot apply on mars: air\n", "a  pass\na  pass\n"]
        {
            assert!(List::parse(wrong, &on("ethernet")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_may_be_about_some_releases_only() {
        let text = "a  pass\nb  up to rdma-core 44: pass\nc  from rdma-core 45: lacks: windows\n";
        assert_eq!(of_release(text, 44), "a  pass\nb pass\n");
        assert_eq!(of_release(text, 56), "a  pass\nc lacks: windows\n");
    }

    #[test]
    fn an_excuse_may_be_for_one_kind_of_port() {
        let outcomes = parse("pass a\t\nskip b\t\nskip c\t\nskip e\t\n");
        let wrong =
            |link_layer: &str| List::parse(LIST, &on(link_layer)).unwrap().judge(&outcomes).wrong.len();
        assert_eq!((wrong("ethernet"), wrong("infiniband")), (0, 1));
    }
}
