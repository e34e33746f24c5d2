//! Points of a sweep: each a process in which one call fails, and what has to be true of its end.

use super::child::say;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A point that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// A point that ends with a message and takes longer has a peer that has to find out by itself.
const SOON: Duration = Duration::from_millis(500);
/// Of each function: how many calls fail, at most, in a selection and in the whole.
const SOME: u64 = 2;
const MANY: u64 = 64;

/// How often a point of each function was tried, ended as a success, ended with a message.
type Tally = BTreeMap<(&'static str, String), [u32; 3]>;

/// The functions of the C library that can be made to fail in this binary.
#[derive(Clone, Copy)]
pub struct Spy {
    /// Names, and what each says when it fails.
    pub errnos: &'static [(&'static str, i32)],
    /// How often each was called.
    pub counts: fn() -> Vec<(&'static str, u64)>,
    /// From now on, or no longer.
    pub arm: fn(bool),
}

impl Spy {
    /// What a function says when it fails; none for the device's functions.
    fn errno(self, call: &str) -> Option<i32> {
        self.errnos.iter().find(|(name, _)| *name == call).map(|(_, errno)| *errno)
    }
}

/// One call that fails.
#[derive(Clone)]
struct Point {
    manager: &'static str,
    call: String,
    number: u64,
    errno: &'static str,
    /// It is a system call, which fails so.
    system: Option<i32>,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.manager, self.call, self.number, self.errno)
    }
}

/// What is asked for, and what has come of it.
pub struct Sweep {
    asked: String,
    system: Spy,
    tally: Mutex<Tally>,
    defects: Mutex<Vec<String>>,
}

impl Sweep {
    pub fn asked(system: Spy) -> Sweep {
        let asked = std::env::var("OXIB_SWEEP").unwrap_or_default();
        Sweep { asked, system, tally: Mutex::default(), defects: Mutex::default() }
    }

    /// Counts the calls of an undisturbed run, then has them fail one by one, two points at a time.
    pub fn run(&self, manager: &'static str, dir: &Path) {
        let Some(points) = self.points(manager, dir) else { return };
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                        self.one(point, dir);
                    }
                });
            }
        });
    }

    fn points(&self, manager: &'static str, dir: &Path) -> Option<Vec<Point>> {
        let most = match self.asked.as_str() {
            "" => SOME,
            "all" | "system" => MANY,
            one => return one_point(manager, one, self.system),
        };
        let run = Run::of(manager, ("SOFTIB_FAULTS", "report"), dir);
        assert!(run.ok && run.lines("whole").next().is_some(), "undisturbed, {manager}: {}", run.output);
        let calls = run.lines("call").filter_map(|line| line.split_once(' '));
        let calls = calls.map(|(call, count)| (call.to_owned(), count.parse::<u64>().unwrap()));
        let calls = calls.filter(|(call, _)| self.asked != "system" || self.system.errno(call).is_some());
        let of = |(call, count): (String, u64)| {
            spread(count, most).into_iter().map(move |number| {
                let errno = errno_of(&call);
                let system = self.system.errno(&call);
                Point { manager, call: call.clone(), number, errno, system }
            })
        };
        Some(calls.flat_map(of).collect())
    }

    fn one(&self, point: &Point, dir: &Path) {
        let dir = dir.join(format!("{}-{}", point.call, point.number));
        std::fs::create_dir_all(&dir).unwrap();
        let run = match point.system {
            None => {
                let plan = format!("fail={}:{}:{}", point.call, point.number, point.errno);
                Run::of(point.manager, ("SOFTIB_FAULTS", &plan), &dir)
            }
            Some(_) => {
                let plan = format!("{}:{}", point.call, point.number);
                Run::of(point.manager, ("OXIB_SWEEP_SYSTEM", &plan), &dir)
            }
        };
        let verdict = run.verdict(point).and_then(|way| {
            let left: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
            if left.is_empty() { Ok(way) } else { Err(format!("left behind: {left:?}")) }
        });
        let _ = std::fs::remove_dir_all(&dir);
        let mut tally = self.tally.lock().unwrap();
        let count = tally.entry((point.manager, point.call.clone())).or_default();
        count[0] += 1;
        match verdict {
            Ok(way) => count[way] += 1,
            Err(what) => {
                let text = format!("{point}, {} ms: {what}\n{}", run.took.as_millis(), run.output);
                eprintln!("{text}");
                self.defects.lock().unwrap().push(format!("{point}: {what}"));
            }
        }
        if !["", "all", "system"].contains(&self.asked.as_str()) {
            eprintln!("{point}, {} ms:\n{}", run.took.as_millis(), run.output);
        }
    }

    /// Tells what has been tried; fails if any point has.
    pub fn conclude(self) {
        let (tally, defects) = (self.tally.into_inner().unwrap(), self.defects.into_inner().unwrap());
        for ((manager, call), [points, whole, said]) in &tally {
            println!("{manager:7} {call:26} {points:4} points, {whole:4} success, {said:4} explained");
        }
        let points: u32 = tally.values().map(|count| count[0]).sum();
        println!("{points} points, {} defects", defects.len());
        assert!(
            defects.is_empty(),
            "of {points} points {} are wrong:\n{}",
            defects.len(),
            defects.join("\n")
        );
    }
}

/// `ibcm:create_qp:3:ENOMEM`, if it is of this manager.
fn one_point(manager: &'static str, text: &str, spy: Spy) -> Option<Vec<Point>> {
    let words: Vec<&str> = text.split(':').collect();
    let [of, call, number, errno] = words[..] else { panic!("OXIB_SWEEP={text}: MANAGER:CALL:NUMBER:ERRNO") };
    let errno = Box::leak(errno.to_owned().into_boxed_str());
    (of == manager).then(|| {
        vec![Point {
            manager,
            call: call.to_owned(),
            number: number.parse().unwrap(),
            errno,
            system: spy.errno(call),
        }]
    })
}

/// At most `most` of the numbers 1 to `count`: the first half of them one after another, the others spread to the last.
fn spread(count: u64, most: u64) -> Vec<u64> {
    let near = count.min(most / 2);
    let rest = (count - near).min(most - near);
    let far = (1..=rest).map(|i| near + (count - near) * i / rest);
    (1..=near).chain(far).collect()
}

/// What a kernel or a device says when it cannot.
fn errno_of(call: &str) -> &'static str {
    match call {
        "open_device" | "rdma_create_event_channel" => "ENODEV",
        "query_device" | "query_port" | "query_gid" | "query_gid_ex" | "query_pkey" | "modify_qp"
        | "modify_srq" => "EIO",
        "get_async_event" | "get_cq_event" | "rdma_get_cm_event" => "EIO",
        "rdma_bind_addr" | "rdma_listen" => "EADDRINUSE",
        "rdma_accept" | "rdma_reject" | "rdma_disconnect" | "rdma_establish" | "rdma_notify"
        | "rdma_connect" => "EINVAL",
        call if gives_back(call) => "EBUSY",
        _ => "ENOMEM",
    }
}

/// What a function does not take back stays with the process, and what it belongs to.
fn gives_back(call: &str) -> bool {
    ["dealloc_", "dereg_", "destroy_", "close_", "rdma_destroy_"].iter().any(|start| call.starts_with(start))
}

/// A process of a point, when it has ended.
struct Run {
    ok: bool,
    took: Duration,
    output: String,
}

impl Run {
    fn of(manager: &str, (variable, plan): (&str, &str), dir: &Path) -> Run {
        let (begin, log) = (Instant::now(), dir.with_extension("output"));
        let file = File::create(&log).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child_main", "--nocapture", "--test-threads=1", "--quiet"]);
        command.env("OXIB_TEST_ROLE", "point").env("OXIB_SWEEP_MANAGER", manager).env("SOFTIB_DIR", dir);
        command.env(variable, plan).env("TMPDIR", dir).stdin(Stdio::null());
        let mut process = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        let status = loop {
            match process.try_wait().unwrap() {
                Some(status) => break status,
                None if begin.elapsed() > PATIENCE => {
                    process.kill().unwrap();
                    break process.wait().unwrap();
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let output = String::from_utf8_lossy(&std::fs::read(&log).unwrap()).into_owned();
        let _ = std::fs::remove_file(log);
        Run { ok: status.success(), took: begin.elapsed(), output: format!("{output}{status}") }
    }

    fn lines<'a>(&'a self, what: &'a str) -> impl Iterator<Item = &'a str> {
        let lines = self.output.lines().filter_map(|line| line.split_once("> ").map(|(_, line)| line));
        lines.filter_map(move |line| line.strip_prefix(what).map(str::trim))
    }

    /// What the device has not given back, or may still write to, is left to it, with a word.
    fn is_with_the_device(&self, point: &Point) -> bool {
        let told = |line: &str| line.starts_with("WARN") && line.contains("the device");
        gives_back(&point.call) || point.call == "modify_qp" && self.lines("log").any(told)
    }

    /// The software device's own connection manager uses the device, too. What then fails is a call of RDMA-CM, or the peer's request.
    fn is_of_the_manager(&self, point: &Point) -> bool {
        let its = ["get_device_list", "open_device", "alloc_pd", "query_port", "query_gid", "epoll_ctl"];
        ["rdmacm", "iwarp"].contains(&point.manager) && its.contains(&point.call.as_str())
    }

    /// 1: a success. 2: a message that says enough. Or what is wrong.
    fn verdict(&self, point: &Point) -> Result<usize, String> {
        if !self.ok {
            return Err("it ended by itself, or not at all".to_owned());
        }
        if let Some(left) = self.lines("left").next().filter(|_| !self.is_with_the_device(point)) {
            return Err(format!("left behind: {left}"));
        }
        let said = self.says_why(point);
        let whole = self.lines("whole").next().is_some();
        if self.took > SOON && !whole {
            eprintln!("{point}: the peer was not told, {} ms", self.took.as_millis());
        }
        match (whole, said) {
            (true, _) => Ok(1),
            (false, _) if said || self.is_of_the_manager(point) => Ok(2),
            (false, _) => Err("no word of it".to_owned()),
        }
    }

    /// Whether anything that was said names the call; of a system call, what it has answered.
    fn says_why(&self, point: &Point) -> bool {
        let mut said = self.lines("failed").chain(self.lines("log"));
        let Some(errno) = point.system else {
            let cm = point.call.starts_with("rdma_");
            let name = if cm { point.call.clone() } else { format!("ibv_{}", point.call) };
            return said.any(|line| line.contains(&name));
        };
        let text = std::io::Error::from_raw_os_error(errno).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        let words =
            [text, "no memory for", "file descriptor", "no space", "cannot be mapped", "can't be taken in"];
        said.any(|line| words.iter().any(|word| line.contains(word)))
    }
}

/// In the process of a point: plays, and tells how it ended and what it has left.
pub fn tell(spy: Spy, play: impl FnOnce() -> Result<(), String>) {
    log::set_logger(&Said).unwrap();
    log::set_max_level(log::LevelFilter::Debug);
    let before = [count("/proc/self/fd"), count("/proc/self/task")];
    (spy.arm)(true);
    let outcome = play();
    (spy.arm)(false);
    match outcome {
        Ok(()) => say("whole"),
        Err(text) => say(&format!("failed {}", text.replace('\n', " "))),
    }
    let after = settled(before);
    if before != after {
        say(&format!("left {before:?} descriptors and threads, and {after:?} afterwards"));
    }
    for (call, count) in softib::faults::calls().into_iter().chain((spy.counts)()) {
        say(&format!("call {call} {count}"));
    }
    let _ = std::io::stdout().flush();
}

/// Descriptors and threads, when they are `before` or a second has passed: a watchdog ends a little later than what it watches.
fn settled(before: [usize; 2]) -> [usize; 2] {
    let begin = Instant::now();
    loop {
        let now = [count("/proc/self/fd"), count("/proc/self/task")];
        if now == before || begin.elapsed() > Duration::from_secs(1) {
            return now;
        }
        std::thread::yield_now();
    }
}

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// Puts what is logged between the lines that tell.
struct Said;

impl log::Log for Said {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        println!("> log {} {}", record.level(), record.args());
    }
    fn flush(&self) {}
}
