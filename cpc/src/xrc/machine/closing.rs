//! Handlers of the end: removal, DREQ, DREP, TimeWait, and peers that leave.

use std::time::Instant;

use super::state::{Direction, State};
use super::{Call, Machine, Xrc};
use crate::core::action::Action;
use crate::core::machine::Link;
use crate::wire::xrc::Rep;
use crate::wire::{Dreq, Reason, Rej, Stage};
use crate::{ConnectCause, EndpointKey, ProcessName};

impl Machine {
    /// A link was dropped: gives its handle back, and its place at the endpoint.
    pub(super) fn link_gone(&mut self, slot: usize, link: &Link<Xrc>) {
        self.own.ids.links.remove(&link.local);
        // After TimeWait it is closed already.
        if link.direction == Direction::In && !matches!(link.state, State::TimeWait { .. }) {
            self.call(Call::Release { link: link.local });
        }
        if let Some(endpoint) = self.endpoints.get_mut(&link.key) {
            let place = endpoint.link_mut(link.direction);
            // The endpoint may be a new one, with a link of its own.
            if *place == Some(slot) {
                *place = None;
            }
        }
    }

    /// Queued, Creating, ReqSent or Failed + Remove: the peer has to hear of it if the link has been up.
    pub(super) fn withdraw(&mut self, slot: usize, now: Instant) {
        match self.links[slot].known {
            Some(_) => self.disconnect(slot, now),
            None => self.forget(slot, now),
        }
    }

    /// ToRts, Connected or RepSent + Remove: asks the peer to let go. The receiver keeps its handle until then.
    pub(super) fn disconnect(&mut self, slot: usize, now: Instant) {
        let Some(remote) = self.links[slot].remote() else { return };
        let link = &mut self.links[slot];
        (link.state, link.since, link.tries) = (State::DreqSent { remote }, now, 0);
        *self.own.leaving.entry(link.peer).or_default() += 1;
        self.detach(slot, now);
        self.leave_window(slot, now);
        self.send_dreq(slot, now);
    }

    /// DreqSent + Timeout: repeats the DREQ. A peer that never answers is left behind: nothing here depends on it. Should it come back,
    /// the next request to it says what it has not heard.
    pub(super) fn repeat_dreq(&mut self, slot: usize, now: Instant) {
        if self.may_repeat(slot, now) {
            return self.send_dreq(slot, now);
        }
        let (peer, local) = (self.links[slot].peer, self.links[slot].local);
        let last = self.own.unanswered.entry(peer).or_insert(local);
        *last = if local.is_newer_than(*last) { local } else { *last };
        self.forget(slot, now);
        self.one_link_gone(peer, now);
    }

    /// DreqSent + Rej: the peer knows nothing of our REP, and so has let go. One to our REQ is late: it says nothing of the DREQ.
    pub(super) fn rejected_after_dreq(&mut self, slot: usize, rej: &Rej, now: Instant) {
        match rej.stage {
            Stage::Rep => self.drep_received(slot, now),
            _ => self.stats.stale += 1,
        }
    }

    /// DreqSent + Drep: the peer has let go.
    pub(super) fn drep_received(&mut self, slot: usize, now: Instant) {
        let Some(remote) = self.links[slot].state.remote() else { return };
        self.links[slot].state = State::TimeWait { remote };
        self.time_wait(slot, now);
        if self.links[slot].direction == Direction::In {
            let link = self.links[slot].local;
            self.call(Call::Release { link });
        }
        self.one_link_gone(self.links[slot].peer, now);
    }

    /// One link less that waits for the peer's agreement; after the last one a new endpoint of the peer may begin.
    pub(super) fn one_link_gone(&mut self, peer: ProcessName, now: Instant) {
        let Some(count) = self.own.leaving.get_mut(&peer) else { return };
        *count -= 1;
        if *count != 0 {
            return;
        }
        self.own.leaving.remove(&peer);
        let endpoint = self.by_peer.get(&peer).and_then(|key| self.endpoints.get(key));
        let waiting = endpoint.and_then(|endpoint| endpoint.outgoing);
        if let Some(slot) = waiting.filter(|&slot| matches!(self.links[slot].state, State::Queued)) {
            self.line_up(slot, now);
        }
    }

    /// DreqSent + Dreq: both leave at once; each other's DREQ is as good as the DREP.
    pub(super) fn dreqs_crossed(&mut self, slot: usize, dreq: &Dreq, now: Instant) {
        self.answer_dreq(slot, dreq, now);
        self.drep_received(slot, now);
    }

    /// Dreq for something that is not up here (any more): agreed.
    pub(super) fn answer_dreq(&mut self, slot: usize, dreq: &Dreq, _: Instant) {
        if let Some(endpoint) = self.endpoints.get_mut(&self.links[slot].key) {
            endpoint.peer_failed |= dreq.failed;
        }
        self.send_drep(slot, dreq);
    }

    /// Queued or Creating + Dreq: agreed, and reported if the link has been up.
    pub(super) fn dreq_before_up(&mut self, slot: usize, dreq: &Dreq, now: Instant) {
        match self.links[slot].known {
            Some(_) => self.dreq_received(slot, dreq, now),
            None => self.answer_dreq(slot, dreq, now),
        }
    }

    /// ToRts or Connected + Dreq: the peer takes no more; agreed, and reported.
    pub(super) fn dreq_received(&mut self, slot: usize, dreq: &Dreq, now: Instant) {
        self.answer_dreq(slot, dreq, now);
        self.peer_left(slot, now);
    }

    /// ToRts or Connected + Rej: the peer does not take part (any more).
    pub(super) fn rejected_later(&mut self, slot: usize, rej: &Rej, now: Instant) {
        let Some(remote) = self.links[slot].state.remote() else { return };
        // One without the peer's id answers another message than our part of this exchange.
        if rej.local == remote.id {
            self.peer_left(slot, now);
        } else {
            self.stats.stale += 1;
        }
    }

    pub(super) fn peer_left(&mut self, slot: usize, now: Instant) {
        self.set_deadline(slot, None);
        self.links[slot].state = State::Disconnected;
        self.detach(slot, now);
        self.report_left(self.links[slot].key, now);
    }

    /// ReqSent + Rep of another endpoint than before: the one that we knew has left.
    pub(super) fn peer_replaced_endpoint(&mut self, slot: usize, rep: &Rep, now: Instant) {
        self.disown(slot, rep, now);
        self.leave_window(slot, now);
        self.peer_left(slot, now);
    }

    /// Says once that the peer has left, whichever of the two links shows it first.
    pub(super) fn report_left(&mut self, key: EndpointKey, now: Instant) {
        self.stop_asking(key, now);
        let Some(endpoint) = self.endpoints.get_mut(&key) else { return };
        let (peer, failed) = (endpoint.peer, endpoint.peer_failed);
        if std::mem::replace(&mut endpoint.left, true) {
            return;
        }
        match failed {
            true => self.report_failure(key, peer, ConnectCause::Rejected(Reason::Refused)),
            false => self.actions.push_back(Action::Disconnected { key }),
        }
    }

    /// Gives up a request without an answer. The peer's next endpoint may answer it, and the removal of this one,
    /// which is to come, would end that connection: the peer would take it for the leave of our next endpoint.
    fn stop_asking(&mut self, key: EndpointKey, now: Instant) {
        let Some(slot) = self.endpoints.get(&key).and_then(|endpoint| endpoint.outgoing) else { return };
        let link = &self.links[slot];
        let asks = matches!(link.state, State::Queued | State::Creating | State::ReqSent);
        if asks && link.known.is_none() {
            self.settle(slot, now);
            self.links[slot].state = State::Disconnected;
            self.detach(slot, now);
        }
    }
}
