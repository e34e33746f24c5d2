//! Open MPI's memory hooks, as the registration caches of all modules use them: one callback, which
//! only marks.
//!
//! The callback is in force from the component's init to its close, when the plugin may be
//! unloaded. A fork(2) marks all memory: on kernels that do not copy pinned pages for the child (before 5.12),
//! the parent's next write to a page gives it another one, and the device keeps the old one.
//!
//! What the hooks see is tried, not believed. Where they miss that the heap of brk(2) shrinks (Open MPI patches
//! the function brk, and newer C libraries do not call it from sbrk), nothing of the heap is kept.

use super::marks::{Lost, Marks};
use opal_sys::{Abi, LeavePinned, MemoryHooks};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};

/// Ranges that are remembered: releases between two transfers of large messages.
const REMEMBERED: usize = 1024;

static MARKS: Marks<REMEMBERED> = Marks::new();

/// The callback is registered, by these functions.
static STARTED: Mutex<Option<&'static MemoryHooks>> = Mutex::new(None);

/// Releases are marked.
static WATCHING: AtomicBool = AtomicBool::new(false);

/// Where the heap begins of which releases are not seen; `usize::MAX`: they are.
static UNSEEN_HEAP: AtomicUsize = AtomicUsize::new(0);

/// Begins to mark what is released, if the user lets registrations be kept.
///
/// # Errors
/// Why registrations cannot be kept; `LeavePinned::Always` among it says that the user wants them
/// to be.
pub fn start(abi: &'static Abi) -> Result<(), (LeavePinned, &'static str)> {
    let Some(hooks) = abi.memory_hooks() else {
        return Err((LeavePinned::Auto, "this Open MPI has no memory hooks"));
    };
    let wanted = hooks.leave_pinned();
    if wanted == LeavePinned::Never {
        return Err((wanted, "mpi_leave_pinned is 0"));
    }
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if started.is_none() {
        // SAFETY: `released` allocates nothing, takes no lock and calls nothing; `stop` comes
        // before the plugin is unloaded.
        unsafe { hooks.start(released) }.map_err(|why| (wanted, why))?;
        *started = Some(hooks);
        mark_forks();
    }
    let seen = sees_releases();
    WATCHING.store(seen, Ordering::Relaxed);
    let heap = if seen && sees_heap_shrink() { usize::MAX } else { heap_start().unwrap_or(0) };
    UNSEEN_HEAP.store(heap, Ordering::Relaxed);
    if seen { Ok(()) } else { Err((wanted, "its hooks do not see memory that is unmapped")) }
}

/// The component closes: the callback goes.
pub fn stop() {
    WATCHING.store(false, Ordering::Relaxed);
    if let Some(hooks) = STARTED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // SAFETY: registered by `start`, and taken out, so that it is taken back once.
        unsafe { hooks.stop(released) };
    }
}

/// Releases are marked: registrations may be kept.
pub fn is_watching() -> bool {
    WATCHING.load(Ordering::Relaxed)
}

/// The heap of brk(2) is seen to shrink.
pub fn sees_heap() -> bool {
    UNSEEN_HEAP.load(Ordering::Relaxed) == usize::MAX
}

/// A registration of this memory may be kept: its release will be seen.
pub fn sees(range: &Range<usize>) -> bool {
    let heap = UNSEEN_HEAP.load(Ordering::Relaxed);
    heap == usize::MAX || range.end <= heap || range.start >= heap_end()
}

/// The number that the next release gets.
#[inline]
pub fn now() -> u64 {
    MARKS.head()
}

/// What has been released from number `from` on; see [`Marks::since`].
pub fn released_since(from: u64, each: impl FnMut(Range<usize>)) -> (u64, Result<(), Lost>) {
    MARKS.since(from, each)
}

/// A part of `range` may have been released from number `from` on.
pub fn touched_since(from: u64, range: &Range<usize>) -> bool {
    MARKS.touches(from, range)
}

/// Memory is given back. No guard against unwinding: nothing in it can panic.
unsafe extern "C" fn released(addr: *mut c_void, len: usize, _data: *mut c_void, _from_allocator: bool) {
    let start = addr as usize;
    MARKS.mark(start..start.saturating_add(len));
}

unsafe extern "C" fn forked() {
    MARKS.mark(0..usize::MAX);
}

/// From now on fork(2) marks all memory, in the parent and in the child. The C library forgets this
/// when the plugin is unloaded.
fn mark_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions live as long as the plugin, and only mark.
        let _out_of_memory = unsafe { libc::pthread_atfork(None, Some(forked), Some(forked)) };
    });
}

/// Tries it: the level that Open MPI names says what its patches are meant to see.
fn sees_releases() -> bool {
    const LEN: usize = 4096;
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let before = now();
    // SAFETY: a fresh mapping of our own, which is not used.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), LEN, prot, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: mapped above, and unmapped once.
    unsafe { libc::munmap(page, LEN) };
    let start = page as usize;
    let mut seen = false;
    let (_, all) = released_since(before, |range| seen |= range.start <= start && start + LEN <= range.end);
    seen && all.is_ok()
}

/// Lets the allocator take memory from the heap and give it back; false also if it does not.
fn sees_heap_shrink() -> bool {
    // Below the size at which the C library begins to map.
    const PIECES: [usize; 4] = [96 << 10; 4];
    let before = now();
    // SAFETY: memory that is not used and freed once; trimming gives back what is free.
    let high = unsafe {
        let pieces = PIECES.map(|len| libc::malloc(len));
        let high = heap_end();
        pieces.into_iter().rev().for_each(|piece| libc::free(piece));
        libc::malloc_trim(0);
        high
    };
    let low = heap_end();
    let mut seen = false;
    let (_, all) = released_since(before, |range| seen |= range.contains(&low));
    low < high && seen && all.is_ok()
}

fn heap_end() -> usize {
    // SAFETY: moves nothing, and says where the heap ends.
    unsafe { libc::sbrk(0) as usize }
}

/// Where the heap begins (proc_pid_stat(5): the 47th field).
fn heap_start() -> Option<usize> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    after_name.split_whitespace().nth(44)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_hooks_no_release_is_seen_and_nothing_of_the_heap_is_kept() {
        assert!(!is_watching() && !sees_releases() && !sees_heap_shrink());
        let start = heap_start().expect("a heap");
        let end = heap_end();
        assert!(start <= end, "{start:x} {end:x}");
        UNSEEN_HEAP.store(start, Ordering::Relaxed);
        assert!(!sees(&(end - 1..end + 1)) && sees(&(end..end + 1)) && sees(&(start - 1..start)));
    }
}
