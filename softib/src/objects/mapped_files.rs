//! Files that a peer's program has mapped, and registered, and that are mapped here, too (`shm::backing`): RDMA to and from them is a copy by our own
//! hand, as with what a peer shares on purpose (`super::shared`).
//!
//! A registration says nothing of it, and to look takes some ten microseconds, before Linux 6.11 a tenth of a millisecond and more. So a region is looked at when it
//! has been used often, and all looks together take a hundredth of a program's time at most. What was found holds as long as its key is of the same region; a region of private
//! memory is not looked at again.

use crate::shm::backing::Backing;
use crate::shm::map::Map;
use crate::shm::mrtable::{self, Exposed};
use crate::shm::vma;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests for a region before it is looked at, by what a look costs: on a kernel that tells of one mapping, and on others.
const OFTEN: u32 = 16;
const OFTENER: u32 = 256;

/// After a look no other region of the same peer is looked at for so many times as long as that took.
const REST: u32 = 100;

/// Regions of a peer that are remembered, a row each: the one of the key's index, and it replaces another one there.
const ROWS: usize = 32;

/// What is known of the regions of a peer.
#[derive(Debug, Default)]
pub struct MappedFiles {
    rows: Vec<Row>,
    /// No region is looked at before.
    again: Option<Instant>,
}

#[derive(Debug, Clone, Default)]
struct Row {
    exposed: Exposed,
    known: Known,
}

#[derive(Debug, Clone)]
enum Known {
    /// It has been used so often.
    Used(u32),
    /// Its bytes begin at this place of the mapping.
    Mapped(Arc<Map>, usize),
    /// It is private, or can't be mapped.
    Apart,
}

impl Default for Known {
    fn default() -> Known {
        Known::Used(0)
    }
}

/// What is to be done about a region that is used.
#[derive(Debug)]
pub enum Use<'a> {
    /// It is mapped here, from this place on.
    Mapped(&'a Arc<Map>, usize),
    /// It is time to look what it is, and to [say so](MappedFiles::set).
    Look,
    /// It is not used often yet.
    Seldom,
    /// It is private, or can't be mapped.
    Apart,
}

impl MappedFiles {
    /// Notes that a region is used.
    pub fn note(&mut self, exposed: &Exposed, now: impl FnOnce() -> Instant) -> Use<'_> {
        if self.rows.is_empty() {
            self.rows.resize(ROWS, Row::default());
        }
        let row = &mut self.rows[mrtable::index_of(exposed.region.key) % ROWS];
        if row.exposed != *exposed {
            *row = Row { exposed: *exposed, known: Known::Used(0) };
        }
        match &mut row.known {
            Known::Mapped(map, _) if map.is_lost() => row.known = Known::Apart,
            Known::Mapped(..) | Known::Apart => {}
            Known::Used(count) if is_seldom(*count) => *count += 1,
            Known::Used(count) => {
                *count = 0;
                if self.again.is_none_or(|again| now() >= again) {
                    return Use::Look;
                }
            }
        }
        match &row.known {
            Known::Mapped(map, within) => Use::Mapped(map, *within),
            Known::Used(_) => Use::Seldom,
            Known::Apart => Use::Apart,
        }
    }

    /// What has been found of a region that was [looked at](Use::Look), which is mapped if that is something; when, and how long it took.
    pub fn set(
        &mut self,
        exposed: &Exposed,
        (found, is_writable): (Option<Backing>, bool),
        (now, took): (Instant, Duration),
    ) {
        self.again = Some(now + took * REST);
        let map = found.and_then(|Backing { file, start, len, within }| {
            Some((Arc::new(Map::of_program(&file, start, len, is_writable)?), within))
        });
        let known = map.map_or(Known::Apart, |(map, within)| Known::Mapped(map, within));
        if let Some(row) = self.rows.get_mut(mrtable::index_of(exposed.region.key) % ROWS) {
            *row = Row { exposed: *exposed, known };
        }
    }

    /// Gives back what is mapped of regions that the peer, whose tables these are, has no more: it may have removed the file.
    pub fn sweep(&mut self, tables: &Map) {
        let is_there = |row: &Row| mrtable::look_up(tables, row.exposed.region.key) == Some(row.exposed);
        let mapped = |row: &&mut Row| matches!(row.known, Known::Mapped(..));
        self.rows
            .iter_mut()
            .filter(mapped)
            .filter(|row| !is_there(row))
            .for_each(|row| *row = Row::default());
    }
}

/// So many requests are not many yet.
fn is_seldom(count: u32) -> bool {
    count < OFTEN || count < OFTENER && !vma::can_be_asked()
}
