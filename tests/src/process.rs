//! One child and everything it starts: output captured line by line, a deadline, no leftovers.
//!
//! A child leads a process group of its own. That is not enough for `mpirun`, which gives every rank a group of its own:
//! so each run also carries a unique `OXIB_RUN=...` in its environment, which all descendants inherit, and what is
//! still alive afterwards is found by it in /proc. Only such processes are ever signalled.
//!
//!     deadline, silence,
//!     Ctrl-C               ->  SIGTERM to the group (mpirun ends its ranks)  ->  5 s  ->  SIGKILL to all that carry the mark
//!     normal end           ->  what has the mark 2 s later is a leftover: reported, killed

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::failure::Context;
use crate::{Result, output, trace};

const SIGSEGV: i32 = 11;
const MARK: &str = "OXIB_RUN";
const GRACE_AFTER_TERM: Duration = Duration::from_secs(5);
const GRACE_AFTER_EXIT: Duration = Duration::from_secs(2);
/// Longer than any caller waits; an Instant can be that far away.
const NEVER: Duration = Duration::from_secs(30 * 24 * 3600);
const TICK: Duration = Duration::from_millis(20);

/// How long a child may take, and how long it may say nothing.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// From start to end.
    pub deadline: Duration,
    /// Between two lines of output; `None`: silence is fine.
    pub silence: Option<Duration>,
}

impl Limits {
    /// Only a deadline.
    pub fn deadline(seconds: u64) -> Self {
        Limits { deadline: Duration::from_secs(seconds), silence: None }
    }

    /// As long as it takes, if only it says something every now and then.
    pub fn silence(seconds: u64) -> Self {
        Limits { deadline: NEVER, silence: Some(Duration::from_secs(seconds)) }
    }
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself, with this exit code.
    Exit(i32),
    /// By this signal, which we did not send.
    Signal(i32),
    /// We ended it: the deadline passed, or it was silent for too long.
    TimedOut(Duration),
}

/// A child that has ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Its number.
    pub pid: u32,
    /// How it ended.
    pub end: End,
    /// Standard output and standard error, in order of arrival.
    pub output: String,
    /// Start to end.
    pub took: Duration,
    /// Descendants that outlived it ("pid 12 name"); they have been killed since.
    pub leftovers: Vec<String>,
    /// When it was stopped, none of its descendants ran any more.
    pub deserted: bool,
}

impl Finished {
    /// Exit code 0, and no process left behind.
    pub fn ok(&self) -> bool {
        self.end == End::Exit(0) && self.leftovers.is_empty()
    }

    /// The ranks have ended, and mpirun itself has gone wrong, as it says: where help messages of several ranks come at the same time, Open
    /// MPI 4.1 with PMIx 4 may damage what it has of them, lose some, end by SIGSEGV, or stand still (docs/bugs/README.md).
    pub fn launcher_failed(&self) -> bool {
        let says = self.output.contains("ORTE_ERROR_LOG") && self.output.contains("show_help.c");
        let ended = match self.end {
            End::Exit(code) => code != 0,
            End::Signal(signal) => signal == SIGSEGV,
            End::TimedOut(_) => self.deserted,
        };
        says && ended && self.no_other_was_signalled()
    }

    /// The ranks have ended, and mpirun, which is this child, was ended by SIGSEGV in PMIx_server_finalize, which it
    /// calls when its job is over: Open MPI 4.1 with PMIx 4 (docs/bugs/README.md). Its exit code is lost.
    pub fn launcher_crashed_at_its_end(&self) -> bool {
        let stack: Vec<&str> = trace::frames(&self.output, self.pid).collect();
        let within = |name: &str| stack.iter().any(|frame| frame.contains(name));
        let at_its_end = within("(PMIx_server_finalize+") && !within("mca_btl_oxib");
        self.end == End::Signal(SIGSEGV) && at_its_end && self.no_other_was_signalled()
    }

    /// No rank is left, or was ended by a signal: it would say so, or mpirun would.
    fn no_other_was_signalled(&self) -> bool {
        let alone = trace::signalled(&self.output).all(|pid| pid == self.pid);
        alone && !self.output.contains("exited on signal") && self.leftovers.is_empty()
    }

    /// The end, as a clause: "ended with exit code 1".
    pub fn describe(&self) -> String {
        let end = match self.end {
            End::Exit(code) => format!("ended with exit code {code}"),
            End::Signal(signal) => format!("was ended by signal {signal}"),
            End::TimedOut(after) => {
                format!("did not end (or say anything) in time and was stopped after {after:.0?}")
            }
        };
        if self.leftovers.is_empty() {
            return end;
        }
        format!("{end} and left processes behind: {}", self.leftovers.join(", "))
    }
}

/// Runs `command` to its end. `watch` sees every line as it comes.
///
/// # Errors
/// Only when the child cannot be started; how it ended is in [`Finished`].
pub fn run(command: &mut Command, limits: Limits, watch: &mut dyn FnMut(&str)) -> Result<Finished> {
    let mark = unique_mark();
    let began = Instant::now();
    let mut child = command
        .env(MARK, &mark)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context(format_args!("cannot start {}", command.get_program().to_string_lossy()))?;
    let lines = read_lines(&mut child);
    let mut output = String::new();
    let end = follow(&mut child, &lines, limits, &mut |line| {
        output.push_str(line);
        output.push('\n');
        watch(line);
    });
    let too_long = matches!(end, Followed::TooLong);
    let deserted = too_long && surely_marked(&mark).iter().all(|(pid, _)| *pid == child.id());
    let leftovers = clean_up(child.id(), &mark, too_long);
    let status = child.wait().context("cannot wait for a child")?;
    // All processes that could write are gone, so the pipes end as soon as their readers get to
    // run.
    while let Ok(line) = lines.recv_timeout(GRACE_AFTER_EXIT) {
        output.push_str(&line);
        output.push('\n');
        watch(&line);
    }
    let took = began.elapsed();
    Ok(Finished { pid: child.id(), end: end_of(end, status, took), output, took, leftovers, deserted })
}

/// Runs a short, trusted tool and returns its standard output, or `None` when it is missing or fails.
pub fn ask(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

enum Followed {
    Ended,
    TooLong,
}

fn unique_mark() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    format!("{}-{}-{now}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn read_lines(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(out) = child.stdout.take() {
        forward(out, sender.clone());
    }
    if let Some(err) = child.stderr.take() {
        forward(err, sender);
    }
    receiver
}

fn forward(pipe: impl Read + Send + 'static, lines: Sender<String>) {
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
            if lines.send(text).is_err() {
                return;
            }
            line.clear();
        }
    });
}

/// Hands lines on until the child has ended and its pipes are quiet, or a limit is reached.
fn follow(
    child: &mut Child,
    lines: &Receiver<String>,
    limits: Limits,
    line: &mut dyn FnMut(&str),
) -> Followed {
    let began = Instant::now();
    let mut last = began;
    loop {
        match lines.recv_timeout(TICK) {
            Ok(text) => {
                line(&text);
                last = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) if child.try_wait().is_ok_and(|s| s.is_some()) => {
                return Followed::Ended;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return wait_until(child, began + limits.deadline),
        }
        // Who read our output has gone, or does not want it: the child is of no use any more.
        let useless = output::is_over();
        let silent = limits.silence.is_some_and(|most| last.elapsed() > most);
        if useless || silent || began.elapsed() > limits.deadline {
            return Followed::TooLong;
        }
    }
}

fn wait_until(child: &mut Child, deadline: Instant) -> Followed {
    while Instant::now() < deadline && !output::is_over() {
        if child.try_wait().is_ok_and(|s| s.is_some()) {
            return Followed::Ended;
        }
        std::thread::sleep(TICK);
    }
    Followed::TooLong
}

/// Ends what is left of the run. Returns the processes that outlived a normal end; none after a
/// time-out, which is no fault of theirs.
fn clean_up(leader: u32, mark: &str, too_long: bool) -> Vec<String> {
    let grace = if too_long { GRACE_AFTER_TERM } else { GRACE_AFTER_EXIT };
    if too_long {
        signal("TERM", &format!("-{leader}"));
    }
    let deadline = Instant::now() + grace;
    let mut left = surely_marked(mark);
    while !left.is_empty() && Instant::now() < deadline {
        std::thread::sleep(TICK);
        left = surely_marked(mark);
    }
    for (pid, _) in &left {
        signal("KILL", &pid.to_string());
    }
    wait_for_end_of(mark);
    if too_long {
        Vec::new()
    } else {
        left.into_iter().map(|(pid, name)| format!("pid {pid} {name}")).collect()
    }
}

/// SIGKILL takes effect soon, not at once.
fn wait_for_end_of(mark: &str) {
    let deadline = Instant::now() + GRACE_AFTER_EXIT;
    while !marked(mark).is_empty() && Instant::now() < deadline {
        std::thread::sleep(TICK);
    }
}

/// `kill` is a shell builtin everywhere; a system call of our own would need unsafe code. dash knows only this spelling.
fn signal(name: &str, target: &str) {
    let mut kill = Command::new("/bin/sh");
    kill.args(["-c", "kill -s \"$1\" -- \"$2\"", "kill", name, target]);
    let _gone_already_is_fine =
        kill.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Living processes whose environment carries the mark. Zombies have no environment, so they do not count.
fn marked(mark: &str) -> Vec<(u32, String)> {
    let needle = format!("{MARK}={mark}");
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| has_variable(*pid, needle.as_bytes())).map(|pid| (pid, name_of(pid))).collect()
}

/// As [`marked`], with a second look before it finds no process: one in the middle of execve(2)
/// shows no environment.
fn surely_marked(mark: &str) -> Vec<(u32, String)> {
    let found = marked(mark);
    if !found.is_empty() {
        return found;
    }
    std::thread::sleep(TICK);
    marked(mark)
}

fn has_variable(pid: u32, needle: &[u8]) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == needle)
}

fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

fn end_of(followed: Followed, status: ExitStatus, took: Duration) -> End {
    match (followed, status.code(), status.signal()) {
        (Followed::TooLong, ..) => End::TimedOut(took),
        (Followed::Ended, Some(code), _) => End::Exit(code),
        (Followed::Ended, None, signal) => End::Signal(signal.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limits: Limits) -> Finished {
        run(Command::new("/bin/sh").args(["-c", script]), limits, &mut |_| {}).unwrap()
    }

    /// A process that is gone, a zombie or about to be one has no memory, hence no environment.
    fn alive(pid: &str) -> bool {
        std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| !environment.is_empty())
    }

    const INTERRUPTED: &str = "OXIB_INTERRUPTED";

    /// Says which processes it has started; does nothing when the test runner calls it.
    #[test]
    fn interrupted_child() {
        if std::env::var_os(INTERRUPTED).is_none() {
            return;
        }
        crate::interrupt::watch();
        let script = "setsid sleep 45 & echo started $!; sleep 45";
        let mut command = Command::new("/bin/sh");
        let finished = run(command.args(["-c", script]), Limits::deadline(40), &mut |line| {
            crate::output::said(format_args!("{line}"))
        })
        .unwrap();
        assert!(matches!(finished.end, End::TimedOut(_)) && finished.took < Duration::from_secs(30));
        assert_eq!(crate::interrupt::signal(), Some(15));
    }

    #[test]
    fn a_signal_ends_what_runs_and_what_that_has_started() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process::tests::interrupted_child", "--nocapture"])
            .env(INTERRUPTED, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(|line| line.ok());
        let started =
            lines.by_ref().find_map(|line| Some(line.split_once("started ")?.1.to_owned())).unwrap();
        let begin = Instant::now();
        while !alive(&started) {
            assert!(begin.elapsed() < Duration::from_secs(10), "{started} is not there");
        }
        signal("TERM", &child.id().to_string());
        let said: Vec<String> = lines.collect();
        assert!(child.wait().unwrap().success(), "{said:?}");
        assert!(!alive(&started), "{started}");
    }

    #[test]
    fn output_of_both_streams_and_the_exit_code_are_kept() {
        let finished = shell("echo one; echo two >&2; exit 7", Limits::deadline(10));
        assert_eq!(finished.end, End::Exit(7));
        assert!(
            finished.output.contains("one\n") && finished.output.contains("two\n"),
            "{}",
            finished.output
        );
    }

    #[test]
    fn a_child_that_passes_its_deadline_is_ended_with_all_its_descendants() {
        let limits = Limits { deadline: Duration::from_millis(200), silence: None };
        let finished = shell("setsid sleep 45 & echo $!; sleep 45", limits);
        assert!(matches!(finished.end, End::TimedOut(_)), "{:?}", finished.end);
        assert!(finished.took < Duration::from_secs(30), "{:?}", finished.took);
        assert!(!alive(finished.output.trim()), "{}", finished.output);
    }

    #[test]
    fn silence_beyond_the_limit_ends_a_child_before_its_deadline() {
        let limits = Limits { deadline: Duration::from_secs(600), silence: Some(Duration::from_millis(200)) };
        let finished = shell("echo once; sleep 45", limits);
        assert!(matches!(finished.end, End::TimedOut(_)), "{:?}", finished.end);
        assert_eq!(finished.output, "once\n");
    }

    #[test]
    fn a_child_that_speaks_now_and_then_is_not_silent_however_long_it_takes() {
        let limits = Limits { silence: Some(Duration::from_secs(2)), ..Limits::silence(2) };
        let finished = shell("for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done", limits);
        assert_eq!(finished.end, End::Exit(0), "{:?}", finished.took);
    }

    #[test]
    fn a_process_left_behind_in_a_session_of_its_own_is_found_named_and_killed() {
        let finished = shell("setsid sleep 45 >/dev/null 2>&1 & echo $!", Limits::deadline(30));
        assert_eq!(finished.end, End::Exit(0));
        assert_eq!(finished.leftovers.len(), 1, "{:?}", finished.leftovers);
        assert!(finished.leftovers[0].ends_with("sleep"), "{:?}", finished.leftovers);
        assert!(!finished.ok());
        assert!(!alive(finished.output.trim()), "{}", finished.output);
    }

    #[test]
    fn a_launcher_has_failed_if_it_says_so_and_runs_alone() {
        const SAYS: &str = "echo 'ORTE_ERROR_LOG: Out of resource in file show_help.c at line 501'";
        let limits = Limits { deadline: Duration::from_millis(200), silence: None };
        let failed = |script: &str| shell(script, limits).launcher_failed();
        assert!(failed(&format!("{SAYS}; exec sleep 45")));
        assert!(failed(&format!("{SAYS}; kill -s SEGV $$")));
        assert!(!failed(&format!("{SAYS}; sleep 45 & exec sleep 45")), "its rank stands still");
        assert!(!failed("exec sleep 45"), "it does not say so");
        assert!(!failed(SAYS), "it has ended well");
        let crash = "echo '[vm:1] *** Process received signal ***'";
        assert!(!failed(&format!("{SAYS}; {crash}; kill -s SEGV $$")), "a rank has crashed");
    }

    /// As an mpirun that writes this, with its own number for PID, and is ended by SIGSEGV.
    fn crashes(text: &str, then: &str) -> bool {
        let script = format!("sed s/PID/$$/ <<'END'\n{text}\nEND\n{then}");
        shell(&script, Limits::deadline(10)).launcher_crashed_at_its_end()
    }

    #[test]
    fn a_launcher_that_crashes_in_pmix_when_its_ranks_have_ended_is_told_from_all_other_crashes() {
        const RANK: &str = "\
[vm:1] *** Process received signal ***
[vm:1] Signal: Segmentation fault (11)
[vm:1] [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x3c050)[0x7f566f416050]
[vm:1] *** End of error message ***";
        const LAUNCHER: &str = "\
[vm:1] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
[vm:1] ***    and potentially your MPI job)
[vm:PID] *** Process received signal ***
[vm:PID] Signal: Segmentation fault (11)
[vm:PID] Signal code: Address not mapped (1)
[vm:PID] Failing at address: (nil)
[vm:PID] [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x3c050)[0x7f566f416050]
[vm:PID] [ 1] /lib/x86_64-linux-gnu/libpmix.so.2(PMIx_server_finalize+0xb08)[0x7f566c47d118]
[vm:PID] [ 3] /lib/x86_64-linux-gnu/libopen-rte.so.40(pmix_server_finalize+0xa0)[0x7f566f6f3de0]
[vm:PID] [ 5] /lib/x86_64-linux-gnu/libopen-rte.so.40(orte_finalize+0x5d)[0x7f566f6c2d7d]
[vm:PID] [ 6] mpirun(+0x13ea)[0x555fb83453ea]
[vm:PID] *** End of error message ***";
        const SEGV: &str = "kill -s SEGV $$";
        assert!(crashes(LAUNCHER, SEGV));
        assert!(!crashes(LAUNCHER, "kill -s ABRT $$") && !crashes(LAUNCHER, "exit 139"), "another end");
        assert!(!crashes(LAUNCHER, &format!("sleep 45 & {SEGV}")), "a rank is left");
        assert!(!crashes(&format!("{RANK}\n{LAUNCHER}"), SEGV), "a rank has crashed as well");
        let rank_in_pmix = LAUNCHER.replace("vm:PID", "vm:1");
        assert!(!crashes(&rank_in_pmix, SEGV) && !crashes(RANK, SEGV), "the trace is a rank's");
        let noticed = "mpirun noticed that process rank 1 with PID 1 on node vm exited on signal 9 (Killed).";
        assert!(!crashes(&format!("{noticed}\n{LAUNCHER}"), SEGV), "a rank was killed");
        let elsewhere = LAUNCHER.replace("PMIx_server_finalize", "PMIx_server_init");
        assert!(!crashes(&elsewhere, SEGV), "not at its end");
        let in_plugin = LAUNCHER.replace("libc.so.6(", "mca_btl_oxib.so(");
        assert!(!crashes(&in_plugin, SEGV), "in the plugin");
        assert!(!crashes("nothing", SEGV), "no trace");
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error_that_names_it() {
        let error = run(&mut Command::new("/no/such/program"), Limits::deadline(1), &mut |_| {}).unwrap_err();
        assert!(error.0.contains("/no/such/program"), "{error}");
    }
}
