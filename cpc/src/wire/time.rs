//! Times in CM messages: 5-bit codes of 4.096 µs * 2^code (IBTA 12.7.4).

use std::time::Duration;

/// Unit of the times in CM messages: 4.096 µs (IBTA 12.7.4).
const UNIT_NS: u128 = 4096;

/// The smallest 5-bit code whose time, 4.096 µs * 2^code, is at least `wait`.
pub(crate) fn encode_time(wait: Duration) -> u8 {
    (0..31_u8).find(|&code| UNIT_NS << code >= wait.as_nanos()).unwrap_or(31)
}

/// The time that a 5-bit code stands for.
pub(crate) fn decode_time(code: u8) -> Duration {
    Duration::from_nanos(4096_u64 << (code & 31))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_time_is_never_shorter_and_at_most_twice_as_long() {
        for ms in [1, 5, 67, 100, 1000, 2000, 60_000] {
            let wait = Duration::from_millis(ms);
            let back = decode_time(encode_time(wait));
            assert!(back >= wait && back < wait * 2, "{wait:?} became {back:?}");
        }
    }

    #[test]
    fn codes_are_powers_of_two_of_4096_ns_and_have_five_bits() {
        for (code, ns) in [(0, 4096), (1, 8192), (20, 4096 << 20), (31, 4096 << 31)] {
            assert_eq!(decode_time(code), Duration::from_nanos(ns));
            assert_eq!(decode_time(code | 0xe0), Duration::from_nanos(ns), "the upper bits do not count");
            assert_eq!(encode_time(Duration::from_nanos(ns)), code);
        }
        assert_eq!(encode_time(Duration::from_nanos(4097)), 1);
        assert_eq!(encode_time(Duration::ZERO), 0);
        assert_eq!(encode_time(Duration::MAX), 31);
    }
}
