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
//! The verbosity is the higher one of `btl_base_verbose` and `btl_oxib_verbose`. Open MPI's output takes no lock
//! while the job is single-threaded, so lines of our helper threads go straight to standard error then.

use ::log::{LevelFilter, Log, Metadata, Record};
use opal_sys::{Abi, Base};
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
            write_line(&line);
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

/// Lines go to standard error from now on.
pub fn close() {
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
    fn verbosity_words_of_open_mpi_select_the_levels() {
        let levels = [-1, 0, 10, 20, 40, 60, 80, 100].map(filter);
        use LevelFilter::*;
        assert_eq!(levels, [Off, Error, Error, Warn, Info, Info, Debug, Trace]);
    }
}
