//! No panic crosses into C: every function that Open MPI calls runs its body in [`guard`].

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body`; if it panics, logs that as an error and returns `fallback`.
///
/// `name` is the callback as Open MPI calls it ("btl_send"). Costs nothing as long as nobody panics.
#[inline]
pub fn guard<T>(name: &str, fallback: T, body: impl FnOnce() -> T) -> T {
    // Unwind safety: after a panic the caller gets an error for its only answer, and state behind locks is poisoned.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => {
            report(name, payload.as_ref());
            fallback
        }
    }
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
