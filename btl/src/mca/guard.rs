//! No panic crosses into C: every function that Open MPI calls runs its body in [`guard`]. Of the progress function that is all but the glance
//! (`module::upward`), which calls nothing that panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// What is to be done after a panic, besides the log line.
static AFTER: OnceLock<fn()> = OnceLock::new();

/// Calls `then` after each panic from now on; the first to ask is heard.
pub fn after_panic(then: fn()) {
    let _first = AFTER.set(then);
}

/// Runs `body`; if it panics, logs that as an error and returns `fallback`.
///
/// `name` is the callback as Open MPI calls it ("btl_send"). Costs nothing as long as nothing
/// panics.
#[inline]
pub fn guard<T>(name: &str, fallback: T, body: impl FnOnce() -> T) -> T {
    guard_thread(name, body).unwrap_or_else(|| {
        if let Some(then) = AFTER.get() {
            then();
        }
        fallback
    })
}

/// The same in a thread of ours, which may not call Open MPI: `None` after a panic, and nothing else is done.
#[inline]
pub fn guard_thread<T>(name: &str, body: impl FnOnce() -> T) -> Option<T> {
    // Unwind safety: after a panic the caller gets an error for its only answer, and state that the
    // panic left half changed is given up (`module::guarded`).
    catch_unwind(AssertUnwindSafe(body)).map_err(|payload| report(name, payload.as_ref())).ok()
}

#[cold]
fn report(name: &str, payload: &(dyn std::any::Any + Send)) {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    log::error!("internal error in {name}: {text}; please report it");
}

#[cfg(test)]
mod tests {
    use super::guard;

    #[test]
    fn a_panic_becomes_the_fallback() {
        assert_eq!(guard("btl_test", 7, || 3), 3);
        assert_eq!(guard("btl_test", 7, || panic!("on purpose")), 7);
    }
}
