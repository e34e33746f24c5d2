//! One ring per ordered pair of processes, in the receiver's segment.
//!
//! ```text
//!   cells    512 x 512 B    | tag | head | 480 bytes inline payload |   (`super::cell`, `super::cells`)
//!   control  2 x 64 B       the receiver watches; how far it has read
//!   bulk     256 K or 1 MiB payload that does not fit a cell, contiguous, in the order of the cells
//! ```
//!
//! The sender fills a cell and stores its tag last (release). A tag is the cell's sequence number plus one and sits
//! at every cell's start, so stale bytes can't look valid. The receiver never changes cells; it publishes
//! how far it has read when that is a quarter of the ring; on the short way of a poll, when nothing comes or the turn goes to another ring, and
//! at half of it. The sender looks there when the ring is full, as far as it knows: behind the message that has made it so, for the next one.
//!
//! A ring that the receiver does not watch is announced by its sender in the inbound bitmap. The hand-over is
//! store-fence-load on both sides: the sender stores the tag, then loads `watched`; the receiver stores `watched = 0`,
//! then looks at the ring once more. One of them sees the other. The sender's fence is left out when both sides are
//! registered for membarrier, which the receiver then issues (`tests/handover.rs` models the fenced form).
//!
//! Bulk offsets are not transmitted: both sides derive them from the lengths by the rule in [`bulk_start`].
//!
//! Only a part of cells and bulk is used at first, and again and again, so that it stays in the caches, and a peer with little to say
//! takes little memory: 16 cells and 1 KiB. A sender that finds all of it unread doubles the part; of the bulk, up to what a busy ring uses
//! (`send::BULK_BUSY`), also one that comes to the end of what it knows to be free. The next cell, or payload, is then the first of the new half,
//! which nothing has used before:
//!
//! ```text
//!   cells   op MORE_CELLS in the last free cell; the next cell is the first of the second half
//!   bulk    flag WIDER at a payload, which begins the second half of what is used then ([`wider`])
//!           op LESS_BULK in a cell when all of the bulk has been read; the next payload is in the part that it says
//! ```
//!
//! Beyond what each ring has, they take space of the file system only then.
//!
//! What of the former part has not been read yet lies by the old rule, so the sender stays in the new half until it has.

mod recv;
mod send;

pub use recv::RecvRing;
pub use send::{Given, Pushed, SendRing, send_fence};

use super::keyed;
use super::layout::*;
use super::map::Map;
use super::space::{free_space, give_space};
use std::fs::File;
use std::sync::atomic::Ordering;

/// Longest payload of one cell with bulk.
pub const FRAGMENT_MAX: usize = 66 << 10;
/// What of the bulk is used at first.
pub const BULK_FIRST: u32 = 1 << 10;

/// In a burst a cell is asked for when the one so many before it has been written, or read: it is in the other side's cache, and a message
/// takes less time than the way from there. Where one side waits for the other, that would take the cell away from it.
const CELLS_AHEAD: u32 = 2;

const CLAIMING: u64 = 1;
const ACTIVE: u64 = 2;

/// Where the bulk payload of `len` bytes starts when `pos` bytes have gone before and `of` bytes of the bulk are in use (a power
/// of two).
#[inline]
fn bulk_start(pos: u32, len: u32, of: u32) -> u32 {
    let offset = pos & (of - 1);
    if offset + len > of { pos.wrapping_add(of - offset) } else { pos }
}

/// Bytes of the bulk in use from a payload of `len` bytes on, which begins their second half, when `used` have been before.
pub fn wider(used: u32, len: u32) -> u32 {
    2 * used.max(len.next_power_of_two())
}

/// Where the first payload of the second half starts, when `half` bytes have been in use.
fn second_half(pos: u32, half: u32) -> u32 {
    pos.wrapping_add(half.wrapping_sub(pos) & (2 * half - 1))
}

#[inline]
fn bulk_end(start: u32, len: u32) -> u32 {
    start.wrapping_add(len.next_multiple_of(64))
}

/// Whether a ring may take much room: only where a small share of what is left will do. A container's /dev/shm of 64 MB would soon
/// be full.
pub fn may_be_large(file: &File) -> bool {
    free_space(file) / 64 >= BULK_MAX as u64
}

/// Rings from here on have never been used.
#[inline]
pub fn limit(map: &Map) -> usize {
    (map.u32(H_RING_LIMIT).load(Ordering::Relaxed) as usize).min(RINGS)
}

/// Slot and incarnation of the process that sends through a ring. One that is still claiming it has incarnation 0.
pub fn sender(map: &Map, index: usize) -> Option<(usize, u64)> {
    let at = ring_entry(index);
    let owner = map.u64(at + R_OWNER).load(Ordering::Acquire);
    let incarnation = map.u64(at + R_INCARNATION).load(Ordering::Relaxed);
    let slot = (owner >> 8) as usize;
    match owner & 0xff {
        ACTIVE if slot < SLOTS => Some((slot, incarnation)),
        CLAIMING if slot < SLOTS => Some((slot, 0)),
        _ => None,
    }
}

/// The inbound ring of ours through which this process sends.
fn of_sender(map: &Map, slot: usize, incarnation: u64) -> Option<usize> {
    (0..limit(map)).find(|index| sender(map, *index) == Some((slot, incarnation)))
}

/// Lets `copy` work on what an ASK names that has come through ring `index`; None: it has been withdrawn, and what it names may be gone.
pub fn while_asked<T>(map: &Map, index: usize, ask: u32, copy: impl FnOnce() -> T) -> Option<T> {
    let row = ring_entry(index);
    keyed::while_asked(map.u32(row + R_WITHDRAWN), map.u32(row + R_ANSWERING), ask, copy)
}

/// Lets `place` work on our memory as a GIVE says that has come through ring `index`; None: it has been withdrawn, and its sender does that.
pub fn while_given<T>(map: &Map, index: usize, give: u32, place: impl FnOnce() -> T) -> Option<T> {
    let row = ring_entry(index);
    let words = (map.u32(row + R_ANSWERING), map.u32(row + R_GIVEN));
    keyed::while_given(map.u32(row + R_WITHDRAWN), words, give, place)
}

/// The process that sends to us through a ring just works on our memory by its own hand.
pub fn is_fetching(map: &Map, slot: usize, incarnation: u64) -> bool {
    let row = of_sender(map, slot, incarnation);
    row.is_some_and(|row| map.u32(ring_entry(row) + R_HAZARD).load(Ordering::Relaxed) != 0)
}

/// How often the process that sends to us through a ring has done so with a system call; only whether it changes says something.
pub fn moves(map: &Map, slot: usize, incarnation: u64) -> u32 {
    let row = of_sender(map, slot, incarnation);
    row.map_or(0, |row| map.u32(ring_entry(row) + R_MOVES).load(Ordering::Relaxed))
}

/// What stands for the queue pair to which cells with this `dst` are addressed, in a sender's word about which one's receives it fills.
pub fn filled(dst: u16) -> u32 {
    u32::from(dst) | 1 << 31
}

/// The process that sends to us through ring `index` may be filling a posted receive of a queue pair ([`filled`]).
pub fn is_filling(map: &Map, index: usize, filled: u32) -> bool {
    keyed::is_used(map.u32(ring_entry(index) + R_FILLS), filled)
}

/// Frees a ring of ours that is no longer in use; it reads as empty when it is claimed again.
pub fn free(map: &Map, file: &File, index: usize) {
    give_space(file, ring_data(index), RING_LEN);
    map.u64(ring_entry(index) + R_OWNER).store(0, Ordering::Release);
}
