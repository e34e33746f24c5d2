//! The registration cache against a plain model: a list of registrations that is searched.

use mca_btl_oxib::protocol::regcache::{Counters, Key, Limits, RegCache};
use proptest::prelude::*;
use std::ops::Range;

const READ: u32 = 4;
const WRITE: u32 = 3;
const NO_LIMIT: Limits = Limits { count: usize::MAX, bytes: usize::MAX };

/// A registration: its number, and the key under which the cache has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reg {
    id: usize,
    key: Key,
}

/// What is true of each registration, by number.
#[derive(Debug)]
struct Known {
    range: Range<usize>,
    access: u32,
    users: u32,
    stale: bool,
    /// A later one covers it and allows as much: it may be found no more.
    superseded: bool,
    /// Given back; it may happen once.
    gone: bool,
}

#[derive(Debug)]
struct World {
    cache: RegCache<Reg>,
    limits: Limits,
    known: Vec<Known>,
    /// Users that have not released yet.
    held: Vec<Reg>,
}

impl World {
    fn new(limits: Limits) -> World {
        World { cache: RegCache::new(limits), limits, known: Vec::new(), held: Vec::new() }
    }

    /// As `register_mem`: finds, or registers.
    fn ask(&mut self, range: Range<usize>, access: u32) -> bool {
        let found = self.cache.find(&range, access).copied();
        let fits = |known: &Known| {
            !known.stale
                && !known.gone
                && known.access & access == access
                && known.range.start <= range.start
                && known.range.end >= range.end
        };
        let user = match found {
            Some(reg) => {
                assert!(
                    fits(&self.known[reg.id]),
                    "{reg:?} is found for {range:?}: {:?}",
                    self.known[reg.id]
                );
                reg
            }
            None => {
                if self.limits == NO_LIMIT {
                    let mut current = self.known.iter().filter(|known| !known.superseded);
                    assert!(!current.any(fits), "{range:?} is not found");
                }
                let id = self.register(&range, access);
                *self.cache.insert(range, access, true, |key| Reg { id, key })
            }
        };
        self.known[user.id].users += 1;
        self.held.push(user);
        self.settle();
        found.is_some()
    }

    fn register(&mut self, range: &Range<usize>, access: u32) -> usize {
        let covered = |known: &&mut Known| {
            known.access & !access == 0 && range.start <= known.range.start && known.range.end <= range.end
        };
        self.known.iter_mut().filter(covered).for_each(|known| known.superseded = true);
        let range = range.clone();
        self.known.push(Known { range, access, users: 0, stale: false, superseded: false, gone: false });
        self.known.len() - 1
    }

    fn release(&mut self, at: usize) {
        if self.held.is_empty() {
            return;
        }
        let user = self.held.swap_remove(at % self.held.len());
        self.known[user.id].users -= 1;
        self.cache.release(user.key);
        self.settle();
    }

    fn invalidate(&mut self, range: Range<usize>) {
        let hit = |known: &&mut Known| known.range.start < range.end && known.range.end > range.start;
        self.known.iter_mut().filter(hit).for_each(|known| known.stale = true);
        self.cache.invalidate(&range);
        self.settle();
    }

    /// Takes what has gone, and checks what holds after each step.
    fn settle(&mut self) {
        for reg in self.cache.take_gone() {
            let known = &mut self.known[reg.id];
            assert!(!known.gone, "{reg:?} is given back twice");
            assert_eq!(known.users, 0, "{reg:?} is given back while it is used");
            known.gone = true;
        }
        for known in self.known.iter().filter(|known| known.users == 0 && known.stale) {
            assert!(known.gone, "{known:?} is stale and unused, and stays");
        }
        let listed = self.cache.listed();
        let over = listed.count > self.limits.count || listed.bytes > self.limits.bytes;
        assert!(!over || self.cache.idle() == 0, "over the limits with idle ones: {listed:?}");
    }

    fn end(mut self) {
        while !self.held.is_empty() {
            self.release(0);
        }
        self.cache.invalidate_all();
        self.settle();
        assert!(self.known.iter().all(|known| known.gone), "a registration is never given back");
        assert_eq!(self.cache.listed(), Limits { count: 0, bytes: 0 });
    }
}

#[derive(Debug, Clone)]
enum Step {
    Ask(Range<usize>, u32),
    Release(usize),
    Invalidate(Range<usize>),
    Shed,
}

fn range() -> impl Strategy<Value = Range<usize>> {
    (0..60_usize, 1..14_usize).prop_map(|(start, len)| start..start + len)
}

fn step() -> impl Strategy<Value = Step> {
    let access = prop_oneof![Just(0), Just(1), Just(WRITE), Just(READ), Just(READ | WRITE)];
    prop_oneof![
        6 => (range(), access).prop_map(|(range, access)| Step::Ask(range, access)),
        5 => any::<usize>().prop_map(Step::Release),
        2 => range().prop_map(Step::Invalidate),
        1 => Just(Step::Shed),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    prop_oneof![
        Just(NO_LIMIT),
        (0..8_usize).prop_map(|count| Limits { count, ..NO_LIMIT }),
        (0..60_usize).prop_map(|bytes| Limits { bytes, ..NO_LIMIT }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_found_covers_and_is_valid_and_each_registration_is_given_back_once(
        limits in limits(),
        steps in proptest::collection::vec(step(), 0..200),
    ) {
        let mut world = World::new(limits);
        for step in steps {
            match step {
                Step::Ask(range, access) => drop(world.ask(range, access)),
                Step::Release(at) => world.release(at),
                Step::Invalidate(range) => world.invalidate(range),
                // The model of what is found does not know what was shed.
                Step::Shed if world.limits == NO_LIMIT => {}
                Step::Shed => {
                    let idle = world.cache.idle();
                    prop_assert_eq!(world.cache.shed(), idle > 0);
                    prop_assert_eq!(world.cache.idle(), idle / 2);
                    world.settle();
                }
            }
        }
        world.end();
    }
}

#[test]
fn the_least_recently_used_idle_registration_goes_first_and_a_used_one_never() {
    let mut world = World::new(Limits { count: 3, bytes: usize::MAX });
    for start in [0, 10, 20] {
        assert!(!world.ask(start..start + 4, READ));
    }
    // The registration of 0 stays in use; that of 10 becomes idle before that of 20, and is used again.
    world.release(1);
    world.release(1);
    assert!(world.ask(10..14, READ));
    world.release(1);
    assert!(!world.ask(30..34, READ), "a fourth registration");
    assert!(world.ask(0..4, READ) && world.ask(10..14, READ), "the wrong one went");
    assert_eq!(world.cache.counters().evicted, 1);
    assert!(!world.ask(20..24, READ), "20 was used least recently");
    world.end();
}

#[test]
fn a_registration_in_use_outlives_its_memory_until_its_last_user_is_done() {
    let mut world = World::new(NO_LIMIT);
    world.ask(0..8, WRITE);
    assert!(world.ask(2..3, WRITE), "a part of it");
    world.invalidate(7..9);
    assert!(!world.ask(2..3, WRITE), "found after its memory was released");
    assert_eq!(world.cache.counters().invalidated, 1);
    world.release(0);
    assert!(!world.known[0].gone, "one user is left");
    world.end();
}

#[test]
fn with_no_place_for_any_each_registration_goes_with_its_user() {
    let mut world = World::new(Limits { count: 0, bytes: usize::MAX });
    world.ask(0..8, WRITE);
    world.release(0);
    assert!(world.known[0].gone);
    world.end();
}

#[test]
fn as_many_bytes_stay_registered_as_the_limit_says_and_no_more() {
    let mut world = World::new(Limits { count: usize::MAX, bytes: 8 });
    for start in [0, 10] {
        assert!(!world.ask(start..start + 4, READ));
        world.release(start / 10);
    }
    assert_eq!(world.cache.counters().evicted, 0, "eight bytes are within the limit");
    assert!(!world.ask(20..21, READ));
    world.release(2);
    assert_eq!(world.cache.counters().evicted, 1, "nine are not");
    assert!(!world.ask(0..4, READ), "the first has gone");
    world.end();
}

#[test]
fn each_counter_counts_what_it_is_named_after() {
    let mut world = World::new(Limits { count: 2, ..NO_LIMIT });
    for start in [0, 10] {
        assert!(!world.ask(start..start + 4, READ));
    }
    assert!(world.ask(0..4, READ) && world.ask(1..2, READ) && world.ask(10..14, READ));
    let counted = Counters { hits: 3, misses: 2, evicted: 0, invalidated: 0 };
    assert_eq!(world.cache.counters(), counted);
    world.invalidate(3..11);
    assert_eq!(world.cache.counters(), Counters { invalidated: 2, ..counted });
    world.end();
}

#[test]
fn a_registration_that_is_not_to_be_listed_is_found_by_no_request_and_goes_with_its_user() {
    let mut cache = RegCache::new(NO_LIMIT);
    let own = *cache.insert(0..8, READ, false, |key| Reg { id: 0, key });
    assert_eq!(cache.find(&(0..8), READ), None);
    assert_eq!(cache.listed().count, 0);
    cache.release(own.key);
    assert_eq!((cache.take_gone(), cache.idle()), (vec![own], 0));
}

#[test]
fn memory_beside_what_was_released_stays_registered() {
    let mut world = World::new(NO_LIMIT);
    for start in [0, 4, 8] {
        assert!(!world.ask(start..start + 4, READ));
    }
    world.invalidate(4..8);
    assert_eq!(world.cache.counters().invalidated, 1);
    assert!(world.ask(0..4, READ) && world.ask(8..12, READ), "the neighbours");
    assert!(!world.ask(4..8, READ));
    world.end();
}
