//! The device's speed at the verbs level, between two pinned, polling processes: half round trips beside those of a ping-pong over
//! raw shared memory, bandwidth, message rate, and the doorbells that were rung (system calls).
//!
//! `cargo xtask bench --verbs`, or `cargo run --release -p softib --example pingpong -- [WINDOWS [MESSAGES [SIZE...]]]`. Windows of
//! both are taken in turns, so that both see the same machine; what is shown are medians, and the ratio is the median of each
//! pair's. A window is about a millisecond, so that other processes disturb some, not all.
//!
//! `--self [WINDOWS [SIZE...]]` shows the cost of the software alone: one thread sends to itself, a thousand messages a window. Under
//! `valgrind --tool=callgrind` the difference of two numbers of windows says how many instructions a message takes.

// A bench: it calls the C functions with what it has just made, and stops when something fails.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

mod end;
mod raw;

use end::End;
use raw::Raw;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Longest message.
const MAX: usize = 1 << 20;
const SIZES: [usize; 7] = [8, 64, 1024, 4096, 16384, 65536, MAX];
const WINDOWS: usize = 101;
const MESSAGES: usize = 1_000_000;

/// What both processes do, in the same order.
#[derive(Clone)]
struct Plan {
    windows: usize,
    messages: usize,
    sizes: Vec<usize>,
}

impl Plan {
    fn parse(words: &[String]) -> Plan {
        let numbers: Vec<usize> = words.iter().map(|word| number(word)).collect();
        let sizes = numbers.get(2..).filter(|sizes| !sizes.is_empty()).unwrap_or(&SIZES).to_vec();
        assert!(sizes.iter().all(|size| *size <= MAX), "sizes up to {MAX}");
        let number = |at: usize, default| numbers.get(at).copied().unwrap_or(default);
        Plan { windows: number(0, WINDOWS).max(1), messages: number(1, MESSAGES), sizes }
    }

    fn words(&self) -> Vec<String> {
        [self.windows, self.messages].iter().chain(&self.sizes).map(usize::to_string).collect()
    }
}

/// A word of the command line, which is a number.
fn number(word: &str) -> usize {
    word.parse().unwrap_or_else(|_| {
        eprintln!("`{word}` is no number; the words are [WINDOWS [MESSAGES [SIZE...]]] or --self [WINDOWS [SIZE...]]");
        std::process::exit(2)
    })
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.split_first() {
        Some((word, rest)) if word == "--child" => child(Path::new(&rest[0]), &Plan::parse(&rest[1..])),
        Some((word, rest)) if word == "--self" => to_self(rest),
        _ => parent(&Plan::parse(&words)),
    }
}

fn to_self(words: &[String]) {
    let numbers: Vec<usize> = words.iter().map(|word| number(word)).collect();
    let (windows, sizes) =
        numbers.split_first().map_or((WINDOWS, [].as_slice()), |(windows, sizes)| (*windows, sizes));
    pin(0);
    let mut end = End::open();
    end.connect(end.number());
    for &len in if sizes.is_empty() { &[8, 64, 4096] } else { sizes } {
        let mut once = || {
            let start = Instant::now();
            (0..1000).for_each(|_| {
                end.post_send(len);
                end.wait_recv();
            });
            start.elapsed().as_secs_f64() * 1e3
        };
        let mut windows: Vec<f64> = (0..windows.max(1)).map(|_| once()).collect();
        println!("{len:>8} bytes to self: {:.3} us a message", median(&mut windows));
    }
}

fn pin(cpu: usize) {
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

fn rounds_for(len: usize) -> usize {
    (1_000_000 / (len + 1000)).clamp(4, 1000)
}

/// Messages of a bandwidth window: a few milliseconds.
fn messages_for(len: usize) -> usize {
    ((32 << 20) / (len + 1000)).min(10_000)
}

fn child(folder: &Path, plan: &Plan) {
    // SAFETY: no pointers; the child must not poll on for ever when the parent is killed.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    pin(1);
    let mut end = End::open();
    println!("{}", end.number());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    end.connect(line.trim().parse().unwrap());
    println!("ready");
    let mut raw = Raw::open(folder, false);
    for &len in &plan.sizes {
        for _ in 0..plan.windows {
            end.rounds(rounds_for(len), len, false);
            raw.rounds(rounds_for(len), len);
        }
        for _ in 0..plan.windows.div_ceil(10) {
            end.stream(messages_for(len), len, false);
        }
    }
    end.rounds(plan.messages, 8, false);
    end.stream(plan.messages, 8, false);
    std::io::stdin().read_line(&mut line).unwrap();
}

/// What one size came to: half round trips in us, the median of their ratios, MB/s.
struct Row {
    verbs: f64,
    raw: f64,
    ratio: f64,
    bandwidth: f64,
}

fn measure(end: &mut End, raw: &mut Raw, len: usize, windows: usize) -> Row {
    let (mut verbs, mut flags) = (Vec::new(), Vec::new());
    for _ in 0..windows {
        verbs.push(window(len, |count| end.rounds(count, len, true)));
        flags.push(window(len, |count| raw.rounds(count, len)));
    }
    let mut ratios: Vec<f64> = verbs.iter().zip(&flags).map(|(verbs, raw)| verbs / raw).collect();
    let mut rates: Vec<f64> = (0..windows.div_ceil(10))
        .map(|_| {
            let start = Instant::now();
            let bytes = end.stream(messages_for(len), len, true) * len;
            bytes as f64 / start.elapsed().as_secs_f64() / 1e6
        })
        .collect();
    Row {
        verbs: median(&mut verbs),
        raw: median(&mut flags),
        ratio: median(&mut ratios),
        bandwidth: median(&mut rates),
    }
}

/// Half a round trip in microseconds.
fn window(len: usize, run: impl FnOnce(usize)) -> f64 {
    let (count, start) = (rounds_for(len), Instant::now());
    run(count);
    start.elapsed().as_secs_f64() * 1e6 / count as f64 / 2.0
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn parent(plan: &Plan) {
    let folder = tempfile_folder();
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--child").arg(&folder).args(plan.words()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    pin(0);
    let (mut to, mut from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let mut end = End::open();
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    writeln!(to, "{}", end.number()).unwrap();
    end.connect(line.trim().parse().unwrap());
    from.read_line(&mut line).unwrap();
    let mut raw = Raw::open(&folder, true);
    println!("{:>8} {:>10} {:>10} {:>6} {:>9}", "bytes", "softib us", "raw us", "ratio", "MB/s");
    for &len in &plan.sizes {
        let row = measure(&mut end, &mut raw, len, plan.windows);
        println!("{len:>8} {:>10.3} {:>10.3} {:>6.2} {:>9.0}", row.verbs, row.raw, row.ratio, row.bandwidth);
    }
    count_doorbells(&mut end, plan.messages);
    drop(to);
    child.wait().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A folder for the raw ping-pong's file, in memory like the device's segments.
fn tempfile_folder() -> std::path::PathBuf {
    Path::new(&softib::segment_dir()).join(format!("pingpong-{}", std::process::id()))
}

/// Rate of 8-byte messages, and the system calls that this process made for them.
fn count_doorbells(end: &mut End, messages: usize) {
    let before = softib::stats();
    end.rounds(messages, 8, true);
    let between = softib::stats();
    let start = Instant::now();
    let sent = end.stream(messages, 8, true);
    let seconds = start.elapsed().as_secs_f64();
    let after = softib::stats();
    println!("{messages} round trips of 8 bytes: {} doorbells", between.doorbells - before.doorbells);
    let (rate, bells) = (sent as f64 / seconds / 1e6, after.doorbells - between.doorbells);
    println!("{sent} messages of 8 bytes one way: {rate:.2} million a second, {bells} doorbells");
}
