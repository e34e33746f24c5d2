//! Log lines go where Open MPI's own go, when its verbosity says so.
//!
//! | level | shown from verbosity | meaning                     |
//! |-------|----------------------|-----------------------------|
//! | error | 0 ("error")          | the user must act           |
//! | warn  | 20 ("warn")          | works, but worse            |
//! | info  | 40 ("info")          | once per process            |
//! | debug | 80 ("debug")         | once per connection         |
//! | trace | 100 ("max")          | once per message            |
//!
//! An error or warning is said once: what repeats is counted, and the count is told when the
//! component closes. Of one place in the code [`MOST_TEXTS`] different lines are said, for a line
//! may name a peer, or an address that is never the same.
//!
//! The verbosity is the higher one of `btl_base_verbose` and `btl_oxib_verbose`. Open MPI's output
//! takes no lock while the job is single-threaded, so lines of our helper threads go straight to
//! standard error then.

use ::log::{Level, LevelFilter, Log, Metadata, Record};
use opal_sys::{Abi, Base};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// Where lines go between open and close of the component.
#[derive(Clone, Copy)]
struct Sink {
    base: Base,
    abi: Option<&'static Abi>,
    /// The thread that Open MPI opened us in.
    home: ThreadId,
}

static SINK: Mutex<Option<Sink>> = Mutex::new(None);

/// Different lines that one place in the code may say.
const MOST_TEXTS: usize = 16;

/// What has been said.
static SAID: Mutex<Said> = Mutex::new(Said { places: None });

/// The errors and warnings of each place in the code, by file and line.
struct Said {
    places: Option<HashMap<(&'static str, u32), Place>>,
}

/// What one place has said.
#[derive(Default)]
struct Place {
    /// Each line, and how often it came again.
    texts: Vec<(String, u64)>,
    /// Further lines, which were only counted.
    more: u64,
}

impl Said {
    /// Whether this line is to be said; counted if not.
    fn is_new(&mut self, place: (&'static str, u32), line: &str) -> bool {
        let Place { texts, more } = self.places.get_or_insert_with(HashMap::new).entry(place).or_default();
        if let Some((_, again)) = texts.iter_mut().find(|(text, _)| text == line) {
            *again += 1;
            return false;
        }
        if texts.len() == MOST_TEXTS {
            *more += 1;
            return false;
        }
        texts.push((line.to_owned(), 0));
        true
    }

    /// The counts of what was not said, as lines; from now on everything is new.
    fn counts(&mut self) -> Vec<String> {
        let places = self.places.take().into_iter().flat_map(HashMap::into_values);
        let mut counts: Vec<String> = places.flat_map(Place::counts).collect();
        counts.sort();
        counts
    }
}

impl Place {
    fn counts(self) -> Vec<String> {
        let last = self.texts.last().map_or(String::new(), |(text, _)| text.clone());
        let again = self.texts.into_iter().filter(|(_, again)| *again != 0);
        let mut counts: Vec<String> =
            again.map(|(text, again)| format!("{text} (and {again} times more)")).collect();
        if self.more != 0 {
            counts.push(format!("{last} (and {} more lines like this one)", self.more));
        }
        counts
    }
}

/// Debugging lines are each of interest, and tell when something happened.
fn is_repetition(record: &Record<'_>, line: &str) -> bool {
    let place = record.file_static().zip(record.line()).filter(|_| record.level() <= Level::Warn);
    place.is_some_and(|place| !SAID.lock().unwrap_or_else(PoisonError::into_inner).is_new(place, line))
}

struct OpalLog;

impl Log for OpalLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= ::log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let mut line = String::from("oxib ");
            // Writing to a String cannot fail.
            let _ = write!(line, "{}: {}", record.level().as_str().to_ascii_lowercase(), record.args());
            if !is_repetition(record, &line) {
                write_line(&line);
            }
        }
    }

    fn flush(&self) {}
}

/// Connects the `log` crate to Open MPI's output. May be called again.
pub fn open(base: Base, abi: Option<&'static Abi>, verbosity: i32) {
    *SINK.lock().unwrap_or_else(PoisonError::into_inner) =
        Some(Sink { base, abi, home: thread::current().id() });
    // Fails when a logger is set already, that is when we are opened a second time: it is ours.
    let _ = ::log::set_logger(&OpalLog);
    ::log::set_max_level(filter(verbosity));
}

/// What has repeated is told, and lines go to standard error from now on.
pub fn close() {
    let counts = SAID.lock().unwrap_or_else(PoisonError::into_inner).counts();
    counts.iter().for_each(|line| write_line(line));
    *SINK.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// The most detailed level that a verbosity shows.
fn filter(verbosity: i32) -> LevelFilter {
    match verbosity {
        ..0 => LevelFilter::Off,
        0..20 => LevelFilter::Error,
        20..40 => LevelFilter::Warn,
        40..80 => LevelFilter::Info,
        80..100 => LevelFilter::Debug,
        100.. => LevelFilter::Trace,
    }
}

/// A line that the user has asked for, whatever the verbosity.
pub fn tell(line: &str) {
    write_line(line);
}

fn write_line(line: &str) {
    let sink = *SINK.lock().unwrap_or_else(PoisonError::into_inner);
    match sink {
        Some(sink) if sink.may_call() => sink.base.output(line),
        _ => eprintln!("[pid {}] {line}", std::process::id()),
    }
}

impl Sink {
    fn may_call(&self) -> bool {
        self.home == thread::current().id() || self.abi.is_some_and(Abi::uses_threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_is_said_once_and_counted() {
        let mut said = Said { places: None };
        let here = ("here.rs", 7);
        assert!(said.is_new(here, "no buffer"));
        assert!((0..1_300_000).all(|_| !said.is_new(here, "no buffer")));
        assert!(said.is_new(here, "lost rank 1") && said.is_new(("here.rs", 9), "no buffer"));
        assert_eq!(said.counts(), ["no buffer (and 1300000 times more)"]);
        assert!(said.is_new(here, "no buffer"), "a component that is opened again says it again");
    }

    #[test]
    fn lines_that_are_never_the_same_are_said_a_few_times() {
        let mut said = Said { places: None };
        let new = (0..1000).filter(|n| said.is_new(("here.rs", 7), &format!("at {n:#x}"))).count();
        assert_eq!(new, MOST_TEXTS);
        assert_eq!(said.counts(), ["at 0xf (and 984 more lines like this one)"]);
    }

    #[test]
    fn verbosity_words_of_open_mpi_select_the_levels() {
        let levels = [-1, 0, 10, 20, 40, 60, 80, 100].map(filter);
        use LevelFilter::*;
        assert_eq!(levels, [Off, Error, Error, Warn, Info, Info, Debug, Trace]);
    }
}
