//! Whether the other threads of this process sleep.
//!
//! Open MPI's patcher overwrites the first 13 bytes of munmap and the like, byte by byte, while other threads may be inside of them:
//! one that comes back from the system call then goes on in the middle of the patch. A thread that sleeps (state S of
//! proc_pid_stat(5)) is in none of these functions: where they wait for another thread, their sleep is not interruptible (state
//! D). One that wakes within the few microseconds of the patch is not excluded.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long threads may run that are waited for. What a runtime does on its own lasts for microseconds; a thread that computes or spins does
/// not stop for anything.
const PATIENCE: Duration = Duration::from_millis(50);

/// How long they are waited for in all: on a busy machine it takes a while until one that wants to run gets a processor.
const LONGEST: Duration = Duration::from_secs(1);

/// The other threads sleep now. If some run, gives them time to end what they do; `false`: one still runs, or it
/// cannot be said.
pub fn others_sleep() -> bool {
    let (threads, begin) = (Path::new("/proc/self/task"), Instant::now());
    let mut at_first = None;
    loop {
        if all_others(threads).unwrap_or(false) {
            return true;
        }
        // Where the kernel does not count it, they are taken to have had a processor all the time.
        let ran = match (others_ran(threads), begin.elapsed()) {
            (Some(now), elapsed) if elapsed < LONGEST => now.saturating_sub(*at_first.get_or_insert(now)),
            (_, elapsed) => elapsed,
        };
        if ran >= PATIENCE {
            return false;
        }
        std::thread::yield_now();
    }
}

/// How long the other threads have had a processor, together.
fn others_ran(threads: &Path) -> Option<Duration> {
    let me = std::fs::read_link("/proc/thread-self").ok()?;
    let others = std::fs::read_dir(threads).ok()?.flatten().map(|thread| thread.file_name());
    let ran =
        others.filter(|thread| me.file_name() != Some(thread)).filter_map(|thread| ran(threads, &thread));
    ran.reduce(|all, one| all + one)
}

/// How long a thread has had a processor: the first field of `schedstat` (the kernel's Documentation/scheduler/sched-stats).
fn ran(threads: &Path, thread: &OsStr) -> Option<Duration> {
    let text = std::fs::read_to_string(threads.join(thread).join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

fn all_others(threads: &Path) -> io::Result<bool> {
    let me = std::fs::read_link("/proc/thread-self")?;
    for thread in std::fs::read_dir(threads)? {
        let thread = thread?;
        if me.file_name() != Some(&thread.file_name()) && !sleeps(threads, &thread.file_name()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The thread sleeps, or has ended.
fn sleeps(threads: &Path, thread: &OsStr) -> bool {
    match std::fs::read_to_string(threads.join(thread).join("stat")) {
        Ok(stat) => matches!(state(&stat), Some("S" | "Z" | "X")),
        Err(error) => error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH),
    }
}

/// The third field; the second is a name in parentheses, which may hold anything.
fn state(stat: &str) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    #[test]
    fn the_state_follows_the_name() {
        assert_eq!(state("7 (a) S (b) R 1 2 3"), Some("R"));
        assert_eq!(state("7"), None);
    }

    #[test]
    fn a_thread_that_waits_sleeps_and_one_that_spins_does_not() {
        let me = || std::fs::read_link("/proc/thread-self").expect("a link");
        let (told, hear) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let spins = AtomicBool::new(true);
        let spinning = &spins;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                told.send(me()).expect("a receiver");
                wait.recv().expect("a sender");
                while spinning.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let thread = hear.recv().expect("its name");
            let threads = Path::new("/proc/self/task");
            let name = thread.file_name().expect("its number");
            while !sleeps(threads, name) {
                std::thread::yield_now();
            }
            go_on.send(()).expect("it waits");
            while sleeps(threads, name) {
                std::thread::yield_now();
            }
            assert!(!all_others(threads).expect("a list"), "one of them spins");
            if let Some(before) = ran(threads, name) {
                while ran(threads, name) == Some(before) {
                    std::thread::yield_now();
                }
                assert!(!others_sleep(), "it spins for longer than it is waited for");
            }
            spins.store(false, Ordering::Relaxed);
        });
        assert!(sleeps(Path::new("/proc/self/task"), OsStr::new("0")), "what is not there runs nothing");
    }
}
