//! Handlers of the end: removal, DREQ, DREP, TimeWait, and peers that leave or start anew.

use std::time::Instant;

use super::Machine;
use super::state::State;
use crate::ConnectCause;
use crate::exchange::{Received, disowned};
use crate::wire::{CommId, Dreq, Message, Reason, Rej, Req, Rtu, Stage};

impl Machine {
    /// ReqSent + Remove: the request is withdrawn, so that the peer does not repeat its answer to an exchange that is gone.
    pub(super) fn withdraw(&mut self, slot: usize, now: Instant) {
        self.send_withdrawal(slot);
        self.forget(slot, now);
    }

    /// ReqSent + Unlist: the same, and reported. A peer that has answered is not up before it has our RTU, so it begins anew.
    pub(super) fn withdraw_and_unlist(&mut self, slot: usize, now: Instant) {
        self.send_withdrawal(slot);
        self.unlist_unanswered(slot, now);
    }

    /// Creating + Unlist: a request of the peer's is answered all the same.
    pub(super) fn unlist_creating(&mut self, slot: usize, now: Instant) {
        match self.links[slot].state {
            State::Creating { request: Some(_) } => self.stats.ignored += 1,
            _ => self.unlist_unanswered(slot, now),
        }
    }

    /// ReqSent + Abandon: the same as Remove; the endpoint stays known, to refuse the peer's requests.
    pub(super) fn withdraw_and_give_up(&mut self, slot: usize, now: Instant) {
        self.send_withdrawal(slot);
        self.give_up(slot, now);
    }

    /// By the book, a timeout of the side that asked (IBTA 12.6.7.2); the peer's id is not known, so it finds the exchange by ours.
    fn send_withdrawal(&mut self, slot: usize) {
        self.reject(slot, CommId::NONE, Stage::Other, Reason::Timeout);
    }

    /// Idle, Queued or Creating + Abandon: there is no connection yet; a peer that asked is refused.
    pub(super) fn give_up(&mut self, slot: usize, now: Instant) {
        if let Some(remote) = self.links[slot].state.remote().copied() {
            self.reject(slot, remote.id, Stage::Req, Reason::Refused);
        }
        self.end_failed(slot, now);
    }

    /// Connected, or on the way there: asks the peer to let go.
    pub(super) fn begin_disconnect(&mut self, slot: usize, now: Instant) {
        let Some(remote) = self.links[slot].state.remote().copied() else { return };
        self.release_remote_qp(slot);
        let link = &mut self.links[slot];
        (link.state, link.since, link.tries) = (State::DreqSent { remote }, now, 0);
        self.send_dreq(slot, now);
    }

    /// DreqSent + Timeout: repeats the DREQ. A peer that never answers is left behind: nothing here depends on it.
    pub(super) fn repeat_dreq(&mut self, slot: usize, now: Instant) {
        if self.may_repeat(slot, now) {
            self.send_dreq(slot, now);
        } else if self.links[slot].failed {
            self.end_failed(slot, now);
        } else {
            self.forget(slot, now);
        }
    }

    /// DreqSent + Drep: the peer has let go. Of an endpoint that has failed, its removal is all that is still to come.
    pub(super) fn drep_received(&mut self, slot: usize, now: Instant) {
        if self.links[slot].failed {
            return self.end_failed(slot, now);
        }
        let Some(remote) = self.links[slot].state.remote().copied() else { return };
        self.links[slot].state = State::TimeWait { remote };
        self.time_wait(slot, now);
    }

    /// DreqSent + Dreq: both leave at once; each other's DREQ is as good as the DREP.
    pub(super) fn dreqs_crossed(&mut self, slot: usize, dreq: &Dreq, now: Instant) {
        self.answer_dreq(slot, dreq, now);
        self.drep_received(slot, now);
    }

    /// Dreq for something that is not up here (any more): agreed.
    pub(super) fn answer_dreq(&mut self, slot: usize, dreq: &Dreq, _: Instant) {
        self.send_drep(slot, dreq);
    }

    /// TimeWait, Failed or Disconnected + Rtu: the peer takes this connection for an open one.
    pub(super) fn disown_rtu(&mut self, slot: usize, rtu: &Rtu, _: Instant) {
        self.stats.stale += 1;
        self.send(slot, Message::Rej(disowned(rtu)));
    }

    /// ToRts, RepSent or Connected + Dreq: agreed, and reported.
    pub(super) fn dreq_received(&mut self, slot: usize, dreq: &Dreq, now: Instant) {
        self.answer_dreq(slot, dreq, now);
        if dreq.failed {
            return self.fail(slot, ConnectCause::Rejected(Reason::Refused), now);
        }
        self.left(slot, now);
    }

    /// ToRts, RepSent or Connected + Displaced: the peer's queue pairs are gone without a DREQ.
    pub(super) fn displaced(&mut self, slot: usize, now: Instant) {
        self.stats.stale += 1;
        self.left(slot, now);
    }

    /// Creating to Connected + Rej: the peer does not take part (any more). If it has merely forgotten the exchange, given up
    /// waiting or has no queue pair for it, which it has reported, another may follow; any other reason is a failure here, too.
    pub(super) fn rejected_later(&mut self, slot: usize, rej: &Rej, now: Instant) {
        if !self.is_of_exchange(slot, rej) {
            self.stats.stale += 1;
            return;
        }
        match rej.reason {
            Reason::InvalidCommId | Reason::Stale | Reason::Timeout | Reason::NoResources => {
                self.left(slot, now);
            }
            reason => self.fail(slot, self.cause_of(reason), now),
        }
    }

    /// DreqSent + Rej: the peer has let go, too.
    pub(super) fn rejected_after_dreq(&mut self, slot: usize, rej: &Rej, now: Instant) {
        match self.is_of_exchange(slot, rej) {
            true => self.drep_received(slot, now),
            false => self.stats.stale += 1,
        }
    }

    /// True for a REJ that names the exchange. One without an id answers a REP that led to no exchange there. Of a
    /// REQ it says nothing here: ours has been answered already, by the REP or by the peer's own REQ.
    fn is_of_exchange(&self, slot: usize, rej: &Rej) -> bool {
        let state = &self.links[slot].state;
        let unnamed = rej.local == CommId::NONE && rej.stage == Stage::Rep;
        state.remote().is_some_and(|remote| remote.id == rej.local)
            || (unnamed && matches!(state, State::RepSent { .. } | State::DreqSent { .. }))
    }

    /// ToRts, RepSent or Connected + ReqNew: the peer has started anew; what we hold leads nowhere. Its request waits for a new
    /// endpoint.
    pub(super) fn superseded(&mut self, slot: usize, received: &Received<Req>, now: Instant) {
        self.left(slot, now);
        self.park_request(slot, received, now);
    }

    /// Disconnected + ReqNew: the request waits for a new endpoint.
    pub(super) fn park_request(&mut self, _: usize, received: &Received<Req>, now: Instant) {
        self.park(received, now);
    }

    /// Idle to Connected + ReqUnlike: the peer is refused and will report it; so do we, for no connection to it can come up.
    pub(super) fn queues_differ(&mut self, slot: usize, req: &Req, now: Instant) {
        self.refuse_unlike(slot, req, now);
        self.fail(slot, self.misfit_cause(&req.queues), now);
    }

    /// DreqSent, Failed or Disconnected + ReqUnlike: the peer is refused.
    pub(super) fn refuse_unlike(&mut self, slot: usize, req: &Req, _: Instant) {
        self.send(slot, Message::Rej(Rej::of_req(req.head.local, self.misfit_reason())));
    }

    /// Failed + ReqNew: this endpoint is spent.
    pub(super) fn refuse_spent(&mut self, slot: usize, received: &Received<Req>, _: Instant) {
        self.send(slot, Message::Rej(Rej::of_req(received.req.head.local, Reason::Refused)));
    }
}
