//! A job that measures what it is told to, and sleeps in between, so that the jobs of several transports take turns on the same
//! processors within a fraction of a second (`tests/mpi/pingpong.c --control`).
//!
//!     this process                        each rank
//!     listens on an abstract socket       MPI_Init, a barrier, connects: `rank 0`
//!     `100 size:4096` to every rank  -->  measures
//!     reads a line from every rank   <--  the result from rank 0, `done` from the others
//!     closes the connections         -->  MPI_Finalize
//!
//! A rank that stands still ends itself, and its job with it.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::failure::Context;
use crate::measured::{Measured, Measurement};
use crate::mpirun::Job;
use crate::mpirun::{indent, tail};
use crate::process::{self, Limits};
use crate::{Failure, Result};

/// Of a job: all of a round, on a machine that may be busy.
const LIMITS: Limits = Limits { deadline: Duration::from_secs(1800), silence: None };
/// Longer than the program's own limits on its start and on a measurement.
const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(2);

/// A job under control.
#[derive(Debug)]
pub struct Session {
    listener: UnixListener,
    /// Its end: success, or its command and its output.
    run: JoinHandle<Result<()>>,
    /// Connections, those of the ranks in their order.
    ranks: Vec<BufReader<UnixStream>>,
}

impl Session {
    /// Starts the job, whose program is the ping-pong, for sizes of up to `largest` bytes.
    ///
    /// # Errors
    /// There is no socket to be had.
    pub fn start(job: Job, largest: u64) -> Result<Self> {
        Session::begin(largest, move |arguments| {
            job.arguments(arguments).expect_success(LIMITS).map(|_finished| ())
        })
    }

    /// The same of a job that has been put down as a command line ([`Job::command_line`]).
    ///
    /// # Errors
    /// There is no socket to be had.
    pub fn start_line(line: &str, largest: u64) -> Result<Self> {
        let line = line.to_owned();
        Session::begin(largest, move |arguments| {
            let line = format!("{line} {}", arguments.join(" "));
            let finished = process::run(Command::new("sh").arg("-c").arg(&line), LIMITS, &mut |_| {})?;
            if finished.ok() {
                return Ok(());
            }
            let (end, output) = (finished.describe(), indent(tail(&finished.output, 60)));
            Err(Failure(format!("the job {end}\n  command: {line}\n  output:\n{output}")))
        })
    }

    /// Listens, and starts what runs the job, with the program's arguments, to its end.
    fn begin(largest: u64, run: impl FnOnce(&[String]) -> Result<()> + Send + 'static) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("oxib-bench-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let address = SocketAddr::from_abstract_name(&name).context("a name of a socket")?;
        let listener = UnixListener::bind_addr(&address).context(format_args!("cannot listen on {name}"))?;
        listener.set_nonblocking(true).context("cannot listen without waiting")?;
        let arguments = ["--control".to_owned(), name, largest.to_string()];
        let run = thread::spawn(move || run(&arguments));
        Ok(Session { listener, run, ranks: Vec::new() })
    }

    /// Waits for the connections of all ranks.
    ///
    /// # Errors
    /// The job has ended, or says nothing.
    pub fn connect(&mut self, ranks: usize) -> Result<()> {
        let began = Instant::now();
        let mut arrived = Vec::new();
        while arrived.len() < ranks {
            match self.listener.accept() {
                Ok((stream, _)) => arrived.push(introduced(stream)?),
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    return Err(Failure(format!("cannot accept a rank's connection: {error}")));
                }
                Err(_) if self.run.is_finished() => return Err(Failure::new("the job ended at its start")),
                Err(_) if began.elapsed() > PATIENCE => {
                    return Err(Failure::new("the job's ranks do not connect"));
                }
                Err(_) => thread::sleep(TICK),
            }
        }
        arrived.sort_by_key(|(rank, _)| *rank);
        self.ranks = arrived.into_iter().map(|(_, stream)| stream).collect();
        Ok(())
    }

    /// Measures while all other sessions sleep.
    ///
    /// # Errors
    /// The job has ended: [`end`](Self::end) says how.
    pub fn measure(&mut self, what: Measurement, milliseconds: u64) -> Result<Measured> {
        for rank in &mut self.ranks {
            let line = format!("{milliseconds} {what}\n");
            rank.get_mut().write_all(line.as_bytes()).context("a rank has gone")?;
        }
        let answers = self.ranks.iter_mut().map(line).collect::<Result<Vec<_>>>()?;
        let result = answers.first().and_then(|text| Measured::parse(text)).filter(|m| m.what == what);
        result.context(format_args!("`{what}` was answered by {answers:?}"))
    }

    /// Closes the connections. All sessions of a round get there before the first is waited for.
    pub fn close(&mut self) {
        self.ranks.clear();
    }

    /// Waits for the job's end.
    ///
    /// # Errors
    /// It failed; the text has its command and its output.
    pub fn end(mut self) -> Result<()> {
        self.close();
        self.run.join().unwrap_or_else(|_| Err(Failure::new("the watching thread panicked")))
    }
}

/// Why a session has failed, and the session: its end may tell more.
pub type Failed = (Failure, Session);

/// A round: measurement by measurement, all sessions in turn, beginning with the one at `first` modulo their number. `each` is told row and
/// column, and what came of it; a session that has failed has lost its place.
///
/// # Errors
/// `each` gives up.
pub fn take_turns(
    sessions: &mut [Option<Session>],
    first: usize,
    (rows, milliseconds): (&[Measurement], u64),
    each: &mut dyn FnMut((usize, usize), std::result::Result<Measured, Failed>) -> Result<()>,
) -> Result<()> {
    for (row, what) in rows.iter().enumerate() {
        for column in in_turn(sessions.len(), first) {
            let Some(mut session) = sessions[column].take() else { continue };
            match session.measure(*what, milliseconds) {
                Ok(measured) => {
                    sessions[column] = Some(session);
                    each((row, column), Ok(measured))?;
                }
                Err(why) => each((row, column), Err((why, session)))?,
            }
        }
    }
    Ok(())
}

/// All places, beginning with that at `first` modulo their number.
pub fn in_turn(places: usize, first: usize) -> impl Iterator<Item = usize> {
    (0..places).map(move |turn| (turn + first) % places)
}

/// A connection and the rank that it says it is.
fn introduced(stream: UnixStream) -> Result<(usize, BufReader<UnixStream>)> {
    stream.set_nonblocking(false).context("cannot wait for a rank")?;
    stream.set_read_timeout(Some(PATIENCE)).context("cannot limit the time of a rank")?;
    let mut stream = BufReader::new(stream);
    let text = line(&mut stream)?;
    let rank = text.strip_prefix("rank ").and_then(|number| number.parse().ok());
    Ok((rank.context(format_args!("a rank said `{text}`"))?, stream))
}

fn line(from: &mut BufReader<UnixStream>) -> Result<String> {
    let mut text = String::new();
    let length = from.read_line(&mut text).context("a rank says nothing")?;
    if length == 0 { Err(Failure::new("a rank has gone")) } else { Ok(text.trim_end().to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (BufReader<UnixStream>, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        (BufReader::new(here), there)
    }

    #[test]
    fn a_rank_that_has_gone_is_an_error_and_not_an_empty_line() {
        let (mut here, mut there) = pair();
        there.write_all(b"done\n").unwrap();
        drop(there);
        assert_eq!(line(&mut here), Ok("done".to_owned()));
        assert!(line(&mut here).is_err());
    }

    #[test]
    fn every_round_begins_with_another_place() {
        let turns = |first| in_turn(3, first).collect::<Vec<_>>();
        assert_eq!([turns(0), turns(1), turns(5)], [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
        assert_eq!(in_turn(0, 3).count(), 0);
    }

    #[test]
    fn a_command_line_that_ends_early_says_how() {
        let mut session = Session::start_line("echo why; exit 3; #", 8).unwrap();
        assert_eq!(session.connect(2), Err(Failure::new("the job ended at its start")));
        let why = session.end().unwrap_err().0;
        assert!(why.contains("exit code 3") && why.contains("    why"), "{why}");
    }

    #[test]
    fn ranks_introduce_themselves_by_number() {
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(b"rank 3\n").unwrap();
        assert_eq!(introduced(here).unwrap().0, 3);
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(b"rank x\n").unwrap();
        assert!(introduced(here).unwrap_err().0.contains("rank x"));
    }
}
