//! Handlers of the end, and requests of processes that have no usable endpoint (yet).

use std::time::Instant;

use super::state::{Incoming, Input, State};
use super::{Action, Machine, Owner};
use crate::ProcessName;
use crate::core::timers::Timer;
use crate::wire::refusal::Refusal;

/// The most requests kept; later ones are refused.
const MAX_PARKED: usize = 4096;

/// A request that waits for its endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    request: Incoming,
    until: Instant,
}

impl Machine {
    /// Remove, where the peer knows of no connection; Leaving, when it has agreed or had time to: drops everything.
    pub(super) fn forget(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        self.set_deadline(slot, None);
        self.close_id(slot);
        self.refuse_crossing(slot, Refusal::Closing);
        self.leave_window(slot, now);
        self.unlist(slot);
        self.endpoints.remove(slot);
    }

    /// Takes the endpoint out of the tables of the living.
    fn unlist(&mut self, slot: usize) {
        let endpoint = &self.endpoints[slot];
        // The key and the peer may have a new tenant already.
        if self.by_key.get(&endpoint.key) == Some(&slot) {
            self.by_key.remove(&endpoint.key);
        }
        if self.by_peer.get(&endpoint.peer) == Some(&slot) {
            self.by_peer.remove(&endpoint.peer);
        }
    }

    /// Rising, Replied or Up + Remove: asks the peer to let go, for a while.
    pub(super) fn leave(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        self.unlist(slot);
        self.endpoints[slot].state = State::Leaving;
        self.set_deadline(slot, Some(now + self.params.disconnect_timeout));
        self.disconnect_all(slot);
    }

    /// The peer has gone, or takes the connection down: agreed, and reported.
    pub(super) fn let_go(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        self.peer_left(slot, now);
    }

    pub(super) fn peer_left(&mut self, slot: usize, now: Instant) {
        self.set_deadline(slot, None);
        self.leave_window(slot, now);
        self.disconnect_all(slot);
        self.close_id(slot);
        let endpoint = &mut self.endpoints[slot];
        endpoint.state = State::Left;
        self.actions.push_back(Action::Disconnected { key: endpoint.key });
    }

    /// Keeps a request, and tells the main thread the first time.
    pub(super) fn park(&mut self, peer: ProcessName, request: Incoming, now: Instant) {
        match self.unpark(peer) {
            // A newer request of the same process: the older one is not waited for any more.
            Some(older) => self.refuse(older.request.id, Refusal::Late),
            None if self.parked.len() >= MAX_PARKED => {
                self.stats.ignored += 1;
                return self.refuse(request.id, Refusal::UnknownPeer);
            }
            None => {
                self.stats.parked += 1;
                self.actions.push_back(Action::UnknownPeer { peer });
            }
        }
        let until = now + self.params.unknown_wait;
        self.parked.insert(peer, Parked { request, until });
        self.by_id.insert(request.id, Owner::Parked(peer));
        self.timers.move_to(Timer::Parked(peer), None, Some(until));
    }

    /// The endpoint has come: serves the request that waited for it.
    pub(super) fn serve_parked(&mut self, slot: usize, now: Instant) {
        if let Some(parked) = self.unpark(self.endpoints[slot].peer) {
            self.input(slot, &Input::Request(parked.request), now);
        }
    }

    fn unpark(&mut self, peer: ProcessName) -> Option<Parked> {
        let parked = self.parked.remove(&peer)?;
        self.by_id.remove(&parked.request.id);
        self.timers.move_to(Timer::Parked(peer), Some(parked.until), None);
        Some(parked)
    }

    /// The process that waited has gone.
    pub(super) fn parked_gone(&mut self, peer: ProcessName) {
        if let Some(parked) = self.unpark(peer) {
            self.actions.push_back(Action::Close { id: parked.request.id });
        }
    }

    /// Nobody added the peer in time.
    pub(super) fn parked_due(&mut self, peer: ProcessName, why: Refusal) {
        if let Some(parked) = self.unpark(peer) {
            self.refuse(parked.request.id, why);
        }
    }

    /// Refuses all that wait, at the end.
    pub(super) fn dismiss_parked(&mut self) {
        let peers: Vec<ProcessName> = self.parked.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.parked_due(peer, Refusal::Closing));
    }
}
