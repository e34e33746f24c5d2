//! What makes a channel readable when a deadline of one of its ids comes: a timerfd; in a simulation (`timing`), where time stands still for
//! the kernel, an eventfd that a worker sets.

use crate::errno::{Errno, check};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// See the module's description.
#[derive(Debug)]
pub struct Alarm {
    fd: OwnedFd,
    /// Of a simulation: what sets it.
    simulated: Option<timing::Employed>,
}

impl Alarm {
    /// One that does not go off. In a simulation `worker` makes it do so.
    pub fn new(worker: impl timing::Worker + 'static) -> Result<Alarm, Errno> {
        let simulated = timing::is_simulated();
        // SAFETY: no preconditions; the descriptor is new, and its owner made at once.
        let fd = unsafe {
            OwnedFd::from_raw_fd(check(if simulated {
                libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)
            } else {
                libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
            })?)
        };
        let simulated = simulated.then(|| timing::employ(Box::new(worker)));
        Ok(Alarm { fd, simulated })
    }

    /// Readable once it has gone off.
    pub fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Goes off at `due`, if it is to. In a simulation its worker finds out.
    pub fn set(&self, due: Option<Instant>) {
        if self.simulated.is_some() {
            return;
        }
        // A wait of nothing would disarm the timer.
        let wait = due.map(|at| at.saturating_duration_since(timing::now()).max(Duration::from_nanos(1)));
        let wait = wait.unwrap_or_default();
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let spec = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: a timerfd of ours and a spec that outlives the call; it cannot fail with valid times.
        unsafe { libc::timerfd_settime(self.fd.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
    }

    /// It has been heard.
    pub fn reset(&self) {
        let mut expirations = [0_u8; 8];
        // SAFETY: a timerfd or eventfd of ours and room for its 8 bytes. Nothing to read is fine.
        unsafe { libc::read(self.fd.as_raw_fd(), expirations.as_mut_ptr().cast(), 8) };
    }

    /// Goes off now: for the worker.
    pub fn go_off(&self) {
        // SAFETY: an eventfd of ours; its counter cannot overflow, and a failure would mean that it is set already.
        unsafe { libc::eventfd_write(self.fd.as_raw_fd(), 1) };
    }
}
