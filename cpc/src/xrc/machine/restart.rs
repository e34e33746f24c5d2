//! Peers that begin anew: a later incarnation of the process, or a later endpoint of the same incarnation that we had not heard the end of the
//! former one of.
//!
//! A process that ends MPI and begins it again, or another one that takes its name, listens elsewhere and in another domain, under a later
//! incarnation. Its request says so, and is believed: the modex described its former incarnation. What we had with that is over,
//! and no process is left that could agree to its end.
#![forbid(unsafe_code)]

use std::time::Instant;

use super::state::{State, StateKind};
use super::{Machine, Xrc};
use crate::core::kinds::Kinds;
use crate::core::machine::Link;
use crate::wire::domain::Address;
use crate::wire::listener::Facing;
use crate::wire::xrc::Req;
use crate::wire::{CommId, Incarnation};
use crate::{EndpointKey, ProcessName};

impl Machine {
    /// Where the peer is: as the modex says, unless a request has come from a later incarnation of it.
    pub(super) fn latest(&self, peer: ProcessName, told: Facing<Address>) -> Facing<Address> {
        let seen = self.own.seen.get(&peer).map(|seen| seen.address);
        seen.filter(|seen| seen.listener.incarnation.is_newer_than(told.listener.incarnation)).unwrap_or(told)
    }

    /// True if a later incarnation of the sender is known here.
    pub(super) fn is_of_former_incarnation(&self, peer: ProcessName, incarnation: Incarnation) -> bool {
        let endpoint = self.by_peer.get(&peer).and_then(|key| self.endpoints.get(key));
        let known = endpoint.map(|endpoint| endpoint.address.listener.incarnation);
        let seen = self.own.seen.get(&peer).map(|seen| seen.address.listener.incarnation);
        known.into_iter().chain(seen).any(|known| known.is_newer_than(incarnation))
    }

    /// The endpoint's peer asks from a later incarnation than we know. What was with the former one ends; a link that has only asked, asks
    /// again where the peer is now.
    pub(super) fn peer_restarted(&mut self, key: EndpointKey, address: Facing<Address>, now: Instant) {
        self.stats.relearned += 1;
        let Some(peer) = self.endpoints.get(&key).map(|endpoint| endpoint.peer) else { return };
        self.drop_stale_links(peer, address.listener.incarnation, now);
        let Some(endpoint) = self.endpoints.get_mut(&key) else { return };
        endpoint.address = address;
        match endpoint.links() {
            [None, None] => {}
            [Some(slot), None] if !self.links[slot].has_exchanged() => self.redirect(slot, address, now),
            _ => self.end_former(key, |_| true, now),
        }
    }

    /// Sends a link that is not up yet to another address.
    fn redirect(&mut self, slot: usize, address: Facing<Address>, now: Instant) {
        self.links[slot].address = address;
        if matches!(
            self.links[slot].state.kind(),
            StateKind::Queued | StateKind::Creating | StateKind::ReqSent
        ) {
            self.links[slot].renewals = 0;
            self.connect_anew(slot, now);
        }
    }

    /// Links that wait for the DREP of a former incarnation wait no longer.
    pub(super) fn drop_stale_links(&mut self, peer: ProcessName, incarnation: Incarnation, now: Instant) {
        if !self.own.leaving.contains_key(&peer) {
            return;
        }
        let former = |link: &Link<Xrc>| {
            link.peer == peer && incarnation.is_newer_than(link.address.listener.incarnation)
        };
        let leaving = |link: &Link<Xrc>| matches!(link.state, State::DreqSent { .. });
        let slots: Vec<usize> = self
            .links
            .iter()
            .filter(|(_, link)| former(link) && leaving(link))
            .map(|(slot, _)| slot)
            .collect();
        for slot in slots {
            self.forget(slot, now);
            self.one_link_gone(peer, now);
        }
    }

    /// The request is of a later endpoint than one of the links has to do with, and we have not heard of that one's end: this is it.
    pub(super) fn drop_ended_links(&mut self, key: EndpointKey, req: &Req, now: Instant) {
        let ended = req.ended;
        let is_over = |id: CommId| ended != CommId::NONE && !id.is_newer_than(ended);
        let over = |link: &Link<Xrc>| link.remote().is_some_and(|remote| is_over(remote.id));
        let Some(endpoint) = self.endpoints.get(&key) else { return };
        let links = endpoint.links();
        let has_heard = endpoint.replied.is_some_and(is_over);
        // One that has failed turns every request away, and its links wait for their removal.
        if !self.is_spent(key)
            && (has_heard || links.into_iter().flatten().any(|slot| over(&self.links[slot])))
        {
            self.end_former(key, over, now);
        }
    }

    /// Drops the links that are `over` without another word to the peer, and reports that it has left, unless it is known that the endpoint
    /// has failed.
    fn end_former(&mut self, key: EndpointKey, over: impl Fn(&Link<Xrc>) -> bool, now: Instant) {
        let Some(endpoint) = self.endpoints.get(&key) else { return };
        let is_over = |slot: &usize| over(&self.links[*slot]);
        let [outgoing, incoming] = endpoint.links().map(|link| link.filter(is_over));
        incoming.into_iter().for_each(|slot| self.forget(slot, now));
        outgoing.into_iter().for_each(|slot| self.links[slot].known = None);
        if self.is_spent(key) {
            return;
        }
        if let Some(slot) = outgoing {
            self.leave_window(slot, now);
            self.peer_left(slot, now);
        }
        self.report_left(key, now);
    }
}

impl Link<Xrc> {
    /// Something has passed between us and the peer over it, or can.
    fn has_exchanged(&self) -> bool {
        self.known.is_some() || self.state.remote().is_some()
    }
}
