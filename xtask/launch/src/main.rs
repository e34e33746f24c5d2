//! `cargo xtask` is an alias for this program (`.cargo/config.toml`). It has the package `xtask` compiled, writes a line every ten
//! seconds while cargo does that, then becomes `cargo run --package xtask` with the same arguments.
//!
//! Cargo names a crate when it begins to compile it and prints nothing until the next one. On a busy machine a single crate of
//! xtask takes half a minute. This program has no dependencies and is compiled in a second, so no pause is longer than that.

use std::ffi::OsString;
use std::io::{Result, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time without a line on standard error, unless cargo prints some.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match compile() {
        Ok(status) if status.success() => become_xtask(),
        Ok(_) => ExitCode::FAILURE,
        Err(error) => cannot_start(&error),
    }
}

fn compile() -> Result<ExitStatus> {
    let child = cargo().args(["build", "--package", "xtask"]).spawn()?;
    wait(child, PATIENCE, &mut std::io::stderr())
}

/// Returns only if cargo cannot be started.
fn become_xtask() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let error = cargo().args(["run", "--quiet", "--package", "xtask", "--"]).args(arguments).exec();
    cannot_start(&error)
}

/// The cargo that started this program.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn cannot_start(error: &std::io::Error) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "cargo xtask: cannot start cargo: {error}; is it in the PATH?");
    ExitCode::FAILURE
}

/// Waits for the child's end; writes a line after each `patience`. A reader of `to` that has gone does not matter.
fn wait(mut child: Child, patience: Duration, to: &mut impl Write) -> Result<ExitStatus> {
    let began = Instant::now();
    let (ended, end) = channel();
    let waiter = thread::spawn(move || {
        let status = child.wait();
        drop(ended);
        status
    });
    while end.recv_timeout(patience) == Err::<(), _>(RecvTimeoutError::Timeout) {
        let _ = writeln!(to, "compiling cargo xtask itself: {} s so far", began.elapsed().as_secs());
    }
    waiter
        .join()
        .unwrap_or_else(|_| Err(std::io::Error::other("the thread that waits for cargo has panicked")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn wait_for(script: &str, patience: Duration) -> (ExitStatus, String) {
        let child = Command::new("/bin/sh").args(["-c", script]).spawn().unwrap();
        let mut said = Vec::new();
        let status = wait(child, patience, &mut said).unwrap();
        (status, String::from_utf8(said).unwrap())
    }

    #[test]
    fn a_line_is_written_while_the_child_runs() {
        let (status, said) = wait_for("sleep 0.5", Duration::from_millis(20));
        assert!(status.success());
        assert!(said.lines().count() >= 2 && said.lines().all(|line| line.ends_with(" s so far")), "{said}");
    }

    #[test]
    fn a_child_that_ends_at_once_gets_no_line_and_its_status_is_kept() {
        let (status, said) = wait_for("exit 3", Duration::from_secs(600));
        assert_eq!((status.code(), said.as_str()), (Some(3), ""));
    }
}
