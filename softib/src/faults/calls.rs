//! Calls that fail, and steps at which the process is killed.

use crate::errno::Errno;
use crate::objects::faults::call::{Call, NAMES};
use crate::objects::faults::plan::{CallFault, Plan};
use crate::objects::faults::step::{self, KillFault, Step};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether there is any such fault, or calls are counted, so that others pay one load.
static ARMED: AtomicBool = AtomicBool::new(false);
static FAILED: AtomicU64 = AtomicU64::new(0);
static WATCH: Mutex<Watch> = Mutex::new(Watch::of(Vec::new(), Vec::new(), false));

struct Watch {
    faults: Vec<CallFault>,
    kills: Vec<KillFault>,
    /// The plan wants to be told how often each was called.
    report: bool,
    /// Calls so far, by function.
    seen: [u64; NAMES.len()],
    /// Steps so far that are no calls.
    steps: [u64; step::NAMES.len()],
}

impl Watch {
    const fn of(faults: Vec<CallFault>, kills: Vec<KillFault>, report: bool) -> Watch {
        Watch { faults, kills, report, seen: [0; NAMES.len()], steps: [0; step::NAMES.len()] }
    }

    /// The process has come to a step for this time, and ends there if the plan has it.
    fn pass(&self, step: Step, number: u64) {
        if self.kills.contains(&KillFault { step, number }) {
            die();
        }
    }
}

/// Counts from now on.
pub(super) fn arm(plan: &Plan) {
    *WATCH.lock().unwrap_or_else(PoisonError::into_inner) =
        Watch::of(plan.fail.clone(), plan.kill.clone(), plan.report);
    if plan.report {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handler is a plain function that stays valid as long as this object is loaded.
            let _a_full_table_costs_the_report = unsafe { libc::atexit(report) };
        });
    }
    let armed = plan.report || !plan.fail.is_empty() || !plan.kill.is_empty();
    ARMED.store(armed, Ordering::Relaxed);
}

/// Takes the environment's plan, unless one is there already. What it says wrong is told when a device is opened.
pub(crate) fn arm_from_environment() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if let (false, Ok(plan)) = (ARMED.load(Ordering::Relaxed), super::load()) {
            arm(&plan);
        }
    });
}

/// Whether any step of the data path is of interest.
pub(crate) fn touch_data_path() -> bool {
    let watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let fails = watch.faults.iter().any(|fault| fault.call.is_of_data_path());
    let kills = watch.kills.iter().any(|kill| kill.step.is_of_data_path());
    ARMED.load(Ordering::Relaxed) && (watch.report || fails || kills)
}

/// How many calls have been made to fail.
pub(super) fn failed() -> u64 {
    FAILED.load(Ordering::Relaxed)
}

/// How often each function has been called since the plan was put into force: those that have been.
pub(super) fn seen() -> Vec<(&'static str, u64)> {
    let watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let of = |(name, call): &(&'static str, Call)| (*name, watch.seen[*call as usize]);
    NAMES.iter().map(of).filter(|(_, count)| *count > 0).collect()
}

/// How often the process has come to each step that is no call: those that it has come to.
pub(super) fn steps() -> Vec<(&'static str, u64)> {
    let watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let counts = step::NAMES.iter().zip(watch.steps).map(|((name, _), count)| (*name, count));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// The last word of a plan that asks for one, when the process ends or unloads this object: how often each function has been called, and each
/// step has come.
extern "C" fn report() {
    if !WATCH.lock().is_ok_and(|watch| watch.report) {
        return;
    }
    let listed = |counts: Vec<(&str, u64)>| {
        let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        counts.join(", ")
    };
    let (process, failed, calls, steps) = (std::process::id(), failed(), listed(seen()), listed(steps()));
    let line = format!(
        "softib: calls of process {process}, of which {failed} failed: {calls}\nsoftib: steps of process {process}: {steps}\n"
    );
    // In one piece, for other processes write there, too; a closed standard error loses it.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Counts a call; the error that the plan has for it.
pub(crate) fn fate(call: Call) -> Result<(), Errno> {
    if ARMED.load(Ordering::Relaxed) { count(call) } else { Ok(()) }
}

#[cold]
fn count(call: Call) -> Result<(), Errno> {
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = &mut watch.seen[call as usize];
    *seen += 1;
    let number = *seen;
    watch.pass(Step::Call(call), number);
    match watch.faults.iter().find(|fault| fault.call == call && fault.number == number) {
        Some(fault) => {
            FAILED.fetch_add(1, Ordering::Relaxed);
            Err(Errno(fault.errno))
        }
        None => Ok(()),
    }
}

/// Counts a step, and ends the process there if the plan has it.
pub(crate) fn reach(step: Option<Step>) {
    if let (true, Some(step)) = (ARMED.load(Ordering::Relaxed), step) {
        count_step(step);
    }
}

#[cold]
fn count_step(step: Step) {
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(count) = step.place().and_then(|place| watch.steps.get_mut(place)) else { return };
    *count += 1;
    let number = *count;
    watch.pass(step, number);
}

/// As `kill -9` would: no handler, no destructor, no word.
fn die() -> ! {
    // SAFETY: a signal to this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    // The first process of a PID namespace is spared by its own signals.
    std::process::abort()
}
