//! Where the buffers of posted receives are, for an initiator that fills them by its own hand.
//!
//! ```text
//!   initiator                                          target, whenever it posts receives
//!   sends long messages: asks (`Place::ask`)           has been asked: takes memory for an entry of each position, says where (`Place::tell`)
//!   reads the entry of the receive that it consumes    writes the entries of long receives that it posts
//!
//!   entry, 24 bytes   address:64   lkey:32 length:32   checksum of these and the position:64
//! ```
//! An entry that is damaged, of another lap of the queue, or of no long receive with one buffer names no buffer: its message goes through the ring. A queue
//! about which no initiator asks has no entries, and takes no memory for them.

use super::map::Map;
use super::mrtable::checksum;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Shorter messages go through the ring.
pub const LEAST: u32 = 2048;

/// A posted receive's only buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Its first byte in the target's memory.
    pub addr: u64,
    /// The region that it is in.
    pub lkey: u32,
    /// Its bytes.
    pub len: u32,
}

const ENTRY: usize = 24;

/// The entries of a queue.
#[derive(Debug)]
pub struct Buffers {
    map: Arc<Map>,
    within: usize,
    /// One less than there are.
    mask: u32,
}

impl Buffers {
    /// Bytes that the entries of a queue of so many places take.
    pub const fn bytes(size: u32) -> usize {
        size as usize * ENTRY
    }

    /// Those at `within` of a mapping, which has [so many](Self::bytes) bytes there, of a queue of `size` places, a power of two.
    pub fn new(map: &Arc<Map>, within: usize, size: u32) -> Buffers {
        map.place(within, Self::bytes(size));
        Buffers { map: map.clone(), within, mask: size - 1 }
    }

    #[inline]
    fn entry(&self, pos: u32) -> usize {
        self.within + (pos & self.mask) as usize * ENTRY
    }

    /// The receive at this position, which is not shown yet, has this buffer (target).
    #[inline]
    pub fn put(&self, pos: u32, buffer: Buffer) {
        let (at, [addr, rest]) = (self.entry(pos), buffer.words());
        self.map.u64(at).store(addr, Ordering::Relaxed);
        self.map.u64(at + 8).store(rest, Ordering::Relaxed);
        self.map.u64(at + 16).store(seal(pos, [addr, rest]), Ordering::Relaxed);
    }

    /// It has none that is to be filled (target).
    #[inline]
    pub fn clear(&self, pos: u32) {
        let at = self.entry(pos);
        // Any sum but the right one.
        self.map.u64(at).store(0, Ordering::Relaxed);
        self.map.u64(at + 8).store(0, Ordering::Relaxed);
        self.map.u64(at + 16).store(!seal(pos, [0, 0]), Ordering::Relaxed);
    }

    /// The buffer of the receive at this position, which has been consumed (initiator).
    #[inline]
    pub fn get(&self, pos: u32) -> Option<Buffer> {
        let at = self.entry(pos);
        let [addr, rest, sum] = [at, at + 8, at + 16].map(|at| self.map.u64(at).load(Ordering::Relaxed));
        (seal(pos, [addr, rest]) == sum).then_some(Buffer {
            addr,
            lkey: (rest >> 32) as u32,
            len: rest as u32,
        })
    }
}

impl Buffer {
    fn words(self) -> [u64; 2] {
        [self.addr, u64::from(self.lkey) << 32 | u64::from(self.len)]
    }
}

#[inline]
fn seal(pos: u32, [addr, rest]: [u64; 2]) -> u64 {
    checksum(&[pos.into(), addr, rest])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn buffers(size: u32) -> Buffers {
        let path = std::env::temp_dir().join(format!("softib-buffers-{}-{size}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.expect("a new file in the folder of temporary files");
        std::fs::remove_file(&path).expect("a file of ours");
        file.set_len(1 << 16).expect("a sparse file");
        Buffers::new(&Arc::new(Map::new(&file, 1 << 16).expect("a mapping")), 64, size)
    }

    #[test]
    fn an_entry_is_of_its_position_alone_and_until_it_is_cleared() {
        let (entries, buffer) = (buffers(8), Buffer { addr: 0x7f00_1234_5678, lkey: 0x501, len: 4096 });
        assert_eq!(entries.get(5), None, "nothing has been written");
        entries.put(5, buffer);
        assert_eq!((entries.get(5), entries.get(13), entries.get(4)), (Some(buffer), None, None));
        entries.put(13, Buffer { len: 8192, ..buffer });
        assert_eq!((entries.get(5), entries.get(13).map(|buffer| buffer.len)), (None, Some(8192)));
        entries.clear(13);
        assert_eq!((entries.get(5), entries.get(13)), (None, None));
    }

    #[test]
    fn an_entry_with_any_bit_changed_names_no_buffer() {
        let (entries, buffer) = (buffers(16), Buffer { addr: 0x7f00_1234_5678, lkey: 0x501, len: 4096 });
        entries.put(9, buffer);
        for at in (0..ENTRY).step_by(8) {
            for bit in 0..64 {
                entries.map.u64(entries.entry(9) + at).fetch_xor(1 << bit, Ordering::Relaxed);
                assert_eq!(entries.get(9), None);
                entries.map.u64(entries.entry(9) + at).fetch_xor(1 << bit, Ordering::Relaxed);
            }
        }
        assert_eq!(entries.get(9), Some(buffer));
    }
}
