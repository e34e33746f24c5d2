//! A cache of memory registrations: which one covers a range, how many use it, and which one goes.
//!
//! ```text
//!   find(range, access) ── hit ──> one more user ──> release(key) ──> idle, kept ──> found again
//!        │ miss                                                         │ over a limit: the idle one
//!        └──> the caller registers ──> insert                           └ that was used least recently goes
//!
//!   invalidate(range)   idle: goes at once;  used: stale, never found again, goes with its last user
//! ```
//!
//! The one that became idle last is not listed among the others before another one does: a program that transfers the same memory again and
//! again finds it without a change of that list.
//!
//! What goes is collected in [`take_gone`](RegCache::take_gone), so that the caller can deregister
//! it when it holds no lock.
//!
//! Registrations of equal access form a class. In a class no listed range lies inside another: what
//! a new one covers is superseded by it. Starts and ends ascend together then, so the one listed range that
//! can cover a request is the last that starts at or before it, and those that overlap a range
//! are neighbours.

#![forbid(unsafe_code)]

use slab::Slab;
use std::collections::BTreeMap;
use std::ops::Range;

/// Names a registration in the cache, from `insert` or `find` to the user's `release`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(usize);

/// What the cache may keep. Registrations in use count, but only idle ones go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Registrations.
    pub count: usize,
    /// Bytes of all of them.
    pub bytes: usize,
}

/// What happened since the cache was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that a registration in the cache covered.
    pub hits: u64,
    /// Requests that none covered.
    pub misses: u64,
    /// Idle registrations that went because of a limit or a shortage.
    pub evicted: u64,
    /// Registrations whose memory was released, or may have been.
    pub invalidated: u64,
}

#[derive(Debug)]
struct Entry<R> {
    registration: R,
    range: Range<usize>,
    access: u32,
    users: u32,
    /// When it became idle; a place in `RegCache::idle` while it is listed and has no user, unless it is `RegCache::latest`.
    since: u64,
    /// Can be found. What is not listed goes with its last user.
    listed: bool,
}

/// The listed ranges of equal access: start to end and key.
#[derive(Debug)]
struct Class {
    access: u32,
    ranges: BTreeMap<usize, (usize, Key)>,
}

impl Class {
    fn covering(&self, range: &Range<usize>) -> Option<Key> {
        let (_, &(end, key)) = self.ranges.range(..=range.start).next_back()?;
        (end >= range.end).then_some(key)
    }

    fn overlapping(&self, range: &Range<usize>) -> impl Iterator<Item = Key> {
        let from = range.start;
        let before_end = self.ranges.range(..range.end).rev();
        before_end.take_while(move |(_, (end, _))| *end > from).map(|(_, (_, key))| *key)
    }

    fn inside(&self, range: &Range<usize>) -> impl Iterator<Item = Key> {
        let to = range.end;
        let from_start = self.ranges.range(range.start..);
        from_start.take_while(move |(_, (end, _))| *end <= to).map(|(_, (_, key))| *key)
    }
}

/// The cache. `R` is a registration; dropping one is the caller's to time.
#[derive(Debug)]
pub struct RegCache<R> {
    limits: Limits,
    entries: Slab<Entry<R>>,
    /// Few: as many as there are kinds of access.
    classes: Vec<Class>,
    /// Listed entries without users, but for the latest, the least recently used first.
    idle: BTreeMap<u64, Key>,
    /// The listed entry that became idle last, if it still is.
    latest: Option<Key>,
    /// Counts up whenever an entry becomes idle.
    clock: u64,
    /// Listed entries, and their bytes.
    listed: Limits,
    gone: Vec<R>,
    counters: Counters,
}

impl<R> RegCache<R> {
    /// An empty cache.
    pub fn new(limits: Limits) -> Self {
        RegCache {
            limits,
            entries: Slab::new(),
            classes: Vec::new(),
            idle: BTreeMap::new(),
            latest: None,
            clock: 0,
            listed: Limits { count: 0, bytes: 0 },
            gone: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// A registration that covers `range` with at least `access`; it has one user more then.
    pub fn find(&mut self, range: &Range<usize>, access: u32) -> Option<&R> {
        let Some(key) = self.covering(range, access) else {
            self.counters.misses += 1;
            return None;
        };
        self.counters.hits += 1;
        if self.entries[key.0].users == 0 {
            self.unidle(key);
        }
        let entry = &mut self.entries[key.0];
        entry.users += 1;
        Some(&entry.registration)
    }

    /// Takes a new registration in, with one user. `list`: others may find it.
    pub fn insert(
        &mut self,
        range: Range<usize>,
        access: u32,
        list: bool,
        make: impl FnOnce(Key) -> R,
    ) -> &R {
        // Another thread may have registered the range meanwhile.
        let listed = list && self.covering(&range, access).is_none();
        if listed {
            self.supersede(&range, access);
        }
        let vacant = self.entries.vacant_entry();
        let key = Key(vacant.key());
        let registration = make(key);
        vacant.insert(Entry { registration, range: range.clone(), access, users: 1, since: 0, listed });
        if listed {
            self.list(key, range, access);
            self.trim();
        }
        &self.entries[key.0].registration
    }

    /// A user is done. A listed registration stays, idle, as long as the limits allow.
    pub fn release(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(key.0) else { return };
        entry.users = entry.users.saturating_sub(1);
        match (entry.users, entry.listed) {
            (0, true) => {
                self.clock += 1;
                entry.since = self.clock;
                self.list_latest();
                self.latest = Some(key);
                self.trim();
            }
            (0, false) => self.drop_entry(key),
            _ => {}
        }
    }

    /// The memory of `range` has been released: no registration that overlaps it is found again.
    pub fn invalidate(&mut self, range: &Range<usize>) {
        let keys: Vec<Key> = self.classes.iter().flat_map(|class| class.overlapping(range)).collect();
        self.counters.invalidated += keys.len() as u64;
        keys.into_iter().for_each(|key| self.unlist(key));
    }

    /// Any memory may have been released.
    pub fn invalidate_all(&mut self) {
        self.invalidate(&(0..usize::MAX));
    }

    /// Lets the less recently used half of the idle registrations go, at least one; whether there
    /// was one. For a shortage of what registrations need.
    pub fn shed(&mut self) -> bool {
        let some = self.idle().div_ceil(2);
        (0..some).for_each(|_| self.evict());
        some > 0
    }

    /// Registrations that nothing names any more: to be deregistered.
    pub fn take_gone(&mut self) -> Vec<R> {
        std::mem::take(&mut self.gone)
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Registrations that can be found, and their bytes.
    pub fn listed(&self) -> Limits {
        self.listed
    }

    /// Registrations that can be found and have no user.
    pub fn idle(&self) -> usize {
        self.idle.len() + usize::from(self.latest.is_some())
    }

    /// The latest one that became idle is one of many.
    fn list_latest(&mut self) {
        if let Some(key) = self.latest.take() {
            self.idle.insert(self.entries[key.0].since, key);
        }
    }

    /// An entry without users has one, or goes.
    fn unidle(&mut self, key: Key) {
        if self.latest == Some(key) {
            self.latest = None;
        } else {
            self.idle.remove(&self.entries[key.0].since);
        }
    }

    fn covering(&self, range: &Range<usize>, access: u32) -> Option<Key> {
        let classes = self.classes.iter().filter(|class| class.access & access == access);
        classes.filter_map(|class| class.covering(range)).next()
    }

    /// Unlists what a new registration makes superfluous.
    fn supersede(&mut self, range: &Range<usize>, access: u32) {
        let classes = self.classes.iter().filter(|class| class.access & !access == 0);
        let keys: Vec<Key> = classes.flat_map(|class| class.inside(range)).collect();
        keys.into_iter().for_each(|key| self.unlist(key));
    }

    fn list(&mut self, key: Key, range: Range<usize>, access: u32) {
        self.listed.count += 1;
        self.listed.bytes += range.len();
        let class = match self.classes.iter().position(|class| class.access == access) {
            Some(at) => &mut self.classes[at],
            None => {
                self.classes.push(Class { access, ranges: BTreeMap::new() });
                let last = self.classes.len() - 1;
                &mut self.classes[last]
            }
        };
        class.ranges.insert(range.start, (range.end, key));
    }

    /// The entry is not found any more; without a user it goes.
    fn unlist(&mut self, key: Key) {
        let entry = &mut self.entries[key.0];
        let (access, start, users) = (entry.access, entry.range.start, entry.users);
        entry.listed = false;
        self.listed.count -= 1;
        self.listed.bytes -= entry.range.len();
        let class = self.classes.iter_mut().find(|class| class.access == access);
        class.map(|class| class.ranges.remove(&start));
        if users == 0 {
            self.unidle(key);
            self.drop_entry(key);
        }
    }

    fn drop_entry(&mut self, key: Key) {
        let entry = self.entries.remove(key.0);
        self.gone.push(entry.registration);
    }

    fn evict(&mut self) {
        let Some(key) = self.idle.first_key_value().map(|(_, &key)| key).or(self.latest) else { return };
        self.counters.evicted += 1;
        self.unlist(key);
    }

    fn trim(&mut self) {
        let Limits { count, bytes } = self.limits;
        while (self.listed.count > count || self.listed.bytes > bytes) && self.idle() != 0 {
            self.evict();
        }
    }
}
