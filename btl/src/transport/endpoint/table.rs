//! The endpoints of a transport, by position and by peer.
#![forbid(unsafe_code)]

use super::lane::Lane;
use super::numbers::of_label;
use super::state::State;
use super::timeline::Record;
use super::traffic::Traffic;
use super::{Endpoint, EpId};
use crate::transport::channel::Connection;
use crate::transport::wrid::GENERATION_MASK;
use cpc::EndpointKey;
use slab::Slab;
use std::collections::{BTreeMap, HashMap};

/// All endpoints. A position is used again; epochs tell apart the connections that it has had.
#[derive(Debug)]
#[repr(C)] // in this order
pub struct Endpoints<C> {
    table: Slab<Endpoint<C>>,
    /// The connection at each position, current or last.
    epochs: Vec<u32>,
    by_name: HashMap<u64, u32>,
    /// Bytes to and from peers whose endpoints are gone, by their names.
    pub(super) gone: BTreeMap<u64, Traffic>,
    /// Timelines of endpoints that are gone, if they are wanted.
    pub(super) history: Option<Vec<Record>>,
}

impl<C> Endpoints<C> {
    /// No endpoint; the timelines of those that go are kept if they are wanted.
    pub fn new(keep_timelines: bool) -> Endpoints<C> {
        let history = keep_timelines.then(Vec::new);
        let (by_name, gone) = (HashMap::new(), BTreeMap::new());
        Endpoints { table: Slab::new(), epochs: Vec::new(), by_name, gone, history }
    }

    /// The endpoint at a position.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&Endpoint<C>> {
        self.table.get(index as usize)
    }

    /// The endpoint at a position.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut Endpoint<C>> {
        self.table.get_mut(index as usize)
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

    /// The lane of an endpoint that is known to be there.
    #[inline]
    pub fn lane(&mut self, index: u32, queue: usize) -> Option<&mut Lane> {
        self.get_mut(index)?.lanes.get_mut(queue)
    }

    /// A work queue entry that was taken is not needed.
    pub fn release_entry(&mut self, index: u32, queue: usize) {
        if let Some(lane) = self.lane(index, queue) {
            lane.budget.release(1);
        }
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
        place.insert(ep);
        id
    }

    /// Takes the endpoint at a position out, and keeps its bytes, and its timeline if that is wanted.
    pub fn remove(&mut self, index: u32) -> Option<Endpoint<C>> {
        let ep = self.table.try_remove(index as usize)?;
        self.by_name.remove(&ep.peer);
        self.gone.entry(ep.peer).or_default().add(ep.traffic);
        if let Some(history) = &mut self.history {
            history.extend(Record::of(&ep));
        }
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

    /// Position of the endpoint that a connection manager's event is about, if it still has that
    /// connection.
    pub fn current(&self, key: EndpointKey) -> Option<u32> {
        let epoch = key.generation & GENERATION_MASK;
        (self.epoch(key.index) == Some(epoch)).then_some(key.index)
    }

    /// X queues: the endpoint that a message's label names, and its position.
    pub fn labelled(&mut self, label: u32) -> Option<(u32, &mut Endpoint<C>)> {
        let (index, low) = of_label(label);
        self.epoch(index).filter(|epoch| *epoch as u8 == low)?;
        Some((index, self.get_mut(index)?))
    }

    /// It is there and has not failed.
    pub fn is_alive(&self, index: u32) -> bool {
        self.get(index).is_some_and(|ep| ep.state() != State::Failed)
    }

    /// The names of all.
    pub fn ids(&self) -> Vec<EpId> {
        self.iter().map(|(index, ep)| EpId { index, generation: ep.generation }).collect()
    }

    /// Every endpoint, with its position.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Endpoint<C>)> {
        self.table.iter().map(|(index, ep)| (index as u32, ep))
    }

    /// All of them, with their positions.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Endpoint<C>)> {
        self.table.iter_mut().map(|(index, ep)| (index as u32, ep))
    }
}

#[cfg(test)]
mod tests {
    use super::super::numbers::label;
    use super::*;
    use crate::transport::port::entries::Entries;
    use cpc::Choice;

    fn add(endpoints: &mut Endpoints<u64>, peer: u64) -> EpId {
        let choice =
            Choice { component: "ibcm".to_owned(), peer_blob: Vec::new(), gids: None, alternate: None };
        endpoints.insert(|id| Endpoint::new(id, peer, Some(Box::new(choice)), Entries::default()))
    }

    #[test]
    fn what_names_a_former_connection_of_a_position_finds_nothing() {
        let mut endpoints = Endpoints::new(false);
        let id = add(&mut endpoints, 7);
        let key = EndpointKey { index: id.index, generation: id.generation };
        let found = endpoints.labelled(label(id)).map(|(index, ep)| (index, ep.peer));
        assert_eq!((endpoints.current(key), found), (Some(id.index), Some((id.index, 7))));
        endpoints.set_epoch(id.index, id.generation + 1);
        assert_eq!(endpoints.current(key), None);
        assert!(endpoints.labelled(label(id)).is_none());
        assert_eq!(endpoints.current(EndpointKey { generation: id.generation + 1, ..key }), Some(id.index));
    }

    #[test]
    fn timelines_of_endpoints_that_go_are_kept_if_they_are_wanted() {
        for (wanted, peers) in [(false, vec![8]), (true, vec![7, 8])] {
            let mut endpoints = Endpoints::new(wanted);
            let (first, _) = (add(&mut endpoints, 7), add(&mut endpoints, 8));
            endpoints.remove(first.index);
            assert_eq!(endpoints.timelines().iter().map(|record| record.peer).collect::<Vec<_>>(), peers);
        }
    }
}
