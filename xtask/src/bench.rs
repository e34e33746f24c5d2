//! `cargo xtask bench`: the figures that docs/results.md quotes.
//!
//! Without a word: oxib beside the other transports (`instrument`). `--connect`: what connections cost (`bench_connect`). `--memory`: what a
//! process and its peers take (`bench_memory`). `--threads`: what one thread's messages take beside another's flood (`bench_threads`).
//! `--instructions`: what each step of a message executes, counted by callgrind (`bench_instructions`). `--verbs`: the software device
//! alone, with no MPI: `softib/examples/pingpong`.

use crate::args::{Args, Options};
use crate::bench_connect;
use crate::bench_instructions;
use crate::bench_memory;
use crate::bench_threads;
use crate::instrument;
use crate::workspace::{Workspace, cargo};
use e2e::failure::Context;
use e2e::{Failure, Result, machine, say};

/// What `bench` understands.
pub const OPTIONS: Options = Options {
    flags: &[
        "connect",
        "defaults",
        "instructions",
        "kernel",
        "least",
        "memory",
        "no-install",
        "ompi5",
        "patterns",
        "test-loops",
        "threads",
        "verbs",
        "windows",
    ],
    values: &[
        "against",
        "at-once",
        "json",
        "milliseconds",
        "mpi",
        "pairs",
        "sizes",
        "svg",
        "transports",
        "try",
    ],
    words: true,
};

/// `cargo xtask bench`.
pub fn command(args: Args) -> Result<()> {
    if args.flag("verbs") {
        return verbs(args.words());
    }
    if args.flag("connect") {
        return bench_connect::command(&args);
    }
    if args.flag("instructions") {
        return bench_instructions::command(&args);
    }
    if args.flag("memory") {
        return bench_memory::command(&args);
    }
    if args.flag("threads") {
        return bench_threads::command(&args);
    }
    if !args.words().is_empty() {
        return Err(Failure::new("words are for --verbs: windows, messages, sizes"));
    }
    instrument::command(&args)
}

/// The software device alone: softib's example pingpong, which says what its words mean.
fn verbs(words: &[String]) -> Result<()> {
    let mut cargo = cargo();
    cargo.current_dir(Workspace::find()?.root).args(["run", "--quiet", "--release", "-p", "softib"]);
    let status =
        cargo.args(["--example", "pingpong", "--"]).args(words).status().context("cannot run cargo")?;
    if !status.success() {
        return Err(Failure(format!("the bench {status}")));
    }
    say!("{}", machine());
    Ok(())
}

fn machine() -> String {
    let (load, processor, cores) = (machine::load(), machine::processor(), machine::cores());
    format!("{processor}, {cores} cores, load {load:.1}")
}
