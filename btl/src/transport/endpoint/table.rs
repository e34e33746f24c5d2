//! The endpoints of a transport, by position and by peer.
#![forbid(unsafe_code)]

use super::{Endpoint, EpId};
use crate::transport::channel::Connection;
use slab::Slab;
use std::collections::HashMap;

/// All endpoints. A position is used again; epochs tell apart the connections that it has had.
#[derive(Debug)]
pub struct Endpoints<C> {
    table: Slab<Box<Endpoint<C>>>,
    /// The connection at each position, current or last.
    epochs: Vec<u32>,
    by_name: HashMap<u64, u32>,
}

impl<C> Default for Endpoints<C> {
    fn default() -> Endpoints<C> {
        Endpoints { table: Slab::new(), epochs: Vec::new(), by_name: HashMap::new() }
    }
}

impl<C> Endpoints<C> {
    /// The endpoint at a position.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&Endpoint<C>> {
        self.table.get(index as usize).map(|ep| &**ep)
    }

    /// The endpoint at a position.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut Endpoint<C>> {
        self.table.get_mut(index as usize).map(|ep| &mut **ep)
    }

    /// The endpoint that the upper layer calls so, unless it is gone.
    #[inline]
    pub fn named(&self, id: EpId) -> Option<&Endpoint<C>> {
        self.get(id.index).filter(|ep| ep.generation == id.generation)
    }

    /// The endpoint that the upper layer calls so, unless it is gone.
    #[inline]
    pub fn named_mut(&mut self, id: EpId) -> Option<&mut Endpoint<C>> {
        self.get_mut(id.index).filter(|ep| ep.generation == id.generation)
    }

    /// Position of the endpoint of a peer.
    pub fn of_peer(&self, peer: u64) -> Option<u32> {
        self.by_name.get(&peer).copied()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.table.len()
    }

    /// Adds the endpoint that `make` returns for its name.
    pub fn insert(&mut self, make: impl FnOnce(EpId) -> Endpoint<C>) -> EpId {
        let place = self.table.vacant_entry();
        let index = place.key();
        if self.epochs.len() <= index {
            self.epochs.resize(index + 1, 0);
        }
        let id = EpId { index: index as u32, generation: self.epochs[index] };
        let ep = make(id);
        self.by_name.insert(ep.peer, id.index);
        place.insert(Box::new(ep));
        id
    }

    /// Takes the endpoint at a position out.
    pub fn remove(&mut self, index: u32) -> Option<Box<Endpoint<C>>> {
        let ep = self.table.try_remove(index as usize)?;
        self.by_name.remove(&ep.peer);
        Some(ep)
    }

    /// The connection at this position, current or last.
    pub fn epoch(&self, index: u32) -> Option<u32> {
        self.epochs.get(index as usize).copied()
    }

    /// From now on the position has this connection, or waits for it.
    pub fn set_epoch(&mut self, index: u32, epoch: u32) {
        if let Some(current) = self.epochs.get_mut(index as usize) {
            *current = epoch;
        }
    }

    /// The endpoint is there and still has this connection.
    pub fn has(&self, connection: Connection) -> bool {
        self.get(connection.index).is_some() && self.epoch(connection.index) == Some(connection.epoch)
    }

    /// Every endpoint, with its position.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Endpoint<C>)> {
        self.table.iter().map(|(index, ep)| (index as u32, &**ep))
    }
}
