//! Device memory: a piece of memory that belongs to the device, for programs to take parts of (ibv_alloc_dm(3)).
//!
//! ```text
//!   table  one word a granule of 64 bytes: 0 free | 1 taken | HEAD, length, users: the first of an allocation
//!   memory 1 MiB
//! ```
//!
//! Both are shared mappings made when the device is opened, so a process that forks shares them with its children, as
//! processes that inherit a kernel's device do; a part is taken with atomic operations only, so nobody who dies holds a lock.
//! What a part is registered as is `abi::dm`'s business.

use crate::errno::Errno;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Device memory in all (`max_dm_size`), a power of two.
pub const SIZE: usize = 1 << 20;
const GRANULE: usize = 64;
const GRANULES: usize = SIZE / GRANULE;
const TABLE: usize = GRANULES * size_of::<u64>();
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
        let at = unsafe { libc::mmap(std::ptr::null_mut(), TABLE + SIZE, protection, flags, -1, 0) };
        (at != libc::MAP_FAILED).then_some(at as usize)
    })
}

fn table() -> Result<&'static [AtomicU64], Errno> {
    let at = arena().ok_or(Errno::NOMEM)?;
    // SAFETY: the mapping begins, page aligned, with GRANULES words, zero at first; it lives as long as the process.
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
    while start + count <= GRANULES {
        match take(table, start, count) {
            Ok(()) => {
                clear(start, count)?;
                table[start].store(HEAD | (len as u64) << 32, Ordering::Release);
                return Ok(start as u32);
            }
            Err(busy) => start = (skew + busy + 1).next_multiple_of(step) - skew,
        }
    }
    Err(Errno::NOMEM)
}

/// Takes all of these granules or none. Err: the one that was not free.
fn take(table: &[AtomicU64], start: usize, count: usize) -> Result<(), usize> {
    let claim =
        |word: &AtomicU64| word.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    match (start..start + count).find(|&at| !claim(&table[at])) {
        Some(busy) => {
            table[start..busy].iter().for_each(|word| word.store(0, Ordering::Release));
            Err(busy)
        }
        None => Ok(()),
    }
}

fn clear(start: usize, count: usize) -> Result<(), Errno> {
    let at = memory()? + start * GRANULE;
    // SAFETY: inside the mapping; the granules are ours alone.
    unsafe { std::ptr::write_bytes(at as *mut u8, 0, count * GRANULE) };
    Ok(())
}

/// Address of the first byte of the memory.
fn memory() -> Result<usize, Errno> {
    Ok(arena().ok_or(Errno::NOMEM)? + TABLE)
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
        let parts: Vec<u32> = (0..7).map(|log| alloc(100 + log, 6 + log as u32).unwrap()).collect();
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
        let all = alloc(SIZE, 0).unwrap();
        assert_eq!(alloc(1, 0), Err(Errno::NOMEM));
        free(all).unwrap();
        assert_eq!(free(all), Err(Errno::INVAL));
    }
}
