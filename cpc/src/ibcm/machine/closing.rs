//! Handlers of the end: removal, DREQ, DREP, TimeWait, and peers that leave or start anew.

use std::time::Instant;

use super::state::{Input, State};
use super::{Action, Machine};
use crate::ConnectCause;
use crate::ibcm::wire::{CommId, Drep, Dreq, Message, Reason, Rej, Stage};

impl Machine {
    /// Remove, where the peer knows of no connection: drops everything. A REP that is still on its way here is disowned.
    pub(super) fn forget(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        self.leave_window(slot, now);
        self.set_deadline(slot, None);
        self.unlist(slot);
        let endpoint = self.endpoints.remove(slot);
        self.by_id.remove(&endpoint.local);
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

    /// Rising, RepSent or Up + Remove: asks the peer to let go.
    pub(super) fn leave(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        self.unlist(slot);
        self.say_goodbye(slot, now);
    }

    /// Rising, RepSent or Up + Abandon: the peer must not wait for what never comes. The endpoint stays known, to refuse its requests.
    pub(super) fn abandon(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        self.endpoints[slot].abandoned = true;
        self.say_goodbye(slot, now);
    }

    /// Idle, Queued, Opening or ReqSent + Abandon: there is no connection yet; a peer that asked is refused.
    pub(super) fn give_up(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        if let Some(remote) = self.endpoints[slot].state.remote().copied() {
            self.refuse(slot, remote, Stage::Req, Reason::Refused);
        }
        self.set_deadline(slot, None);
        self.leave_window(slot, now);
        self.endpoints[slot].state = State::Failed;
    }

    /// Leaving + Remove: nobody wants the abandoned endpoint any more; the rest goes as if it had been removed at once.
    pub(super) fn unlist_abandoned(&mut self, slot: usize, _: &Input<'_>, _: Instant) {
        self.endpoints[slot].abandoned = false;
        self.unlist(slot);
    }

    fn say_goodbye(&mut self, slot: usize, now: Instant) {
        let Some(remote) = self.endpoints[slot].state.remote().copied() else { return };
        self.endpoints[slot].since = now;
        self.endpoints[slot].state = State::Leaving { remote, tries: 0 };
        self.send_dreq(slot);
        self.arm(slot, 0, now);
    }

    fn send_dreq(&mut self, slot: usize) {
        let Some(remote) = self.endpoints[slot].state.remote().copied() else { return };
        let (local, failed) = (self.endpoints[slot].local, self.endpoints[slot].abandoned);
        let remote_qpn = remote.qpns.first();
        self.send(slot, Message::Dreq(Dreq { local, remote: remote.id, remote_qpn, failed }));
    }

    /// Leaving + Timeout: repeats the DREQ. A peer that never answers is left behind: nothing here depends on it.
    pub(super) fn leave_again(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        let State::Leaving { remote, tries } = self.endpoints[slot].state else { return };
        if self.spent(slot, tries, now) {
            return if self.endpoints[slot].abandoned {
                self.rest(slot)
            } else {
                self.forget(slot, input, now)
            };
        }
        self.stats.repeated += 1;
        self.endpoints[slot].state = State::Leaving { remote, tries: tries + 1 };
        self.send_dreq(slot);
        self.arm(slot, tries + 1, now);
    }

    /// Leaving + Drep or Rej: the peer has let go.
    pub(super) fn released(&mut self, slot: usize, _: &Input<'_>, now: Instant) {
        if self.endpoints[slot].abandoned {
            return self.rest(slot);
        }
        let Some(remote) = self.endpoints[slot].state.remote().copied() else { return };
        self.endpoints[slot].state = State::TimeWait { remote };
        self.set_deadline(slot, Some(now + self.params.time_wait));
    }

    /// The peer knows that the endpoint has failed, or will never know; its removal is all that is still to come.
    fn rest(&mut self, slot: usize) {
        self.set_deadline(slot, None);
        self.endpoints[slot].state = State::Failed;
    }

    /// Leaving + Dreq: both leave at once; each other's DREQ is as good as the DREP.
    pub(super) fn release_both(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        self.answer_dreq(slot, input, now);
        self.released(slot, input, now);
    }

    /// Dreq for something that is not up here (any more): agreed.
    pub(super) fn answer_dreq(&mut self, slot: usize, input: &Input<'_>, _: Instant) {
        let Input::Dreq(dreq) = input else { return };
        self.send(slot, Message::Drep(Drep { local: dreq.remote, remote: dreq.local }));
    }

    /// TimeWait, Failed or Left + Rtu: the peer takes this connection for an open one.
    pub(super) fn disown_rtu(&mut self, slot: usize, input: &Input<'_>, _: Instant) {
        let Input::Rtu(rtu) = input else { return };
        self.stats.stale += 1;
        self.reject(slot, super::routing::disowned(rtu));
    }

    /// Rising, RepSent or Up + Dreq: agreed, and reported.
    pub(super) fn let_go(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        self.answer_dreq(slot, input, now);
        if matches!(input, Input::Dreq(dreq) if dreq.failed) {
            return self.fail(slot, ConnectCause::Rejected(Reason::Refused), now);
        }
        self.peer_left(slot);
    }

    fn peer_left(&mut self, slot: usize) {
        self.set_deadline(slot, None);
        let endpoint = &mut self.endpoints[slot];
        endpoint.state = State::Left;
        self.actions.push_back(Action::Disconnected { key: endpoint.key });
    }

    /// Rising, RepSent or Up + Rej: the peer does not take part (any more).
    pub(super) fn let_down(&mut self, slot: usize, input: &Input<'_>, _: Instant) {
        let Input::Rej(rej) = input else { return };
        let Some(remote) = self.endpoints[slot].state.remote() else { return };
        // A REJ without an id answers a REP that led nowhere; only one that names the exchange ends an open one.
        let open = matches!(self.endpoints[slot].state, State::Up { .. });
        if rej.local == remote.id || (!open && rej.local == CommId::NONE) {
            self.peer_left(slot);
        } else {
            self.stats.stale += 1;
        }
    }

    /// Rising, RepSent or Up + ReqNew: the peer has started anew; what we hold leads nowhere. Its request waits for a new
    /// endpoint.
    pub(super) fn superseded(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        self.peer_left(slot);
        self.hold(slot, input, now);
    }

    /// Left + ReqNew: the request waits for a new endpoint.
    pub(super) fn hold(&mut self, slot: usize, input: &Input<'_>, now: Instant) {
        let Input::ReqNew(req, from) = input else { return };
        let nonce = self.endpoints[slot].address.nonce;
        self.park(req, *from, nonce, now);
    }

    /// Failed + ReqNew: this endpoint is spent.
    pub(super) fn turn_away(&mut self, slot: usize, input: &Input<'_>, _: Instant) {
        let Input::ReqNew(req, _) = input else { return };
        let (local, remote) = (CommId::NONE, req.local);
        self.reject(slot, Rej { local, remote, stage: Stage::Req, reason: Reason::Refused });
    }
}
