//! Tables by a number that the device or we hand out.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table by such a number. No stranger chooses it, so it need not be spread in secret.
pub type ByNumber<T> = HashMap<u32, T, BuildHasherDefault<NumberHasher>>;

/// Spreads numbers that are handed out in sequence: one multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u32(u32::from(*b) ^ self.0 as u32);
        }
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
