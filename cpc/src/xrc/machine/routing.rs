//! From bytes to the link that they belong to.
//!
//! A datagram has to pass, in this order: the format; the receiver's nonce; the id or the name in it (which link?); the sender's
//! nonce and UD QPN; the ids of both sides. What fails is counted. ASK, TELL and DREQ that belong to nothing are answered all the
//! same, so that their sender neither runs into its timeout nor keeps a handle for nobody. An ASK of a later life of its sender than we
//! know teaches us where that is (`lives`); one of a former life is stale.

use std::cmp::Ordering;
use std::time::Instant;

use super::Machine;
use super::state::{Input, StateKind};
use crate::EndpointKey;
use crate::wire::Source;
use crate::wire::xrc::{Ask, Datagram, Message};
use crate::wire::{CommId, Drep, Nonce, Reason, Rej, WireError};

impl Machine {
    /// Takes in a datagram: any bytes, from anyone.
    pub fn datagram(&mut self, from: Source, bytes: &[u8], now: Instant) {
        self.stats.received += 1;
        match Datagram::parse(bytes) {
            Ok(datagram) if datagram.to != self.local.address.listener.nonce => self.stats.stale += 1,
            Ok(Datagram { from: nonce, message: Message::Ask(ask), .. }) => {
                self.route_ask(from, nonce, &ask, now);
            }
            Ok(datagram) => self.route_answer(from, &datagram, now),
            Err(WireError::Length(_) | WireError::Foreign(_)) => self.stats.foreign += 1,
            Err(error @ (WireError::Version(_) | WireError::Field(_))) => {
                log::debug!("xrc: refused a datagram of qp {:#x}: {error}", from.qpn.0);
                self.stats.malformed += 1;
            }
        }
    }

    /// A request finds its endpoint by the name of its sender.
    pub(super) fn route_ask(&mut self, from: Source, nonce: Nonce, ask: &Ask, now: Instant) {
        if ask.service != self.local.name {
            return self.reject_ask(from, nonce, ask, Reason::InvalidServiceId);
        }
        if ask.layout != self.local.layout {
            self.stats.layout_refused += 1;
            return self.reject_ask(from, nonce, ask, Reason::Layout(self.local.layout));
        }
        if self.is_of_former_life(ask.name, nonce) {
            return self.stale_ask(from, nonce, ask);
        }
        let Some(key) = self.whose(ask, from, nonce, now) else {
            return match self.is_stale(ask, nonce) {
                true => self.stale_ask(from, nonce, ask),
                false => self.park(ask, from, nonce, now),
            };
        };
        if !self.is_from(key, from, nonce) {
            self.stats.foreign += 1;
        } else if let Some((slot, attempt)) = self.answering(key, ask.local) {
            match ask.attempt.cmp(&attempt) {
                Ordering::Less => self.stats.stale += 1,
                Ordering::Equal => self.input(slot, &Input::AskDup, now),
                Ordering::Greater => self.input(slot, &Input::AskNew(ask), now),
            }
        } else if self.is_stale(ask, nonce) {
            self.stale_ask(from, nonce, ask);
        } else {
            self.asked(key, from, nonce, ask, now);
        }
    }

    /// The endpoint of the process that asks, which learns where a later life of that is.
    fn whose(&mut self, ask: &Ask, from: Source, nonce: Nonce, now: Instant) -> Option<EndpointKey> {
        let key = *self.by_peer.get(&ask.name)?;
        let known = self.endpoints.get(&key)?.address;
        if nonce.is_newer_than(known.listener.nonce) {
            self.reborn(key, known.of_later_life(nonce, from.qpn, &ask.path, ask.domain), now);
        }
        Some(key)
    }

    fn is_from(&self, key: EndpointKey, from: Source, nonce: Nonce) -> bool {
        let listener = self.endpoints.get(&key).map(|endpoint| endpoint.address.listener);
        listener.is_some_and(|listener| listener.nonce == nonce && listener.qpn == from.qpn)
    }

    /// The link that deals with this very exchange, and over which of the peer's send queue pairs.
    fn answering(&self, key: EndpointKey, id: CommId) -> Option<(usize, u32)> {
        let slot = self.endpoints.get(&key)?.incoming?;
        let remote = self.links[slot].state.remote().filter(|remote| remote.id == id)?;
        Some((slot, remote.attempt))
    }

    /// A request that is new.
    fn asked(&mut self, key: EndpointKey, from: Source, nonce: Nonce, ask: &Ask, now: Instant) {
        self.catch_up(key, ask, now);
        let Some(endpoint) = self.endpoints.get(&key) else { return };
        match endpoint.incoming {
            // What we hold leads nowhere: it waits for a new endpoint.
            _ if endpoint.left => self.park(ask, from, nonce, now),
            _ if self.is_spent(key) => self.reject_ask(from, nonce, ask, Reason::Refused),
            Some(slot) => self.input(slot, &Input::AskNew(ask), now),
            None => self.accept(key, ask, now),
        }
    }

    /// The endpoint has failed, at one end or the other.
    pub(super) fn is_spent(&self, key: EndpointKey) -> bool {
        let Some(endpoint) = self.endpoints.get(&key) else { return false };
        let failed = endpoint.outgoing.is_some_and(|s| self.links[s].state.kind() == StateKind::Failed);
        failed || endpoint.abandoned
    }

    /// True for a request that its sender has made before the last one that was taken up here.
    fn is_stale(&self, ask: &Ask, nonce: Nonce) -> bool {
        let seen = self.seen.get(&ask.name);
        seen.is_some_and(|seen| {
            let newer =
                ask.local.is_newer_than(seen.last) || (ask.local == seen.last && ask.attempt > seen.attempt);
            seen.address.listener.nonce == nonce && !newer
        })
    }

    fn stale_ask(&mut self, from: Source, nonce: Nonce, ask: &Ask) {
        self.stats.stale += 1;
        self.reject_ask(from, nonce, ask, Reason::Stale);
    }

    pub(super) fn reject_ask(&mut self, to: Source, nonce: Nonce, ask: &Ask, reason: Reason) {
        self.send_to(to, nonce, Message::Rej(Rej::of_req(ask.local, reason)));
    }

    /// Every other message names the exchange by our id.
    fn route_answer(&mut self, from: Source, datagram: &Datagram, now: Instant) {
        let message = &datagram.message;
        let Some(&slot) = self.by_id.get(&message.remote()) else {
            return self.answer_stray(from, datagram);
        };
        let listener = self.links[slot].address.listener;
        if listener.nonce != datagram.from || listener.qpn != from.qpn {
            self.stats.foreign += 1;
        } else if self.ids_agree(slot, message) {
            self.input_message(slot, message, now);
        } else {
            self.answer_stray(from, datagram);
        }
    }

    /// True if the sender means the exchange that we have. A TELL says for itself: a twin of an old one is disowned.
    fn ids_agree(&self, slot: usize, message: &Message) -> bool {
        let local = message.local();
        match (self.links[slot].state.remote(), message) {
            (None, _) => true,
            (Some(remote), Message::Mra(_) | Message::Rej(_)) => local == remote.id || local == CommId::NONE,
            (Some(remote), _) => local == remote.id,
        }
    }

    fn input_message(&mut self, slot: usize, message: &Message, now: Instant) {
        let input = match message {
            Message::Ask(_) => Input::AskDup,
            Message::Tell(tell) => Input::Tell(tell),
            Message::Mra(mra) => Input::Mra(mra),
            Message::Rej(rej) => Input::Rej(rej),
            Message::Dreq(dreq) => Input::Dreq(dreq),
            Message::Drep(_) => Input::Drep,
        };
        self.input(slot, &input, now);
    }

    /// A message of an exchange that we don't know (any more).
    fn answer_stray(&mut self, from: Source, datagram: &Datagram) {
        self.stats.stale += 1;
        let (local, remote) = (datagram.message.remote(), datagram.message.local());
        let answer = match datagram.message {
            Message::Tell(_) => Message::Rej(Rej::of_stray_rep(remote)),
            Message::Dreq(_) => Message::Drep(Drep { local, remote }),
            Message::Ask(_) | Message::Mra(_) | Message::Rej(_) | Message::Drep(_) => return,
        };
        self.send_to(from, datagram.from, answer);
    }
}
