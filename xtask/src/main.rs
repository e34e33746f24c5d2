//! `cargo xtask COMMAND`: the commands that set everything up. One module a command, and what they share:
//!
//!     build       the plugin, into target/oxib/openmpi/, and the drop-in libibverbs (dropin), into target/oxib/verbs/
//!     verbs       a command that runs on the drop-in libibverbs
//!     install     ... to where Open MPI looks by itself; uninstall
//!     pingpong    one table: oxib beside vader and tcp
//!     bench       the figures of docs/results.md; instrument: oxib beside the others (conduct: its part in a guest); bench_connect, bench_instructions, bench_memory,
//!                 bench_threads: its other kinds; ways: what they compare
//!     test        every test: unit and property (cargo_test), end to end; kernel: over a real kernel's verbs, in guests
//!
//!     arrows      the modules' imports against docs/arrows.txt
//!     fuzz        bytes from a peer, any bytes: the targets of fuzz/
//!     order       the order of the plugin's functions: btl/link/order.ld
//!     ompi5       an Open MPI 5.0 below target/, from Debian's packages
//!     args        the command line        packages   Debian packages, installed when missing
//!     workspace   folders and cargo       report     progress and tables
//!
//! How jobs are started, watched and ended is in the crate `e2e` (tests/).

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod arrows;
mod bench;
mod bench_connect;
mod bench_instructions;
mod bench_memory;
mod bench_threads;
mod build;
mod callgrind;
mod cargo_test;
mod dropin;
mod fuzz;
mod install;
mod instrument;
mod kernel;
mod lines;
mod ompi5;
mod order;
mod packages;
mod pingpong;
mod report;
mod test;
mod ways;
mod workspace;

use std::process::ExitCode;

use args::Args;
use e2e::{Failure, Result, interrupt, say, tell};

const USAGE: &str = "\
usage: cargo xtask COMMAND [OPTIONS]

  pingpong    MPI ping-pong over oxib, shared memory and tcp, every byte checked, as one table
                --json FILE        write the figures there, too
                --sizes LIST       sizes in bytes, like 0,8,4k,1M (default: 0 and powers of two to 4M)
                --transports LIST  default: oxib,vader,tcp; with Open MPI 5 oxib,sm,tcp
                --mpi DIR          with the Open MPI that is installed in DIR, not the one in the PATH
                --ompi5            with an Open MPI 5.0 of our own below target/, fetched once from Debian's mirror
                --rounds N         times each transport is run (default: 3)
  test        every test: unit, property and end to end; ends with `N passed, N failed[, N skipped]`
                --all              the full matrix instead of the quick selection
                --ompi5            the end-to-end cases with Open MPI 5.0 (fetched once); without it, a few of them
                --list             only name the end-to-end cases
                --only-e2e         no unit and property tests
                --kernel           instead: jobs over a real kernel's RDMA devices (rxe, siw), in emulated guests; an hour
                --soak MINUTES     end-to-end cases again and again, each round in another order, with few, some or many sends
                                   unsignalled (both from --seed N); tells the first failure again at the end
                --over NAME        end-to-end cases over this transport instead of oxib (to tell its faults from ours)
                FILTER...          only end-to-end cases whose name contains one of these
  verbs -- COMMAND...
              run a verbs program on the software device, like: cargo xtask verbs -- ibv_rc_pingpong -d softib0
                --beside           ... beside the devices of the libibverbs that is installed, by LD_PRELOAD
  build       fill target/oxib/ with the plugin and the drop-in libibverbs.so.1 (release mode)
                --debug            the plugin in debug mode
  install     put the plugin where Open MPI looks by itself
                --user             for you: ~/.openmpi/components
                --mpi DIR          for the Open MPI that is installed in DIR
                (neither)          for the Open MPI whose ompi_info is in the PATH
  uninstall   the opposite; same options
  bench       oxib beside vader (sm), tcp, UCX's shared memory, and openib and UCX's rc_v on the same software device: half round
              trips, message rate and bandwidth of all in turns, ratios with their spread, and whether they meet their aims
                --pairs N          rounds (default: 11; with --connect and --memory 3, with --threads 11)
                --sizes LIST       half round trips of these sizes only, like 8,4k,1M: `--pairs 3 --sizes 8,4k` takes seconds
                --windows          message rate and bandwidth only (with --sizes: too)
                --patterns         what programs do only: a message each way behind 10 ms without MPI, behind a walk through memory,
                                   or with MPI_Test now and then, collective operations, MPI_Put, MPI_Get (one at a time, and many
                                   each way), MPI_Fetch_and_op
                --transports LIST  the first is compared with the others; default: oxib,vader,tcp,ucx-sm,openib,ucx-rc_v
                --defaults         vader, sm and openib as they come, not with the settings with which they are fastest here
                --try SETTINGS     oxib with MCA parameters, too: --try \"btl_oxib_max_inline=0 btl_oxib_eager_limit=4k\", or
                                   another transport with parameters and variables: --try \"ucx-sm: UCX_TLS=posix,self\"
                --against DIR      oxib as the plugin in DIR has it, too: another build beside this one
                --at-once N        N pairs of ranks at the same time (default: 1)
                --milliseconds N   timed part of a measurement (default: 50)
                --least            of each measurement the fastest batch, not the median one: for a busy machine
                --json FILE        write the figures there, too
                --svg FILE         draw the ratios over the size
                --mpi DIR, --ompi5 as for pingpong
                --kernel           instead over a real kernel's soft RoCE, in one emulated guest and between two, beside UCX's rc_v
                                   and tcp: half round trips, with --windows message rate and bandwidth (--pairs, --sizes, --least,
                                   --milliseconds, --try, --json, --svg)
              and of another kind:
                --connect          connections instead: one by one and in storms, beside openib's udcm and cmtime
                --memory           memory instead: at the start, and for each peer, beside openib, UCX, vader and tcp
                --instructions     what each step of a message executes in the plugin and in softib, counted by callgrind
                --threads          threads instead: one's messages beside another's flood, beside vader, UCX and tcp
                --test-loops       with --threads: threads wait in loops of MPI_Test
                --verbs [WINDOWS [MESSAGES [SIZE...]]]
                                   the software device alone, beside raw shared memory
  arrows      compare the imports of every module with docs/arrows.txt, as a test of `cargo xtask test` does
  order       write btl/link/order.ld, the order of the plugin's functions: those that a job's start runs together (a smaller process)
  fuzz        run the fuzz targets (fuzz/src/lib.rs names them) with cargo-fuzz and a nightly compiler
                --seconds N        for each target (default: 60)
                --keep             add inputs that reach new code to fuzz/corpus, which `cargo xtask test` replays
                TARGET...          only these

Missing Debian packages are named and installed (by sudo when not root); --no-install stops instead.
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    interrupt::watch();
    let done = dispatch(&words);
    if let Some(signal) = interrupt::signal() {
        tell!("xtask: ended by signal {signal}, with what it had started");
        return ExitCode::from(128 + signal);
    }
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(text)) => {
            tell!("xtask: {text}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[String]) -> Result<()> {
    let (command, rest) =
        words.split_first().map_or(("help", words), |(command, rest)| (command.as_str(), rest));
    if let Some(text) = wants_help(rest).then(|| usage_of(command)).flatten() {
        say!("{text}");
        return Ok(());
    }
    match command {
        "pingpong" => pingpong::command(Args::parse(rest, &pingpong::OPTIONS)?),
        "test" => test::command(Args::parse(rest, &test::OPTIONS)?),
        "build" => build::command(Args::parse(rest, &build::OPTIONS)?),
        "verbs" => dropin::command(rest),
        "install" => install::install(Args::parse(rest, &install::OPTIONS)?),
        "uninstall" => install::uninstall(Args::parse(rest, &install::OPTIONS)?),
        "arrows" => arrows::command(),
        "order" => order::command(Args::parse(rest, &order::OPTIONS)?),
        "fuzz" => fuzz::command(Args::parse(rest, &fuzz::OPTIONS)?),
        "bench" => bench::command(Args::parse(rest, &bench::OPTIONS)?),
        "conduct" => instrument::conductor::command(rest),
        "help" | "--help" | "-h" => {
            say!("{}", USAGE.trim_end());
            Ok(())
        }
        other => Err(Failure(format!("no command is called `{other}`\n\n{USAGE}"))),
    }
}

/// `--help` anywhere before a `--`, behind which words are another program's.
fn wants_help(words: &[String]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--help" || word == "-h")
}

/// The part of [`USAGE`] that is about this command.
fn usage_of(command: &str) -> Option<String> {
    let begins = |line: &&str| line.strip_prefix("  ").is_some_and(|line| !line.starts_with(' '));
    let named = |line: &&str| begins(line) && line.split_whitespace().next() == Some(command);
    let mut lines = USAGE.lines().skip_while(|line| !named(line));
    let first = lines.next()?;
    let rest = lines.take_while(|line| !line.is_empty() && !begins(line));
    let text: Vec<&str> = std::iter::once(first).chain(rest).collect();
    let last = USAGE.lines().last().unwrap_or_default();
    Some(format!("usage: cargo xtask {command} [OPTIONS]\n\n{}\n\n{last}", text.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_help_of_its_own() {
        for command in
            ["pingpong", "test", "verbs", "build", "install", "uninstall", "bench", "arrows", "fuzz"]
        {
            let text = usage_of(command).unwrap();
            assert!(text.contains(&format!("\n  {command} ")), "{text}");
            assert_eq!(text.contains("--soak"), command == "test", "{text}");
        }
        assert_eq!(usage_of("--all"), None);
    }

    #[test]
    fn a_verbs_programs_own_help_is_left_to_it() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(wants_help(&words("--beside --help")));
        assert!(!wants_help(&words("--beside -- ibv_devinfo --help")));
    }
}
