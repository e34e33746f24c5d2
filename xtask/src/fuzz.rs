//! `cargo xtask fuzz`: the targets of fuzz/, one after the other, under cargo-fuzz.
//!
//! Inputs that reach new code are gathered below target/fuzz/, where the next run goes on from them; `--keep` adds those of them that
//! reach code which the corpus in the repository does not.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::args::{Args, Options};
use crate::workspace::Workspace;
use e2e::failure::Context;
use e2e::{Failure, Result, say};

/// What the command understands.
pub const OPTIONS: Options = Options { flags: &["keep"], values: &["seconds"], words: true };

/// `cargo xtask fuzz`.
pub fn command(args: Args) -> Result<()> {
    let seconds = args.number("seconds", 60)?;
    let workspace = Workspace::find()?;
    let fuzz = workspace.root.join("fuzz");
    let targets = chosen(&targets(&fuzz)?, args.words())?;
    check_tools()?;
    for target in &targets {
        let found = workspace.target.join("fuzz").join("found").join(target);
        let kept = fuzz.join("corpus").join(target);
        std::fs::create_dir_all(&found).context(format_args!("cannot create {}", found.display()))?;
        say!("fuzzing {target} for {seconds} s");
        let limit = format!("-max_total_time={seconds}");
        run(&workspace, target, [&found, &kept], &[&limit, "-print_final_stats=1"])?;
        if args.flag("keep") {
            run(&workspace, target, [&kept, &found], &["-merge=1"])?;
        }
    }
    say!("{} targets, nothing found that fails", targets.len());
    Ok(())
}

/// All targets, by the folders of their corpora.
fn targets(fuzz: &Path) -> Result<Vec<String>> {
    let corpus = fuzz.join("corpus");
    let entries = std::fs::read_dir(&corpus).context(format_args!("cannot read {}", corpus.display()))?;
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

/// Those that are named, or all.
fn chosen(all: &[String], named: &[String]) -> Result<Vec<String>> {
    match named.iter().find(|name| !all.contains(name)) {
        Some(name) => {
            Err(Failure(format!("no fuzz target is called `{name}`; there are {}", all.join(", "))))
        }
        None if named.is_empty() => Ok(all.to_vec()),
        None => Ok(named.to_vec()),
    }
}

/// cargo-fuzz needs a nightly compiler, which instruments the code.
fn check_tools() -> Result<()> {
    let works = |words: &[&str]| {
        let mut command = Command::new("rustup");
        let quiet = command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    };
    if !works(&["run", "nightly", "rustc", "--version"]) {
        return Err(Failure::new("fuzzing needs a nightly compiler: rustup toolchain install nightly"));
    }
    if !works(&["run", "nightly", "cargo", "fuzz", "--version"]) {
        return Err(Failure::new("fuzzing needs cargo-fuzz: cargo install cargo-fuzz"));
    }
    Ok(())
}

/// One run of the target's program; the first folder takes new inputs.
fn run(workspace: &Workspace, target: &str, folders: [&PathBuf; 2], options: &[&str]) -> Result<()> {
    let mut cargo = Command::new("rustup");
    // What a cargo of this toolchain has set for its children would lead the other one astray.
    cargo.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    cargo
        .args(["run", "nightly", "cargo", "fuzz", "run", "--fuzz-dir"])
        .arg(workspace.root.join("fuzz/libfuzzer"));
    cargo.arg("--target-dir").arg(workspace.target.join("fuzz").join("build"));
    cargo.arg(target).args(folders).arg("--").args(options);
    let status = cargo.status().context("cannot run cargo fuzz")?;
    if status.success() {
        return Ok(());
    }
    Err(Failure(format!(
        "fuzz target {target} ended with {status}: the input is named above; replay it with \
         `cargo +nightly fuzz run --fuzz-dir fuzz/libfuzzer {target} FILE`"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_of_the_corpus_is_fuzzed_and_an_unknown_one_is_named() {
        let all = targets(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")).unwrap();
        assert!(all.iter().any(|name| name == "cell"), "{all:?}");
        assert_eq!(chosen(&all, &[]).unwrap(), all);
        assert_eq!(chosen(&all, &["modex".to_owned()]).unwrap(), ["modex"]);
        let Failure(text) = chosen(&all, &["modem".to_owned()]).unwrap_err();
        assert!(text.contains("`modem`") && text.contains("datagram"), "{text}");
    }
}
