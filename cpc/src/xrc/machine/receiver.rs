//! Handlers of links that receive: from the peer's ASK to its end.

use std::time::Instant;

use verbs::Qpn;

use super::action::JoinError;
use super::state::{Direction, Input, Remote, State};
use super::{Action, Machine};
use crate::wire::time::decode_time;
use crate::wire::xrc::{Ask, Message, Tell};
use crate::wire::{CommId, Reason, Rej, Stage};
use crate::{EndpointKey, Step};

impl Machine {
    /// A request of a peer that sends to us for the first time.
    pub(super) fn accept(&mut self, key: EndpointKey, ask: &Ask, now: Instant) {
        let Some(slot) = self.open_link(key, Direction::In, now) else { return };
        self.join(slot, ask, now);
    }

    /// Joining or Told + AskNew: the peer has begun anew, over another queue pair or, if it had not been told, with another endpoint. The
    /// new handle is there before the old one goes: they may be of one queue pair.
    pub(super) fn rejoin(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        let Input::AskNew(ask) = input else { return };
        if self.links[slot].state.remote().is_some_and(|remote| remote.id == ask.local) {
            return self.join(slot, ask, now);
        }
        let old = self.links[slot].local;
        let fresh = self.draw_id();
        self.links[slot].local = fresh;
        self.by_id.remove(&old);
        self.by_id.insert(fresh, slot);
        self.join(slot, ask, now);
        self.actions.push_back(Action::Release { link: old });
    }

    fn join(&mut self, slot: usize, ask: &Ask, now: Instant) {
        self.note_seen(slot, ask.local, ask.attempt);
        self.mark(slot, Step::ReqReceived, now);
        self.note_response(slot, ask);
        let link = &mut self.links[slot];
        link.state = State::Joining { remote: Remote::from(ask) };
        self.stats.joined += 1;
        self.actions.push_back(Action::Join {
            link: link.local,
            attempt: ask.attempt,
            receiver: ask.receiver,
            sender: ask.sender,
            psn: ask.psn,
            depth: ask.depth,
            address: link.address,
        });
    }

    /// What the request says of its sender holds for both links, and for what becomes of them.
    fn note_response(&mut self, slot: usize, ask: &Ask) {
        let response = decode_time(ask.response_timeout);
        self.links[slot].response = response;
        let Some(endpoint) = self.endpoints.get_mut(&self.links[slot].key) else { return };
        endpoint.response = response;
        if let Some(outgoing) = endpoint.outgoing {
            self.links[outgoing].response = response;
        }
    }

    /// Joining + Joined: tells.
    pub(super) fn tell(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        let (&Input::Joined(receiver), State::Joining { remote }) = (input, self.links[slot].state) else {
            return;
        };
        self.links[slot].state = State::Told { remote, receiver };
        if let Some(endpoint) = self.endpoints.get_mut(&self.links[slot].key) {
            endpoint.told = Some(remote.id);
        }
        self.mark(slot, Step::RepSent, now);
        self.send_tell(slot, &remote, receiver);
    }

    fn send_tell(&mut self, slot: usize, remote: &Remote, receiver: Qpn) {
        let (local, link) = (&self.local, &self.links[slot]);
        let tell = Tell {
            local: link.local,
            remote: remote.id,
            name: local.name,
            layout: local.layout,
            receiver,
            depth: local.depth,
            srqs: local.srqs,
            label: link.label,
            attempt: remote.attempt,
        };
        self.send(slot, Message::Tell(tell));
    }

    /// Told + AskDup: the TELL was lost or is under way; one for one, so nobody can be flooded with it.
    pub(super) fn repeat_tell(&mut self, slot: usize, _: &Input<'_>, _: Instant) {
        let State::Told { remote, receiver } = self.links[slot].state else { return };
        self.stats.repeated += 1;
        self.send_tell(slot, &remote, receiver);
    }

    /// Joining + Unjoined: says so. A receive queue pair that is gone is no failure: the peer begins anew.
    pub(super) fn refuse(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        let (Input::Unjoined(error), Some(remote)) = (input, self.links[slot].state.remote()) else { return };
        let reason = match error {
            JoinError::Gone => Reason::NoReceiver(remote.attempt),
            JoinError::Verbs(error) => {
                log::warn!("xrc: no receive queue pair for process {}: {error}", self.links[slot].peer);
                Reason::NoResources
            }
        };
        let rej = Rej { local: CommId::NONE, remote: remote.id, stage: Stage::Req, reason };
        self.send(slot, Message::Rej(rej));
        self.forget(slot, input, now);
    }

    /// Joining or Told + Dreq: the peer sends no more; it has removed its endpoint.
    pub(super) fn sender_left(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        self.answer_dreq(slot, input, now);
        self.report_left(self.links[slot].key);
        self.forget(slot, input, now);
    }

    /// Told + Rej: the peer has given its request up, and asks again if it still wants to.
    pub(super) fn disowned(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        self.stats.stale += 1;
        self.forget(slot, input, now);
    }
}
