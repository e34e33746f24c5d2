//! Requests of processes that this side has no usable endpoint for (yet): kept, acknowledged with an MRA, served when the
//! endpoint is added, and refused if that does not happen in time.

use std::collections::hash_map::Entry;
use std::time::Instant;

use super::{Action, Machine};
use crate::ProcessName;
use crate::core::timers::Timer;
use crate::wire::Source;
use crate::wire::time::encode_time;
use crate::wire::xrc::{Ask, Message};
use crate::wire::{CommId, Mra, Nonce, Reason, Stage};

/// The most requests kept; later ones are dropped and come again.
const MAX_PARKED: usize = 4096;

/// A request that waits for its endpoint.
#[derive(Debug)]
pub(super) struct Parked {
    ask: Ask,
    from: Source,
    nonce: Nonce,
    until: Instant,
}

impl Machine {
    /// Keeps `ask`, tells its sender, and tells the main thread the first time.
    pub(super) fn park(&mut self, ask: &Ask, from: Source, nonce: Nonce, now: Instant) {
        let peer = ask.name;
        if self.parked.len() >= MAX_PARKED && !self.parked.contains_key(&peer) {
            self.stats.ignored += 1;
            return;
        }
        if self.keep(peer, ask, from, nonce, now) {
            self.stats.parked += 1;
            self.actions.push_back(Action::UnknownPeer { peer });
        }
        let service_timeout = encode_time(self.params.mra_wait);
        let (local, remote, stage) = (CommId::NONE, ask.local, Stage::Req);
        self.send_to(from, nonce, Message::Mra(Mra { local, remote, stage, service_timeout }));
    }

    /// True if the peer had no request here.
    fn keep(&mut self, peer: ProcessName, ask: &Ask, from: Source, nonce: Nonce, now: Instant) -> bool {
        match self.parked.entry(peer) {
            Entry::Occupied(mut kept) => {
                let kept = kept.get_mut();
                if !kept.nonce.is_newer_than(nonce) {
                    (kept.ask, kept.from, kept.nonce) = (*ask, from, nonce);
                }
                false
            }
            Entry::Vacant(place) => {
                let until = now + self.params.unknown_wait;
                place.insert(Parked { ask: *ask, from, nonce, until });
                self.timers.move_to(Timer::Parked(peer), None, Some(until));
                true
            }
        }
    }

    /// The endpoint has come: serves the request that waited for it, if it is not from an earlier incarnation than was added.
    pub(super) fn serve_parked(&mut self, peer: ProcessName, now: Instant) {
        if let Some(parked) = self.unpark(peer) {
            self.route_ask(parked.from, parked.nonce, &parked.ask, now);
        }
    }

    fn unpark(&mut self, peer: ProcessName) -> Option<Parked> {
        let parked = self.parked.remove(&peer)?;
        self.timers.move_to(Timer::Parked(peer), Some(parked.until), None);
        Some(parked)
    }

    /// Nobody added the peer in time.
    pub(super) fn parked_due(&mut self, peer: ProcessName) {
        let Some(Parked { ask, from, nonce, .. }) = self.unpark(peer) else { return };
        self.reject_ask(from, nonce, &ask, Reason::UnknownPeer);
    }

    /// Refuses all that wait, at the end.
    pub(super) fn dismiss_parked(&mut self) {
        let peers: Vec<ProcessName> = self.parked.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.parked_due(peer));
    }
}
