//! Requests of processes that this side has no usable endpoint for (yet).
//!
//! With direct modex a peer may know us long before we know it. Its REQ is kept, acknowledged with an MRA so that it neither
//! repeats itself often nor gives up, and served the moment the endpoint is added. If that does not happen in time it is refused.

use std::time::Instant;

use super::{Action, Machine};
use crate::ProcessName;
use crate::core::parking::MAX_PARKED;
use crate::exchange::received::{Parked, Received};
use crate::wire::{CommId, Incarnation, Message, Mra, Queues, Reason, Req, Source};

impl Machine {
    /// Keeps `req`, tells its sender, and tells the main thread the first time.
    pub(super) fn park(&mut self, req: &Req, from: Source, incarnation: Incarnation, now: Instant) {
        let peer = req.hello.name;
        let received = Received { request: *req, from, incarnation };
        match self.parked.park(peer, received, now + self.params.unknown_wait, &mut self.timers) {
            Parked::Dropped => return self.stats.ignored += 1,
            Parked::Again => {}
            Parked::First => {
                self.stats.parked += 1;
                self.actions.push_back(Action::UnknownPeer { peer });
            }
        }
        self.send_to(from, incarnation, Message::Mra(Mra::of_req(req.local, self.params.mra_wait)));
    }

    /// The endpoint has come: serves the request that waited for it, if it is not from an earlier incarnation than was added.
    pub(super) fn serve_parked(&mut self, slot: usize, now: Instant) {
        if let Some(parked) = self.parked.take(self.endpoints[slot].peer, &mut self.timers) {
            self.route_req(parked.from, parked.incarnation, &parked.request, now);
        }
    }

    /// Remembers that this incarnation of a process has other queues: its request is refused at once, and its endpoint, should there be one
    /// later, is told.
    pub(super) fn note_misfit(&mut self, req: &Req, incarnation: Incarnation) {
        let peer = req.hello.name;
        if self.misfits.len() < MAX_PARKED || self.misfits.contains_key(&peer) {
            self.misfits.insert(peer, (incarnation, req.queues));
        }
    }

    /// The other queues of the endpoint's peer, if it is known to have some.
    pub(super) fn known_misfit(&self, slot: usize) -> Option<Queues> {
        let endpoint = &self.endpoints[slot];
        let &(incarnation, theirs) = self.misfits.get(&endpoint.peer)?;
        (!endpoint.address.incarnation.is_newer_than(incarnation)).then_some(theirs)
    }

    /// Drops a request that its sender has withdrawn; false if there is none.
    pub(super) fn unpark_withdrawn(&mut self, incarnation: Incarnation, id: CommId) -> bool {
        let found =
            self.parked.find(|parked| parked.incarnation == incarnation && parked.request.local == id);
        found.and_then(|peer| self.parked.take(peer, &mut self.timers)).is_some()
    }

    /// The peer was not added in time.
    pub(super) fn parked_due(&mut self, peer: ProcessName) {
        if let Some(Received { request, from, incarnation }) = self.parked.take(peer, &mut self.timers) {
            self.reject_req(from, incarnation, &request, Reason::UnknownPeer);
        }
    }

    /// Refuses all that wait, at the end.
    pub(super) fn dismiss_parked(&mut self) {
        self.parked.peers().into_iter().for_each(|peer| self.parked_due(peer));
    }
}
