//! Ends the process when a test hangs inside a call, where its own deadlines do not reach.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Barks unless it is dropped in time.
pub struct Watchdog(#[allow(dead_code, reason = "its end is the signal")] Sender<()>);

impl Watchdog {
    pub fn new(test: &str, limit: Duration) -> Watchdog {
        let (sender, receiver) = channel();
        let test = test.to_owned();
        std::thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{test} hangs: no end after {limit:?}");
                std::process::abort();
            }
        });
        Watchdog(sender)
    }
}
