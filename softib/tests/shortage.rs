//! What cannot be had is refused at once, with the cause in words: limits of the process, a folder that is too small or cannot be used.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use std::process::{Output, Stdio};

/// The limited process; does nothing when the test runner calls it.
#[test]
fn child_main() {
    if role().as_deref() == Some("opens") {
        opens();
    }
}

/// Lowers a limit of this process. Only the soft limit, but the tests' children end soon.
fn limit(resource: &str, value: u64) {
    let resource = match resource {
        "fsize" => libc::RLIMIT_FSIZE,
        "as" => libc::RLIMIT_AS,
        "nofile" => libc::RLIMIT_NOFILE,
        "nproc" => libc::RLIMIT_NPROC,
        other => panic!("unknown limit {other}"),
    };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    assert_eq!(unsafe { libc::getrlimit(resource, &mut limit) }, 0);
    limit.rlim_cur = value;
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
}

/// Sets the limit in TEST_LIMIT, as `nofile=8`.
fn limit_from_environment() {
    if let Ok(text) = std::env::var("TEST_LIMIT") {
        let (resource, value) = text.split_once('=').unwrap();
        limit(resource, value.parse().unwrap());
    }
}

/// Opens the device twice; says the errno values, and whether there was a reason for each.
fn opens() {
    limit_from_environment();
    for _ in 0..2 {
        let ctx = unsafe {
            let list = (table().get_device_list)(std::ptr::null_mut());
            (table().open_device)(*list)
        };
        let errno = if ctx.is_null() { last_errno() } else { 0 };
        say(&[errno as u64, softib::take_reason(errno).is_some().into()]);
    }
}

/// Runs a role to its end, with its standard error.
fn run(role: &str, env: &[(&str, &str)]) -> Output {
    let program = std::env::current_exe().unwrap();
    let mut command = Child::command(&program, role);
    command.envs(env.iter().copied()).stderr(Stdio::piped()).output().unwrap()
}

/// What softib has said on standard error, line by line.
fn sentences(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().filter(|line| line.starts_with("softib: ")).map(str::to_owned).collect()
}

/// A process that cannot open the device goes on, with an error value, a reason for it, and one sentence that has these `words` in it.
fn is_refused(env: &[(&str, &str)], errno: i32, words: &[&str]) {
    let output = run("opens", env);
    assert!(output.status.success(), "{env:?}: {output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.matches(&format!("> {errno} 1\n")).count(), 2, "{env:?}: {text}");
    let said = sentences(&output);
    assert_eq!(said.len(), 1, "{env:?}: {said:?}");
    words.iter().for_each(|word| assert!(said[0].contains(word), "{word:?} is missing in {said:?}"));
}

/// SIGXFSZ used to kill it.
#[test]
fn a_file_size_limit_refuses_the_device_and_does_not_kill_the_program() {
    let words = ["ulimit -f", "RLIMIT_FSIZE", "1000 KiB", "MiB"];
    is_refused(&[("TEST_LIMIT", "fsize=1024000")], libc::EFBIG, &words);
}

#[test]
fn an_open_without_a_free_descriptor_names_the_limit_of_open_files() {
    is_refused(&[("TEST_LIMIT", "nofile=4")], libc::EMFILE, &["ulimit -n", "RLIMIT_NOFILE", "is 4"]);
}

#[test]
fn an_open_without_address_space_names_its_limit() {
    is_refused(&[("TEST_LIMIT", "as=1048576")], libc::ENOMEM, &["ulimit -v", "RLIMIT_AS", "1024 KiB"]);
}

/// The example programs say no more than "Failed to open device".
#[test]
fn every_failed_open_says_its_reason_once() {
    let missing = [("SOFTIB_DIR", "/nonexistent/softib")];
    is_refused(&missing, libc::ENOENT, &["/nonexistent/softib", "SOFTIB_DIR", "No such file"]);
    let file = std::env::current_exe().unwrap();
    let file = file.to_str().unwrap();
    is_refused(&[("SOFTIB_DIR", file)], libc::ENOTDIR, &[file, "Not a directory"]);
    is_refused(&[("SOFTIB_NODE", "a\nb")], libc::EINVAL, &["SOFTIB_NODE", "expected"]);
    is_refused(&[("SOFTIB_FAULTS", "nonsense")], libc::EINVAL, &["SOFTIB_FAULTS"]);
    let injected = [("SOFTIB_FAULTS", "fail=open_device:1:EIO,fail=open_device:2:EIO")];
    is_refused(&injected, libc::EIO, &["softib0 cannot be opened", "Input/output error"]);
}
