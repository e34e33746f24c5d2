//! Where receive queues are placed in our segment: a first-fit allocator of whole pages.
//!
//! The book-keeping is private to the owner (a sorted list of free extents); peers learn offsets from
//! the QP table. Used only when queues are created and destroyed.

use super::layout::{HEAP, HEAP_LEN};

const PAGE: usize = 4096;

/// Free extents `(offset, len)`, sorted, never adjacent.
#[derive(Debug)]
pub struct Heap {
    free: Vec<(usize, usize)>,
}

/// A piece of the heap; give it back with [`Heap::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub offset: usize,
    pub len: usize,
}

impl Default for Heap {
    fn default() -> Heap {
        Heap { free: vec![(HEAP, HEAP_LEN)] }
    }
}

impl Heap {
    /// The first hole of that many bytes; None: there is none.
    pub fn alloc(&mut self, len: usize) -> Option<Extent> {
        let len = len.next_multiple_of(PAGE);
        let at = self.free.iter().position(|&(_, free)| free >= len)?;
        let offset = self.free[at].0;
        self.free[at].0 += len;
        self.free[at].1 -= len;
        if self.free[at].1 == 0 {
            self.free.remove(at);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents_never_overlap_and_everything_comes_back(sizes in prop::collection::vec(1usize..100_000, 1..50)) {
            let mut heap = Heap::default();
            let mut taken: Vec<Extent> = sizes.iter().filter_map(|&len| heap.alloc(len)).collect();
            taken.sort_by_key(|extent| extent.offset);
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
