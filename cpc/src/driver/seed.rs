//! What differs from process to process and from run to run: a seed for ids, PSNs and jitter, and the name of an incarnation.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::wire::Incarnation;

pub(crate) fn from_system() -> u64 {
    let mut bytes = [0_u8; 8];
    match File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes)) {
        Ok(()) => u64::from_ne_bytes(bytes),
        // The standard library's hash keys are random as well.
        Err(_) => RandomState::new().hash_one(std::process::id()),
    }
}

/// An incarnation that is newer than all that this process had before, whatever its clock does.
pub(crate) fn incarnation() -> Incarnation {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let [a, b, c, d, ..] = clock.as_millis().to_le_bytes();
    let now = Incarnation(u32::from_le_bytes([a, b, c, d]));
    let next = |last: u32| {
        let first = last == 0 || now.is_newer_than(Incarnation(last));
        if first { now.0 } else { last.wrapping_add(1) }
    };
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
    Incarnation(next(last.unwrap_or_else(|last| last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_incarnation_of_a_process_is_newer_than_the_one_before() {
        let mut last = incarnation();
        for _ in 0..1000 {
            let next = incarnation();
            assert!(next.is_newer_than(last) && !last.is_newer_than(next), "{last:?}, {next:?}");
            last = next;
        }
    }
}
