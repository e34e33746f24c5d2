//! Requests of processes that this side has no usable endpoint for (yet).
//!
//! With direct modex a peer may know us long before we know it. Its REQ is kept, acknowledged with an MRA so that it neither
//! repeats itself often nor gives up, and served the moment the endpoint is added. If that does not happen in time it is refused.

use std::collections::hash_map::Entry;
use std::time::Instant;

use super::{Action, Machine};
use crate::ProcessName;
use crate::core::timers::Timer;
use crate::wire::time::encode_time;
use crate::wire::{CommId, Message, Mra, Nonce, Queues, Reason, Rej, Req, Source, Stage};

/// The most requests kept; later ones are dropped and come again.
const MAX_PARKED: usize = 4096;

/// A request that waits for its endpoint.
#[derive(Debug)]
pub(super) struct Parked {
    req: Req,
    from: Source,
    nonce: Nonce,
    until: Instant,
}

impl Machine {
    /// Keeps `req`, tells its sender, and tells the main thread the first time.
    pub(super) fn park(&mut self, req: &Req, from: Source, nonce: Nonce, now: Instant) {
        let peer = req.hello.name;
        if self.parked.len() >= MAX_PARKED && !self.parked.contains_key(&peer) {
            self.stats.ignored += 1;
            return;
        }
        if self.keep(peer, req, from, nonce, now) {
            self.stats.parked += 1;
            self.actions.push_back(Action::UnknownPeer { peer });
        }
        let service_timeout = encode_time(self.params.mra_wait);
        let (local, remote, stage) = (CommId::NONE, req.local, Stage::Req);
        self.send_to(from, nonce, Message::Mra(Mra { local, remote, stage, service_timeout }));
    }

    /// True if the peer had no request here.
    fn keep(&mut self, peer: ProcessName, req: &Req, from: Source, nonce: Nonce, now: Instant) -> bool {
        match self.parked.entry(peer) {
            Entry::Occupied(mut kept) => {
                let kept = kept.get_mut();
                if !kept.nonce.is_newer_than(nonce) {
                    (kept.req, kept.from, kept.nonce) = (*req, from, nonce);
                }
                false
            }
            Entry::Vacant(place) => {
                let until = now + self.params.unknown_wait;
                place.insert(Parked { req: *req, from, nonce, until });
                self.timers.move_to(Timer::Parked(peer), None, Some(until));
                true
            }
        }
    }

    /// The endpoint has come: serves the request that waited for it, if it is not from an earlier incarnation than was added.
    pub(super) fn serve_parked(&mut self, slot: usize, now: Instant) {
        if let Some(parked) = self.unpark(self.endpoints[slot].peer) {
            self.route_req(parked.from, parked.nonce, &parked.req, now);
        }
    }

    /// Remembers that this incarnation of a process has other queues: its request is refused at once, and its endpoint, should there be one
    /// later, is told.
    pub(super) fn note_misfit(&mut self, req: &Req, nonce: Nonce) {
        let peer = req.hello.name;
        if self.misfits.len() < MAX_PARKED || self.misfits.contains_key(&peer) {
            self.misfits.insert(peer, (nonce, req.queues));
        }
    }

    /// The other queues of the endpoint's peer, if it is known to have some.
    pub(super) fn known_misfit(&self, slot: usize) -> Option<Queues> {
        let endpoint = &self.endpoints[slot];
        let &(nonce, theirs) = self.misfits.get(&endpoint.peer)?;
        (!endpoint.address.nonce.is_newer_than(nonce)).then_some(theirs)
    }

    /// Drops a request that its sender has withdrawn; false if there is none.
    pub(super) fn unpark_withdrawn(&mut self, nonce: Nonce, id: CommId) -> bool {
        let mut parked = self.parked.iter();
        let found = parked.find(|(_, parked)| parked.nonce == nonce && parked.req.local == id);
        found.map(|(&peer, _)| peer).and_then(|peer| self.unpark(peer)).is_some()
    }

    fn unpark(&mut self, peer: ProcessName) -> Option<Parked> {
        let parked = self.parked.remove(&peer)?;
        self.timers.move_to(Timer::Parked(peer), Some(parked.until), None);
        Some(parked)
    }

    /// Nobody added the peer in time.
    pub(super) fn parked_due(&mut self, peer: ProcessName) {
        let Some(Parked { req, from, nonce, .. }) = self.unpark(peer) else { return };
        let (local, remote) = (CommId::NONE, req.local);
        let rej = Rej { local, remote, stage: Stage::Req, reason: Reason::UnknownPeer };
        self.send_to(from, nonce, Message::Rej(rej));
    }

    /// Refuses all that wait, at the end.
    pub(super) fn dismiss_parked(&mut self) {
        let peers: Vec<ProcessName> = self.parked.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.parked_due(peer));
    }
}
