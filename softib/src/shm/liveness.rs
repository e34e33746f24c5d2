//! Is the owner of a segment alive?
//!
//! The truth is a lock: the owner holds a write lock of an open file description on its segment file,
//! and the kernel drops it when the last descriptor goes, however the process ends. (That description is not the one that is mapped:
//! a mapping keeps it, and the mappings of a process stay beyond its end while another process reads about it in /proc.) Asking costs a
//! system call, so there is an accelerator: the `life` word in the header holds the tid of the
//! owner's device thread, which has it on its robust futex list; when the thread dies, kill -9
//! included, the kernel sets FUTEX_OWNER_DIED in it. Senders load the word on every post; only an
//! unexpected value asks the lock. A stopped process keeps its lock, and its word: it is waited for.

use super::filelock::{self, Kind, Range};
use super::layout::{H_LIFE, SEGMENT_LEN};
use super::map::Map;
use crate::errno::{Errno, check};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Takes the owner's lock. False if another descriptor has it.
pub fn try_lock(file: &File) -> Result<bool, Errno> {
    filelock::try_take(file, Kind::Exclusive, Range::Whole)
}

/// Whether another descriptor than this one holds the lock. When in doubt: yes.
pub fn is_locked(file: &File) -> bool {
    let mut lock = filelock::describe(libc::F_WRLCK, Range::Whole);
    // SAFETY: the descriptor is open and the struct outlives the call.
    let asked = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) });
    asked.is_err() || lock.l_type != libc::F_UNLCK as libc::c_short
}

/// Whether a segment has its owner and its length.
fn is_whole(file: &File) -> bool {
    is_locked(file) && file.metadata().is_ok_and(|metadata| metadata.len() >= SEGMENT_LEN as u64)
}

/// A peer's liveness as seen from here; once dead, dead for good.
#[derive(Debug, Default)]
pub struct Liveness {
    expected: u32,
    dead: bool,
}

impl Liveness {
    /// Asks the lock, whatever the word says: a corrupt one would never change again.
    pub fn ask_lock(&mut self, file: &File) -> bool {
        if !self.dead && !is_whole(file) {
            self.dead = true;
        }
        if self.dead {
            // No word is fine any more.
            self.expected = 0;
        }
        !self.dead
    }

    /// Whether the owner lives: one load in the usual case.
    #[inline(always)]
    pub fn alive(&mut self, map: &Map, file: &File) -> bool {
        self.is_as_seen(map) || self.ask(map, file)
    }

    /// What that word is as long as the owner lives, as far as is known; 0: it does not.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// Whether that load says so.
    #[inline(always)]
    pub fn is_as_seen(&self, map: &Map) -> bool {
        let word = map.u32(H_LIFE).load(Ordering::Relaxed);
        word == self.expected && word != 0
    }

    #[cold]
    fn ask(&mut self, map: &Map, file: &File) -> bool {
        let word = map.u32(H_LIFE).load(Ordering::Relaxed);
        if self.ask_lock(file) && word & libc::FUTEX_OWNER_DIED == 0 {
            self.expected = word;
        }
        !self.dead
    }
}

/// The kernel's view of a thread's robust list with exactly one futex in it.
#[repr(C)]
#[derive(Debug)]
struct RobustList {
    head_next: *mut RobustNode,
    futex_offset: libc::c_long,
    pending: *mut RobustNode,
    node: RobustNode,
}

#[repr(C)]
#[derive(Debug)]
struct RobustNode {
    next: *mut RobustNode,
}

/// The calling thread's death is visible in the `life` word of a segment as long as this is there, and so is its end.
#[derive(Debug)]
pub struct Life<'a> {
    /// The kernel knows where it is.
    _list: Box<RobustList>,
    map: &'a Map,
}

/// Of its thread: it holds raw pointers, and is not sent to another.
impl Drop for Life<'_> {
    fn drop(&mut self) {
        // From now on every look asks the lock.
        self.map.u32(H_LIFE).store(0, Ordering::Release);
        // SAFETY: without a list the kernel looks at none when the thread ends; the size is what it expects.
        unsafe { libc::syscall(libc::SYS_set_robust_list, std::ptr::null_mut::<RobustList>(), ROBUST_LEN) };
    }
}

/// `sizeof(struct robust_list_head)`.
const ROBUST_LEN: usize = 3 * size_of::<usize>();

/// Makes the calling thread's death visible in the `life` word of `map`. The thread must take no robust mutex: its list is replaced.
pub fn tie_life_to_this_thread(map: &Map) -> Life<'_> {
    let word: *const AtomicU32 = map.u32(H_LIFE);
    let mut list = Box::new(RobustList {
        head_next: std::ptr::null_mut(),
        futex_offset: 0,
        pending: std::ptr::null_mut(),
        node: RobustNode { next: std::ptr::null_mut() },
    });
    let head: *mut RobustList = &mut *list;
    // SAFETY: head points to the boxed list; the node's next closes the circle at the list head, as the kernel wants.
    unsafe {
        let node = &raw mut (*head).node;
        (*head).head_next = node;
        (*node).next = head.cast();
        (*head).futex_offset = word as libc::c_long - node as libc::c_long;
    }
    // SAFETY: gettid has no preconditions; the list stays where it is until it is taken back (`Life`), and has the size the kernel expects.
    unsafe {
        let tid = libc::syscall(libc::SYS_gettid) as u32;
        libc::syscall(libc::SYS_set_robust_list, head, ROBUST_LEN);
        map.u32(H_LIFE).store(tid, Ordering::Release);
    }
    Life { _list: list, map }
}
