//! Handlers of links that receive: from the peer's REQ to its end.

use std::time::Instant;

use verbs::Qpn;

use super::action::JoinError;
use super::state::{Direction, Remote, State};
use super::{Call, Machine};
use crate::core::action::Action;
use crate::wire::time::decode_time;
use crate::wire::xrc::{Message, Rep, Req};
use crate::wire::{Dreq, Reason, Rej};
use crate::{EndpointKey, Step};

impl Machine {
    /// A request of a peer that sends to us for the first time.
    pub(super) fn accept(&mut self, key: EndpointKey, req: &Req, now: Instant) {
        let Some(slot) = self.open_link(key, Direction::In, now) else { return };
        self.join(slot, req, now);
    }

    /// Joining or RepSent + ReqNew: the peer has begun anew, over another queue pair or, if it had no REP, with another endpoint. The
    /// new handle is there before the old one goes: they may be of one queue pair.
    pub(super) fn rejoin(&mut self, slot: usize, req: &Req, now: Instant) {
        if self.links[slot].state.remote().is_some_and(|remote| remote.id == req.head.local) {
            return self.join(slot, req, now);
        }
        let old = self.renew_id(slot);
        self.join(slot, req, now);
        self.call(Call::Release { link: old });
    }

    fn join(&mut self, slot: usize, req: &Req, now: Instant) {
        self.note_seen(slot, req.head.local, req.epoch);
        self.mark(slot, Step::ReqReceived, now);
        self.note_response(slot, req);
        let link = &mut self.links[slot];
        link.state = State::Joining { remote: Remote::from(req) };
        let call = Call::Join {
            link: link.local,
            epoch: req.epoch,
            receiver: req.receiver,
            sender: req.sender,
            psn: req.head.psn,
            depth: req.head.depth,
            address: link.address,
        };
        self.stats.joined += 1;
        self.call(call);
    }

    /// What the request says of its sender holds for both links, and for what becomes of them.
    fn note_response(&mut self, slot: usize, req: &Req) {
        let response = decode_time(req.head.response_timeout);
        self.links[slot].response = response;
        let Some(endpoint) = self.endpoints.get_mut(&self.links[slot].key) else { return };
        endpoint.response = response;
        if let Some(outgoing) = endpoint.outgoing {
            self.links[outgoing].response = response;
        }
    }

    /// Joining + ReceiverHeld: replies.
    pub(super) fn reply(&mut self, slot: usize, &receiver: &Qpn, now: Instant) {
        let State::Joining { remote } = self.links[slot].state else { return };
        self.links[slot].state = State::RepSent { remote, receiver };
        if let Some(endpoint) = self.endpoints.get_mut(&self.links[slot].key) {
            endpoint.replied = Some(remote.id);
        }
        self.mark(slot, Step::RepSent, now);
        self.send_rep(slot, &remote, receiver);
    }

    fn send_rep(&mut self, slot: usize, remote: &Remote, receiver: Qpn) {
        let (local, link) = (&self.local, &self.links[slot]);
        let rep = Rep {
            local: link.local,
            remote: remote.id,
            name: local.name,
            layout: local.layout,
            receiver,
            depth: local.terms.depth,
            srqs: local.srqs,
            label: link.label,
            epoch: remote.epoch,
        };
        self.send(slot, Message::Rep(rep));
    }

    /// RepSent + ReqDup: the REP was lost or is under way; one for one, so no peer can be flooded with it.
    pub(super) fn repeat_rep(&mut self, slot: usize, _: Instant) {
        let State::RepSent { remote, receiver } = self.links[slot].state else { return };
        self.stats.repeated += 1;
        self.send_rep(slot, &remote, receiver);
    }

    /// Joining + NoReceiverHeld: says so. A receive queue pair that is gone is no failure: the peer begins anew.
    pub(super) fn refuse(&mut self, slot: usize, error: &JoinError, now: Instant) {
        let Some(remote) = self.links[slot].state.remote() else { return };
        let reason = match error {
            JoinError::Gone => Reason::NoReceiver(remote.epoch),
            JoinError::Verbs(error) => {
                log::warn!("xrc: no receive queue pair for process {}: {error}", self.links[slot].peer);
                Reason::NoResources
            }
        };
        self.send(slot, Message::Rej(Rej::of_req(remote.id, reason)));
        self.forget(slot, now);
    }

    /// Joining or RepSent + Dreq: the peer sends no more; it has removed its endpoint.
    pub(super) fn dreq_from_sender(&mut self, slot: usize, dreq: &Dreq, now: Instant) {
        self.answer_dreq(slot, dreq, now);
        self.report_left(self.links[slot].key, now);
        self.forget(slot, now);
    }

    /// RepSent + Rej: the peer has given its request up, and asks again if it still wants to. A main thread that has been told of the request, and
    /// may wait for the peer, hears of that. Our own request stands: the peer may have answered it by now, and would give up its next one if
    /// we withdrew ours, and so on.
    pub(super) fn disowned(&mut self, slot: usize, now: Instant) {
        self.stats.stale += 1;
        let key = self.links[slot].key;
        self.forget(slot, now);
        let endpoint = self.endpoints.get_mut(&key);
        if endpoint.is_some_and(|endpoint| std::mem::take(&mut endpoint.told_asked)) {
            self.actions.push_back(Action::Retracted { key });
        }
    }
}
