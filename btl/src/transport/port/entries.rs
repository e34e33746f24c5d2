//! Entries of the two completion queues that a peer's work requests may fill, and when they are
//! reserved.
//!
//! ```text
//!   peer added          the receive of its CTS, which the helper thread posts without us (seed 004)
//!   queue pairs come    all that may be posted over them, before anything is
//!   connection is gone  its entries are free; those of the CTS with the endpoint
//! ```
//! What goes through queues that all peers share is reserved once, when the port is opened.
#![forbid(unsafe_code)]

use super::OpenPort;
use super::depth::{CqTooSmall, PATH_MARKERS, depth_to_itself, send_depth, shared_receives, shared_sends};
use crate::protocol::layout::Queue;
use std::ops::{Add, AddAssign};

/// Numbers of completions: of receives, of sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Completions of receives.
    pub recv: u32,
    /// Completions of sends.
    pub send: u32,
}

impl Add for Count {
    type Output = Count;
    fn add(self, other: Count) -> Count {
        Count { recv: self.recv.saturating_add(other.recv), send: self.send.saturating_add(other.send) }
    }
}

/// Entries that are reserved for one endpoint. They are no `Copy`, so that they are given back once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Entries(Count);

impl Entries {
    /// How many.
    pub fn count(&self) -> Count {
        self.0
    }

    /// They are of a connection, besides those of the CTS: nothing is sent without one.
    pub fn cover_sends(&self) -> bool {
        self.0.send != 0
    }
}

impl AddAssign for Entries {
    fn add_assign(&mut self, other: Entries) {
        self.0 = self.0 + other.0;
    }
}

impl OpenPort {
    /// The entry of a new endpoint's CTS; `itself`: it leads to this process, and has none. The
    /// queues are made long enough for one connection besides, so that a queue that cannot hold
    /// another one is found out while other transports can still take the peer.
    ///
    /// # Errors
    /// A completion queue cannot grow; nothing is reserved then.
    pub fn admit(&mut self, itself: bool) -> Result<Entries, CqTooSmall> {
        let added = self.when_added(itself);
        let all = added + self.when_connected(itself);
        self.recv_room.make_room(all.recv)?;
        self.send_room.make_room(all.send)?;
        self.reserve(added)
    }

    /// Every receive and send of a connection has its place in a completion queue from now on.
    ///
    /// # Errors
    /// A completion queue cannot grow; nothing is reserved then.
    pub fn reserve_connection(&mut self, itself: bool) -> Result<Entries, CqTooSmall> {
        self.reserve(self.when_connected(itself))
    }

    fn reserve(&mut self, count: Count) -> Result<Entries, CqTooSmall> {
        self.recv_room.reserve(count.recv)?;
        self.send_room.reserve(count.send).inspect_err(|_| self.recv_room.release(count.recv))?;
        Ok(Entries(count))
    }

    /// No completion comes for these any more.
    pub fn release(&mut self, Entries(count): Entries) {
        self.recv_room.release(count.recv);
        self.send_room.release(count.send);
    }

    /// The device has not given everything back in time: completions may come for these whenever it
    /// does, so they stay reserved.
    pub fn strand(&mut self, Entries(count): Entries) {
        self.stranded = self.stranded + count;
    }

    /// What a peer may cause before the main thread has heard of a connection.
    pub fn when_added(&self, itself: bool) -> Count {
        Count { recv: u32::from(self.uses_cts() && !itself), send: 0 }
    }

    /// What a connection may cause besides.
    pub fn when_connected(&self, itself: bool) -> Count {
        let layout = self.layout();
        if itself {
            return Count { recv: 0, send: depth_to_itself(&self.config) };
        }
        let send = match layout.is_xrc() {
            // What goes to X queues is counted over all peers, once; the peer may be the first of its node.
            true => self.config.rdma_depth + PATH_MARKERS,
            false => (0..layout.queues().len()).map(|queue| send_depth(layout, queue, &self.config)).sum(),
        };
        let recv = layout.queues().iter().filter_map(Queue::window).map(|window| window.receives()).sum();
        Count { recv, send }
    }

    /// What is reserved whatever peers there are: for queues that all share, and what is stranded.
    pub fn reserved_for_all(&self) -> Count {
        let layout = self.layout();
        Count { recv: shared_receives(layout), send: shared_sends(layout) } + self.stranded
    }
}
