//! The parts of a segment that are mapped when they come into use: arenas of its heap, and rings.
//!
//! A segment is long, and most of it is never used, but address space may be limited (`ulimit -v`). What is mapped stays so: an arena
//! as long as its segment is attached, an inbound ring of ours as long as the device is open.
//!
//! A shortage has to be known before a message is acknowledged. So who attaches a peer maps one more of its own inbound rings, which
//! its peers claim from the first on: what a connected peer sends can be read.

use super::layout::*;
use super::map::Map;
use super::rq::{Place, Shape};
use crate::errno::Errno;
use std::fs::File;
use std::sync::{Arc, OnceLock};

/// The heap of a segment, as far as it is mapped.
#[derive(Debug)]
pub struct Heaps {
    tables: Arc<Map>,
    file: Arc<File>,
    /// Most processes have one arena.
    first: OnceLock<Arc<Map>>,
    others: OnceLock<Box<Arenas>>,
}

/// Those behind the first.
type Arenas = [OnceLock<Arc<Map>>; ARENAS - 1];

impl Heaps {
    /// Nothing of it is mapped.
    pub fn new(tables: &Arc<Map>, file: &Arc<File>) -> Heaps {
        let (first, others) = (OnceLock::new(), OnceLock::new());
        Heaps { tables: tables.clone(), file: file.clone(), first, others }
    }

    /// Where the mapping of an arena stands.
    fn place(&self, arena: usize) -> &OnceLock<Arc<Map>> {
        match arena.checked_sub(1) {
            None => &self.first,
            Some(other) => {
                &self.others.get_or_init(|| Box::new([const { OnceLock::new() }; ARENAS - 1]))[other]
            }
        }
    }

    /// A receive queue of this shape at `offset` of the segment. None: there can't be one.
    pub fn queue(&self, offset: usize, shape: Shape) -> Result<Option<Place>, Errno> {
        let Some((arena, within)) = arena_of_queue(offset, shape) else { return Ok(None) };
        let is_first = self.place(arena).get().is_none();
        let place = Place::new(self.arena(arena)?, within, offset, shape);
        if is_first {
            place.map_pages();
        }
        Ok(Some(place))
    }

    /// The mapping that `len` bytes at `offset` of the segment lie in, and where in it they begin. None: they can't be there.
    pub fn memory(&self, offset: usize, len: usize) -> Result<Option<(&Arc<Map>, usize)>, Errno> {
        let Some((arena, within)) = arena_of(offset, len) else { return Ok(None) };
        Ok(Some((self.arena(arena)?, within)))
    }

    /// The mapping of an arena.
    fn arena(&self, arena: usize) -> Result<&Arc<Map>, Errno> {
        mapped(self.place(arena), || self.tables.part(&self.file, HEAP + arena * ARENA, ARENA))
    }
}

/// The arena that has a queue of this shape at `offset`, and where in it the queue begins. None: what a peer says is impossible.
fn arena_of_queue(offset: usize, shape: Shape) -> Option<(usize, usize)> {
    let sane = offset.is_multiple_of(64) && shape.size.is_power_of_two() && shape.size <= 1 << 20;
    if sane { arena_of(offset, shape.bytes()) } else { None }
}

/// The same of `len` bytes.
fn arena_of(offset: usize, len: usize) -> Option<(usize, usize)> {
    let at = offset.checked_sub(HEAP).filter(|at| *at < HEAP_LEN)?;
    let (arena, within) = (at / ARENA, at % ARENA);
    (len <= ARENA && within + len <= ARENA).then_some((arena, within))
}

/// The inbound rings of our own segment, as far as they are mapped.
#[derive(Debug)]
pub struct Inlets {
    tables: Arc<Map>,
    file: Arc<File>,
    rings: Box<[OnceLock<Arc<Map>>]>,
}

impl Inlets {
    /// None of them is mapped.
    pub fn new(tables: &Arc<Map>, file: &Arc<File>) -> Inlets {
        let rings = (0..RINGS).map(|_| OnceLock::new()).collect();
        Inlets { tables: tables.clone(), file: file.clone(), rings }
    }

    /// The mapping of ring `index`.
    pub fn ring(&self, index: usize) -> Result<&Arc<Map>, Errno> {
        let place = self.rings.get(index).ok_or(Errno::INVAL)?;
        mapped(place, || self.tables.part(&self.file, ring_data(index), RING_LEN))
    }

    /// Maps as many rings as `peers` processes claim.
    pub fn expect(&self, peers: usize) -> Result<(), Errno> {
        (0..peers.min(RINGS)).try_for_each(|index| self.ring(index).map(drop))
    }

    /// Our tables, where peers write what they say of their rings.
    pub fn tables(&self) -> &Arc<Map> {
        &self.tables
    }
}

/// What is mapped in `place`, mapped now if it is not.
fn mapped(place: &OnceLock<Arc<Map>>, map: impl FnOnce() -> Result<Map, Errno>) -> Result<&Arc<Map>, Errno> {
    match place.get() {
        Some(map) => Ok(map),
        None => {
            let new = Arc::new(map()?);
            Ok(place.get_or_init(|| new))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_lies_in_one_arena_or_is_not_believed() {
        let arena_of = |offset, size| arena_of_queue(offset, Shape { size, shared: true });
        assert_eq!(arena_of(HEAP, 64), Some((0, 0)));
        assert_eq!(arena_of(HEAP + ARENA + 4096, 64), Some((1, 4096)));
        assert_eq!(arena_of(HEAP + ARENA - 64, 64), None);
        assert_eq!(arena_of(HEAP + HEAP_LEN, 64), None);
        for (offset, size) in
            [(0, 64), (HEAP - 64, 64), (HEAP + 32, 64), (HEAP, 63), (HEAP, 0), (HEAP, 1 << 20)]
        {
            assert_eq!(arena_of(offset, size), None, "{offset} {size}");
        }
        assert_eq!(arena_of(usize::MAX & !63, 1 << 31), None);
    }

    #[test]
    fn so_does_memory() {
        assert_eq!(arena_of(HEAP + 5, ARENA - 5), Some((0, 5)));
        for (offset, len) in
            [(HEAP + 5, ARENA - 4), (HEAP - 1, 1), (HEAP + HEAP_LEN, 0), (usize::MAX, 1), (HEAP, usize::MAX)]
        {
            assert_eq!(arena_of(offset, len), None, "{offset} {len}");
        }
    }
}
