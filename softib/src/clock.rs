//! The device's clock: nanoseconds of CLOCK_MONOTONIC_RAW, the same for all processes of the host.
//!
//! Programs read it in the completions of queues that were made with time stamps, and by `ibv_query_rt_values_ex`; they turn its
//! ticks into time with `hca_core_clock` (ibv_query_device_ex(3)).

use std::time::Duration;

/// Frequency in kHz: a tick is a nanosecond.
pub const KILOHERTZ: u64 = 1_000_000;
/// All bits of a time stamp count.
pub const MASK: u64 = u64::MAX;

/// When a completion happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamp {
    /// By the device's clock.
    pub ticks: u64,
    /// In nanoseconds since 1970.
    pub wall: u64,
}

impl Stamp {
    /// The time at this moment.
    pub fn now() -> Stamp {
        Stamp { ticks: ticks(), wall: read(libc::CLOCK_REALTIME) }
    }
}

/// The device's clock now.
pub fn ticks() -> u64 {
    read(libc::CLOCK_MONOTONIC_RAW)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clocks exist on every Linux; the struct is ours.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32).as_nanos() as u64
}
