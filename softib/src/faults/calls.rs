//! Control calls that fail.

use crate::errno::Errno;
use crate::objects::faults::call::{Call, NAMES};
use crate::objects::faults::plan::{CallFault, Plan};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether there is any such fault, so that others pay one load.
static ARMED: AtomicBool = AtomicBool::new(false);
static FAILED: AtomicU64 = AtomicU64::new(0);
static WATCH: Mutex<Watch> = Mutex::new(Watch { faults: Vec::new(), seen: [0; NAMES.len()] });

struct Watch {
    faults: Vec<CallFault>,
    /// Calls so far, by function.
    seen: [u64; NAMES.len()],
}

/// Counts from now on.
pub(super) fn arm(plan: &Plan) {
    *WATCH.lock().unwrap_or_else(PoisonError::into_inner) =
        Watch { faults: plan.fail.clone(), seen: [0; NAMES.len()] };
    ARMED.store(!plan.fail.is_empty(), Ordering::Relaxed);
}

/// Takes the environment's plan, unless one is there already.
pub(crate) fn arm_once(plan: &Plan) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if !ARMED.load(Ordering::Relaxed) {
            arm(plan);
        }
    });
}

/// How many calls have been made to fail.
pub(super) fn failed() -> u64 {
    FAILED.load(Ordering::Relaxed)
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
    match watch.faults.iter().find(|fault| fault.call == call && fault.number == number) {
        Some(fault) => {
            FAILED.fetch_add(1, Ordering::Relaxed);
            Err(Errno(fault.errno))
        }
        None => Ok(()),
    }
}
