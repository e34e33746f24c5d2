//! Segments whose file has been cut short under their mapping.
//!
//! softib never truncates a segment, but any process of the same user can, and touching a page behind the end of its file raises
//! SIGBUS. Then the mapping that was touched, and the one of the segment's tables, are replaced by private memory of zeroes: all
//! words in them are harmless, the life word says that the owner is to be asked about, and the length of the file that the segment
//! is as good as dead (`liveness`). Other mappings of the segment are replaced when they are touched.
//!
//! A file of a peer's program (`super::backing`) can be cut short as well. Only its own mapping is replaced then, and it is *lost* from then on:
//! who copies asks afterwards, and whether what has been written is in the file is not known.
//!
//! The handler is installed by the first mapping and stays; faults elsewhere go to the handler that
//! it replaced. A program that replaces ours, or blocks SIGBUS, is on its own.

use super::layout::SLOTS;
use super::word::Word;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A guarded mapping; address 0: a free place, 1: one that is just being taken. Generic over the words, so that `tests/fault.rs` runs it
/// in loom.
#[derive(Debug)]
pub struct Place<W = AtomicUsize> {
    base: W,
    len: W,
    /// Address of the mapping of the segment's tables, which lives at least as long; [`ALONE`] and [`LOST`] are none.
    tables: W,
}

/// In the place of tables: it is of no segment.
pub const ALONE: usize = 1;
/// The same, and it has been replaced.
const LOST: usize = 0;

impl Place {
    const fn free() -> Place {
        Place { base: AtomicUsize::new(0), len: AtomicUsize::new(0), tables: AtomicUsize::new(0) }
    }

    /// Whether a mapping of no segment has been replaced.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.tables.load(Ordering::Relaxed) == LOST
    }
}

impl<W: Word<usize>> Place<W> {
    /// A free place of words that are 0.
    pub fn of([base, len, tables]: [W; 3]) -> Place<W> {
        Place { base, len, tables }
    }

    /// Takes a free place.
    pub fn take(&self) -> bool {
        self.base.load(Ordering::Relaxed) == 0 && self.base.replace(0, 1, Ordering::AcqRel)
    }

    /// What a taken place guards.
    pub fn fill(&self, base: usize, len: usize, tables: usize) {
        // Who sees a word of this mapping sees that the one before is gone.
        W::fence(Ordering::Release);
        self.len.store(len, Ordering::Relaxed);
        self.tables.store(tables, Ordering::Relaxed);
        self.base.store(base, Ordering::Release);
    }

    /// Gives it back, if it guards the mapping at this address.
    pub fn give_back(&self, base: usize) -> bool {
        let is_it = self.base.load(Ordering::Relaxed) == base;
        if is_it {
            self.base.store(0, Ordering::Release);
        }
        is_it
    }

    /// The addresses of its mapping; none if there is none, or it comes or goes just now: then it is not the one that was touched.
    pub fn range(&self) -> std::ops::Range<usize> {
        let base = self.base.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Relaxed);
        W::fence(Ordering::Acquire);
        let stays = base > 1 && self.base.load(Ordering::Relaxed) == base;
        if stays { base..base + len } else { 0..0 }
    }
}

/// A process maps the tables, a ring and an arena or two of each peer, and its own inbound rings.
static MAPPED: [Place; 4 * SLOTS] = [const { Place::free() }; 4 * SLOTS];

/// What handled SIGBUS before.
struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once, before the handler that reads it is reached (see `install`).
unsafe impl Sync for Before {}

static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::zeroed()));

/// Guards the mapping of `len` bytes of a segment at `base`, whose tables are mapped at `tables`, or one of no segment ([`ALONE`]), until the place is
/// given back. None: no place is free.
pub fn guard(base: usize, len: usize, tables: usize) -> Option<&'static Place> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(install);
    let place = MAPPED.iter().find(|place| place.take())?;
    place.fill(base, len, tables);
    Some(place)
}

fn install() {
    // SAFETY: sigaction is plain data; the handler has the signature that SA_SIGINFO asks for. The old action is stored
    // before the new one is in force for any fault of ours: no segment is registered yet.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        libc::sigaction(libc::SIGBUS, std::ptr::null(), BEFORE.0.get().cast());
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo, which for SIGBUS has an address.
    let at = unsafe { (*info).si_addr() } as usize;
    let touched = MAPPED.iter().find(|place| place.range().contains(&at));
    let Some(place) = touched else { return pass_on(signal, info, context) };
    let tables = place.tables.load(Ordering::Relaxed);
    let is_alone = matches!(tables, ALONE | LOST);
    if is_alone {
        // Who copies into what takes its place sees this behind its copy: the kernel maps that later, under a lock of its own.
        place.tables.store(LOST, Ordering::Release);
    }
    match replace(place) {
        true if is_alone => {}
        true => replace_tables(tables),
        false => pass_on(signal, info, context),
    }
}

/// The owner's life is read in the tables: without them the segment counts as dead.
fn replace_tables(base: usize) {
    if let Some(tables) = MAPPED.iter().find(|place| place.base.load(Ordering::Acquire) == base) {
        // What has failed leaves the tables as they are, and each fault is handled by itself.
        let _ = replace(tables);
    }
}

/// Puts private zeroes in the place of a mapping.
fn replace(place: &Place) -> bool {
    let (base, len) = (place.base.load(Ordering::Acquire), place.len.load(Ordering::Relaxed));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is a mapping of ours, which stays mapped and is only ever touched through atomics and raw copies. mmap is a
    // mere system call, allowed in a signal handler; errno is that of the interrupted thread and restored.
    unsafe {
        let errno = *libc::__errno_location();
        let mapped = libc::mmap(base as *mut c_void, len, prot, flags, -1, 0);
        *libc::__errno_location() = errno;
        mapped != libc::MAP_FAILED
    }
}

/// A fault that is not ours: as if we had not been asked.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: filled by install() before this handler was in force.
    let before = unsafe { (*BEFORE.0.get()).assume_init_ref() };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: restores the earlier action; the instruction faults again and gets it.
            unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: an action with SA_SIGINFO has a handler of three arguments.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: an action without SA_SIGINFO has a handler of one argument.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
