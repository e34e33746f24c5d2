//! Handlers of the end, and requests of processes that have no usable endpoint (yet).

use std::time::Instant;

use super::state::{Incoming, Input, State};
use super::{Machine, Owner};
use crate::ProcessName;
use crate::core::action::Action;
use crate::wire::refusal::Refusal;

impl Machine {
    /// ReqSent + Remove: the peer's request that waits for its turn is refused, too.
    pub(super) fn withdraw(&mut self, slot: usize, now: Instant) {
        self.close_id(slot);
        self.refuse_crossing(slot, Refusal::Closing);
        self.forget(slot, now);
    }

    /// ReqSent + Unlist: the same, and reported. A peer that has answered is not up before it has our confirmation, so it begins anew.
    pub(super) fn withdraw_and_unlist(&mut self, slot: usize, now: Instant) {
        self.close_id(slot);
        self.refuse_crossing(slot, Refusal::Closing);
        self.unlist_unanswered(slot, now);
    }

    /// Creating + Unlist: a request of the peer's is answered all the same.
    pub(super) fn unlist_creating(&mut self, slot: usize, now: Instant) {
        match self.links[slot].state {
            State::Creating { request: Some(_) } => self.stats.ignored += 1,
            _ => self.unlist_unanswered(slot, now),
        }
    }

    /// ToRts + Abandon: the request, or the reply, has not been answered yet, and is refused.
    pub(super) fn abandon_rising(&mut self, slot: usize, now: Instant) {
        if let Some(id) = self.links[slot].id.take() {
            self.refuse(id, Refusal::Failed);
        }
        self.give_up_early(slot, now);
    }

    /// Abandon, where there is no connection yet; a peer that has asked is refused.
    pub(super) fn give_up_early(&mut self, slot: usize, now: Instant) {
        if let State::Creating { request: Some(request) } = self.links[slot].state {
            self.refuse(request.id, Refusal::Failed);
            self.links[slot].id = None;
        }
        self.end_failed(slot, now);
    }

    /// DreqSent, when the peer has agreed or had time to.
    pub(super) fn drep_received(&mut self, slot: usize, now: Instant) {
        match self.links[slot].failed {
            true => self.end_failed(slot, now),
            false => self.forget(slot, now),
        }
    }

    /// Connected, or on the way there: asks the peer to let go.
    pub(super) fn begin_disconnect(&mut self, slot: usize, now: Instant) {
        self.links[slot].state = State::DreqSent;
        self.set_deadline(slot, Some(now + self.params.disconnect_timeout));
        self.disconnect_all(slot);
    }

    /// The peer has gone, or takes the connection down: agreed, and reported.
    pub(super) fn dreq_received(&mut self, slot: usize, now: Instant) {
        self.disconnect_all(slot);
        self.left(slot, now);
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
        self.own.by_id.insert(request.id, Owner::Parked(peer));
    }

    /// The endpoint has come: serves the request that waited for it.
    pub(super) fn serve_parked(&mut self, slot: usize, now: Instant) {
        if let Some(request) = self.unpark(self.links[slot].peer) {
            self.input(slot, &Input::Request(request), now);
        }
    }

    pub(super) fn unpark(&mut self, peer: ProcessName) -> Option<Incoming> {
        let request = self.parked.take(peer, &mut self.timers)?;
        self.own.by_id.remove(&request.id);
        Some(request)
    }
}
