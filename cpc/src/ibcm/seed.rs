//! A seed from the system: for ids, PSNs and jitter that differ from process to process and from run to run.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;

pub(crate) fn from_system() -> u64 {
    let mut bytes = [0_u8; 8];
    match File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes)) {
        Ok(()) => u64::from_ne_bytes(bytes),
        // The standard library's hash keys are random as well.
        Err(_) => RandomState::new().hash_one(std::process::id()),
    }
}
