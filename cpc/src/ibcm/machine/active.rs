//! Handlers of the side that asks: from the wish to connect to the RTU.

use std::time::Instant;

use super::state::{Remote, State};
use super::{Call, Machine};
use crate::core::machine::Role;
use crate::wire::{Dreq, Hello, Message, Mra, Qpns, Reason, Rej, Rep, Req, Rtu, Stage};
use crate::{ConnectCause, Step};

impl Machine {
    /// Idle + Connect: takes a place in the queue, and its turn if it has come.
    pub(super) fn enqueue(&mut self, slot: usize, now: Instant) {
        let link = &mut self.links[slot];
        (link.state, link.since) = (State::Queued, now);
        self.queue(slot, now);
    }

    /// The link's turn: makes QPs to ask with.
    pub(super) fn start_creating(&mut self, slot: usize, now: Instant) {
        self.enter_window(slot);
        let link = &mut self.links[slot];
        (link.state, link.since) = (State::Creating { request: None }, now);
        let key = link.key;
        self.call(Call::CreateQps { key });
    }

    /// Sends our request, or answers the peer's if one came meanwhile.
    pub(super) fn take_qps(&mut self, slot: usize, qpns: Qpns, now: Instant) {
        self.links[slot].qpns = Some(qpns);
        match self.links[slot].state.remote().copied() {
            Some(remote) => self.bring_up(slot, remote, Role::Passive, now),
            None => self.send_req(slot, now),
        }
    }

    /// Sends our request for the (`tries` + 1)-th time.
    fn send_req(&mut self, slot: usize, now: Instant) {
        let asked = self.links[slot].address.incarnation;
        self.links[slot].state = State::ReqSent { asked };
        self.arm(slot, now);
        self.mark(slot, Step::ReqSent, now);
        let Some(hello) = self.hello(slot) else { return };
        let head = self.req_head(slot, self.links[slot].psn);
        let req = Req { head, hello, queues: self.local.queues, srq: self.local.srq };
        self.send(slot, Message::Req(req));
    }

    /// What we say of ourselves; `None` before the QPs are made.
    pub(super) fn hello(&self, slot: usize) -> Option<Hello> {
        let qpns = self.links[slot].qpns?;
        Some(Hello {
            layout: self.local.layout,
            name: self.local.name,
            qpns,
            stream: self.links[slot].stream,
        })
    }

    /// ReqSent + Timeout: asks again, unless it has been asked often enough.
    pub(super) fn repeat_req(&mut self, slot: usize, now: Instant) {
        self.leave_window(slot, now);
        match self.may_repeat(slot, now) {
            true => self.send_req(slot, now),
            false => self.time_out(slot, now),
        }
    }

    /// ReqSent + Rep: the peer is up; so shall we be.
    pub(super) fn replied(&mut self, slot: usize, rep: &Rep, now: Instant) {
        self.mark(slot, Step::RepReceived, now);
        if self.is_unlike(&rep.hello, &rep.queues) {
            self.stats.layout_refused += 1;
            self.reject(slot, rep.local, Stage::Rep, self.misfit_reason());
            return self.fail(slot, self.misfit_cause(&rep.queues), now);
        }
        let remote = Remote::new(rep.local, &rep.hello, rep.psn, rep.depth);
        self.bring_up(slot, remote, Role::Active, now);
    }

    /// ToRts + QpsUp: tells the peer, and the main thread if this side asked.
    pub(super) fn qps_up_done(&mut self, slot: usize, now: Instant) {
        let State::ToRts { remote, role, early } = self.links[slot].state else { return };
        self.mark(slot, Step::QpsUp, now);
        match role {
            Role::Active => {
                self.mark(slot, Step::RtuSent, now);
                self.send_rtu(slot, &remote);
                self.connected(slot, State::Connected { remote, role });
            }
            Role::Passive => self.reply(slot, remote, early, now),
        }
    }

    /// ToRts + QpsDown: reports it and tells the peer.
    pub(super) fn bring_up_failed(&mut self, slot: usize, error: &str, now: Instant) {
        if let State::ToRts { remote, role, .. } = self.links[slot].state {
            let stage = if role == Role::Active { Stage::Rep } else { Stage::Req };
            self.reject(slot, remote.id, stage, Reason::NoResources);
        }
        self.fail(slot, ConnectCause::Verbs(error.to_owned()), now);
    }

    fn send_rtu(&mut self, slot: usize, remote: &Remote) {
        let local = self.links[slot].local;
        self.send(slot, Message::Rtu(Rtu { local, remote: remote.id }));
    }

    /// Connected + Rep: our RTU was lost, or its twin came late.
    pub(super) fn repeat_rtu(&mut self, slot: usize, rep: &Rep, now: Instant) {
        match self.links[slot].state {
            State::Connected { remote, role: Role::Active } if remote.id == rep.local => {
                self.stats.repeated += 1;
                self.send_rtu(slot, &remote);
            }
            _ => self.disown_rep(slot, rep, now),
        }
    }

    /// A REP for an exchange that is no more: its sender shall not wait.
    pub(super) fn disown_rep(&mut self, slot: usize, rep: &Rep, _: Instant) {
        self.stats.stale += 1;
        // A REP of the very exchange that this side answers itself makes no sense; it must not end it.
        if self.links[slot].is_with(rep.local) {
            return;
        }
        self.reject(slot, rep.local, Stage::Rep, Reason::InvalidCommId);
    }

    /// ReqSent + Mra: the peer has our request and needs more time.
    pub(super) fn wait_longer(&mut self, slot: usize, mra: &Mra, now: Instant) {
        if mra.stage != Stage::Req {
            return self.stats.ignored += 1;
        }
        self.leave_window(slot, now);
        self.extend_deadline(slot, mra, now);
    }

    /// ReqSent + Rej: begins anew if only the exchange was outdated, else gives up.
    pub(super) fn rejected(&mut self, slot: usize, rej: &Rej, now: Instant) {
        if rej.stage == Stage::Rep {
            // No REP has gone out under this id.
            self.stats.stale += 1;
            return;
        }
        if matches!(rej.reason, Reason::Stale | Reason::InvalidCommId) {
            return self.renew(slot, rej.reason, now);
        }
        self.fail(slot, self.cause_of(rej.reason), now);
    }

    /// What is reported for a REJ.
    pub(super) fn cause_of(&self, reason: Reason) -> ConnectCause {
        match reason {
            Reason::Layout(theirs) => ConnectCause::Layout { ours: self.local.layout, theirs },
            Reason::Queues(theirs) => self.misfit_cause(&theirs),
            reason => ConnectCause::Rejected(reason),
        }
    }

    /// ReqSent + Dreq: the peer had answered, and has removed its endpoint since; its REP may still be on the way and
    /// must find the old id gone.
    pub(super) fn dreq_overtook_rep(&mut self, slot: usize, dreq: &Dreq, now: Instant) {
        self.answer_dreq(slot, dreq, now);
        if dreq.failed {
            return self.fail(slot, ConnectCause::Rejected(Reason::Refused), now);
        }
        self.renew(slot, Reason::Stale, now);
    }

    /// The same request under a new id; `reason` is reported if that has not helped often enough.
    fn renew(&mut self, slot: usize, reason: Reason, now: Instant) {
        if self.may_renew(slot, reason, now) {
            self.renew_id(slot);
            self.send_req(slot, now);
        }
    }
}
