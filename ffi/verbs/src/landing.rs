//! Memory that a peer writes to by RDMA WRITE while we look at it.
//!
//! A device that writes the bytes of one request in order of their addresses, as adapters do and the software device does, lets who sees the last
//! word of what was written see all of it. Of another one's, all [words](WordRead::words) have to be looked at. Two sides agree by other means on
//! what may be written when: bytes are [lent](WordRead::lend) when all of them are there, and the peer is told that it may write there again when
//! they are [back](Landing::back).

use crate::error::{Error, leaked};
use crate::mr::{Access, Mr, Pd};
use crate::pool::Mapping;
use crate::recv::Lent;
use crate::types::RKey;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
const WORD: usize = 8;

/// A cache line.
const LINE: usize = 64;

/// Where memory comes from.
#[derive(Debug)]
enum Memory {
    Own(Mapping),
    /// Memory that the software device shares with peers, and how it is given back.
    Shared(NonNull<u8>, unsafe extern "C" fn(*mut c_void) -> c_int),
}

// SAFETY: a mapping or a piece of one, and a function that any thread may call; what is in it is reached by the owners of a `Memory` only.
unsafe impl Send for Memory {}
// SAFETY: shared references give out its address only.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(pd: &Pd, len: usize) -> Result<Memory, Error> {
        let table = pd.context().table();
        let none = || Error::last("oxib_share_memory", format!("{len} bytes on {}", pd.context().name()));
        let (Some(share), Some(unshare)) = (table.share_memory, table.unshare_memory) else {
            let none = || Error::new("mmap", format!("{len} bytes"), libc::ENOMEM);
            return Mapping::new(len).map(Memory::Own).ok_or_else(none);
        };
        // SAFETY: a function of the library that this context is of, which is open.
        let at = NonNull::new(unsafe { share(len) }.cast()).ok_or_else(none)?;
        Ok(Memory::Shared(at, unshare))
    }

    fn start(&self) -> NonNull<u8> {
        match self {
            Memory::Own(mapping) => mapping.start(),
            Memory::Shared(at, _) => *at,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Memory::Shared(at, unshare) = self {
            // SAFETY: what the software device has given out, once; there is no registration any more.
            let code = unsafe { unshare(at.as_ptr().cast()) };
            leaked("oxib_unshare_memory", code, &format_args!("{at:?}"));
        }
    }
}

/// Registered memory of its own, zero at first.
#[derive(Debug)]
#[repr(C)] // in this order: what each look reads comes first
pub struct Landing {
    at: NonNull<u8>,
    len: usize,
    /// Pieces of it that are lent.
    lent: usize,
    /// The registration goes first. Boxed: no message needs it.
    mr: ManuallyDrop<Box<Mr>>,
    memory: ManuallyDrop<Arc<Memory>>,
}

/// A word of a [`Landing`], for who looks at it again and again. It keeps the memory, which may be registered no more.
#[derive(Debug)]
pub struct Watch {
    word: NonNull<AtomicU64>,
    memory: Option<Arc<Memory>>,
}

/// What is watched where there is nothing.
static NOWHERE: AtomicU64 = AtomicU64::new(0);

impl Watch {
    /// A word that is always 0.
    pub fn nowhere() -> Watch {
        Watch { word: NonNull::from(&NOWHERE), memory: None }
    }

    /// The word; what was written before it can be read then. The line before it is asked for, too.
    #[inline(always)] // with every look
    pub fn word(&self) -> u64 {
        prefetch(self.word.cast(), 0usize.wrapping_sub(LINE));
        // SAFETY: a word of `memory` or of the program's; atomics tolerate other writers.
        unsafe { self.word.as_ref() }.load(Ordering::Acquire)
    }

    /// Looks at a word of this memory from now on.
    fn look_at(&mut self, word: NonNull<AtomicU64>, memory: &Arc<Memory>) {
        self.word = word;
        if !self.memory.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, memory)) {
            self.memory = Some(Arc::clone(memory));
        }
    }
}

// SAFETY: it loads a word of memory that it keeps, and that any thread may read.
unsafe impl Send for Watch {}
// SAFETY: shared references load that word.
unsafe impl Sync for Watch {}

/// A word of a [`Landing`], and so many bytes before it.
#[derive(Debug)]
pub struct WordRead<'a> {
    /// The word.
    pub word: u64,
    /// Where it is.
    pub place: Place,
    /// Bytes of the memory.
    len: usize,
    lent: &'a mut usize,
}

/// The place of a word of a [`Landing`].
#[derive(Clone, Copy, Debug)]
pub struct Place {
    start: NonNull<u8>,
    before: usize,
}

impl Place {
    /// Asks for the line so many bytes before the word.
    #[inline(always)] // with every message
    pub fn prefetch(self, before: usize) {
        prefetch(self.start, self.before.wrapping_sub(before));
    }
}

impl WordRead<'_> {
    /// The words that the last `len` bytes before the word are in, the last one first; what is not of these bytes is 0. `None`: there are not so
    /// many.
    #[inline]
    pub fn words(&self, len: usize) -> Option<impl Iterator<Item = u64>> {
        let Place { start, before } = self.place;
        before.checked_sub(len)?;
        let (whole, rest) = (len / WORD, len % WORD);
        // SAFETY: whole words of the memory, which is aligned to pages, for `before` is a multiple of a word; atomics tolerate other writers.
        let word = move |behind| unsafe {
            start.byte_add(before - (behind + 1) * WORD).cast::<AtomicU64>().as_ref()
        };
        let word = move |behind| word(behind).load(Ordering::Relaxed);
        let first = (rest != 0).then(|| word(whole) & u64::MAX << (8 * (WORD - rest)));
        Some((0..whole).map(word).chain(first))
    }

    /// The last bytes before the word, which the peer does not write to before they are back. `None`: there are not so many.
    #[inline(always)] // with every message
    pub fn lend(self, len: usize) -> Option<Lent> {
        let Place { start, before } = self.place;
        let at = before.checked_sub(len)?;
        *self.lent += 1;
        // SAFETY: inside the memory, which is not freed while something is lent.
        Some(unsafe { Lent::of(start.add(at), len) })
    }

    /// The same in place of bytes of this memory, which come back.
    ///
    /// # Errors
    /// Those bytes: they are of another memory, or there are not so many before the word.
    #[inline(always)] // with every message
    pub fn lend_instead(self, done: Lent, len: usize) -> Result<Lent, Lent> {
        let Place { start, before } = self.place;
        let (Some(at), Some(_)) = (before.checked_sub(len), place_within(&done, start, self.len)) else {
            return Err(done);
        };
        // SAFETY: inside the memory, which is not freed while something is lent: as much as before.
        Ok(unsafe { Lent::of(start.add(at), len) })
    }
}

/// Where bytes begin that a memory has lent. `None`: they are of another one.
#[inline(always)] // with every message
fn place_within(lent: &Lent, start: NonNull<u8>, len: usize) -> Option<usize> {
    // Behind what is lent there is a word: also of no bytes none begins at the end.
    let place = lent.addr().wrapping_sub(start.as_ptr() as usize);
    (place < len).then_some(place)
}

// SAFETY: it owns its memory, which only it, what it has lent and what watches a word of it reach in this process.
unsafe impl Send for Landing {}
// SAFETY: shared references load words.
unsafe impl Sync for Landing {}

impl Landing {
    /// So many bytes; on the software device in memory that peers map, so that they write to it without a system call.
    ///
    /// # Errors
    /// There is no memory, or no registration for it.
    pub fn new(pd: &Arc<Pd>, len: usize) -> Result<Landing, Error> {
        let memory = Arc::new(Memory::new(pd, len)?);
        let (at, access) = (memory.start(), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        // SAFETY: the memory is ours and goes behind its registration. What peers write is taken for bytes that may be anything.
        let mr = unsafe { Mr::register(pd, at.as_ptr(), len, access) }?;
        Ok(Landing {
            at,
            len,
            lent: 0,
            mr: ManuallyDrop::new(Box::new(mr)),
            memory: ManuallyDrop::new(memory),
        })
    }

    /// Where peers write: its first byte, and its key.
    pub fn remote(&self) -> (u64, RKey) {
        (self.at.as_ptr() as u64, self.mr.rkey())
    }

    /// The word that this place, counted in words, is of; what was written before it can be read then. 0: there is none.
    #[inline(always)] // with every look
    pub fn word(&self, place: usize) -> u64 {
        match self.word_at(place) {
            Some(word) => word.load(Ordering::Acquire),
            None => 0,
        }
    }

    /// Has `watch` look at this place, counted in words, from now on. Whether there is one.
    #[inline]
    pub fn watch(&self, place: usize, watch: &mut Watch) -> bool {
        let Some(word) = self.word_at(place) else {
            *watch = Watch::nowhere();
            return false;
        };
        watch.look_at(word.into(), &self.memory);
        true
    }

    /// Changes the word that this place, counted in words, is of. Nothing is done where there is none.
    pub fn put_word(&self, place: usize, word: u64) {
        if let Some(at) = self.word_at(place) {
            at.store(word, Ordering::Relaxed);
        }
    }

    /// Where bytes begin that are lent. `None`: they are of another memory.
    pub fn place_of(&self, lent: &Lent) -> Option<usize> {
        place_within(lent, self.at, self.len)
    }

    /// Makes the line of this word, and the one before it, this processor's: who writes there gets them from one owner. Nothing is
    /// changed.
    #[inline]
    pub fn own(&self, place: usize) {
        for place in [place, place.saturating_sub(LINE / WORD)] {
            if let Some(word) = self.word_at(place) {
                let now = word.load(Ordering::Relaxed);
                let _changed_by_the_peer =
                    word.compare_exchange(now, now, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    #[inline(always)] // with every look
    fn word_at(&self, place: usize) -> Option<&AtomicU64> {
        // SAFETY: so many words are inside, and their memory is aligned to pages; atomics tolerate other writers.
        (place < self.len / WORD).then(|| unsafe { self.at.cast::<AtomicU64>().add(place).as_ref() })
    }

    /// Asks for the line of the byte at this place.
    #[inline(always)] // with every look
    pub fn prefetch(&self, place: usize) {
        prefetch(self.at, place);
    }

    /// The last [word](Self::word) among the first `end` bytes, and what lies before it. `None`: there is no such word.
    #[inline(always)] // with every message
    pub fn read_before(&mut self, end: usize) -> Option<WordRead<'_>> {
        let before = end.wrapping_sub(WORD) & !(WORD - 1);
        if before >= self.len & !(WORD - 1) {
            return None;
        }
        // SAFETY: a whole word of the memory, which is aligned to pages, for both places are multiples of its length; atomics tolerate other writers.
        let word = unsafe { self.at.byte_add(before).cast::<AtomicU64>().as_ref() }.load(Ordering::Acquire);
        Some(WordRead { word, place: Place { start: self.at, before }, len: self.len, lent: &mut self.lent })
    }

    /// Bytes of it come back; whether none is lent any more.
    ///
    /// # Errors
    /// They are of another memory.
    #[inline(always)] // with every message
    pub fn back(&mut self, lent: Lent) -> Result<bool, Lent> {
        if self.place_of(&lent).is_none() || self.lent == 0 {
            return Err(lent);
        }
        self.lent -= 1;
        Ok(self.lent == 0)
    }

    /// Some of it is lent.
    pub fn is_lent(&self) -> bool {
        self.lent != 0
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if self.lent != 0 {
            return log::debug!("memory of {} bytes that is still read stays registered", self.len);
        }
        // SAFETY: each once, and not used afterwards.
        unsafe {
            ManuallyDrop::drop(&mut self.mr);
            ManuallyDrop::drop(&mut self.memory);
        }
    }
}

/// Asks for a line, wherever that is.
#[inline(always)] // with every look
fn prefetch(start: NonNull<u8>, place: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint has no effect on memory, whatever the address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(start.as_ptr().wrapping_add(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, place);
}
