//! Open MPI's memory hooks, as the registration caches of all modules use them: one callback, which
//! only marks.
//!
//! The callback is in force from the component's init to its close, when the plugin may be
//! unloaded. A fork(2) marks all memory: on kernels that do not copy pinned pages for the child (before 5.12),
//! the parent's next write to a page gives it another one, and the device keeps the old one.
//!
//! What the hooks see is tried, not believed. Where they miss that the heap of brk(2) shrinks (Open MPI patches
//! the function brk, and newer C libraries do not call it from sbrk), nothing of the heap is kept.
//!
//! Others patch the same functions: UCX, which Open MPI 4.1 loads for its component osc/ucx, after us, lays its own patch over Open
//! MPI's, and no release is seen from then on. So a cache compares the functions' first bytes ([`Code`]) before each look.
//!
//! Open MPI patches functions of the C library for the first user of the hooks, and takes that back for the last. Both
//! happen only while no other thread can be inside of these functions (`asleep`).

use super::asleep;
use super::marks::{Lost, Marks};
use opal_sys::{Abi, LeavePinned, MemoryHooks};
use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

/// Ranges that are remembered: releases between two transfers of large messages.
const REMEMBERED: usize = 1024;

static MARKS: Marks<REMEMBERED> = Marks::new();

/// The callback is registered, by these functions.
static STARTED: Mutex<Option<&'static MemoryHooks>> = Mutex::new(None);

/// Releases are marked.
static WATCHING: AtomicBool = AtomicBool::new(false);

const REPLACED: &str = "no registrations are kept for the next transfer any more: another library of this process has replaced Open \
    MPI's memory hooks, as UCX does where Open MPI opens its component osc/ucx. To keep the hooks, exclude it (--mca osc ^ucx) or set \
    UCX_MEM_EVENTS=n";

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
        if !asleep::others_sleep() {
            return Err((wanted, "another thread runs, and must not while Open MPI patches the C library"));
        }
        // SAFETY: `released` allocates nothing, takes no lock and calls nothing, and stays in memory; no other
        // thread runs.
        unsafe { hooks.start(released) }.map_err(|why| (wanted, why))?;
        *started = Some(hooks);
        mark_forks();
    }
    if look() { Ok(()) } else { Err((wanted, "its hooks do not see memory that is unmapped")) }
}

/// Tries what the hooks see; whether registrations may be kept.
fn look() -> bool {
    let seen = sees_releases();
    WATCHING.store(seen, Ordering::Relaxed);
    let heap = if seen && sees_heap_shrink() { usize::MAX } else { heap_start().unwrap_or(0) };
    UNSEEN_HEAP.store(heap, Ordering::Relaxed);
    seen
}

/// The functions that release memory have been patched by another library; whether registrations may still be kept.
#[cold]
pub fn look_again() -> bool {
    let before = is_watching();
    let seen = before && look();
    if before && !seen {
        let level = if wanted() == LeavePinned::Always { log::Level::Warn } else { log::Level::Info };
        log::log!(level, "{REPLACED}");
    }
    seen
}

/// What the user wants, as far as hooks are in use.
fn wanted() -> LeavePinned {
    let started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    started.map_or(LeavePinned::Auto, MemoryHooks::leave_pinned)
}

/// The component closes: the callback goes, and the patches, unless another thread runs: then they stay, and call no one.
pub fn stop() {
    WATCHING.store(false, Ordering::Relaxed);
    if let Some(hooks) = STARTED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // SAFETY: `start` has opened and registered; they are taken out, so that each is undone once. The plugin
        // stays in memory (build.rs), where a thread may still be in the callback.
        unsafe {
            hooks.unregister(released);
            if asleep::others_sleep() {
                hooks.close();
            }
        }
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

/// The first bytes of the functions that release memory, as they are patched now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code([[u64; Code::WORDS]; Code::FUNCTIONS.len()]);

impl Code {
    /// Those that Open MPI's patcher patches and programs use.
    const FUNCTIONS: [&CStr; 6] = [c"munmap", c"mmap", c"mremap", c"madvise", c"brk", c"shmdt"];

    /// No patch is longer than two words: a jump of 5 to 14 bytes on x86-64, four instructions elsewhere. One more, for it may begin within
    /// a word.
    const WORDS: usize = 3;

    /// As they are now.
    pub fn now() -> Code {
        Code(functions().map(|at| std::array::from_fn(|word| Code::word(at, word))))
    }

    /// They still are so.
    #[inline]
    pub fn is_as_now(&self) -> bool {
        let functions = self.0.iter().zip(functions());
        functions.fold(0, |other, (then, at)| {
            then.iter().enumerate().fold(other, |other, (word, then)| other | (then ^ Code::word(at, word)))
        }) == 0
    }

    /// A word of one of them; 0 where that is missing.
    #[inline(always)]
    fn word(function: Option<NonNull<u64>>, word: usize) -> u64 {
        let Some(at) = function else { return 0 };
        // SAFETY: one of the aligned words that a function of the C library begins in and goes on in, which may be read: others come
        // before and after it. Another thread may patch it meanwhile: each word is read once, whatever it is.
        unsafe { at.as_ptr().add(word).read_volatile() }
    }
}

/// The words that the functions of [`Code`] begin in.
fn functions() -> [Option<NonNull<u64>>; Code::FUNCTIONS.len()] {
    static ADDRESSES: OnceLock<[usize; Code::FUNCTIONS.len()]> = OnceLock::new();
    let find = |name: &CStr| {
        // SAFETY: the name ends with a zero byte. The first object that has it is the one that callers use.
        (unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }) as usize
    };
    ADDRESSES
        .get_or_init(|| Code::FUNCTIONS.map(find))
        .map(|address| NonNull::new((address & !7) as *mut u64))
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
