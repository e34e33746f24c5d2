//! Handlers of the end, and requests of processes that have no usable endpoint (yet).

use std::time::Instant;

use super::state::{Incoming, Input, State};
use super::{Action, Machine, Owner};
use crate::ProcessName;
use crate::wire::refusal::Refusal;

impl Machine {
    /// Remove, where the peer knows of no connection, or has let go of it: drops everything.
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

    /// ToRts, RepSent or Connected + Remove: asks the peer to let go, for a while.
    pub(super) fn disconnect(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        self.unlist(slot);
        self.start_disconnect(slot, false, now);
    }

    /// RepSent, Joining or Connected + Abandon: the peer must not wait for what never comes. RDMA-CM's DREQ carries no reason, so it hears the reason
    /// when it asks again.
    pub(super) fn abandon(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        self.start_disconnect(slot, true, now);
    }

    /// ToRts + Abandon: the request, or the reply, has not been answered yet, and is refused.
    pub(super) fn abandon_rising(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        if let Some(id) = self.endpoints[slot].id.take() {
            self.refuse(id, Refusal::Failed);
        }
        self.give_up_early(slot, input, now);
    }

    /// Abandon, where there is no connection yet; a peer that has asked is refused.
    pub(super) fn give_up_early(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        if let State::Creating { request: Some(request) } = self.endpoints[slot].state {
            self.refuse(request.id, Refusal::Failed);
            self.endpoints[slot].id = None;
        }
        self.end(slot, now);
        self.endpoints[slot].state = State::Failed;
    }

    /// DreqSent + Remove: the abandoned endpoint goes as if it had been removed at once.
    pub(super) fn unlist_abandoned(&mut self, slot: usize, _: &Input<'_>, _: Instant) {
        self.endpoints[slot].state = State::DreqSent { abandoned: false };
        self.unlist(slot);
    }

    /// DreqSent, when the peer has agreed or had time to.
    pub(super) fn drep_received(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        match self.endpoints[slot].state {
            State::DreqSent { abandoned: true } => {
                self.end(slot, now);
                self.endpoints[slot].state = State::Failed;
            }
            _ => self.forget(slot, input, now),
        }
    }

    /// Nothing of the exchange is left but the endpoint itself.
    pub(super) fn end(&mut self, slot: usize, now: Instant) {
        self.set_deadline(slot, None);
        self.close_id(slot);
        self.refuse_crossing(slot, Refusal::Failed);
        self.leave_window(slot, now);
    }

    fn start_disconnect(&mut self, slot: usize, abandoned: bool, now: Instant) {
        self.endpoints[slot].state = State::DreqSent { abandoned };
        self.set_deadline(slot, Some(now + self.params.disconnect_timeout));
        self.disconnect_all(slot);
    }

    /// The peer has gone, or takes the connection down: agreed, and reported.
    pub(super) fn dreq_received(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        self.peer_left(slot, now);
    }

    pub(super) fn peer_left(&mut self, slot: usize, now: Instant) {
        self.set_deadline(slot, None);
        self.leave_window(slot, now);
        self.disconnect_all(slot);
        self.close_id(slot);
        let endpoint = &mut self.endpoints[slot];
        endpoint.state = State::Disconnected;
        self.actions.push_back(Action::Disconnected { key: endpoint.key });
    }

    /// Keeps a request, and tells the main thread the first time.
    pub(super) fn park(&mut self, peer: ProcessName, request: Incoming, now: Instant) {
        match self.unpark(peer) {
            // A newer request of the same process: the older one is not waited for any more.
            Some(older) => self.refuse(older.id, Refusal::Late),
            None if !self.parked.has_room_for(peer) => {
                self.stats.ignored += 1;
                return self.refuse(request.id, Refusal::UnknownPeer);
            }
            None => {
                self.stats.parked += 1;
                self.actions.push_back(Action::UnknownPeer { peer });
            }
        }
        self.parked.keep(peer, request, now + self.params.unknown_wait, &mut self.timers);
        self.by_id.insert(request.id, Owner::Parked(peer));
    }

    /// The endpoint has come: serves the request that waited for it.
    pub(super) fn serve_parked(&mut self, slot: usize, now: Instant) {
        if let Some(request) = self.unpark(self.endpoints[slot].peer) {
            self.input(slot, &Input::Request(request), now);
        }
    }

    fn unpark(&mut self, peer: ProcessName) -> Option<Incoming> {
        let request = self.parked.take(peer, &mut self.timers)?;
        self.by_id.remove(&request.id);
        Some(request)
    }

    /// The process that waited has gone.
    pub(super) fn parked_gone(&mut self, peer: ProcessName) {
        if let Some(request) = self.unpark(peer) {
            self.actions.push_back(Action::Close { id: request.id });
        }
    }

    /// The peer was not added in time.
    pub(super) fn parked_due(&mut self, peer: ProcessName, why: Refusal) {
        if let Some(request) = self.unpark(peer) {
            self.refuse(request.id, why);
        }
    }

    /// Refuses all that wait, at the end.
    pub(super) fn dismiss_parked(&mut self) {
        self.parked.peers().into_iter().for_each(|peer| self.parked_due(peer, Refusal::Closing));
    }
}
