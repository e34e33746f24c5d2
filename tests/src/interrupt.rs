//! Signals that ask for an end: Ctrl-C, `kill`, a terminal that closes. What runs is ended with all that it has started
//! ([`crate::process`]), for it is in process groups of its own, which such a signal does not reach.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register_usize;

static CAUGHT: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// From now on these signals are [caught](signal), but for those that this process was started to ignore: `nohup`, or in the background of a
/// shell script.
pub fn watch() {
    let caught = CAUGHT.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal)) {
        // Where it cannot be caught, it ends this process at once, as ever.
        let _registered = register_usize(signal, Arc::clone(caught), signal.unsigned_abs() as usize);
    }
}

/// The one that came last, if any has come.
pub fn signal() -> Option<u8> {
    let caught = CAUGHT.get()?.load(Ordering::Relaxed);
    u8::try_from(caught).ok().filter(|signal| *signal != 0)
}

/// `SigIgn` of proc_pid_status(5): bit 0 is signal 1.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored >> (signal - 1) & 1 == 1
}
