//! From a REQ to the link that it belongs to. `exchange` has the way of all other datagrams.
//!
//! A REQ of a later incarnation of its sender than we know teaches us where that is (`restart`); one of a former incarnation is stale.

use std::cmp::Ordering;
use std::time::Instant;

use super::Machine;
use super::state::{Input, StateKind};
use crate::EndpointKey;
use crate::core::kinds::Kinds;
use crate::exchange::Received;
use crate::wire::xrc::Req;
use crate::wire::{CommId, Incarnation, Reason};

impl Machine {
    /// A REQ for this process: it finds its endpoint by the name of its sender.
    pub(super) fn route_known_req(&mut self, received: &Received<Req>, now: Instant) {
        let Received { req, incarnation, .. } = received;
        if req.layout != self.local.layout {
            self.stats.layout_refused += 1;
            return self.reject_req(received, Reason::Layout(self.local.layout));
        }
        if self.is_of_former_incarnation(req.name, *incarnation) {
            return self.reject_stale(received);
        }
        let Some(key) = self.endpoint_of(received, now) else {
            return match self.is_stale(req, *incarnation) {
                true => self.reject_stale(received),
                false => self.park(received, now),
            };
        };
        if !self.is_from(key, received) {
            self.stats.foreign += 1;
        } else if let Some((slot, epoch)) = self.answering(key, req.head.local) {
            match req.epoch.cmp(&epoch) {
                Ordering::Less => self.stats.stale += 1,
                Ordering::Equal => self.input(slot, &Input::ReqDup, now),
                Ordering::Greater => self.input(slot, &Input::ReqNew(req), now),
            }
        } else if self.is_stale(req, *incarnation) {
            self.reject_stale(received);
        } else {
            self.new_req(key, received, now);
        }
    }

    /// The endpoint of the process that asks, which learns where a later incarnation of that is.
    fn endpoint_of(&mut self, received: &Received<Req>, now: Instant) -> Option<EndpointKey> {
        let Received { req, from, incarnation } = *received;
        let key = *self.by_peer.get(&req.name)?;
        let known = self.endpoints.get(&key)?.address;
        if incarnation.is_newer_than(known.listener.incarnation) {
            let address = known.of_later_incarnation(incarnation, from.qpn, &req.head.path, req.domain);
            self.peer_restarted(key, address, now);
        }
        Some(key)
    }

    fn is_from(&self, key: EndpointKey, received: &Received<Req>) -> bool {
        self.endpoints.get(&key).is_some_and(|endpoint| {
            let listener = &endpoint.address.listener;
            (listener.incarnation, listener.qpn) == (received.incarnation, received.from.qpn)
        })
    }

    /// The link that deals with this very exchange, and over which of the peer's send queue pairs.
    fn answering(&self, key: EndpointKey, id: CommId) -> Option<(usize, u32)> {
        let slot = self.endpoints.get(&key)?.incoming?;
        let remote = self.links[slot].state.remote().filter(|remote| remote.id == id)?;
        Some((slot, remote.epoch))
    }

    /// A request that is new.
    fn new_req(&mut self, key: EndpointKey, received: &Received<Req>, now: Instant) {
        let req = &received.req;
        self.drop_ended_links(key, req, now);
        let Some(endpoint) = self.endpoints.get(&key) else { return };
        match endpoint.incoming {
            // What we hold leads nowhere: it waits for a new endpoint.
            _ if endpoint.left => self.park(received, now),
            _ if self.is_spent(key) => self.reject_req(received, Reason::Refused),
            Some(slot) => self.input(slot, &Input::ReqNew(req), now),
            None => self.accept(key, req, now),
        }
    }

    /// The endpoint has failed, at one end or the other.
    pub(super) fn is_spent(&self, key: EndpointKey) -> bool {
        let Some(endpoint) = self.endpoints.get(&key) else { return false };
        let failed = endpoint.outgoing.is_some_and(|s| self.links[s].state.kind() == StateKind::Failed);
        failed || endpoint.abandoned
    }

    /// True for a request that its sender has made before the last one that was taken up here.
    fn is_stale(&self, req: &Req, incarnation: Incarnation) -> bool {
        let seen = self.own.seen.get(&req.name);
        seen.is_some_and(|seen| {
            let newer = req.head.local.is_newer_than(seen.last)
                || (req.head.local == seen.last && req.epoch > seen.epoch);
            seen.address.listener.incarnation == incarnation && !newer
        })
    }
}
