//! Device memory: a piece of memory that belongs to the device, for programs to take parts of (ibv_alloc_dm(3)).
//!
//! ```text
//!   lock   a robust mutex
//!   table  one word a granule of 64 bytes: 0 free | 1 taken | HEAD, length, users: the first of an allocation
//!   memory 1 MiB
//! ```
//!
//! All of it is a shared mapping made when the device is opened, so a process that forks shares it
//! with its children, as processes that inherit a kernel's device do. The lock passes on when its
//! holder dies; the worst that a dead holder can leave is granules that stay taken. What a part is
//! registered as is `abi::extras::dm`'s business.

use crate::errno::Errno;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Device memory in all (`max_dm_size`), a power of two.
pub const SIZE: usize = 1 << 20;
const GRANULE: usize = 64;
const GRANULES: usize = SIZE / GRANULE;
const TABLE: usize = GRANULES * size_of::<u64>();
/// Room for the lock in front of the table; a page, so that the rest is aligned.
const LOCK: usize = 4096;
const TAKEN: u64 = 1;
const HEAD: u64 = 1 << 63;
/// Lower half of a head: regions registered on it.
const USERS: u64 = u32::MAX as u64;

/// Address of the mapping; none if it could not be made.
static ARENA: OnceLock<Option<usize>> = OnceLock::new();

/// Makes the memory, once. Without it there is just none to be had.
pub fn prepare() {
    arena();
}

fn arena() -> Option<usize> {
    *ARENA.get_or_init(|| {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new mapping; it is never unmapped.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), LOCK + TABLE + SIZE, protection, flags, -1, 0) };
        (at != libc::MAP_FAILED && make_lock(at.cast())).then_some(at as usize)
    })
}

fn make_lock(at: *mut libc::pthread_mutex_t) -> bool {
    let mut attr = std::mem::MaybeUninit::uninit();
    // SAFETY: the attributes are initialised first; `at` is a page of zeroes that arena() has just
    // mapped and no other thread knows yet.
    unsafe {
        libc::pthread_mutexattr_init(attr.as_mut_ptr()) == 0
            && libc::pthread_mutexattr_setpshared(attr.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED) == 0
            && libc::pthread_mutexattr_setrobust(attr.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST) == 0
            && libc::pthread_mutex_init(at, attr.as_ptr()) == 0
    }
}

/// The lock, held.
struct Held(*mut libc::pthread_mutex_t);

impl Held {
    fn lock() -> Result<Held, Errno> {
        let at = arena().ok_or(Errno::NOMEM)? as *mut libc::pthread_mutex_t;
        // SAFETY: an initialised mutex that lives as long as the process; a dead holder has left nothing half done that matters.
        match unsafe { libc::pthread_mutex_lock(at) } {
            0 => Ok(Held(at)),
            // SAFETY: the mutex is initialised and never unmapped, and with EOWNERDEAD this thread
            // holds it.
            libc::EOWNERDEAD if unsafe { libc::pthread_mutex_consistent(at) } == 0 => Ok(Held(at)),
            code => Err(Errno(code)),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: locked by lock(), by this thread.
        unsafe { libc::pthread_mutex_unlock(self.0) };
    }
}

fn table() -> Result<&'static [AtomicU64], Errno> {
    let at = arena().ok_or(Errno::NOMEM)? + LOCK;
    // SAFETY: GRANULES words, page aligned and zero at first, in a mapping that lives as long as the process.
    Ok(unsafe { std::slice::from_raw_parts(at as *const AtomicU64, GRANULES) })
}

/// Takes `len` bytes whose address is a multiple of 2^`log_align`; they are zero. ENOMEM: there is no such place.
pub fn alloc(len: usize, log_align: u32) -> Result<u32, Errno> {
    let table = table()?;
    if len == 0 || len > SIZE || log_align > SIZE.trailing_zeros() {
        return Err(Errno::INVAL);
    }
    let (count, step) = (len.div_ceil(GRANULE), ((1usize << log_align) / GRANULE).max(1));
    // The mapping is page aligned, not more: places are counted from its own alignment.
    let skew = memory()? / GRANULE;
    let mut start = skew.next_multiple_of(step) - skew;
    let _held = Held::lock()?;
    while start + count <= GRANULES {
        let place = &table[start..start + count];
        match place.iter().rposition(|word| word.load(Ordering::Relaxed) != 0) {
            Some(busy) => start = (skew + start + busy + 1).next_multiple_of(step) - skew,
            None => {
                place.iter().for_each(|word| word.store(TAKEN, Ordering::Relaxed));
                clear(start, count)?;
                table[start].store(HEAD | (len as u64) << 32, Ordering::Release);
                return Ok(start as u32);
            }
        }
    }
    Err(Errno::NOMEM)
}

fn clear(start: usize, count: usize) -> Result<(), Errno> {
    let at = memory()? + start * GRANULE;
    // SAFETY: inside the mapping; the granules are ours alone.
    unsafe { std::ptr::write_bytes(at as *mut u8, 0, count * GRANULE) };
    Ok(())
}

/// Address of the first byte of the memory.
fn memory() -> Result<usize, Errno> {
    Ok(arena().ok_or(Errno::NOMEM)? + LOCK + TABLE)
}

/// Where an allocation lies, and its length. EINVAL: there is none of this name.
pub fn find(handle: u32) -> Result<(usize, usize), Errno> {
    let word = table()?.get(handle as usize).ok_or(Errno::INVAL)?.load(Ordering::Acquire);
    if word & HEAD == 0 {
        return Err(Errno::INVAL);
    }
    Ok((memory()? + handle as usize * GRANULE, ((word & !HEAD) >> 32) as usize))
}

/// Counts a region on an allocation, so that it can't be freed.
pub fn hold(handle: u32) -> Result<(), Errno> {
    find(handle)?;
    table()?[handle as usize].fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// Takes [`hold`] back.
pub fn release(handle: u32) {
    if let Ok(table) = table()
        && find(handle).is_ok()
    {
        table[handle as usize].fetch_sub(1, Ordering::AcqRel);
    }
}

/// Gives an allocation back. EBUSY: regions are on it.
pub fn free(handle: u32) -> Result<(), Errno> {
    let (table, (_, len)) = (table()?, find(handle)?);
    let start = handle as usize;
    let _held = Held::lock()?;
    let idle = HEAD | (len as u64) << 32;
    let freed = table[start].compare_exchange(idle, TAKEN, Ordering::AcqRel, Ordering::Acquire);
    freed.map_err(|word| if word & USERS != 0 { Errno::BUSY } else { Errno::INVAL })?;
    let end = start + len.div_ceil(GRANULE);
    table[start..end].iter().for_each(|word| word.store(0, Ordering::Release));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_apart_aligned_cleared_and_given_back() {
        let parts: Vec<u32> = (0..6).map(|log| alloc(100 + log, 6 + log as u32).unwrap()).collect();
        for (log, part) in parts.iter().enumerate() {
            let (at, len) = find(*part).unwrap();
            assert!(at.is_multiple_of(1 << (6 + log)) && len == 100 + log);
            // SAFETY: an allocation of this test alone.
            let bytes = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) };
            assert!(bytes.iter().all(|byte| *byte == 0), "another allocation reaches in here");
            bytes.fill(0xff);
        }
        hold(parts[0]).unwrap();
        assert_eq!(free(parts[0]), Err(Errno::BUSY));
        release(parts[0]);
        parts.into_iter().for_each(|part| free(part).unwrap());
        assert_eq!(free(4711), Err(Errno::INVAL));
        assert_eq!(alloc(SIZE + 1, 0), Err(Errno::INVAL));
    }

    /// Searches that met each other's half-taken places used to run off the end of a memory that was half empty.
    #[test]
    fn threads_that_allocate_at_once_find_room_as_long_as_there_is_some() {
        const SHARE: usize = SIZE / 16;
        let one = || (0..200).for_each(|_| free(alloc(SHARE, 0).unwrap()).unwrap());
        std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(one))));
    }
}
