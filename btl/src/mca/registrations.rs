//! The registrations of a module's user memory: one cache for put, get and `register_mem`.
//!
//! A registration covers whole pages and stays when its last user is done, so that the next transfer
//! of the memory finds it. Before each look the marks of `hooks` are read: what was released before the
//! call is never found; and if another library has patched the functions that release memory, nothing is. The cache's own lock is held for that and no longer: verbs are called and
//! registrations dropped without it. It costs the thread that takes it most next to nothing ([`sync::Lock`]): with many transfers one is looked for.
//!
//! Where releases are not seen, or by the user's wish, nothing is kept: each registration covers
//! what was asked for and goes with its user.

use super::handle::{Refused, RegHandle, Registered};
use super::hooks::{self, Code};
use crate::protocol::regcache::{Counters, Key, Limits, RegCache};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use sync::Lock;
use verbs::Access;

/// What the lock protects.
#[derive(Debug)]
struct Shelf {
    cache: RegCache<Arc<RegHandle>>,
    /// The number of the first release that the cache has not been told of.
    seen: u64,
    /// Registrations may stay without a user.
    keeps: bool,
    /// How the functions that release memory looked when the hooks were last known to see.
    code: Code,
    /// A thread is changing it, or has panicked doing so.
    is_changing: bool,
}

impl Shelf {
    /// What has been released, or may have been without our seeing it, is not found from now on.
    fn catch_up(&mut self) {
        if !self.code.is_as_now() {
            self.begin_again();
        }
        self.note_releases();
    }

    /// What was released meanwhile may have been seen or not.
    #[cold]
    fn begin_again(&mut self) {
        self.code = Code::now();
        self.keeps = hooks::look_again();
        self.cache.invalidate_all();
    }

    /// What has been seen to be released is not found from now on.
    fn note_releases(&mut self) {
        if self.seen == hooks::now() {
            return;
        }
        let cache = &mut self.cache;
        let (seen, all) = hooks::released_since(self.seen, |range| cache.invalidate(&range));
        self.seen = seen;
        if all.is_err() {
            cache.invalidate_all();
        }
    }
}

/// The registrations of one protection domain.
#[derive(Debug)]
pub struct Registrations {
    shelf: Lock<Shelf>,
    /// The process that registers. A child of it, by fork(2), has no registrations.
    owner: u32,
}

impl Registrations {
    /// None yet. They are kept within `limits` if releases of memory are seen.
    pub fn new(limits: Limits) -> Self {
        let keeps = hooks::is_watching() && limits.count > 0;
        let (cache, code) = (RegCache::new(limits), Code::now());
        let shelf = Shelf { cache, seen: hooks::now(), keeps, code, is_changing: false };
        Registrations { shelf: Lock::new(shelf), owner: std::process::id() }
    }

    /// A kept registration of this memory for at least this access, with one user more.
    pub fn find(&self, memory: &Range<usize>, access: Access) -> Option<*const RegHandle> {
        self.with(|shelf| {
            if !shelf.keeps {
                return None;
            }
            shelf.catch_up();
            shelf.cache.find(&pages(memory), access.bits()).map(Arc::as_ptr)
        })
    }

    /// Registers memory by `register`, which is told which addresses, and makes a handle of it. With
    /// one user.
    pub fn add(
        &self,
        memory: &Range<usize>,
        access: Access,
        register: impl FnOnce(&Range<usize>) -> Result<Registered, Refused>,
    ) -> Result<*const RegHandle, Refused> {
        let (keeps, before) = (self.with(|shelf| shelf.keeps), hooks::now());
        let range = if keeps { pages(memory) } else { memory.clone() };
        let registered = register(&range)?;
        Ok(self.with(|shelf| {
            // Only an erroneous program releases memory that it hands to MPI, but what comes next at
            // the same address may be another's.
            let list = shelf.keeps && keeps && hooks::sees(&range) && !hooks::touched_since(before, &range);
            let make = |key| Arc::new(registered.handle(key));
            Arc::as_ptr(shelf.cache.insert(range, access.bits(), list, make))
        }))
    }

    /// A user is done.
    pub fn release(&self, key: Key) {
        self.with(|shelf| {
            if shelf.keeps {
                shelf.note_releases();
            }
            shelf.cache.release(key);
        });
    }

    /// Gives up some registrations that have no user; whether there were any.
    pub fn shed(&self) -> bool {
        self.with(|shelf| shelf.cache.shed())
    }

    /// Nothing is kept from now on. What is in use goes with its user.
    pub fn close(&self) {
        self.with(|shelf| {
            shelf.keeps = false;
            shelf.cache.invalidate_all();
        });
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.with(|shelf| shelf.cache.counters())
    }

    /// Runs `f` under the lock, and deregisters what has gone when that is free again. After a panic there nothing is found any more.
    fn with<R>(&self, f: impl FnOnce(&mut Shelf) -> R) -> R {
        let mut shelf = self.shelf.lock();
        shelf.keeps &= !std::mem::replace(&mut shelf.is_changing, true);
        let result = f(&mut shelf);
        let gone = shelf.cache.take_gone();
        shelf.is_changing = false;
        drop(shelf);
        if !gone.is_empty() {
            self.deregister(gone);
        }
        result
    }

    #[inline(never)] // most often there is none
    fn deregister(&self, gone: Vec<Arc<RegHandle>>) {
        if std::process::id() != self.owner {
            // The parent's: its device would deregister them.
            std::mem::forget(gone);
        }
    }
}

/// The whole pages of a range; of an empty one none.
fn pages(range: &Range<usize>) -> Range<usize> {
    let page = page_size();
    let end = range.end.checked_next_multiple_of(page).unwrap_or(range.end);
    range.start & !(page - 1)..end
}

fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    // SAFETY: a query without pointers.
    *SIZE.get_or_init(|| usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_to_whole_pages() {
        let page = page_size();
        assert_eq!(pages(&(page + 1..page + 2)), page..2 * page);
        assert_eq!(pages(&(page..2 * page)), page..2 * page);
        assert_eq!(pages(&(2 * page - 1..2 * page + 1)), page..3 * page);
        assert!(pages(&(page..page)).is_empty());
        assert_eq!(pages(&(usize::MAX - 1..usize::MAX)).end, usize::MAX);
    }
}
