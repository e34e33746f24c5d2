//! The command line as a person and a shell use it.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output, Stdio};

fn xtask(line: &str) -> Command {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask.args(line.split_whitespace()).stdin(Stdio::null());
    xtask
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `cargo xtask test --list | head -1`
#[test]
fn a_closed_pipe_is_no_panic() {
    for line in ["help", "test --help", "test --list"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = xtask(line).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panic"), "{line}: {}", stderr(&output));
    }
}

#[test]
fn help_stands_behind_every_command_and_is_asked_for_without_doing_anything() {
    for command in ["pingpong", "test", "build", "verbs", "install", "uninstall", "bench"] {
        for option in ["--help", "-h"] {
            let output = xtask(&format!("{command} {option}")).output().unwrap();
            assert!(output.status.success(), "{command} {option}: {}", stderr(&output));
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                text.starts_with(&format!("usage: cargo xtask {command} ")),
                "{command} {option}: {text}"
            );
        }
    }
}
