//! Where receive queues are placed in our segment: a first-fit allocator of whole cache lines. No extent crosses the border of an arena,
//! which is what peers map. What is free reads as zeroes: who gives back an extent that has been written to gives its space back before, and keeps the extent where that fails
//! ([`give_space`](super::space::give_space)).
//!
//! The book-keeping is private to the owner (a sorted list of free extents); peers learn offsets from
//! the QP table. Used only when queues are created and destroyed.

use super::layout::{ARENA, HEAP, HEAP_LEN};

const LINE: usize = 64;

/// Free extents `(offset, len)`, sorted, never adjacent.
#[derive(Debug)]
pub struct Heap {
    free: Vec<(usize, usize)>,
}

/// A piece of the heap; give it back with [`Heap::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the segment.
    pub offset: usize,
    /// Bytes, whole cache lines.
    pub len: usize,
}

impl Default for Heap {
    fn default() -> Heap {
        Heap { free: vec![(HEAP, HEAP_LEN)] }
    }
}

impl Heap {
    /// The first hole of that many bytes in one arena; None: there is none.
    pub fn alloc(&mut self, len: usize) -> Option<Extent> {
        let len = len.next_multiple_of(LINE);
        let (at, offset) =
            self.free.iter().enumerate().find_map(|(at, &hole)| Some((at, start_in(hole, len)?)))?;
        let (start, free) = self.free[at];
        let parts = [(start, offset - start), (offset + len, start + free - offset - len)];
        self.free.splice(at..=at, parts.into_iter().filter(|&(_, len)| len > 0));
        Some(Extent { offset, len })
    }

    /// From here on nothing has been given away.
    pub fn end(&self) -> usize {
        let last = self.free.last().copied().filter(|(offset, len)| offset + len == HEAP + HEAP_LEN);
        last.map_or(HEAP + HEAP_LEN, |(offset, _)| offset)
    }

    /// Gives an extent back; neighbours grow together.
    pub fn release(&mut self, extent: Extent) {
        let at = self.free.partition_point(|&(offset, _)| offset < extent.offset);
        self.free.insert(at, (extent.offset, extent.len));
        self.merge(at);
        if at > 0 {
            self.merge(at - 1);
        }
    }

    fn merge(&mut self, at: usize) {
        let Some(&(next, len)) = self.free.get(at + 1) else { return };
        if self.free[at].0 + self.free[at].1 == next {
            self.free[at].1 += len;
            self.free.remove(at + 1);
        }
    }
}

/// Where in a hole `len` bytes begin that lie in one arena.
fn start_in((start, free): (usize, usize), len: usize) -> Option<usize> {
    let next = start.next_multiple_of(ARENA);
    let offset = if start + len <= next { start } else { next };
    (len <= ARENA && offset + len <= start + free).then_some(offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents_never_overlap_and_everything_comes_back(sizes in prop::collection::vec(1usize..600_000, 1..50)) {
            let mut heap = Heap::default();
            let mut taken: Vec<Extent> = sizes.iter().filter_map(|&len| heap.alloc(len)).collect();
            taken.sort_by_key(|extent| extent.offset);
            for extent in &taken {
                prop_assert_eq!(extent.offset / ARENA, (extent.offset + extent.len - 1) / ARENA);
            }
            for pair in taken.windows(2) {
                prop_assert!(pair[0].offset + pair[0].len <= pair[1].offset);
            }
            for extent in taken.iter().step_by(2).chain(taken.iter().skip(1).step_by(2)) {
                heap.release(*extent);
            }
            prop_assert_eq!(heap.free, vec![(HEAP, HEAP_LEN)]);
        }
    }
}
