//! From bytes to the link that they belong to.
//!
//! A datagram has to pass, in this order: the format; the receiver's incarnation; the id or the name in it (which link?); the sender's
//! incarnation and UD QPN; the ids of both sides. What fails is counted. REQ, REP and DREQ that belong to nothing are answered all the
//! same, so that their sender neither runs into its timeout nor keeps a handle in vain. A REQ of a later incarnation of its sender than we
//! know teaches us where that is (`restart`); one of a former incarnation is stale.

use std::cmp::Ordering;
use std::time::Instant;

use super::Machine;
use super::state::{Input, StateKind};
use crate::EndpointKey;
use crate::wire::Source;
use crate::wire::xrc::{Datagram, Message, Req};
use crate::wire::{CommId, Drep, Incarnation, Reason, Rej, WireError};

impl Machine {
    /// Takes in a datagram: any bytes, from any sender.
    pub fn datagram(&mut self, from: Source, bytes: &[u8], now: Instant) {
        self.stats.received += 1;
        match Datagram::parse(bytes) {
            Ok(datagram) if datagram.to != self.local.address.listener.incarnation => self.stats.stale += 1,
            Ok(Datagram { from: incarnation, message: Message::Req(req), .. }) => {
                self.route_req(from, incarnation, &req, now);
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
    pub(super) fn route_req(&mut self, from: Source, incarnation: Incarnation, req: &Req, now: Instant) {
        if req.service != self.local.name {
            return self.reject_req(from, incarnation, req, Reason::InvalidServiceId);
        }
        if req.layout != self.local.layout {
            self.stats.layout_refused += 1;
            return self.reject_req(from, incarnation, req, Reason::Layout(self.local.layout));
        }
        if self.is_of_former_incarnation(req.name, incarnation) {
            return self.reject_stale(from, incarnation, req);
        }
        let Some(key) = self.endpoint_of(req, from, incarnation, now) else {
            return match self.is_stale(req, incarnation) {
                true => self.reject_stale(from, incarnation, req),
                false => self.park(req, from, incarnation, now),
            };
        };
        if !self.is_from(key, from, incarnation) {
            self.stats.foreign += 1;
        } else if let Some((slot, epoch)) = self.answering(key, req.local) {
            match req.epoch.cmp(&epoch) {
                Ordering::Less => self.stats.stale += 1,
                Ordering::Equal => self.input(slot, &Input::ReqDup, now),
                Ordering::Greater => self.input(slot, &Input::ReqNew(req), now),
            }
        } else if self.is_stale(req, incarnation) {
            self.reject_stale(from, incarnation, req);
        } else {
            self.new_req(key, from, incarnation, req, now);
        }
    }

    /// The endpoint of the process that asks, which learns where a later incarnation of that is.
    fn endpoint_of(
        &mut self,
        req: &Req,
        from: Source,
        incarnation: Incarnation,
        now: Instant,
    ) -> Option<EndpointKey> {
        let key = *self.by_peer.get(&req.name)?;
        let known = self.endpoints.get(&key)?.address;
        if incarnation.is_newer_than(known.listener.incarnation) {
            self.peer_restarted(
                key,
                known.of_later_incarnation(incarnation, from.qpn, &req.path, req.domain),
                now,
            );
        }
        Some(key)
    }

    fn is_from(&self, key: EndpointKey, from: Source, incarnation: Incarnation) -> bool {
        let listener = self.endpoints.get(&key).map(|endpoint| endpoint.address.listener);
        listener.is_some_and(|listener| listener.incarnation == incarnation && listener.qpn == from.qpn)
    }

    /// The link that deals with this very exchange, and over which of the peer's send queue pairs.
    fn answering(&self, key: EndpointKey, id: CommId) -> Option<(usize, u32)> {
        let slot = self.endpoints.get(&key)?.incoming?;
        let remote = self.links[slot].state.remote().filter(|remote| remote.id == id)?;
        Some((slot, remote.epoch))
    }

    /// A request that is new.
    fn new_req(&mut self, key: EndpointKey, from: Source, incarnation: Incarnation, req: &Req, now: Instant) {
        self.drop_ended_links(key, req, now);
        let Some(endpoint) = self.endpoints.get(&key) else { return };
        match endpoint.incoming {
            // What we hold leads nowhere: it waits for a new endpoint.
            _ if endpoint.left => self.park(req, from, incarnation, now),
            _ if self.is_spent(key) => self.reject_req(from, incarnation, req, Reason::Refused),
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
        let seen = self.seen.get(&req.name);
        seen.is_some_and(|seen| {
            let newer =
                req.local.is_newer_than(seen.last) || (req.local == seen.last && req.epoch > seen.epoch);
            seen.address.listener.incarnation == incarnation && !newer
        })
    }

    fn reject_stale(&mut self, from: Source, incarnation: Incarnation, req: &Req) {
        self.stats.stale += 1;
        self.reject_req(from, incarnation, req, Reason::Stale);
    }

    pub(super) fn reject_req(&mut self, to: Source, incarnation: Incarnation, req: &Req, reason: Reason) {
        self.send_to(to, incarnation, Message::Rej(Rej::of_req(req.local, reason)));
    }

    /// Every other message names the exchange by our id.
    fn route_answer(&mut self, from: Source, datagram: &Datagram, now: Instant) {
        let message = &datagram.message;
        let Some(&slot) = self.by_id.get(&message.remote()) else {
            return self.answer_stray(from, datagram);
        };
        let listener = self.links[slot].address.listener;
        if listener.incarnation != datagram.from || listener.qpn != from.qpn {
            self.stats.foreign += 1;
        } else if self.ids_agree(slot, message) {
            self.input_message(slot, message, now);
        } else {
            self.answer_stray(from, datagram);
        }
    }

    /// True if the sender means the exchange that we have. A REP says for itself: a twin of an old one is disowned.
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
            Message::Req(_) => Input::ReqDup,
            Message::Rep(rep) => Input::Rep(rep),
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
            Message::Rep(_) => Message::Rej(Rej::of_stray_rep(remote)),
            Message::Dreq(_) => Message::Drep(Drep { local, remote }),
            Message::Req(_) | Message::Mra(_) | Message::Rej(_) | Message::Drep(_) => return,
        };
        self.send_to(from, datagram.from, answer);
    }
}
