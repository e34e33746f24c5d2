//! Two runs of one program, of which the second connects to the first: the form of most verbs programs.
//!
//! The first listens on a TCP port (`-p`), the second gets its address as last word. The second is started once the
//! port is listened on (/proc/net says so; a trial connection would be taken for the peer's).

use std::net::TcpListener;
use std::process::Command;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::failure::Context;
use crate::mpirun::{indent, tail};
use crate::process::{Finished, Limits, run};
use crate::{Failure, Result};

const TICK: Duration = Duration::from_millis(10);
/// State LISTEN in /proc/net/tcp.
const LISTEN: &str = "0A";

/// A program and what both of its runs get.
#[derive(Debug, Clone)]
pub struct Pair {
    program: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    /// For the first run only, and for the second.
    own: [Option<(String, String)>; 2],
    clients: usize,
    /// What only the first run gets, and what only the others get.
    listening: Vec<String>,
    connecting: Vec<String>,
}

impl Pair {
    /// `command`: the program and its arguments, separated by spaces, without port and address.
    pub fn new(command: &str, environment: &[(String, String)]) -> Self {
        let mut words = command.split_whitespace().map(str::to_owned);
        let program = words.next().unwrap_or_default();
        let (mut arguments, environment): (Vec<String>, _) = (words.collect(), environment.to_vec());
        if program.starts_with("ib_") {
            // perftest measures how fast the cycle counter runs, and gives up on a machine too busy for that unless it is told not to care.
            arguments.push("-F".to_owned());
        }
        if program == "ucx_perftest" {
            // Where it is built with MPI (Debian 13) and has no terminal, it takes itself for a rank of a job.
            arguments.extend(["-P", "0"].map(str::to_owned));
        }
        let (listening, connecting) = (Vec::new(), Vec::new());
        Pair { program, arguments, environment, own: [None, None], clients: 1, listening, connecting }
    }

    /// A variable that each of the two has with a value of its own.
    #[must_use]
    pub fn differing(self, name: &str, values: [&str; 2]) -> Self {
        Pair { own: values.map(|value| Some((name.to_owned(), value.to_owned()))), ..self }
    }

    /// So many connect, at the same time, to the first, which gets `listening` as well.
    #[must_use]
    pub fn clients(self, clients: usize, listening: &[&str]) -> Self {
        Pair { clients, listening: listening.iter().map(|&word| word.to_owned()).collect(), ..self }
    }

    /// The first gets this word, the other one that.
    #[must_use]
    pub fn each_with(self, [listening, connecting]: [String; 2]) -> Self {
        Pair { listening: vec![listening], connecting: vec![connecting], ..self }
    }

    /// Runs all; success of all or a failure that shows what they said. Returns the output of all.
    ///
    /// # Errors
    /// See above.
    pub fn expect_success(&self, limits: Limits) -> Result<String> {
        let port = free_port()?.to_string();
        let all: Vec<Finished> = thread::scope(|scope| {
            let first = scope.spawn(|| run(&mut self.command(&port, None), limits, &mut |_| {}));
            wait_for_listener(&port, &first, limits.deadline);
            let client = || run(&mut self.command(&port, Some("127.0.0.1")), limits, &mut |_| {});
            let clients: Vec<_> = (0..self.clients).map(|_| scope.spawn(client)).collect();
            let join = |run: ScopedJoinHandle<'_, Result<Finished>>| {
                run.join().unwrap_or_else(|_| Err(Failure::new("the watching thread panicked")))
            };
            std::iter::once(first).chain(clients).map(join).collect::<Result<_>>()
        })?;
        if all.iter().all(Finished::ok) {
            return Ok(all.into_iter().map(|run| run.output).collect());
        }
        Err(self.explain(&all))
    }

    fn command(&self, port: &str, address: Option<&str>) -> Command {
        let mut command = Command::new(&self.program);
        let more = if address.is_none() { &self.listening } else { &self.connecting };
        command.args(&self.arguments).args(more).args(["-p", port]).args(address);
        let own = self.own[usize::from(address.is_some())].iter();
        command.envs(self.environment.iter().chain(own).map(|(name, value)| (name, value)));
        command
    }

    fn explain(&self, all: &[Finished]) -> Failure {
        let own = self.own.iter().flatten();
        let variables = self.environment.iter().chain(own).map(|(name, value)| format!("{name}={value} "));
        let words = std::iter::once(&self.program)
            .chain(&self.arguments)
            .chain(&self.listening)
            .chain(&self.connecting);
        let runs = all.iter().enumerate().map(|(i, run)| {
            let which = if i == 0 { "the first".to_owned() } else { format!("client {i}") };
            format!("\n  {which} {}:\n{}", run.describe(), indent(tail(&run.output, 30)))
        });
        Failure(format!(
            "not every run succeeded\n  command: {}{} -p PORT [ADDRESS]{}",
            variables.collect::<String>(),
            words.map(String::as_str).collect::<Vec<_>>().join(" "),
            runs.collect::<String>()
        ))
    }
}

/// A port that is free just now.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen on any port")?;
    Ok(listener.local_addr().context("a listener has an address")?.port())
}

/// Returns when the port is listened on, or will not be.
fn wait_for_listener(port: &str, first: &ScopedJoinHandle<'_, Result<Finished>>, deadline: Duration) {
    let began = Instant::now();
    while !is_listening(port) && !first.is_finished() && began.elapsed() < deadline {
        thread::sleep(TICK);
    }
}

/// `  0: 0100007F:1F90 00000000:0000 0A ...`: local address and port in hexadecimal, remote ones, state.
fn is_listening(port: &str) -> bool {
    let port = port.parse::<u16>().map(|port| format!(":{port:04X}")).unwrap_or_default();
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(1).is_some_and(|local| local.ends_with(&port)) && words.get(3) == Some(&LISTEN)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_tells_whether_a_port_is_listened_on() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        assert!(is_listening(&port));
        assert!(!is_listening("0"), "nobody can listen there");
    }

    #[test]
    fn when_one_of_the_two_fails_both_are_shown() {
        assert_eq!(Pair::new("true", &[]).expect_success(Limits::deadline(10)), Ok(String::new()));
        let pair = Pair::new("false", &[("A".to_owned(), "1".to_owned())]);
        let Failure(text) = pair.expect_success(Limits::deadline(10)).unwrap_err();
        assert!(text.contains("exit code 1") && text.contains("A=1 false -p PORT"), "{text}");
    }
}
