//! Memory that this process shares with its peers: a piece of the segment's heap. A peer that WRITEs to a region in it, or READs from it, copies
//! by itself, without a system call.

use crate::errno::Errno;
use crate::shm::heap::{Extent, Heap};
use crate::shm::layout::BULK_MIN;
use crate::shm::map::Map;
use crate::shm::ring::may_be_large;
use crate::shm::segment::Segment;
use crate::shm::shortage::take_space;
use crate::shm::space::give_space;
use std::ptr::NonNull;
use std::sync::Arc;

/// A longer piece is given where the folder has plenty of room only, as rings are large there only.
const LARGE: usize = BULK_MIN;

/// All of it that is in use.
#[derive(Debug, Default)]
pub struct SharedMemory(Vec<Piece>);

#[derive(Debug)]
struct Piece {
    /// Its address here.
    addr: u64,
    extent: Extent,
    /// What it is mapped by.
    _map: Arc<Map>,
}

impl Piece {
    /// Where in it `len` bytes at `addr` begin.
    fn offset_of(&self, addr: u64, len: u64) -> Option<u64> {
        let within = addr.wrapping_sub(self.addr);
        let size = self.extent.len as u64;
        (within <= size && len <= size - within).then_some(within)
    }
}

impl SharedMemory {
    /// Takes `len` bytes, which are zero. ENOMEM: there are not so many in one piece, or it is a large one and the folder has little room.
    pub fn alloc(&mut self, segment: &Segment, heap: &mut Heap, len: usize) -> Result<NonNull<u8>, Errno> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        if len > LARGE && !may_be_large(&segment.file) {
            return Err(Errno::NOMEM);
        }
        let extent = heap.alloc(len).ok_or(Errno::NOMEM)?;
        let placed = place(segment, extent).inspect_err(|_| heap.release(extent));
        let (map, at) = placed?;
        self.0.push(Piece { addr: at.as_ptr() as u64, extent, _map: map });
        Ok(at)
    }

    /// Gives the piece at `addr` back, in which there is no region any more.
    pub fn free(&mut self, segment: &Segment, heap: &mut Heap, addr: u64) -> Result<(), Errno> {
        let at = self.0.iter().position(|piece| piece.addr == addr).ok_or(Errno::INVAL)?;
        let extent = self.0.swap_remove(at).extent;
        if give_space(&segment.file, extent.offset, extent.len) {
            heap.release(extent);
        }
        Ok(())
    }

    /// The bytes of the piece at `addr`.
    pub fn len_of(&self, addr: u64) -> Option<u64> {
        self.0.iter().find(|piece| piece.addr == addr).map(|piece| piece.extent.len as u64)
    }

    /// Where in the segment `len` bytes at `addr` are; 0: they are in none of it.
    pub fn offset_of(&self, addr: u64, len: u64) -> u32 {
        let at = |piece: &Piece| Some(piece.extent.offset as u32 + piece.offset_of(addr, len)? as u32);
        self.0.iter().find_map(at).unwrap_or(0)
    }
}

/// The mapping of an extent, and its address there. Nothing of it is touched, for a page costs more when it is touched first than a message does: who uses
/// little of it pays for little.
fn place(segment: &Segment, extent: Extent) -> Result<(Arc<Map>, NonNull<u8>), Errno> {
    let (map, within) = segment.heaps.memory(extent.offset, extent.len)?.ok_or(Errno::NOMEM)?;
    take_space(&segment.file, extent.offset, extent.len, "memory that peers write to")?;
    Ok((map.clone(), map.place(within, extent.len)))
}
