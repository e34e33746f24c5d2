//! Requests of processes that this side has no usable endpoint for (yet): kept, acknowledged with an MRA, served when the
//! endpoint is added, and refused if that does not happen in time.

use std::time::Instant;

use super::{Action, Machine};
use crate::ProcessName;
use crate::exchange::received::{Parked, Received};
use crate::wire::xrc::{Message, Req};
use crate::wire::{Incarnation, Mra, Reason, Source};

impl Machine {
    /// Keeps `ask`, tells its sender, and tells the main thread the first time.
    pub(super) fn park(&mut self, req: &Req, from: Source, incarnation: Incarnation, now: Instant) {
        let peer = req.name;
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
    pub(super) fn serve_parked(&mut self, peer: ProcessName, now: Instant) {
        if let Some(parked) = self.parked.take(peer, &mut self.timers) {
            self.route_req(parked.from, parked.incarnation, &parked.request, now);
        }
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
