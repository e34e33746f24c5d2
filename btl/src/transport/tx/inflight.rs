//! The table of work requests that the device owns: buffers and waiting callbacks, by work request
//! id.
//!
//! Entries are reused; a generation tells a completion of the former owner from one of the present.
#![forbid(unsafe_code)]

use crate::transport::wrid::GENERATION_MASK;
use verbs::Posted;

/// What waits for a completion.
#[derive(Debug)]
pub enum Waiting<C> {
    /// A send from one of our buffers.
    Send { endpoint: u32, buf: Posted, share: Option<u32> },
    /// An RDMA operation of the upper layer, with its callback.
    Rdma { endpoint: u32, cookie: C },
}

#[derive(Debug)]
struct Entry<W> {
    generation: u32,
    waiting: Option<W>,
}

/// The table, of what waits.
#[derive(Debug)]
pub struct Inflight<W> {
    entries: Vec<Entry<W>>,
    free: Vec<u32>,
}

/// Names one entry at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Position in the table.
    pub index: u32,
    /// Which owner of that position (24 bits).
    pub generation: u32,
}

impl<W> Default for Inflight<W> {
    fn default() -> Self {
        Inflight { entries: Vec::new(), free: Vec::new() }
    }
}

impl<W> Inflight<W> {
    /// Reserves an entry before the work request is posted; follow with `fill` or `cancel`.
    #[inline]
    pub fn reserve(&mut self) -> Ticket {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow(),
        };
        Ticket { index, generation: self.entries[index as usize].generation }
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.entries.push(Entry { generation: 0, waiting: None });
        (self.entries.len() - 1) as u32
    }

    /// Puts the owner in.
    #[inline]
    pub fn fill(&mut self, ticket: Ticket, waiting: W) {
        self.entries[ticket.index as usize].waiting = Some(waiting);
    }

    /// Gives a reserved entry back without an owner: the post failed.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.free.push(ticket.index);
    }

    /// Takes the owner out at its completion; `None` for a stale or foreign id.
    #[inline]
    pub fn complete(&mut self, index: u32, generation: u32) -> Option<W> {
        let entry = self.entries.get_mut(index as usize)?;
        if entry.generation != generation {
            return None;
        }
        let waiting = entry.waiting.take()?;
        entry.generation = (entry.generation + 1) & GENERATION_MASK;
        self.free.push(index);
        Some(waiting)
    }

    /// Work requests that the device owns.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Takes out every entry for which `of` says yes, whatever became of its completion.
    pub fn drain(&mut self, of: impl Fn(&W) -> bool) -> Vec<W> {
        let mut out = Vec::new();
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if entry.waiting.as_ref().is_some_and(&of) {
                out.extend(entry.waiting.take());
                entry.generation = (entry.generation + 1) & GENERATION_MASK;
                self.free.push(index as u32);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rdma(endpoint: u32, cookie: u32) -> Waiting<u32> {
        Waiting::Rdma { endpoint, cookie }
    }

    #[test]
    fn a_stale_completion_finds_nobody() {
        let mut table = Inflight::default();
        let first = table.reserve();
        table.fill(first, rdma(1, 7));
        assert!(table.complete(first.index, first.generation).is_some());
        let second = table.reserve();
        table.fill(second, rdma(1, 8));
        assert_eq!(second.index, first.index);
        assert!(table.complete(first.index, first.generation).is_none());
        assert!(matches!(
            table.complete(second.index, second.generation),
            Some(Waiting::Rdma { cookie: 8, .. })
        ));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_cancelled_entry_is_used_again() {
        let mut table: Inflight<Waiting<u32>> = Inflight::default();
        let ticket = table.reserve();
        table.cancel(ticket);
        assert_eq!(table.reserve(), ticket);
    }

    #[test]
    fn draining_takes_only_what_is_asked_for() {
        let mut table = Inflight::default();
        for endpoint in 0..4 {
            let ticket = table.reserve();
            table.fill(ticket, rdma(endpoint, endpoint));
        }
        let of_two = table.drain(|w| matches!(w, Waiting::Rdma { endpoint: 2, .. }));
        assert_eq!((of_two.len(), table.len()), (1, 3));
    }
}
