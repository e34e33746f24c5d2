//! Ends the process when a test hangs inside a call, where its own deadlines do not reach.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Barks unless it is dropped in time.
pub struct Watchdog(Option<(Sender<()>, JoinHandle<()>)>);

impl Watchdog {
    pub fn new(test: &str, limit: Duration) -> Watchdog {
        let (sender, receiver) = channel();
        let test = test.to_owned();
        let thread = std::thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{test} hangs: no end after {limit:?}");
                std::process::abort();
            }
        });
        Watchdog(Some((sender, thread)))
    }
}

impl Drop for Watchdog {
    /// A thread that has not quite ended looks like a leak to who counts at the end of the process.
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.0.take() {
            drop(sender);
            let _ended = thread.join();
        }
    }
}
