//! The measure: a ping-pong over plain shared memory, two flags, each in front of its own payload, one copy in and one out.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::MAX;

/// Bytes between the flag and the payload behind it.
const FLAG: usize = 64;
const SIDE: usize = MAX + 4096;

/// One end.
pub struct Raw {
    base: *mut u8,
    local: Vec<u8>,
    first: bool,
    turn: u64,
}

impl Raw {
    /// Maps the file `raw` in `folder`, which both ends share; `first` is the end that begins a round.
    pub fn open(folder: &Path, first: bool) -> Raw {
        let mut options = std::fs::OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).truncate(false).open(folder.join("raw")).unwrap();
        file.set_len(2 * SIDE as u64).unwrap();
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let (none, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        let base = unsafe { libc::mmap(none, 2 * SIDE, prot, libc::MAP_SHARED | libc::MAP_POPULATE, fd, 0) };
        assert!(base != libc::MAP_FAILED);
        Raw { base: base.cast(), local: vec![1; MAX], first, turn: 0 }
    }

    fn side(&self, side: bool) -> *mut u8 {
        unsafe { self.base.add(usize::from(side) * SIDE) }
    }

    fn flag(&self, side: bool) -> &AtomicU64 {
        unsafe { &*self.side(side).cast::<AtomicU64>() }
    }

    #[inline]
    fn put(&self, len: usize) {
        let side = !self.first;
        unsafe { std::ptr::copy_nonoverlapping(self.local.as_ptr(), self.side(side).add(FLAG), len) };
        self.flag(side).store(self.turn, Ordering::Release);
    }

    #[inline]
    fn take(&mut self, len: usize) {
        let side = self.first;
        while self.flag(side).load(Ordering::Acquire) != self.turn {
            std::hint::spin_loop();
        }
        unsafe { std::ptr::copy_nonoverlapping(self.side(side).add(FLAG), self.local.as_mut_ptr(), len) };
    }

    /// Round trips.
    pub fn rounds(&mut self, count: usize, len: usize) {
        for _ in 0..count {
            self.turn += 1;
            if self.first {
                self.put(len);
            }
            self.take(len);
            if !self.first {
                self.put(len);
            }
        }
    }
}
