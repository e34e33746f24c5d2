//! Two processes, each with its own service: the second one is this test binary again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod side;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use cpc::{Advert, Config, ProcessName};
use side::{Side, context, until};

const NAMES: [ProcessName; 2] = [ProcessName(7 << 32), ProcessName(7 << 32 | 1)];

/// The modex of these tests: one line of hexadecimal digits per blob.
fn write_advert(to: &mut impl Write, side: &Side) {
    let blob: String = side.service.adverts()[0].blob.iter().map(|b| format!("{b:02x}")).collect();
    writeln!(to, "advert {blob}").unwrap();
    to.flush().unwrap();
}

fn read_advert(from: &mut impl BufRead) -> Vec<Advert> {
    let hex = read_word(from, "advert ");
    let blob = (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
    vec![Advert { name: "ibcm".to_owned(), priority: 40, blob }]
}

/// Skips what the test harness prints.
fn read_word(from: &mut impl BufRead, word: &str) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(from.read_line(&mut line).unwrap(), 0, "the other process has ended");
        if let Some(at) = line.find(word) {
            return line[at + word.len()..].trim().to_owned();
        }
    }
}

fn spawn() -> (Child, ChildStdin, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    (child, stdin, BufReader::new(stdout))
}

#[test]
#[ignore = "the second process of the tests in this file"]
fn the_other_process() {
    let mut sides = [Side::open(&context(), 1, false, &Config::default())];
    sides[0].service.start().unwrap();
    write_advert(&mut std::io::stdout(), &sides[0]);
    let theirs = read_advert(&mut std::io::stdin().lock());
    let key = sides[0].add(NAMES[0], &theirs, true);
    sides[0].service.connect(key);
    until(&mut sides, "message", |s| s[0].is_done(key));
    println!("done");
    until(&mut sides, "disconnect", |s| s[0].ends[&key].disconnected);
    println!("left");
}

#[test]
fn two_processes_connect_exchange_a_message_and_part() {
    let mut sides = [Side::open(&context(), 0, false, &Config::default())];
    sides[0].service.start().unwrap();
    let (mut child, mut stdin, mut stdout) = spawn();
    let theirs = read_advert(&mut stdout);
    let key = sides[0].add(NAMES[1], &theirs, true);
    write_advert(&mut stdin, &sides[0]);
    sides[0].service.connect(key);
    until(&mut sides, "message", |s| s[0].is_done(key));
    assert_eq!(sides[0].ends[&key].received.as_deref(), Some(&NAMES[1].0.to_be_bytes()[..]));
    read_word(&mut stdout, "done");
    sides[0].service.remove_endpoint(key);
    read_word(&mut stdout, "left");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_killed_process_is_reported_and_does_not_hold_up_the_close() {
    let mut config = Config::default();
    config.ibcm.timeout = Duration::from_millis(5);
    config.ibcm.max_timeout = Duration::from_millis(20);
    let mut sides = [Side::open(&context(), 0, false, &config)];
    sides[0].service.start().unwrap();
    let (mut child, stdin, mut stdout) = spawn();
    let theirs = read_advert(&mut stdout);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(stdin);
    let key = sides[0].add(NAMES[1], &theirs, true);
    sides[0].service.connect(key);
    until(&mut sides, "failure", |s| !s[0].failures.is_empty());
    assert!(
        sides[0].failures[0].contains("process [7,1]: no answer to 13 requests"),
        "{:?}",
        sides[0].failures
    );
    let start = Instant::now();
    sides[0].service.close(Duration::from_secs(60));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}
