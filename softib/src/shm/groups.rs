//! Multicast groups: which queue pairs of a process listen to which, in a table of its segment.
//!
//! ```text
//!   row    | use of the row 16 : index of the QP + 1, 0 if free 16 | LID 32 | GID 128 |
//! ```
//! The owner fills a row and writes its first word last; it frees a row by that word. A sender
//! that finds the word changed after it has copied the rest looks no further at the row: a queue
//! pair that joins at this moment may miss what is sent at this moment.

use super::layout::{GROUP_ROW, GROUP_TABLE, GROUPS, H_GROUP_LIMIT, QPS};
use super::map::Map;
use std::sync::atomic::{Ordering, fence};

const LID: usize = 4;
const GID: usize = 8;
const INDEX: u32 = 0xffff;

/// A multicast group, by its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// The multicast GID.
    pub gid: [u8; 16],
    /// The multicast LID; 0 on Ethernet.
    pub lid: u16,
}

fn row(at: usize) -> usize {
    GROUP_TABLE + at * GROUP_ROW
}

/// Says in row `at`, which is free, that QP `index` listens to a group (owner).
pub fn enter(map: &Map, at: usize, index: usize, group: &Group) {
    let word = map.u32(row(at));
    let uses = word.load(Ordering::Relaxed) >> 16;
    map.u32(row(at) + LID).store(group.lid.into(), Ordering::Relaxed);
    for (half, bytes) in
        [group.gid.first_chunk::<8>(), group.gid.last_chunk()].into_iter().flatten().enumerate()
    {
        map.u64(row(at) + GID + 8 * half).store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    word.store(uses.wrapping_add(1) << 16 | (index as u32 + 1), Ordering::Release);
    map.u32(H_GROUP_LIMIT).fetch_max(at as u32 + 1, Ordering::Release);
}

/// Frees row `at` (owner).
pub fn clear(map: &Map, at: usize) {
    map.u32(row(at)).fetch_and(!INDEX, Ordering::Release);
    // What fills the row next is not seen before this.
    fence(Ordering::Release);
}

/// The queue pairs, by index, of the process whose segment this is that listen to a group (sender).
pub fn listeners(map: &Map, group: &Group) -> Vec<usize> {
    let limit = (map.u32(H_GROUP_LIMIT).load(Ordering::Acquire) as usize).min(GROUPS);
    (0..limit).filter_map(|at| listener(map, at, group)).collect()
}

fn listener(map: &Map, at: usize, group: &Group) -> Option<usize> {
    let word = map.u32(row(at));
    let before = word.load(Ordering::Acquire);
    let index = ((before & INDEX) as usize).checked_sub(1).filter(|index| *index < QPS)?;
    let lid = map.u32(row(at) + LID).load(Ordering::Relaxed);
    let half = |offset: usize| map.u64(row(at) + GID + offset).load(Ordering::Relaxed).to_ne_bytes();
    let same = lid == u32::from(group.lid) && [half(0), half(8)].as_flattened() == group.gid;
    fence(Ordering::Acquire);
    (same && word.load(Ordering::Relaxed) == before).then_some(index)
}
