//! Handlers of the end: removal, DREQ, DREP, TimeWait, and peers that leave or start anew.

use std::time::Instant;

use super::state::{Input, State};
use super::{Action, Machine};
use crate::ConnectCause;
use crate::wire::{CommId, Drep, Dreq, Message, Reason, Rej, Stage};

impl Machine {
    /// Remove, where the peer knows of no connection: drops everything. A REP that is still on its way here is disowned.
    pub(super) fn forget(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        self.leave_window(slot, now);
        self.set_deadline(slot, None);
        self.unlist(slot);
        self.forget_far(slot);
        let endpoint = self.endpoints.remove(slot);
        self.by_id.remove(&endpoint.local);
    }

    /// ReqSent + Remove: the request is withdrawn, so that the peer does not repeat its answer to an exchange that is gone.
    pub(super) fn withdraw(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        self.send_withdrawal(slot);
        self.forget(slot, input, now);
    }

    /// ReqSent + Abandon: the same; the endpoint stays known, to refuse the peer's requests.
    pub(super) fn withdraw_and_give_up(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        self.send_withdrawal(slot);
        self.give_up(slot, input, now);
    }

    /// By the book, a timeout of the side that asked (IBTA 12.6.7.2); the peer's id is not known, so it finds the exchange by ours.
    fn send_withdrawal(&mut self, slot: usize) {
        let (local, remote) = (self.endpoints[slot].local, CommId::NONE);
        self.reject(slot, Rej { local, remote, stage: Stage::Other, reason: Reason::Timeout });
    }

    /// Takes the endpoint out of the tables of the living; its id stays known.
    fn unlist(&mut self, slot: usize) {
        let endpoint = &self.endpoints[slot];
        // The key and the peer may have a new tenant already.
        if self.by_key.get(&endpoint.key) == Some(&slot) {
            self.by_key.remove(&endpoint.key);
        }
        if self.by_peer.get(&endpoint.peer) == Some(&slot) {
            self.by_peer.remove(&endpoint.peer);
        }
    }

    /// ToRts, RepSent or Connected + Remove: asks the peer to let go.
    pub(super) fn disconnect(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        self.unlist(slot);
        self.start_disconnect(slot, now);
    }

    /// ToRts, RepSent or Connected + Abandon: the peer must not wait for what never comes. The endpoint stays known, to refuse its requests.
    pub(super) fn abandon(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        self.endpoints[slot].abandoned = true;
        self.start_disconnect(slot, now);
    }

    /// Idle, Queued or Creating + Abandon: there is no connection yet; a peer that asked is refused.
    pub(super) fn give_up(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        if let Some(remote) = self.endpoints[slot].state.remote().copied() {
            self.refuse(slot, remote, Stage::Req, Reason::Refused);
        }
        self.set_deadline(slot, None);
        self.leave_window(slot, now);
        self.endpoints[slot].state = State::Failed;
    }

    /// DreqSent + Remove: the abandoned endpoint is removed; the rest goes as if it had been removed at once.
    pub(super) fn unlist_abandoned(&mut self, slot: usize, _: &Input<'_>, _: Instant) {
        self.endpoints[slot].abandoned = false;
        self.unlist(slot);
    }

    fn start_disconnect(&mut self, slot: usize, now: Instant) {
        let Some(remote) = self.endpoints[slot].state.remote().copied() else { return };
        self.forget_far(slot);
        self.endpoints[slot].since = now;
        self.endpoints[slot].state = State::DreqSent { remote, tries: 0 };
        self.send_dreq(slot);
        self.arm(slot, 0, now);
    }

    fn send_dreq(&mut self, slot: usize) {
        let Some(remote) = self.endpoints[slot].state.remote().copied() else { return };
        let (local, failed) = (self.endpoints[slot].local, self.endpoints[slot].abandoned);
        let remote_qpn = remote.qpns.first();
        self.send(slot, Message::Dreq(Dreq { local, remote: remote.id, remote_qpn, failed }));
    }

    /// DreqSent + Timeout: repeats the DREQ. A peer that never answers is left behind: nothing here depends on it.
    pub(super) fn repeat_dreq(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        let State::DreqSent { remote, tries } = self.endpoints[slot].state else { return };
        if self.spent(slot, tries, now) {
            return if self.endpoints[slot].abandoned {
                self.end_abandoned(slot)
            } else {
                self.forget(slot, input, now)
            };
        }
        self.stats.repeated += 1;
        self.endpoints[slot].state = State::DreqSent { remote, tries: tries + 1 };
        self.send_dreq(slot);
        self.arm(slot, tries + 1, now);
    }

    /// DreqSent + Drep: the peer has let go.
    pub(super) fn drep_received(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        if self.endpoints[slot].abandoned {
            return self.end_abandoned(slot);
        }
        let Some(remote) = self.endpoints[slot].state.remote().copied() else { return };
        self.endpoints[slot].state = State::TimeWait { remote };
        let time_wait = self.params.time_wait(self.local.ack_timeout);
        self.set_deadline(slot, Some(now + time_wait));
    }

    /// The peer knows that the endpoint has failed, or will never know; its removal is all that is still to come.
    fn end_abandoned(&mut self, slot: usize) {
        self.set_deadline(slot, None);
        self.endpoints[slot].state = State::Failed;
    }

    /// DreqSent + Dreq: both leave at once; each other's DREQ is as good as the DREP.
    pub(super) fn dreqs_crossed(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        self.answer_dreq(slot, input, now);
        self.drep_received(slot, input, now);
    }

    /// Dreq for something that is not up here (any more): agreed.
    pub(super) fn answer_dreq(&mut self, slot: usize, input: &Input<'_>, _: Instant) {
        let Input::Dreq(dreq) = input else { return };
        self.send(slot, Message::Drep(Drep { local: dreq.remote, remote: dreq.local }));
    }

    /// TimeWait, Failed or Disconnected + Rtu: the peer takes this connection for an open one.
    pub(super) fn disown_rtu(&mut self, slot: usize, input: &Input<'_>, _: Instant) {
        let Input::Rtu(rtu) = input else { return };
        self.stats.stale += 1;
        self.reject(slot, super::routing::disowned(rtu));
    }

    /// ToRts, RepSent or Connected + Dreq: agreed, and reported.
    pub(super) fn dreq_received(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        self.answer_dreq(slot, input, now);
        if matches!(input, Input::Dreq(dreq) if dreq.failed) {
            return self.fail(slot, ConnectCause::Rejected(Reason::Refused), now);
        }
        self.peer_left(slot);
    }

    /// ToRts, RepSent or Connected + Displaced: the peer's queue pairs are gone without a DREQ.
    pub(super) fn displaced(&mut self, slot: usize, _: &Input<'_>, _: Instant) {
        self.stats.stale += 1;
        self.peer_left(slot);
    }

    fn peer_left(&mut self, slot: usize) {
        self.set_deadline(slot, None);
        self.forget_far(slot);
        let endpoint = &mut self.endpoints[slot];
        endpoint.state = State::Disconnected;
        self.actions.push_back(Action::Disconnected { key: endpoint.key });
    }

    /// Creating to Connected + Rej: the peer does not take part (any more). If it has merely forgotten the exchange, given up
    /// waiting or has no queue pair for it, which it has reported, another may follow; any other reason is a failure here, too.
    pub(super) fn rejected_later(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        let Input::Rej(rej) = input else { return };
        if !self.is_of_exchange(slot, rej) {
            self.stats.stale += 1;
            return;
        }
        match rej.reason {
            Reason::InvalidCommId | Reason::Stale | Reason::Timeout | Reason::NoResources => {
                self.peer_left(slot);
            }
            reason => self.fail(slot, self.cause_of(reason), now),
        }
    }

    /// DreqSent + Rej: the peer has let go, too.
    pub(super) fn rejected_after_dreq(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        match input {
            Input::Rej(rej) if self.is_of_exchange(slot, rej) => self.drep_received(slot, input, now),
            _ => self.stats.stale += 1,
        }
    }

    /// True for a REJ that names the exchange. One without an id answers a REP that led to no exchange there. Of a
    /// REQ it says nothing here: ours has been answered already, by the REP or by the peer's own REQ.
    fn is_of_exchange(&self, slot: usize, rej: &Rej) -> bool {
        let state = &self.endpoints[slot].state;
        let unnamed = rej.local == CommId::NONE && rej.stage == Stage::Rep;
        state.remote().is_some_and(|remote| remote.id == rej.local)
            || (unnamed && matches!(state, State::RepSent { .. } | State::DreqSent { .. }))
    }

    /// ToRts, RepSent or Connected + ReqNew: the peer has started anew; what we hold leads nowhere. Its request waits for a new
    /// endpoint.
    pub(super) fn superseded(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        self.peer_left(slot);
        self.park_request(slot, input, now);
    }

    /// Disconnected + ReqNew: the request waits for a new endpoint.
    pub(super) fn park_request(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        let Input::ReqNew(req, from) = input else { return };
        let incarnation = self.endpoints[slot].address.incarnation;
        self.park(req, *from, incarnation, now);
    }

    /// Idle to Connected + ReqUnlike: the peer is refused and will report it; so do we, for no connection to it can come up.
    pub(super) fn queues_differ(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        let Input::ReqUnlike(req) = input else { return };
        self.refuse_unlike(slot, input, now);
        self.fail(slot, self.misfit_cause(&req.queues), now);
    }

    /// DreqSent, Failed or Disconnected + ReqUnlike: the peer is refused.
    pub(super) fn refuse_unlike(&mut self, slot: usize, input: &Input<'_>, _: Instant) {
        let Input::ReqUnlike(req) = input else { return };
        let (local, remote, reason) = (CommId::NONE, req.local, self.misfit_reason());
        self.reject(slot, Rej { local, remote, stage: Stage::Req, reason });
    }

    /// Failed + ReqNew: this endpoint is spent.
    pub(super) fn refuse_spent(&mut self, slot: usize, input: &Input<'_>, _: Instant) {
        let Input::ReqNew(req, _) = input else { return };
        let (local, remote) = (CommId::NONE, req.local);
        self.reject(slot, Rej { local, remote, stage: Stage::Req, reason: Reason::Refused });
    }
}
