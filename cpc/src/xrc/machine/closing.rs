//! Handlers of the end: removal, DREQ, DREP, TimeWait, and peers that leave.

use std::time::Instant;

use super::state::{Direction, Input, State};
use super::{Action, Machine};
use crate::wire::xrc::{Message, Rep};
use crate::wire::{Drep, Dreq, Reason, Stage};
use crate::{ConnectCause, EndpointKey, ProcessName};

impl Machine {
    /// Drops a link of which the peer needs to hear nothing (more).
    pub(super) fn forget(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        self.set_deadline(slot, None);
        self.detach(slot, now);
        self.leave_window(slot, now);
        let link = self.links.remove(slot);
        self.by_id.remove(&link.local);
        // After TimeWait it is closed already.
        if link.direction == Direction::In && !matches!(link.state, State::TimeWait { .. }) {
            self.actions.push_back(Action::Release { link: link.local });
        }
        if let Some(endpoint) = self.endpoints.get_mut(&link.key) {
            let place = match link.direction {
                Direction::Out => &mut endpoint.outgoing,
                Direction::In => &mut endpoint.incoming,
            };
            // The endpoint may be a new one, with a link of its own.
            if *place == Some(slot) {
                *place = None;
            }
        }
    }

    /// Queued, Creating, ReqSent or Failed + Remove: the peer has to hear of it if the link has been up.
    pub(super) fn withdraw(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        match self.links[slot].known {
            Some(_) => self.disconnect(slot, input, now),
            None => self.forget(slot, input, now),
        }
    }

    /// ToRts, Connected or RepSent + Remove: asks the peer to let go. The receiver keeps its handle until then.
    pub(super) fn disconnect(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        let Some(remote) = self.links[slot].remote() else { return };
        self.links[slot].since = now;
        self.links[slot].state = State::DreqSent { remote, tries: 0 };
        *self.leaving.entry(self.links[slot].peer).or_default() += 1;
        self.detach(slot, now);
        self.leave_window(slot, now);
        self.send_dreq(slot);
        self.arm(slot, 0, now);
    }

    fn send_dreq(&mut self, slot: usize) {
        let Some(remote) = self.links[slot].state.remote() else { return };
        let (local, failed) = (self.links[slot].local, self.links[slot].failed);
        let (remote, remote_qpn) = (remote.id, remote.qpn);
        self.send(slot, Message::Dreq(Dreq { local, remote, remote_qpn, failed }));
    }

    /// DreqSent + Timeout: repeats the DREQ. A peer that never answers is left behind: nothing here depends on it. Should it come back,
    /// the next request to it says what it has not heard.
    pub(super) fn repeat_dreq(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        let State::DreqSent { remote, tries } = self.links[slot].state else { return };
        if self.spent(slot, tries, now) {
            let (peer, local) = (self.links[slot].peer, self.links[slot].local);
            let last = self.unheard.entry(peer).or_insert(local);
            *last = if local.is_newer_than(*last) { local } else { *last };
            self.forget(slot, input, now);
            return self.one_link_gone(peer, now);
        }
        self.stats.repeated += 1;
        self.links[slot].state = State::DreqSent { remote, tries: tries + 1 };
        self.send_dreq(slot);
        self.arm(slot, tries + 1, now);
    }

    /// DreqSent + Rej: the peer knows nothing of our REP, and so has let go. One to our REQ is late: it says nothing of the DREQ.
    pub(super) fn rejected_after_dreq(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        match input {
            Input::Rej(rej) if rej.stage == Stage::Rep => self.drep_received(slot, input, now),
            _ => self.stats.stale += 1,
        }
    }

    /// DreqSent + Drep: the peer has let go.
    pub(super) fn drep_received(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        let Some(remote) = self.links[slot].state.remote() else { return };
        self.links[slot].state = State::TimeWait { remote };
        let time_wait = self.params.time_wait(self.local.ack_timeout);
        self.set_deadline(slot, Some(now + time_wait));
        if self.links[slot].direction == Direction::In {
            self.actions.push_back(Action::Release { link: self.links[slot].local });
        }
        self.one_link_gone(self.links[slot].peer, now);
    }

    /// One link less that waits for the peer's agreement; after the last one a new endpoint of the peer may begin.
    pub(super) fn one_link_gone(&mut self, peer: ProcessName, now: Instant) {
        let Some(count) = self.leaving.get_mut(&peer) else { return };
        *count -= 1;
        if *count != 0 {
            return;
        }
        self.leaving.remove(&peer);
        let endpoint = self.by_peer.get(&peer).and_then(|key| self.endpoints.get(key));
        let waiting = endpoint.and_then(|endpoint| endpoint.outgoing);
        if let Some(slot) = waiting.filter(|&slot| matches!(self.links[slot].state, State::Queued)) {
            self.line_up(slot, now);
        }
    }

    /// DreqSent + Dreq: both leave at once; each other's DREQ is as good as the DREP.
    pub(super) fn dreqs_crossed(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        self.answer_dreq(slot, input, now);
        self.drep_received(slot, input, now);
    }

    /// Dreq for something that is not up here (any more): agreed.
    pub(super) fn answer_dreq(&mut self, slot: usize, input: &Input<'_>, _: Instant) {
        let Input::Dreq(dreq) = input else { return };
        if let Some(endpoint) = self.endpoints.get_mut(&self.links[slot].key) {
            endpoint.peer_failed |= dreq.failed;
        }
        self.send(slot, Message::Drep(Drep { local: dreq.remote, remote: dreq.local }));
    }

    /// Queued or Creating + Dreq: agreed, and reported if the link has been up.
    pub(super) fn dreq_before_up(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        match self.links[slot].known {
            Some(_) => self.dreq_received(slot, input, now),
            None => self.answer_dreq(slot, input, now),
        }
    }

    /// ToRts or Connected + Dreq: the peer takes no more; agreed, and reported.
    pub(super) fn dreq_received(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        self.answer_dreq(slot, input, now);
        self.peer_left(slot, now);
    }

    /// ToRts or Connected + Rej: the peer does not take part (any more).
    pub(super) fn rejected_later(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        let (Input::Rej(rej), Some(remote)) = (input, self.links[slot].state.remote()) else { return };
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
        self.report_left(self.links[slot].key);
    }

    /// ReqSent + Rep of another endpoint than before: the one that we knew has left.
    pub(super) fn peer_replaced_endpoint(&mut self, slot: usize, rep: &Rep, now: Instant) {
        self.disown(slot, &Input::Rep(rep), now);
        self.leave_window(slot, now);
        self.peer_left(slot, now);
    }

    /// Says once that the peer has left, whichever of the two links shows it first.
    pub(super) fn report_left(&mut self, key: EndpointKey) {
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
}
