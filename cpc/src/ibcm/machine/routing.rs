//! From bytes to the endpoint that they belong to.
//!
//! A datagram has to pass, in this order: the format; the receiver's incarnation (is it for this incarnation of ours?); the id or
//! the name in it (which endpoint?); the sender's incarnation and UD QPN (is it from the incarnation that the modex named?);
//! the ids of both sides (is it of this exchange?). What fails is counted. REQ, REP, RTU and DREQ that belong to nothing
//! are answered all the same, so that their sender neither runs into its timeout nor holds half a connection.
//!
//! A REQ of a later incarnation than the modex said is valid: its sender has ended MPI and begun it again, and the
//! modex has given us the address of its former incarnation. The REQ says where it is now, and that is believed.

use std::time::Instant;

use super::state::{Far, Input};
use super::{Machine, Source};
use crate::wire::{
    CommId, Datagram, Drep, Dreq, Incarnation, Message, Reason, Rej, Req, Rtu, Stage, WireError,
};

impl Machine {
    /// Takes in a datagram: any bytes, from any sender.
    pub fn datagram(&mut self, from: Source, bytes: &[u8], now: Instant) {
        self.stats.received += 1;
        match Datagram::parse(bytes) {
            Ok(datagram) if datagram.to != self.local.address.incarnation => self.stats.stale += 1,
            Ok(Datagram { from: incarnation, message: Message::Req(req), .. }) => {
                self.route_req(from, incarnation, &req, now)
            }
            Ok(datagram) => self.route_answer(from, &datagram, now),
            Err(WireError::Length(_) | WireError::Foreign(_)) => self.stats.foreign += 1,
            Err(error @ (WireError::Version(_) | WireError::Field(_))) => {
                log::debug!("ibcm: refused a datagram of qp {:#x}: {error}", from.qpn.0);
                self.stats.malformed += 1;
            }
        }
    }

    /// A REQ finds its endpoint by the name of its sender.
    pub(super) fn route_req(&mut self, from: Source, incarnation: Incarnation, req: &Req, now: Instant) {
        if req.service != self.local.name {
            return self.reject_req(from, incarnation, req, Reason::InvalidServiceId);
        }
        let slot = self.by_peer.get(&req.hello.name).copied();
        if let Some(known) =
            slot.map(|slot| self.endpoints[slot].address.incarnation).filter(|&known| known != incarnation)
        {
            if known.is_newer_than(incarnation) {
                // Of an incarnation that has ended: no process waits for an answer.
                self.stats.stale += 1;
                return;
            }
            slot.into_iter().for_each(|slot| self.learn_address(slot, from, incarnation, req));
        }
        match slot {
            Some(slot) if self.endpoints[slot].address.qpn != from.qpn => self.stats.foreign += 1,
            Some(slot) if self.endpoints[slot].is_with(req.local) => self.input(slot, &Input::ReqDup, now),
            _ if self.is_stale(req, incarnation) || self.displaces(slot, req, now) => {
                self.stats.stale += 1;
                self.reject_req(from, incarnation, req, Reason::Stale);
            }
            _ if self.is_unlike(&req.hello, &req.queues) => {
                self.route_unlike(slot, from, incarnation, req, now)
            }
            Some(slot) => self.input(slot, &Input::ReqNew(req, from), now),
            None => self.park(req, from, incarnation, now),
        }
    }

    /// A REQ of a process whose queues are not ours; with an endpoint of it, that one can't come up.
    fn route_unlike(
        &mut self,
        slot: Option<usize>,
        from: Source,
        incarnation: Incarnation,
        req: &Req,
        now: Instant,
    ) {
        self.stats.layout_refused += 1;
        match slot {
            Some(slot) => self.input(slot, &Input::ReqUnlike(req), now),
            None => {
                self.note_misfit(req, incarnation);
                self.reject_req(from, incarnation, req, self.misfit_reason());
            }
        }
    }

    /// A REQ may name a queue pair that another peer's connection still has: then that peer's is gone, and so is that connection (IBTA
    /// 12.9.8.3.1). By the book the REQ is rejected as stale; its sender asks again, and finds the place free.
    fn displaces(&mut self, slot: Option<usize>, req: &Req, now: Instant) -> bool {
        let holder = self.far.get(&Far::of_req(req)).copied().filter(|&holder| Some(holder) != slot);
        if let Some(holder) = holder {
            self.input(holder, &Input::Displaced, now);
        }
        holder.is_some()
    }

    /// The peer has a later incarnation than the modex said: from now on it is where its request comes from.
    fn learn_address(&mut self, slot: usize, from: Source, incarnation: Incarnation, req: &Req) {
        self.stats.relearned += 1;
        let address = &mut self.endpoints[slot].address;
        (address.incarnation, address.qpn) = (incarnation, from.qpn);
        (address.lid, address.gid) = (req.path.local_lid, req.path.local_gid);
    }

    /// True for a request that its sender has made before the last one that was taken up here.
    fn is_stale(&self, req: &Req, incarnation: Incarnation) -> bool {
        let seen = self.seen.get(&req.hello.name);
        seen.is_some_and(|seen| seen.incarnation == incarnation && !req.local.is_newer_than(seen.last))
    }

    pub(super) fn reject_req(&mut self, to: Source, incarnation: Incarnation, req: &Req, reason: Reason) {
        self.send_to(to, incarnation, Message::Rej(Rej::of_req(req.local, reason)));
    }

    /// Every other message names the exchange by our id.
    fn route_answer(&mut self, from: Source, datagram: &Datagram, now: Instant) {
        let message = &datagram.message;
        if let Message::Rej(rej @ Rej { remote: CommId::NONE, reason: Reason::Timeout, .. }) = message {
            return self.withdrawn(from, datagram.from, rej, now);
        }
        let Some(&slot) = self.by_id.get(&message.remote()) else {
            return self.answer_stray(from, datagram);
        };
        let address = self.endpoints[slot].address;
        if address.incarnation != datagram.from || address.qpn != from.qpn {
            self.stats.foreign += 1;
        } else if self.ids_agree(slot, message) {
            self.input_message(slot, message, now);
        } else {
            self.answer_stray(from, datagram);
        }
    }

    /// The sender of a REQ waits no longer. It has no id of ours: the exchange is found by its own.
    fn withdrawn(&mut self, from: Source, incarnation: Incarnation, rej: &Rej, now: Instant) {
        if self.unpark_withdrawn(incarnation, rej.local) {
            return;
        }
        let found = self.endpoints.iter().find(|(_, endpoint)| {
            let of_sender = (endpoint.address.incarnation, endpoint.address.qpn) == (incarnation, from.qpn);
            of_sender && endpoint.is_with(rej.local)
        });
        match found.map(|(slot, _)| slot) {
            Some(slot) => self.input(slot, &Input::Rej(rej), now),
            None => self.stats.stale += 1,
        }
    }

    /// True if the sender means the exchange that we have. A REP says for itself: a twin of an old one is disowned.
    fn ids_agree(&self, slot: usize, message: &Message) -> bool {
        let local = message.local();
        match (self.endpoints[slot].state.remote(), message) {
            (None, Message::Dreq(dreq)) => self.is_ours(slot, dreq),
            (None, _) | (Some(_), Message::Rep(_)) => true,
            (Some(remote), Message::Mra(_) | Message::Rej(_)) => local == remote.id || local == CommId::NONE,
            (Some(remote), Message::Dreq(dreq)) => local == remote.id && self.is_ours(slot, dreq),
            (Some(remote), _) => local == remote.id,
        }
    }

    /// A DREQ names the queue pair of ours that it is about (IBTA 12.6.10).
    fn is_ours(&self, slot: usize, dreq: &Dreq) -> bool {
        self.endpoints[slot].qpns.is_none_or(|qpns| qpns.first() == dreq.remote_qpn)
    }

    fn input_message(&mut self, slot: usize, message: &Message, now: Instant) {
        let input = match message {
            Message::Req(_) => Input::ReqDup,
            Message::Mra(mra) => Input::Mra(mra),
            Message::Rej(rej) => Input::Rej(rej),
            Message::Rep(rep) => Input::Rep(rep),
            Message::Rtu(rtu) => Input::Rtu(rtu),
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
            Message::Rtu(rtu) => Message::Rej(disowned(&rtu)),
            Message::Req(_) | Message::Mra(_) | Message::Rej(_) | Message::Drep(_) => return,
        };
        self.send_to(from, datagram.from, answer);
    }
}

/// The answer to an RTU of a connection that is gone: it names both ids, as one who had the connection would.
pub(super) fn disowned(rtu: &Rtu) -> Rej {
    Rej { local: rtu.remote, remote: rtu.local, stage: Stage::Other, reason: Reason::Stale }
}
