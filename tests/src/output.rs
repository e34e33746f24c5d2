//! What is said to a person: lines on standard output and standard error, and a sign of life while something takes long.
//!
//! Either may be a pipe whose reader has gone (`cargo xtask test --list | head -1`). `println!` panics then. [`say!`](crate::say)
//! and [`tell!`](crate::tell) remember it instead; what runs is ended ([`crate::process`]), what would follow is left out.

use crate::interrupt;
use std::fmt::Arguments;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a person is left without a word.
pub const PATIENCE: Duration = Duration::from_secs(10);

static CLOSED: AtomicBool = AtomicBool::new(false);

/// A line on standard output.
#[macro_export]
macro_rules! say {
    ($($word:tt)*) => { $crate::output::said(format_args!($($word)*)) };
}

/// A line on standard error: what is being done.
#[macro_export]
macro_rules! tell {
    ($($word:tt)*) => { $crate::output::told(format_args!($($word)*)) };
}

/// A line on standard output; in a test of this crate, one that libtest keeps to itself.
#[allow(clippy::print_stdout)]
pub fn said(text: Arguments<'_>) {
    if cfg!(test) { println!("{text}") } else { write(&mut std::io::stdout(), format_args!("{text}\n")) }
}

/// The same on standard error.
#[allow(clippy::print_stderr)]
pub fn told(text: Arguments<'_>) {
    if cfg!(test) { eprintln!("{text}") } else { write(&mut std::io::stderr(), format_args!("{text}\n")) }
}

/// Writes text that may be part of a line, or several.
pub fn write(to: &mut impl Write, text: Arguments<'_>) {
    let written = to.write_fmt(text).and_then(|()| to.flush());
    if written.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        CLOSED.store(true, Ordering::Relaxed);
    }
}

/// Whether a reader has gone, or a signal asks for an end: nothing needs to go on.
pub fn is_over() -> bool {
    CLOSED.load(Ordering::Relaxed) || interrupt::signal().is_some()
}

/// Says every [`PATIENCE`] that something is still being done, until it is dropped; not while other lines show it.
#[derive(Debug)]
pub struct SignOfLife {
    last: Arc<Mutex<(Instant, String)>>,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl SignOfLife {
    /// `what` reads like "building the plugin": "building the plugin: 20 s so far".
    pub fn of(what: impl Into<String>) -> Self {
        let began = Instant::now();
        let last = Arc::new(Mutex::new((began, what.into())));
        let (ended, end) = channel();
        let shared = Arc::clone(&last);
        let thread = std::thread::spawn(move || {
            let mut wait = PATIENCE;
            while end.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = due(&shared, began);
            }
        });
        SignOfLife { last, thread: Some((ended, thread)) }
    }

    /// Something else has just been said.
    pub fn heard(&self) {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).0 = Instant::now();
    }

    /// What is being done now.
    pub fn now(&self, what: impl Into<String>) {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).1 = what.into();
    }
}

/// Speaks if it is time to; returns how long to wait for the next time.
fn due(last: &Mutex<(Instant, String)>, began: Instant) -> Duration {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let silent = last.0.elapsed();
    if silent < PATIENCE {
        return PATIENCE - silent;
    }
    // Cargo draws its progress in place; the line goes over it.
    let over = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    tell!("{over}  ... {}: {:.0} s so far", last.1, began.elapsed().as_secs_f64());
    last.0 = Instant::now();
    PATIENCE
}

impl Drop for SignOfLife {
    fn drop(&mut self) {
        if let Some((ended, thread)) = self.thread.take() {
            drop(ended);
            let _it_only_writes_lines = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_of_life_waits_for_the_rest_of_the_patience_after_another_line() {
        let before = Instant::now() - PATIENCE / 2;
        let wait = due(&Mutex::new((before, "a test".to_owned())), before);
        assert!(wait <= PATIENCE / 2, "{wait:?}");
    }

    #[test]
    fn a_sign_of_life_ends_with_what_it_is_about() {
        let began = Instant::now();
        let sign = SignOfLife::of("a test");
        sign.heard();
        sign.now("the rest of a test");
        drop(sign);
        assert!(began.elapsed() < PATIENCE);
    }
}
