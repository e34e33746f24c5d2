//! Pools of equal registered buffers.
//!
//! A pool grows by chunks: one anonymous mapping and one registration each. A large pool grows by an eighth, so that a device with few
//! registrations lets it grow as long as there is memory. A buffer that is taken out is a value: it
//! moves into a post, comes back with the completion (`posted`), and returns to its pool. Chunks live until the pool and all its
//! buffers are gone.

use crate::error::Error;
use crate::mr::{Access, Mr, Pd};
use crate::types::LKey;
use std::ptr::NonNull;
use std::sync::Arc;

/// What a pool's buffers are like.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Bytes of a buffer.
    pub buf_len: u32,
    /// Buffers start at multiples of this, a power of two.
    pub align: u32,
    /// Buffers that a chunk has at least.
    pub grow_by: u32,
    /// Never more buffers than this; 0: no limit.
    pub max: u32,
    /// What the device and peers may do with them.
    pub access: Access,
}

/// Why there is no buffer.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The pool has reached its limit.
    #[error("all {0} buffers of the pool are in use")]
    Exhausted(u32),
    /// A chunk could not be mapped.
    #[error("no memory for {0} bytes of buffers")]
    Memory(usize),
    /// A chunk could not be registered.
    #[error(transparent)]
    Register(#[from] Error),
}

/// Anonymous memory.
#[derive(Debug)]
pub(crate) struct Mapping {
    addr: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory; who may touch which part of it is decided by the buffers.
unsafe impl Send for Mapping {}
// SAFETY: a shared `Mapping` only gives address and length; its bytes are touched through `Buf`,
// each of which has a part of its own.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// So many bytes, zero at first.
    pub(crate) fn new(len: usize) -> Option<Mapping> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let addr = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if addr == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: our own fresh mapping. A forked child must not get pages that the device writes to (ibv_fork_init(3)).
        unsafe { libc::madvise(addr, len, libc::MADV_DONTFORK) };
        Some(Mapping { addr: NonNull::new(addr.cast())?, len })
    }
}

impl Mapping {
    /// Its first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.addr
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once, after its registration (fields drop in order) and all its buffers.
        unsafe { libc::munmap(self.addr.as_ptr().cast(), self.len) };
    }
}

/// One registered mapping. The registration goes first.
#[derive(Debug)]
pub(crate) struct Chunk {
    mr: Mr,
    memory: Mapping,
}

impl Chunk {
    /// So many bytes, zero at first.
    pub(crate) fn new(pd: &Arc<Pd>, len: usize, access: Access) -> Result<Chunk, PoolError> {
        let memory = Mapping::new(len).ok_or(PoolError::Memory(len))?;
        // SAFETY: the mapping lives in the same chunk and is unmapped after the registration.
        let mr = unsafe { Mr::register(pd, memory.addr.as_ptr(), len, access) }?;
        Ok(Chunk { mr, memory })
    }

    /// Its first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    /// The key of its registration.
    pub(crate) fn lkey(&self) -> LKey {
        self.mr.lkey()
    }
}

/// A buffer that we own.
#[derive(Debug)]
pub struct Buf {
    addr: NonNull<u8>,
    chunk: NonNull<Chunk>,
    lkey: LKey,
    len: u32,
}

const _: () = assert!(size_of::<Buf>() <= 32);

// SAFETY: a buffer is the only way to its bytes, and its chunk outlives it (it holds a reference count of it).
unsafe impl Send for Buf {}
// SAFETY: shared references only read.
unsafe impl Sync for Buf {}

impl Buf {
    fn new(chunk: &Arc<Chunk>, offset: usize, len: u32) -> Buf {
        // SAFETY: the pool hands out offsets within the mapping.
        let addr = unsafe { chunk.memory.addr.add(offset) };
        let held = Arc::into_raw(chunk.clone()).cast_mut();
        // SAFETY: `Arc::into_raw` is never null.
        Buf { addr, chunk: unsafe { NonNull::new_unchecked(held) }, lkey: chunk.lkey(), len }
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the buffer owns `len` initialised bytes (mapped zero), and the device does not write to them now.
        unsafe { std::slice::from_raw_parts(self.addr.as_ptr(), self.len as usize) }
    }

    /// The bytes.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the buffer owns `len` initialised bytes, and the device does not write to them
        // now: a posted buffer is a `Posted`. The exclusive reference keeps other readers out.
        unsafe { std::slice::from_raw_parts_mut(self.addr.as_ptr(), self.len as usize) }
    }

    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.addr
    }

    /// Where the bytes are.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.addr.as_ptr() as u64
    }

    /// The key of its chunk.
    #[inline]
    pub fn lkey(&self) -> LKey {
        self.lkey
    }

    /// Number of bytes.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.len
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        // SAFETY: the count that `new` took.
        drop(unsafe { Arc::from_raw(self.chunk.as_ptr().cast_const()) });
    }
}

/// A pool.
#[derive(Debug)]
pub struct Pool {
    pd: Arc<Pd>,
    config: PoolConfig,
    free: Vec<Buf>,
    allocated: u32,
}

impl Pool {
    /// An empty pool; the first `take` makes the first chunk.
    pub fn new(pd: &Arc<Pd>, config: PoolConfig) -> Pool {
        Pool { pd: pd.clone(), config, free: Vec::new(), allocated: 0 }
    }

    /// Takes a buffer out, growing the pool if it is empty. Its contents are those of its last user.
    ///
    /// # Errors
    /// The limit is reached, or a chunk could not be had.
    #[inline]
    pub fn take(&mut self) -> Result<Buf, PoolError> {
        match self.free.pop() {
            Some(buf) => Ok(buf),
            None => self.grow(),
        }
    }

    /// The same, if there is one without that.
    #[inline(always)] // a result so large would come back through memory
    pub fn take_free(&mut self) -> Option<Buf> {
        self.free.pop()
    }

    /// Puts a buffer back.
    #[inline]
    pub fn put(&mut self, buf: Buf) {
        self.free.push(buf);
    }

    /// Makes the first chunk, so that a pool whose buffers come back never has to do without.
    ///
    /// # Errors
    /// It could not be had.
    pub fn reserve(&mut self) -> Result<(), PoolError> {
        if self.allocated == 0 {
            let buf = self.grow()?;
            self.put(buf);
        }
        Ok(())
    }

    /// Buffers in the pool.
    pub fn free_len(&self) -> usize {
        self.free.len()
    }

    /// Buffers in the pool and out of it.
    pub fn allocated(&self) -> u32 {
        self.allocated
    }

    #[cold]
    fn grow(&mut self) -> Result<Buf, PoolError> {
        let count = self.growth()?;
        let stride = stride(&self.config);
        let chunk = Arc::new(Chunk::new(&self.pd, stride * count as usize, self.config.access)?);
        // Lowest address on top: neighbours are used together.
        let offsets = (0..count as usize).rev().map(|i| i * stride);
        self.free.extend(offsets.map(|offset| Buf::new(&chunk, offset, self.config.buf_len)));
        self.allocated += count;
        self.free.pop().ok_or(PoolError::Exhausted(self.allocated))
    }

    fn growth(&self) -> Result<u32, PoolError> {
        let room = match self.config.max {
            0 => u32::MAX,
            max => max - self.allocated.min(max),
        };
        let unit = self.config.grow_by.max(1);
        let eighth = self.allocated / 8 / unit * unit;
        match unit.max(eighth).min(room) {
            0 => Err(PoolError::Exhausted(self.allocated)),
            count => Ok(count),
        }
    }
}

/// Buffers of this size and more do not begin at the same place of a cache as their neighbours.
const LARGE: usize = 8 << 10;

/// What sets neighbours apart: a page and a cache line.
const APART: usize = 4096 + 64;

/// Bytes from one buffer to the next. Sizes are powers of two as a rule, and most messages are shorter than their buffer: the first lines
/// of all buffers would share a few sets of a cache, and each message would find them gone.
fn stride(config: &PoolConfig) -> usize {
    let least = (config.buf_len.max(1) as usize).next_multiple_of(config.align.max(1) as usize);
    if least < LARGE || config.align > 64 { least } else { least + APART.wrapping_sub(least) % LARGE }
}
